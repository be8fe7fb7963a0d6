"""The Python package on a GPU, with arrays of PyTorch, and of CuPy and JAX if they are installed."""

from __future__ import annotations

import ctypes
import itertools
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from kernel_files import kernel_files
from python_package import ROOT, run_python

try:
    import torch
except ImportError:
    WHY_NOT = "PyTorch is not installed"
else:
    WHY_NOT = "" if torch.cuda.is_available() else "PyTorch finds no GPU"

pytestmark = pytest.mark.skipif(bool(WHY_NOT), reason=WHY_NOT)

KERNELS = [kernel for kernel in kernel_files(ROOT) if not kernel.is_backward]  # forward() refuses those
NAMES = [kernel.stem for kernel in KERNELS]
NEWEST = [kernel.stem for kernel in KERNELS if kernel.number][-1]  # on a Hopper GPU
DTYPES = ["float16", "bfloat16"]
# Long enough for another stream to get ahead, in clock cycles: half a second or so.
LONG = 1_000_000_000


def normal(*shape: int, dtype: str = "float16", seed: int = 0) -> torch.Tensor:
    generator = torch.Generator("cuda").manual_seed(seed)
    return torch.randn(shape, generator=generator, device="cuda", dtype=torch.float32).to(getattr(torch, dtype))


def inputs(
    batch: int = 2,
    seq_len: int = 512,
    seq_len_kv: int = 1024,
    heads: int = 3,
    dtype: str = "float16",
    head_dim: int = 128,
    head_dim_v: int | None = None,
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    q = normal(batch, seq_len, heads, head_dim, dtype=dtype, seed=1)
    k = normal(batch, seq_len_kv, heads, head_dim, dtype=dtype, seed=2)
    v = normal(batch, seq_len_kv, heads, head_dim_v or head_dim, dtype=dtype, seed=3)
    return q, k, v


def reference(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, scale: float | None = None) -> torch.Tensor:
    """In float64, by PyTorch."""
    q, k, v = (array.double().transpose(1, 2) for array in (q, k, v))
    return torch.nn.functional.scaled_dot_product_attention(q, k, v, scale=scale).transpose(1, 2)


def assert_close(out: torch.Tensor, expected: torch.Tensor) -> None:
    # Kernels round twice, each time by at most half an eps: P before the product with V, and the output. This is
    # doubled.
    allowed = 2 * torch.finfo(out.dtype).eps * expected.abs().max().item()
    error = (out.double() - expected).abs().max().item()
    assert error <= allowed, f"{error} > {allowed}"  # false for NaN


@pytest.fixture(autouse=True)
def nothing_is_left() -> Iterator[None]:
    """After a test PyTorch's CUDA works as before, and its device is unchanged."""
    before = torch.cuda.current_device()
    yield
    torch.cuda.synchronize()
    assert torch.cuda.current_device() == before
    assert torch.arange(4, device="cuda").sum().item() == 6


# ---- what it computes ----


@pytest.mark.parametrize("dtype", DTYPES)
@pytest.mark.parametrize("kernel", NAMES)
def test_every_configuration_of_every_kernel(fl: ModuleType, kernel: str, dtype: str) -> None:
    limit = fl.device_info(0).smem_per_cta_bytes
    of_dtype = [config for config in fl.configs(kernel) if config.dtype == dtype]
    if not of_dtype and fl.configs(kernel):
        pytest.skip(f"{kernel} computes {fl.configs(kernel)[0].dtype} alone")
    of_gpu = [config for config in of_dtype if config.smem_bytes <= limit]
    assert of_gpu
    shapes = ({}, {"batch": 1, "seq_len": 256, "seq_len_kv": 256, "heads": 1}, {"batch": 5, "heads": 40})
    for shape, sizes in itertools.product(shapes, {(config.head_dim, config.head_dim_v) for config in of_gpu}):
        configs = [config for config in of_gpu if (config.head_dim, config.head_dim_v) == sizes]
        q, k, v = inputs(dtype=dtype, head_dim=sizes[0], head_dim_v=sizes[1], **shape)
        expected = reference(q, k, v)
        for config in configs:
            out = fl.forward(q, k, v, kernel=kernel, config=config.name)
            assert (out.shape, out.dtype, out.device) == (expected.shape, q.dtype, q.device)
            assert out.is_contiguous()
            assert_close(out, expected)
        preferred = fl.forward(q, k, v, kernel=kernel, config=configs[0].name)
        assert torch.equal(fl.forward(q, k, v, kernel=kernel), preferred)


@pytest.mark.parametrize("dtype", DTYPES)
def test_like_flash_attention_2(fl: ModuleType, dtype: str) -> None:
    q, k, v = inputs(4, 4096, 4096, 16, dtype)
    with torch.nn.attention.sdpa_kernel(torch.nn.attention.SDPBackend.FLASH_ATTENTION):
        peer = torch.nn.functional.scaled_dot_product_attention(*(array.transpose(1, 2) for array in (q, k, v)))
    assert_close(fl.forward(q, k, v), peer.transpose(1, 2).double())


def test_softmax_scale(fl: ModuleType) -> None:
    q, k, v = inputs()
    assert_close(fl.forward(q, k, v, softmax_scale=0.3), reference(q, k, v, 0.3))


def test_the_newest_kernel_is_the_default(fl: ModuleType) -> None:
    q, k, v = inputs()
    assert torch.equal(fl.forward(q, k, v), fl.forward(q, k, v, kernel=NEWEST))


def test_the_most_that_one_launch_can_have(fl: ModuleType) -> None:
    for axis in (0, 2):
        shape = [1, 256, 1, 128]
        shape[axis] = 65_535
        q = normal(*shape)
        out = fl.forward(q, q, q)
        some = q.narrow(axis, 65_000, 8)
        assert_close(out.narrow(axis, 65_000, 8), reference(some, some, some))
        shape[axis] = 70_000
        with pytest.raises(ValueError, match=r"70000 is more than the 65535 .* use 65535 or fewer"):
            fl.forward(*[q.narrow(axis, 0, 1).expand(shape)] * 3)


# ---- arrays ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_slices_of_packed_tensors(fl: ModuleType, dtype: str) -> None:
    packed = normal(2, 512, 3, 4, 128, dtype=dtype)
    q, k, v = packed.unbind(2)
    expected = fl.forward(q.contiguous(), k.contiguous(), v.contiguous())
    used = torch.cuda.memory_allocated()
    torch.cuda.reset_peak_memory_stats()
    out = fl.forward(q, k, v)
    assert torch.cuda.max_memory_allocated() - used == out.nbytes  # and no copy
    assert torch.equal(out, expected)
    heads_first = packed.permute(2, 0, 3, 1, 4).contiguous()  # [3, batch, heads, seq_len, head_dim]
    assert torch.equal(fl.forward(*heads_first.transpose(2, 3)), expected)


def test_out_is_written_in_place(fl: ModuleType) -> None:
    q, k, v = inputs()
    around = torch.full((2, 514, 5, 128), 7, dtype=q.dtype, device="cuda")
    out = around[:, 1:-1, 1:-1]
    assert fl.forward(q, k, v, out=out) is out
    assert torch.equal(out, fl.forward(q, k, v))
    out.fill_(7)
    assert (around == 7).all()


def test_strides_of_more_than_32_bits(fl: ModuleType) -> None:
    if torch.cuda.mem_get_info()[0] < 16 << 30:
        pytest.skip("needs 16 GiB of free GPU memory")
    arrays = inputs(2, 512, 512, 4)
    expected = fl.forward(*arrays)
    elements = 6 << 30
    memory = torch.empty(elements, dtype=torch.float16, device="cuda")
    # Strides, and how far apart the three arrays begin: first batch entries 6 GiB apart, then rows.
    for strides, size in (((elements // 2, 512, 128, 1), 512 * 512), ((2048, elements // 512, 512, 1), 4096)):
        far = [memory.as_strided(arrays[0].shape, strides, i * size) for i in range(3)]
        for array, values in zip(far, arrays, strict=True):
            array.copy_(values)
        assert torch.equal(fl.forward(*far), expected)
        far[0].zero_()
        assert torch.equal(fl.forward(*arrays, out=far[0]), expected)


# ---- streams ----


def test_the_current_stream_is_used_and_not_waited_for(fl: ModuleType) -> None:
    right = inputs()
    expected = fl.forward(*right)
    arrays = [torch.zeros_like(array) for array in right]
    out = torch.zeros_like(expected)
    torch.cuda.synchronize()
    stream = torch.cuda.Stream()
    with torch.cuda.stream(stream):
        torch.cuda._sleep(LONG)
        for array, value in zip(arrays, right, strict=True):
            array.copy_(value)
        fl.forward(*arrays, out=out)
        assert not stream.query()  # it returned while the stream was still asleep
    torch.cuda.default_stream().synchronize()
    on_the_host = out.cpu()  # a copy: the first launch of a PyTorch kernel loads it, and may wait for all streams
    assert not stream.query() and not on_the_host.any()  # nothing ran on another stream
    stream.synchronize()
    assert torch.equal(out, expected)


def test_a_timed_call_on_another_stream(fl: ModuleType) -> None:
    q, k, v = inputs()
    torch.cuda.synchronize()  # the other stream does not wait for them
    with torch.cuda.stream(torch.cuda.Stream()):
        copies = [array.clone() for array in (q, k, v)]
        out, milliseconds = fl.forward_timed(*copies)
        assert torch.cuda.current_stream().query()  # it has waited
    assert 0 < milliseconds < 1000
    assert torch.equal(out, fl.forward(q, k, v))


def test_a_cuda_graph(fl: ModuleType) -> None:
    arrays = inputs()
    out = torch.empty_like(arrays[0])
    fl.forward(*arrays, out=out)  # loads the code, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fl.forward(*arrays, out=out)
    arrays[0].copy_(normal(*arrays[0].shape, seed=9))
    out.zero_()
    graph.replay()
    assert_close(out, reference(*arrays))


def a_cache_in_pages() -> tuple[list[torch.Tensor], dict[str, torch.Tensor]]:
    """What decode() takes, and a new token of each sequence."""
    lengths = torch.tensor([100, 0, 400], dtype=torch.int32, device="cuda")
    table = torch.randperm(24, generator=torch.Generator().manual_seed(4)).reshape(3, 8).to("cuda", torch.int32)
    pages = [normal(24, 64, 2, 128, seed=seed) for seed in (2, 3)]
    new = {name: normal(3, 1, 2, 128, seed=seed) for name, seed in (("k_new", 5), ("v_new", 6))}
    return [normal(3, 1, 8, 128, seed=1), *pages, lengths, table], new


def test_a_cuda_graph_of_a_decoding_step(fl: ModuleType) -> None:
    """Each replay appends a token where the lengths are by then. The graph has a workspace of its own."""
    arrays, new = a_cache_in_pages()
    q, k_pages, v_pages, lengths, table = arrays
    out = torch.empty_like(q)
    fl.decode(q, k_pages.clone(), v_pages.clone(), lengths, table, **new)  # loads the code, which a capture cannot
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fl.decode(*arrays, **new, out=out)
        lengths.add_(1)
    for step in range(3):
        for i, array in enumerate((q, *new.values())):
            array.copy_(normal(*array.shape, seed=10 * step + 20 + i))
        before = lengths.tolist()
        eager = fl.decode(q, k_pages.clone(), v_pages.clone(), lengths.clone(), table, **new)
        out.zero_()
        graph.replay()
        assert torch.equal(out, eager), "bit for bit"
        assert lengths.tolist() == [length + 1 for length in before]
        for b, length in enumerate(lengths.tolist()):
            k, v = (pages[table[b].long()].flatten(0, 1)[None, :length] for pages in (k_pages, v_pages))
            assert torch.equal(k[0, -1], new["k_new"][b, 0])
            k, v = (array.repeat_interleave(4, dim=2) for array in (k, v))
            assert_close(out[b : b + 1], reference(q[b : b + 1], k, v))


@pytest.mark.parametrize("queries", [1, 4])
def test_a_cuda_graph_of_causal_queries(fl: ModuleType, queries: int) -> None:
    if queries > 1 and torch.cuda.get_device_capability()[0] != 9:
        pytest.skip("several causal queries need a Hopper GPU")
    (_, *cache), _ = a_cache_in_pages()
    q, lengths = normal(3, queries, 8, 128, seed=7), cache[2]
    out = fl.decode(q, *cache, causal=True).zero_()
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        fl.decode(q, *cache, causal=True, out=out)
    for length in (400, 2, 511):
        lengths.fill_(length)
        graph.replay()
        assert torch.equal(out, fl.decode(q, *cache, causal=True)), "bit for bit"
        assert out[:, -1].any(), "the last query sees keys"


def test_a_cuda_graph_cannot_keep_numbers_of_python(fl: ModuleType) -> None:
    (q, k_pages, v_pages, lengths, table), _ = a_cache_in_pages()
    expected = fl.decode(q, k_pages, v_pages, lengths, table)
    out = torch.empty_like(q)
    graph = torch.cuda.CUDAGraph()
    with torch.cuda.graph(graph):
        with pytest.raises(ValueError, match="numbers of Python, which a CUDA graph cannot keep"):
            fl.decode(q, k_pages, v_pages, [100, 0, 400], table, out=out)
        fl.decode(q, k_pages, v_pages, lengths, table, out=out)  # the capture goes on
    graph.replay()
    assert torch.equal(out, expected)


def test_threads(fl: ModuleType) -> None:
    q, k, v = inputs()
    expected = fl.forward(q, k, v)
    outs: list[torch.Tensor] = []

    def work() -> None:
        with torch.cuda.stream(torch.cuda.Stream()):
            for _ in range(50):
                out = fl.forward(q, k, v)
            torch.cuda.current_stream().synchronize()
        outs.append(out)

    torch.cuda.synchronize()
    threads = [threading.Thread(target=work) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert len(outs) == 4 and all(torch.equal(out, expected) for out in outs)


def test_the_time_is_that_of_the_kernel(fl: ModuleType) -> None:
    q, k, v = inputs(4, 4096, 4096, 16)
    fl.forward(q, k, v)  # loads the code
    torch.cuda.synchronize()
    start = time.perf_counter()
    torch.cuda._sleep(LONG)
    milliseconds = fl.forward_timed(q, k, v)[1]
    with_the_sleep = 1000 * (time.perf_counter() - start)
    assert milliseconds < with_the_sleep / 2  # earlier work of the stream is not included
    flops = 4.0 * q.numel() * k.shape[1]
    assert flops / milliseconds < 1e13  # and the whole kernel is included: no GPU reaches 10,000 TFLOP/s


class WorkspacePool:
    """The driver's memory pool from which workspaces come: only this process's share, whatever other processes use."""

    # CUmemPool_attribute in cuda.h.
    RESERVED_CURRENT, USED_CURRENT, USED_HIGH = 5, 7, 8

    def __init__(self) -> None:
        self.driver = ctypes.CDLL("libcuda.so.1")
        self.pool = ctypes.c_void_p()
        assert self.driver.cuDeviceGetDefaultMemPool(ctypes.byref(self.pool), 0) == 0

    def get(self, attribute: int) -> int:
        value = ctypes.c_uint64()
        assert self.driver.cuMemPoolGetAttribute(self.pool, attribute, ctypes.byref(value)) == 0
        return value.value

    def forget_high(self) -> None:
        assert self.driver.cuMemPoolSetAttribute(self.pool, self.USED_HIGH, ctypes.byref(ctypes.c_uint64(0))) == 0


def test_a_workspace_is_given_back(fl: ModuleType) -> None:
    q, k, v = inputs(1, 2048, 2048, 16)  # a workspace of 400 MB
    torch.cuda.synchronize()
    pool = WorkspacePool()
    before = pool.get(pool.USED_CURRENT)
    pool.forget_high()
    for _ in range(20):
        fl.forward(q, k, v, kernel="01")
    torch.cuda.synchronize()
    assert pool.get(pool.USED_HIGH) >= before + 400_000_000, "workspaces come from another pool"
    assert pool.get(pool.USED_CURRENT) == before
    assert pool.get(pool.RESERVED_CURRENT) <= before + (600 << 20)  # all of them have been freed, or all but one


def test_a_workspace_that_does_not_fit(fl: ModuleType) -> None:
    q = normal(1, 65_536, 64, 128)  # 1.6 TB
    with pytest.raises(MemoryError, match=r"^01_naive needs 1\.6 TB "):
        fl.forward(q, q, q, kernel="01")
    q, k, v = inputs()
    assert_close(fl.forward(q, k, v, kernel="01"), reference(q, k, v))  # the error does not persist


# ---- devices ----


def test_device_info(fl: ModuleType) -> None:
    info = fl.device_info(0)
    properties = torch.cuda.get_device_properties(0)
    assert (info.name, info.sm_count) == (properties.name, properties.multi_processor_count)
    assert info.compute_capability == f"{properties.major}.{properties.minor}"
    assert fl.device_info().name == fl.device_info("gpu:0").name == info.name


def test_another_gpu_than_the_current_one(fl: ModuleType) -> None:
    if torch.cuda.device_count() < 2:
        pytest.skip("needs two GPUs")
    arrays = inputs()
    expected = fl.forward(*arrays)
    there = [array.to("cuda:1") for array in arrays]
    out = fl.forward(*there)
    assert torch.cuda.current_device() == 0
    assert out.device == there[0].device and torch.equal(out.cpu(), expected.cpu())
    with pytest.raises(ValueError, match=r"^v is on GPU 0, and q on GPU 1; "):
        fl.forward(*there[:2], arrays[2])


def test_tensors_in_host_memory_go_to_the_virtual_gpu(fl: ModuleType) -> None:
    for dtype in DTYPES:
        q, k, v = inputs(1, 256, 256, 2, dtype)
        out = fl.forward(q.cpu(), k.cpu(), v.cpu())
        assert (out.device.type, out.dtype) == ("cpu", q.dtype)
        assert_close(out, reference(q, k, v).cpu())


# ---- refused arguments ----

# Arguments, derived from q, k and v: as text, because PyTorch may not be installed. python_package_test.py tests more
# of those messages that do not need a GPU.
REFUSED = {
    "host memory": ("dict(k=k.cpu())", ValueError, "k is in host memory, and q on GPU 0; "),
    "two libraries": ("dict(v=v.cpu().numpy())", TypeError, "v is an array of NumPy, and q of PyTorch; "),
    "gradient": ("dict(q=q.requires_grad_())", ValueError, "q requires a gradient, "),
    "dtype": ("dict(q=q.float())", TypeError, "q has dtype float32"),
    "two dtypes": ("dict(v=v.bfloat16())", TypeError, "v has dtype bfloat16 and q has dtype float16"),
    "sparse": ("dict(q=q[0, :, 0].to_sparse())", TypeError, "q is of layout torch.sparse_coo; allowed: dense tensors"),
    "nested": ("dict(q=torch.nested.as_nested_tensor([q[0], q[1]]))", TypeError, "q is nested"),
    "negated": ("dict(v=torch._neg_view(v))", TypeError, "v has PyTorch's negative bit set, "),
    "no memory": (
        "dict(k=torch._efficientzerotensor(k.shape, dtype=k.dtype, device='cuda'))",
        TypeError,
        "k has no memory, ",
    ),
    "dimensions": ("dict(q=q[0])", ValueError, "q has shape (512, 3, 128), of 3 dimensions"),
    "k and v": ("dict(v=v[:, 1:])", ValueError, "k has shape (2, 1024, 3, 128) and v has shape (2, 1023, 3, 128)"),
    "heads": ("dict(q=q[:, :, 1:])", ValueError, "k.shape[2] (heads of k and v, other than q's) 3 does not divide q."),
    "no batch": ("dict(q=q[:0], k=k[:0], v=v[:0])", ValueError, "q.shape[0] (batch) 0 is out of range"),
    "head_dim": ("dict(q=q[..., :40], k=k[..., :40], v=v[..., :40])", ValueError, "q.shape[3] (head_dim) is 40; "),
    "queries": ("dict(q=q[:, :200], kernel=16)", ValueError, "q.shape[1] (seq_len) 200 is not a multiple of "),
    "head_dim apart": ("dict(k=k.mT.contiguous().mT)", ValueError, "k has stride 3 in its last dimension, head_dim"),
    "address": ("dict(q=torch.cat([q, q], -1)[..., 4:132])", ValueError, "q begins at address 0x"),
    "stride": (
        "dict(q=torch.cat([q, q], -1)[..., :132].contiguous()[..., :128])",
        ValueError,
        "q has stride 396 in dimension 1",
    ),
    "shape of out": ("dict(out=torch.empty_like(k))", ValueError, "out has shape (2, 1024, 3, 128)"),
    "dtype of out": ("dict(out=q.bfloat16())", TypeError, "out has dtype bfloat16 and q has dtype float16"),
    "out on the host": ("dict(out=q.cpu())", ValueError, "out is in host memory, and q on GPU 0"),
    "out is v": ("dict(out=v[:, :512])", ValueError, "out, at 0x"),
    "out meets itself": ("dict(out=q[:1].clone().expand(q.shape))", ValueError, "out has strides (0, 384, 128, 1) "),
    "scale": ("dict(softmax_scale=0)", ValueError, "softmax_scale is 0"),
    "kernel": ("dict(kernel=42)", ValueError, "kernel: there is no version '42'"),
    "config": ("dict(config='1x1', kernel=7)", ValueError, "config: 07_ldmatrix has no configuration '1x1' for fp16"),
}


@pytest.mark.parametrize("timed", [False, True], ids=["forward", "forward_timed"])
@pytest.mark.parametrize("case", REFUSED)
def test_refused(fl: ModuleType, case: str, timed: bool) -> None:
    change, error, message = REFUSED[case]
    q, k, v = inputs()
    arguments: dict[str, Any] = {"q": q, "k": k, "v": v}
    arguments |= eval(change, {"torch": torch}, dict(arguments))
    with pytest.raises(error) as raised:
        (fl.forward_timed if timed else fl.forward)(**arguments)
    assert str(raised.value).startswith(message)


def test_a_gradient_that_nobody_wants(fl: ModuleType) -> None:
    q, k, v = inputs()
    expected = fl.forward(q, k, v)
    q.requires_grad_()
    with torch.no_grad():
        assert torch.equal(fl.forward(q, k, v), expected)


# ---- together with PyTorch ----

BESIDE = """
import sys
if "first" in sys.argv: import flash_ladder
import torch
def work():
    x = torch.arange(1 << 20, device="cuda", dtype=torch.float32)
    return (x * 2).sum().item()
before = work()
import flash_ladder
assert work() == before
q = torch.randn(1, 256, 2, 128, device="cuda", dtype=torch.float16)
out = flash_ladder.forward(q, q, q)
expected = torch.nn.functional.scaled_dot_product_attention(*[q.double().transpose(1, 2)] * 3).transpose(1, 2)
assert (out.double() - expected).abs().max() < 2e-3
host = q.cpu()  # both CUDA runtimes of the package, and PyTorch's, in one process
assert (flash_ladder.forward(host, host, host).double() - expected.cpu()).abs().max() < 2e-3
assert work() == before
assert torch.cuda.current_device() == 0
print("right")
"""


@pytest.mark.parametrize("order", ["import sys; sys.argv.append('first')", ""], ids=["before", "after"])
def test_beside_pytorch(package_folder: Path, order: str) -> None:
    done = run_python(package_folder, order + BESIDE)
    assert (done.returncode, done.stdout) == (0, "right\n"), done.stderr


# ---- other libraries ----


@pytest.mark.parametrize("dtype", DTYPES)
def test_cupy(fl: ModuleType, dtype: str) -> None:
    cupy = pytest.importorskip("cupy")
    tensors = inputs(dtype=dtype)
    try:
        arrays = [cupy.from_dlpack(tensor) for tensor in tensors]
    except Exception as error:  # for bfloat16 it depends on the version
        pytest.skip(f"this CuPy takes no {dtype}: {error}")
    torch.cuda.synchronize()  # the other stream does not wait for them
    with cupy.cuda.Stream(non_blocking=True) as stream:
        out = fl.forward(*arrays)
        stream.synchronize()
    assert type(out) is cupy.ndarray
    assert torch.equal(torch.from_dlpack(out), fl.forward(*tensors))


@pytest.mark.parametrize("dtype", DTYPES)
def test_jax(fl: ModuleType, dtype: str) -> None:
    jax = pytest.importorskip("jax")
    if jax.default_backend() != "gpu":
        pytest.skip("this JAX has no GPU")
    tensors = inputs(dtype=dtype)
    arrays = [jax.dlpack.from_dlpack(tensor) for tensor in tensors]
    out = fl.forward(*arrays)
    assert isinstance(out, jax.Array) and out.devices() == arrays[0].devices()
    assert torch.equal(torch.from_dlpack(out), fl.forward(*tensors))
    with pytest.raises(TypeError, match=r"^out is a JAX array, "):
        fl.forward(*arrays, out=arrays[0])
    arrays[1].delete()
    with pytest.raises(ValueError, match=r"^k was deleted, "):
        fl.forward(*arrays)
