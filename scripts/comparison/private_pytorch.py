"""The private functions of PyTorch that the comparison uses, which another release may change or remove.

PyTorch has no public function for them: torch.utils.cpp_extension compiles with nvcc and a host compiler, and a machine
that only has PyTorch lacks both; and autograd runs a backward pass with work of its own around it.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType, SimpleNamespace
from typing import Any


def compile_kernel(torch: ModuleType, source: str, name: str, capability: str | None) -> Callable[..., None]:
    """Compiles CUDA C++ with NVRTC for a compute capability such as "90a"; None is that of the GPU.

    Raises RuntimeError if it does not compile, or if this PyTorch has no such function.
    """
    try:
        return torch.cuda._compile_kernel(source, name, compute_capability=capability)
    except (AttributeError, TypeError) as error:
        raise RuntimeError(f"this PyTorch cannot compile CUDA: {error}") from error


def queue_sleep(torch: ModuleType, cycles: int) -> None:
    """Keeps the GPU's current stream waiting for a number of clock cycles."""
    torch.cuda._sleep(cycles)


def flash_gradients(torch: ModuleType, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Callable[[], Any]:  # noqa: ANN401
    """Runs FlashAttention-2's forward pass, and returns a launcher of its backward pass, which returns (dq, dk, dv).

    All tensors are [batch, heads, seq_len, head_dim]. Raises RuntimeError if PyTorch has no such operator, or if the
    operator does not support the problem. The same applies to the next function.
    """
    aten = _operators(torch, "flash")
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = aten.forward(q, k, v, 0.0, causal, False)
    lengths, dropout = (cum_q, cum_k, max_q, max_k), (0.0, causal)
    return lambda: aten.backward(dout, q, k, v, out, lse, *lengths, *dropout, seed, offset)


def cudnn_gradients(torch: ModuleType, q: Any, k: Any, v: Any, dout: Any, causal: bool) -> Callable[[], Any]:  # noqa: ANN401
    """The same of cuDNN."""
    aten, bias, log_sum_exp = _operators(torch, "cudnn"), None, True
    out, lse, cum_q, cum_k, max_q, max_k, seed, offset, _ = aten.forward(
        q, k, v, bias, log_sum_exp, 0.0, causal, False
    )  # fmt: skip
    lengths, dropout = (cum_q, cum_k, max_q, max_k), (0.0, causal)
    return lambda: aten.backward(dout, q, k, v, out, lse, seed, offset, bias, *lengths, *dropout)


def _operators(torch: ModuleType, backend: str) -> SimpleNamespace:
    name = f"_scaled_dot_product_{backend}_attention"
    try:
        return SimpleNamespace(
            forward=getattr(torch.ops.aten, name), backward=getattr(torch.ops.aten, f"{name}_backward")
        )
    except AttributeError as error:
        raise RuntimeError(f"this PyTorch has no operator for it: {error}") from error
