"""Attention in float64 with NumPy: the reference of the scripts and of the tests in Python.

scripts/blockwise_attention.py has the same for one row in plain Python, one tile of keys at a time, and
harness/worker/reference.h the one of the harness.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None = None) -> NDArray[np.float64]:
    """softmax(scale · Q Kᵀ) V for [batch, seq_len, heads, head_dim] of any type; scale None is 1 / sqrt(head_dim)."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    o = np.empty(q.shape, np.float64)
    for b, head in np.ndindex(q.shape[0], q.shape[2]):  # one head at a time, so that its scores fit into memory
        of_q, of_k, of_v = (np.asarray(x[b, :, head], np.float64) for x in (q, k, v))
        s = scale * (of_q @ of_k.T)
        p = np.exp(s - s.max(axis=1, keepdims=True))
        o[b, :, head] = p @ of_v / p.sum(axis=1, keepdims=True)
    return o
