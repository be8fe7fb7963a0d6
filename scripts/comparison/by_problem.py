"""The comparison on problems other than the plain one: profiles/<device>/peers_by_problem.json.

A table is one problem at one length, with all implementations that solve it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ladder import HEAD_DIM, HEADS, ROOT

from comparison import tables
from comparison.attempts import attempt
from comparison.decoding_problems import DecodingProblem
from comparison.implementations import Implementation, Kernel, UnavailableError, UsageError
from comparison.machine import Machine
from comparison.problems import PROBLEMS, Problem
from comparison.recording import Session, listed_versions, schema_of
from comparison.report import show
from comparison.resuming import Table
from comparison.timing import SUSTAINED

DTYPE = "fp16"
FILE = "peers_by_problem.json"
OPERATIONS = "4 * batch * heads * head_dim * scores"


def listed(harness: Path) -> dict[str, dict[str, Any]]:
    """The versions that the harness has, by the name for --kernel. Raises UnavailableError."""
    try:
        return listed_versions(harness)
    except (OSError, ValueError, KeyError) as error:
        raise UnavailableError(
            f"{harness} has to list which problems each version solves, and does not"
            f" ({type(error).__name__}); scripts/setup builds it"
        ) from error


def best(versions: dict[str, dict[str, Any]], problems: Sequence[Problem], dtype: str, known: Sequence[str]) -> str:
    """On each track, the version that was the first to solve a problem, the last one, and those between them that
    changed only the speed. The others add a field that the problem does not have. In the order of the tracks.

    Raises UnavailableError if the Python package, whose versions are `known`, is without one of them.
    """
    chosen: dict[str, None] = {}
    for problem in problems:
        able = {name: one for name, one in versions.items() if is_able(one, problem.fields, dtype)}
        bases = {one["extends"] for one in able.values()}
        for name, one in able.items():
            base = able.get(one["extends"])
            if base is None or name not in bases or base["solves"] == one["solves"]:
                chosen[name] = None
    refuse_absent(chosen, known)
    return ",".join(sorted(chosen, key=lambda name: (versions[name]["architecture"], depth(versions, name))))


def refuse_absent(chosen: Iterable[str], known: Sequence[str]) -> None:
    """Raises UnavailableError if the Python package, whose versions are `known`, is without one of these."""
    absent = [name for name in chosen if name not in {Kernel(other).kernel for other in known}]
    if absent:
        raise UnavailableError(
            f"the ladder's Python package is older than the harness, it has no {', '.join(absent)}; install it again:"
            f" {sys.executable} -m pip install {ROOT / 'harness' / 'python'}"
        )


def depth(versions: dict[str, dict[str, Any]], name: str) -> int:
    """How many extensions lie between a version and the ladder."""
    base = versions.get(name, {"extends": None})["extends"]
    return 0 if base is None else 1 + depth(versions, base)


def is_able(version: dict[str, Any], fields: frozenset[str], dtype: str) -> bool:
    """Whether a version solves a problem with these fields, of any length and of the standard head_dim."""
    has_type = any((one["dtype"], one["head_dim"]) == (dtype, HEAD_DIM) for one in version["configurations"])
    return has_type and version["kind"] == "forward" and all(version["solves"][name] for name in fields)


def those_that_solve(
    ours: Sequence[Implementation],
    versions: dict[str, dict[str, Any]],
    problems: Sequence[Problem | DecodingProblem],
) -> list[Implementation]:
    """The versions that solve one of the problems, each with the fields that it lacks. Raises UsageError if none
    does."""
    names = ", ".join(problem.name for problem in problems)
    fields = {name for problem in problems for name in problem.fields}
    found = []
    for one in ours:
        assert one.kernel is not None
        solves = versions.get(one.kernel.kernel, {"solves": {}})["solves"]
        one.lacks = {name: "the version does not solve it" for name in fields if not solves.get(name)}
        if all(one.why_not(problem.fields) for problem in problems):
            show(f"without {one.name}: it does not solve {names}")
        else:
            found.append(one)
    if not found:
        raise UsageError(f"--kernels: none of these versions solves {names}")
    return found


def missing(peers: Sequence[Implementation], problems: Sequence[Problem | DecodingProblem]) -> dict[str, str]:
    """Why peers take no part, or not in a problem."""
    found: dict[str, str] = {}
    for one in peers:
        reasons = {problem.name: why for problem in problems if (why := one.why_not(problem.fields))}
        if len(reasons) == len(problems) and len(set(reasons.values())) == 1:
            found[one.name] = next(iter(reasons.values()))
        else:
            found |= {f"{one.name}, {name}": why for name, why in reasons.items()}
    return found


def empty_document(session: Session, problems: Sequence[Problem]) -> dict[str, Any]:
    """harness/results/peers_by_problem.schema.json without results."""
    return {
        "schema": schema_of("peers_by_problem.schema.json"),
        "device": session.device,
        "problem": {"dtype": session.dtype, "heads": HEADS, "head_dim": HEAD_DIM},
        "problems": {problem.name: problem.describe() for problem in problems},
        "operations": OPERATIONS,
        "run": session.conditions(SUSTAINED),
    }


def measure(
    machine: Machine, session: Session, arguments: argparse.Namespace, table: Table, keep: Callable[[], None]
) -> None:
    """Adds the results of a table, and calls `keep` at its end."""
    problem, shape = PROBLEMS[table.kind], (table.batch, table.seq_len)
    show(f"{table.place}: batch {table.batch}, {HEADS} heads, {problem.kv_heads} of K and V, {session.dtype}: TFLOP/s")
    tensors = machine.tensors(*shape, session.dtype, arguments.seed, problem.kv_heads)
    reference = machine.reference(tensors, tables.EVERY, problem)
    cells = []
    for one in table.implementations:
        with attempt(session, [SUSTAINED], one, table.place, "did not run"):
            launch = machine.launcher(one, tensors, problem)
            cells += tables.time_cell(
                machine, session, arguments, one, launch, tensors, reference, table.place,
                {"problem": problem.name}, shape, problem.scores(table.seq_len),
            )  # fmt: skip
    keep()
    show(f"  {'  '.join(cells)}")


def run(arguments: argparse.Namespace, session: Session, machine: Machine, folder: Path) -> None:
    """Writes the file if all problems are measured at all lengths and FlashAttention-2 takes part, or if --out is
    given."""
    problems: list[Problem] = arguments.problem
    session.missing |= missing([one for one in session.implementations if one.kernel is None], problems)
    found = []
    for problem in problems:
        able = tuple(one for one in session.implementations if not one.why_not(problem.fields))
        found += [
            Table("problem", problem.name, batch, seq_len, able)
            for batch, seq_len in problem.shapes
            if (batch, seq_len) in arguments.shapes
        ]
    if not found:
        raise UsageError(
            "--shapes: none of the selected problems is measured at these lengths; "
            + "; ".join(f"{one.name}: {', '.join(map(str, one.seq_lens))}" for one in problems)
        )
    whole = (
        problems == list(PROBLEMS.values())
        and len(found) == sum(len(problem.seq_lens) for problem in problems)
        and session.dtype == DTYPE
        and "fa2" not in arguments.without
    )
    tables.record(
        session,
        found,
        empty_document(session, problems),
        arguments.out or (folder / FILE if whole else None),
        "all problems and lengths in fp16 with FlashAttention-2",
        arguments.resume,
        lambda table, keep: measure(machine, session, arguments, table, keep),
    )
