"""The private functions of PyTorch that the comparison uses, which another release may change or remove.

PyTorch has no public function for either: torch.utils.cpp_extension compiles with nvcc and a host compiler, and a
machine that only has PyTorch lacks both.
"""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType


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
