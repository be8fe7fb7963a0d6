"""scripts/peers without a GPU: with a made-up one in its place, and its messages if something is missing."""

from __future__ import annotations

import collections
import contextlib
import json
import math
import re
import subprocess
import sys
import threading
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import pytest
from comparison import ceilings, timing
from comparison.ceilings import CEILINGS, Ceiling
from ladder import BUILD, SHAPES
from made_up_machine import HASH, KNOWN, SCRIPT, MadeUpMachine
from schemas import validate_peers


def written(tmp_path: Path) -> dict[str, Any]:
    document = json.loads((tmp_path / "profiles" / "h200" / "peers.json").read_text(encoding="utf-8"))
    validate_peers(document)
    return document


def regimes(tmp_path: Path) -> dict[str, Any]:
    return written(tmp_path)["regimes"]


def test_a_whole_run(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture) -> None:
    assert peers.main(["--repeat", "25", "--seed", "3"], lambda: machine) == 0
    found = regimes(tmp_path)
    assert list(found) == ["sustained", "interleaved"]
    for regime in found.values():
        assert [version["kernel"] for version in regime["versions"]] == ["04", "05", "16"], "03 would take too long"
        assert {version["code_hash"] for version in regime["versions"]} == {HASH}
        assert [peer["name"] for peer in regime["peers"]] == ["FlashAttention-2", "cuDNN"]
        assert regime["run"]["left_out"] == {"fa3": "not installed"}
    assert machine.problems == [(batch, seq_len, "fp16", 3) for batch, seq_len in SHAPES]
    assert machine.rounds == [25] * 6 and len(machine.alone) == 2 + 6 * 5
    operations = 4 * 16 * 16 * 4096**2 * 128

    turns = found["interleaved"]["peers"][0]["results"][3]
    assert (turns["batch"], turns["seq_len"], turns["relative_error"]) == (16, 4096, 0.25)
    assert turns["ms"] == {"median": 8.0, "p10": 8.0, "p90": 8.0} and turns["launches"] == 25
    assert turns["tflops"] == pytest.approx(operations / 8e-3 / 1e12, abs=0.01)
    assert (turns["power_watts"], turns["sm_clock_mhz"], turns["tflops_per_watt"]) == (None, None, None)
    assert found["interleaved"]["ceilings"] == []

    alone = found["sustained"]["peers"][0]["results"][3]
    assert alone["ms"]["median"] == 16.0 and alone["launches"] == 30
    assert (alone["power_watts"], alone["sm_clock_mhz"]) == (400.0, 1725)
    assert alone["tflops_per_watt"] == pytest.approx(alone["tflops"] / 400, abs=1e-4)
    ceilings = found["sustained"]["ceilings"]
    assert [ceiling["name"] for ceiling in ceilings] == ["mma.sync", "wgmma"]
    assert all(ceiling["tflops"] == 1000.0 and ceiling["power_watts"] == 500.0 for ceiling in ceilings)

    out = capsys.readouterr().out
    assert "200.0 % of FlashAttention-2" in out and "harmonic mean" in out and "without fa3: not installed" in out
    assert [path.name for path in (tmp_path / "profiles" / "h200").iterdir()] == ["peers.json"], "nothing half written"


def test_one_regime_leaves_the_other_as_it_is(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path) -> None:
    assert peers.main(["--regime", "interleaved"], lambda: machine) == 0
    first = regimes(tmp_path)
    assert list(first) == ["interleaved"] and machine.alone == []
    machine.milliseconds["cuDNN"] = 1.0
    assert peers.main(["--regime", "sustained"], lambda: machine) == 0
    second = regimes(tmp_path)
    assert second["interleaved"] == first["interleaved"] and machine.rounds == [20] * 6
    assert second["sustained"]["peers"][1]["results"][0]["ms"]["median"] == 2.0


def test_an_interrupted_run_keeps_what_it_has_and_goes_on(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path
) -> None:
    machine.stops_after = 2 + 5 + 2
    with pytest.raises(KeyboardInterrupt):
        peers.main([], lambda: machine)
    folder = tmp_path / "profiles" / "h200"
    assert [path.name for path in folder.iterdir()] == ["peers.part.json"], "a part takes no whole run's place"
    part = json.loads((folder / "peers.part.json").read_text(encoding="utf-8"))
    validate_peers(part)
    sustained = part["regimes"]["sustained"]
    assert [len(version["results"]) for version in sustained["versions"]] == [2, 2, 1]
    assert len(part["regimes"]["interleaved"]["peers"][0]["results"]) == 1

    before, machine.stops_after = list(machine.alone), 10**6
    assert peers.main(["--resume"], lambda: machine) == 0
    assert len(machine.alone) == len(before) + 6 * 5 - 7, "what was measured is not measured again"
    assert machine.rounds == [20] * 6
    found = regimes(tmp_path)
    assert found["sustained"]["run"]["date"] == sustained["run"]["date"] and len(found["sustained"]["ceilings"]) == 2
    for regime in found.values():
        for one in (*regime["versions"], *regime["peers"]):
            assert [result["seq_len"] for result in one["results"]] == [512, 1024, 2048, 4096, 8192, 16384]
    assert [path.name for path in folder.iterdir()] == ["peers.json"]


def test_a_run_is_not_resumed_with_other_code_or_under_other_conditions(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine.stops_after = 2 + 5 + 2
    with pytest.raises(KeyboardInterrupt):
        peers.main([], lambda: machine)
    path = tmp_path / "profiles" / "h200" / "peers.part.json"
    part = json.loads(path.read_text(encoding="utf-8"))
    machine.stops_after, measured = 10**6, len(machine.alone)

    part["regimes"]["sustained"]["run"]["driver"] = "2.0"
    path.write_text(json.dumps(part), encoding="utf-8")
    assert peers.main(["--resume"], lambda: machine) == 3
    assert "another driver;" in capsys.readouterr().err and len(machine.alone) == measured

    part["regimes"]["sustained"]["run"]["driver"] = "1.0"
    part["regimes"]["sustained"]["versions"][0]["code_hash"] = "sha256:" + "8" * 64
    path.write_text(json.dumps(part), encoding="utf-8")
    assert peers.main(["--resume"], lambda: machine) == 0
    assert len(machine.alone) == measured + 6 * 5 - 7 + 2, "04 is other code, so both its results are measured anew"


def test_an_update_measures_peers_and_changed_versions_and_keeps_the_rest_with_its_date(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    assert peers.main([], lambda: machine) == 0
    path = tmp_path / "profiles" / "h200" / "peers.json"
    before = written(tmp_path)
    sustained = before["regimes"]["sustained"]
    sustained["run"]["date"] = "2026-01-02T03:04:05Z"
    sustained["versions"][1]["code_hash"] = "sha256:" + "8" * 64
    sustained["peers"].append(sustained["peers"][0] | {"name": "no longer there"})
    path.write_text(json.dumps(before), encoding="utf-8")

    machine.alone.clear()
    assert peers.main(["--update", "--regime", "sustained"], lambda: machine) == 0
    assert collections.Counter(machine.alone) == {
        "05_cp_async": 6, "FlashAttention-2": 6, "cuDNN": 6, "ceiling of mma.sync": 1, "ceiling of wgmma": 1
    }  # fmt: skip
    found = regimes(tmp_path)
    assert found["interleaved"] == before["regimes"]["interleaved"]
    dates = {version["kernel"]: version.get("date") for version in found["sustained"]["versions"]}
    assert dates == {"04": "2026-01-02T03:04:05Z", "05": None, "16": "2026-01-02T03:04:05Z"}
    assert [peer["name"] for peer in found["sustained"]["peers"] if "date" in peer] == ["no longer there"]
    assert found["sustained"]["run"]["date"] > "2026-01-02T03:04:05Z"

    sustained["run"]["driver"] = "2.0"
    path.write_text(json.dumps(before), encoding="utf-8")
    assert peers.main(["--update", "--regime", "sustained"], lambda: machine) == 3
    assert "figures of the sustained regime are for another driver" in capsys.readouterr().err
    assert peers.main(["--update"], lambda: machine) == 2
    assert "--update needs --regime sustained" in capsys.readouterr().err


def test_a_wrong_result_is_not_kept(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path) -> None:
    machine.errors = {"16_overlapped_softmax": math.nan, "cuDNN": 1.5}
    assert peers.main([], lambda: machine) == 1
    for regime in regimes(tmp_path).values():
        assert [version["kernel"] for version in regime["versions"]] == ["04", "05"]
        assert [peer["name"] for peer in regime["peers"]] == ["FlashAttention-2"]
        assert regime["run"]["left_out"]["cuDNN, seq_len 512"] == "wrong: 1.5 times the allowed error"


def test_what_does_not_run_is_left_out_with_the_reason(
    peers: ModuleType, machine: MadeUpMachine, tmp_path: Path
) -> None:
    machine.broken, machine.broken_alone = {"cuDNN", "ceiling"}, {"05_cp_async"}
    assert peers.main([], lambda: machine) == 0
    sustained, interleaved = regimes(tmp_path).values()
    for regime in (sustained, interleaved):
        assert regime["run"]["left_out"]["cuDNN, seq_len 512"] == "No available kernel. Aborting execution."
    late = {"05_cp_async, seq_len 512": "40 of its launches reached the GPU late"}
    assert late.items() <= sustained["run"]["left_out"].items()
    assert sustained["run"]["left_out"]["the ceiling of wgmma"] == "this PyTorch cannot compile CUDA"
    assert [version["kernel"] for version in sustained["versions"]] == ["04", "16"]
    assert [version["kernel"] for version in interleaved["versions"]] == ["04", "05", "16"]


@pytest.mark.parametrize(
    ("damage", "words"),
    [
        ("{", "JSONDecodeError"),
        ("[]", "TypeError"),
        ('{"schema": 2}', "schema 2, and this program writes schema 3"),
        ('{"schema": 3}', "KeyError"),
    ],
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
    assert "its figures are for bf16, not for fp16" in capsys.readouterr().err


class MadeUpTorch:
    """The parts of PyTorch that the timing uses, on a GPU whose clock counts the requests that it receives."""

    def __init__(self, gpu_is_ahead: bool) -> None:
        self.given: list[str] = []
        # The delay with which the GPU begins a launch after the host queued it: a negative one means that the GPU
        # waited.
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
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", {"sustained": 0.0, "interleaved": 0.0})
    torch = MadeUpTorch(gpu_is_ahead=False)
    # MadeUpEvent only knows what is between its two events: a launch, and nothing else.
    assert on_made_up_torch(peers, torch, 3) == [[2.0] * 3, [1.0] * 3]
    timed = torch.given[torch.given.index("sleep") + 1 :]
    launch = ["flush", "event", "{}", "event"]
    in_turn = ("slow", "fast", "fast", "slow", "slow", "fast")
    assert timed == [word.format(name) for name in in_turn for word in launch] + ["wait"]
    assert torch.given[: torch.given.index("event")] == ["slow", "fast", "wait"] * 3, "warmed up"


def test_a_gpu_that_waited_for_the_host_is_not_believed(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "WARM_UP_SECONDS", {"sustained": 0.0, "interleaved": 0.0})
    torch = MadeUpTorch(gpu_is_ahead=True)
    with pytest.raises(peers.UnavailableError, match="40 of 40 launches reached the GPU late"):
        on_made_up_torch(peers, torch, 20)
    assert len(torch.slept) == 3 and torch.slept == sorted(set(torch.slept)), "each try gave the host more time"


class SteadyTorch:
    """A GPU with its own clock: a launch takes 1 ms of it, and queueing one takes the host a given time.

    The host's time passes only through queueing and through waiting for the GPU, so the test is the same on every
    machine.
    """

    def __init__(self, host_ms: float) -> None:
        self.host_ms, self.host, self.gpu = host_ms, 0.0, 0.0  # milliseconds of both clocks
        self.uint8, self.cuda, self.replays, self.readings = None, self, 0, 0

    def queue(self, gpu_ms: float) -> None:
        self.gpu = max(self.gpu, self.host) + gpu_ms

    def launch(self) -> None:
        self.host += self.host_ms
        self.queue(1.0)

    def perf_counter(self) -> float:
        return self.host / 1000

    monotonic = perf_counter

    def synchronize(self) -> None:
        self.host = max(self.host, self.gpu)

    def empty(self, size: int, dtype: None, device: str) -> SteadyTorch:
        return self

    def fill_(self, value: int) -> None:
        pass

    def Event(self, enable_timing: bool) -> SteadyEvent:
        return SteadyEvent(self)

    def CUDAGraph(self) -> SteadyTorch:
        return self

    def graph(self, graph: SteadyTorch) -> contextlib.AbstractContextManager[None]:
        return contextlib.nullcontext()

    def replay(self) -> None:
        self.replays += 1
        self.queue(40.0)


class SteadyEvent:
    def __init__(self, torch: SteadyTorch) -> None:
        self.torch, self.at = torch, 0.0

    def record(self) -> None:
        self.at = max(self.torch.gpu, self.torch.host)

    def synchronize(self) -> None:
        self.torch.host = max(self.torch.host, self.at)

    def elapsed_time(self, end: SteadyEvent) -> float:
        return end.at - self.at


def timed_alone(peers: ModuleType, torch: SteadyTorch, monkeypatch: pytest.MonkeyPatch) -> Any:  # noqa: ANN401
    machine = object.__new__(peers.Machine)
    machine.torch = torch
    machine.properties = type("Properties", (), {"L2_cache_size": 1000})
    monkeypatch.setattr(timing, "time", torch)
    sampled = contextlib.nullcontext([(400.0, 1700), (500.0, 1800), (900.0, 1900)])
    monkeypatch.setattr(machine, "_sampled_load", lambda: sampled)
    return machine.time_alone(torch.launch)


def test_alone_at_steady_power(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    torch = SteadyTorch(host_ms=0.2)
    timing = timed_alone(peers, torch, monkeypatch)
    assert timing.milliseconds == pytest.approx([1.0] * len(timing.milliseconds))
    assert 1000 <= len(timing.milliseconds) <= 1040, "a second, in chunks of 20 ms"
    assert (timing.watts, timing.sm_clock_mhz) == (500.0, 1800), "the median"
    assert torch.replays == 0 and 2000 <= torch.gpu <= 2100, "a second to warm up, and no rest"


def test_a_launch_that_takes_longer_than_the_kernel_hides_behind_a_graph(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch
) -> None:
    torch = SteadyTorch(host_ms=1.5)
    timing = timed_alone(peers, torch, monkeypatch)
    assert torch.replays > 0 and timing.milliseconds == pytest.approx([1.0] * len(timing.milliseconds))
    with pytest.raises(RuntimeError, match="launches reached the GPU late"):
        timed_alone(peers, SteadyTorch(host_ms=50.0), monkeypatch)


def test_watts_are_read_while_it_is_timed(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(timing, "SAMPLE_SECONDS", 0.0)
    read = threading.Event()

    class Cuda:
        def power_draw(self) -> int:
            return 512500

        def clock_rate(self) -> int:
            read.set()
            return 1725

    machine = object.__new__(peers.Machine)
    machine.torch = type("Torch", (), {"cuda": Cuda()})
    with machine._sampled_load() as samples:
        assert read.wait(60)
    assert set(samples) == {(512.5, 1725)}
    machine.torch = type("Torch", (), {"cuda": None})  # there is no NVML
    assert machine.why_no_load().startswith("AttributeError")
    with machine._sampled_load() as samples:
        pass
    assert samples == []


def test_8_bits_are_a_comparison_of_their_own(peers: ModuleType, machine: MadeUpMachine, tmp_path: Path) -> None:
    assert peers.main(["--dtype", "e4m3"], lambda: machine) == 0
    folder = tmp_path / "profiles" / "h200"
    assert [path.name for path in folder.iterdir()] == ["peers_e4m3.json"]
    document = json.loads((folder / "peers_e4m3.json").read_text(encoding="utf-8"))
    validate_peers(document)
    assert document["problem"]["dtype"] == "e4m3"
    for regime in document["regimes"].values():
        assert [version["kernel"] for version in regime["versions"]] == ["fp8"]
        assert [peer["name"] for peer in regime["peers"]] == ["FlashAttention-3"]
        assert regime["ceilings"] == [], "those are of 16-bit instructions"
    assert {dtype for *_, dtype, _ in machine.problems} == {"e4m3"}


def test_a_peer_that_cannot_be_imported_is_listed_with_the_reason(
    peers: ModuleType, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    (tmp_path / "flash_attn_interface.py").write_text("raise OSError('undefined symbol:\\n  c10')", encoding="utf-8")
    (tmp_path / "flash_attention.py").write_text("from torch import ops_of_another_release", encoding="utf-8")
    monkeypatch.syspath_prepend(tmp_path)
    monkeypatch.setitem(sys.modules, "torch", ModuleType("torch"))
    monkeypatch.setitem(sys.modules, "flash_attn", None)
    machine = object.__new__(peers.Machine)
    found, missing = machine.peers({"fa2", "flex", "cudnn"}, "fp16")
    assert found == []
    assert missing["fa2"] == "left out by --without"
    assert missing["fa3"] == "OSError: undefined symbol: c10"
    assert missing["from-scratch"].startswith("ImportError: cannot import name 'ops_of_another_release'")
    assert missing["flash-attn"].startswith("ModuleNotFoundError")


def test_the_earlier_ladder_is_tuned_as_it_tunes_itself(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    Config = collections.namedtuple("Config", "B_r B_c n_warps milliseconds")
    configs = [Config(64, 64, 4, 3.0), Config(128, 32, 4, None), Config(128, 64, 4, 2.0), Config(128, 64, 4, 2.5)]
    helpers, package = ModuleType("flash_helpers"), ModuleType("flash_attention")
    helpers.kernel_configs = ModuleType("flash_helpers.kernel_configs")
    helpers.kernel_configs.DType = type("DType", (), {"FP16": 5, "BF16": 15})
    helpers.kernel_configs.get_autotuning_kernel_configs = lambda dtypes: configs if dtypes == [5] else []

    def forward(config: Any, q: Any, k: Any, v: Any, out: Any) -> Any:  # noqa: ANN401
        if config.milliseconds is None:
            raise RuntimeError("Kernel configuration was not found in flash_kernels.cuh")
        return config

    package.forward = forward
    monkeypatch.setitem(sys.modules, "flash_helpers", helpers)
    monkeypatch.setitem(sys.modules, "flash_attention", package)
    machine = object.__new__(peers.Machine)
    machine.torch = type("Torch", (), {"float16": "fp16"})
    monkeypatch.setattr(machine, "_briefly", lambda launch: launch().milliseconds)
    implementation = machine._from_scratch()
    q = type("Tensor", (), {"dtype": "fp16"})
    assert implementation.prepare(q, q, q, q)() == configs[2]
    assert implementation.note == "its final kernel, fastest tile: 128x64, 4 warps"
    with pytest.raises(RuntimeError, match="was built"):
        implementation.prepare(type("Tensor", (), {"dtype": "bf16"}), q, q, q)


@pytest.mark.parametrize(
    ("text", "labels"),
    [
        ("16", ["16_overlapped_softmax"]),
        ("4,05", ["04_mma", "05_cp_async"]),
        ("04-05,5", ["04_mma", "05_cp_async"]),
        ("all", KNOWN),
        ("16,16:256x64", ["16_overlapped_softmax", "16_overlapped_softmax:256x64"]),
        ("03_tiled", ["03_tiled"]),
        ("causal", ["causal"]),
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


def test_quantiles_are_those_of_the_harness() -> None:
    # The values that harness/tests/worker_test.cpp expects of summarise().
    assert timing.summary([5.0, 1.0, 4.0, 2.0, 3.0]) == pytest.approx({"median": 3.0, "p10": 1.4, "p90": 4.6})
    assert timing.summary([float(i) for i in range(21)]) == {"median": 10.0, "p10": 2.0, "p90": 18.0}


@pytest.mark.parametrize("ceiling", CEILINGS, ids=lambda ceiling: ceiling.name)
def test_the_kernel_of_a_ceiling_compiles(ceiling: Ceiling, tmp_path: Path) -> None:
    nvcc = re.search(r"nvcc='([^']*)'", (BUILD / "emulate.sh").read_text(encoding="utf-8"))
    assert nvcc is not None
    ptx, source = tmp_path / "ceiling.ptx", Path(ceilings.__file__).parent / ceiling.file
    subprocess.run([nvcc[1], "-ptx", f"-arch=sm_{ceiling.capability or 80}", source, "-o", ptx], check=True)
    text = ptx.read_text(encoding="utf-8")
    assert ".entry ceiling(" in text, "PyTorch looks it up by this name"
    assert f"\t{ceiling.name}." in text and ceiling.note.partition(",")[0].rpartition(".")[2] in text


def test_a_ceiling_is_compiled_and_launched_by_pytorch(peers: ModuleType) -> None:
    launches = []

    def compile_kernel(source: str, name: str, compute_capability: str | None) -> Any:  # noqa: ANN401
        assert f" {name}(const unsigned* operands, float* out, int rounds)" in source and compute_capability == "90a"
        return lambda grid, block, args: launches.append((grid, block, args))

    machine = object.__new__(peers.Machine)
    machine.properties = type("Properties", (), {"major": 9, "minor": 0, "multi_processor_count": 132})
    machine.torch = SimpleNamespace(
        float16="fp16", float32="fp32",
        cuda=SimpleNamespace(_compile_kernel=compile_kernel),
        randn=lambda size, device, dtype: (size, device, dtype),
        empty=lambda size, device, dtype: (size, device, dtype),
    )  # fmt: skip
    wgmma = CEILINGS[1]
    launch, operations = machine.ceiling(wgmma)
    out = (132 * 256, "cuda", "fp32")
    assert launch() == out
    assert launches == [((132, 1, 1), (256, 1, 1), [(2 * wgmma.operands, "cuda", "fp16"), out, wgmma.rounds])]
    assert operations == 132 * 2 * wgmma.rounds * 16 * 2 * 64 * 256 * 16, "two warpgroups per CTA"

    machine.torch.cuda = SimpleNamespace()
    with pytest.raises(RuntimeError, match="this PyTorch cannot compile CUDA"):
        machine.ceiling(wgmma)
    machine.properties.major = 8
    with pytest.raises(RuntimeError, match="sm_90a has wgmma, and this is sm_80a"):
        machine.ceiling(wgmma)


def test_private_names_of_pytorch_are_used_in_one_place() -> None:
    used = {
        path.name
        for path in (SCRIPT, *Path(ceilings.__file__).parent.glob("*.py"))
        if re.search(r"\btorch(?:\.\w+)*\._[a-z]", path.read_text(encoding="utf-8"))
    }
    assert used == {"private_pytorch.py"}


def test_a_folder_is_named_as_the_harness_names_it(peers: ModuleType) -> None:
    assert peers.device_slug("NVIDIA A100-SXM4-80GB") == "a100-sxm4-80gb"
    assert peers.device_slug("NVIDIA H200") == "h200" and peers.device_slug("!") == "unknown"


def with_module(tmp_path: Path, name: str, text: str) -> subprocess.CompletedProcess[str]:
    """Runs the script itself, in a Python that finds no other module except its own."""
    (tmp_path / f"{name}.py").write_text(text, encoding="utf-8")
    run_it = f"import sys, runpy; sys.path[:0] = [{str(tmp_path)!r}, {str(SCRIPT.parent)!r}]; sys.argv = ['peers']; "
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
