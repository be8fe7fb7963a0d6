"""What the comparisons by data, by problem, of decoding and of gradients have in common: tables of many cells, each
timed briefly.

Each implementation runs alone, for a shorter time than in the sustained regime, because there are many cells. It is
right if one row in 61, of every head, is within the allowed error: these rows cover all positions in a tile.

During a run, the cells so far are in a file beside the one that it writes: peers_by_data.part.json, for example. If the
run is interrupted, resuming.py takes the complete tables from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from comparison.attempts import attempt, is_right
from comparison.gradient_reference import GradientReference
from comparison.implementations import Implementation, UnavailableError, UsageError
from comparison.machine import Machine
from comparison.recording import Session, formatted, part_of, write
from comparison.reference import PackedReference, Reference
from comparison.report import show
from comparison.resuming import Table, resume
from comparison.timing import SUSTAINED, figures

WARM_UP_SECONDS, TIMED_SECONDS = 0.25, 0.2  # of each cell
EVERY = 61  # one row out of this many is checked

Tensors = tuple[Any, Any, Any, Any]
Measure = Callable[[Table, Callable[[], None]], None]


def time_cell(
    machine: Machine,
    session: Session,
    arguments: argparse.Namespace,
    one: Implementation,
    launch: Callable[[], Any],
    tensors: Tensors,
    reference: Reference | PackedReference | GradientReference,
    where: str,
    of: dict[str, Any],
    shape: tuple[int, int],
    scores: float | None = None,
) -> list[str]:
    """Compares one implementation with the reference, times it, and adds the result, whose first members are `of`.
    Returns how to show the figure, or nothing if there is none."""
    with attempt(session, [SUSTAINED], one, where, "was not timed"):
        error = reference.relative_error(machine.output(launch, tensors))
        if is_right(session, [SUSTAINED], one, where, error):
            timing = machine.time_alone(launch, arguments.warm_up, arguments.seconds)
            found = of | figures(*shape, timing, error, scores)
            session.add(one, SUSTAINED, found)
            return [f"{one.name[:16]} {found['tflops']:.0f}"]
    return []


def time_table(
    machine: Machine,
    session: Session,
    arguments: argparse.Namespace,
    table: Table,
    tensors: Tensors,
    problem: Any,  # noqa: ANN401 (the last argument of Implementation.prepare)
    reference: Reference | PackedReference | GradientReference,
    scores: float,
) -> list[str]:
    """time_cell() for all implementations of a table, whose kind is the name of a problem."""
    cells = []
    for one in table.implementations:
        with attempt(session, [SUSTAINED], one, table.place, "did not run"):
            launch = machine.launcher(one, tensors, problem)
            cells += time_cell(
                machine, session, arguments, one, launch, tensors, reference, table.place,
                {"problem": table.kind}, (table.batch, table.seq_len), scores,
            )  # fmt: skip
    return cells


def document(session: Session, empty: dict[str, Any]) -> dict[str, Any]:
    """The empty document, which contains what is known before the first result, with the results."""
    regime = session.regime(SUSTAINED)
    return empty | {name: regime[name] for name in ("run", "versions", "peers")}


def record(
    session: Session,
    tables: Sequence[Table],
    empty: dict[str, Any],
    path: Path | None,
    whole: str,
    resumes: bool,
    measure: Measure,
    merge: Callable[[dict[str, Any]], dict[str, Any]] | None = None,
) -> None:
    """Measures the tables, and writes the file unless `path` is None; `whole` says what a run without --out has to
    contain. `measure` adds the results of a table, and calls its second argument whenever there are new ones. `merge`
    adds to the finished document what the file has to keep."""
    if path is None:
        if resumes:
            raise UsageError(f"--resume needs a file: {whole}, or --out FILE")
        show(f"this run writes nothing: these are not {whole}; --out FILE keeps them")
    if path is not None and resumes:
        complete = resume(session, part_of(path), empty, tables)
        tables = [table for table in tables if table not in complete]
    elif path is not None and part_of(path).exists():
        show(f"replacing {part_of(path)}, which an interrupted run left; --resume would take its complete tables")

    def keep() -> None:
        if path is not None and SUSTAINED in session.dates:
            write(part_of(path), formatted(document(session, empty)) + "\n")

    for table in tables:
        measure(table, keep)
    if SUSTAINED not in session.dates:
        raise UnavailableError("nothing could be measured, so nothing was written; see above")
    if path is not None:
        made = document(session, empty)
        write(path, formatted(made if merge is None else merge(made)) + "\n")
        part_of(path).unlink(missing_ok=True)
        show(f"wrote {path}")
