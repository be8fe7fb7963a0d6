"""Problems of attention beyond the plain one: masks, fewer heads of K and V than of Q, packed sequences, and other
head_dims."""

from __future__ import annotations

import itertools
import math
import statistics
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ladder import HEAD_DIM, HEADS, SHAPES

from comparison.implementations import UsageError

Chosen = TypeVar("Chosen")

DEVIATION, STEP = 0.8, 27  # of the logarithm of a length; coprime to the number of sequences
LOG_NORMAL = f"log-normal, deviation {DEVIATION:g} of the logarithm, mean"


def log_normal_lengths(sequences: int, mean: int) -> list[int]:
    """Lengths at evenly spaced quantiles, as in packed_standard_problem() of harness/app/record/record.cpp."""
    quantiles = [(i * STEP % sequences + 0.5) / sequences for i in range(sequences)]
    relative = [math.exp(DEVIATION * statistics.NormalDist().inv_cdf(quantile)) for quantile in quantiles]
    found = [math.floor(one / sum(relative) * sequences * mean + 0.5) for one in relative]
    found[-1] += sequences * mean - sum(found)
    return found


@dataclass(frozen=True)
class Problem:
    """As common/host/problem.h describes it, with as many keys as queries."""

    name: str
    seq_lens: tuple[int, ...]  # lengths of the standard shapes at which it is measured
    causal: bool = False
    kv_heads: int = HEADS
    window_left: int | None = None  # keys before its own that a query sees; None is no limit
    head_dim: int = HEAD_DIM
    packed: bool = False  # PACKED_SHAPE[0] sequences of different lengths, whose mean is the seq_len; no padding

    def __post_init__(self) -> None:
        if self.window_left is not None and not self.causal:
            raise ValueError("a window that is open to the right is neither counted nor masked here")
        if self.packed and self.window_left is not None:
            raise ValueError("packed sequences with a window are not counted here")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        shapes = [PACKED_SHAPE] if self.packed else SHAPES
        return [(batch, seq_len) for batch, seq_len in shapes if seq_len in self.seq_lens]

    @property
    def names_of_shapes(self) -> list[str]:
        """As --shapes has them."""
        return [str(seq_len) for seq_len in self.seq_lens]

    @property
    def fields(self) -> frozenset[str]:
        """What a version has to solve: names in `solves` of harness --list --json, and "head_dim 64" for a head_dim
        other than the standard one."""
        used = {
            "causal": self.causal,
            "kv_heads": self.kv_heads != HEADS,
            "window": self.window_left is not None,
            "packed": self.packed,
            f"head_dim {self.head_dim}": self.head_dim != HEAD_DIM,
        }
        return frozenset(name for name, is_used in used.items() if is_used)

    @property
    def lengths(self) -> list[int]:
        """Of packed sequences."""
        return log_normal_lengths(*PACKED_SHAPE)

    @property
    def first_rows(self) -> list[int]:
        """Of packed sequences, and the number of all rows: cu_seqlens."""
        return list(itertools.accumulate(self.lengths, initial=0))

    def scores(self, seq_len: int) -> float:
        """The scores of a head that count as work, as in floating_point_operations() of harness/problem/problem.h:
        those that the mask does not hide, except that a causal problem without a window has half of all scores. Of
        packed sequences, it is their mean."""
        if self.packed:
            return sum(length**2 for length in self.lengths) / len(self.lengths) / (2 if self.causal else 1)
        if self.window_left is None or self.window_left >= seq_len - 1:
            return seq_len**2 / 2 if self.causal else seq_len**2
        return (self.window_left + 1) * (seq_len - self.window_left / 2)

    def describe(self) -> dict[str, Any]:
        """In the form of peers_by_problem.json."""
        if self.window_left is not None:
            formula = f"{self.window_left + 1} * (seq_len - {self.window_left / 2:g})"
        else:
            squares = "mean of length^2" if self.packed else "seq_len^2"
            formula = f"{squares} / 2" if self.causal else squares
        described: dict[str, Any] = {
            "causal": self.causal, "kv_heads": self.kv_heads, "window_left": self.window_left, "scores": formula,
        }  # fmt: skip
        described |= {} if self.head_dim == HEAD_DIM else {"head_dim": self.head_dim}
        return described | ({"lengths": f"{LOG_NORMAL} seq_len"} if self.packed else {})


PACKED_SHAPE = (64, 1024)  # sequences, and their mean length
HEAD_DIMS = (64, 256)  # besides the standard one
ALL_LENGTHS = tuple(seq_len for _, seq_len in SHAPES)
PLAIN = Problem("plain", ALL_LENGTHS)
FEW_KV_HEADS = 4
PROBLEMS = {
    problem.name: problem
    for problem in (
        Problem("causal", ALL_LENGTHS, causal=True),
        Problem("grouped", (1024, 4096, 16384), kv_heads=FEW_KV_HEADS),
        Problem("grouped-causal", (1024, 4096, 16384), kv_heads=FEW_KV_HEADS, causal=True),
        Problem("window-512", (8192, 16384), causal=True, window_left=512),
        Problem("window-1024", (8192, 16384), causal=True, window_left=1024),
        Problem("packed", (1024,), causal=True, packed=True),
        *(
            Problem(f"head-{head_dim}{suffix}", (4096, 16384), causal=bool(suffix), head_dim=head_dim)
            for head_dim in HEAD_DIMS
            for suffix in ("", "-causal")
        ),
    )
}


# Of which gradients are computed. Those of grouped heads are causal, as in training.
GRADIENTS = {
    problem.name: problem
    for problem in (
        Problem("full", ALL_LENGTHS),
        Problem("causal", ALL_LENGTHS, causal=True),
        Problem("grouped-heads", (1024, 4096, 16384), kv_heads=FEW_KV_HEADS, causal=True),
    )
}


def select_problems(flag: str, text: str, known: Mapping[str, Chosen]) -> list[Chosen]:
    """The `known` problems that the value of a flag names."""
    names: Sequence[str] = list(known) if text == "all" else text.split(",")
    for name in names:
        if name not in known:
            raise UsageError(f"{flag}: '{name}' is not a problem; allowed: all, {', '.join(known)}")
    return [problem for name, problem in known.items() if name in names]
