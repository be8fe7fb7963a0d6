"""Runs single versions in the harness's worker, for tools that want a program that launches little else."""

from __future__ import annotations

import argparse
import json
import subprocess
from dataclasses import dataclass
from pathlib import Path
from typing import Any

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
# Two query tiles and an odd number of K/V tiles of most versions, two heads: every code path, in little time.
SMALL_PROBLEM = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 192, "head_dim": 128}


@dataclass(frozen=True)
class Configuration:
    """One configuration of one version."""

    kernel: str  # "06"
    name: str
    config: str
    dtype: str

    def __str__(self) -> str:
        return f"{self.kernel}_{self.name} {self.config} {self.dtype}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="all", help="versions, as for the harness: 7, 05-08, all (default all)")
    parser.add_argument("--build", type=Path, default=BUILD, help="build folder (default build/)")


def configurations(build: Path, kernel: str, dtypes: tuple[str, ...]) -> list[Configuration]:
    """The configurations that the harness launches on this GPU. Where it refuses, ends with its message."""
    found = []
    for dtype in dtypes:
        command = [build / "harness", "--kernel", kernel, "--device", "gpu", "--dtype", dtype, "--no-bench"]
        sizes = [f"--{size.replace('_', '-')}={value}" for size, value in SMALL_PROBLEM.items()]
        done = subprocess.run([*command, *sizes, "--json", "-"], stdout=subprocess.PIPE, check=False)
        if done.returncode != 0:
            raise SystemExit(done.returncode)
        found += [
            Configuration(result["kernel"], result["name"], result["config"], dtype)
            for result in json.loads(done.stdout)["results"]
        ]
    return found


def run_worker(
    build: Path, tool: list[str], configuration: Configuration, request: dict[str, Any]
) -> subprocess.CompletedProcess[str]:
    """Runs `tool… harness-worker-gpu REQUEST` and returns what it printed. The worker's events go nowhere."""
    problem = SMALL_PROBLEM | {"dtype": configuration.dtype} | request.pop("problem", {})
    whole = {"command": "run", "kernel": int(configuration.kernel), "config": configuration.config, "problem": problem}
    command = [*tool, str(build / "harness-worker-gpu"), json.dumps(whole | request)]
    shell = ["sh", "-c", 'exec "$@" 3>/dev/null', "sh", *command]
    return subprocess.run(shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
