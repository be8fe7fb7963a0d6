"""The figures that the docs may quote: everything that is measured, counted or registered, by name.

Pages write {num}`step(6)` and never the figure itself. Such an expression may use the public methods of Facts, the
functions of layouts.py, and the example of worked.py. An expression that refers to something that was not recorded
raises an error, and the page does not build.
"""

from __future__ import annotations

import json
import math
import os
import subprocess
import sys
import tempfile
from collections.abc import Callable
from dataclasses import dataclass
from functools import cache, cached_property
from pathlib import Path
from typing import Any, TypeVar

ROOT = Path(__file__).resolve().parents[2]
sys.path.insert(0, str(ROOT / "scripts"))

import bits  # noqa: E402
import layouts  # noqa: E402
import sources  # noqa: E402
import timeline  # noqa: E402
import update_docs  # noqa: E402
import worked  # noqa: E402
from kernel_files import KernelFile, kernel_files  # noqa: E402
from kernel_places import PlaceError, Places  # noqa: E402
from ladder import SHAPES  # noqa: E402
from profile_data import (  # noqa: E402
    ByData,
    ByProblem,
    Cell,
    Device,
    ProblemCell,
    Shape,
    Speeds,
    load_device,
    load_fp8_error,
    load_training,
    three_digits,
)
from roles import RoleTrace  # noqa: E402

DEVICE = "h200"
ARCH = "sm_90"  # the architecture of that device
SEQ_LEN = 4096  # the length at which versions are compared
BATCH = {seq_len: batch for batch, seq_len in SHAPES}

# Figures that no program of this project measures: NVIDIA's data sheet of the H200 SXM, the H100 white paper ("H100 SM
# architecture", the same chip) and the table of compute capabilities of the CUDA programming guide, column 9.0. The
# size of the L2 is the one that an H200 reports (cudaDevAttrL2CacheSize, 62,914,560 bytes); the white paper's 50 MB are
# an H100's.
GPU: dict[str, float] = {
    "sms": 132,
    "schedulers_per_sm": 4,
    "warps_per_sm": 64,
    "ctas_per_sm": 32,
    "registers_per_sm": 65536,
    "registers_per_thread": 255,
    "l1_and_smem_kib_per_sm": 256,
    "smem_kib_per_sm": 228,
    "smem_kib_per_cta": 227,
    "smem_bytes_per_cycle": 128,
    "ffma_per_sm_per_cycle": 128,
    "ex2_per_sm_per_cycle": 16,
    "wgmma_flop_per_sm_per_cycle": 4096,  # 512 multiply-adds in each of four tensor cores, 16-bit inputs, dense
    "l2_mib": 60,
    "hbm_gb": 141,
    "hbm_tb_per_s": 4.8,
    "watts": 700,  # its power limit
}


FIRST_PERSISTENT = 15  # from this version on, a CTA takes several query tiles


@dataclass(frozen=True)
class Interval:
    """A run of instructions of one warp, or a wait, as harness --trace writes it."""

    warp: int
    phase: str
    begin: int
    end: int
    line: int | None  # line of the kernel's file


Traced = TypeVar("Traced")


def read_trace(file: Path) -> list[Interval]:
    events = json.loads(file.read_text(encoding="utf-8"))["traceEvents"]
    return [
        Interval(
            warp=event["tid"],
            phase=event["name"],
            begin=event["ts"],
            end=event["ts"] + event["dur"],
            line=int(line.rpartition(":")[2]) if (line := event["args"]["line"]) else None,
        )
        for event in events
        if event["ph"] == "X"
    ]


class FactError(Exception):
    """A page refers to something that does not exist."""


class NotRecordedError(FactError):
    """It refers to a figure that profiles/ does not contain yet: pages show "–" for it."""


class Facts:
    def __init__(self, harness: Path | None = None, of_the_build: bool = True) -> None:
        """`of_the_build`: whether machine code that no GPU has recorded is taken from the build."""
        self._harness = harness
        self._of_the_build = of_the_build

    # ---- the sources of the facts ----

    @cached_property
    def device(self) -> Device:
        return load_device(DEVICE)

    @cached_property
    def _in_e4m3(self) -> Device:
        return load_device(DEVICE, "e4m3")

    @cached_property
    def _ncu(self) -> dict[str, Any]:
        return json.loads((ROOT / "profiles" / DEVICE / "ncu.json").read_text(encoding="utf-8"))

    def _told_by_harness(self, *arguments: str) -> Any:  # noqa: ANN401 (any JSON)
        """Raises FactError if there is no harness."""
        if self._harness is None or not self._harness.is_file():
            raise FactError(f"{self._harness} is missing: build it with scripts/setup harness")
        command = [str(self._harness), *arguments, "--json", "-"]
        told = subprocess.run(command, capture_output=True, text=True, check=False, env={**os.environ, "NO_COLOR": "1"})
        if told.returncode != 0:
            raise FactError(f"{' '.join(command)} failed: {told.stderr.strip()}")
        return json.loads(told.stdout)

    @cached_property
    def registry(self) -> dict[str, dict[str, Any]]:
        """The output of `harness --list --json`, by number."""
        return {version["kernel"]: version for version in self._told_by_harness("--list")["versions"]}

    @cache  # noqa: B019 (one object lives as long as the build)
    def stem(self, number: int) -> str:
        """06_swizzle"""
        return self._kernel(number).stem

    @cache  # noqa: B019
    def file(self, number: int) -> str:
        """kernels/06_swizzle.cu"""
        return self._kernel(number).file

    def _kernel(self, number: int | str) -> KernelFile:
        """`number` is 6, or "D01": a version of another track is called by its name for --kernel."""
        found = [kernel for kernel in kernel_files(ROOT) if number in (kernel.number, kernel.kernel)]
        if len(found) != 1:
            raise FactError(f"{len(found)} versions have the number {number:02}")
        return found[0]

    def has_chapter(self, number: int) -> bool:
        return (sources.PAGES / "chapters" / f"{self.stem(number)}.md").is_file()

    def numbers(self) -> list[int]:
        return [kernel.number for kernel in kernel_files(ROOT) if kernel.number is not None]

    @cache  # noqa: B019
    def _profile(self, device: str, number: int) -> dict[str, Any]:
        path = ROOT / "profiles" / device / f"{self.stem(number)}.json"
        if not path.is_file():
            raise NotRecordedError(f"there is no {path.relative_to(ROOT)}")
        return json.loads(path.read_text(encoding="utf-8"))

    def stale(self, number: int) -> list[str]:
        """The recordings shown by a chapter whose code differs from the version's present file.

        Recordings that do not exist yet are not stale: see missing().
        """
        current = self.registry[f"{number:02}"]["code_hash"]
        stem, found = self.stem(number), []
        for device in (DEVICE, "emulator"):
            path = ROOT / "profiles" / device / f"{stem}.json"
            if path.is_file() and self._profile(device, number)["code_hash"] != current:
                found.append(f"profiles/{device}/{stem}.json")
        if self._ncu["code_hash"].get(stem, current) != current:
            found.append(f"profiles/{DEVICE}/ncu.json")
        beside_peers = self.device.regime.versions if self.device.regime else {}
        if any(kernel == f"{number:02}" and code_hash != current for kernel, code_hash in beside_peers):
            found.append(f"profiles/{DEVICE}/peers.json")
        return found

    def missing(self, number: int) -> list[str]:
        """The recordings shown by a chapter that do not exist yet. Those of Nsight Compute do not count, nor, for the
        Hopper track, those of the virtual GPU.
        """
        devices = (DEVICE,) if self.is_hopper(number) else (DEVICE, "emulator")
        files = [f"profiles/{device}/{self.stem(number)}.json" for device in devices]
        return [file for file in files if not (ROOT / file).is_file()]

    @cache  # noqa: B019
    def trace(self, number: int) -> list[Interval]:
        """What the warps of CTA 0 do on the virtual GPU, recorded when the page is built, so that it is never out of
        date.

        One query tile and four K/V tiles; if CTAs are persistent, two query tiles and two K/V tiles each.
        """
        stays = number >= FIRST_PERSISTENT
        return self._traced(number, 2 if stays else 1, 2 if stays else 4, read_trace)

    @cache  # noqa: B019
    def role_trace(self, number: int, kv_tiles: int = 6) -> RoleTrace:
        """The same for one query tile, with the barrier that each role waits for."""
        source = (ROOT / self.file(number)).read_text(encoding="utf-8").splitlines()
        return self._traced(number, 1, kv_tiles, lambda file: RoleTrace.read(file, source))

    def _traced(self, number: int, q_tiles: int, kv_tiles: int, read: Callable[[Path], Traced]) -> Traced:
        if self._harness is None or not self._harness.is_file():
            raise FactError(f"{self._harness} is missing: build it with scripts/setup harness")
        with tempfile.TemporaryDirectory() as folder:
            file = Path(folder) / "trace.json"
            problem = {
                "--seq-len": q_tiles * self.block_q(number),
                "--seq-len-kv": kv_tiles * self.block_kv(number),
                "--batch": 1,
                "--heads": 1,
                "--config": self._configuration(number)["name"],
                "--trace": file,
            }
            command = [self._harness, "--kernel", f"{number:02}", "--device", "emulator", "--no-check", "--json", "-"]
            command += [part for flag in problem.items() for part in flag]
            done = subprocess.run(
                [str(part) for part in command],
                capture_output=True,
                text=True,
                check=False,
                env={**os.environ, "FLASH_LADDER_SM_COUNT": "1"},
            )
            if done.returncode != 0 or not file.is_file():
                raise FactError(f"{' '.join(map(str, command))} failed: {done.stderr.strip()}")
            return read(file)

    # ---- the names that pages use ----

    def is_hopper(self, number: int) -> bool:
        """Whether it belongs to the second track, which uses instructions that only Hopper has."""
        return self.registry[f"{number:02}"]["architecture"] == "sm_90a"

    def gpu(self, name: str) -> float:
        """A fact of the data sheet: see GPU."""
        return GPU[name]

    def smem_bytes_per_cta(self, number: int) -> int:
        return int(self._configuration(number)["smem_bytes"])

    def block_q(self, number: int) -> int:
        return int(self._configuration(number)["block_q"])

    def block_kv(self, number: int) -> int:
        return int(self._configuration(number)["block_kv"])

    def warps(self, number: int) -> int:
        return int(self._configuration(number)["num_warps"])

    def _configuration(self, number: int) -> dict[str, Any]:
        return next(one for one in self.registry[f"{number:02}"]["configurations"] if one["dtype"] == "fp16")

    def tflops(self, number: int, seq_len: int = SEQ_LEN) -> float:
        shape = Shape(seq_len, BATCH[seq_len])
        for version in self.device.rungs():
            if version.source.stem == self.stem(number) and shape in version.tflops:
                return version.tflops[shape]
        raise NotRecordedError(f"version {number:02} has no TFLOP/s at seq_len {seq_len}")

    def step(self, number: int, seq_len: int = SEQ_LEN) -> float:
        """The speedup over the version before, in TFLOP/s."""
        step = self.device.step(number, Shape(seq_len, BATCH[seq_len]))
        if step is None:
            raise NotRecordedError(f"version {number:02} was not measured like {number - 1:02} at seq_len {seq_len}")
        return step

    def step_regime(self, number: int) -> str:
        """How both versions of step() were measured: "sustained", or "harness --record"."""
        shape = Shape(SEQ_LEN, BATCH[SEQ_LEN])
        pair = [version for version in self.device.versions if version.source.number in (number - 1, number)]
        if self.device.regime and all(shape in version.beside_peers.tflops for version in pair):
            return self.device.regime.name
        return "harness --record"

    def ratio(self, number: int, other: int, seq_len: int = SEQ_LEN) -> float:
        """The speedup over any other version, both measured in the same way."""
        return self._ratio(self.stem(number), self.stem(other), seq_len)

    def extension(self, name: str, number: int, seq_len: int = SEQ_LEN) -> float:
        """The speedup of an extension over a version, both measured in the same way."""
        return self._ratio(name, self.stem(number), seq_len)

    def recorded_ms(
        self,
        kernel: str,
        seq_len: int = SEQ_LEN,
        config: str | None = None,
        head_dim: int = layouts.HEAD_DIM,
        mixed: bool = False,
        **fields: int | bool,
    ) -> float:
        """Milliseconds of a configuration, or of the fastest one, by `harness --record`, for the standard problem in
        fp16 with these fields, such as causal=True, kv_heads=4, window_left=512, and no others. mixed: with lengths
        that are evenly spread up to seq_len."""
        plain = {"batch", "dtype", "head_dim", "heads", "seq_len", "seq_len_kv", "lengths", "lengths_kv"}
        found = [
            result["ms"]["median"]
            for result in self._profile(DEVICE, kernel)["results"]
            if result["problem"]["dtype"] == "fp16"
            and result["problem"]["seq_len"] == seq_len
            and result["problem"]["head_dim"] == head_dim
            and ("lengths" in result["problem"]) == mixed
            and {name: value for name, value in result["problem"].items() if name not in plain} == fields
            and config in (None, result["config"])
            and result["ms"] is not None
        ]
        if not found:
            raise NotRecordedError(f"{kernel} is not recorded at seq_len {seq_len} with {fields}")
        return min(found)

    def kv_gb_per_s(
        self,
        kernel: str,
        batch: int,
        keys: int,
        kv_heads: int = 8,
        page_size: int = 0,
        mixed: bool = False,
        append: bool = False,
        rotary: bool = False,
        queries: int = 1,
        fp8_cache: bool = False,
    ) -> float:
        """The metric of the decoding track, by `harness --record`, for one query, or several causal ones, and 32 heads
        in fp16. page_size 0: K and V are not paged. mixed: the sequences have different lengths, of at most `keys`.
        append: the last key of each is new; rotary: and rotated, as the query is. fp8_cache: K and V are
        e4m3."""
        found = [
            result["kv_gb_per_s"]
            for result in self._profile(DEVICE, kernel)["results"]
            if result["problem"].get("kv_heads", 32) == kv_heads
            and (result["problem"]["batch"], result["problem"]["seq_len_kv"]) == (batch, keys)
            and result["problem"]["dtype"] == "fp16"
            and ("lengths_kv" in result["problem"]) == mixed
            and result["problem"].get("page_size", 0) == page_size
            and result["problem"].get("append", False) == (append or rotary)
            and ("rotary_dim" in result["problem"]) == rotary
            and result["problem"]["seq_len"] == queries
            and result["problem"].get("fp8_cache", False) == fp8_cache
        ]
        if not found:
            raise NotRecordedError(f"{kernel} is not recorded at batch {batch} with {keys} keys")
        return max(found)

    def recorded_tflops(self, kernel: str, seq_len: int = SEQ_LEN) -> float:
        """TFLOP/s by `harness --record`, in fp16: the only figures of versions that do not compute O."""
        found = [
            result["tflops"]
            for result in self._profile(DEVICE, kernel)["results"]
            if (result["problem"]["seq_len"], result["problem"]["dtype"]) == (seq_len, "fp16")
            and not result["problem"].get("causal")
        ]
        if not found:
            raise NotRecordedError(f"{kernel} is not recorded at seq_len {seq_len}")
        return max(found)

    def _ratio(self, stem: str, other: str, seq_len: int) -> float:
        shape = Shape(seq_len, BATCH[seq_len])
        versions = {version.source.stem: version for version in self.device.versions}
        if stem in versions and other in versions:
            here, there = versions[stem], versions[other]
            for mine, theirs in (
                (here.beside_peers.tflops, there.beside_peers.tflops),
                (here.recorded, there.recorded),
            ):
                if shape in mine and shape in theirs:
                    return mine[shape] / theirs[shape]
        raise NotRecordedError(f"{stem} and {other} were not measured in the same way at seq_len {seq_len}")

    def verdict(self, number: int) -> str:
        """The outcome of the header's prediction, as in docs/ladder_log.md."""
        return update_docs.verdict_cell(self.device, number)

    def milliseconds(self, number: int, seq_len: int = SEQ_LEN) -> float:
        batch = BATCH[seq_len]
        return 4 * batch * 16 * seq_len**2 * 128 / self.tflops(number, seq_len) / 1e9

    def clock_mhz(self, number: int, seq_len: int = SEQ_LEN) -> float:
        """The SM clock half-way through the timing."""
        return self._load(number, seq_len)["sm_clock_mhz"]

    def clock_while_running_mhz(self, number: int) -> float:
        """The number of cycles divided by the time of a launch, at seq_len 2048."""
        return self.cycles(number) / self.milliseconds(number, 2048) / 1e3

    def share_of_allowed(self, number: int, dtype: str = "fp16", seq_len: int = SEQ_LEN) -> float:
        """The largest error that the checks found on the device, as a fraction of the allowed error."""
        shares = [
            result["relative_error"]
            for result in self._profile(DEVICE, number)["results"]
            if result["problem"]["dtype"] == dtype
            and result["problem"]["seq_len"] == seq_len
            and result["relative_error"] is not None
        ]
        if not shares:
            raise NotRecordedError(f"version {number:02} was not checked in {dtype}")
        return max(shares)

    def watts(self, number: int, seq_len: int = SEQ_LEN) -> float:
        return self._load(number, seq_len)["power_watts"]

    def _load(self, number: int, seq_len: int) -> dict[str, float]:
        for result in self._profile(DEVICE, number)["results"]:
            problem = result["problem"]
            if problem["dtype"] == "fp16" and problem["seq_len"] == seq_len and result.get("load"):
                return result["load"]
        raise NotRecordedError(f"version {number:02} has no clock and watts at seq_len {seq_len}")

    def steady_watts(self, number: int, seq_len: int = SEQ_LEN) -> float:
        """The power while it ran alone in the comparison with its peers, after a second of load."""
        return self._steady(number, seq_len).watts[Shape(seq_len, BATCH[seq_len])]

    def steady_clock_mhz(self, number: int, seq_len: int = SEQ_LEN) -> float:
        """The SM clock during the same run."""
        return self._steady(number, seq_len).sm_clock_mhz[Shape(seq_len, BATCH[seq_len])]

    def _steady(self, number: int, seq_len: int) -> Speeds:
        shape = Shape(seq_len, BATCH[seq_len])
        for version in self.device.rungs():
            speeds = version.beside_peers
            if version.source.stem == self.stem(number) and shape in speeds.watts and shape in speeds.sm_clock_mhz:
                return speeds
        raise NotRecordedError(f"version {number:02} was not measured alone beside its peers at seq_len {seq_len}")

    def peer(self, name: str, seq_len: int = SEQ_LEN) -> float:
        for peer in self.device.peers:
            if peer.name == name:
                return peer.tflops[Shape(seq_len, BATCH[seq_len])]
        raise NotRecordedError(f"there is no peer {name}")

    def of_peer(self, number: int, name: str, seq_len: int = SEQ_LEN) -> float:
        """The speedup over a peer, both measured in one run of scripts/peers."""
        shape = Shape(seq_len, BATCH[seq_len])
        for version in self.device.rungs():
            if version.source.stem == self.stem(number) and shape in version.beside_peers.tflops:
                return version.beside_peers.tflops[shape] / self.peer(name, seq_len)
        raise NotRecordedError(f"version {number:02} was not measured beside {name} at seq_len {seq_len}")

    # On data other than random normal numbers, from scripts/peers --data: never shown beside figures of another run.

    def by_data(self, name: int | str, data: str, seq_len: int = SEQ_LEN, dtype: str = "fp16") -> float:
        """TFLOP/s of a version, by its number, or of a peer."""
        return self._by_data(self.device.by_data, "TFLOP/s", name, data, seq_len, dtype)

    def by_data_causal(self, name: int | str, data: str, seq_len: int = SEQ_LEN, dtype: str = "fp16") -> float:
        """The same with the causal mask."""
        return self._by_data(self.device.by_data_causal, "TFLOP/s", name, data, seq_len, dtype)

    def clock_by_data(self, name: int | str, data: str, seq_len: int = SEQ_LEN, dtype: str = "fp16") -> float:
        """The SM clock in MHz during that run."""
        return self._by_data(self.device.by_data, "clock", name, data, seq_len, dtype)

    def of_normal(self, name: int | str, data: str, seq_len: int = SEQ_LEN, dtype: str = "fp16") -> float:
        """Its speed relative to that on random normal numbers."""
        return self.by_data(name, data, seq_len, dtype) / self.by_data(name, "normal", seq_len, dtype)

    def _by_data(
        self, found: ByData | None, what: str, name: int | str, data: str, seq_len: int, dtype: str
    ) -> float:
        label = self._kernel(name).label if isinstance(name, int) else name
        if found is not None and data not in found.definitions:
            raise FactError(f"there are no data {data}: {', '.join(found.definitions)}")
        if found is not None:
            table = found.sm_clock_mhz if what == "clock" else found.versions | found.peers
            cell = Cell(data, dtype, seq_len)
            if cell in table.get(label, {}):
                return table[label][cell]
        raise NotRecordedError(f"{label} has no {what} on {data} data at seq_len {seq_len} in {dtype}")

    # With masks, grouped heads and windows, from scripts/peers --problem: never shown beside figures of another run.

    def by_problem(self, name: str, problem: str, seq_len: int = SEQ_LEN) -> float:
        """TFLOP/s of an extension or of a peer."""
        return self._on_problem(self.device.by_problem, name, problem, seq_len)

    def gradients(self, name: str, problem: str, seq_len: int = SEQ_LEN) -> float:
        """TFLOP/s of the backward pass, of a version or of a peer, from scripts/peers --gradients."""
        return self._on_problem(self.device.gradients, name, problem, seq_len)

    @staticmethod
    def _on_problem(found: ByProblem | None, name: str, problem: str, seq_len: int) -> float:
        if found is not None and problem not in found.seq_lens:
            raise FactError(f"there is no problem {problem}: {', '.join(found.seq_lens)}")
        measured = {} if found is None else (found.versions | found.peers).get(name, {})
        if ProblemCell(problem, seq_len) not in measured:
            raise NotRecordedError(f"{name} has no TFLOP/s for the problem {problem} at seq_len {seq_len}")
        return measured[ProblemCell(problem, seq_len)]

    def training(self, *path: str) -> float:
        """A number of training.json: training('model', 'parameters'), and of a run, training('ladder', 'tokens_per_s')
        or training('ladder', 'steps')."""
        document = load_training(DEVICE)
        if document is None:
            raise NotRecordedError("scripts/train_gpt.py has not been recorded")
        block = document["steps_per_loss"]
        found: Any = document | {run["name"]: run | {"steps": block * len(run["losses"])} for run in document["runs"]}
        written = document["written"]
        same = written["characters"] if written["first_difference"] is None else written["first_difference"]["at"]
        found["written"] = written | {"same": same}  # the first characters of both texts
        for name in path:
            found = found[name]
        return found

    # For e4m3, from scripts/peers --dtype e4m3: never shown beside figures for 16 bits.

    def e4m3(self, name: str, seq_len: int = SEQ_LEN) -> float:
        """TFLOP/s of an extension, "fp8", or of a peer, at steady power."""
        measured = {version.source.kernel: version.beside_peers.tflops for version in self._in_e4m3.versions}
        measured |= {peer.name: peer.tflops for peer in self._in_e4m3.peers}
        shape = Shape(seq_len, BATCH[seq_len])
        if shape not in measured.get(name, {}):
            raise NotRecordedError(f"{name} was not measured in e4m3 at seq_len {seq_len}")
        return measured[name][shape]

    def clock_beside_peers_mhz(self, name: str, dtype: str = "fp16", seq_len: int = SEQ_LEN) -> float:
        """The SM clock that was reported for a version, "27" or "fp8", in the run beside the peers."""
        shape = Shape(seq_len, BATCH[seq_len])
        for version in (self._in_e4m3 if dtype == "e4m3" else self.device).versions:
            if version.source.kernel == name and shape in version.beside_peers.sm_clock_mhz:
                return version.beside_peers.sm_clock_mhz[shape]
        raise NotRecordedError(f"{name} has no clock beside the peers at seq_len {seq_len}")

    def fp8_error(self, data: str, name: str, kernel_alone: bool = False, rotated: bool = False) -> float:
        """The distance from float64 that scripts/fp8_error.py found for "27", "fp8", a peer, or the "rounding" of Q, K
        and V."""
        results = self._fp8_error["results"] if self._fp8_error else []
        for result in results:
            if (result["data"], result["rotated"]) == (data, rotated):
                if name == "rounding":
                    return result["rounding"]
                for one in result["errors"]:
                    if one["name"] == name:
                        return one["kernel_alone" if kernel_alone else "error"]
        raise NotRecordedError(f"the error of {name} on {data} data is not recorded")

    def fp8_error_recording(self) -> dict[str, Any]:
        """The file that scripts/fp8_error.py wrote."""
        if self._fp8_error is None:
            raise NotRecordedError(f"there is no profiles/{DEVICE}/fp8_error.json")
        return self._fp8_error

    @cached_property
    def _fp8_error(self) -> dict[str, Any] | None:
        return load_fp8_error(DEVICE)

    def wgmma_ceiling(self) -> float:
        """The TFLOP/s that wgmma reaches when nothing else runs, at the clock that the power limit allows."""
        return self._ceiling("wgmma")

    def wgmma_cycles_per_score(self) -> float:
        """The SM cycles that wgmma needs at least for an element of S and its share of P V, at head_dim 128."""
        return 4 * layouts.HEAD_DIM / GPU["wgmma_flop_per_sm_per_cycle"]

    def wgmma_tflops_at(self, mhz: float) -> float:
        """The maximum throughput of wgmma at this clock."""
        return GPU["sms"] * GPU["wgmma_flop_per_sm_per_cycle"] * mhz / 1e6

    def mma_ceiling(self) -> float:
        """The TFLOP/s that mma.sync reaches with operands in registers."""
        return self._ceiling("mma.sync")

    def _ceiling(self, instruction: str) -> float:
        if instruction not in self.device.ceilings:
            raise NotRecordedError(f"peers.json has no ceiling of {instruction}")
        return self.device.ceilings[instruction]

    def max_clock_mhz(self) -> float:
        return self._profile(DEVICE, 6)["clocks"]["sm_max_mhz"]

    # Counters from Nsight Compute on the device, at seq_len 2048, batch 16, 16 heads.

    def busy(self, number: int, metric: str) -> float:
        """A metric from the "busy" table of profiles/h200/ncu.json, unchanged."""
        version = self._ncu["busy"]["versions"].get(self.stem(number))
        if version is None or metric not in version:
            raise NotRecordedError(f"profiles/{DEVICE}/ncu.json has no {metric} of {self.stem(number)}")
        return version[metric]

    def has_tflops(self, number: int) -> bool:
        """Whether the version was measured under its present name."""
        return any(v.source.stem == self.stem(number) and v.recorded for v in self.device.rungs())

    def has_busy(self, number: int) -> bool:
        return self.stem(number) in self._ncu["busy"]["versions"]

    def issue(self, number: int) -> float:
        """Issue slots in use, %."""
        return self.busy(number, "issue_slots_percent")

    def shared(self, number: int) -> float:
        """Cycles in which the data pipe of L1 and shared memory is in use, %."""
        return self.busy(number, "lsu_data_pipe_percent")

    def tensor(self, number: int) -> float:
        """Cycles in which the tensor cores are in use, %."""
        return self.busy(number, "tensor_pipe_percent")

    def l2(self, number: int) -> float:
        """Bytes that pass through L2, as a percentage of those that it could move."""
        return self.busy(number, "l2_percent")

    def l2_bytes_per_cycle(self, number: int) -> float:
        """The bytes that L2 could move in a cycle of the SMs. L2 has its own clock, so the slower the SMs, the larger
        this is."""
        return self.busy(number, "l2_bytes") / (self.l2(number) / 100 * self.cycles(number))

    def l2_tb_per_s(self) -> float:
        """The bytes that L2 could move, derived from 02, whose cycles and time give the clock of the SMs."""
        return self.l2_bytes_per_cycle(2) * self.clock_while_running_mhz(2) / 1e6

    def l2_gb(self, number: int) -> float:
        return self.busy(number, "l2_bytes") / 1e9

    def dram_gb(self, number: int) -> float:
        return self.busy(number, "dram_bytes") / 1e9

    def cycles(self, number: int) -> float:
        return self.busy(number, "cycles")

    def busy_scores(self) -> int:
        """The number of elements of S in that problem: batch · heads · seq_len · seq_len_kv."""
        p = self._ncu["busy"]["problem"]
        return p["batch"] * p["heads"] * p["seq_len"] * p["seq_len_kv"]

    def busy_flop(self) -> int:
        return 4 * self._ncu["busy"]["problem"]["head_dim"] * self.busy_scores()

    def flop_per_byte(self, number: int, level: str) -> float:
        """FLOP per byte that passes "hbm", "l2" or "shared" (a wavefront is 128 bytes, whether used or not)."""
        if level == "shared":
            moved = self.shared(number) / 100 * self.cycles(number) * GPU["sms"] * GPU["smem_bytes_per_cycle"]
        else:
            moved = self.busy(number, {"hbm": "dram_bytes", "l2": "l2_bytes"}[level])
        return self.busy_flop() / moved

    def wavefronts_per_score(self, number: int) -> float:
        """Wavefronts through the data pipe of L1 and shared memory, which is at most one per cycle and SM."""
        return self.shared(number) / 100 * self.cycles_per_score(number)

    def tensor_cycles_per_score(self, number: int) -> float:
        """How long the tensor cores of an SM are busy with an element of S and its share of P V."""
        return self.tensor(number) / 100 * self.cycles_per_score(number)

    def cycles_per_score(self, number: int) -> float:
        """Cycles of an SM."""
        return self.cycles(number) * GPU["sms"] / self.busy_scores()

    def instructions_per_score(self, number: int) -> float:
        """Warp instructions per element of S and its share of P V."""
        return self.busy(number, "warp_instructions") / self.busy_scores()

    def ncu(self, number: int, metric: str) -> int:
        """A counter of Nsight Compute at seq_len 256, batch 1, 2 heads: the problem of count()."""
        return self._ncu["versions"][self.stem(number)][metric]

    # Counters of the virtual GPU, at seq_len 256, batch 1, 2 heads.

    def count(self, number: int, counter: str, kernel: str | None = None, **fields: int | bool) -> int:
        """A counter of the virtual GPU, for all kernels of a version or for one, and for the first problem that has
        these fields, such as page_size=64 or causal=True; without any, for the first problem."""
        result = self._counted(number, **fields)
        if kernel is None:
            return result["counters"][counter]
        return sum(line["counters"].get(counter, 0) for line in result["lines"] if line["kernel"] == kernel)

    def at(self, number: int, place: str, counter: str, within: str | None = None) -> int:
        """The same for a place of the kernel (scripts/kernel_places.py), including code inlined there; of a comment on
        lines of its own, for its part of the file.

        If other lines call it, `within` can name the place of one, too. Lines are looked up in the present file, so a
        recording of an older file cannot be used.
        """
        if self._profile("emulator", number)["code_hash"] != self.registry[f"{number:02}"]["code_hash"]:
            raise NotRecordedError(f"kernels/{self.stem(number)}.cu has changed since the virtual GPU counted it")
        places = [self._lines(number, one) for one in (place, within) if one]
        lines = []
        for line in self._counted(number)["lines"]:
            names = {position.rpartition("/")[2] for position in line["position"]}
            if not any(names.isdisjoint(wanted) for wanted in places):
                lines.append(line)
        if not lines:
            again = f"harness --kernel {number:02} --device emulator --record"
            raise FactError(f"the virtual GPU counted nothing at {place!r}: have lines moved? {again} counts anew")
        return sum(line["counters"].get(counter, 0) for line in lines)

    def _counted(self, number: int, **fields: int | bool) -> dict[str, Any]:
        results = self._profile("emulator", number)["results"]
        return next(result for result in results if fields.items() <= result["problem"].items())

    def _lines(self, number: int, place: str) -> set[str]:
        """06_swizzle.cu:45, as in positions, whatever folder precedes it there."""
        file = self.file(number)
        try:
            part = Places((ROOT / file).read_text(encoding="utf-8"), file).part(place)
        except PlaceError as error:
            raise FactError(str(error)) from error
        return {f"{self.stem(number)}.cu:{line + 1}" for line in part}

    def sass(self, number: int, *opcodes: str, arch: str = ARCH) -> int:
        """Instructions of these opcodes in the hot loop."""
        loop = self._static(number, arch)["hot_loop_sass"]
        return sum(loop.get(opcode, 0) for opcode in opcodes)

    def loop(self, number: int, arch: str = ARCH) -> int:
        """Instructions in the hot loop."""
        return sum(self._static(number, arch)["hot_loop_sass"].values())

    def behind_branches(self, number: int, arch: str = ARCH) -> int:
        """Instructions in the same loop that are inside an `if`, and so not in the count of loop()."""
        return sum((self._static(number, arch)["hot_loop_cold_sass"] or {}).values())

    def sass_behind(self, number: int, *opcodes: str, arch: str = ARCH) -> int:
        """Among the instructions after branches, those with these opcodes."""
        behind = self._static(number, arch)["hot_loop_cold_sass"] or {}
        return sum(behind.get(opcode, 0) for opcode in opcodes)

    def sass_whole(self, number: int, *opcodes: str, arch: str = ARCH) -> int:
        """Instructions of these opcodes in the whole kernel."""
        return sum(self._static(number, arch)["sass"].get(opcode, 0) for opcode in opcodes)

    def hot_loop(self, number: int, arch: str = ARCH) -> dict[str, int]:
        return self._static(number, arch)["hot_loop_sass"]

    def registers(self, number: int, arch: str = ARCH) -> int:
        return self._static(number, arch)["registers"]

    def ctas(self, number: int, arch: str = ARCH) -> int:
        """CTAs that fit on an SM."""
        return self._static(number, arch)["ctas_per_sm"]

    def limited_by(self, number: int, arch: str = ARCH) -> str:
        return self._static(number, arch)["limited_by"]

    def has_machine_code(self, number: int, arch: str = ARCH) -> bool:
        try:
            return bool(self._static(number, arch))
        except NotRecordedError:
            return False

    @cache  # noqa: B019
    def _static(self, number: int, arch: str) -> dict[str, Any]:
        """The recorded study; for a version that no GPU has recorded yet, that of the build."""
        try:
            results = self._profile(DEVICE, number)["results"]
        except NotRecordedError:
            if self._harness is None or not self._of_the_build:
                raise
            results = self._told_by_harness("--kernel", f"{number:02}", "--sass")["results"]
        for result in results:
            if result["problem"]["dtype"] == "fp16" and result["static"]:
                return result["static"][arch]
        raise NotRecordedError(f"profiles/{DEVICE} has no machine code of version {number:02}")

    # Which role waits for which: timeline.py.

    def lengths(self, number: int) -> timeline.Lengths:
        """wgmmas take the time that they need at the full rate of the tensor cores; the softmax takes that of its MUFU
        instructions and of what comes before and after them.
        """
        keys = self.block_kv(number)
        product = 2 * 64 * keys * layouts.HEAD_DIM / GPU["wgmma_flop_per_sm_per_cycle"]  # S, or P V, of a warpgroup
        lanes = GPU["ex2_per_sm_per_cycle"] / GPU["schedulers_per_sm"]
        softmax = self.sass(number, "MUFU") * 32 / lanes + self.sass(number, "FMNMX", "F2FP")
        return timeline.Lengths(product, softmax)

    @cache  # noqa: B019
    def timeline_of(self, number: int) -> list[timeline.Span]:
        """A version's trace of 12 tiles of keys, with these lengths."""
        return timeline.timeline(self.role_trace(number, 12), self.lengths(number))

    def timeline_share(self, number: int) -> float:
        """The fraction of the time in which the tensor cores work in the timeline, away from both ends."""
        spans = self.timeline_of(number)
        begins = {span.what: span.begin for span in spans if span.who == "tensor 0"}
        return timeline.tensor_share(spans, begins["S4"], begins["S10"])

    # ---- how pages refer to facts ----

    def evaluate(self, expression: str) -> Any:  # noqa: ANN401 (a number, or the name of a limit)
        names = {
            name: getattr(self, name)
            for name in dir(type(self))
            if not name.startswith("_") and name != "registry" and callable(getattr(type(self), name))
        }
        names |= {name: getattr(layouts, name) for name in dir(layouts) if not name.startswith("_")}
        names["flipped_bits"] = bits.flipped_bits
        names |= {"steps": worked.steps, "output": worked.output, "SCORES": worked.SCORES}
        names |= {"min": min, "max": max, "range": range, "sum": sum, "exp": math.exp, "log": math.log}
        try:
            return eval(expression, {"__builtins__": {}, **names})
        except FactError:
            raise
        except Exception as error:
            raise FactError(f"{expression!r} cannot be computed: {type(error).__name__}: {error}") from error

    def text(self, source: str) -> str:
        """`EXPRESSION`, or `EXPRESSION; FORMAT` with a Python format (.0f); "–" if it is not recorded."""
        expression, _, form = (part.strip() for part in source.partition(";"))
        try:
            value = self.evaluate(expression)
        except NotRecordedError:
            return "–"
        if form:
            return format(value, form)
        if isinstance(value, str):
            return value
        return f"{value:,d}" if isinstance(value, int) else three_digits(value)


def check_blank(facts: Facts, text: str) -> str:
    """The answer in `ANSWER = EXPRESSION`. Raises FactError if it is not the figure.

    If the figure is not recorded nothing can be checked; the chapter then says that its profile is stale.
    """
    return blank_of(facts, text)[0]


def blank_of(facts: Facts, text: str) -> tuple[str, float]:
    """The answer as it is written, and its figure, which has more digits if the answer is rounded."""
    answer, equals, expression = (part.strip() for part in text.partition("="))
    if not equals or not answer.replace(".", "", 1).isdigit():
        raise FactError(f"a blank is written ANSWER = EXPRESSION, not {text!r}")
    try:
        value = facts.evaluate(expression)
    except NotRecordedError:
        return answer, float(answer)
    digits = len(answer.partition(".")[2])
    if round(value, digits) != float(answer):
        raise FactError(f"the answer {answer} is not {expression}, which is {value}")
    return answer, float(value)
