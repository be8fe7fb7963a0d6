"""flash_ladder.decode() on the virtual GPU: few queries against a cache, contiguous or in pages."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from float64_attention import attention_and_lse
from kernel_files import kernel_files
from python_package import ROOT

FOR_FEW_QUERIES = [kernel.stem for kernel in kernel_files(ROOT) if kernel.is_decoding]
PAGE_SIZE, WIDTH, BATCH = 32, 5, 3
LENGTHS = np.array([150, 0, 33], np.int32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


Q = normal(BATCH, 1, 4, 128)
K, V = normal(BATCH, PAGE_SIZE * WIDTH, 2, 128, seed=1), normal(BATCH, PAGE_SIZE * WIDTH, 2, 128, seed=2)


def in_pages(table: np.ndarray, count: int) -> tuple[np.ndarray, np.ndarray]:
    """K and V in `count` pages. What is no key of a batch entry is NaN."""
    pages = np.full((2, count, PAGE_SIZE, 2, 128), np.nan, np.float16)
    for batch, length in enumerate(LENGTHS):
        for row in range(length):
            number = table[batch, row // PAGE_SIZE]
            pages[:, number, row % PAGE_SIZE] = K[batch, row], V[batch, row]
    return pages[0], pages[1]


TABLE = np.array([[7, 2, 9, 0, 4], [-1, 99, 99, 99, 99], [5, 8, 1 << 30, -7, 99]], np.int32)
K_PAGES, V_PAGES = in_pages(TABLE, count=11)


def expected(queries: np.ndarray = Q) -> tuple[np.ndarray, np.ndarray]:
    parts = [
        attention_and_lse(queries[b : b + 1], K[b : b + 1, : max(n, 1)], V[b : b + 1, : max(n, 1)])
        for b, n in enumerate(LENGTHS)
    ]
    out, lse = (np.concatenate(arrays) for arrays in zip(*parts, strict=True))
    out[LENGTHS == 0], lse[LENGTHS == 0] = 0, -np.inf
    return out, lse


def assert_close(out: np.ndarray, wanted: np.ndarray) -> None:
    assert out.shape == wanted.shape
    assert np.array_equal(np.isneginf(out), np.isneginf(wanted))
    finite = np.isfinite(wanted)
    assert np.abs(out[finite].astype(np.float64) - wanted[finite]).max(initial=0) <= 4e-3


@pytest.mark.parametrize("lengths", [LENGTHS, LENGTHS.tolist()], ids=["array", "list"])
def test_a_contiguous_cache(fl: ModuleType, lengths: np.ndarray | list[int]) -> None:
    out, lse = fl.decode(Q, K, V, lengths, return_lse=True)
    assert_close(out, expected()[0])
    assert_close(lse, expected()[1])


@pytest.mark.parametrize("kernel", FOR_FEW_QUERIES)
def test_every_version_takes_lengths_from_an_array(fl: ModuleType, kernel: str) -> None:
    assert_close(fl.decode(Q, K, V, LENGTHS, kernel=kernel), expected()[0])


def test_all_keys_without_lengths(fl: ModuleType) -> None:
    assert_close(fl.decode(Q, K, V), attention_and_lse(Q, K, V)[0])


def test_a_cache_in_pages(fl: ModuleType) -> None:
    out, lse = fl.decode(Q, K_PAGES, V_PAGES, LENGTHS, TABLE, return_lse=True)
    assert_close(out, expected()[0])
    assert_close(lse, expected()[1])
    into = np.empty_like(out)
    assert fl.decode(Q, K_PAGES, V_PAGES, LENGTHS.tolist(), page_table=TABLE, out=into) is into
    assert np.array_equal(into, out), "bit for bit"


def test_several_queries_see_the_same_keys(fl: ModuleType) -> None:
    queries = normal(BATCH, 8, 4, 128, seed=3)
    assert_close(fl.decode(queries, K_PAGES, V_PAGES, LENGTHS, TABLE), expected(queries)[0])


def test_one_long_sequence_among_many_short_ones(fl: ModuleType) -> None:
    """More sequences than a warp has lanes; the results of one do not depend on the lengths of the others."""
    lengths = np.array([i * 5 % 13 for i in range(40)], np.int32)
    lengths[35] = 300
    queries, keys, values = normal(40, 1, 4, 128, seed=4), *(normal(40, 300, 2, 128, seed=seed) for seed in (5, 6))
    out = fl.decode(queries, keys, values, lengths)
    assert_close(out[35:36], attention_and_lse(queries[35:36], keys[35:36], values[35:36])[0])
    for batch, length in enumerate(lengths):
        alone = fl.decode(queries[batch : batch + 1], keys[batch : batch + 1], values[batch : batch + 1], [int(length)])
        assert_close(out[batch : batch + 1], alone.astype(np.float64))


def test_pages_can_be_shared(fl: ModuleType) -> None:
    """Two sequences with the same beginning."""
    table = np.array([[7, 2, 9, 0, 4], [7, 2, 5, 99, 99]], np.int32)
    lengths = np.array([150, 64 + 20], np.int32)
    beginning = np.concatenate([K[0, :64], K[2, :20]])[None], np.concatenate([V[0, :64], V[2, :20]])[None]
    out = fl.decode(Q[:2], K_PAGES, V_PAGES, lengths, table)
    assert_close(out[:1], expected()[0][:1])
    assert_close(out[1:], attention_and_lse(Q[1:2], *beginning)[0])


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "a length beyond the room": ({"lengths": LENGTHS + np.int32(11)}, ValueError, "lengths[0] is 161; allowed: 0 to "),
    "a length below 0": ({"lengths": LENGTHS - np.int32(1)}, ValueError, "lengths[1] is -1; allowed: 0 to 160"),
    "a listed length": ({"lengths": [1, 2, 161]}, ValueError, "lengths_kv 161 is out of range"),
    "too few lengths": ({"lengths": LENGTHS[:2]}, ValueError, "lengths has shape (2); it must be [batch], (3)"),
    "64-bit lengths": ({"lengths": LENGTHS.astype(np.int64)}, TypeError, "lengths has dtype int64; it must be int32"),
    "a page that does not exist": (
        {"page_table": np.where(TABLE == 2, 11, TABLE)},
        ValueError,
        "page_table[0, 1] is 11, and k_cache has 11 pages; allowed: 0 to 10",
    ),
    "a negative page": ({"page_table": np.where(TABLE == 8, -1, TABLE)}, ValueError, "page_table[2, 1] is -1"),
    "a table of two batch entries": ({"page_table": TABLE[:2]}, ValueError, "page_table has shape (2, 5); it must be "),
    "a table of floats": ({"page_table": TABLE.astype(np.float32)}, TypeError, "page_table has dtype float32"),
    "pages of 31 keys": ({"k_cache": K_PAGES[:, :31], "v_cache": V_PAGES[:, :31]}, ValueError, " 31 is out of range"),
    "nine queries": ({"q": normal(BATCH, 9, 4, 128)}, ValueError, "9 is not supported by "),
    "a version that needs many queries": ({"kernel": "16"}, ValueError, "is not made for few queries"),
    "a version without pages": ({"kernel": "D05"}, ValueError, "page_size"),
    "other shapes": ({"v_cache": V_PAGES[:5]}, ValueError, "k_cache has shape "),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(fl: ModuleType, name: str) -> None:
    changed, kind, message = REFUSED[name]
    arguments = {"q": Q, "k_cache": K_PAGES, "v_cache": V_PAGES, "lengths": LENGTHS, "page_table": TABLE} | changed
    with pytest.raises(kind, match=re.escape(message)):
        fl.decode(**arguments)
