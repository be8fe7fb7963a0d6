"""scripts/peers without a GPU: with a made-up one in its place, and what it says where something is missing."""

from __future__ import annotations

import importlib.machinery
import importlib.util
import json
import math
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path
from types import ModuleType
from typing import Any

import pytest
from schemas import validate_peers

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "peers"
KNOWN = ["03_tiled", "04_mma", "05_cp_async", "16_optimized_softmax"]


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
    """A GPU on which every implementation takes as long as is said, and may be wrong."""

    device_name = "NVIDIA H200"

    def __init__(self, peers: ModuleType) -> None:
        self.peers_module = peers
        self.milliseconds = {"FlashAttention-2": 8.0}
        self.errors: dict[str, float] = {}
        self.broken: set[str] = set()
        self.rounds: list[int] = []
        self.problems: list[tuple[int, int, str, int]] = []

    def kernels(self) -> list[str]:
        return KNOWN

    def ours(self, kernel: Any) -> Any:  # noqa: ANN401 (peers.Kernel, peers.Implementation)
        return self.peers_module.Implementation(kernel.label, "", self._prepare(kernel.label), kernel)

    def peers(self, without: set[str]) -> tuple[list[Any], dict[str, str]]:
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


@pytest.fixture
def machine(peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> MadeUpMachine:
    monkeypatch.setattr(peers, "ROOT", tmp_path)
    monkeypatch.setattr(peers, "HARNESS", tmp_path / "no-harness")
    return MadeUpMachine(peers)


def written(tmp_path: Path) -> dict[str, Any]:
    document = json.loads((tmp_path / "profiles" / "h200" / "peers.json").read_text(encoding="utf-8"))
    validate_peers(document)
    return document


def test_a_whole_run(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert peers.main(["--repeat", "25", "--seed", "3"], lambda: machine) == 0
    document = written(tmp_path)
    assert [version["kernel"] for version in document["versions"]] == ["04", "05", "16"], "03 would take too long"
    assert [peer["name"] for peer in document["peers"]] == ["FlashAttention-2", "cuDNN"]
    assert document["run"]["left_out"] == {"fa3": "not installed"} and document["run"]["rounds"] == 25
    assert document["external"] is None
    assert machine.problems == [(batch, seq_len, "fp16", 3) for batch, seq_len in peers.SHAPES]
    assert machine.rounds == [25] * 6
    result = document["peers"][0]["results"][3]
    assert (result["batch"], result["seq_len"], result["relative_error"]) == (16, 4096, 0.25)
    assert result["ms"] == {"median": 8.0, "p10": 8.0, "p90": 8.0}
    assert result["tflops"] == pytest.approx(4 * 16 * 16 * 4096**2 * 128 / 8e-3 / 1e12, abs=0.01)
    out = capsys.readouterr().out
    assert "200.0 % of FlashAttention-2" in out and "harmonic mean" in out and "without fa3: not installed" in out
    assert [path.name for path in (tmp_path / "profiles" / "h200").iterdir()] == ["peers.json"], "nothing half written"


def test_a_wrong_result_is_not_kept(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path) -> None:
    machine.errors = {"16_optimized_softmax": math.nan, "cuDNN": 1.5}
    assert peers.main([], lambda: machine) == 1
    document = written(tmp_path)
    assert [version["kernel"] for version in document["versions"]] == ["04", "05"]
    assert [peer["name"] for peer in document["peers"]] == ["FlashAttention-2"]


def test_what_does_not_run_is_left_out_with_the_reason(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path
) -> None:
    machine.broken = {"cuDNN"}
    assert peers.main([], lambda: machine) == 0
    left_out = written(tmp_path)["run"]["left_out"]
    assert left_out["cuDNN, seq_len 512"] == "No available kernel. Aborting execution."


def test_figures_from_elsewhere_stay_unless_they_were_measured(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path
) -> None:
    path = tmp_path / "profiles" / "h200" / "peers.json"
    path.parent.mkdir(parents=True)
    assert peers.main([], lambda: machine) == 0
    document = written(tmp_path)
    old = [
        {"name": name, "note": "", "results": [{"batch": 16, "seq_len": 512, "tflops": 1.0}]} for name in ("cuDNN", "X")
    ]
    document["external"] = {"source": "Somebody else.", "ceilings": [], "peers": old}
    path.write_text(json.dumps(document), encoding="utf-8")
    assert peers.main([], lambda: machine) == 0
    assert written(tmp_path)["external"] == document["external"] | {"peers": old[1:]}
    assert peers.main(["--without", "cudnn"], lambda: machine) == 0
    assert [peer["name"] for peer in written(tmp_path)["peers"]] == ["FlashAttention-2"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [("{", "JSONDecodeError"), ("[]", "TypeError"), ('{"schema": 1}', "schema 1, and this program reads schema 2")],
)
def test_a_broken_file_is_not_replaced(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture, damage: str, words: str
) -> None:
    path = tmp_path / "profiles" / "h200" / "peers.json"
    path.parent.mkdir(parents=True)
    path.write_text(damage, encoding="utf-8")
    assert peers.main([], lambda: machine) == 3
    assert words in capsys.readouterr().err and path.read_text(encoding="utf-8") == damage
    assert machine.problems == [], "it has to be refused before the work"


@pytest.mark.parametrize("arguments", [["--shapes", "4096"], ["--dtype", "bf16"], ["--without", "fa2"]])
def test_a_part_takes_no_file_s_place(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, arguments: list[str]
) -> None:
    assert peers.main(arguments, lambda: machine) == 0
    assert not (tmp_path / "profiles").exists()
    assert peers.main([*arguments, "--out", str(tmp_path / "part.json")], lambda: machine) == 0
    document = json.loads((tmp_path / "part.json").read_text(encoding="utf-8"))
    validate_peers(document)
    assert document["problem"]["dtype"] == ("bf16" if "bf16" in arguments else "fp16")


def test_figures_of_another_type_are_not_mixed(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    out = ["--out", str(tmp_path / "out.json")]
    assert peers.main(["--dtype", "bf16", *out], lambda: machine) == 0
    assert peers.main(out, lambda: machine) == 3
    assert "its figures are of bf16, and not of fp16" in capsys.readouterr().err


class MadeUpTorch:
    """What of PyTorch the timing uses, on a GPU whose clock is the order of what it was given."""

    def __init__(self, gpu_is_ahead: bool) -> None:
        self.given: list[str] = []
        # By how much later than the host gave it the GPU begins a launch: less than nothing means that it waited.
        self.lag_ms = -1e9 if gpu_is_ahead else 1e9
        self.slept: list[int] = []
        self.uint8 = None
        self.cuda = self

    def Event(self, enable_timing: bool) -> MadeUpEvent:
        assert enable_timing
        return MadeUpEvent(self)

    def empty(self, size: int, dtype: None, device: str) -> MadeUpTorch:
        assert (size, device) == (2 * 1000, "cuda")
        return self

    def fill_(self, value: int) -> None:
        self.given.append("flush")

    def synchronize(self) -> None:
        self.given.append("wait")

    def _sleep(self, cycles: int) -> None:
        self.slept.append(cycles)
        self.given.append("sleep")


class MadeUpEvent:
    def __init__(self, torch: MadeUpTorch) -> None:
        self.torch, self.at = torch, -1

    def record(self) -> None:
        self.torch.given.append("event")
        self.at = len(self.torch.given)

    def synchronize(self) -> None:
        pass

    def elapsed_time(self, end: MadeUpEvent) -> float:
        between = self.torch.given[self.at : end.at - 1]
        return self.torch.lag_ms if "sleep" in between else {"slow": 2.0, "fast": 1.0}[" ".join(between)]


def on_made_up_torch(peers: ModuleType, torch: MadeUpTorch, rounds: int) -> list[list[float]]:
    machine = object.__new__(peers.Machine)
    machine.torch = torch
    machine.properties = type("Properties", (), {"L2_cache_size": 1000})
    return machine.time_in_turn([lambda: torch.given.append("slow"), lambda: torch.given.append("fast")], rounds)


def test_launches_are_timed_alone_and_in_turn(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WARM_UP_SECONDS", 0.0)
    torch = MadeUpTorch(gpu_is_ahead=False)
    # MadeUpEvent knows only what stood between its two events: a launch, and nothing else.
    assert on_made_up_torch(peers, torch, 3) == [[2.0] * 3, [1.0] * 3]
    timed = torch.given[torch.given.index("sleep") + 1 :]
    launch = ["flush", "event", "{}", "event"]
    in_turn = ("slow", "fast", "fast", "slow", "slow", "fast")
    assert timed == [word.format(name) for name in in_turn for word in launch] + ["wait"]
    assert torch.given[: torch.given.index("event")] == ["slow", "fast", "wait"] * 3, "warmed up"


def test_a_gpu_that_waited_for_the_host_is_not_believed(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(peers, "WARM_UP_SECONDS", 0.0)
    torch = MadeUpTorch(gpu_is_ahead=True)
    with pytest.raises(peers.UnavailableError, match="40 of 40 launches reached the GPU late"):
        on_made_up_torch(peers, torch, 20)
    assert len(torch.slept) == 3 and torch.slept == sorted(set(torch.slept)), "each try gave the host more time"


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("16", ["16_optimized_softmax"]),
        ("4,05", ["04_mma", "05_cp_async"]),
        ("04-05,5", ["04_mma", "05_cp_async"]),
        ("all", KNOWN),
        ("16,16:256x64", ["16_optimized_softmax", "16_optimized_softmax:256x64"]),
        ("03_tiled", ["03_tiled"]),
    ],
)
def test_selection(peers: ModuleType, text: str, labels: list[str]) -> None:
    assert [kernel.label for kernel in peers.select_kernels(text, KNOWN)] == labels


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--kernels", "42"], ["'42'", *KNOWN]),
        (["--kernels", "4,"], ["''"]),
        (["--kernels", "30-40"], ["'30-40'"]),
        (["--kernels", "tiled"], ["'tiled'"]),
        (["--shapes", "777"], ["'777'", "512, 1024, 2048, 4096, 8192, 16384"]),
        (["--repeat", "19"], ["--repeat 19", "at least 20"]),
    ],
)
def test_bad_usage(
    peers: ModuleType, machine: MadeUpMachine, capsys: pytest.CaptureFixture, arguments: list[str], words: list[str]
) -> None:
    assert peers.main(arguments, lambda: machine) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and machine.problems == []


def test_quantiles_are_those_of_the_harness(peers: ModuleType) -> None:
    # As harness/tests/worker_test.cpp expects of summarise().
    times = [5.0, 1.0, 4.0, 2.0, 3.0]
    assert [peers.quantile(times, at) for at in (0.1, 0.5, 0.9)] == pytest.approx([1.4, 3.0, 4.6])
    assert peers.quantile([7.0], 0.9) == 7.0


def test_a_folder_is_named_as_the_harness_names_it(peers: ModuleType) -> None:
    assert peers.device_slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert peers.device_slug("NVIDIA H200") == "h200" and peers.device_slug("!") == "unknown"


def with_module(tmp_path: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    """The script itself, in a Python that finds only this module besides its own."""
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    run_it = f"import sys, runpy; sys.path.insert(0, {str(tmp_path)!r}); sys.argv = ['peers']; "
    command = [sys.executable, "-ISB", "-c", run_it + f"runpy.run_path({str(SCRIPT)!r}, run_name='__main__')"]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.mark.parametrize(
    ("name", "text", "words"),
    [
        ("nothing", "", ["PyTorch cannot be imported", "pip install torch"]),
        (
            "torch",
            "class cuda:\n    is_available = staticmethod(lambda: False)\n__version__ = '2.0'",
            ["PyTorch 2.0 sees no GPU", "nvidia-smi"],
        ),
        (
            "torch",
            "class cuda:\n    is_available = staticmethod(lambda: True)",
            ["the ladder's Python package cannot be imported", "pip install", "harness/python"],
        ),
    ],
)
def test_what_is_missing(tmp_path: Path, name: str, text: str, words: list[str]) -> None:
    done = with_module(tmp_path, name, text)
    assert done.returncode == 3 and done.stdout == ""
    assert done.stderr.startswith("peers: ") and all(word in done.stderr for word in words), done.stderr
