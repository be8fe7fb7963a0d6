"""The online softmax that the learning path computes by hand: seq_len 4, head_dim 2, one query at a time.

Everything here can be done on paper: the scores are small whole numbers, and so is V. A test
(harness/tests/docs_chapters_test.py) compares it with the definition, softmax(Q Kᵀ) V, in float64.
"""

from __future__ import annotations

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[2] / "scripts"))

from blockwise_attention import Step, attend

Q = [(1.0, 0.0), (0.0, 1.0), (1.0, 1.0), (2.0, -1.0)]
K = [(1.0, 0.0), (3.0, 1.0), (2.0, -1.0), (4.0, 2.0)]
V = [(1.0, 0.0), (0.0, 2.0), (4.0, 4.0), (2.0, 6.0)]
# Without the factor 1/sqrt(head_dim), so that scores are integers.
SCORES = [[sum(q * k for q, k in zip(query, key, strict=True)) for key in K] for query in Q]


def steps(query: int = 0) -> list[Step]:
    """One key after another, as version 02 does: the state after each."""
    return attend(Q[query], K, V, block_kv=1, scale=1)


def output(query: int = 0) -> list[float]:
    return steps(query)[-1].output
