"""The comparison of the backward track: profiles/<device>/peers_gradients.json.

A table is one problem at one length, with all implementations that compute its gradients. The comparison differs from
that by problem in the inputs, in the work that is counted, and in how our versions are chosen.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from ladder import HEADS

from comparison import by_problem, tables
from comparison.implementations import Implementation
from comparison.machine import Machine
from comparison.problems import GRADIENTS, Problem
from comparison.recording import Session, schema_of
from comparison.report import show
from comparison.resuming import Table

FILE = "peers_gradients.json"
FORWARD_PASSES = 2.5  # five matrix products instead of two, as in harness/problem/kind.cpp
OPERATIONS = "10 * batch * heads * head_dim * scores"


def best(versions: dict[str, dict[str, Any]], problems: Sequence[Problem], dtype: str) -> list[str]:
    """Of those that use the tensor cores and solve a problem, the first and the newest for each instruction set,
    deterministic ones apart. For a problem without masks and grouped heads, an extension is none of them."""
    chosen: set[str] = set()
    for problem in problems:
        groups: dict[tuple[str, bool], list[str]] = {}
        for name, one in versions.items():
            if one["kind"] != "backward" or not one["is_fast"] or (one["extends"] is not None and not problem.fields):
                continue
            if by_problem.is_able(one, problem.fields, dtype, "backward"):
                groups.setdefault((one["architecture"], one["deterministic"]), []).append(name)
        for group in groups.values():
            group.sort(key=lambda name: (by_problem.depth(versions, name), name))
            chosen |= {group[0], group[-1]}
    return sorted(
        chosen, key=lambda name: (versions[name]["architecture"], by_problem.depth(versions, name), name)
    )  # fmt: skip


def versions_and_peers(
    arguments: argparse.Namespace, machine: Machine, versions: dict[str, dict[str, Any]], known: Sequence[str]
) -> tuple[list[Implementation], list[Implementation], dict[str, str]]:
    """As decoding.versions_and_peers()."""
    chosen = best(versions, arguments.gradients, arguments.dtype)
    ours = by_problem.versions_of_kind(
        arguments, versions, known, "backward", chosen, machine.gradient_version, arguments.gradients
    )
    for one in ours:
        assert one.kernel is not None
        one.deterministic = versions[one.kernel.kernel]["deterministic"]
    return ours, *machine.gradient_peers(set(arguments.without))


def empty_document(session: Session, problems: Sequence[Problem]) -> dict[str, Any]:
    """harness/results/peers_gradients.schema.json without results."""
    deterministic = [one for one in session.implementations if one.deterministic]
    return by_problem.empty_document(session, problems) | {
        "schema": schema_of("peers_gradients.schema.json"),
        "operations": OPERATIONS,
        "deterministic": [one.kernel.kernel if one.kernel else one.name for one in deterministic],
    }


def measure(
    machine: Machine, session: Session, arguments: argparse.Namespace, table: Table, keep: Callable[[], None]
) -> None:
    """Adds the results of a table, and calls `keep` at its end."""
    problem, shape = GRADIENTS[table.kind], (table.batch, table.seq_len)
    show(
        f"{table.place}: gradients, batch {table.batch}, {HEADS} heads, {problem.kv_heads} of K and V,"
        f" {session.dtype}: TFLOP/s"
    )
    tensors, forward, reference = machine.backward_problem(
        problem, *shape, session.dtype, arguments.seed, tables.EVERY
    )  # fmt: skip
    work = FORWARD_PASSES * problem.scores(table.seq_len)
    cells = tables.time_table(machine, session, arguments, table, tensors, forward, reference, work)
    keep()
    show(f"  {'  '.join(cells)}")


def run(arguments: argparse.Namespace, session: Session, machine: Machine, folder: Path) -> None:
    """Writes the file if all problems are measured at all lengths and FlashAttention-2 takes part, or if --out is
    given."""
    problems: list[Problem] = arguments.gradients
    found = by_problem.tables_of(session, problems, arguments.shapes)
    whole = by_problem.is_whole(arguments, session, problems, list(GRADIENTS.values()), found)
    tables.record(
        session,
        found,
        empty_document(session, problems),
        arguments.out or (folder / FILE if whole else None),
        "all problems and lengths in fp16 with FlashAttention-2",
        arguments.resume,
        lambda table, keep: measure(machine, session, arguments, table, keep),
    )
