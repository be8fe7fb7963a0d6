#!/usr/bin/env python3
"""Attention one K/V tile at a time, in float64 and plain Python: the computation of every version from 02 on, written
to be read.

    scripts/blockwise_attention.py --seq-len-kv 8 --head-dim 4 --block-kv 4   every m, l and O, for random numbers
    scripts/blockwise_attention.py --from FILE   the same for the row in FILE, from `harness --debug 07 --json FILE`

One query q has the scores s_j = q · k_j / sqrt(head_dim), and by definition its output is

    O = sum_j exp(s_j) v_j / sum_j exp(s_j)

Any number m may be subtracted from all scores: exp(-m) then appears in the numerator and the denominator, and cancels.
If m is the row's maximum, every exp() is at most 1. While the tiles are processed, only the maximum of the keys so far
is known, and a tile may contain a larger score. In that case, the sums computed with the old maximum are multiplied by
exp(m_old - m_new), so that they are relative to the new maximum.

    m_new = max(m_old, largest s_j of the tile)
    r     = exp(m_old - m_new)                 0 for the first tile, where m_old is -infinity; 1 if m does not change
    p_j   = exp(s_j - m_new)                   for the keys of the tile
    l_new = l_old * r + sum_j p_j
    O_new = O_old * r + sum_j p_j v_j          not yet divided

After the last tile, the output is O / l. Dividing after an earlier tile gives attention over the keys so far;
`harness --debug` compares a kernel with these values, tile by tile.

Sources: Milakov & Gimelshein, "Online normalizer calculation for softmax" (2018), algorithm 3; Dao et al.,
"FlashAttention" (2022), algorithm 1; Dao, "FlashAttention-2" (2023), algorithm 1.
"""

from __future__ import annotations

import argparse
import json
import math
import random
import struct
import sys
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

Row = Sequence[float]


@dataclass(frozen=True)
class Step:
    """The state of one row after one K/V tile."""

    first_key: int
    S: list[float]  # the scores of the tile's keys
    m: float  # the largest score so far
    r: float  # factor by which the earlier l and O were multiplied
    P: list[float]  # exp(S - m)
    l: float  # the sum of all exp(s - m) so far  # noqa: E741
    O: list[float]  # [head_dim], not divided by l  # noqa: E741

    @property
    def output(self) -> list[float]:
        """Attention over the keys so far."""
        return [o / self.l for o in self.O]


def attend(q: Row, K: Sequence[Row], V: Sequence[Row], block_kv: int, scale: float | None = None) -> list[Step]:
    """Processes one query, `block_kv` keys at a time. `scale` multiplies the scores; None is 1 / sqrt(head_dim)."""
    if scale is None:
        scale = 1 / math.sqrt(len(q))
    m, l, O = -math.inf, 0.0, [0.0] * len(q)  # noqa: E741
    steps = []
    for first in range(0, len(K), block_kv):
        tile = range(first, min(first + block_kv, len(K)))
        S = [scale * sum(a * b for a, b in zip(q, K[j], strict=True)) for j in tile]
        m_new = max(m, *S)
        r = math.exp(m - m_new)
        P = [math.exp(s - m_new) for s in S]
        l = l * r + sum(P)  # noqa: E741
        O = [o * r + sum(p * V[j][d] for p, j in zip(P, tile, strict=True)) for d, o in enumerate(O)]  # noqa: E741
        m = m_new
        steps.append(Step(first, S, m, r, P, l, O))
    return steps


def definition(q: Row, K: Sequence[Row], V: Sequence[Row], scale: float | None = None) -> list[float]:
    """softmax(q Kᵀ) V, implemented literally, with all keys at once."""
    if scale is None:
        scale = 1 / math.sqrt(len(q))
    S = [scale * sum(a * b for a, b in zip(q, k, strict=True)) for k in K]
    weights = [math.exp(s - max(S)) for s in S]
    return [sum(w * v[d] for w, v in zip(weights, V, strict=True)) / sum(weights) for d in range(len(q))]


# ---- What is printed ----


def numbers(values: Sequence[float], most: int) -> str:
    """The first `most` values."""
    text = " ".join(f"{value:9.5f}" for value in values[:most])
    return text + (" …" if len(values) > most else "")


def describe(steps: list[Step], exact: Row, columns: int) -> str:
    """Every m, l and O of one row, and the first `columns` elements of S, P and O."""
    lines = []
    for tile, step in enumerate(steps):
        lines.append(f"  tile {tile}, keys {step.first_key}–{step.first_key + len(step.S) - 1}")
        lines.append(f"    S     {numbers(step.S, columns)}")
        lines.append(f"    m     {step.m:9.5f}    r = exp(m_old - m) = {step.r:.5f}")
        lines.append(f"    P     {numbers(step.P, columns)}")
        lines.append(f"    l     {step.l:9.5f}")
        lines.append(f"    O     {numbers(step.O, columns)}")
        lines.append(f"    O / l {numbers(step.output, columns)}")
    error = max(abs(a - b) for a, b in zip(steps[-1].output, exact, strict=True))
    lines.append(f"  softmax(Q Kᵀ) V, all at once: {numbers(exact, columns)}")
    lines.append(f"  largest difference from it: {error:.1e}")
    return "\n".join(lines)


# ---- The row of `harness --debug --json` ----


def elements(text: str, dtype: str) -> list[float]:
    """16-bit numbers, four hexadecimal digits each: fp16, or bf16, which is the upper half of an fp32."""
    data = bytes.fromhex(text)
    if dtype == "fp16":
        return [value for (value,) in struct.iter_unpack(">e", data)]
    return [struct.unpack(">f", data[i : i + 2] + b"\0\0")[0] for i in range(0, len(data), 2)]


def recorded_row(debug: dict[str, Any]) -> tuple[list[float], list[list[float]], list[list[float]], int, float]:
    """q, K, V, block_kv and the scale of the row in a document of `harness --debug --json`."""
    dtype, row = debug["problem"]["dtype"], debug["row"]
    return (
        elements(row["Q"], dtype),
        [elements(key, dtype) for key in row["K"]],
        [elements(value, dtype) for value in row["V"]],
        debug["block_kv"],
        row["scale"],
    )


def parse_arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(
        description="Computes attention one K/V tile at a time, in float64, and prints every m, l and O.",
        epilog="Exit status: 0 done, 2 bad usage, 3 a file that cannot be read.",
    )

    def size(text: str) -> int:
        value = int(text)
        if value < 1:
            raise argparse.ArgumentTypeError(f"{value} is out of range; allowed: 1 or more")
        return value

    parser.add_argument("--seq-len", type=size, default=1, metavar="N", help="queries (1)")
    parser.add_argument("--seq-len-kv", type=size, default=8, metavar="N", help="keys and values (8)")
    parser.add_argument("--head-dim", type=size, default=4, metavar="N", help="(4)")
    parser.add_argument("--block-kv", type=size, default=4, metavar="N", help="keys per tile (4)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed of the normal random numbers (0)")
    parser.add_argument("--columns", type=size, default=6, metavar="N", help="how many of S, P and O to print (6)")
    parser.add_argument("--from", dest="file", type=Path, metavar="FILE", help="what harness --debug --json FILE wrote")
    return parser.parse_args()


def main() -> int:
    sys.stdout.reconfigure(encoding="utf-8")  # whatever the locale
    options = parse_arguments()
    if options.file:
        try:
            debug = json.loads(options.file.read_text(encoding="utf-8"))
            q, K, V, block_kv, scale = recorded_row(debug)
        except (OSError, ValueError, KeyError, TypeError) as error:
            print(
                f"blockwise_attention.py: {options.file} is not what harness --debug --json writes ({error}); "
                "write it again",
                file=sys.stderr,
            )
            return 3
        print(f"row {debug['row']['row']} of head {debug['row']['head']}, keys in tiles of {block_kv}")
        print(describe(attend(q, K, V, block_kv, scale), definition(q, K, V, scale), options.columns))
        return 0

    generator = random.Random(options.seed)

    def matrix(rows: int) -> list[list[float]]:
        return [[generator.gauss(0, 1) for _ in range(options.head_dim)] for _ in range(rows)]

    Q, K, V = matrix(options.seq_len), matrix(options.seq_len_kv), matrix(options.seq_len_kv)
    for row, q in enumerate(Q):
        print(f"row {row}: Q {numbers(q, options.columns)}")
        print(describe(attend(q, K, V, options.block_kv), definition(q, K, V), options.columns))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
