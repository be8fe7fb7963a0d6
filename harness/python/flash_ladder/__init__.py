"""FlashAttention in numbered CUDA kernels, each of which adds one idea to the one before.

    out = flash_ladder.forward(q, k, v)                    # with the fastest kernel for the problem
    out = flash_ladder.forward(q, k, v, causal=True)
    flash_ladder.which(q, k, v, causal=True)               # the name of that kernel
    out = flash_ladder.forward(q, k, v, kernel="07")       # with version 07
    out, milliseconds = flash_ladder.forward_timed(q, k, v)
    out = flash_ladder.decode(q, k_cache, v_cache, lengths)  # a few queries against a long cache
    dq, dk, dv = flash_ladder.backward(dout, q, k, v, out, lse)  # gradients

q, k and v are arrays of PyTorch, CuPy, JAX or NumPy, of shape [batch, seq_len, heads, head_dim]. Their location
determines where the kernel runs. If they are on an NVIDIA GPU, the kernel runs on this GPU. If they are in host memory,
it runs on the virtual GPU, which executes the kernel's PTX on the CPU; this is slow, but finds errors that a GPU hides.
The arrays are not copied.

Two more modules import PyTorch: flash_ladder.pytorch has operators for torch.compile and for training, and
flash_ladder.huggingface makes the kernels available to models of Hugging Face's transformers.

The environment variable FLASH_LADDER_SM selects the GPU whose limits the virtual GPU has, like --sm of the harness
(docs/virtual_gpu.md).
"""

from __future__ import annotations

import contextlib
import dataclasses
import itertools
import operator
from collections.abc import Sequence
from types import ModuleType
from typing import TypeVar, cast

from . import _arrays, _gpu, _virtual_gpu

__all__ = [
    "Config",
    "DeviceInfo",
    "FindingError",
    "backward",
    "configs",
    "decode",
    "device_info",
    "forward",
    "forward_timed",
    "kernels",
    "which",
    "which_backward",
]

Array = TypeVar("Array")

_LARGEST = 2**31 - 1  # of a size
_GRADIENTS = ("dq", "dk", "dv")
_EIGHT_BITS = ("float8_e4m3fn", "uint8")


class FindingError(RuntimeError):
    """The virtual GPU found a mistake in the kernel: a race, an access out of bounds, an endless loop …

    `findings` contains a text for each mistake; the exception's message includes the first ones.
    """

    def __init__(self, findings: list[str]) -> None:
        shown = findings[:3]
        more = f"\n\n… and {len(findings) - len(shown)} more" if len(findings) > len(shown) else ""
        super().__init__("the virtual GPU found a mistake in the kernel:\n\n" + "\n\n".join(shown) + more)
        self.findings = findings

    def __reduce__(self) -> tuple[type[FindingError], tuple[list[str]]]:
        return FindingError, (self.findings,)


@dataclasses.dataclass(frozen=True)
class Config:
    """One way to launch a kernel."""

    name: str  # the value for `config=`; the same for both types
    dtype: str  # "float16", "bfloat16" or "float8_e4m3fn"
    block_q: int  # query rows per CTA: seq_len of q must be a multiple
    block_kv: int  # keys per K/V tile: seq_len of k and v must be a multiple
    head_dim: int  # of q and k
    head_dim_v: int  # of v and out
    num_warps: int  # per CTA
    stages: int  # buffers for K/V tiles
    step_kv: int  # keys per step: block_kv, or a part of it
    smem_bytes: int  # dynamic shared memory per CTA


@dataclasses.dataclass(frozen=True)
class DeviceInfo:
    """A GPU, or the virtual one."""

    name: str
    compute_capability: str  # "9.0"
    sm_count: int
    memory_total_bytes: int
    memory_free_bytes: int
    l2_bytes: int
    smem_per_cta_bytes: int  # the maximum shared memory of a CTA
    driver: str  # "580.159.04"; empty for the virtual GPU


def kernels(*, gradients: bool = False) -> list[str]:
    """The versions of the ladder that compute O, in order, then its extensions: ["01_naive", …]. `kernel=` of forward()
    and decode() accepts each of these, or its number: "01" or 1. With `gradients`, those that compute gradients, for
    backward(): ["B01_naive", …].
    """
    return _gpu.kernels(gradients)


def configs(kernel: str | int | None = None) -> list[Config]:
    """The configurations of a kernel. For each dtype, they are in order of preference: without `config=`, the first one
    that fits the device runs. None stands for the newest kernel that runs on every device.

    Raises ValueError for a kernel that does not exist.
    """
    return [Config(**config) for config in _gpu.configs(_kernel_name(kernel))]


def device_info(device: str | int = "auto") -> DeviceInfo:
    """Describes a device: "gpu:0" or 0, "emulator" for the virtual GPU, or "auto" for GPU 0 if there is one that the
    kernels can run on, otherwise the virtual GPU.

    Raises ValueError for an invalid device, and RuntimeError for a GPU that is missing or too old.
    """
    if isinstance(device, bool) or not isinstance(device, str | int):
        raise TypeError(f'device is of type {type(device).__name__}; allowed: "auto", "gpu:0", 0, "emulator"')
    ordinal = str(device).removeprefix("gpu:")
    if ordinal.isdecimal() and len(ordinal) < 10:  # a number with more digits than an int is not a GPU's
        return DeviceInfo(**_gpu.device_info(int(ordinal)))
    if device == "gpu":
        return DeviceInfo(**_gpu.device_info(0))
    if device == "auto":
        try:
            return DeviceInfo(**_gpu.device_info(0))
        except RuntimeError:
            pass
    elif device != "emulator":
        raise ValueError(f'device is {device!r}; allowed: "auto", "gpu:0", 0, "emulator"')
    return DeviceInfo(**_virtual_gpu.device_info(0))


def forward(
    q: Array,
    k: Array,
    v: Array,
    *,
    kernel: str | int | None = None,
    out: Array | None = None,
    softmax_scale: float | None = None,
    scales: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    config: str | None = None,
) -> Array | tuple[Array, Array]:
    """softmax(softmax_scale · q kᵀ) v, separately for every batch entry and head.

    q has shape [batch, seq_len, heads, head_dim]. k and v have the same shape, except that they may have another
    seq_len and fewer heads: head h of q then reads their head h // (q.shape[2] // k.shape[2]) (grouped-query
    attention). v, and with it out, may have another head_dim than q and k: 128 if theirs is 192. All arrays are
    float16, or all are bfloat16; they are from one library and on one device. Alternatively, all are float8_e4m3fn, or
    its bits as uint8, with `scales` and a kernel that computes this type, "fp8"; out is then float16. head_dim is
    contiguous, and its size is that of one of configs(kernel), mostly 128. The other strides are multiples of 16 bytes,
    so you can pass slices of a packed q, k and v as they are. Each seq_len of a version of the ladder is a multiple of
    the kernel's tile; see configs(). Extensions of the ladder solve more problems. A kernel rejects problems that it
    does not solve.

    kernel         "07", "07_ldmatrix" or 7, or the name of an extension; None is the fastest version that solves the
                   problem on the device, which which() names: the ladder's newest version, or else the extension of the
                   device's track that solves the fewest other fields, because more fields usually cost speed (for
                   negative strides, which TMA does not support, one that needs no Hopper GPU)
    out            the array to write to, of the same kind as q, which shares no memory with an input; None creates one
    softmax_scale  None is 1 / sqrt(head_dim)
    scales         for float8_e4m3fn: float32 [3, batch, heads of q], the factors by which elements of q, k and v are
                   multiplied; factors of k and v are listed for each head of q that reads them
    causal         query i sees the keys up to i + k.shape[1] - q.shape[1], as in FlashAttention since its version 2.1;
                   the output of a query that sees no key is 0
    window         (left, right): query i sees at most this many keys to the left and to the right of key
                   i + k.shape[1] - q.shape[1], as with FlashAttention's window_size; -1 sets no limit on that side, and
                   causal allows no keys to the right
    softcap        a score S becomes softcap · tanh(S / softcap)
    alibi_slopes   float32 [heads of q]: slope · |i + k.shape[1] - q.shape[1] - j| is subtracted from the score of key j
    sinks          float32 [heads of q]: one additional score for each row, which takes weight but has no value
    dropout_p      each weight is dropped with this probability, rounded to a multiple of 1/256, and the others are
                   divided by 1 minus this multiple; lse is that of all weights
    dropout_seed   which weights are dropped is a function of seed, offset, batch entry (or number of the packed
    dropout_offset sequence), head, query and key: common/philox.h. Seeds are below 2^63, offsets below 2^32
    lengths        for each batch entry, the number of rows of q in use; the others are padding, and become 0 in out
    lengths_kv     the same for k and v; None is the value of lengths. Both replace shape[1] in the masks
    cu_seqlens_q   packed sequences, as in flash_attn_varlen_func: q, k and v have shape [total, heads, head_dim], and
    cu_seqlens_k   sequence n has the rows cu_seqlens[n] to cu_seqlens[n + 1] - 1 of q, and of k and v. None for k is
                   the value for q. The numbers are in host memory; copying an array from a GPU waits for that GPU
    max_seqlen_q   at least the length of the longest sequence of q or of k; None is that length
    max_seqlen_k
    return_lse     also return the natural logarithm of the sum of exp(S) over the keys that a row sees, and of
                   exp(sink): float32 [batch, heads, seq_len], or [heads, total] if packed; -inf for a row without keys
    config         the name of one of configs(kernel); None is the first one that fits the device

    Returns out, or (out, lse). backward() computes the gradients.

    On a GPU the kernel is enqueued on the current stream of PyTorch or CuPy, and forward() does not wait for it. JAX
    does not reveal its stream, so the kernel runs on the default stream, and forward() waits for the inputs and the
    output. NumPy arrays, like all arrays in host memory, go to the virtual GPU, and the output is complete when
    forward() returns.

    Raises TypeError or ValueError for an invalid argument, with its name, its value and what is allowed; MemoryError if
    a kernel's workspace does not fit; FindingError for a mistake that the virtual GPU finds; RuntimeError for a GPU
    that is too old, and for a CUDA error.
    """
    asked = _asked(causal, window, softcap, lengths, lengths_kv) | _dropout(dropout_p, dropout_seed, dropout_offset)
    packed = _packed(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    optional = {"out": out, "scales": scales, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return cast(
        "Array | tuple[Array, Array]",
        _call(q, k, v, kernel, optional, softmax_scale, asked, packed, return_lse, config).result,
    )


def forward_timed(
    q: Array,
    k: Array,
    v: Array,
    *,
    kernel: str | int | None = None,
    out: Array | None = None,
    softmax_scale: float | None = None,
    scales: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    config: str | None = None,
) -> tuple[Array | tuple[Array, Array], float]:
    """Like forward(), but also returns the milliseconds that the kernel took on the GPU.

    This is the time of one launch between two CUDA events on the same stream; forward_timed() waits until the launch
    has ended. Before the first launch of a configuration, the kernel runs once without being timed, which loads its
    code. If you want to publish a figure, measure as the harness does: warm up, overwrite the L2 cache between
    launches, and take the median of many launches.

    Raises what forward() raises, and RuntimeError on the virtual GPU, which has no clock.
    """
    asked = _asked(causal, window, softcap, lengths, lengths_kv) | _dropout(dropout_p, dropout_seed, dropout_offset)
    packed = _packed(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    optional = {"out": out, "scales": scales, "alibi_slopes": alibi_slopes, "sinks": sinks}
    answer = _call(q, k, v, kernel, optional, softmax_scale, asked, packed, return_lse, config, timed=True)
    return cast("tuple[Array | tuple[Array, Array], float]", (answer.result, answer.milliseconds))


def decode(
    q: Array,
    k_cache: Array,
    v_cache: Array,
    lengths: Array | Sequence[int] | None = None,
    page_table: Array | None = None,
    *,
    k_new: Array | None = None,
    v_new: Array | None = None,
    rotary_cos: Array | None = None,
    rotary_sin: Array | None = None,
    rotary_interleaved: bool = True,
    causal: bool = False,
    k_descale: Array | None = None,
    v_descale: Array | None = None,
    kernel: str | int | None = None,
    out: Array | None = None,
    softmax_scale: float | None = None,
    return_lse: bool = False,
    config: str | None = None,
) -> Array | tuple[Array, Array]:
    """softmax(softmax_scale · q k_cacheᵀ) v_cache for few queries and many keys, as when text is generated.

    q has shape [batch, queries, heads, head_dim], with at most 16 queries, and at most 8 on a GPU before Hopper. Each
    sees all keys of its batch entry, unless they are causal. k_cache and v_cache have shape [batch, room, heads of k,
    head_dim], where the heads of q are a multiple of those of k. All three are float16, or all are bfloat16, or q is
    one of these and the caches are float8_e4m3fn, or its bits as uint8; strides and alignment are those of forward().

    lengths        how many keys of the cache are in use in each batch entry, from 0 to `room`: int32 [batch] where q
                   is, as flash_attn_with_kvcache's cache_seqlens, or numbers of Python; None is `room` for all. With 0,
                   out is 0
    page_table     int32 [batch, pages of a batch entry] where q is, as flash_attn_with_kvcache's block_table. Then
                   k_cache and v_cache have shape [pages, page_size, heads of k, head_dim], and page page_table[b, i]
                   has the keys of batch entry b from i · page_size on. Pages may be shared. page_size is a power of
                   two, at least 16; `room` is page_size times the pages of a batch entry. Entries after the page of
                   the last key are not used
    k_new, v_new   the key and the value of a new token of each batch entry, [batch, 1, heads of k, head_dim], as
                   flash_attn_with_kvcache's k and v. The launch writes them into the cache at row lengths[b], which
                   must have room, in a page of the table if there are pages, and the queries see them, too. Then
                   lengths, which does not count them, is required; the caller increments it before the next token
    rotary_cos, rotary_sin
                   [rows, rotary_dim / 2] in the type of q, with rotary_dim a multiple of 16, and a row for each key
                   for which there is room: the first rotary_dim elements of k_new and of all queries of a batch entry
                   are rotated by the angles of row lengths[b]. The cache then has the rotated key
    rotary_interleaved
                   whether elements 2i and 2i + 1 are a pair (GPT-J), or i and i + rotary_dim / 2 (GPT-NeoX, Llama)
    causal         whether the last of several queries sees all keys, and each earlier one a key less than the next, as
                   when a model checks tokens that were guessed. The keys of all of them are in the cache already:
                   several causal queries exclude k_new. Needs a Hopper GPU, or the virtual one
    k_descale, v_descale
                   for caches of float8_e4m3fn: float32 [batch, heads of k], the factors by which elements of k_cache
                   and v_cache are multiplied, as in FlashAttention-3; k_new and v_new must then be None
    kernel         a version of the decoding track, "D08"; None is the newest one that solves the problem, except that
                   D15 is chosen only if every batch entry has `room` keys, at most 8192, and lengths is no array
    out, softmax_scale, return_lse, config
                   as in forward()

    Returns out, or (out, lse). Repeated calls return the same bits.

    In host memory, lengths and pages that are out of range are refused. On a GPU, decode() would have to wait for their
    values, so it does not look at them: the kernel replaces a page that does not exist by the last one, and lengths
    must be right.

    On a GPU, a call can be captured in a CUDA graph if lengths is None or an array, and an earlier call with the same
    options has loaded the kernel: the call waits for nothing, copies nothing from or to the host, and its workspace is
    allocated in stream order (cudaMallocAsync), so it becomes a part of the graph. A replay reads what the arrays
    contain by then, lengths and page_table included. Numbers of Python are refused while a stream is captured, because
    each replay would read them again. An array of JAX cannot be captured: the call waits for the result.

    Raises what forward() raises.
    """
    if not isinstance(rotary_interleaved, bool):
        raise TypeError(f"rotary_interleaved is {rotary_interleaved!r}; allowed: True, False")
    if not isinstance(causal, bool):
        raise TypeError(f"causal is {causal!r}; allowed: True, False")
    _arrays.library_of("q", q)  # has a shape
    asked: dict[str, object] = {"causal": causal and tuple(q.shape[1:2]) != (1,)}  # a single query sees all keys
    asked["rotary_interleaved"] = rotary_interleaved and rotary_cos is not None
    optional: dict[str, _arrays.AnyArray | None] = {"out": out, "page_table": page_table}
    optional |= {"k_new": k_new, "v_new": v_new, "rotary_cos": rotary_cos, "rotary_sin": rotary_sin}
    optional |= {"k_descale": k_descale, "v_descale": v_descale}
    if hasattr(type(lengths), "__dlpack__"):
        optional["lengths"] = lengths
    elif lengths is not None:
        listed = _lengths("lengths", cast("Sequence[int]", lengths))
        asked["lengths_kv"] = [length + 1 for length in listed] if k_new is not None else listed
    return cast(
        "Array | tuple[Array, Array]",
        _call(
            q, k_cache, v_cache, kernel, optional, softmax_scale, asked, None, return_lse, config, kind="decoding"
        ).result,
    )


def backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    kernel: str | int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = False,
    config: str | None = None,
) -> tuple[Array, Array, Array]:
    """The gradients of a loss with respect to q, k and v, given dout, its gradient with respect to out.

    q, k, v and softmax_scale are those of forward(), and out and lse its results with return_lse=True. dout has the
    shape and the type of out. If k and v have fewer heads than q, dk and dv are sums over the heads that share one. A
    head_dim other than 128, or another one of v, needs a version that solves it, which which_backward() names.

    kernel         a version of the backward track, "B07"; None is the newest one that the device runs and that solves
                   the problem, and a deterministic one only with deterministic, or if no other solves it
    causal, window, softcap, alibi_slopes, sinks, dropout_p, dropout_seed, dropout_offset, lengths, lengths_kv,
    cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k
                   those that forward() received for out and lse; no deterministic version supports any of them.
                   Which versions solve them, which_backward() says. Padding of dout, out, q, k and v is not read, and
                   dq, dk and dv are 0 there. With cu_seqlens_q, lse has shape [heads, total]
    deterministic  whether repeated calls have to return the same bits. Otherwise, several CTAs add to an element of dq
                   in any order, which is faster. With it, every head of q needs its own head of k and v, and each
                   seq_len a multiple of 64

    Returns (dq, dk, dv), of the shapes and the type of q, k and v. The gradient of sink h needs no kernel: it is minus
    the sum of exp(sink - lse) · D over the rows of head h, where D is the sum of dout · out over head_dim.
    flash_ladder.pytorch.attention() computes it.

    Streams, devices and exceptions are those of forward().
    """
    asked = _asked(causal, window, softcap, lengths, lengths_kv) | _dropout(dropout_p, dropout_seed, dropout_offset)
    packed = _packed(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    given = {"dout": dout, "out": out, "lse": lse, "alibi_slopes": alibi_slopes, "sinks": sinks}
    answer = _gradients(q, k, v, kernel, given, softmax_scale, asked, packed, config, deterministic)
    return cast("tuple[Array, Array, Array]", answer.result)


def which_backward(
    dout: Array,
    q: Array,
    k: Array,
    v: Array,
    out: Array,
    lse: Array,
    *,
    kernel: str | int | None = None,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = False,
    config: str | None = None,
) -> str:
    """The name of the version that backward() would run with these arguments, "B07_prefetch" for example.

    Raises what backward() raises for an invalid argument, and for a problem that no version solves.
    """
    asked = _asked(causal, window, softcap, lengths, lengths_kv) | _dropout(dropout_p, dropout_seed, dropout_offset)
    packed = _packed(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    given = {"dout": dout, "out": out, "lse": lse, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return _gradients(q, k, v, kernel, given, softmax_scale, asked, packed, config, deterministic, True).kernel


def which(
    q: Array,
    k: Array,
    v: Array,
    *,
    kernel: str | int | None = None,
    out: Array | None = None,
    softmax_scale: float | None = None,
    scales: Array | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: Array | None = None,
    sinks: Array | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Sequence[int] | None = None,
    lengths_kv: Sequence[int] | None = None,
    cu_seqlens_q: Sequence[int] | None = None,
    cu_seqlens_k: Sequence[int] | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    config: str | None = None,
) -> str:
    """The name of the version that forward() would run with these arguments, "28_key_order" for example.

    Raises what forward() raises for an invalid argument, and for a problem that no version solves.
    """
    asked = _asked(causal, window, softcap, lengths, lengths_kv) | _dropout(dropout_p, dropout_seed, dropout_offset)
    packed = _packed(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k, max_seqlen_q, max_seqlen_k)
    optional = {"out": out, "scales": scales, "alibi_slopes": alibi_slopes, "sinks": sinks}
    return _call(q, k, v, kernel, optional, softmax_scale, asked, packed, return_lse, config, only_chooses=True).kernel


def _gradients(
    q: Array,
    k: Array,
    v: Array,
    kernel: str | int | None,
    given: dict[str, _arrays.AnyArray | None],
    softmax_scale: float | None,
    asked: dict[str, object],
    packed: dict[str, object] | None,
    config: str | None,
    deterministic: bool,
    only_chooses: bool = False,
) -> _Answer:
    for name in ("dout", "out", "lse"):  # in other calls, None is allowed
        _arrays.library_of(name, given[name])
    if not isinstance(deterministic, bool):
        raise TypeError(f"deterministic is {deterministic!r}; allowed: True, False")
    return _call(
        q,
        k,
        v,
        kernel,
        given,
        softmax_scale,
        asked,
        packed,
        False,
        config,
        only_chooses=only_chooses,
        kind="backward",
        deterministic=deterministic,
    )


def _asked(
    causal: bool,
    window: tuple[int, int] | None,
    softcap: float | None,
    lengths: Sequence[int] | None,
    lengths_kv: Sequence[int] | None,
) -> dict[str, object]:
    """The fields of the problem that are arguments, by name, without those that are not given."""
    if not isinstance(causal, bool):
        raise TypeError(f"causal is {causal!r}; allowed: True, False")
    asked: dict[str, object] = {"causal": causal}
    if window is not None:
        asked |= zip(("window_left", "window_right"), _window(window), strict=True)
    if softcap is not None:
        asked["softcap"] = _number("softcap", softcap)
    if lengths is not None:
        asked["lengths"] = _lengths("lengths", lengths)
    keys = lengths if lengths_kv is None else lengths_kv
    if keys is not None:
        asked["lengths_kv"] = _lengths("lengths_kv", keys)
    return asked


def _dropout(p: float, seed: int, offset: int) -> dict[str, object]:
    """The fields of dropout; none if no weight is to be dropped."""
    if isinstance(p, bool) or not isinstance(p, (int, float)):
        raise TypeError(f"dropout_p is {p!r}; allowed: numbers from 0 to {255 / 256}")
    for name, number in (("dropout_seed", seed), ("dropout_offset", offset)):
        if isinstance(number, bool) or not isinstance(number, int):
            raise TypeError(f"{name} is {number!r}; allowed: integers")
        if not 0 <= number < 1 << 63:
            raise ValueError(f"{name} is {number}; allowed: 0 to 2^63 - 1")
    return {"dropout_p": float(p), "dropout_seed": seed, "dropout_offset": offset} if p != 0 else {}


def _packed(
    lengths: object,
    lengths_kv: object,
    cu_seqlens_q: Sequence[int] | None,
    cu_seqlens_k: Sequence[int] | None,
    max_seqlen_q: int | None,
    max_seqlen_k: int | None,
) -> dict[str, object] | None:
    """The fields of the problem that packed sequences determine; None if they are not packed."""
    if cu_seqlens_q is None:
        for name, given in (
            ("cu_seqlens_k", cu_seqlens_k),
            ("max_seqlen_q", max_seqlen_q),
            ("max_seqlen_k", max_seqlen_k),
        ):
            if given is not None:
                raise ValueError(f"{name} is given, but cu_seqlens_q is None; pass both")
        return None
    for name, other in (("lengths", lengths), ("lengths_kv", lengths_kv)):
        if other is not None:
            raise ValueError(
                f"{name} and cu_seqlens_q are given, but packed sequences have no padding; leave {name} out"
            )
    of_q = _differences("cu_seqlens_q", cu_seqlens_q)
    of_k = of_q if cu_seqlens_k is None else _differences("cu_seqlens_k", cu_seqlens_k)
    if len(of_k) != len(of_q):
        raise ValueError(
            f"cu_seqlens_k has {len(of_k) + 1} numbers, and cu_seqlens_q {len(of_q) + 1}; both must have as many"
        )
    sizes = {}
    for name, field, given, own in (
        ("max_seqlen_q", "seq_len", max_seqlen_q, of_q),
        ("max_seqlen_k", "seq_len_kv", max_seqlen_k, of_k),
    ):
        longest = max(*own, 1)
        sizes[field] = longest if given is None else _whole(name, given)
        if sizes[field] < longest:
            raise ValueError(f"{name} is {given}, but the longest sequence has {longest} rows; allowed: at least that")
    return {"packed": True, "batch": len(of_q), "lengths": of_q, "lengths_kv": of_k} | sizes


def _differences(name: str, sums: Sequence[int]) -> list[int]:
    """The lengths of sequences, from their cumulative sums."""
    listed = sums.tolist() if hasattr(sums, "tolist") else sums  # reading a GPU's elements one by one would take long
    numbers = _lengths(name, listed)
    if len(numbers) < 2 or numbers[0] != 0:
        raise ValueError(
            f"{name} is {numbers}; it must begin with 0 and have one more number than there are sequences"
        )
    found = [after - before for before, after in itertools.pairwise(numbers)]
    if min(found) < 0:
        at = found.index(min(found))
        raise ValueError(f"{name} decreases from {numbers[at]} to {numbers[at + 1]}; it must not decrease")
    return found


def _number(name: str, value: object) -> float:
    if not isinstance(value, bool):
        try:
            return float(value)  # type: ignore[arg-type]
        except (TypeError, ValueError) as error:
            raise TypeError(f"{name} is {value!r}; allowed: None, or a number above 0") from error
        except OverflowError as error:
            raise ValueError(f"{name} is {value}; allowed: finite float32 numbers above 0") from error
    raise TypeError(f"{name} is {value!r}; allowed: None, or a number above 0")


def _window(window: tuple[int, int]) -> tuple[int, int]:
    refused = f"window is {window!r}; allowed: None, or (left, right), each -1 (no limit) to {_LARGEST}"
    try:
        if any(isinstance(side, bool) for side in window):
            raise TypeError(refused)
        left, right = (operator.index(side) for side in window)
    except (TypeError, ValueError) as error:
        raise TypeError(refused) from error
    if not (-1 <= left <= _LARGEST and -1 <= right <= _LARGEST):
        raise ValueError(refused)
    return left, right


def _lengths(name: str, lengths: Sequence[int] | None) -> list[int]:
    if lengths is None:
        return []
    try:
        listed = list(lengths)
    except TypeError as error:
        raise TypeError(f"{name} is {lengths!r}; allowed: None, or whole numbers, one for every batch entry") from error
    found = [_whole(name, length) for length in listed]
    if not found:
        raise ValueError(f"{name} is empty; it needs one number for every batch entry")
    return found


def _whole(name: str, value: object) -> int:
    if isinstance(value, bool):
        raise TypeError(f"{name} is {value!r}; allowed: whole numbers")
    try:
        number = operator.index(value)  # type: ignore[arg-type]
    except TypeError as error:
        raise TypeError(f"{name} is {value!r}; allowed: whole numbers") from error
    if abs(number) >= 2**63:  # the range that the extension modules accept
        raise ValueError(f"{name} is {number}; allowed: 0 to {_LARGEST}")
    return number


@dataclasses.dataclass(frozen=True)
class _Answer:
    result: object  # out, or (out, lse)
    milliseconds: float | None
    kernel: str


def _call(
    q: _arrays.AnyArray,
    k: _arrays.AnyArray,
    v: _arrays.AnyArray,
    kernel: str | int | None,
    optional: dict[str, _arrays.AnyArray | None],
    softmax_scale: float | None,
    asked: dict[str, object],
    packed: dict[str, object] | None,
    return_lse: bool,
    config: str | None,
    timed: bool = False,
    only_chooses: bool = False,
    kind: str = "forward",
    deterministic: bool = False,
) -> _Answer:
    kernel_name = _kernel_name(kernel)
    if config is not None and (not isinstance(config, str) or not config):
        raise TypeError(f"config is {config!r}; allowed: None, or the name of one of configs(kernel)")
    if not isinstance(return_lse, bool):
        raise TypeError(f"return_lse is {return_lse!r}; allowed: True, False")
    if softmax_scale is not None:
        softmax_scale = _number("softmax_scale", softmax_scale)

    library = _arrays.library_of("q", q)
    key_name, value_name = ("k_cache", "v_cache") if kind == "decoding" else ("k", "v")
    given = {name: array for name, array in optional.items() if array is not None}
    arrays = {"q": q, key_name: k, value_name: v} | given
    on_gpu, device = _check_together(library, arrays, written=_written(kind, optional))
    if timed and not on_gpu:
        raise RuntimeError(
            "forward_timed: q is in host memory, so the kernel would run on the virtual GPU, which has no clock; "
            "pass arrays on a GPU, or use forward()"
        )

    module = _gpu if on_gpu else _virtual_gpu
    _check_dimensions(arrays, packed)
    if "out" not in arrays:
        dtype = library.dtype(q)
        shape = _out_shape(q, v) if packed is None else (1, *_out_shape(q, v))
        arrays["out"] = _empty(library, module, q, shape, "float16" if dtype in _EIGHT_BITS else dtype, device)
    if kind == "backward":
        for name, like in zip(_GRADIENTS, (q, k, v), strict=True):
            shape = like.shape if packed is None else (1, *like.shape)
            arrays[name] = _empty(library, module, like, shape, library.dtype(q), device)
    if return_lse:
        *rows, heads, _ = q.shape
        shape = (heads, *rows) if packed else (rows[0], heads, *rows[1:])
        arrays["lse"] = _empty(library, module, q, shape, "float32", device)
    dtypes = {name: library.dtype(array) for name, array in arrays.items()}
    dtypes |= {"lse": "float32"} if return_lse else {}
    dtypes |= dict.fromkeys(_GRADIENTS, dtypes["q"]) if kind == "backward" else {}
    given_out = optional["out"]
    if packed is not None:  # one batch entry with all sequences
        arrays |= {name: arrays[name][None] for name in ("q", "k", "v", "dout") if name in arrays}
        if given_out is not None:
            arrays["out"] = given_out[None]
    handed = {name: _arrays.hand_over(library, name, array, on_gpu) for name, array in arrays.items()}
    findings, milliseconds, ran = module.forward(
        handed,
        dtypes,
        kernel_name,
        config or "",
        softmax_scale,
        asked | (packed or {}),
        device,
        library.stream(device) if on_gpu else 0,
        library.waits,
        timed,
        only_chooses,
        kind,
        deterministic,
    )
    if findings:
        raise FindingError(findings)
    if kind == "backward":
        gradients = tuple(library.result(arrays[name]) for name in _GRADIENTS)
        return _Answer(gradients if packed is None else tuple(dx[0] for dx in gradients), milliseconds, ran)
    result = given_out
    if result is None:
        made = library.result(arrays["out"])
        result = made if packed is None else made[0]
    return _Answer((result, library.result(arrays["lse"])) if return_lse else result, milliseconds, ran)


def _written(kind: str, optional: dict[str, _arrays.AnyArray | None]) -> tuple[str, ...]:
    """The arrays of the caller that the launch writes to."""
    if kind == "backward":
        return ()
    return ("out", "k_cache", "v_cache") if optional.get("k_new") is not None else ("out",)


def _check_together(
    library: _arrays.Library, arrays: dict[str, _arrays.AnyArray], written: Sequence[str]
) -> tuple[bool, int]:
    """Checks that all arrays are of this library and on one device, and returns whether that is a GPU, and which."""
    places: dict[str, tuple[bool, int]] = {}
    for name, array in arrays.items():
        other = _arrays.library_of(name, array)
        if other.name != library.name:
            raise TypeError(f"{name} is an array of {other.name}, and q of {library.name}; both must be of one library")
        library.check(name, array, writable=name in written)
        places[name] = _arrays.device_of(name, array)
        if places[name] != places["q"]:
            raise ValueError(
                f"{name} is {_place(*places[name])}, and q {_place(*places['q'])}; both must be on one device"
            )
    return places["q"]


def _check_dimensions(arrays: dict[str, _arrays.AnyArray], packed: dict[str, object] | None) -> None:
    """Checks what must be known before the outputs are created. The extension modules check the rest."""
    if packed is None:
        if len(arrays["q"].shape) != 4:
            shape = tuple(arrays["q"].shape)
            raise ValueError(
                f"q has shape {shape}, of {len(shape)} dimensions; it must be [batch, seq_len, heads, head_dim]"
            )
        return
    for name in ("q", "k", "v", "out", "dout"):
        if name in arrays and len(arrays[name].shape) != 3:
            raise ValueError(
                f"{name} has shape {tuple(arrays[name].shape)}; with cu_seqlens_q it must be [total, heads, head_dim]"
            )


def _out_shape(q: _arrays.AnyArray, v: _arrays.AnyArray) -> tuple[int, ...]:
    """The shape of q, with the last dimension of v, if it has one; the extension modules check the others."""
    return (*q.shape[:-1], *v.shape[-1:])


def _empty(
    library: _arrays.Library, module: ModuleType, like: _arrays.AnyArray, shape: Sequence[int], dtype: str, device: int
) -> _arrays.AnyArray:
    return library.output(like, tuple(shape), dtype, lambda: module.empty(list(shape), dtype, device))


def _kernel_name(kernel: str | int | None) -> str:
    """The name for the extension modules."""
    if kernel is None:
        return ""
    if isinstance(kernel, str) and kernel:
        return kernel
    if not isinstance(kernel, bool):
        with contextlib.suppress(TypeError):
            return str(operator.index(kernel))  # type: ignore[arg-type]
    raise TypeError(f"kernel is {kernel!r}; allowed: None, or one of {', '.join(kernels())}")


def _place(on_gpu: bool, device: int) -> str:
    return f"on GPU {device}" if on_gpu else "in host memory"
