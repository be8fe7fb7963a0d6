"""scripts/peers --gradients on a made-up GPU, the right gradients, and how the implementations are called."""

from __future__ import annotations

import json
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any, ClassVar

import numpy as np
import pytest
from comparison import gradients
from comparison.gradient_adapters import ForwardPass
from comparison.gradient_reference import GradientReference
from comparison.problems import GRADIENTS, Problem
from float64_attention import attention_and_lse
from float64_attention import gradients as float64_gradients
from ladder import HARNESS, SHAPES
from made_up_machine import HASH, MadeUpMachine
from numpy_torch import NumpyTorch, Tensor
from schemas import validate_peers_gradients

LENGTHS = {"full": [512, 1024, 2048, 4096, 8192, 16384], "grouped-heads": [1024, 4096, 16384]}
LENGTHS["causal"] = LENGTHS["full"]


def version(name: str, extends: str | None, *solves: str, hopper: bool = False, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """As harness --list --json describes it."""
    return {
        "kernel": name.split("_")[0] if name[1].isdigit() else name,
        "code_hash": HASH,
        "extends": extends,
        "is_fast": True,
        "architecture": "sm_90a" if hopper else "sm_80",
        "kind": "backward",
        "deterministic": False,
        "solves": {field: field in solves for field in ("causal", "kv_heads")},
        "configurations": [{"name": "64x64", "dtype": "fp16", "head_dim": 128}],
    } | changes


LISTED = [
    version("16_overlapped_softmax", None, kind="forward", deterministic=True),
    version("B01_naive", None, is_fast=False, deterministic=True),
    version("B03_mma", None),
    version("B04_cp_async", None),
    version("B08_dq_apart", None, deterministic=True),
    version("B09_coalesced_dq", None),
    version("B10_wgmma", None, hopper=True),
    version("B11_tma", None, hopper=True),
    version("backward_any_length", "backward_causal", "causal"),
    version("backward_causal", "B09", "causal"),
    version("backward_grouped_heads", "backward_any_length", "causal", "kv_heads"),
]
VERSIONS = {one["kernel"]: one for one in LISTED}
OF_FULL = ["B03", "B08", "B09", "B10", "B11"]
OF_CAUSAL = ["backward_causal", "backward_grouped_heads"]
PEERS = ["FlashAttention-2", "cuDNN", "FlashAttention-3", "FlashAttention-3 deterministic"]


class GradientMachine(MadeUpMachine):
    """Two peers of PyTorch, and both modes of FlashAttention-3."""

    def __init__(self, peers: ModuleType) -> None:
        super().__init__(peers)
        self.launched: list[tuple[str, str, int]] = []
        self.made: list[tuple[str, int, int, str, int]] = []
        self.wrong_on = ("", "")

    def kernels(self, *, gradients: bool) -> list[str]:
        if not gradients:
            return ["16_overlapped_softmax"]  # as the Python package, whose forward() runs no version for gradients
        return ["B01_naive", "B03_mma", "B04_cp_async", "B08_dq_apart", "B09_coalesced_dq", "B10_wgmma",
                "B11_tma", "backward_any_length", "backward_causal", "backward_grouped_heads"]  # fmt: skip

    def gradient_version(self, kernel: Any) -> Any:  # noqa: ANN401 (peers.Kernel, peers.Implementation)
        return self.ours(kernel)

    def gradient_peers(self, without: set[str]) -> tuple[list[Any], dict[str, str]]:
        found, missing = super().peers(without, "fp16")
        for name in PEERS[2:]:
            deterministic = name.endswith("deterministic")
            make = self.peers_module.Implementation
            found.append(make(name, "a note", self._prepare(name), deterministic=deterministic))
        return found, {name: why for name, why in missing.items() if name != "fa3"}

    def backward_problem(self, problem: Problem, *of: Any) -> tuple[tuple[int, ...], str, GradientMachine]:  # noqa: ANN401
        *shape_dtype_and_seed, every = of
        assert every > 1 and every % 2 == 1, "else some lanes' rows are never looked at"
        self.made.append((problem.name, *shape_dtype_and_seed))
        return (0, 0, 0, 0), problem.name, self

    def launcher(self, implementation: Any, tensors: tuple[Any, ...], forward: str) -> Callable[[], str]:  # noqa: ANN401
        assert forward == self.made[-1][0]
        self.launched.append((implementation.name, forward, self.made[-1][2]))
        return super().launcher(implementation, (*tensors, forward))

    def output(self, launch: Callable[[], str], tensors: object) -> str:
        return launch()

    def relative_error(self, output: str) -> float:
        return 7.0 if (output, self.made[-1][0]) == self.wrong_on else 0.25

    def time_alone(self, launch: Callable[[], str], warm_up_seconds: float, timed_seconds: float) -> Any:  # noqa: ANN401
        assert (warm_up_seconds, timed_seconds) == (0.25, 0.2)
        return super().time_alone(launch)


@pytest.fixture
def gradient_machine(peers: ModuleType, machine: MadeUpMachine) -> GradientMachine:
    del machine  # it has changed where files go
    listed = json.dumps({"versions": LISTED})
    peers.HARNESS.write_text(f"#!/bin/sh\necho '{listed}'\n", encoding="utf-8")
    return GradientMachine(peers)


def written(tmp_path: Path, name: str = "peers_gradients.json") -> dict[str, Any]:
    document = json.loads((tmp_path / "profiles" / "h200" / name).read_text(encoding="utf-8"))
    validate_peers_gradients(document)
    return document


def test_the_whole_table(peers: ModuleType, gradient_machine: GradientMachine, tmp_path: Path) -> None:
    assert peers.main(["--gradients", "all", "--seed", "5"], lambda: gradient_machine) == 0
    assert [path.name for path in (tmp_path / "profiles" / "h200").iterdir()] == ["peers_gradients.json"]
    document = written(tmp_path)
    assert document["problem"] == {"dtype": "fp16", "heads": 16, "head_dim": 128}
    assert document["problems"] == {
        "full": {"causal": False, "kv_heads": 16, "window_left": None, "scores": "seq_len^2"},
        "causal": {"causal": True, "kv_heads": 16, "window_left": None, "scores": "seq_len^2 / 2"},
        "grouped-heads": {"causal": True, "kv_heads": 4, "window_left": None, "scores": "seq_len^2 / 2"},
    }
    assert [one["kernel"] for one in document["versions"]] == [*sorted(OF_FULL[:3]), *OF_CAUSAL, *OF_FULL[3:]]
    assert [one["name"] for one in document["peers"]] == PEERS
    assert document["deterministic"] == ["B08", "FlashAttention-3 deterministic"]
    assert document["run"]["left_out"] == {}

    at = [(name, batch, n) for name in GRADIENTS for batch, n in SHAPES if n in LENGTHS[name]]
    assert gradient_machine.made == [(*cell, "fp16", 5) for cell in at]
    cells = {
        one["name"]: [(r["problem"], r["batch"], r["seq_len"]) for r in one["results"]]
        for one in (*document["versions"], *document["peers"])
    }
    assert cells["FlashAttention-2"] == cells["backward_grouped_heads"] == at
    assert cells["backward_causal"] == [cell for cell in at if cell[0] != "grouped-heads"]
    assert cells["mma"] == [cell for cell in at if cell[0] == "full"]

    for result in document["peers"][0]["results"]:
        forward = 4 * result["batch"] * 16 * 128 * result["seq_len"] ** 2 / (1 if result["problem"] == "full" else 2)
        assert result["tflops"] == pytest.approx(2.5 * forward / result["ms"]["median"] / 1e9, abs=0.01)


@pytest.mark.parametrize(
    ("problem", "names"),
    [("full", OF_FULL), ("causal", OF_CAUSAL), ("grouped-heads", ["backward_grouped_heads"])],
)
def test_the_first_and_the_newest_are_chosen(problem: str, names: list[str]) -> None:
    assert sorted(gradients.best(VERSIONS, [GRADIENTS[problem]], "fp16")) == sorted(names)
    assert gradients.best(VERSIONS, [GRADIENTS[problem]], "bf16") == []


def test_the_harness_lists_what_the_choice_depends_on() -> None:
    versions = gradients.by_problem.listed(HARNESS)
    for problem in GRADIENTS.values():
        chosen = [versions[name] for name in gradients.best(versions, [problem], "fp16")]
        assert chosen and all(one["kind"] == "backward" and one["is_fast"] for one in chosen)
        assert all((one["extends"] is None) == (problem.name == "full") for one in chosen)
    full = [versions[name] for name in gradients.best(versions, [GRADIENTS["full"]], "fp16")]
    assert {one["deterministic"] for one in full} == {True, False}


def test_a_part_takes_no_file_s_place(
    peers: ModuleType, gradient_machine: GradientMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--gradients", "full,grouped-heads", "--shapes", "512,1024", "--kernels", "B01,backward_any_length"]
    assert peers.main(arguments, lambda: gradient_machine) == 0
    out = capsys.readouterr().out
    assert out.index("this run writes nothing") < out.index("TFLOP/s"), "before the minutes that it takes"
    ours = [cell for cell in gradient_machine.launched if cell[0] not in PEERS]
    assert ours == [(name, "full", n) for n in (512, 1024) for name in ("B01_naive", "backward_any_length")]
    for less in (["--shapes", "1024,4096"], ["--dtype", "bf16", "--kernels", "B03"], ["--without", "fa2"]):
        gradients_of = ["--gradients", "full" if "bf16" in less else "all"]
        assert peers.main([*gradients_of, *less], lambda: gradient_machine) == 0
    assert not (tmp_path / "profiles").exists()


def test_an_interrupted_table_is_resumed(
    peers: ModuleType, gradient_machine: GradientMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine, part = gradient_machine, tmp_path / "profiles" / "h200" / "peers_gradients.part.json"
    machine.wrong_on = ("cuDNN", "full")
    assert peers.main(["--gradients", "all"], lambda: machine) == 1
    at_once = written(tmp_path)
    assert at_once["run"]["left_out"]["cuDNN, seq_len 4096, full"] == "wrong: 7 times the allowed error"
    part.with_name("peers_gradients.json").unlink()

    cells = len(OF_FULL) + len(OF_CAUSAL) + len(PEERS) - 1  # at one length: cuDNN has none
    machine.stops_after, machine.alone = 2 * cells + 3, []
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--gradients", "all"], lambda: machine)
    assert [path.name for path in part.parent.iterdir()] == [part.name], "a part takes no whole table's place"
    written(tmp_path, part.name)

    machine.stops_after, machine.launched = 10**6, []
    assert peers.main(["--gradients", "all", "--resume"], lambda: machine) == 1, "a table that was taken is wrong"
    assert "seq_len 512, full; seq_len 1024, full is complete" in capsys.readouterr().out
    assert machine.launched[0][1:] == ("full", 2048)
    again = written(tmp_path)
    assert again | {"run": at_once["run"]} == at_once and again["run"]["left_out"] == at_once["run"]["left_out"]
    assert not part.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--gradients", "window-512"], ["--gradients: 'window-512' is not a problem", "full, causal, grouped-heads"]),
        (["--gradients", "all", "--problem", "all"], ["--gradients cannot be combined with --problem"]),
        (["--gradients", "all", "--regime", "both"], ["--regime cannot be combined with --gradients"]),
        (["--gradients", "all", "--dtype", "e4m3"], ["fp16 and bf16"]),
        (["--gradients", "grouped-heads", "--shapes", "512"], ["--shapes", "grouped-heads: 1024, 4096, 16384"]),
        (["--gradients", "all", "--kernels", "16,B03"], ["'16' names no version; there are B01_naive"]),
        (["--gradients", "causal", "--kernels", "B03"], ["none of these versions solves causal"]),
        (["--gradients", "full", "--resume"], ["--resume needs a file", "--out"]),
    ],
)
def test_bad_usage(
    peers: ModuleType,
    gradient_machine: GradientMachine,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    words: list[str],
) -> None:
    assert peers.main(arguments, lambda: gradient_machine) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and gradient_machine.made == []


def test_a_package_without_the_newest_version_is_refused(
    peers: ModuleType,
    gradient_machine: GradientMachine,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(gradient_machine, "kernels", lambda **_: ["B03_mma", "B04_cp_async"])
    assert peers.main(["--gradients", "full"], lambda: gradient_machine) == 3
    assert "older than the harness, it has no B08, B09, B10, B11; install it again" in capsys.readouterr().err
    assert peers.main(["--gradients", "full", "--kernels", "all"], lambda: gradient_machine) == 0


# ---- the right gradients ----

SMALL = {
    "full": Problem("full", ()),
    "causal": Problem("causal", (), causal=True),
    "grouped-heads": Problem("grouped-heads", (), kv_heads=2, causal=True),
}


def rounded(arrays: tuple[np.ndarray, ...]) -> tuple[Tensor, ...]:
    return tuple(array.astype(np.float16).view(Tensor) for array in arrays)


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("every", [1, 61])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # PyTorch does not warn
def test_a_wrong_gradient_is_found(name: str, every: int) -> None:
    problem, random = SMALL[name], np.random.default_rng(3)

    def normal(heads: int) -> Tensor:
        return random.standard_normal((2, 256, heads, 32)).astype(np.float16).view(Tensor)

    kv_heads = 2 if "kv_heads" in problem.fields else 6
    q, k, v, dout = normal(6), normal(kv_heads), normal(kv_heads), normal(6)
    reference = GradientReference(NumpyTorch, q, k, v, dout, every, problem)
    out, lse = attention_and_lse(q, k, v, causal=problem.causal)
    assert reference.out.dtype == np.float16 and np.abs(reference.out - out).max() < 2e-3
    assert reference.lse.dtype == np.float32 and np.abs(reference.lse - lse).max() < 1e-5

    right = rounded(float64_gradients(dout, q, k, v, causal=problem.causal))
    assert reference.relative_error(right) <= 1
    mistakes = [rounded(float64_gradients(dout, q, k, v, causal=not problem.causal))]
    for i in range(3):
        scaled = rounded((1.02 * right[i].astype(np.float64),))
        mistakes.append((*right[:i], *scaled, *right[i + 1 :]))  # one of the three is wrong
        unwritten = right[i].copy()
        unwritten[1, 61] = np.nan
        mistakes.append((*right[:i], unwritten.view(Tensor), *right[i + 1 :]))
    if problem.kv_heads == 2:  # the gradients of one head of Q instead of the sum over its group
        one = float64_gradients(dout[:, :, ::3], q[:, :, ::3], k, v, causal=True)
        mistakes.append((right[0], *rounded(one[1:])))
    for mistake in mistakes:
        assert not reference.relative_error(mistake) <= 1


# ---- how the implementations are called ----


class FakeTensor(str):
    shape = (4, 512, 16, 64)

    def transpose(self, a: int, b: int) -> FakeTensor:
        assert (a, b) == (1, 2)
        return FakeTensor(self.removesuffix("'") if self.endswith("'") else f"{self}'")


def test_the_arguments(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def operator(name: str, *returned: Any) -> Callable[..., Any]:  # noqa: ANN401
        def function(*arguments: Any, **options: Any) -> Any:  # noqa: ANN401
            asked.append((name, arguments, options))
            return returned

        return function

    of_forward = ("O", "L", "cum_q", "cum_k", 512, 640, "seed", "offset", "debug")
    of_backward = tuple(FakeTensor(f"{x}'") for x in ("dq", "dk", "dv"))
    aten = SimpleNamespace(
        _scaled_dot_product_flash_attention=operator("flash", *of_forward),
        _scaled_dot_product_flash_attention_backward=operator("flash backward", *of_backward),
        _scaled_dot_product_cudnn_attention=operator("cudnn", *of_forward),
        _scaled_dot_product_cudnn_attention_backward=operator("cudnn backward", *of_backward),
    )
    interface = SimpleNamespace(_flash_attn_backward=operator("fa3"))
    monkeypatch.setitem(sys.modules, "flash_attn_interface", interface)
    machine = object.__new__(peers.Machine)
    machine.torch = SimpleNamespace(ops=SimpleNamespace(aten=aten))
    machine.properties = SimpleNamespace(major=9)
    machine.ladder = SimpleNamespace(backward=operator("ours", *of_backward))
    implementations, missing = machine.gradient_peers(set())
    assert [one.name for one in implementations] == PEERS and missing == {}
    assert [one.deterministic for one in implementations] == [False, False, False, True]
    assert implementations[1].note.endswith("cuDNN backend, Hopper instructions")

    q, k, v, dout, out, lse = (FakeTensor(x) for x in ("q", "k", "v", "dout", "out", "lse"))
    gradients_of = ("dq", "dk", "dv")
    forward = ForwardPass(dout, out, lse, causal=True)
    ours = machine.gradient_version(peers.select_kernels("B08", ["B08_dq_apart"])[0])
    lengths, views = ("cum_q", "cum_k", 512, 640), ("q'", "k'", "v'")
    given, none = ("dout", "q", "k", "v", "out", "lse"), (None,) * 6
    of_pytorch = ("dout'", *views, "O", "L")
    scale = 1 / 8
    expected = [
        [("flash", (*views, 0.0, True, False), {}),
         ("flash backward", (*of_pytorch, *lengths, 0.0, True, "seed", "offset"), {})],
        [("cudnn", (*views, None, True, 0.0, True, False), {}),
         ("cudnn backward", (*of_pytorch, "seed", "offset", None, *lengths, 0.0, True), {})],
        [("fa3", (*given, *none, *gradients_of, scale, True), {"deterministic": False})],
        [("fa3", (*given, *none, *gradients_of, scale, True), {"deterministic": True})],
        [("ours", given, {"kernel": "B08_dq_apart", "config": None, "causal": True})],
    ]  # fmt: skip
    for one, calls in zip((*implementations, ours), expected, strict=True):
        asked.clear()
        launch = one.prepare(q, k, v, gradients_of, forward)
        assert launch() == (of_backward if one is ours else gradients_of)
        assert asked == calls
        asked.clear()
        launch()
        assert asked == calls[-1:], "the forward pass is not timed"

    del aten._scaled_dot_product_cudnn_attention_backward
    with pytest.raises(RuntimeError, match="this PyTorch has no operator for it"):
        implementations[1].prepare(q, k, v, gradients_of, forward)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    found, missing = machine.gradient_peers({"cudnn"})
    assert [one.name for one in found] == ["FlashAttention-2"] and missing["cudnn"] == "left out by --without"
    assert all(missing[name].startswith("ModuleNotFoundError") for name in ("fa3", "fa3 deterministic"))
    assert machine.gradient_peers({"fa3"})[1] == dict.fromkeys(("fa3", "fa3 deterministic"), "left out by --without")


def test_what_a_launch_does_not_write_is_wrong(peers: ModuleType) -> None:
    class Memory:
        """A tensor in memory from an allocator, which gives away first what it got back last."""

        free: ClassVar[list[list[float]]] = []

        def __init__(self) -> None:
            self.cells = self.free.pop() if self.free else [0.0]

        def fill_(self, number: float) -> None:
            self.cells[0] = number

        def clone(self) -> Memory:
            made = Memory()
            made.fill_(self.cells[0])
            return made

        def __del__(self) -> None:
            self.free.append(self.cells)

    machine = object.__new__(peers.Machine)
    machine.torch = SimpleNamespace(cuda=SimpleNamespace(synchronize=lambda: None))
    given = tuple(Memory() for _ in range(3))
    for launch in (lambda: given, lambda: tuple(Memory() for _ in range(3))):
        output = machine.output(launch, ("q", "k", "v", given))
        assert all(np.isnan(one.cells[0]) for one in output)
