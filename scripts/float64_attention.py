"""Attention in float64 with NumPy: the reference of the scripts and of the tests in Python.

scripts/blockwise_attention.py has the same for one row in plain Python, one tile of keys at a time, and
harness/worker/reference.h the one of the harness.
"""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
from numpy.typing import NDArray


def attention(q: np.ndarray, k: np.ndarray, v: np.ndarray, scale: float | None = None) -> NDArray[np.float64]:
    """softmax(scale · Q Kᵀ) V for [batch, seq_len, heads, head_dim] of any type; scale None is 1 / sqrt(head_dim). V
    may have another head_dim."""
    return attention_and_lse(q, k, v, scale)[0]


def attention_and_lse(
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0,
    alibi_slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    dropout_p: float = 0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    first_batch: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64]]:
    """The same with the fields of extensions, and with the log-sum-exp [batch, heads, seq_len].

    k and v may have fewer heads. A row that sees no key has an output of 0 and a log-sum-exp of -inf. For dropout,
    `first_batch` is the number of the first batch entry, or that of a packed sequence.
    """
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    keep = round((1 - dropout_p) * 256)
    o = np.zeros((*q.shape[:-1], v.shape[-1]), np.float64)
    lse = np.full((q.shape[0], q.shape[2], q.shape[1]), -np.inf)
    # How far key j is to the right of the key that query i is aligned with.
    distance = np.arange(k.shape[1]) - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    seen = visible(*distance.shape, causal, window)
    some = seen.any(axis=1)  # rows that see a key
    for b, head in np.ndindex(q.shape[0], q.shape[2]):  # one head at a time, so that its scores fit into memory
        kv_head = head // (q.shape[2] // k.shape[2])
        of_q, of_k, of_v = (np.asarray(x[b, :, h], np.float64) for x, h in ((q, head), (k, kv_head), (v, kv_head)))
        s = scale * (of_q[some] @ of_k.T)
        if softcap:
            s = softcap * np.tanh(s / softcap)
        if alibi_slopes is not None:
            s -= float(alibi_slopes[head]) * np.abs(distance[some])
        s[~seen[some]] = -np.inf
        most = s.max(axis=1, keepdims=True, initial=-np.inf)
        p = np.exp(s - most)
        total = p.sum(axis=1, keepdims=True)
        if sinks is not None:
            total += np.exp(float(sinks[head]) - most)
        if keep < 256:  # after the sum, which is that of all weights
            head_in_all = (first_batch + b) * q.shape[2] + head
            drawn = random_bytes(dropout_seed, dropout_offset, head_in_all, *distance.shape)
            p *= (drawn[some] < keep) * (256 / keep)
        o[b, some, head] = p @ of_v / total
        lse[b, head, some] = (most + np.log(total))[:, 0]
    return o, lse


def visible(queries: int, keys: int, causal: bool, window: tuple[int, int]) -> NDArray[np.bool_]:
    """Which keys each query sees: [queries, keys]."""
    distance = np.arange(keys) - (np.arange(queries)[:, None] + keys - queries)
    left, right = window
    seen = np.full(distance.shape, True)
    if left >= 0:
        seen &= distance >= -left
    if right >= 0 or causal:
        seen &= distance <= (0 if causal else right)
    return seen


def gradients(
    dout: np.ndarray,
    q: np.ndarray,
    k: np.ndarray,
    v: np.ndarray,
    scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] = (-1, -1),
    softcap: float = 0,
    alibi_slopes: np.ndarray | None = None,
    sinks: np.ndarray | None = None,
    dropout_p: float = 0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    first_batch: int = 0,
) -> tuple[NDArray[np.float64], NDArray[np.float64], NDArray[np.float64]]:
    """dQ, dK and dV of a loss whose gradient with respect to attention_and_lse() is dout, by the formulas of Dao et al.
    (FlashAttention, appendix B.2). k and v may have fewer heads. The other arguments are as there."""
    scale = q.shape[-1] ** -0.5 if scale is None else scale
    keep = round((1 - dropout_p) * 256)
    dq, dk, dv = (np.zeros(x.shape, np.float64) for x in (q, k, v))
    distance = np.arange(k.shape[1]) - (np.arange(q.shape[1])[:, None] + k.shape[1] - q.shape[1])
    for b, head in np.ndindex(q.shape[0], q.shape[2]):
        kv_head = head // (q.shape[2] // k.shape[2])
        of_dout, of_q, of_k, of_v = (
            np.asarray(x[b, :, h], np.float64) for x, h in ((dout, head), (q, head), (k, kv_head), (v, kv_head))
        )
        s = scale * (of_q @ of_k.T)
        slope = np.ones_like(s)
        if softcap:
            slope = 1 - np.tanh(s / softcap) ** 2
            s = softcap * np.tanh(s / softcap)
        if alibi_slopes is not None:
            s -= float(alibi_slopes[head]) * np.abs(distance)
        most = s.max(axis=1, keepdims=True) if s.size > 0 else np.zeros((len(s), 1))
        s[~visible(*s.shape, causal, window)] = -np.inf  # at a row that sees no key, p is 0
        p = np.exp(s - most)
        total = p.sum(axis=1, keepdims=True)
        if sinks is not None:
            total += np.exp(float(sinks[head]) - most)
        p /= np.maximum(total, np.finfo(np.float64).tiny)
        kept = np.ones_like(s)
        if keep < 256:
            head_in_all = (first_batch + b) * q.shape[2] + head
            drawn = random_bytes(dropout_seed, dropout_offset, head_in_all, *distance.shape)
            kept = (drawn < keep) * (256 / keep)
        dp = kept * (of_dout @ of_v.T)
        ds = p * (dp - (p * dp).sum(axis=1, keepdims=True)) * slope
        dq[b, :, head] = scale * ds @ of_k
        dk[b, :, kv_head] += scale * ds.T @ of_q
        dv[b, :, kv_head] += (kept * p).T @ of_dout
    return dq, dk, dv


def random_bytes(seed: int, offset: int, head: int, queries: int, keys: int) -> NDArray[np.uint64]:
    """The random bytes [queries, keys] by which dropout decides (common/philox.h). `head` counts across the batch."""
    blocks = -(-keys // 16)
    counter = np.broadcast_arrays(
        np.arange(blocks, dtype=np.uint64),
        np.arange(queries, dtype=np.uint64)[:, None],
        np.uint64(head),
        np.uint64(offset),
    )
    words = np.stack(philox4x32_10(counter, seed), axis=-1)  # [queries, blocks, 4]
    of_key = np.arange(keys)
    word, byte = of_key % 8 // 2, of_key % 16 // 8 * 2 + of_key % 2
    return (words[:, of_key // 16, word] >> np.uint64(8) * byte.astype(np.uint64)) & np.uint64(255)


def philox4x32_10(counter: Sequence[NDArray[np.uint64]], key: int) -> list[NDArray[np.uint64]]:
    """Four words, of 32 bits each, from the four of the counter: Salmon et al., SC 2011."""
    a, b, c, d = counter
    half, lower = np.uint64(32), np.uint64(0xFFFFFFFF)
    for i in range(10):
        low_key, high_key = (key + i * 0x9E3779B9) % 2**32, ((key >> 32) + i * 0xBB67AE85) % 2**32
        of_a, of_c = np.uint64(0xD2511F53) * a, np.uint64(0xCD9E8D57) * c
        a, b = (of_c >> half) ^ b ^ np.uint64(low_key), of_c & lower
        c, d = (of_a >> half) ^ d ^ np.uint64(high_key), of_a & lower
    return [a, b, c, d]
