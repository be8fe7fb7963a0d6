"""Problems of attention beyond the plain one: masks, and fewer heads of K and V than of Q."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any, TypeVar

from ladder import HEADS, SHAPES

from comparison.implementations import UsageError

Chosen = TypeVar("Chosen")


@dataclass(frozen=True)
class Problem:
    """As common/host/problem.h describes it, with as many keys as queries."""

    name: str
    seq_lens: tuple[int, ...]  # lengths of the standard shapes at which it is measured
    causal: bool = False
    kv_heads: int = HEADS
    window_left: int | None = None  # keys before its own that a query sees; None is no limit

    def __post_init__(self) -> None:
        if self.window_left is not None and not self.causal:
            raise ValueError("a window that is open to the right is neither counted nor masked here")

    @property
    def shapes(self) -> list[tuple[int, int]]:
        return [(batch, seq_len) for batch, seq_len in SHAPES if seq_len in self.seq_lens]

    @property
    def names_of_shapes(self) -> list[str]:
        """As --shapes has them."""
        return [str(seq_len) for seq_len in self.seq_lens]

    @property
    def fields(self) -> frozenset[str]:
        """What a version has to solve: names in `solves` of harness --list --json."""
        used = {"causal": self.causal, "kv_heads": self.kv_heads != HEADS, "window": self.window_left is not None}
        return frozenset(name for name, is_used in used.items() if is_used)

    def scores(self, seq_len: int) -> float:
        """The scores of a head that count as work, as in floating_point_operations() of harness/problem/problem.h:
        those that the mask does not hide, except that a causal problem without a window has half of all scores."""
        if self.window_left is None or self.window_left >= seq_len - 1:
            return seq_len**2 / 2 if self.causal else seq_len**2
        return (self.window_left + 1) * (seq_len - self.window_left / 2)

    def describe(self) -> dict[str, Any]:
        """In the form of peers_by_problem.json."""
        if self.window_left is not None:
            formula = f"{self.window_left + 1} * (seq_len - {self.window_left / 2:g})"
        else:
            formula = "seq_len^2 / 2" if self.causal else "seq_len^2"
        return {
            "causal": self.causal, "kv_heads": self.kv_heads, "window_left": self.window_left, "scores": formula,
        }  # fmt: skip


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
