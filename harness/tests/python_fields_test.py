"""The Python package's fields of extensions on the virtual GPU, and the version that runs if none is named.

Which versions solve a field changes as extensions are added: a field that no version solves must be refused by name,
and all others must agree with float64.
"""

from __future__ import annotations

import re
from types import ModuleType
from typing import Any

import numpy as np
import pytest
from float64_attention import attention_and_lse, philox4x32_10, random_bytes
from kernel_files import kernel_files
from python_package import ROOT

KERNELS = [kernel for kernel in kernel_files(ROOT) if not kernel.is_backward]  # forward() refuses those
NEWEST = [kernel.stem for kernel in KERNELS if kernel.number][-1]
NEWEST_ANYWHERE = [kernel.stem for kernel in KERNELS if kernel.number and "/hopper/" not in kernel.file][-1]
OF_HOPPER = {kernel.stem for kernel in KERNELS if "/hopper/" in kernel.file}
SLOPES = np.array([0.5, 0.25, 0.125, 0.0625], np.float32)
SINKS = np.array([0, 1, -2, 4], np.float32)


def normal(*shape: int, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(np.float16)


Q, K, V = normal(1, 256, 4, 128), normal(1, 256, 4, 128, seed=1), normal(1, 256, 4, 128, seed=2)


def assert_close(out: np.ndarray, expected: np.ndarray) -> None:
    assert out.shape == expected.shape
    assert np.array_equal(np.isneginf(out), np.isneginf(expected))
    finite = np.isfinite(expected)
    allowed = 2 * float(np.finfo(np.float16).eps) * max(np.abs(expected[finite], dtype=np.float64).max(initial=0), 1)
    assert np.abs(out[finite].astype(np.float64) - expected[finite]).max(initial=0) <= allowed


def which_or_refusal(fl: ModuleType, *arrays: np.ndarray, **fields: object) -> str | None:
    """The version that runs; None if no version solves the fields, which the exception then names."""
    try:
        return fl.which(*arrays, **fields)
    except ValueError as error:
        assert re.search("no version supports it yet|together; leave one out| is not supported by ", str(error)), error
        with pytest.raises(ValueError, match=re.escape(str(error))):
            fl.forward(*arrays, **fields)
        return None


def test_the_newest_version_solves_plain_problems(fl: ModuleType) -> None:
    assert fl.which(Q, K, V) == NEWEST
    assert fl.which(Q[:, ::-1], K, V) == NEWEST_ANYWHERE
    assert fl.which(Q, K, V, kernel=7) == "07_ldmatrix"


def test_an_extension_that_solves_little_else_is_chosen(fl: ModuleType) -> None:
    """More fields mostly cost speed. hopper_causal solves the same as hopper_pairs, the later one."""
    assert fl.which(Q, K, V, causal=True) == "hopper_pairs", "the virtual GPU is a Hopper GPU"
    assert fl.which(Q[:, ::-1], K, V, causal=True) == "causal", "TMA has no strides below 0"
    assert fl.which(Q, K, V, causal=True, window=(9, 0)) == "hopper_window"
    assert fl.which(Q, K[:, :, :2], V[:, :, :2]) in OF_HOPPER
    assert fl.which(Q, K, V, softcap=3.0, alibi_slopes=SLOPES, sinks=SINKS, window=(9, -1)) in OF_HOPPER
    assert fl.which(Q, K, V, return_lse=True) in OF_HOPPER - {NEWEST}


@pytest.mark.parametrize("rows", [(256, 256), (100, 77), (77, 100), (1, 33)])
@pytest.mark.parametrize("kv_heads", [4, 2])
@pytest.mark.parametrize("causal", [False, True])
def test_any_length_with_and_without_lse(fl: ModuleType, rows: tuple[int, int], kv_heads: int, causal: bool) -> None:
    arrays = Q[:, : rows[0]], K[:, : rows[1], :kv_heads], V[:, : rows[1], :kv_heads]
    expected, expected_lse = attention_and_lse(*arrays, causal=causal)
    assert_close(fl.forward(*arrays, causal=causal), expected)
    out, lse = fl.forward(*arrays, causal=causal, return_lse=True)
    assert_close(out, expected)
    assert (lse.shape, lse.dtype) == ((1, 4, rows[0]), np.float32)
    assert_close(lse, expected_lse)


FIELDS: list[dict[str, Any]] = [
    {"window": (9, -1)},
    {"window": (-1, 5)},
    {"window": (33, 64)},
    {"window": (40, -1), "causal": True},
    {"softcap": 3.0},
    {"alibi_slopes": SLOPES, "causal": True},
    {"sinks": SINKS},
    {"softcap": 2.0, "alibi_slopes": SLOPES, "sinks": SINKS, "window": (50, 7)},
    {"dropout_p": 0.1, "dropout_seed": 1 << 40, "causal": True},
    {"dropout_p": 0.6, "dropout_seed": 5, "dropout_offset": 4_000_000_000, "sinks": SINKS, "window": (50, 7)},
]


@pytest.mark.parametrize("fields", FIELDS, ids=lambda fields: "_".join(fields))
def test_fields(fl: ModuleType, fields: dict[str, Any]) -> None:
    arrays = Q[:, :100], K[:, :130], V[:, :130]
    if which_or_refusal(fl, *arrays, **fields) is not None:
        assert_close(fl.forward(*arrays, **fields), attention_and_lse(*arrays, **fields)[0])


@pytest.mark.parametrize("head_dim", [64, 96, 192, 256])
@pytest.mark.parametrize("fields", [{}, {"causal": True}, FIELDS[-3]], ids=lambda fields: "_".join(fields) or "plain")
def test_head_dims(fl: ModuleType, head_dim: int, fields: dict[str, Any]) -> None:
    arrays = [np.concatenate([array, array[..., ::-1]], axis=-1)[..., :head_dim] for array in (Q, K, V)]
    arrays = arrays[0][:, :100], arrays[1][:, :130, :2], arrays[2][:, :130, :2]
    assert fl.which(*arrays, **fields) == "hopper_head_dims", "the virtual GPU is a Hopper GPU"
    assert fl.which(arrays[0][:, ::-1], *arrays[1:], **fields) == "head_dims", "TMA has no strides below 0"
    expected, expected_lse = attention_and_lse(*arrays, **fields)
    for kernel in ("hopper_head_dims", "head_dims"):
        out, lse = fl.forward(*arrays, **fields, return_lse=True, kernel=kernel)
        assert_close(out, expected)
        assert_close(lse, expected_lse)


# Of multi-head latent attention: queries and keys of 192 elements, values of 128.
LATENT = [np.concatenate([array, array[..., :64]], axis=-1)[:, :130] for array in (Q, K)] + [V[:, :130]]


@pytest.mark.parametrize("fields", [{}, {"causal": True}, FIELDS[-3]], ids=lambda fields: "_".join(fields) or "plain")
def test_values_with_another_head_dim(fl: ModuleType, fields: dict[str, Any]) -> None:
    q, k, v = LATENT
    assert fl.which(q, k, v, **fields) == "hopper_head_dims", "the virtual GPU is a Hopper GPU"
    assert fl.which(q[:, ::-1], k, v, **fields) == "head_dims", "TMA has no strides below 0"
    expected, expected_lse = attention_and_lse(q, k, v, **fields)
    for kernel in ("hopper_head_dims", "head_dims"):
        out = np.full((1, 130, 4, 128), np.nan, np.float16)
        result, lse = fl.forward(q, k, v, **fields, return_lse=True, kernel=kernel, out=out)
        assert result is out
        assert_close(out, expected)
        assert_close(lse, expected_lse)
    assert_close(fl.forward(q, k, v, **fields), expected)


def test_packed_values_with_another_head_dim(fl: ModuleType) -> None:
    q, k, v = (array[0] for array in LATENT)
    out = fl.forward(q, k, v, cu_seqlens_q=[0, 50, 130], causal=True)
    for rows in (slice(50), slice(50, 130)):
        assert_close(out[rows], attention_and_lse(q[None, rows], k[None, rows], v[None, rows], causal=True)[0][0])


V_SIZE = "v.shape[3] (head_dim of v, other than q's)"


@pytest.mark.parametrize(
    ("given", "words"),
    [
        ({"v": LATENT[2][..., :64]}, f"q.shape[3] (head_dim) is 192, and {V_SIZE} is 64; allowed: equal sizes, "),
        ({"v": LATENT[2][..., :64], "causal": True}, "is 64; allowed: equal sizes, 192 with 128"),
        ({"v": LATENT[2][..., :0]}, "v has shape (1, 130, 4, 0); its head_dim, shape[3], must be at least 1"),
        ({"v": LATENT[2][:, :64]}, "v has shape (1, 64, 4, 128); only head_dim, shape[3], may differ"),
        ({"out": np.empty((1, 130, 4, 192), np.float16)}, "it must be that of q with v's head_dim, (1, 130, 4, 128)"),
        ({"kernel": "16"}, f"{V_SIZE} is not supported by 16_overlapped_softmax; give v the head_dim of q, or use "),
        ({"kernel": "head_dims", "config": "128x32"}, "has no configuration '128x32' for fp16; it has 128x64"),
        ({"dropout_p": 0.1, "kernel": "hopper_head_dims"}, "dropout_p is not supported by hopper_head_dims"),
    ],
    ids=lambda given: "_".join(given) if isinstance(given, dict) else "",
)  # fmt: skip
def test_other_head_dims_of_values_are_refused(fl: ModuleType, given: dict[str, Any], words: str) -> None:
    q, k, v = LATENT
    with pytest.raises(ValueError, match=re.escape(words)):
        fl.forward(**{"q": q, "k": k, "v": v} | given)


def test_gradients_and_decoding_refuse_another_head_dim_of_values(fl: ModuleType) -> None:
    q, k, v = (array[:, :128] for array in LATENT)
    out, lse = fl.forward(q, k, v, return_lse=True)
    with pytest.raises(ValueError, match=re.escape(f"{V_SIZE} is not supported by B")):
        fl.backward(out, q, k, v, out, lse)
    with pytest.raises(ValueError, match=re.escape("(head_dim of v, other than q's) is not supported by D")):
        fl.decode(q[:, :1], k, v)


@pytest.mark.parametrize("fields", [{}, {"causal": True}, *FIELDS[-4:]], ids=lambda fields: "_".join(fields) or "plain")
def test_packed_sequences(fl: ModuleType, fields: dict[str, Any]) -> None:
    of_q, of_k = [0, 10, 10, 100], [0, 7, 70, 130]
    arrays = Q[0, :100], K[0, :130], V[0, :130]
    packed = {"cu_seqlens_q": of_q, "cu_seqlens_k": np.array(of_k, np.int32), "max_seqlen_q": 128, **fields}
    packed["return_lse"] = True
    if which_or_refusal(fl, *arrays, **packed) is None:
        return
    out, lse = fl.forward(*arrays, **packed)
    assert (lse.shape, lse.dtype) == ((4, 100), np.float32)
    for i in range(3):
        rows, keys = slice(of_q[i], of_q[i + 1]), slice(of_k[i], of_k[i + 1])
        one = Q[:, rows], K[:, keys], V[:, keys]
        expected, expected_lse = attention_and_lse(*one, **fields, first_batch=i)
        assert_close(out[rows], expected[0])
        assert_close(lse[:, rows], expected_lse[0])


def test_dropout_drops_by_position(fl: ModuleType) -> None:
    """NumPy has its own Philox, so this also compares the two. V is the identity, so that `out` shows the mask."""
    assert philox4x32_10([np.uint64(0)] * 4, 0) == [0x6627E8D5, 0xE169C58D, 0xBC57AC4C, 0x9B00DBD8]
    zeros, one_hot = np.zeros_like(Q[:, :40]), np.zeros((1, 128, 4, 128), np.float16)
    one_hot[0, range(128), :, range(128)] = 1
    arguments = {"dropout_p": 0.5, "dropout_seed": 3}
    arrays = zeros, np.zeros_like(one_hot), one_hot
    assert fl.which(*arrays, **arguments) == "head_dims", "the last one that has dropout"
    out, lse = fl.forward(*arrays, **arguments, return_lse=True)
    for head in range(4):
        kept = random_bytes(3, 0, head, 40, 128) < 128
        assert np.array_equal(out[0, :, head], kept / 64)
    assert_close(lse, np.full(lse.shape, np.log(128)))
    assert np.array_equal(fl.forward(*arrays, dropout_p=0.0, dropout_seed=3), np.full_like(out, 1 / 128))
    assert not np.array_equal(fl.forward(*arrays, **arguments, dropout_offset=1), out)


def test_lse_of_a_kernel_that_does_not_write_it(fl: ModuleType) -> None:
    with pytest.raises(ValueError, match=r"^return_lse=True is not supported by 07_ldmatrix; leave it out, or use "):
        fl.forward(Q, K, V, kernel=7, return_lse=True)
    out, lse = fl.forward(Q, K, V, kernel="log_sum_exp", return_lse=True)
    assert_close(lse, attention_and_lse(Q, K, V)[1])
    assert np.array_equal(out, fl.forward(Q, K, V, kernel="log_sum_exp"))


PACKED = {"q": Q[0], "k": K[0], "v": V[0]}
REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "softcap below 0": ({"softcap": -1}, ValueError, "softcap -1 is out of range; allowed: "),
    "softcap type": ({"softcap": True}, TypeError, "softcap is True; allowed: "),
    "dropout of all": ({"dropout_p": 1.0}, ValueError, "dropout_p 1 is out of range; allowed: 0 to 0.99609375"),
    "dropout type": ({"dropout_p": "0.1"}, TypeError, "dropout_p is '0.1'; allowed: "),
    "seed": ({"dropout_seed": -1}, ValueError, "dropout_seed is -1; allowed: "),
    "seed type": ({"dropout_seed": 1.5}, TypeError, "dropout_seed is 1.5; allowed: "),
    "slopes dtype": ({"alibi_slopes": np.ones(4)}, TypeError, "alibi_slopes has dtype float64"),
    "sinks shape": ({"sinks": SINKS[:3]}, ValueError, "sinks has shape (3)"),
    "sinks strides": ({"sinks": np.repeat(SINKS, 2)[::2]}, ValueError, "sinks has strides (2)"),
    "lse type": ({"return_lse": 1}, TypeError, "return_lse is 1; allowed: "),
    "no sums": ({"max_seqlen_q": 3}, ValueError, "max_seqlen_q is given, but cu_seqlens_q is None"),
    "shape": ({"cu_seqlens_q": [0, 256]}, ValueError, "q has shape (1, 256, 4, 128); with cu_seqlens_q"),
    "no shape": (PACKED, ValueError, "q has shape (256, 4, 128), of 3 dimensions"),
    "rows": (PACKED | {"cu_seqlens_q": [0, 300]}, ValueError, "q has 256 rows, and cu_seqlens_q ends with 300"),
    "keys": (
        PACKED | {"cu_seqlens_q": [0, 256], "cu_seqlens_k": [0, 255]},
        ValueError,
        "k has 256 rows, and cu_seqlens_k ends with 255",
    ),
    "start": (PACKED | {"cu_seqlens_q": [1, 256]}, ValueError, "cu_seqlens_q is [1, 256]; it must begin with 0"),
    "fall": (PACKED | {"cu_seqlens_q": [0, 256, 20]}, ValueError, "cu_seqlens_q decreases from 256 to 20"),
    "numbers": (
        PACKED | {"cu_seqlens_q": [0, 256], "cu_seqlens_k": [0, 3, 256]},
        ValueError,
        "cu_seqlens_k has 3 numbers, and cu_seqlens_q 2",
    ),
    "longest": (
        PACKED | {"cu_seqlens_q": [0, 256], "max_seqlen_k": 3},
        ValueError,
        "max_seqlen_k is 3, but the longest sequence has 256",
    ),
    "lengths": (
        PACKED | {"cu_seqlens_q": [0, 256], "lengths": [256]},
        ValueError,
        "lengths and cu_seqlens_q are given",
    ),
}


@pytest.mark.parametrize("case", REFUSED)
@pytest.mark.parametrize("function", ["forward", "which"])
def test_refused(fl: ModuleType, function: str, case: str) -> None:
    change, error, message = REFUSED[case]
    with pytest.raises(error, match="^" + re.escape(message)):
        getattr(fl, function)(**({"q": Q, "k": K, "v": V} | change))
