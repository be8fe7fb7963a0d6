"""Operators of PyTorch, which torch.compile keeps as one node each: forward(), and attention(), which has gradients.

    from flash_ladder.pytorch import attention, forward

    @torch.compile(fullgraph=True)
    def block(q, k, v):
        return forward(q, k, v, causal=True)

    attention(q, k, v).sum().backward()

Importing this module registers the operators flash_ladder::forward, ::attention and ::attention_backward, with fake
implementations; `import flash_ladder` alone needs no PyTorch. forward() solves more problems than attention() and has
no gradients: backward() through it raises RuntimeError.
"""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, cast

import torch

import flash_ladder

__all__ = ["attention", "forward"]

# The arguments of flash_ladder.forward() except `out`, because an operator returns new tensors. Lengths and their sums
# are tensors: if the graph contained their values, it would be compiled again for each batch. An operator always
# returns the same number of tensors, so without return_lse the second one is empty. `kernel` has another name here,
# because torch.compile's Inductor passes an operator's arguments along with a `kernel` of its own.
_SCHEMA = """(
    Tensor q, Tensor k, Tensor v, Tensor? scales=None, Tensor? alibi_slopes=None, Tensor? sinks=None,
    Tensor? lengths=None, Tensor? lengths_kv=None, Tensor? cu_seqlens_q=None, Tensor? cu_seqlens_k=None, *,
    str? kernel_name=None, float? softmax_scale=None, bool causal=False, SymInt[]? window=None, float? softcap=None,
    float dropout_p=0.0, int dropout_seed=0, int dropout_offset=0, SymInt? max_seqlen_q=None,
    SymInt? max_seqlen_k=None, bool return_lse=False, str? config=None
) -> (Tensor, Tensor)"""

_PER_SEQUENCE = ("lengths", "lengths_kv", "cu_seqlens_q", "cu_seqlens_k")

Numbers = torch.Tensor | Sequence[int]


@torch.library.custom_op("flash_ladder::forward", mutates_args=(), schema=" ".join(_SCHEMA.split()))
def _operator(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    scales: torch.Tensor | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    *per_sequence: torch.Tensor | None,
    kernel_name: str | None = None,
    return_lse: bool = False,
    window: Sequence[int] | None = None,
    **others: Any,  # noqa: ANN401 (the schema has the types)
) -> tuple[torch.Tensor, torch.Tensor]:
    given = zip(_PER_SEQUENCE, per_sequence, strict=False)
    numbers: dict[str, Any] = {name: None if x is None else x.tolist() for name, x in given}
    result = flash_ladder.forward(
        q,
        k,
        v,
        scales=scales,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        kernel=kernel_name,
        window=cast("tuple[int, int] | None", window),
        return_lse=return_lse,
        **numbers,
        **others,
    )
    return result if isinstance(result, tuple) else (result, q.new_empty(0, dtype=torch.float32))


@_operator.register_fake
def _fake(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *tensors: torch.Tensor | None,
    return_lse: bool = False,
    **others: object,
) -> tuple[torch.Tensor, torch.Tensor]:
    del k, tensors, others
    out = q.new_empty((*q.shape[:-1], v.shape[-1]), dtype=torch.float16 if q.element_size() == 1 else q.dtype)
    shape: tuple[int, ...] = (0,)
    if return_lse:
        *rows, heads, _ = q.shape
        shape = (heads, *rows) if len(rows) == 1 else (rows[0], heads, *rows[1:])
    return out, q.new_empty(shape, dtype=torch.float32)


def _no_backward(*_: object) -> None:
    raise RuntimeError(
        "flash_ladder::forward has no gradients; use flash_ladder.pytorch.attention(), call it within torch.no_grad(), "
        "or detach its inputs"
    )


_operator.register_autograd(_no_backward)


def _on_host(*numbers: Numbers | None) -> list[torch.Tensor | None]:
    """Numbers of Python as tensors in host memory, and tensors as they are."""
    return [x if x is None or isinstance(x, torch.Tensor) else torch.tensor(x, device="cpu") for x in numbers]


def forward(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    kernel: str | int | None = None,
    softmax_scale: float | None = None,
    scales: torch.Tensor | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Numbers | None = None,
    lengths_kv: Numbers | None = None,
    cu_seqlens_q: Numbers | None = None,
    cu_seqlens_k: Numbers | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    return_lse: bool = False,
    config: str | None = None,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """Calls flash_ladder.forward(), which explains the arguments, through the operator. There is no `out`.

    lengths, lengths_kv, cu_seqlens_q and cu_seqlens_k may be tensors. If they are on a GPU, the call waits for that
    GPU, because the launch needs the numbers in host memory.
    """
    numbers = dict(zip(_PER_SEQUENCE, _on_host(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k), strict=True))
    out, lse = torch.ops.flash_ladder.forward(
        q,
        k,
        v,
        kernel_name=None if kernel is None else str(kernel),
        softmax_scale=softmax_scale,
        scales=scales,
        causal=causal,
        window=window,
        softcap=softcap,
        alibi_slopes=alibi_slopes,
        sinks=sinks,
        dropout_p=dropout_p,
        dropout_seed=dropout_seed,
        dropout_offset=dropout_offset,
        max_seqlen_q=max_seqlen_q,
        max_seqlen_k=max_seqlen_k,
        return_lse=return_lse,
        config=config,
        **numbers,
    )
    return (out, lse) if return_lse else out


# The arguments that both operators have after q, k and v, or after dout, q, k, v, out and lse: tensors, and settings.
_FIELDS = """
    Tensor? alibi_slopes, Tensor? sinks, Tensor? lengths, Tensor? lengths_kv, Tensor? cu_seqlens_q,
    Tensor? cu_seqlens_k, float? softmax_scale, bool causal, SymInt[]? window, float? softcap, float dropout_p,
    int dropout_seed, int dropout_offset, SymInt? max_seqlen_q, SymInt? max_seqlen_k, bool deterministic"""
_FIELD_NAMES = [field.split()[-1] for field in _FIELDS.split(",")]
_SETTINGS = " ".join(_FIELDS.split())


def _fields_of(given: Sequence[Any]) -> dict[str, Any]:
    """The arguments of flash_ladder.backward() that are none of its first arrays."""
    fields = dict(zip(_FIELD_NAMES, given, strict=True))
    for name in _PER_SEQUENCE:
        fields[name] = None if fields[name] is None else fields[name].tolist()
    return fields


@torch.library.custom_op(
    "flash_ladder::attention",
    mutates_args=(),
    schema=f"(Tensor q, Tensor k, Tensor v, {_SETTINGS}) -> (Tensor, Tensor)",
)
def _attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *given: Any,  # noqa: ANN401 (the schema has the types)
) -> tuple[torch.Tensor, torch.Tensor]:
    fields = _fields_of(given)
    del fields["deterministic"]  # which every version that computes O is
    out, lse = flash_ladder.forward(q, k, v, return_lse=True, **fields)
    return out, lse


@torch.library.custom_op(
    "flash_ladder::attention_backward",
    mutates_args=(),
    schema="(Tensor dout, Tensor q, Tensor k, Tensor v, Tensor out, Tensor lse, "
    f"{_SETTINGS}) -> (Tensor, Tensor, Tensor)",
)
def _attention_backward(
    dout: torch.Tensor,
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    out: torch.Tensor,
    lse: torch.Tensor,
    *given: Any,  # noqa: ANN401
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    return flash_ladder.backward(dout, q, k, v, out, lse, **_fields_of(given))


@_attention.register_fake
def _fake_attention(
    q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: object
) -> tuple[torch.Tensor, torch.Tensor]:
    del k, others
    *rows, heads, _ = q.shape
    shape = (heads, *rows) if len(rows) == 1 else (rows[0], heads, *rows[1:])
    return q.new_empty((*q.shape[:-1], v.shape[-1])), q.new_empty(shape, dtype=torch.float32)


@_attention_backward.register_fake
def _fake_attention_backward(
    dout: torch.Tensor, q: torch.Tensor, k: torch.Tensor, v: torch.Tensor, *others: object
) -> tuple[torch.Tensor, torch.Tensor, torch.Tensor]:
    del dout, others
    return q.new_empty(q.shape), k.new_empty(k.shape), v.new_empty(v.shape)


_NUM_TENSORS = 2 + len(_PER_SEQUENCE)  # of the fields


def _keep(ctx: Any, inputs: tuple[Any, ...], output: tuple[torch.Tensor, torch.Tensor]) -> None:  # noqa: ANN401
    q, k, v, *fields = inputs
    ctx.settings = fields[_NUM_TENSORS:]
    ctx.save_for_backward(q, k, v, *output, *fields[:_NUM_TENSORS])
    ctx.mark_non_differentiable(output[1])


def _gradient_of_sinks(dout: torch.Tensor, out: torch.Tensor, lse: torch.Tensor, sinks: torch.Tensor) -> torch.Tensor:
    """Minus the sum of exp(sink - lse) · D over all rows of a head, where D is the sum of dout · out over head_dim: of
    each row, a sink has the weight exp(sink - lse), which lowers the others. A row without keys has no sink, either.
    """
    D = (dout.float() * out.float()).sum(-1).transpose(-1, -2)  # in the shape of lse
    weights = torch.exp(sinks[:, None] - lse)
    of_rows = torch.where(torch.isneginf(lse), 0.0, weights * D).sum(-1)  # [batch, heads], or [heads] if packed
    return -(of_rows if of_rows.ndim == 1 else of_rows.sum(0))


def _gradients(
    ctx: Any,  # noqa: ANN401 (an object of PyTorch without a public type)
    dout: torch.Tensor,
    dlse: torch.Tensor | None,
) -> tuple[torch.Tensor | None, ...]:
    del dlse
    q, k, v, out, lse, *tensors = ctx.saved_tensors
    # What follows an operator may leave any strides, such as those of an expanded tensor.
    given = dout.contiguous()
    of_arrays: tuple[torch.Tensor | None, ...] = (None, None, None)
    if any(ctx.needs_input_grad[:3]):
        of_arrays = torch.ops.flash_ladder.attention_backward(given, q, k, v, out, lse, *tensors, *ctx.settings)
    of_fields: list[torch.Tensor | None] = [None] * len(_FIELD_NAMES)
    at, sinks = _FIELD_NAMES.index("sinks"), tensors[_FIELD_NAMES.index("sinks")]
    if sinks is not None and ctx.needs_input_grad[3 + at]:
        of_fields[at] = _gradient_of_sinks(given, out, lse, sinks)
    return *of_arrays, *of_fields


_attention.register_autograd(_gradients, setup_context=_keep)


def attention(
    q: torch.Tensor,
    k: torch.Tensor,
    v: torch.Tensor,
    *,
    softmax_scale: float | None = None,
    causal: bool = False,
    window: tuple[int, int] | None = None,
    softcap: float | None = None,
    alibi_slopes: torch.Tensor | None = None,
    sinks: torch.Tensor | None = None,
    dropout_p: float = 0.0,
    dropout_seed: int = 0,
    dropout_offset: int = 0,
    lengths: Numbers | None = None,
    lengths_kv: Numbers | None = None,
    cu_seqlens_q: Numbers | None = None,
    cu_seqlens_k: Numbers | None = None,
    max_seqlen_q: int | None = None,
    max_seqlen_k: int | None = None,
    deterministic: bool = False,
    return_lse: bool = False,
) -> torch.Tensor | tuple[torch.Tensor, torch.Tensor]:
    """softmax(softmax_scale · q kᵀ) v with gradients: calls flash_ladder.forward() and flash_ladder.backward(), which
    choose the fastest versions for the problem, through operators that torch.compile keeps.

    q, k and v have shape [batch, seq_len, heads, head_dim], or [total, heads, head_dim] with cu_seqlens_q. k and v may
    have fewer heads than q, and v another head_dim. The other arguments are those of flash_ladder.forward(); lengths,
    lengths_kv, cu_seqlens_q and cu_seqlens_k may be tensors. Which of them have gradients, alone or together, and with
    which head_dim, flash_ladder.which_backward() says. sinks have gradients, too, and alibi_slopes have none. With
    dropout, each layer needs a seed or an offset of its own in each training step. If deterministic, gradients are the
    same bits in each run; this excludes masks and fewer heads, and needs a seq_len that is a multiple of 64. If
    return_lse, also returns the logarithm of the sum of exp(S) of each row, float32 [batch, heads, seq_len], or [heads,
    total] if packed, through which no gradient flows.

    Raises what flash_ladder.forward() raises, and in backward() what flash_ladder.backward() raises.
    """
    out, lse = torch.ops.flash_ladder.attention(
        q,
        k,
        v,
        alibi_slopes,
        sinks,
        *_on_host(lengths, lengths_kv, cu_seqlens_q, cu_seqlens_k),
        softmax_scale,
        causal,
        window,
        softcap,
        dropout_p,
        dropout_seed,
        dropout_offset,
        max_seqlen_q,
        max_seqlen_k,
        deterministic,
    )
    return (out, lse) if return_lse else out
