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


@pytest.mark.parametrize(
    ("room", "lengths", "chosen"),
    [
        (8192, None, "D15"),
        (8193, None, "D14"),
        (4096, [4096], "D15"),
        (4096, [4095], "D14"),
        (4096, np.full(1, 4096, np.int32), "D14"),
    ],
    ids=["short", "long", "all keys listed", "fewer listed", "lengths in an array"],
)
def test_a_version_for_short_caches_is_chosen_for_these(
    fl: ModuleType, room: int, lengths: list[int] | np.ndarray | None, chosen: str
) -> None:
    """A refusal names the version that would be chosen."""
    cache = np.zeros((1, room, 2, 128), np.float16)
    with pytest.raises(ValueError, match=f"use {chosen}_"):
        fl.decode(np.zeros((1, 1, 4, 128), np.float16), cache, cache, lengths, kernel="16")


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


@pytest.mark.parametrize("count", [2, 5, 16])
def test_causal_queries_see_a_key_less_each(fl: ModuleType, count: int) -> None:
    queries = normal(BATCH, count, 6, 128, seed=9)
    out, lse = fl.decode(queries, K_PAGES, V_PAGES, LENGTHS, TABLE, causal=True, return_lse=True)
    for b, n in enumerate(LENGTHS):
        for i in range(count):
            seen = max(n - (count - 1 - i), 0)
            if seen == 0:
                assert not out[b, i].any() and np.isneginf(lse[b, :, i]).all()
                continue
            rows = queries[b : b + 1, i : i + 1], K[b : b + 1, :seen], V[b : b + 1, :seen]
            wanted, wanted_lse = attention_and_lse(*rows)
            assert_close(out[b : b + 1, i : i + 1], wanted)
            assert_close(lse[b : b + 1, :, i : i + 1], wanted_lse)


def test_a_single_query_sees_all_keys(fl: ModuleType) -> None:
    """So every version accepts one that is causal, also with a new token."""
    options: list[dict[str, Any]] = [{}, {"kernel": "D11"}, {"k_new": NEW_K, "v_new": NEW_V}]
    for given in options:
        caches = K.copy(), V.copy()
        out = fl.decode(Q, *caches, LENGTHS, **given)
        assert np.array_equal(fl.decode(Q, *caches, LENGTHS, causal=True, **given), out), "bit for bit"


# ---- A new token ----


def read_only(array: np.ndarray) -> np.ndarray:
    array = array.copy()
    array.flags.writeable = False
    return array


NEW_K, NEW_V = normal(BATCH, 1, 2, 128, seed=7), normal(BATCH, 1, 2, 128, seed=8)
ROOM_LENGTHS = LENGTHS - np.array([1, 0, 1], np.int32)  # with room for a new key in the pages of TABLE
NEW_TABLE = np.where(TABLE == -1, 10, TABLE).astype(np.int32)  # a page for the new key of the empty sequence


def angles(rotary_dim: int, rows: int = PAGE_SIZE * WIDTH) -> tuple[np.ndarray, np.ndarray]:
    angle = np.arange(rows)[:, None] * 10000.0 ** (-2 * np.arange(rotary_dim // 2) / rotary_dim)
    return np.cos(angle).astype(np.float16), np.sin(angle).astype(np.float16)


def rotated(x: np.ndarray, rows: np.ndarray, cos: np.ndarray, sin: np.ndarray, interleaved: bool) -> np.ndarray:
    """x [batch, seq_len, heads, head_dim] in float64, each batch entry rotated by the angles of its row."""
    pairs, out = cos.shape[1], x.astype(np.float64)
    first, second = (
        (slice(0, 2 * pairs, 2), slice(1, 2 * pairs, 2)) if interleaved else (slice(pairs), slice(pairs, 2 * pairs))
    )
    c, s = (table[rows].astype(np.float64)[:, None, None] for table in (cos, sin))
    out[..., first], out[..., second] = (
        x[..., first] * c - x[..., second] * s,
        x[..., first] * s + x[..., second] * c,
    )
    return out


def appended(queries: np.ndarray, keys: np.ndarray, lengths: np.ndarray) -> np.ndarray:
    """Attention of each batch entry over its keys and the new one."""
    parts = []
    for b, n in enumerate(lengths):
        k = np.concatenate([K[b : b + 1, :n], keys[b : b + 1]], axis=1)
        v = np.concatenate([V[b : b + 1, :n], NEW_V[b : b + 1]], axis=1)
        parts.append(attention_and_lse(queries[b : b + 1], k, v)[0])
    return np.concatenate(parts)


def without_unused(cache: np.ndarray) -> np.ndarray:
    """A copy of a contiguous cache, with NaN where it has no keys."""
    cache = cache.copy()
    for b, length in enumerate(ROOM_LENGTHS):
        cache[b, length:] = np.nan
    return cache


@pytest.mark.parametrize("lengths", [ROOM_LENGTHS, ROOM_LENGTHS.tolist()], ids=["array", "list"])
def test_a_new_token_is_seen_and_appended(fl: ModuleType, lengths: np.ndarray | list[int]) -> None:
    k, v = without_unused(K), without_unused(V)
    k_after, v_after = k.copy(), v.copy()
    for b, n in enumerate(ROOM_LENGTHS):
        k_after[b, n], v_after[b, n] = NEW_K[b, 0], NEW_V[b, 0]
    assert_close(fl.decode(Q, k, v, lengths, k_new=NEW_K, v_new=NEW_V), appended(Q, NEW_K, ROOM_LENGTHS))
    assert np.array_equal(k, k_after, equal_nan=True) and np.array_equal(v, v_after, equal_nan=True)
    again = fl.decode(Q, k, v, ROOM_LENGTHS + np.int32(1))
    assert_close(again, appended(Q, NEW_K, ROOM_LENGTHS))


def test_a_new_token_in_pages(fl: ModuleType) -> None:
    k, v = in_pages(NEW_TABLE, count=11)
    for b, n in enumerate(ROOM_LENGTHS):
        k[NEW_TABLE[b, n // PAGE_SIZE], n % PAGE_SIZE] = v[NEW_TABLE[b, n // PAGE_SIZE], n % PAGE_SIZE] = np.nan
    k_after, v_after = k.copy(), v.copy()
    for b, n in enumerate(ROOM_LENGTHS):
        page, row = NEW_TABLE[b, n // PAGE_SIZE], n % PAGE_SIZE
        k_after[page, row], v_after[page, row] = NEW_K[b, 0], NEW_V[b, 0]
    out = fl.decode(Q, k, v, ROOM_LENGTHS, NEW_TABLE, k_new=NEW_K, v_new=NEW_V)
    assert_close(out, appended(Q, NEW_K, ROOM_LENGTHS))
    assert np.array_equal(k, k_after, equal_nan=True) and np.array_equal(v, v_after, equal_nan=True)


@pytest.mark.parametrize("interleaved", [False, True])
@pytest.mark.parametrize("rotary_dim", [16, 32, 64, 128])
def test_a_new_token_is_rotated(fl: ModuleType, rotary_dim: int, interleaved: bool) -> None:
    k, v = without_unused(K), without_unused(V)
    cos, sin = angles(rotary_dim)
    options = {"rotary_cos": cos, "rotary_sin": sin, "rotary_interleaved": interleaved}
    out = fl.decode(Q, k, v, ROOM_LENGTHS, k_new=NEW_K, v_new=NEW_V, **options)
    of_token = [rotated(x, ROOM_LENGTHS, cos, sin, interleaved) for x in (Q, NEW_K)]
    assert_close(out, appended(*of_token, ROOM_LENGTHS))
    for b, n in enumerate(ROOM_LENGTHS):
        assert np.abs(k[b, n] - of_token[1][b, 0]).max() <= 2e-3 and np.array_equal(v[b, n], NEW_V[b, 0])
        assert np.array_equal(k[b, :n], K[b, :n]) and np.isnan(k[b, n + 1 :]).all()


def test_pairs_are_neighbours_unless_said_otherwise(fl: ModuleType) -> None:
    cos, sin = angles(64)
    options = {"k_new": NEW_K, "v_new": NEW_V, "rotary_cos": cos, "rotary_sin": sin}
    out = fl.decode(Q, without_unused(K), without_unused(V), ROOM_LENGTHS, **options)
    of_token = [rotated(x, ROOM_LENGTHS, cos, sin, interleaved=True) for x in (Q, NEW_K)]
    assert_close(out, appended(*of_token, ROOM_LENGTHS))


def test_tokens_one_after_the_other(fl: ModuleType) -> None:
    """The cache that the launches fill, from empty to its end, is the one that was given as a whole."""
    k, v = np.full_like(K[:, :40], np.nan), np.full_like(V[:, :40], np.nan)
    for n in range(40):
        lengths = np.full(BATCH, n, np.int32)
        out = fl.decode(Q, k, v, lengths, k_new=K[:, n : n + 1], v_new=V[:, n : n + 1])
        if n in (0, 1, 15, 16, 39):
            assert_close(out, attention_and_lse(Q, K[:, : n + 1], V[:, : n + 1])[0])
    assert np.array_equal(k, K[:, :40]) and np.array_equal(v, V[:, :40])


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
    "seventeen queries": ({"q": normal(BATCH, 17, 4, 128)}, ValueError, "17 is not supported by "),
    "a version that needs many queries": ({"kernel": "16"}, ValueError, "is not made for few queries"),
    "a version without pages": ({"kernel": "D05"}, ValueError, "page_size"),
    "other shapes": ({"v_cache": V_PAGES[:5]}, ValueError, "k_cache has shape "),
}


NEW = {"k_new": NEW_K, "v_new": NEW_V}
WITHOUT_ROOM = np.where(LENGTHS == 150, 160, LENGTHS).astype(np.int32)
REFUSED |= {
    "a new key without a value": ({"k_new": NEW_K}, ValueError, "k_new is given, and v_new is None; give both"),
    "a new value without a key": ({"v_new": NEW_V}, ValueError, "v_new is given, and k_new is None; give both"),
    "a new key without lengths": (NEW | {"lengths": None}, ValueError, "k_new is given, and lengths is None"),
    "no room for a new key": (
        NEW | {"lengths": WITHOUT_ROOM},
        ValueError,
        "lengths[0] is 160; allowed: 0 to 159, one less than the keys for which there is room",
    ),
    "no room, with listed lengths": (NEW | {"lengths": [160, 0, 1]}, ValueError, "161 is out of range"),
    "no page for a new key": (NEW, ValueError, "page_table[1, 0] is -1, and k_cache has 11 pages"),
    "two new keys": (
        {name: np.repeat(array, 2, axis=1) for name, array in NEW.items()},
        ValueError,
        "k_new has shape (3, 2, 2, 128); it must be [batch, 1, heads of k_cache, head_dim], (3, 1, 2, 128)",
    ),
    "a new key of another type": (NEW | {"k_new": NEW_K.astype(np.float32)}, TypeError, "k_new has dtype float32"),
    "angles without a new token": (
        {"rotary_cos": angles(64)[0], "rotary_sin": angles(64)[1]},
        ValueError,
        "rotary_cos is given, and k_new is None",
    ),
    "cosines alone": (NEW | {"rotary_cos": angles(64)[0]}, ValueError, "rotary_cos is given, and rotary_sin is None"),
    "angles of too few rows": (
        NEW | {"rotary_cos": angles(64, 159)[0], "rotary_sin": angles(64, 159)[1]},
        ValueError,
        "rotary_cos has shape (159, 32); it must be [rows, rotary_dim / 2], with a row for each of the 160 keys",
    ),
    "sines of other pairs": (
        NEW | {"rotary_cos": angles(64)[0], "rotary_sin": angles(32)[1]},
        ValueError,
        "rotary_sin has shape (160, 16); it must be [rows, rotary_dim / 2], (160, 32)",
    ),
    "angles of 12 pairs": (
        NEW | {"rotary_cos": angles(24)[0], "rotary_sin": angles(24)[1]},
        ValueError,
        "rotary_cos 24 is out of range; allowed: multiples of 16 up to q.shape[3] (head_dim) 128",
    ),
    "angles of another type": (
        NEW | {"rotary_cos": angles(64)[0].astype(np.float32), "rotary_sin": angles(64)[1].astype(np.float32)},
        TypeError,
        "rotary_cos has dtype float32; it must be float16",
    ),
    "a version without rotations": (
        NEW | {"kernel": "D09", "page_table": NEW_TABLE, "rotary_cos": angles(64)[0], "rotary_sin": angles(64)[1]},
        ValueError,
        "rotary_cos is not supported by D09_append",
    ),
    "several causal queries and a new token": (
        NEW | {"page_table": NEW_TABLE, "q": normal(BATCH, 2, 4, 128), "causal": True},
        ValueError,
        "exclude each other",
    ),
    "several causal queries with D11": (
        {"q": normal(BATCH, 2, 4, 128), "causal": True, "kernel": "D11"},
        ValueError,
        "causal=True is not supported by D11_parallel_combine; leave it out, or use D13_several_queries ",
    ),
    "causal=1": ({"causal": 1}, TypeError, "causal is 1; allowed: True, False"),
    "rotary_interleaved=1": ({"rotary_interleaved": 1}, TypeError, "rotary_interleaved is 1"),
    "a version without new tokens": (NEW | {"kernel": "D08", "page_table": NEW_TABLE}, ValueError, "k_new is not "),
    "a cache that cannot be written to": (NEW | {"k_cache": read_only(K_PAGES)}, ValueError, "k_cache"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(fl: ModuleType, name: str) -> None:
    changed, kind, message = REFUSED[name]
    arguments = {"q": Q, "k_cache": K_PAGES, "v_cache": V_PAGES, "lengths": LENGTHS, "page_table": TABLE} | changed
    with pytest.raises(kind, match=re.escape(message)):
        fl.decode(**arguments)
