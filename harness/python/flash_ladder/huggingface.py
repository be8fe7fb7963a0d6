"""Attention by flash_ladder in models of Hugging Face's transformers, version 5.

    import flash_ladder.huggingface

    flash_ladder.huggingface.register()
    model = LlamaForCausalLM.from_pretrained(…, attn_implementation="ladder")

The name is not flash_ladder, because transformers treats every name that contains "flash" as a build of the package
flash-attn and looks for that package's functions.

Causal masks, sliding windows, softcaps, sinks and grouped heads are supported, and so is padding on the right, which
becomes the lengths of the sequences. Anything else raises a ValueError that names it: another mask, dropout, a
head_dim without a kernel. A padding mask is read on the host, so torch.compile splits the graph there. There is no
backward pass.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import cast

import torch

import flash_ladder

from .pytorch import forward

__all__ = ["NAME", "register"]

NAME = "ladder"  # the value of attn_implementation

# Computed before a model is compiled, because torch.compile cannot trace the calls.
_CONFIGS = [config for kernel in flash_ladder.kernels() for config in flash_ladder.configs(kernel)]
_HEAD_DIMS = sorted({(config.head_dim, config.head_dim_v) for config in _CONFIGS})  # of queries and keys, of values

# Arguments of a model that are not supported, and what to do instead.
_NOT_SUPPORTED = {
    "dropout": "call model.eval()",
    "position_bias": "use another implementation",
    "output_attentions": 'use attn_implementation="eager"',
    "cu_seq_lens_q": "pass one sequence per batch entry instead of packed sequences",
}


def _sizes(head_dim: int, head_dim_v: int) -> str:
    return str(head_dim) if head_dim == head_dim_v else f"{head_dim} with {head_dim_v} of values"


def register() -> None:
    """Registers attn_implementation="ladder" with transformers. Calling it again has no effect.

    Raises ImportError for a version of transformers whose mask functions take other arguments.
    """
    import transformers

    if int(transformers.__version__.partition(".")[0]) < 5:
        raise ImportError(f"flash_ladder.huggingface needs transformers 5, and this is {transformers.__version__}")
    from transformers import AttentionInterface, AttentionMaskInterface

    AttentionInterface.register(NAME, attention)
    AttentionMaskInterface.register(NAME, lengths_of_mask)


def lengths_of_mask(
    batch_size: int,
    q_length: int,
    kv_length: int,
    q_offset: int | torch.Tensor = 0,
    kv_offset: int = 0,
    mask_function: Callable[..., torch.Tensor] | None = None,
    attention_mask: torch.Tensor | None = None,
    allow_is_causal_skip: bool = True,
    allow_is_bidirectional_skip: bool = False,
    local_size: int | None = None,
    config: object = None,
    **_: object,
) -> torch.Tensor | None:
    """The mask that attention() takes: the number of keys of each sequence, in host memory; None without padding.

    transformers calls this once for each kind of layer, with the arguments of its own mask functions. attention_mask
    has a column for each key; False means padding.
    """
    del batch_size, mask_function
    if not (allow_is_causal_skip or allow_is_bidirectional_skip):
        raise ValueError(
            f'attn_implementation="{NAME}" supports causal masks, sliding windows and padding. This model needs '
            "another mask: for packed sequences (position_ids), a static cache, or a pattern of its own. With "
            "use_cache=False, torch.compile assumes packed sequences; leave use_cache on"
        )
    if allow_is_causal_skip and (isinstance(q_offset, torch.Tensor) or q_offset + q_length != kv_offset + kv_length):
        raise ValueError(
            f'attn_implementation="{NAME}" needs the last query to be at the last key, as in a dynamic cache; a static '
            "cache has keys that do not exist yet"
        )
    chunk = getattr(config, "attention_chunk_size", None)
    if chunk is not None and chunk == local_size and kv_offset + kv_length > chunk:
        raise ValueError(
            f'attn_implementation="{NAME}" does not support chunked attention, but the input is longer than a chunk of '
            f"{chunk} tokens"
        )
    if attention_mask is None:
        return None
    seen = attention_mask[:, -kv_length:].cpu()
    lengths = seen.sum(-1)
    if not torch.equal(seen, torch.arange(kv_length, device="cpu") < lengths[:, None]):
        raise ValueError(
            f'attn_implementation="{NAME}" supports padding on the right only, but attention_mask has a 0 before a 1; '
            'pad with padding_side="right", or do not pad'
        )
    return None if seen.all() else lengths


def attention(
    module: torch.nn.Module,
    query: torch.Tensor,
    key: torch.Tensor,
    value: torch.Tensor,
    attention_mask: torch.Tensor | None,
    dropout: float = 0.0,
    scaling: float | None = None,
    sliding_window: int | None = None,
    softcap: float | None = None,
    is_causal: bool | None = None,
    s_aux: torch.Tensor | None = None,
    **others: object,
) -> tuple[torch.Tensor, None]:
    """AttentionInterface calls this for each layer. query, key and value are [batch, heads, seq_len, head_dim].

    Returns [batch, seq_len, heads, head_dim], and None in place of the weights, which exist only within the kernel.
    """
    asked = others | {"dropout": dropout or None}
    for name, remedy in _NOT_SUPPORTED.items():
        if asked.get(name) is not None and asked[name] is not False:
            raise ValueError(f'attn_implementation="{NAME}" does not support {name}; {remedy}')
    if (query.shape[-1], value.shape[-1]) not in _HEAD_DIMS:
        raise ValueError(
            f'attn_implementation="{NAME}" has no kernel for head_dim {_sizes(query.shape[-1], value.shape[-1])}; '
            f"supported: {', '.join(_sizes(*sizes) for sizes in _HEAD_DIMS)}"
        )
    if attention_mask is not None and attention_mask.ndim != 1:
        raise ValueError(
            f'attn_implementation="{NAME}" does not support a mask of shape {tuple(attention_mask.shape)}; pass '
            "a padding mask of shape [batch, seq_len] to the model, or none"
        )
    q_length, kv_length = query.shape[2], key.shape[2]
    causal = bool(getattr(module, "is_causal", True) if is_causal is None else is_causal)
    window = None
    if sliding_window is not None and sliding_window < kv_length:
        window = (sliding_window - 1, -1 if causal else sliding_window - 1)
    lengths = None
    if attention_mask is not None and (causal or window):  # queries are the last tokens, and padding follows them
        lengths = (attention_mask - (kv_length - q_length)).clamp(min=0)
    out = forward(
        query.transpose(1, 2),
        key.transpose(1, 2),
        value.transpose(1, 2),
        softmax_scale=scaling,
        causal=causal,
        window=window,
        softcap=softcap,
        sinks=None if s_aux is None else s_aux.float(),
        lengths=lengths,
        lengths_kv=attention_mask,
    )
    return cast("torch.Tensor", out), None
