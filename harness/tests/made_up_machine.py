"""A made-up GPU, for the tests of scripts/peers."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "peers"
HASH = "sha256:" + "7" * 64
KNOWN = ["03_tiled", "04_mma", "05_cp_async", "16_overlapped_softmax", "causal", "fp8"]


@pytest.fixture(scope="module")
def peers() -> ModuleType:
    loader = importlib.machinery.SourceFileLoader("peers", str(SCRIPT))
    spec = importlib.util.spec_from_loader("peers", loader)
    assert spec is not None
    module = importlib.util.module_from_spec(spec)
    sys.modules["peers"] = module  # dataclasses look there
    writes_bytecode, sys.dont_write_bytecode = sys.dont_write_bytecode, True
    loader.exec_module(module)
    sys.dont_write_bytecode = writes_bytecode
    return module


class MadeUpMachine:
    """A GPU on which every implementation takes a given time, and may be wrong."""

    device_name = "NVIDIA H200"

    def __init__(self, peers: ModuleType) -> None:
        self.peers_module = peers
        self.milliseconds = {"FlashAttention-2": 8.0}
        self.errors: dict[str, float] = {}
        self.broken: set[str] = set()
        self.broken_alone: set[str] = set()
        self.rounds: list[int] = []
        self.alone: list[str] = []  # the implementations that were timed alone
        self.stops_after = 10**6  # after this many of them
        self.problems: list[tuple[int, int, str, int]] = []

    def kernels(self, *, gradients: bool) -> list[str]:
        return KNOWN

    def ours(self, kernel: Any) -> Any:  # noqa: ANN401 (peers.Kernel, peers.Implementation)
        return self.peers_module.Implementation(kernel.label, "", self._prepare(kernel.label), kernel)

    def computes(self, kernel: str, dtype: str) -> bool:
        return (kernel == "fp8") == (dtype == "e4m3")

    def peers(self, without: set[str], dtype: str) -> tuple[list[Any], dict[str, str]]:
        if dtype == "e4m3":
            return [self.peers_module.Implementation("FlashAttention-3", "", self._prepare("FA3"))], {"fa2": "no e4m3"}
        missing = {name: "left out by --without" for name in sorted(without)} | {"fa3": "not installed"}
        names = {"fa2": "FlashAttention-2", "cudnn": "cuDNN"}
        found = [self.peers_module.Implementation(name, "a note", self._prepare(name))
                 for short, name in names.items() if short not in without]  # fmt: skip
        return found, missing

    def _prepare(self, name: str) -> Callable[..., Callable[[], str]]:
        return lambda *tensors: lambda: name

    def describe(self) -> dict[str, Any]:
        clocks = {"sm_max_mhz": 1980, "memory_max_mhz": None}
        names = ("driver", "cuda", "pytorch", "triton", "flash_ladder", "python")
        return dict.fromkeys(names, "1.0") | {"cudnn": 91002, "clocks": clocks, "power_limit_watts": 700.0}

    def tensors(self, batch: int, seq_len: int, dtype: str, seed: int) -> tuple[int, int, int, int]:
        self.problems.append((batch, seq_len, dtype, seed))
        return (0, 0, 0, 0)

    def reference(self, tensors: object) -> MadeUpMachine:
        return self

    def relative_error(self, output: str) -> float:
        return self.errors.get(output, 0.25)

    def launcher(self, implementation: Any, tensors: tuple[Any, ...]) -> Callable[[], str]:  # noqa: ANN401
        if implementation.name in self.broken:
            raise RuntimeError("No available kernel. Aborting execution.")
        return implementation.prepare(*tensors)

    def time_in_turn(self, launches: list[Callable[[], str]], rounds: int) -> list[list[float]]:
        self.rounds.append(rounds)
        return [[self.milliseconds.get(launch(), 4.0)] * rounds for launch in launches]

    def time_alone(self, launch: Callable[[], str]) -> Any:  # noqa: ANN401 (peers.Timing)
        """Half as fast as when taking turns: 400 W for the fast one, 500 W for all others."""
        name = launch()
        if name in self.broken_alone:
            raise RuntimeError("40 of its launches reached the GPU late")
        if len(self.alone) == self.stops_after:
            raise KeyboardInterrupt
        self.alone.append(name)
        watts = 400.0 if name == "FlashAttention-2" else 500.0
        return self.peers_module.Timing([2 * self.milliseconds.get(name, 4.0)] * 30, watts, 1725)

    def ceiling(self, ceiling: Any) -> tuple[Callable[[], str], float]:  # noqa: ANN401 (peers.Ceiling)
        if "ceiling" in self.broken:
            raise RuntimeError("this PyTorch cannot compile CUDA")
        return lambda: f"ceiling of {ceiling.name}", 8e12  # in 8 ms

    def why_no_load(self) -> str:
        return ""


def write_harness(path: Path, known: list[str]) -> None:
    """A program that only lists these versions."""
    versions = [{"kernel": name[:2] if "_" in name else name, "code_hash": HASH} for name in known]
    path.write_text(f"#!/bin/sh\necho '{json.dumps({'versions': versions})}'\n", encoding="utf-8")
    path.chmod(0o755)


@pytest.fixture
def machine(peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpMachine:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "HARNESS", tmp_path / "harness")
    write_harness(tmp_path / "harness", KNOWN)
    return MadeUpMachine(peers)
