"""Kernels that consist of one kind of instruction, which measure its maximum throughput: mma_sync.cu and wgmma.cu."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path


@dataclass(frozen=True)
class Ceiling:
    """The maximum throughput of one kind of instruction."""

    name: str
    note: str
    file: str  # beside this module; the kernel in it is called `ceiling`
    capability: str | None  # the only compute capability that supports it: "90a"; None: all that the ladder runs on
    ctas_per_sm: int
    rounds: int
    operands: int  # 32-bit words, two fp16 numbers each
    operations: float  # of a warp in an iteration

    @property
    def source(self) -> str:
        return (Path(__file__).parent / self.file).read_text(encoding="utf-8")


CEILINGS = [
    Ceiling(
        "mma.sync",
        "mma.sync.m16n8k16, fp16 to fp32, from registers, random normal inputs",
        "mma_sync.cu",
        None,
        2,
        40000,
        6 * 256,
        8 * 2.0 * 16 * 8 * 16,
    ),
    Ceiling(
        "wgmma",
        "wgmma.m64n256k16, fp16 to fp32, from shared memory, random normal inputs",
        "wgmma.cu",
        "90a",
        1,
        4000,
        (2 * 64 + 256) * 32,
        16 * 2.0 * 64 * 256 * 16 / 4,
    ),
]
