"""The Python package on the virtual GPU, with NumPy arrays."""

from __future__ import annotations

import ast
import inspect
import pickle
import re
import subprocess
import threading
from math import lcm
from pathlib import Path
from types import ModuleType
from typing import Any

import ml_dtypes
import numpy as np
import pytest
from float64_attention import attention as reference
from kernel_files import kernel_files
from numpy.typing import DTypeLike
from python_package import ROOT, run_python

KERNELS = [kernel for kernel in kernel_files(ROOT) if not kernel.is_backward]  # forward() refuses those
IN_16_BITS = [kernel.stem for kernel in KERNELS if kernel.stem != "fp8"]
FOR_FEW_QUERIES = [kernel.stem for kernel in KERNELS if kernel.is_decoding]
NAMES = [kernel.stem for kernel in KERNELS]
NEWEST = [kernel.stem for kernel in KERNELS if kernel.number][-1]
NEWEST_ANYWHERE = [kernel.stem for kernel in KERNELS if kernel.number and "/hopper/" not in kernel.file][-1]
DTYPES = [np.dtype(np.float16), np.dtype(ml_dtypes.bfloat16)]
WINDOWS = "allowed: None, or (left, right), each -1 (no limit) to 2147483647"
# Whole tiles of every version, but for those that are made for a few queries.
QUERIES, KEYS = 256, 512
FEW_QUERIES = 8


def normal(*shape: int, dtype: DTypeLike = np.float16, seed: int = 0) -> np.ndarray:
    return np.random.default_rng(seed).standard_normal(shape).astype(dtype)


def inputs(
    dtype: DTypeLike = np.float16,
    batch: int = 2,
    heads: int = 3,
    keys: int = KEYS,
    head_dim: int = 128,
    head_dim_v: int | None = None,
) -> list[np.ndarray]:
    shapes = (QUERIES, head_dim), (keys, head_dim), (keys, head_dim_v or head_dim)
    return [normal(batch, rows, heads, size, dtype=dtype, seed=seed) for seed, (rows, size) in enumerate(shapes)]


def inputs_for(kernel: str, dtype: DTypeLike, keys: int, *head_dims: int) -> list[np.ndarray]:
    q, k, v = inputs(dtype, 1, 2, keys, *head_dims)
    return [q[:, :FEW_QUERIES].copy() if kernel in FOR_FEW_QUERIES else q, k, v]


def assert_close(out: np.ndarray, expected: np.ndarray) -> None:
    # Kernels round twice, each time by at most half an eps: P before the product with V, and the output. This is
    # doubled.
    allowed = 2 * float(ml_dtypes.finfo(out.dtype).eps) * np.abs(expected).max()
    error = np.abs(out.astype(np.float64) - expected).max()
    assert error <= allowed, f"{error} > {allowed}"  # false for NaN


def same_bits(a: np.ndarray, b: np.ndarray) -> bool:
    return np.array_equal(a.view(np.uint16), b.view(np.uint16))


# ---- what it computes ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", IN_16_BITS)
def test_every_configuration_of_every_kernel(fl: ModuleType, kernel: str, dtype: np.dtype) -> None:
    of_dtype = [config for config in fl.configs(kernel) if config.dtype == dtype.name]
    assert of_dtype
    for sizes in {(config.head_dim, config.head_dim_v) for config in of_dtype}:
        configs = [config for config in of_dtype if (config.head_dim, config.head_dim_v) == sizes]
        q, k, v = inputs_for(kernel, dtype, lcm(128, *(config.block_kv for config in configs)), *sizes)
        before = [array.copy() for array in (q, k, v)]
        expected = reference(q, k, v)
        for config in configs:
            out = fl.forward(q, k, v, kernel=kernel, config=config.name)
            assert (out.shape, out.dtype, type(out)) == (expected.shape, dtype, np.ndarray)
            assert_close(out, expected)
        assert same_bits(fl.forward(q, k, v, kernel=kernel), fl.forward(q, k, v, kernel=kernel, config=configs[0].name))
        assert all(same_bits(array, copy) for array, copy in zip((q, k, v), before, strict=True))


def in_8_bits(heads: int = 3) -> tuple[list[np.ndarray], np.ndarray]:
    """q, k and v as e4m3, and their scales."""
    arrays = inputs(np.float32, heads=heads)
    scales = np.stack([np.abs(array).max(axis=(1, 3)) / 448 for array in arrays]).astype(np.float32)
    rounded = [array / scale[:, None, :, None] for array, scale in zip(arrays, scales, strict=True)]
    return [array.astype(ml_dtypes.float8_e4m3fn) for array in rounded], scales


def test_8_bits_with_a_scale_for_each_head(fl: ModuleType) -> None:
    arrays, scales = in_8_bits()
    numbers = [a.astype(np.float32) * s[:, None, :, None] for a, s in zip(arrays, scales, strict=True)]
    expected = reference(*numbers)
    configs = fl.configs("fp8")
    assert [config.dtype for config in configs] == ["float8_e4m3fn"]
    for config in configs:
        out = fl.forward(*arrays, kernel="fp8", config=config.name, scales=scales)
        assert (out.shape, out.dtype) == (arrays[0].shape, np.float16)
        assert np.linalg.norm(out - expected) < 0.04 * np.linalg.norm(expected)  # from rounding P: 1/17 at most
    assert same_bits(fl.forward(*(array.view(np.uint8) for array in arrays), kernel="fp8", scales=scales), fl.forward(
        *arrays, kernel="fp8", scales=scales))  # fmt: skip


@pytest.mark.parametrize(
    ("changed", "error", "words"),
    [
        ({"scales": None}, TypeError, "q has dtype float8_e4m3fn, and scales is None; give a float32 array of shape"),
        ({"scales": np.ones((3, 2, 3))}, TypeError, "scales has dtype float64; it must be float32"),
        ({"scales": np.ones((3, 2), np.float32)}, ValueError, "scales has shape (3, 2); it must be [3, batch, heads"),
        ({"scales": np.ones((3, 3, 2), np.float32).transpose(0, 2, 1)}, ValueError, "scales has strides ("),
        ({"out": np.empty((2, QUERIES, 3, 128), ml_dtypes.bfloat16)}, TypeError, "out must be float16"),
        ({"kernel": "27"}, ValueError, "kernel: 27_three_consumers has no configuration for e4m3; use kernel=\"fp8\""),
        ({"kernel": None}, ValueError, "has no configuration for e4m3; use kernel=\"fp8\""),
        ({"scales": np.ones((3, 2, 3), ">f4")}, TypeError, "scales has dtype >f4; it must be float32"),
        ({"q": normal(2, QUERIES, 3, 128)}, TypeError, "k has dtype float8_e4m3fn and q has dtype float16; they"),
    ],
)
def test_8_bits_that_are_refused(
    fl: ModuleType, changed: dict[str, Any], error: type[Exception], words: str
) -> None:
    (q, k, v), scales = in_8_bits()
    with pytest.raises(error) as refused:
        fl.forward(**{"q": q, "k": k, "v": v, "kernel": "fp8", "scales": scales} | changed)
    assert words in str(refused.value)


def test_scales_that_lie_where_they_cannot(fl: ModuleType) -> None:
    (q, k, v), scales = in_8_bits()
    memory = np.zeros(q.size * 2 + 16, np.uint8)
    out = memory[-memory.ctypes.data % 16 :][: q.size * 2].view(np.float16).reshape(q.shape)
    inside = out.reshape(-1)[1024:].view(np.float32)[: scales.size].reshape(scales.shape)
    inside[:] = scales
    with pytest.raises(ValueError, match=r"^out, at 0x[0-9a-f]+ to 0x[0-9a-f]+, overlaps scales, at "):
        fl.forward(q, k, v, kernel="fp8", scales=inside, out=out)
    odd = memory.view(np.uint16)[1 : 1 + scales.size * 2].view(np.float32).reshape(scales.shape)
    odd[:] = scales
    with pytest.raises(ValueError, match=r"^scales begins at address 0x[0-9a-f]+, which is not a multiple of 4 bytes"):
        fl.forward(q, k, v, kernel="fp8", scales=odd)


def test_16_bits_take_no_scales(fl: ModuleType) -> None:
    q, k, v = inputs()
    with pytest.raises(TypeError, match="scales is given, and q has dtype float16; leave it out"):
        fl.forward(q, k, v, scales=np.ones((3, 2, 3), np.float32))
    with pytest.raises(ValueError, match=r" fp8 .* fp16; leave kernel out$"):
        fl.forward(q, k, v, kernel="fp8")


def test_the_newest_kernel_is_the_default(fl: ModuleType) -> None:
    assert fl.kernels() == NAMES
    assert fl.configs() == fl.configs(NEWEST_ANYWHERE)
    q, k, v = inputs()
    assert same_bits(fl.forward(q, k, v), fl.forward(q, k, v, kernel=NEWEST))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
@pytest.mark.parametrize("kernel", IN_16_BITS)
def test_what_is_not_finite_stays_in_its_row_or_head(fl: ModuleType, kernel: str, dtype: np.dtype) -> None:
    """The rows that share a warp with it, and the decision about their maxima, are right: docs/numerics.md."""
    q, k, v = inputs_for(kernel, dtype, keys=lcm(128, *(config.block_kv for config in fl.configs(kernel))))
    expected = reference(q, k, v)
    row = q.shape[1] // 7 + 1  # not at the edge of a tile
    for tensor, value in (("q", np.nan), ("q", np.inf), ("k", np.nan), ("v", np.nan)):
        spoilt = {"q": q.copy(), "k": k.copy(), "v": v.copy()}
        spoilt[tensor][0, row, 1, 5] = value
        out = fl.forward(**spoilt, kernel=kernel)
        assert_close(out[:, :, :1], expected[:, :, :1])
        if tensor == "q":
            others = np.arange(q.shape[1]) != row
            assert np.isnan(out[0, row, 1].astype(np.float32)).all(), (tensor, value)
            assert_close(out[:, others], expected[:, others])
        else:
            columns = slice(None) if tensor == "k" else 5
            assert np.isnan(out[0, :, 1, columns].astype(np.float32)).all(), tensor


@pytest.mark.parametrize("name", ["7", "07", "07_ldmatrix", 7, np.int64(7)])
def test_names_of_a_kernel(fl: ModuleType, name: str | int) -> None:
    # 02 sums in a different order, so its output shows which one ran.
    q, k, v = inputs()
    assert same_bits(fl.forward(q, k, v, kernel=name), fl.forward(q, k, v, kernel="07_ldmatrix"))
    assert not same_bits(fl.forward(q, k, v, kernel=name), fl.forward(q, k, v, kernel="02"))
    assert fl.configs(name) == fl.configs("07_ldmatrix") != fl.configs("02")


@pytest.mark.parametrize("scale", [0.01, 1, np.float32(0.3)])
def test_softmax_scale(fl: ModuleType, scale: float) -> None:
    q, k, v = inputs()
    assert_close(fl.forward(q, k, v, softmax_scale=scale), reference(q, k, v, float(scale)))


# ---- arrays ----


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_slices_of_packed_arrays(fl: ModuleType, dtype: np.dtype) -> None:
    packed = normal(2, QUERIES, 3, 4, 128, dtype=dtype)
    q, k, v = (packed[:, :, i] for i in range(3))
    expected = fl.forward(*(np.ascontiguousarray(array) for array in (q, k, v)))
    assert same_bits(fl.forward(q, k, v), expected)
    heads_first = np.ascontiguousarray(packed.transpose(2, 0, 3, 1, 4))  # [3, batch, heads, seq_len, head_dim]
    assert same_bits(fl.forward(*(array.transpose(0, 2, 1, 3) for array in heads_first)), expected)


def test_strides_that_repeat_or_go_back(fl: ModuleType) -> None:
    q, k, v = inputs()
    k, v = (np.broadcast_to(array[:, :, :1], array.shape) for array in (k, v))  # one head for all, and read-only
    q = q[::-1]
    expected = fl.forward(*(np.ascontiguousarray(array) for array in (q, k, v)), kernel=NEWEST_ANYWHERE)
    assert same_bits(fl.forward(q, k, v), expected), "TMA has no strides below 0, so this is the version"


@pytest.mark.parametrize("kernel", ["18", "22", NEWEST])
def test_tma_does_not_go_back(fl: ModuleType, kernel: str, capfd: pytest.CaptureFixture[str]) -> None:
    instead = f"; give a copy, or a kernel that needs no Hopper GPU: {NEWEST_ANYWHERE}"
    with pytest.raises(ValueError, match=f"^q has stride -384 in dimension 1, but TMA, .*{instead}$"):
        fl.forward(Q[:, ::-1], K, V, kernel=kernel)
    out = np.empty_like(Q)[..., ::-1, :]
    if kernel == "18":  # which stores without TMA
        assert same_bits(fl.forward(Q, K, V, kernel=kernel, out=out), fl.forward(Q, K, V, kernel=kernel))
    else:
        with pytest.raises(ValueError, match=r"^out has stride -128 in dimension 2, "):
            fl.forward(Q, K, V, kernel=kernel, out=out)
    assert capfd.readouterr().err == "", "the exception says it"


def test_8_bits_do_not_go_back(fl: ModuleType) -> None:
    (q, k, v), scales = in_8_bits()
    with pytest.raises(ValueError, match=r"^v has stride -128 in dimension 2, .*; give a copy$"):
        fl.forward(q, k, v[:, :, ::-1], kernel="fp8", scales=scales)


def test_hopper_without_tma_goes_back(fl: ModuleType) -> None:
    back = Q[:, ::-1]
    assert same_bits(fl.forward(back, K, V, kernel="17"), fl.forward(np.ascontiguousarray(back), K, V, kernel="17"))


def test_the_stride_of_a_single_batch_entry_means_nothing(fl: ModuleType) -> None:
    q, k, v = inputs(batch=1)
    odd = [np.lib.stride_tricks.as_strided(array, strides=(6, *array.strides[1:])) for array in (q, k, v)]
    assert same_bits(fl.forward(*odd), fl.forward(q, k, v))


def test_one_array_for_all_inputs(fl: ModuleType) -> None:
    q = inputs()[0]
    assert_close(fl.forward(q, q, q), reference(q, q, q))


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_is_a_slice_of_the_packed_array(fl: ModuleType, dtype: np.dtype) -> None:
    packed = normal(2, QUERIES, 4, 3, 128, dtype=dtype)
    q, k, v, out = (packed[:, :, i] for i in range(4))
    expected = fl.forward(q, k, v)
    assert not np.shares_memory(out, packed[:, :, :3])
    assert same_bits(np.ascontiguousarray(fl.forward(q, k, v, out=out)), expected)
    # Backwards.
    back = [array[:, ::-1, ::-1] for array in (q, k, v, out)]
    expected = fl.forward(*back[:3], kernel=NEWEST_ANYWHERE)
    assert same_bits(np.ascontiguousarray(fl.forward(*back[:3], out=back[3])), expected)


@pytest.mark.parametrize("dtype", DTYPES, ids=str)
def test_out_is_written_in_place(fl: ModuleType, dtype: np.dtype) -> None:
    q, k, v = inputs(dtype)
    around = np.full((2, QUERIES + 2, 5, 128), 7, dtype)
    out = around[:, 1:-1, 1:-1]
    assert fl.forward(q, k, v, out=out) is out
    assert same_bits(np.ascontiguousarray(out), fl.forward(q, k, v))
    out[:] = 7
    assert (around == 7).all()


def test_threads_take_turns(fl: ModuleType) -> None:
    q, k, v = inputs()
    outs: list[np.ndarray] = []
    threads = [threading.Thread(target=lambda: outs.append(fl.forward(q, k, v))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    expected = fl.forward(q, k, v)
    assert len(outs) == 4 and all(same_bits(out, expected) for out in outs)


# ---- refused arguments ----


def misaligned(array: np.ndarray) -> np.ndarray:
    """A copy that begins 8 bytes after a multiple of 16."""
    memory = np.empty(array.nbytes + 32, np.uint8)
    start = -memory.ctypes.data % 16 + 8
    copy = memory[start : start + array.nbytes].view(array.dtype).reshape(array.shape)
    copy[:] = array
    return copy


def padded(array: np.ndarray, elements: int) -> np.ndarray:
    """A copy whose heads are this many elements further apart."""
    wide = np.zeros((*array.shape[:3], 128 + elements), array.dtype)
    wide[..., :128] = array
    return wide[..., :128]


def every_third_byte(array: np.ndarray) -> np.ndarray:
    """A view of elements that are 3 bytes apart."""
    record = np.zeros(array.shape, np.dtype([("x", array.dtype), ("y", np.uint8)]))
    return record["x"]


def overlapping_rows(array: np.ndarray) -> np.ndarray:
    b, s, h, d = array.strides
    return np.lib.stride_tricks.as_strided(array, strides=(b, s // 2 // 16 * 16, h, d))


def repeated(array: np.ndarray) -> np.ndarray:
    return np.lib.stride_tricks.as_strided(array, strides=(0, *array.strides[1:]))


def read_only(array: np.ndarray) -> np.ndarray:
    array.flags.writeable = False
    return array


Q, K, V = inputs()
PACKED = normal(2, KEYS, 6, 128)


def cut(*index: object) -> dict[str, np.ndarray]:
    return {"q": Q[index], "k": K[index], "v": V[index]}


REFUSED: dict[str, tuple[dict[str, Any], type[Exception], str]] = {
    "no array": ({"q": [1, 2]}, TypeError, "q is of type list; allowed: "),
    "a scalar": ({"v": 1.5}, TypeError, "v is of type float; "),
    "dtype": ({"q": Q.astype(np.float32)}, TypeError, "q has dtype float32; allowed: float16, bfloat16"),
    "dtype without DLPack": ({"q": Q.astype(object)}, TypeError, "q has dtype object; allowed: float16, bfloat16"),
    "long dtype": (
        {"k": K.astype(np.longdouble)},
        TypeError,
        "k has dtype float128 and q has dtype float16",
    ),
    "dtype of 16 bits": ({"k": K.view(np.int16)}, TypeError, "k has dtype int16 and q has dtype float16"),
    "byte order": ({"q": Q.astype(">f2")}, TypeError, "q has dtype >f2; "),
    "two dtypes": (
        {"v": V.astype(ml_dtypes.bfloat16)},
        TypeError,
        "v has dtype bfloat16 and q has dtype float16",
    ),
    "3 dimensions": (
        {"q": Q[0]},
        ValueError,
        "q has shape (256, 3, 128), of 3 dimensions; it must be [batch, seq_len, ",
    ),
    "no dimension": (
        {"k": np.array(1, np.float16)},
        ValueError,
        "k has shape (), of 0 dimensions",
    ),
    "k and v": ({"v": V[:, :256]}, ValueError, "k has shape (2, 512, 3, 128) and v has shape (2, 256, 3, 128)"),
    "heads": (
        {"q": Q[:, :, :2]},
        ValueError,
        "k.shape[2] (heads of k and v, other than q's) 3 does not divide q.shape[2] (heads) 2: ",
    ),
    "fewer heads": (
        {"k": K[:, :, :1], "v": V[:, :, :1], "kernel": 7},
        ValueError,
        "k.shape[2] (heads of k and v, other than q's) is not supported by 07_ldmatrix; ",
    ),
    "no heads of k": (
        {"k": K[:, :, :0], "v": V[:, :, :0]},
        ValueError,
        "k has shape (2, 512, 0, 128); ",
    ),
    "batch": (
        {"q": Q[:1]},
        ValueError,
        "q has shape (1, 256, 3, 128) and k has shape (2, 512, 3, 128); ",
    ),
    "head_dim": (cut(..., slice(40)), ValueError, "q.shape[3] (head_dim) is 40; allowed: 64, "),
    "no head_dim": (cut(..., slice(0)), ValueError, "q.shape[3] (head_dim) is 0; allowed: 1 or more"),
    "no batch": (cut(slice(0)), ValueError, "q.shape[0] (batch) 0 is out of range; allowed: 1 to 2147483647"),
    "no heads": (cut(..., slice(0), slice(None)), ValueError, "q.shape[2] (heads) 0 is out of range; allowed: 1 to "),
    "no queries": ({"q": Q[:, :0]}, ValueError, "q.shape[1] (seq_len) 0 is out of range; allowed: 1 to 2147483647"),
    "no keys": ({"k": K[:, :0], "v": V[:, :0]}, ValueError, "k.shape[1] (seq_len of k and v) 0 is out of range; allo"),
    "queries": (
        {"q": Q[:, :200], "kernel": 7},
        ValueError,
        "q.shape[1] (seq_len) 200 is not a multiple of 64, the query rows of a tile of 07_ldmatrix (configuration "
        "64x64); use 192 or 256",
    ),
    "keys": (
        {"k": K[:, :40], "v": V[:, :40], "kernel": 7},
        ValueError,
        "k.shape[1] (seq_len of k and v) 40 is not a multiple of 64, the keys of a tile of 07_ldmatrix (configuration "
        "64x64); use 64",
    ),
    "head_dim apart": (
        {"q": np.asfortranarray(Q)},
        ValueError,
        "q has stride 1536 in its last dimension",
    ),
    "stride": (
        {"k": padded(K, 4)},
        ValueError,
        "k has stride 396 in dimension 1; allowed: multiples of 8 ",
    ),
    "bytes apart": (
        {"q": every_third_byte(Q)},
        ValueError,
        "q has a stride of 3 bytes in dimension 3; ",
    ),
    "shape of out": (
        {"out": np.empty_like(K)},
        ValueError,
        "out has shape (2, 512, 3, 128)",
    ),
    "dtype of out": (
        {"out": Q.astype(np.float32)},
        TypeError,
        "out has dtype float32 and q has dtype float16",
    ),
    "masked": (
        {"v": np.ma.masked_greater(V, 0)},
        TypeError,
        "v is a masked array, ",
    ),
    "out meets itself": (
        {"out": overlapping_rows(np.empty_like(Q))},
        ValueError,
        "out has strides (98304, 192, 128, 1)",
    ),
    "out repeats": (
        {"out": repeated(np.empty_like(Q))},
        ValueError,
        "out has strides (0, 384, 128, 1) with shape (2, ",
    ),
    "out is read-only": ({"out": read_only(np.empty_like(Q))}, ValueError, "out is read-only"),
    "scale 0": ({"softmax_scale": 0}, ValueError, "softmax_scale is 0; allowed: "),
    "scale below 0": ({"softmax_scale": -1.5}, ValueError, "softmax_scale is -1.5; allowed: "),
    "scale NaN": ({"softmax_scale": float("nan")}, ValueError, "softmax_scale is nan; allowed: "),
    "scale too large": ({"softmax_scale": 1e39}, ValueError, "softmax_scale is 1e+39; allowed: "),
    "scale beyond floats": ({"softmax_scale": 10**400}, ValueError, "softmax_scale is 10000000"),
    "scale too small": ({"softmax_scale": 1e-60}, ValueError, "softmax_scale is 1e-60; allowed: "),
    "scale no number": ({"softmax_scale": "large"}, TypeError, "softmax_scale is 'large'; allowed: "),
    "kernel": (
        {"kernel": "42"},
        ValueError,
        "kernel: there is no version '42'; there are 01_naive, 02_online_softmax, ",
    ),
    "kernel number": ({"kernel": -1}, ValueError, "kernel: there is no version '-1'; there are "),
    "kernel name": (
        {"kernel": "07_swizzle"},
        ValueError,
        "kernel: there is no version '07_swizzle'; did you mean 06_swizzle? If not, there are ",
    ),
    "causal": ({"causal": True, "kernel": 7}, ValueError, "causal=True is not supported by 07_ldmatrix; "),
    "window": ({"window": (5, -1), "kernel": 7}, ValueError, "window is not supported by 07_ldmatrix; "),
    "window to the right": ({"window": (-1, 5), "kernel": 7}, ValueError, "window is not supported by 07_ldmatrix; "),
    "window below -1": ({"window": (-2, 0)}, ValueError, f"window is (-2, 0); {WINDOWS}"),
    "window beyond 64 bits": ({"window": (0, 2**70)}, ValueError, f"window is (0, {2**70}); {WINDOWS}"),
    "one side of a window": ({"window": (5,)}, TypeError, f"window is (5,); {WINDOWS}"),
    "window as a number": ({"window": 5}, TypeError, f"window is 5; {WINDOWS}"),
    "window type": ({"window": (2.5, 0)}, TypeError, f"window is (2.5, 0); {WINDOWS}"),
    "window of truth": ({"window": (True, 0)}, TypeError, f"window is (True, 0); {WINDOWS}"),
    "lengths": ({"lengths": [5, 256], "kernel": 7}, ValueError, "lengths is not supported by 07_ldmatrix; "),
    "lengths of k": ({"lengths_kv": [5, 512], "kernel": 7}, ValueError, "lengths_kv is not supported by 07_ldmatrix; "),
    "one length": ({"lengths": [5]}, ValueError, "lengths has 1 number, and q.shape[0] (batch) is 2"),
    "no lengths": ({"lengths": []}, ValueError, "lengths is empty"),
    "length": (
        {"lengths": [5, 257]},
        ValueError,
        "lengths 257 is out of range; allowed: 0 to q.shape[1] (seq_len) 256",
    ),
    "length beyond 64 bits": ({"lengths": [5, 2**70]}, ValueError, f"lengths is {2**70}; allowed: 0 to "),
    "no list of lengths": ({"lengths": 5}, TypeError, "lengths is 5; allowed: "),
    "length type": ({"lengths": [5, True]}, TypeError, "lengths is True; allowed: whole numbers"),
    "causal type": ({"causal": 1}, TypeError, "causal is 1; allowed: True, False"),
    "kernel empty": ({"kernel": ""}, TypeError, "kernel is ''; allowed: None, or one of 01_naive, "),
    "kernel type": ({"kernel": 7.0}, TypeError, "kernel is 7.0; allowed: "),
    "config": ({"config": "1x1", "kernel": 7}, ValueError, "config: 07_ldmatrix has no configuration '1x1' for fp16"),
    "config empty": ({"config": ""}, TypeError, "config is ''; allowed: "),
    "config type": ({"config": 64}, TypeError, "config is 64; allowed: "),
}


@pytest.mark.parametrize("case", REFUSED)
def test_refused(fl: ModuleType, case: str) -> None:
    change, error, message = REFUSED[case]
    arguments = {"q": Q, "k": K, "v": V} | change
    with pytest.raises(error, match="^" + re.escape(message)):
        fl.forward(arguments.pop("q"), arguments.pop("k"), arguments.pop("v"), **arguments)


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"v": misaligned(V)}, "^v begins at address 0x[0-9a-f]+8, which is not a multiple of 16 bytes; "),
        ({"out": Q}, "^out, at 0x[0-9a-f]+ to 0x[0-9a-f]+, overlaps q, at 0x[0-9a-f]+ to 0x[0-9a-f]+; "),
        ({"out": K[:, 128:384]}, "^out, at .* overlaps k, at "),
        ({"q": PACKED[:, :QUERIES, :3], "out": PACKED[:, :QUERIES, 2:5]}, "^out, at .* overlaps q, at "),
        ({"q": PACKED[:, :QUERIES, :3], "out": PACKED[:, 1 : QUERIES + 1, :3]}, "^out, at .* overlaps q, at "),
    ],
)
def test_refused_with_its_address(fl: ModuleType, change: dict[str, np.ndarray], message: str) -> None:
    arguments = {"q": Q, "k": K, "v": V} | change
    with pytest.raises(ValueError, match=message):
        fl.forward(**arguments)


@pytest.mark.parametrize(("axis", "name"), [(0, "batch"), (2, "heads")])
def test_more_than_one_launch_can_have(fl: ModuleType, axis: int, name: str) -> None:
    shape = [1, 64, 1, 128]
    shape[axis] = 70_000
    q = np.broadcast_to(normal(1, 64, 1, 128), shape)
    message = rf"^q.shape\[{axis}\] \({name}\) 70000 is more than the 65535 .* use 65535 or fewer"
    with pytest.raises(ValueError, match=message):
        fl.forward(q, q, q)


def test_a_workspace_that_does_not_fit(fl: ModuleType) -> None:
    q = normal(1, 32_768, 2, 128)
    with pytest.raises(
        MemoryError, match=r"^01_naive needs 12.9 GB .* for its workspace, but 8.6 GB of 8.6 GB are free"
    ):
        fl.forward(q, q, q, kernel="01")
    assert_close(fl.forward(Q, K, V, kernel="01"), reference(Q, K, V))  # the error does not persist


def test_only_a_gpu_has_a_clock(fl: ModuleType) -> None:
    with pytest.raises(RuntimeError, match=r"virtual GPU, which has no clock; .*use forward\(\)"):
        fl.forward_timed(Q, K, V)


# ---- devices and findings ----


def test_device_info(fl: ModuleType) -> None:
    info = fl.device_info("emulator")
    assert (info.name, info.compute_capability) == ("virtual GPU (sm_90)", "9.0")
    assert info.smem_per_cta_bytes == 227 * 1024
    assert info.memory_free_bytes == info.memory_total_bytes == 8 << 30  # nothing is left of earlier calls
    with pytest.raises(ValueError, match=r"^device is 'tpu'; allowed: "):
        fl.device_info("tpu")
    with pytest.raises(ValueError, match=rf"^device is {10**30}; allowed: "):
        fl.device_info(10**30)
    with pytest.raises(TypeError, match=r"^device is of type float; allowed: "):
        fl.device_info(1.0)
    with pytest.raises(RuntimeError, match=r"GPU 99 does not exist|no NVIDIA driver|no GPU is visible"):
        fl.device_info("gpu:99")


def test_the_virtual_gpus_architecture(package_folder: Path) -> None:
    program = "import flash_ladder; info = flash_ladder.device_info('emulator'); print(info.name, info.sm_count)"
    done = run_python(package_folder, program, FLASH_LADDER_SM="86")
    assert (done.returncode, done.stdout) == (0, "virtual GPU (sm_86) 82\n"), done.stderr
    done = run_python(package_folder, program, FLASH_LADDER_SM_COUNT="3")
    assert (done.returncode, done.stdout) == (0, "virtual GPU (sm_90) 3\n"), done.stderr
    done = run_python(package_folder, program, FLASH_LADDER_SM="eighty")
    assert done.returncode == 1 and "ValueError: FLASH_LADDER_SM=eighty " in done.stderr


FINDING = """
import pickle
import numpy as np
import flash_ladder

q = np.ones((1, 256, 1, 128), np.float16)
texts = []
for _ in range(2):  # the second call finds what the first one found, and nothing that it left behind
    try:
        flash_ladder.forward(q, q, q, kernel="08")
    except flash_ladder.FindingError as error:
        assert str(pickle.loads(pickle.dumps(error))) == str(error)
        assert error.findings[0] in str(error)
        texts.append(str(error))
assert len(texts) == 2 and texts[0] == texts[1], texts
print(texts[0])
print(flash_ladder.device_info("emulator").memory_free_bytes)
"""


def test_a_finding_is_an_exception(package_folder: Path) -> None:
    # A budget so small that the virtual GPU considers the kernel's loop endless.
    done = run_python(package_folder, FINDING, FLASH_LADDER_MAX_INSTRUCTIONS="1000", FLASH_LADDER_THREADS="1")
    assert done.returncode == 0, done.stderr
    assert re.search(r"^endless_loop: ", done.stdout, re.MULTILINE), done.stdout
    assert "08_pipelined_kv.cu:" in done.stdout
    assert done.stdout.endswith(f"\n{8 << 30}\n")


INTERRUPTED = """
import os
import signal
import threading
import numpy as np
import flash_ladder

q = np.ones((4, 4096, 16, 128), np.float16)  # a minute's work, and more
out = np.empty_like(q)
try:
    threading.Timer(1, os.kill, (os.getpid(), signal.SIGINT)).start()
    flash_ladder.forward(q, q, q, out=out, kernel="08")
except KeyboardInterrupt:
    q = q[:1, :64, :1]
    assert (flash_ladder.forward(q, q, q, kernel="08") == 1).all()
    print("interrupted")
"""


def test_a_launch_can_be_interrupted(package_folder: Path) -> None:
    done = run_python(package_folder, INTERRUPTED, timeout=60)
    assert (done.returncode, done.stdout, done.stderr) == (0, "interrupted\n", "")


# ---- the package ----


def test_importing_does_nothing_else(package_folder: Path) -> None:
    program = """
import sys
import flash_ladder
maps = open("/proc/self/maps").read()
print([name for name in ("libcuda.so", "libcudart.so", "libnvidia") if name in maps])
print([name for name in ("numpy", "torch", "cupy", "jax") if name in sys.modules])
"""
    done = run_python(package_folder, program)
    assert (done.returncode, done.stdout) == (0, "[]\n[]\n"), done.stderr


@pytest.mark.parametrize("module", ["_gpu", "_virtual_gpu"])
def test_modules_have_their_own_cuda(package_folder: Path, module: str) -> None:
    """There is no symbol through which they could interfere with each other, or with another library's CUDA runtime."""
    [file] = (package_folder / "flash_ladder").glob(f"{module}.*.so")
    symbols = subprocess.run(["nm", "-D", file], capture_output=True, text=True, check=True).stdout.splitlines()
    defined = [line.split()[-1] for line in symbols if line.split()[-2] not in "Uw"]
    undefined = [line.split()[-1] for line in symbols if line.split()[-2] in "Uw"]
    assert defined == [f"PyInit_{module}"]
    assert "PyList_New" in undefined
    assert [name for name in undefined if "cuda" in name.lower() or re.match("cu[A-Z]", name)] == []


def test_types_are_published(fl: ModuleType, package_folder: Path) -> None:
    folder = package_folder / "flash_ladder"
    assert (folder / "py.typed").exists()
    stub = ast.parse((folder / "_gpu.pyi").read_text(encoding="utf-8"))
    functions = [node for node in stub.body if isinstance(node, ast.FunctionDef)]
    declared = {function.name: [arg.arg for arg in function.args.args] for function in functions}
    for module in (fl._gpu, fl._virtual_gpu):
        # "forward(q: ndarray[…], …) -> …"
        signatures = {name: getattr(module, name).__doc__ for name in dir(module) if not name.startswith("_")}
        assert signatures.keys() == declared.keys()
        for name, signature in signatures.items():
            arguments = signature.partition("(")[2].rpartition(" -> ")[0]
            assert re.findall(r"(?:^|, )(\w+):", re.sub(r"\[[^][]*\]", "", arguments)) == declared[name]
    aliases = ast.parse((folder / "_virtual_gpu.pyi").read_text(encoding="utf-8"))
    imports = [node for node in aliases.body if isinstance(node, ast.ImportFrom)]
    assert {name.name for node in imports for name in node.names} == set(declared)
    for name in fl.__all__:
        assert getattr(fl, name).__doc__
    assert pickle.loads(pickle.dumps(fl.configs())) == fl.configs()


def test_the_operator_of_pytorch_takes_what_forward_takes(fl: ModuleType, package_folder: Path) -> None:
    """Without PyTorch: python_pytorch_test.py calls the operator."""
    module = ast.parse((package_folder / "flash_ladder" / "pytorch.py").read_text(encoding="utf-8"))
    [schema] = [ast.literal_eval(node.value) for node in module.body
                if isinstance(node, ast.Assign) and ast.unparse(node.targets[0]) == "_SCHEMA"]  # fmt: skip
    [function] = [node for node in module.body if isinstance(node, ast.FunctionDef) and node.name == "forward"]
    arguments = schema.strip(" \n(").split(")")[0].replace("*,", "").split(",")
    of_schema = [argument.partition("=")[0].split()[-1] for argument in arguments]
    of_function = [argument.arg for argument in (*function.args.args, *function.args.kwonlyargs)]
    expected = [name for name in inspect.signature(fl.forward).parameters if name != "out"]
    assert of_function == expected
    assert sorted(name.replace("kernel_name", "kernel") for name in of_schema) == sorted(expected)
