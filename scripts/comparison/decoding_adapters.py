"""Adapters for implementations of decoding: attention of one query against a cache of K and V."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType
from typing import Any

from ladder import HEAD_DIM

from comparison.adapters import Adapters
from comparison.decoding_problems import PAGE_SIZE, QUERY_HEADS, Cache, DecodingProblem
from comparison.implementations import Implementation, Kernel
from comparison.reference import Reference

Tensors = tuple[Any, Any, Any, Any]

SDPA_LACKS = {
    "lengths": "scaled_dot_product_attention takes no lengths",
    "paged": "scaled_dot_product_attention takes no page table",
}


class DecodingAdapters(Adapters):
    """The ladder's versions, its peers, and their inputs. It has `ladder`, the Python package."""

    ladder: ModuleType

    def decoding_version(self, kernel: Kernel) -> Implementation:
        def prepare(q: Any, k: Any, v: Any, out: Any, cache: Cache) -> Callable[[], Any]:  # noqa: ANN401 (tensors)
            options = {"kernel": kernel.name, "config": kernel.config, "out": out}
            return lambda: self.ladder.decode(q, k, v, cache.lengths, cache.page_table, **options)

        return Implementation(kernel.label, "", prepare, kernel)

    def decoding_peers(self, without: set[str]) -> tuple[list[Implementation], dict[str, str]]:
        """The peers that can be imported, and the reasons why others cannot."""
        sdpa = "PyTorch SDPA {} backend"
        makers = {
            "fa2": lambda: self._sdpa("FlashAttention-2", "FLASH_ATTENTION", sdpa.format("flash"), SDPA_LACKS),
            "cudnn": lambda: self._sdpa("cuDNN", "CUDNN_ATTENTION", sdpa.format("cuDNN"), SDPA_LACKS),
            "fa3": self._flash_attention_3_with_cache,
        }
        return self.found_peers(makers, without, set(makers))

    def _flash_attention_3_with_cache(self) -> Implementation:
        from flash_attn_interface import flash_attn_with_kvcache

        def prepare(q: Any, k: Any, v: Any, out: Any, cache: Cache) -> Callable[[], Any]:  # noqa: ANN401 (tensors)
            options = {"cache_seqlens": cache.lengths, "page_table": cache.page_table}
            options = {name: tensor for name, tensor in options.items() if tensor is not None}
            return lambda: flash_attn_with_kvcache(q, k, v, **options)

        return Implementation("FlashAttention-3", "Hopper instructions, its own number of splits", prepare)

    def cache(
        self, problem: DecodingProblem, batch: int, keys: int, dtype: str, seed: int
    ) -> tuple[Tensors, Cache, Reference]:
        """q, k, v of random normal numbers and an empty out; the lengths and pages of k and v; and the right output.

        A cache has room for its longest sequence. Its pages are in random order.
        """
        torch, lengths = self.torch, problem.lengths(batch, keys)
        generator = torch.Generator("cuda").manual_seed(seed)
        options = {"device": "cuda", "dtype": {"fp16": torch.float16, "bf16": torch.bfloat16}[dtype]}
        of_q = (batch, 1, QUERY_HEADS, HEAD_DIM)
        of_k = (batch, max(lengths), problem.kv_heads, HEAD_DIM)
        q, k, v = (torch.randn(shape, generator=generator, **options) for shape in (of_q, of_k, of_k))
        out = torch.empty(of_q, **options)
        reference = Reference(torch, q, k, v, None, lengths=lengths)
        page_table = None
        if problem.paged:
            pages = batch * max(lengths) // PAGE_SIZE
            order = torch.randperm(pages, generator=generator, device="cuda")
            k, v = (self._in_pages(tensor, order) for tensor in (k, v))
            page_table = order.reshape(batch, pages // batch).to(torch.int32)
        on_gpu = torch.tensor(lengths, dtype=torch.int32, device="cuda") if "lengths" in problem.fields else None
        return (q, k, v, out), Cache(problem.fields, on_gpu, page_table), reference

    def _in_pages(self, tensor: Any, order: Any) -> Any:  # noqa: ANN401 (tensors)
        """Its rows in pages, of which order[i] has those from i * PAGE_SIZE on."""
        rows = tensor.reshape(len(order), PAGE_SIZE, *tensor.shape[2:])
        pages = self.torch.empty(rows.shape, dtype=tensor.dtype, device=tensor.device)
        pages[order] = rows
        return pages
