"""flash_ladder.backward() on the virtual GPU."""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from float64_attention import attention_and_lse, gradients
from kernel_files import kernel_files
from python_package import ROOT

BACKWARD = [kernel.stem for kernel in kernel_files(ROOT) if kernel.is_backward]


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


DOUT, Q = normal(2, 192, 2, 128), normal(2, 192, 2, 128, seed=1)
K, V = normal(2, 128, 2, 128, seed=2), normal(2, 128, 2, 128, seed=3)
SCALE = 0.1
EXACT_OUT, EXACT_LSE = attention_and_lse(Q, K, V, SCALE)
OUT, LSE = EXACT_OUT.astype(np.float16), EXACT_LSE.astype(np.float32)

GIVEN = {"dout": DOUT, "q": Q, "k": K, "v": V, "out": OUT, "lse": LSE}


def assert_right(found: tuple[np.ndarray, ...], expected: tuple[np.ndarray, ...]) -> None:
    for got, wanted in zip(found, expected, strict=True):
        assert (got.shape, got.dtype) == (wanted.shape, np.float16)
        assert np.abs(got.astype(np.float64) - wanted).max() <= 4e-3 * np.abs(wanted).max()


@pytest.mark.parametrize("kernel", [None, *BACKWARD])
def test_gradients(fl: ModuleType, kernel: str | None) -> None:
    found = fl.backward(DOUT, Q, K, V, OUT, LSE, softmax_scale=SCALE, kernel=kernel)
    assert_right(found, gradients(DOUT, Q, K, V, SCALE))


@pytest.mark.parametrize("kernel", [None, "backward_grouped_heads"])
@pytest.mark.parametrize("causal", [False, True])
@pytest.mark.parametrize("kv_heads", [4, 2, 1])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (64, 192), (192, 128), (70, 65), (1, 100), (100, 50)])
def test_other_problems(
    fl: ModuleType, queries: int, keys: int, kv_heads: int, causal: bool, kernel: str | None
) -> None:
    """With the mask, and more queries than keys, the first queries see no key."""
    q, dout = normal(1, queries, 4, 128, seed=6), normal(1, queries, 4, 128, seed=7)
    k, v = normal(1, keys, kv_heads, 128, seed=8), normal(1, keys, kv_heads, 128, seed=9)
    out, lse = fl.forward(q, k, v, causal=causal, return_lse=True)
    found = fl.backward(dout, q, k, v, out, lse, causal=causal, kernel=kernel)
    assert_right(found, gradients(dout, q, k, v, causal=causal))
    if causal:
        assert not found[0][:, : max(queries - keys, 0)].any(), "a query without a key has no gradient"


@pytest.mark.parametrize("kernel", [None, "backward_window"])
@pytest.mark.parametrize("window", [(0, 0), (5, 70), (-1, 5), (64, -1), (100, 0)])
@pytest.mark.parametrize(("queries", "keys"), [(128, 128), (70, 200), (200, 70), (1, 100)])
def test_windows(fl: ModuleType, queries: int, keys: int, window: tuple[int, int], kernel: str | None) -> None:
    """With more queries than keys, some queries see no key; with more keys, no query sees some of the keys."""
    q, dout = normal(1, queries, 2, 128, seed=6), normal(1, queries, 2, 128, seed=7)
    k, v = normal(1, keys, 1, 128, seed=8), normal(1, keys, 1, 128, seed=9)
    left, right = window
    out, lse = fl.forward(q, k, v, window=window, return_lse=True)
    found = fl.backward(dout, q, k, v, out, lse, window=window, kernel=kernel)
    assert_right(found, gradients(dout, q, k, v, window=window))
    dq, dk, dv = found
    if right >= 0:
        assert not dq[:, : max(queries - keys - right, 0)].any(), "a query without a key has no gradient"
    if left >= 0:
        assert not any(dx[:, : max(keys - queries - left, 0)].any() for dx in (dk, dv)), "nor has a key without a query"


def test_a_window_with_the_causal_mask(fl: ModuleType) -> None:
    """It allows no keys to the right, as a width of 0 does."""
    k, v = normal(2, 128, 2, 128, seed=8), normal(2, 128, 2, 128, seed=9)
    out, lse = attention_and_lse(Q, k, v, causal=True, window=(40, -1))
    given = {"dout": DOUT, "q": Q, "k": k, "v": v, "out": out.astype(np.float16), "lse": lse.astype(np.float32)}
    expected = gradients(DOUT, Q, k, v, causal=True, window=(40, -1))
    for fields in ({"causal": True, "window": (40, -1)}, {"window": (40, 0)}):
        assert fl.which_backward(**given, **fields) == "backward_hopper_window"
        assert_right(fl.backward(**given, **fields), expected)


@pytest.mark.parametrize(("fields", "version"), [
    ({}, "B16_stmatrix"), ({"deterministic": True}, "B17_in_turn"), ({"causal": True}, "backward_hopper_causal"),
    ({"k": K[:, 64:], "v": V[:, 64:], "deterministic": True}, "B09_dq_apart"),
    ({"k": K[:, 64:], "v": V[:, 64:]}, "B10_wgmma"), ({"k": K[:, 1:], "v": V[:, 1:]}, "backward_hopper_any_length"),
    ({"k": K[:, :0:-1], "v": V[:, 1:]}, "backward_any_length"),
    ({"k": K[:, 64:], "v": V[:, 64:], "causal": True}, "backward_hopper_any_length"),
    ({"dout": DOUT[:, ::-1]}, "B08_coalesced_dq"), ({"k": K[:, ::-1], "causal": True}, "backward_causal"),
    ({"k": K[:, :, :1], "v": V[:, :, :1]}, "backward_hopper_grouped_heads"),
    ({"k": K[:, ::-1, :1], "v": V[:, :, :1]}, "backward_grouped_heads"),
    ({"window": (9, -1)}, "backward_hopper_window"), ({"window": (-1, 9)}, "backward_hopper_window"),
    ({"v": V[::-1], "window": (9, -1)}, "backward_window"),
])  # fmt: skip
def test_the_version_that_is_chosen(fl: ModuleType, fields: dict[str, Any], version: str) -> None:
    """On a Hopper GPU the newest, if its tiles fit; without TMA if a stride is negative."""
    assert fl.which_backward(**(GIVEN | fields)) == version


@pytest.mark.parametrize(("window", "same"), [((-1, -1), {}), ((127, 191), {}), ((-1, 0), {"causal": True})])
def test_other_masks_written_as_windows(fl: ModuleType, window: tuple[int, int], same: dict[str, Any]) -> None:
    """They do not change the choice."""
    assert fl.which_backward(**GIVEN, window=window) == fl.which_backward(**GIVEN, **same) != "backward_hopper_window"


def test_deterministic(fl: ModuleType) -> None:
    found = [fl.backward(DOUT, Q, K, V, OUT, LSE, softmax_scale=SCALE, deterministic=True) for _ in range(2)]
    assert_right(found[0], gradients(DOUT, Q, K, V, SCALE))
    assert all(np.array_equal(first, again) for first, again in zip(*found, strict=True))


def test_gradients_of_what_forward_returns(fl: ModuleType) -> None:
    """With slices of a packed q, k and v."""
    packed = normal(1, 64, 3, 2, 128, seed=4)
    q, k, v = packed[:, :, 0], packed[:, :, 1], packed[:, :, 2]
    out, lse = fl.forward(q, k, v, return_lse=True)
    dout = normal(1, 64, 2, 128, seed=5)
    assert_right(fl.backward(dout, q, k, v, out, lse), gradients(dout, q, k, v))


SLOPES = np.array([0.5, 0.125], np.float32)
SINKS = np.array([1, -2], np.float32)
CHANGES: list[dict[str, Any]] = [
    {"softcap": 3.0},
    {"alibi_slopes": SLOPES, "causal": True},
    {"sinks": SINKS},
    {"softcap": 2.0, "alibi_slopes": SLOPES, "sinks": SINKS, "window": (50, 7)},
    {"dropout_p": 0.1, "dropout_seed": 1 << 40, "causal": True},
    {"dropout_p": 0.6, "dropout_seed": 5, "dropout_offset": 4_000_000_000, "sinks": SINKS},
]


def skip_if_unsolved(fl: ModuleType, given: dict[str, Any]) -> None:
    """Which versions solve a field changes as extensions are added; what no version solves is refused by name."""
    try:
        fl.which_backward(**given)
    except ValueError as error:
        unsolved = "no version supports it yet|in the backward pass; leave one out| is not supported by |; allowed: "
        assert re.search(unsolved, str(error)), error
        with pytest.raises(ValueError, match=re.escape(str(error))):
            fl.backward(**given)
        pytest.skip(str(error))


@pytest.mark.parametrize("fields", CHANGES, ids=lambda fields: "_".join(fields))
def test_changes_of_scores_and_dropout(fl: ModuleType, fields: dict[str, Any]) -> None:
    q, k, v, dout = Q[:, :100], K[:, :70, :1], V[:, :70, :1], DOUT[:, :100]
    out, lse = attention_and_lse(q, k, v, **fields)
    given = {"dout": dout, "q": q, "k": k, "v": v, "out": out.astype(np.float16), "lse": lse.astype(np.float32)}
    skip_if_unsolved(fl, given | fields)
    assert_right(fl.backward(**given, **fields), gradients(dout, q, k, v, **fields))


@pytest.mark.parametrize("fields", [{}, CHANGES[1], CHANGES[-1]], ids=lambda fields: "_".join(fields) or "alone")
@pytest.mark.parametrize("packed", [False, True])
def test_sequences_of_several_lengths(fl: ModuleType, packed: bool, fields: dict[str, Any]) -> None:
    """The gradients of padding are 0, whatever its inputs are."""
    lengths = [(40, 0), (70, 33), (0, 20), (3, 64)]
    nan = np.float16(np.nan)
    padded = {name: np.full((4, 70, heads, 128), nan) for name, heads in (("q", 2), ("k", 1), ("v", 1), ("dout", 2))}
    padded |= {"out": np.full((4, 70, 2, 128), nan), "lse": np.full((4, 2, 70), -np.inf, np.float32)}
    expected = [np.zeros(padded[name].shape) for name in "qkv"]
    for b, (queries, keys) in enumerate(lengths):
        of_b = {name: normal(1, keys if name in "kv" else queries, x.shape[2], 128, seed=b) for name, x in
                padded.items() if name != "lse"}  # fmt: skip
        dout, q, k, v = (of_b[name] for name in ("dout", "q", "k", "v"))
        of_b["out"], lse = attention_and_lse(q, k, v, **fields, first_batch=b)
        padded["lse"][b, :, :queries] = lse[0]
        for name, x in of_b.items():
            padded[name][b, : x.shape[1]] = x[0]
        for whole, dx in zip(expected, gradients(dout, q, k, v, **fields, first_batch=b), strict=True):
            whole[b, : dx.shape[1]] = dx[0]
    of_q, of_k = ([rows[i] for rows in lengths] for i in (0, 1))
    given: dict[str, Any] = padded | {"lengths": of_q, "lengths_kv": of_k}
    if packed:

        def pack(x: np.ndarray, rows: list[int]) -> np.ndarray:
            return np.concatenate([x[b, :n] for b, n in enumerate(rows)])

        given = {name: pack(x, of_k if name in "kv" else of_q) for name, x in padded.items() if name != "lse"}
        given["lse"] = np.ascontiguousarray(pack(padded["lse"].swapaxes(1, 2), of_q).T)
        given |= {"cu_seqlens_q": np.cumsum([0, *of_q]), "cu_seqlens_k": np.cumsum([0, *of_k])}
        expected = [pack(x, rows) for x, rows in zip(expected, (of_q, of_k, of_k), strict=True)]
    skip_if_unsolved(fl, given | fields)
    found = fl.backward(**given, **fields)
    assert_right(found, tuple(expected))
    if not packed:
        for dx, rows in zip(found, (of_q, of_k, of_k), strict=True):
            assert not any(dx[b, n:].any() for b, n in enumerate(rows))


@pytest.mark.parametrize("kernel", [None, *[name for name in BACKWARD if name.endswith("head_dims")]])
@pytest.mark.parametrize(("head_dim", "head_dim_v"), [(64, 64), (96, 96), (192, 192), (256, 256), (192, 128)])
def test_other_head_dims(fl: ModuleType, head_dim: int, head_dim_v: int, kernel: str | None) -> None:
    """With a part of a tile of queries and of keys, and with dropout, whose bits warps may share."""
    fields: dict[str, Any] = {"causal": True, "dropout_p": 0.25, "dropout_seed": 3}
    q, k, v = normal(1, 70, 2, head_dim, seed=1), normal(1, 81, 1, head_dim), normal(1, 81, 1, head_dim_v, seed=2)
    out, lse = attention_and_lse(q, k, v, **fields)
    given = {"dout": normal(*out.shape), "q": q, "k": k, "v": v, "out": out.astype(np.float16)}
    given |= {"lse": lse.astype(np.float32), "kernel": kernel}
    skip_if_unsolved(fl, given | fields)
    assert_right(fl.backward(**given, **fields), gradients(given["dout"], q, k, v, **fields))


PACKED: dict[str, Any] = {name: x[0] for name, x in GIVEN.items()}
PACKED |= {"cu_seqlens_q": [0, 100, 192], "cu_seqlens_k": [0, 100, 128]}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "dout's shape": ({"dout": DOUT[:, :64]}, ValueError, "dout has shape (2, 64, 2, 128); it must be that of q"),
    "dout's type": ({"dout": DOUT.astype(np.float32)}, TypeError, "dout has dtype float32"),
    "dout's stride": ({"dout": DOUT[:, :, :, ::-1]}, ValueError, "dout has stride -1 in its last dimension"),
    "lse's shape": ({"lse": LSE[:, :, :64]}, ValueError, "lse has shape (2, 2, 64); it must be [batch, heads, "),
    "lse's type": ({"lse": LSE.astype(np.float16)}, TypeError, "lse has dtype float16; it must be float32"),
    "a part of a tile": ({"k": K[:, :63], "v": V[:, :63], "kernel": "B07"}, ValueError, "63 is not a multiple of 64"),
    "a part of a tile, deterministic": (
        {"k": K[:, :63], "v": V[:, :63], "deterministic": True},
        ValueError,
        "63 is not a multiple of 128, the keys of a tile of B17_in_turn",
    ),
    "grouped heads": ({"k": K[:, :, :1], "v": V[:, :, :1], "kernel": "B07"}, ValueError, "k.shape[2]"),
    "causal": ({"causal": True, "kernel": "B07"}, ValueError, "causal=True is not supported by B07_prefetch"),
    "causal and deterministic": (
        {"causal": True, "deterministic": True},
        ValueError,
        "no deterministic version supports causal=True; leave deterministic out",
    ),
    "a window": (
        {"window": (9, 0), "kernel": "backward_grouped_heads"},
        ValueError,
        "window is not supported by backward_grouped_heads; leave it out, or use backward_",
    ),
    "a window and deterministic": (
        {"window": (9, -1), "deterministic": True},
        ValueError,
        "no deterministic version supports window; leave deterministic out",
    ),
    "a window of one side": ({"window": (9,)}, TypeError, "window is (9,); allowed: None, or (left, right), each -1"),
    "a window's width": ({"window": (-2, 0)}, ValueError, "window is (-2, 0); allowed: None, or (left, right), each "),
    "a version that computes O": ({"kernel": "16"}, ValueError, "16_overlapped_softmax computes O, not gradients; "),
    "a version that adds in any order": ({"kernel": "B07", "deterministic": True}, ValueError, "B07_prefetch adds in "),
    "a softcap": ({"softcap": 2, "kernel": "B07"}, ValueError, "softcap is not supported by B07_prefetch; "),
    "a softcap below 0": ({"softcap": -1.0}, ValueError, "softcap -1 is out of range; allowed: finite float32 numbers"),
    "a softcap that is none": ({"softcap": [2]}, TypeError, "softcap is [2]; allowed: None, or a number above 0"),
    "slopes of ALiBi": (
        {"alibi_slopes": SLOPES, "kernel": "B07"},
        ValueError,
        "alibi_slopes is not supported by B07_prefetch; ",
    ),
    "too many slopes": ({"alibi_slopes": np.zeros(3, np.float32)}, ValueError, "alibi_slopes has shape (3); it must "),
    "sinks": ({"sinks": SINKS, "kernel": "B07"}, ValueError, "sinks is not supported by B07_prefetch; "),
    "sinks' type": ({"sinks": SINKS.astype(np.float64)}, TypeError, "sinks has dtype float64"),
    "dropout": ({"dropout_p": 0.5, "kernel": "B07"}, ValueError, "dropout_p is not supported by B07_prefetch; "),
    "dropout of all": ({"dropout_p": 1.0}, ValueError, "dropout_p 1 is out of range; allowed: 0 to 0.99609375"),
    "a seed": ({"dropout_p": 0.5, "dropout_seed": -1}, ValueError, "dropout_seed is -1; allowed: 0 to 2^63 - 1"),
    "lengths": ({"lengths": [9, 9], "kernel": "B07"}, ValueError, "lengths is not supported by B07_prefetch; "),
    "too few lengths": ({"lengths": [9]}, ValueError, "lengths has 1 number, and q.shape[0] (batch) is 2; give one "),
    "a length": ({"lengths": [9, 193], "lengths_kv": [9, 9]}, ValueError, "lengths 193 is out of range; allowed: 0"),
    "lengths of packed ones": (
        {"lengths": [9, 9], "cu_seqlens_q": [0, 9]},
        ValueError,
        "lengths and cu_seqlens_q are given, but packed sequences have no padding; leave lengths out",
    ),
    "sums without cu_seqlens_q": ({"cu_seqlens_k": [0, 9]}, ValueError, "cu_seqlens_k is given, but cu_seqlens_q is "),
    "packed arrays of four dimensions": (
        {"cu_seqlens_q": [0, 192]},
        ValueError,
        "q has shape (2, 192, 2, 128); with cu_seqlens_q it must be [total, heads, head_dim]",
    ),
    "a packed dout of four dimensions": (
        PACKED | {"dout": DOUT},
        ValueError,
        "dout has shape (2, 192, 2, 128); with cu_seqlens_q it must be [total, heads, head_dim]",
    ),
    "a packed lse of three dimensions": (PACKED | {"lse": LSE}, ValueError, "lse has shape (2, 2, 192); it must be ["),
    "sums of other rows": (PACKED | {"cu_seqlens_q": [0, 4, 9]}, ValueError, "q has 192 rows, and cu_seqlens_q ends "),
    "packed": (
        PACKED | {"kernel": "B07"},
        ValueError,
        "cu_seqlens_q is not supported by B07_prefetch; ",
    ),
    "dropout and deterministic": ({"dropout_p": 0.5, "deterministic": True}, ValueError, "dropout_p"),
    "head_dim and deterministic": (
        {name: x[..., :64] for name, x in GIVEN.items() if name != "lse"} | {"deterministic": True},
        ValueError,
        "no deterministic version supports q.shape[3] (head_dim) 64; leave deterministic out",
    ),
    "head_dim": ({name: x[..., :80] for name, x in GIVEN.items() if name != "lse"}, ValueError, "(head_dim) is 80; al"),
    "head_dim of v": (
        {name: GIVEN[name][..., :64] for name in ("v", "out", "dout")},
        ValueError,
        "q.shape[3] (head_dim) is 128, and v.shape[3] (head_dim of v, other than q's) is 64; allowed: equal sizes",
    ),
    "deterministic type": ({"deterministic": 1}, TypeError, "deterministic is 1; allowed: True, False"),
    "no out": ({"out": None}, TypeError, "out is of type NoneType; allowed: arrays of"),
}


@pytest.mark.parametrize("name", REFUSED)
def test_what_is_refused(fl: ModuleType, name: str) -> None:
    changed, kind, message = REFUSED[name]
    with pytest.raises(kind, match=re.escape(message)):
        fl.backward(**(GIVEN | changed))


def test_the_versions_for_gradients(fl: ModuleType) -> None:
    assert sorted(fl.kernels(gradients=True)) == sorted(BACKWARD)
    assert not set(fl.kernels()) & set(BACKWARD)


def test_forward_refuses_a_version_for_gradients(fl: ModuleType) -> None:
    with pytest.raises(ValueError, match="B07_prefetch computes dQ, dK and dV, not O"):
        fl.forward(Q, K, V, kernel="B07")
