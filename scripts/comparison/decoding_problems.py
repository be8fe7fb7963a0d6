"""Problems of the decoding track: one query of each sequence against a long cache of K and V."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from ladder import HEAD_DIM

from comparison.implementations import UsageError
from comparison.problems import LOG_NORMAL, log_normal_lengths

Shape = tuple[int, int]  # sequences, and keys of each

QUERY_HEADS = 32
ELEMENT_BYTES = 2
SHAPES: tuple[Shape, ...] = ((1, 4096), (1, 32768), (16, 4096), (16, 32768), (64, 8192), (1, 131072))
PAGE_SIZE = 64


@dataclass(frozen=True)
class DecodingProblem:
    name: str
    kv_heads: int
    shapes: tuple[Shape, ...] = SHAPES  # at which it is measured
    paged: bool = False
    mixed: bool = False  # the sequences have different lengths; the number of keys in a shape is their mean

    @property
    def names_of_shapes(self) -> list[str]:
        """As --shapes has them."""
        return [f"{batch}x{keys}" for batch, keys in self.shapes]

    @property
    def fields(self) -> frozenset[str]:
        """What a version has to solve: names in `solves` of harness --list --json. With pages, too, the lengths are
        given, because a page table by itself does not say how full the last page is."""
        grouped, lengths = self.kv_heads != QUERY_HEADS, self.paged or self.mixed
        used = {"kv_heads": grouped, "lengths": lengths, "paged": self.paged}
        return frozenset(name for name, is_used in used.items() if is_used)

    def lengths(self, batch: int, keys: int) -> list[int]:
        """The number of keys of each sequence."""
        return log_normal_lengths(batch, keys) if self.mixed else [keys] * batch

    def kv_bytes(self, batch: int, keys: int) -> int:
        """The size of K and V, which have to be read once, as in kv_gb_per_s() of harness/problem/problem.h."""
        return 2 * sum(self.lengths(batch, keys)) * self.kv_heads * HEAD_DIM * ELEMENT_BYTES

    def describe(self) -> dict[str, Any]:
        """In the form of peers_decoding.json."""
        lengths = f"{LOG_NORMAL} seq_len_kv" if self.mixed else None
        return {"kv_heads": self.kv_heads, "page_size": PAGE_SIZE if self.paged else None, "lengths": lengths}


@dataclass(frozen=True)
class Cache:
    """What an implementation receives with q, k, v and out, as the fifth argument of Implementation.prepare."""

    fields: frozenset[str]
    lengths: Any = None  # int32 [batch] on the GPU
    page_table: Any = None  # int32 [batch, pages]; then k and v are [pages, PAGE_SIZE, kv_heads, head_dim]
    causal: bool = False  # every query sees all keys


DECODING = {
    problem.name: problem
    for problem in (
        DecodingProblem("kv-heads-8", 8),
        DecodingProblem("kv-heads-32", 32),
        DecodingProblem("paged", 8, paged=True),
        DecodingProblem("mixed", 8, ((64, 8192),), mixed=True),
    )
}


def select_decoding_shapes(text: str) -> list[Shape]:
    """16x4096, or several separated by commas, or all."""
    allowed = {f"{batch}x{keys}": (batch, keys) for batch, keys in SHAPES}
    wanted = list(allowed) if text == "all" else text.split(",")
    for one in wanted:
        if one not in allowed:
            raise UsageError(f"--shapes: '{one}' is no shape of --decoding; allowed: all, {', '.join(allowed)}")
    return [shape for name, shape in allowed.items() if name in wanted]
