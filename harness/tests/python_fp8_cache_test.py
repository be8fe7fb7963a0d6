"""flash_ladder.decode() with a cache of 8 bits, on the virtual GPU. NumPy multiplies by the scales in float64."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float64_attention import attention_and_lse

BATCH, ROOM, KV_HEADS, PAGE_SIZE = 3, 160, 2, 32
LENGTHS = np.array([150, 0, 33], np.int32)
E4M3 = ml_dtypes.float8_e4m3fn
TABLE = np.array([[7, 2, 9, 0, 4], [-1, 99, 99, 99, 99], [5, 8, 1 << 30, -7, 99]], np.int32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape)


def quantised(x: np.ndarray, seed: int) -> tuple[np.ndarray, np.ndarray]:
    """e4m3 with NaN where there is no key, and scales that are no powers of two and differ by up to 4 times."""
    largest = np.abs(x).max(axis=(1, 3))
    scales = (largest / 448 * np.random.default_rng(seed).uniform(1, 4, largest.shape)).astype(np.float32)
    bits = (x / scales[:, None, :, None]).astype(E4M3)
    for b, length in enumerate(LENGTHS):
        bits[b, length:] = np.nan
    return bits, scales


Q = normal(BATCH, 1, 4, 128).astype(np.float16)
K, K_SCALES = quantised(normal(BATCH, ROOM, KV_HEADS, 128, seed=1), seed=3)
V, V_SCALES = quantised(normal(BATCH, ROOM, KV_HEADS, 128, seed=2), seed=4)
SCALES = {"k_descale": K_SCALES, "v_descale": V_SCALES}


def in_pages(cache: np.ndarray) -> np.ndarray:
    pages = np.full((11, PAGE_SIZE, KV_HEADS, 128), np.nan, E4M3)
    for batch, length in enumerate(LENGTHS):
        for row in range(length):
            pages[TABLE[batch, row // PAGE_SIZE], row % PAGE_SIZE] = cache[batch, row]
    return pages


def expected(queries: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
    outs, lses = [], []
    for b, length in enumerate(LENGTHS):
        keys, values = (
            cache[b : b + 1, : max(length, 1)].astype(np.float64) * scales[b : b + 1, None, :, None]
            for cache, scales in ((K, K_SCALES), (V, V_SCALES))
        )
        out, lse = attention_and_lse(queries[b : b + 1], keys, values)
        outs.append(out if length else np.zeros_like(out))
        lses.append(lse if length else np.full_like(lse, -np.inf))
    return np.concatenate(outs), np.concatenate(lses)


def assert_close(out: np.ndarray, wanted: np.ndarray, bound: float = 4e-3) -> None:
    assert out.shape == wanted.shape
    assert np.array_equal(np.isneginf(out), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    assert np.abs(out[finite].astype(np.float64) - wanted[finite]).max(initial=0) <= bound


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS.tolist()], ids=["array", "list"])
def test_elements_are_multiplied_by_the_scales_of_their_head(fl: ModuleType, lengths: np.ndarray | list[int]) -> None:
    out, lse = fl.decode(Q, K, V, lengths, return_lse=True, **SCALES)
    assert out.dtype == np.float16
    assert_close(out, expected(Q)[0])
    assert_close(lse, expected(Q)[1])


def test_a_cache_in_pages(fl: ModuleType) -> None:
    out = fl.decode(Q, in_pages(K), in_pages(V), LENGTHS, TABLE, **SCALES)
    assert np.array_equal(out, fl.decode(Q, K, V, LENGTHS, **SCALES)), "bit for bit"


def test_several_queries(fl: ModuleType) -> None:
    queries = normal(BATCH, 5, 4, 128, seed=5).astype(np.float16)
    assert_close(fl.decode(queries, K, V, LENGTHS, **SCALES), expected(queries)[0])


def test_queries_in_bf16(fl: ModuleType) -> None:
    queries = Q.astype(ml_dtypes.bfloat16)
    out = fl.decode(queries, K, V, LENGTHS, **SCALES)
    assert out.dtype == ml_dtypes.bfloat16
    assert_close(out, expected(queries)[0], 2e-2)


def test_the_bits_may_be_uint8(fl: ModuleType) -> None:
    out = fl.decode(Q, K.view(np.uint8), V.view(np.uint8), LENGTHS, **SCALES)
    assert np.array_equal(out, fl.decode(Q, K, V, LENGTHS, **SCALES)), "bit for bit"


def test_every_number_of_e4m3(fl: ModuleType) -> None:
    """One key, so that O is a row of V, in which all 254 finite numbers are. The scale is 1."""
    bits = np.arange(256, dtype=np.uint8)
    values = np.zeros((1, 1, 2, 128), np.uint8)
    values[0, 0] = np.where(bits % 128 == 127, 0, bits).reshape(2, 128)
    one = np.ones((1, 2), np.float32)
    out = fl.decode(Q[:1], np.zeros_like(values), values, [1], k_descale=one, v_descale=one)
    numbers = values.view(E4M3).astype(np.float16)
    assert np.array_equal(out, np.repeat(numbers, 2, axis=2))


NEW = {name: np.zeros((BATCH, 1, KV_HEADS, 128), np.float16) for name in ("k_new", "v_new")}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no scales of K": (
        {"k_descale": None},
        TypeError,
        "k_cache has dtype float8_e4m3fn, and k_descale is None; give a float32 array of shape [batch",
    ),
    "no scales of V": ({"v_descale": None}, TypeError, "v_cache has dtype float8_e4m3fn, and v_descale is None"),
    "V of 16 bits": (
        {"v_cache": V.astype(np.float16)},
        TypeError,
        "v_cache has dtype float16 and k_cache has dtype float8_e4m3fn; they must be equal",
    ),
    "K of 16 bits": ({"k_cache": K.astype(np.float16)}, TypeError, "v_cache has dtype float8_e4m3fn and q has dtype"),
    "scales for 16 bits": (
        {"k_cache": K.astype(np.float16), "v_cache": V.astype(np.float16)},
        TypeError,
        "k_descale is given, and k_cache has dtype float16; leave it out",
    ),
    "scales of all heads of Q": (
        {"k_descale": np.ones((BATCH, 4), np.float32)},
        ValueError,
        "k_descale has shape (3, 4); it must be [batch, heads of k_cache], (3, 2)",
    ),
    "scales of 16 bits": ({"v_descale": V_SCALES.astype(np.float16)}, TypeError, "v_descale has dtype float16; it"),
    "a new token": (NEW, ValueError, "k_descale and k_new exclude each other: a launch does not round a new token"),
    "a version that reads 16 bits": ({"kernel": "D12"}, ValueError, "k_descale is not supported by D12_early_combine"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(fl: ModuleType, name: str) -> None:
    changed, kind, message = REFUSED[name]
    arguments = {"q": Q, "k_cache": K, "v_cache": V, "lengths": LENGTHS} | SCALES | changed
    with pytest.raises(kind, match=re.escape(message)):
        fl.decode(**arguments)


def test_only_a_cache_may_have_8_bits_alone(fl: ModuleType) -> None:
    with pytest.raises(TypeError, match="k has dtype float8_e4m3fn and q has dtype float16; they must be equal"):
        fl.forward(Q, K, V)
