"""Runs the harness as a user would, with a fake worker in place of a GPU."""

import dataclasses
import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

from programs import write_program

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
HARNESS = BUILD / "harness"
FAKE_WORKER = Path(__file__).with_name("fake_worker.py")

sys.path.append(str(ROOT / "scripts"))
from kernel_files import kernel_files  # noqa: E402

KERNELS = kernel_files(ROOT)
NAMES = [kernel.stem for kernel in KERNELS]
IN_8_BITS = ["fp8"]  # compute e4m3 and nothing else
DECODING = [kernel.stem for kernel in KERNELS if kernel.is_decoding]  # solve another problem than all others
NUMBERS = [kernel.kernel for kernel in KERNELS]  # as for --kernel
# The kernels that run on sm_80.
AMPERE = [kernel for kernel in KERNELS if "/hopper/" not in kernel.file]

H200 = {
    "name": "NVIDIA H200",
    "compute_capability": 90,
    "memory_total_bytes": 150_000_000_000,
    "memory_free_bytes": 149_000_000_000,
    "sm_count": 132,
    "l2_bytes": 52_428_800,
    "smem_per_cta_bytes": 232_448,
    "driver_version": 13000,
    "runtime_version": 13000,
    "driver": "580.159.04",
    "sm_clock_max_mhz": 1980,
    "memory_clock_max_mhz": 3201,
}
RTX_4080 = H200 | {
    "name": "NVIDIA GeForce RTX 4080",
    "compute_capability": 89,
    "memory_total_bytes": 17_000_000_000,
    "memory_free_bytes": 16_000_000_000,
    "smem_per_cta_bytes": 101_376,
}
GTX_1080 = RTX_4080 | {"name": "NVIDIA GeForce GTX 1080", "compute_capability": 61, "smem_per_cta_bytes": 49_152}


@dataclasses.dataclass
class Outcome:
    """The outcome of one call of the harness."""

    rc: int
    out: str
    err: str

    @property
    def words(self) -> str:
        """Standard output without its line breaks, which occur wherever a line is full."""
        return " ".join(self.out.split())


class Cli:
    """The harness with a fake worker, and an empty folder of profiles unless another one is given."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.harness = HARNESS
        self.names = NAMES
        self.device: dict[str, Any] | list[dict[str, Any]] | None = H200
        self.kernels: dict[str, str] = {}
        self.tflops: dict[str, float] = {}
        self.seconds_per_step = 0.0  # for a worker that is "slow"
        self.profiles = folder / "profiles"
        self.profiles.mkdir()
        self.source = ROOT
        self.worker = folder / "fake-worker"
        write_program(self.worker, FAKE_WORKER.read_text(encoding="utf-8"))
        self.emulator_worker = folder / "no-virtual-gpu"  # does not exist, so that nothing runs without a GPU
        self.log = folder / "requests"

    def command(self, *arguments: str) -> list[str]:
        places = {
            "--worker": self.worker,
            "--emulator-worker": self.emulator_worker,
            "--profiles": self.profiles,
            "--source": self.source,
        }
        return [str(self.harness), *(str(part) for place in places.items() for part in place), *arguments]

    def environment(self, **more: str) -> dict[str, str]:
        plan = {
            "device": self.device,
            "kernels": self.kernels,
            "tflops": self.tflops,
            "seconds_per_step": self.seconds_per_step,
            "names": self.names,
            "log": str(self.log),
        }
        fake = self.folder / "plan.json"
        fake.write_text(json.dumps(plan), encoding="utf-8")
        return os.environ | {"FLASH_LADDER_FAKE": str(fake)} | more

    def __call__(self, *arguments: str, **environment: str) -> Outcome:
        done = subprocess.run(
            self.command(*arguments),
            env=self.environment(**environment),
            capture_output=True,
            text=True,
            check=False,
        )
        return Outcome(done.returncode, done.stdout, done.stderr)

    def forget_requests(self) -> None:
        self.log.unlink(missing_ok=True)

    def requests(self) -> list[dict[str, Any]]:
        """The requests to run or to time, in order."""
        if not self.log.exists():
            return []
        requests = [json.loads(line) for line in self.log.read_text(encoding="utf-8").splitlines()]
        return [request for request in requests if request["command"] in ("run", "time")]
