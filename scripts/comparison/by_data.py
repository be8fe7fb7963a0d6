"""The comparison on data other than random normal numbers: profiles/<device>/peers_by_data.json.

Each implementation runs alone, for a shorter time than in the sustained regime, because there are many cells. It is
right if one row in 61, of every head, is within the allowed error: these rows cover all positions in a tile.

After each kind of data, the cells so far are written to peers_by_data.part.json beside the file. If the run is
interrupted, resuming.py takes the complete tables from there.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distributions import DEFINITIONS
from ladder import HEAD_DIM, HEADS, SHAPES, number_of

from comparison.attempts import attempt, is_right
from comparison.implementations import Implementation, UnavailableError, UsageError
from comparison.machine import Machine
from comparison.recording import Session, formatted, part_of, schema_of, write
from comparison.report import show
from comparison.resuming import Table, resume
from comparison.timing import SUSTAINED, figures

DTYPES = ("fp16", "bf16")
BY_DATA_SHAPES = [(batch, seq_len) for batch, seq_len in SHAPES if seq_len in (1024, 4096, 16384)]
WARM_UP_SECONDS, TIMED_SECONDS = 0.25, 0.2  # of each cell
EVERY = 61  # one row out of this many is checked
FILE = "peers_by_data.json"


def select_data(text: str) -> list[str]:
    if text == "all":
        return list(DEFINITIONS)
    for name in text.split(","):
        if name not in DEFINITIONS:
            raise UsageError(f"--data: '{name}' is not a distribution; allowed: all, {', '.join(DEFINITIONS)}")
    return [name for name in DEFINITIONS if name in text.split(",")]


def best(known: Sequence[str]) -> str:
    """The last version of the first track; of the second, 23, which is the last one that takes every maximum, and those
    after it.

    25 is not among them, because 26 and 27 use its softmax.
    """
    numbers = {name: number_of(name) for name in known}
    return ",".join(name for name, n in numbers.items() if n is not None and (n == 16 or (n >= 23 and n != 25)))


def document(session: Session, names: Sequence[str]) -> dict[str, Any]:
    """harness/results/peers_by_data.schema.json"""
    regime = session.regime(SUSTAINED)
    results = {name: regime[name] for name in ("run", "versions", "peers")}
    return empty_document(session, names) | results


def empty_document(session: Session, names: Sequence[str]) -> dict[str, Any]:
    """What is known before the first result."""
    return {
        "schema": schema_of("peers_by_data.schema.json"),
        "device": session.device,
        "problem": {"heads": HEADS, "head_dim": HEAD_DIM, "causal": False},
        "data": {name: DEFINITIONS[name] for name in names},
        "run": session.conditions(SUSTAINED),
    }


def measure(
    machine: Machine,
    session: Session,
    tables: Sequence[Table],
    arguments: argparse.Namespace,
    keep: Callable[[], None],
) -> None:
    """Adds the session's results, and calls `keep` after each kind of data."""
    for table in tables:
        dtype, batch, seq_len = table
        show(f"batch {batch}, {HEADS} heads, seq_len {seq_len}, head_dim {HEAD_DIM}, {dtype}: TFLOP/s")
        tensors = machine.tensors(batch, seq_len, dtype, arguments.seed)
        launches: list[tuple[Implementation, Callable[[], Any]]] = []
        for one in session.implementations:  # those that tune themselves or compile do so once for all data
            with attempt(session, [SUSTAINED], one, table.place, "did not run"):
                launches.append((one, machine.launcher(one, tensors)))
        for data in arguments.data:
            machine.fill(tensors, data, arguments.seed)
            reference = machine.reference(tensors, EVERY)
            cells = []
            for one, launch in launches:
                where = f"{data}, {table.place}"
                with attempt(session, [SUSTAINED], one, where, "was not timed"):
                    error = reference.relative_error(machine.output(launch, tensors))
                    if is_right(session, [SUSTAINED], one, where, error):
                        timing = machine.time_alone(launch, arguments.warm_up, arguments.seconds)
                        found = {"data": data, "dtype": dtype} | figures(batch, seq_len, timing, error)
                        session.add(one, SUSTAINED, found)
                        cells.append(f"{one.name[:16]} {found['tflops']:.0f}")
            keep()
            show(f"  {data:<11} {'  '.join(cells)}")


def run(arguments: argparse.Namespace, session: Session, machine: Machine, folder: Path) -> None:
    """Writes the file if the table is whole and has FlashAttention-2, as in peers.json, or if --out is given."""
    dtypes = [arguments.dtype] if arguments.dtype else DTYPES
    whole = (
        arguments.data == list(DEFINITIONS)
        and arguments.shapes == BY_DATA_SHAPES
        and dtypes is DTYPES
        and "fa2" not in arguments.without
    )
    path = arguments.out or (folder / FILE if whole else None)
    if path is None:
        if arguments.resume:
            raise UsageError("--resume needs a file: all data, standard lengths and types, or --out FILE")
        show(
            "this run writes nothing: these are not all data, standard lengths and types with FlashAttention-2;"
            " --out FILE keeps them"
        )
    tables = [Table(dtype, *shape) for dtype in dtypes for shape in arguments.shapes]
    if path is not None and arguments.resume:
        complete = resume(session, part_of(path), empty_document(session, arguments.data), tables)
        tables = [table for table in tables if table not in complete]
    elif path is not None and part_of(path).exists():
        show(f"replacing {part_of(path)}, which an interrupted run left; --resume would take its complete tables")

    def keep() -> None:
        if path is not None and SUSTAINED in session.dates:
            write(part_of(path), formatted(document(session, arguments.data)) + "\n")

    measure(machine, session, tables, arguments, keep)
    if SUSTAINED not in session.dates:
        raise UnavailableError("nothing could be measured, so nothing was written; see above")
    if path is not None:
        write(path, formatted(document(session, arguments.data)) + "\n")
        part_of(path).unlink(missing_ok=True)
        show(f"wrote {path}")
