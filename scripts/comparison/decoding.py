"""The comparison of the decoding track: profiles/<device>/peers_decoding.json.

A table is one problem at one shape, with all implementations that solve it. Only the lengths and the pages differ from
the comparison by problem, and the figure, which is the speed at which K and V are read.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import HEAD_DIM

from comparison import by_problem, tables
from comparison.attempts import attempt, is_right
from comparison.decoding_problems import DECODING, QUERY_HEADS, DecodingProblem
from comparison.implementations import Implementation
from comparison.machine import Machine
from comparison.recording import Session, schema_of
from comparison.report import show
from comparison.resuming import Table
from comparison.timing import SUSTAINED, Timing, summary

FILE = "peers_decoding.json"
BYTES = "4 * batch * seq_len_kv * kv_heads * head_dim"


@dataclass(frozen=True)
class DecodingTable(Table):
    """Its `seq_len` is the number of keys: there is one query."""

    @property
    def place(self) -> str:
        return f"batch {self.batch}, {self.seq_len} keys, {self.kind}"

    def contains(self, result: dict[str, Any]) -> bool:
        return super().contains(result | {"seq_len": result["seq_len_kv"]})


def versions_and_peers(
    arguments: argparse.Namespace, machine: Machine, versions: dict[str, dict[str, Any]], known: Sequence[str]
) -> tuple[list[Implementation], list[Implementation], dict[str, str]]:
    """Those that take part, and why other peers do not; `versions` are those that the harness lists, and `known` those
    of the Python package.

    Raises UnavailableError if the package is without one of the track, and UsageError for versions of another track.
    """
    of_track = [name for name, version in versions.items() if version["kind"] == "decoding"]
    ours = by_problem.versions_of_kind(
        arguments, versions, known, "decoding", of_track, machine.decoding_version, arguments.decoding
    )
    return ours, *machine.decoding_peers(set(arguments.without))


def figures(problem: DecodingProblem, table: Table, timing: Timing, relative_error: float) -> dict[str, Any]:
    """One result in the form of peers_decoding.json."""
    ms = summary(timing.milliseconds)
    return {
        "problem": problem.name,
        "batch": table.batch,
        "seq_len_kv": table.seq_len,
        "kv_gb_per_s": round(problem.kv_bytes(table.batch, table.seq_len) / ms["median"] / 1e6, 1),
        "ms": ms,
        "launches": len(timing.milliseconds),
        "sm_clock_mhz": timing.sm_clock_mhz,
        "relative_error": round(relative_error, 4),
    }


def empty_document(session: Session, problems: Sequence[DecodingProblem]) -> dict[str, Any]:
    """harness/results/peers_decoding.schema.json without results."""
    return {
        "schema": schema_of("peers_decoding.schema.json"),
        "device": session.device,
        "problem": {"dtype": session.dtype, "queries": 1, "heads": QUERY_HEADS, "head_dim": HEAD_DIM},
        "problems": {problem.name: problem.describe() for problem in problems},
        "bytes": BYTES,
        "run": session.conditions(SUSTAINED),
    }


def measure(
    machine: Machine, session: Session, arguments: argparse.Namespace, table: Table, keep: Callable[[], None]
) -> None:
    """Adds the results of a table, and calls `keep` at its end."""
    problem = DECODING[table.kind]
    show(f"{table.place}: {QUERY_HEADS} heads, {problem.kv_heads} of K and V, {session.dtype}: GB/s of K and V")
    tensors, cache, reference = machine.cache(problem, table.batch, table.seq_len, session.dtype, arguments.seed)
    cells = []
    for one in table.implementations:
        with attempt(session, [SUSTAINED], one, table.place, "was not timed"):
            launch = machine.launcher(one, tensors, cache)
            error = reference.relative_error(machine.output(launch, tensors))
            if is_right(session, [SUSTAINED], one, table.place, error):
                timing = machine.time_alone(launch, arguments.warm_up, arguments.seconds)
                found = figures(problem, table, timing, error)
                session.add(one, SUSTAINED, found)
                cells.append(f"{one.name[:16]} {found['kv_gb_per_s']:.0f}")
    keep()
    show(f"  {'  '.join(cells)}")


def run(arguments: argparse.Namespace, session: Session, machine: Machine, folder: Path) -> None:
    """Writes the file if all problems are measured at all shapes and FlashAttention-2 takes part, or if --out is
    given."""
    problems: list[DecodingProblem] = arguments.decoding
    found = by_problem.tables_of(session, problems, arguments.shapes, DecodingTable)
    whole = by_problem.is_whole(arguments, session, problems, list(DECODING.values()), found)
    tables.record(
        session,
        found,
        empty_document(session, problems),
        arguments.out or (folder / FILE if whole else None),
        "all problems and shapes in fp16 with FlashAttention-2",
        arguments.resume,
        lambda table, keep: measure(machine, session, arguments, table, keep),
    )
