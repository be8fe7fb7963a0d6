"""Adapters for those other implementations of attention that can be imported."""

from __future__ import annotations

import contextlib
import importlib.metadata
import inspect
from collections.abc import Callable, Mapping
from types import ModuleType
from typing import Any

from comparison.implementations import Implementation
from comparison.problems import HEAD_DIMS, PLAIN, Problem

# Reasons for Implementation.lacks.
ALL_FIELDS = ("causal", "kv_heads", "window", "packed", *(f"head_dim {head_dim}" for head_dim in HEAD_DIMS))
ONLY_PLAIN = dict.fromkeys(ALL_FIELDS, "computes plain attention only")
NOT_COMPILED = dict.fromkeys(ALL_FIELDS, "left out, because it compiles anew for each problem")
SDPA_LACKS = {
    "window": "scaled_dot_product_attention takes no window",
    "packed": "scaled_dot_product_attention takes no packed sequences",
}


def masks(problem: Problem) -> dict[str, Any]:
    """The arguments that flash-attn and FlashAttention-3 take for a problem. Both count the heads of k themselves."""
    made: dict[str, Any] = {"causal": True} if problem.causal else {}
    return made if problem.window_left is None else made | {"window_size": (problem.window_left, 0)}


def flash_attention_3() -> Callable[..., Any]:
    """Returns a function that computes attention on (q, k, v, scales), where scales are None or, for e4m3, [3, batch,
    heads]; a fifth argument is a problem other than the plain one.

    Raises any error that importing it raises.
    """
    from flash_attn_interface import flash_attn_func

    def attention(q: Any, k: Any, v: Any, scales: Any, problem: Problem = PLAIN) -> Any:  # noqa: ANN401 (tensors)
        names = ("q_descale", "k_descale", "v_descale")  # [batch, heads] each
        descales = {} if scales is None else dict(zip(names, scales, strict=True))
        output = flash_attn_func(q, k, v, **descales, **masks(problem))
        return output[0] if isinstance(output, tuple) else output  # some releases add the log of the sums

    return attention


class Adapters:
    """The peers. It has `torch`, `properties` of the GPU, and `scales` of the most recently created tensors."""

    torch: ModuleType
    properties: Any
    scales: Any

    def peers(self, without: set[str], dtype: str) -> tuple[list[Implementation], dict[str, str]]:
        """The peers that can be imported and compute the type, and the reasons why others cannot."""
        makers = {
            "fa2": self._flash_attention_2,
            "flex": self._flex,
            "cudnn": lambda: self._sdpa("cuDNN", "CUDNN_ATTENTION", "PyTorch SDPA cuDNN backend"),
            "flash-attn": self._flash_attn,
            "fa3": self._flash_attention_3,
            "from-scratch": self._from_scratch,
        }
        return self.found_peers(makers, without, {"fa3"} if dtype == "e4m3" else set(makers))

    def found_peers(
        self, makers: Mapping[str, Callable[[], Implementation]], without: set[str], able: set[str]
    ) -> tuple[list[Implementation], dict[str, str]]:
        """The peers that can be imported, and the reasons why others cannot; `able` are those that compute the type."""
        found: list[Implementation] = []
        missing: dict[str, str] = {}
        for name, make in makers.items():
            if name in without:
                missing[name] = "left out by --without"
                continue
            if name not in able:
                missing[name] = "does not compute e4m3 here"
                continue
            try:
                found.append(make())
            except (ImportError, AttributeError, OSError, RuntimeError) as error:  # for example, built for another
                                                                                   # PyTorch
                missing[name] = f"{type(error).__name__}: {' '.join(str(error).split())[:200]}"
        return found, missing

    def packed(self, function: Callable[..., Any], problem: Problem, **options: Any) -> Callable[..., Any]:  # noqa: ANN401
        """Returns a function of (q, k, v) that calls one like flash_attn_varlen_func for packed sequences."""
        first_rows = self.torch.tensor(problem.first_rows, dtype=self.torch.int32, device="cuda")
        longest = max(problem.lengths)

        def attention(q: Any, k: Any, v: Any) -> Any:  # noqa: ANN401 (tensors)
            output = function(q, k, v, first_rows, first_rows, longest, longest, **options)
            return output[0] if isinstance(output, tuple) else output

        return attention

    def _hopper(self) -> str:
        return ", Hopper instructions" if self.properties.major == 9 else ""

    def _sdpa(
        self, name: str, backend_name: str, note: str, lacks: Mapping[str, str] = SDPA_LACKS
    ) -> Implementation:
        from torch.nn.attention import SDPBackend, sdpa_kernel

        backend = getattr(SDPBackend, backend_name)
        attention = self.torch.nn.functional.scaled_dot_product_attention

        def prepare(q: Any, k: Any, v: Any, out: Any, problem: Problem = PLAIN) -> Callable[[], Any]:  # noqa: ANN401
            if "packed" in problem.fields:
                return self._varlen_attn(backend, q, k, v, problem)
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))  # views: SDPA wants heads before seq_len
            options = {"is_causal": True} if problem.causal else {}
            options |= {"enable_gqa": True} if "kv_heads" in problem.fields else {}

            def launch() -> Any:  # noqa: ANN401
                with sdpa_kernel(backend):
                    return attention(q, k, v, **options).transpose(1, 2)

            return launch

        note += self._hopper() if name == "cuDNN" else ""
        return Implementation(name, note, prepare, lacks=lacks)

    def _flash_attention_2(self) -> Implementation:
        """Through PyTorch, whose varlen_attn takes packed sequences."""
        lacks = dict(SDPA_LACKS)
        try:
            from torch.nn.attention.varlen import varlen_attn  # noqa: F401
        except ImportError:
            lacks["packed"] = "this PyTorch has no varlen_attn"
        else:
            del lacks["packed"]
        return self._sdpa("FlashAttention-2", "FLASH_ATTENTION", "PyTorch SDPA flash backend", lacks)

    def _varlen_attn(self, backend: Any, q: Any, k: Any, v: Any, problem: Problem) -> Callable[[], Any]:  # noqa: ANN401
        from torch.nn.attention import sdpa_kernel
        from torch.nn.attention.varlen import varlen_attn

        masks_by_name = "is_causal" in inspect.signature(varlen_attn).parameters  # in its first releases
        causal = {"is_causal": True} if masks_by_name else {"window_size": (-1, 0)}
        attention = self.packed(varlen_attn, problem, **(causal if problem.causal else {}))

        def launch() -> Any:  # noqa: ANN401
            with sdpa_kernel(backend):  # later releases would prefer cuDNN
                return attention(q, k, v)

        return launch

    def _flex(self) -> Implementation:
        from torch.nn.attention.flex_attention import flex_attention

        def prepare(q: Any, k: Any, v: Any, out: Any) -> Callable[[], Any]:  # noqa: ANN401
            q, k, v = (tensor.transpose(1, 2) for tensor in (q, k, v))
            self.torch.compiler.reset()  # each shape is compiled separately
            compiled = self.torch.compile(flex_attention, dynamic=False)
            return lambda: compiled(q, k, v).transpose(1, 2)

        return Implementation("FlexAttention", "Triton" + self._hopper(), prepare, lacks=NOT_COMPILED)

    def _flash_attn(self) -> Implementation:
        from flash_attn import flash_attn_func, flash_attn_varlen_func

        note = f"its own package, {importlib.metadata.version('flash-attn')}"

        def prepare(q: Any, k: Any, v: Any, out: Any, problem: Problem = PLAIN) -> Callable[[], Any]:  # noqa: ANN401
            if problem.packed:
                attention = self.packed(flash_attn_varlen_func, problem, **masks(problem))
                return lambda: attention(q, k, v)
            return lambda: flash_attn_func(q, k, v, **masks(problem))

        return Implementation("flash-attn", note, prepare)

    def _flash_attention_3(self) -> Implementation:
        attention = flash_attention_3()

        def prepare(q: Any, k: Any, v: Any, out: Any, problem: Problem = PLAIN) -> Callable[[], Any]:  # noqa: ANN401
            if problem.packed:
                from flash_attn_interface import flash_attn_varlen_func

                packed_attention = self.packed(flash_attn_varlen_func, problem, **masks(problem))
                return lambda: packed_attention(q, k, v)
            return lambda scales=self.scales: attention(q, k, v, scales, problem)

        return Implementation("FlashAttention-3", "Hopper instructions", prepare)

    def _from_scratch(self) -> Implementation:
        import flash_attention
        from flash_helpers import kernel_configs

        tiles: set[str] = set()

        def prepare(q: Any, k: Any, v: Any, out: Any) -> Callable[[], Any]:  # noqa: ANN401
            """Its own tuning times all configurations at each shape; this does the same with those that were built."""
            element = kernel_configs.DType.FP16 if q.dtype == self.torch.float16 else kernel_configs.DType.BF16
            timed: list[tuple[float, Any]] = []
            for config in kernel_configs.get_autotuning_kernel_configs([element]):
                with contextlib.suppress(RuntimeError):  # "Kernel configuration was not found"
                    timed.append((self._briefly(lambda c=config: flash_attention.forward(c, q, k, v, out)), config))
            if not timed:
                raise RuntimeError("none of the configurations that its tuning tries was built")
            config = min(timed, key=lambda one: one[0])[1]
            tiles.add(f"{config.B_r}x{config.B_c}, {config.n_warps} warps")
            implementation.note = f"its final kernel, fastest tile: {' or '.join(sorted(tiles))}"
            return lambda: flash_attention.forward(config, q, k, v, out)

        implementation = Implementation("flash_attention_from_scratch", "its final kernel", prepare, lacks=ONLY_PLAIN)
        return implementation

    def _briefly(self, launch: Callable[[], Any]) -> float:
        """Milliseconds of the fastest of a few launches, which is accurate enough for choosing."""
        begin, end = (self.torch.cuda.Event(enable_timing=True) for _ in range(2))
        times = []
        for _ in range(5):
            begin.record()
            launch()
            end.record()
            end.synchronize()
            times.append(begin.elapsed_time(end))
        return min(times)
