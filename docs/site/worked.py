"""The online softmax that the learning path computes by hand: seq_len 4, head_dim 2, one query at a time.

Everything here can be done on paper: the scores are small whole numbers, and so is V. A test
(harness/tests/docs_chapters_test.py) compares it with the definition, softmax(Q Kᵀ) V, in float64.
"""

from __future__ import annotations

from dataclasses import dataclass
from math import exp, inf

Q = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, -1.0)]
K = [(1.0, 0.0), (3.0, 1.0), (2.0, -1.0), (4.0, 2.0)]
V = [(1.0, 0.0), (0.0, 2.0), (4.0, 4.0), (2.0, 6.0)]
# Without the factor 1/sqrt(head_dim), so that scores are integers.
SCORES = [[sum(q * k for q, k in zip(query, key, strict=True)) for key in K] for query in Q]


@dataclass(frozen=True)
class Step:
    """The state after one key: the maximum, the factor of the old sums, this key's p, the sum, and O, unnormalised."""

    m: float
    rescale: float
    p: float
    l: float  # noqa: E741 (the paper's symbol)
    O: tuple[float, ...]  # noqa: E741


def steps(query: int = 0) -> list[Step]:
    """One key after another, as version 02 does."""
    m, l, O = -inf, 0.0, (0.0,) * len(V[0])  # noqa: E741
    found = []
    for score, value in zip(SCORES[query], V, strict=True):
        new_m = max(m, score)
        rescale = exp(m - new_m)  # at the first key, exp(-inf) = 0
        p = exp(score - new_m)
        m, l = new_m, l * rescale + p  # noqa: E741
        O = tuple(o * rescale + p * v for o, v in zip(O, value, strict=True))  # noqa: E741
        found.append(Step(m, rescale, p, l, O))
    return found


def output(query: int = 0) -> tuple[float, ...]:
    last = steps(query)[-1]
    return tuple(o / last.l for o in last.O)
