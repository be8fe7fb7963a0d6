"""The GPU, through PyTorch."""

from __future__ import annotations

import contextlib
import importlib.metadata
import math
import platform
import re
import subprocess
import sys
from collections.abc import Callable
from types import ModuleType
from typing import Any

import distributions
from ladder import HEADS, ROOT

from comparison.ceilings import Ceiling
from comparison.decoding_adapters import DecodingAdapters
from comparison.decoding_problems import Cache
from comparison.gradient_adapters import ForwardPass, GradientAdapters
from comparison.implementations import Implementation, Kernel, UnavailableError
from comparison.private_pytorch import compile_kernel
from comparison.problems import PLAIN, Problem
from comparison.reference import PackedReference, Reference
from comparison.timing import Timer


class Machine(DecodingAdapters, GradientAdapters, Timer):
    """The GPU, PyTorch and the ladder's Python package. Tests substitute another one."""

    def __init__(self) -> None:
        self.torch = self._torch()
        self.ladder = self._ladder()
        self.properties = self.torch.cuda.get_device_properties(0)
        self.device_name: str = self.properties.name
        self.torch.set_float32_matmul_precision("highest")  # float32 must really be float32
        self.scales: Any = None  # of the most recently created tensors, if they are e4m3: [3, batch, heads]

    @staticmethod
    def _torch() -> ModuleType:
        try:
            import torch
        except ImportError as error:
            raise UnavailableError(
                f"PyTorch cannot be imported ({error}); run this with a Python that has it, or install it for this one:"
                f" {sys.executable} -m pip install torch"
            ) from error
        if not torch.cuda.is_available():
            raise UnavailableError(
                f"PyTorch {torch.__version__} sees no GPU; check whether nvidia-smi lists one, what "
                f"CUDA_VISIBLE_DEVICES is"
                " set to, and whether this PyTorch was built for CUDA"
            )
        return torch

    @staticmethod
    def _ladder() -> ModuleType:
        try:
            import flash_ladder
        except ImportError as error:
            raise UnavailableError(
                f"the ladder's Python package cannot be imported ({error}); install it into the Python that runs this"
                f" ({sys.executable}): {sys.executable} -m pip install {ROOT / 'harness' / 'python'}"
            ) from error
        return flash_ladder

    def kernels(self, *, gradients: bool) -> list[str]:
        return self.ladder.kernels(gradients=gradients)

    def dtype(self, name: str) -> Any:  # noqa: ANN401 (a torch.dtype)
        return {"fp16": self.torch.float16, "bf16": self.torch.bfloat16, "e4m3": self.torch.float8_e4m3fn}[name]

    def computes(self, kernel: str, dtype: str) -> bool:
        """Whether it has a configuration for the type."""
        name = str(self.dtype(dtype)).removeprefix("torch.")
        return any(config.dtype == name for config in self.ladder.configs(kernel))

    def ours(self, kernel: Kernel) -> Implementation:
        def prepare(q: Any, k: Any, v: Any, out: Any, problem: Problem = PLAIN) -> Callable[[], Any]:  # noqa: ANN401
            options = {"kernel": kernel.name, "config": kernel.config, "scales": self.scales, "out": out}
            options |= {"causal": True} if problem.causal else {}
            options |= {} if problem.window_left is None else {"window": (problem.window_left, 0)}
            options |= {"cu_seqlens_q": problem.first_rows} if problem.packed else {}
            return lambda: self.ladder.forward(q, k, v, **options)

        return Implementation(kernel.label, "", prepare, kernel)

    def ceiling(self, ceiling: Ceiling) -> tuple[Callable[[], Any], float]:
        """Returns a launcher of only that kind of instruction, and the operations per launch. Raises RuntimeError."""
        capability = f"{self.properties.major}{self.properties.minor}a"
        if ceiling.capability not in (None, capability):
            raise RuntimeError(f"sm_{ceiling.capability} has {ceiling.name}, and this is sm_{capability}")
        blocks, threads = ceiling.ctas_per_sm * self.properties.multi_processor_count, 256
        kernel = compile_kernel(self.torch, ceiling.source, "ceiling", ceiling.capability)
        operands = self.torch.randn(2 * ceiling.operands, device="cuda", dtype=self.torch.float16)
        out = self.torch.empty(blocks * threads, device="cuda", dtype=self.torch.float32)

        def launch() -> Any:  # noqa: ANN401
            kernel(grid=(blocks, 1, 1), block=(threads, 1, 1), args=[operands, out, ceiling.rounds])
            return out

        return launch, blocks * threads / 32 * ceiling.rounds * ceiling.operations

    def tensors(
        self, batch: int, seq_len: int, dtype: str, seed: int, problem: Problem = PLAIN
    ) -> tuple[Any, Any, Any, Any]:
        """q, k, v of random normal numbers, and an empty out; of a packed problem, without the first dimension. For
        e4m3, which has all heads, it sets `scales`, and out is fp16."""
        generator = self.torch.Generator("cuda").manual_seed(seed)
        rows = (batch * seq_len,) if problem.packed else (batch, seq_len)
        shape, shape_kv = ((*rows, heads, problem.head_dim) for heads in (HEADS, problem.kv_heads))
        options = {"device": "cuda", "dtype": self.dtype("fp16" if dtype == "e4m3" else dtype)}
        numbers = [self.torch.randn(of, generator=generator, **options) for of in (shape, shape_kv, shape_kv)]
        out = self.torch.empty(shape, **options)
        self.scales = None
        if dtype == "e4m3":
            largest = self.torch.stack([x.abs().amax(dim=(1, 3)) for x in numbers]).float()
            self.scales = largest / self.torch.finfo(self.dtype(dtype)).max  # [3, batch, heads]
            for i, scale in enumerate(self.scales):
                numbers[i] = (numbers[i].float() / scale[:, None, :, None]).to(self.dtype(dtype))
        q, k, v = numbers
        return q, k, v, out

    def fill(self, tensors: tuple[Any, Any, Any, Any], data: str, seed: int) -> None:
        """Fills 16-bit q, k and v with such data (distributions.py)."""
        generator = self.torch.Generator("cuda").manual_seed(seed)
        source = distributions.Source(
            self.torch,
            lambda shape: self.torch.randn(shape, generator=generator, device="cuda"),
            lambda n: self.torch.arange(n, device="cuda", dtype=self.torch.float32),
        )
        made = distributions.make(data, *tensors[0].shape[:3], source)
        for tensor, numbers in zip(tensors, made, strict=False):
            tensor.copy_(numbers)

    def launcher(
        self,
        implementation: Implementation,
        tensors: tuple[Any, Any, Any, Any],
        problem: Problem | Cache | ForwardPass = PLAIN,
    ) -> Callable[[], Any]:
        """Raises RuntimeError if it does not run."""
        launch = implementation.prepare(*tensors, *([] if problem is PLAIN else [problem]))
        self.output(launch, tensors)
        return launch

    def output(self, launch: Callable[[], Any], tensors: tuple[Any, Any, Any, Any]) -> Any:  # noqa: ANN401 (a tensor)
        """The output of one launch. Raises RuntimeError for CUDA errors."""
        outputs = tensors[3] if isinstance(tensors[3], tuple) else (tensors[3],)
        for output in outputs:
            output.fill_(math.nan)  # so that an unwritten element is wrong
        free = [output.clone() for output in outputs]
        del free  # a launch that allocates its output gets this memory, which contains NaN
        output = launch()
        self.torch.cuda.synchronize()
        return output

    def reference(
        self, tensors: tuple[Any, Any, Any, Any], every: int = 1, problem: Problem = PLAIN
    ) -> Reference | PackedReference:
        if problem.packed:
            return PackedReference(self.torch, *tensors[:3], every, problem)
        return Reference(self.torch, *tensors[:3], self.scales, every, problem)

    def describe(self) -> dict[str, Any]:
        """Versions of all software."""
        fields = ["driver_version", "clocks.max.sm", "clocks.max.memory", "power.limit"]
        values: list[str | None] = [None] * len(fields)
        with contextlib.suppress(OSError, subprocess.CalledProcessError, IndexError):
            uuid = f"GPU-{self.properties.uuid}" if hasattr(self.properties, "uuid") else "0"
            query = ["nvidia-smi", f"--query-gpu={','.join(fields)}", "--format=csv,noheader,nounits", "-i", uuid]
            found = subprocess.run(query, capture_output=True, text=True, check=True).stdout.splitlines()[0].split(", ")
            values = [value if re.match(r"\d", value) else None for value in found]
        driver, sm_mhz, memory_mhz, watts = values

        def version(package: str) -> str | None:
            with contextlib.suppress(importlib.metadata.PackageNotFoundError):
                return importlib.metadata.version(package)
            return None

        return {
            "driver": driver,
            "cuda": self.torch.version.cuda,
            "pytorch": self.torch.__version__,
            "cudnn": self.torch.backends.cudnn.version(),
            "triton": version("triton"),
            "flash_ladder": version("flash_ladder"),
            "python": platform.python_version(),
            "clocks": {
                "sm_max_mhz": int(sm_mhz) if sm_mhz else None,
                "memory_max_mhz": int(memory_mhz) if memory_mhz else None,
            },
            "power_limit_watts": float(watts) if watts else None,
        }
