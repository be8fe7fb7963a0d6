"""The comparison on data other than random normal numbers: profiles/<device>/peers_by_data.json.

Each implementation runs alone, for a shorter time than in the sustained regime, because there are many cells. It is
right if one row in 61, of every head, is within the allowed error: these rows cover all positions in a tile.
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
from comparison.recording import Session, formatted, schema_of, write
from comparison.report import show
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
    return {
        "schema": schema_of("peers_by_data.schema.json"),
        "device": session.device,
        "problem": {"heads": HEADS, "head_dim": HEAD_DIM, "causal": False},
        "data": {name: DEFINITIONS[name] for name in names},
        "run": regime["run"],
        "versions": regime["versions"],
        "peers": regime["peers"],
    }


def measure(machine: Machine, session: Session, arguments: argparse.Namespace, dtypes: Sequence[str]) -> None:
    for dtype in dtypes:
        for batch, seq_len in arguments.shapes:
            show(f"batch {batch}, {HEADS} heads, seq_len {seq_len}, head_dim {HEAD_DIM}, {dtype}: TFLOP/s")
            tensors = machine.tensors(batch, seq_len, dtype, arguments.seed)
            launches: list[tuple[Implementation, Callable[[], Any]]] = []
            for one in session.implementations:  # those that tune themselves or compile do so once for all data
                with attempt(session, [SUSTAINED], one, f"seq_len {seq_len}, {dtype}", "did not run"):
                    launches.append((one, machine.launcher(one, tensors)))
            for data in arguments.data:
                machine.fill(tensors, data, arguments.seed)
                reference = machine.reference(tensors, EVERY)
                cells = []
                for one, launch in launches:
                    where = f"{data}, seq_len {seq_len}, {dtype}"
                    with attempt(session, [SUSTAINED], one, where, "was not timed"):
                        error = reference.relative_error(machine.output(launch, tensors))
                        if not is_right(session, [SUSTAINED], one, where, error):
                            continue
                        timing = machine.time_alone(launch, arguments.warm_up, arguments.seconds)
                        found = {"data": data, "dtype": dtype} | figures(batch, seq_len, timing, error)
                        session.add(one, SUSTAINED, found)
                        cells.append(f"{one.name[:16]} {found['tflops']:.0f}")
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
        show(
            "this run writes nothing: these are not all data, standard lengths and types with FlashAttention-2;"
            " --out FILE keeps them"
        )
    measure(machine, session, arguments, dtypes)
    if SUSTAINED not in session.dates:
        raise UnavailableError("nothing could be measured, so nothing was written; see above")
    if path is not None:
        write(path, formatted(document(session, arguments.data)) + "\n")
        show(f"wrote {path}")
