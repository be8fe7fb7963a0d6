"""The comparison on data other than random normal numbers: profiles/<device>/peers_by_data.json, and with the causal
mask peers_by_data_causal.json.

A table is one type at one length, with all data and all implementations that solve the problem.
"""

from __future__ import annotations

import argparse
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

from distributions import DEFINITIONS
from ladder import HEAD_DIM, HEADS, SHAPES, number_of

from comparison import by_problem, tables
from comparison.attempts import attempt
from comparison.implementations import Implementation, UsageError
from comparison.machine import Machine
from comparison.problems import PLAIN, PROBLEMS, Problem
from comparison.recording import Session, schema_of
from comparison.report import show
from comparison.resuming import Table
from comparison.timing import SUSTAINED

DTYPES = ("fp16", "bf16")
BY_DATA_SHAPES = [(batch, seq_len) for batch, seq_len in SHAPES if seq_len in (1024, 4096, 16384)]
FILES = {"plain": "peers_by_data.json", "causal": "peers_by_data_causal.json"}


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


def best_causal(versions: dict[str, dict[str, Any]], known: Sequence[str]) -> str:
    """The first version of each track that solves causal problems, and those after it that changed only its speed.

    Raises UnavailableError if the Python package, whose versions are `known`, is without one of them.
    """
    able = {name: one for name, one in versions.items() if by_problem.is_able(one, problem_of(True).fields, DTYPES[0])}
    chosen: list[str] = []
    for name in sorted(able, key=lambda name: (able[name]["architecture"], by_problem.depth(versions, name))):
        base = able[name]["extends"]
        if base not in able or (base in chosen and able[base]["solves"] == able[name]["solves"]):
            chosen.append(name)
    by_problem.refuse_absent(chosen, known)
    return ",".join(chosen)


def problem_of(causal: bool) -> Problem:
    return PROBLEMS["causal"] if causal else PLAIN


def empty_document(session: Session, names: Sequence[str], problem: Problem) -> dict[str, Any]:
    """harness/results/peers_by_data.schema.json without results."""
    return {
        "schema": schema_of("peers_by_data.schema.json"),
        "device": session.device,
        "problem": {"heads": HEADS, "head_dim": HEAD_DIM, "causal": problem.causal},
        "data": {name: DEFINITIONS[name] for name in names},
        "run": session.conditions(SUSTAINED),
    }


def measure(
    machine: Machine, session: Session, arguments: argparse.Namespace, table: Table, keep: Callable[[], None]
) -> None:
    """Adds the results of a table, and calls `keep` after each kind of data."""
    dtype, shape, problem = table.kind, (table.batch, table.seq_len), problem_of(arguments.causal)
    mask = ", causal" if arguments.causal else ""
    show(f"batch {table.batch}, {HEADS} heads, seq_len {table.seq_len}, head_dim {HEAD_DIM}, {dtype}{mask}: TFLOP/s")
    tensors = machine.tensors(*shape, dtype, arguments.seed)
    launches: list[tuple[Implementation, Callable[[], Any]]] = []
    for one in table.implementations:  # those that tune themselves or compile do so once for all data
        with attempt(session, [SUSTAINED], one, table.place, "did not run"):
            launches.append((one, machine.launcher(one, tensors, problem)))
    for data in arguments.data:
        machine.fill(tensors, data, arguments.seed)
        reference = machine.reference(tensors, tables.EVERY, problem)
        cells = []
        for one, launch in launches:
            cells += tables.time_cell(
                machine, session, arguments, one, launch, tensors, reference, f"{data}, {table.place}",
                {"data": data, "dtype": dtype}, shape, problem.scores(table.seq_len),
            )  # fmt: skip
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
    problem = problem_of(arguments.causal)
    session.missing |= by_problem.missing([one for one in session.implementations if one.kernel is None], [problem])
    able = tuple(one for one in session.implementations if not one.why_not(problem.fields))
    tables.record(
        session,
        [Table("dtype", dtype, *shape, able) for dtype in dtypes for shape in arguments.shapes],
        empty_document(session, arguments.data, problem),
        arguments.out or (folder / FILES[problem.name] if whole else None),
        "all data, standard lengths and types with FlashAttention-2",
        arguments.resume,
        lambda table, keep: measure(machine, session, arguments, table, keep),
    )
