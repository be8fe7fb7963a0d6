"""Runs single versions in the harness's worker, for tools that need a program with few other launches."""

from __future__ import annotations

import argparse
import json
import subprocess
import sys
import tempfile
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ladder import BUILD

# Whole tiles of most versions, two heads: every code path, in little time.
SMALL_PROBLEM = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 192, "head_dim": 128}


@dataclass(frozen=True)
class Configuration:
    """One configuration of one version."""

    kernel: str  # "06", or the name of an extension
    name: str
    config: str
    dtype: str
    block_q: int  # seq_len must be a multiple, unless the version solves any length
    block_kv: int  # the same for seq_len_kv
    head_dim: int
    head_dim_v: int
    code_hash: str  # hash of the version's source, as in recorded profiles
    most_queries: int = 0  # the longest seq_len; 0: any
    solves: frozenset[str] = frozenset()  # what it solves beyond the plain problem: "any_length"

    @property
    def label(self) -> str:
        """ "06_swizzle"; for an extension, its name."""
        return self.name if self.kernel == self.name else f"{self.kernel}_{self.name}"

    def __str__(self) -> str:
        return f"{self.label} {self.config} {self.dtype}"


def add_arguments(parser: argparse.ArgumentParser) -> None:
    parser.add_argument("--kernel", default="all", help="versions, as for the harness: 7, 05-08, all (default all)")
    parser.add_argument("--build", type=Path, default=BUILD, help="build folder (default build/)")


def _harness(build: Path, *arguments: str) -> Any:  # noqa: ANN401 (any JSON)
    """The harness's answer. If it refuses, it prints the reason, and the program ends with its exit status."""
    try:
        done = subprocess.run([build / "harness", *arguments, "--json", "-"], stdout=subprocess.PIPE, check=False)
    except OSError as error:
        print(f"{build / 'harness'} cannot be run: {error}; build it with scripts/setup", file=sys.stderr)
        raise SystemExit(3) from error
    if done.returncode != 0:
        raise SystemExit(done.returncode)
    return json.loads(done.stdout)


def configurations(
    build: Path, kernel: str, dtypes: tuple[str, ...], worker: str = "harness-worker-gpu", every: bool = True
) -> list[Configuration]:
    """The configurations of these versions that fit the worker's GPU: all of them, or the one that the harness
    launches.

    Ends the program if there is no such version or no GPU.
    """
    selected = {result["kernel"] for result in _harness(build, "--kernel", kernel, "--sass")["results"]}
    device = ask_worker(build / worker, {"command": "device"})
    if device["event"] != "device":
        print(f"{worker}: {device['message']}", file=sys.stderr)
        raise SystemExit(3)
    found = []
    gpu = device["device"]
    runs = {"sm_80": True, "sm_90a": gpu["compute_capability"] == 90}
    for version in _harness(build, "--list")["versions"]:
        for dtype in dtypes if version["kernel"] in selected and runs[version["architecture"]] else ():
            fitting = [
                Configuration(
                    kernel=version["kernel"],
                    name=version["name"],
                    config=one["name"],
                    dtype=dtype,
                    block_q=one["block_q"],
                    block_kv=one["block_kv"],
                    head_dim=one["head_dim"],
                    head_dim_v=one["head_dim_v"],
                    code_hash=version["code_hash"],
                    most_queries=version["most_queries"],
                    solves=frozenset(field for field, solved in version["solves"].items() if solved),
                )
                for one in version["configurations"]
                if one["dtype"] == dtype and one["smem_bytes"] <= gpu["smem_per_cta_bytes"]
            ]
            found += fitting if every else fitting[:1]
    return found


def last_event(events: str, otherwise: str) -> dict[str, Any]:
    """A worker's answer, which is its last event (harness/rules/protocol.h); without one, an error with this text."""
    lines = events.splitlines()
    last = json.loads(lines[-1]) if lines else {"event": "progress"}
    if last["event"] == "progress":
        return {"event": "error", "kind": "cuda", "message": f"the worker gave no answer: {otherwise}"}
    return last


def ask_worker(program: Path, request: dict[str, Any], timeout: float | None = None) -> dict[str, Any]:
    """A worker's answer, which is its last event. A worker that does not end in time results in an error event."""
    shell = ["sh", "-c", 'exec "$@" 3>&1 1>&2', "sh", str(program), json.dumps(request)]
    try:
        done = subprocess.run(shell, capture_output=True, text=True, timeout=timeout, check=False)
    except subprocess.TimeoutExpired:
        return {"event": "error", "kind": "cuda", "message": f"no end within {timeout:g} s"}
    return last_event(done.stdout, f"it ended with status {done.returncode}. {' '.join(done.stderr.split())[-300:]}")


def run_worker(
    build: Path, tool: list[str], configuration: Configuration, request: dict[str, Any]
) -> tuple[subprocess.CompletedProcess[str], dict[str, Any]]:
    """Runs `tool… harness-worker-gpu REQUEST` and returns what was printed, and the worker's last event."""
    problem = SMALL_PROBLEM | {"dtype": configuration.dtype} | request.get("problem", {})
    if configuration.most_queries:
        problem["seq_len"] = min(problem["seq_len"], configuration.most_queries)
    whole = {"command": "run", "kernel": configuration.kernel, "config": configuration.config}
    command = [*tool, str(build / "harness-worker-gpu"), json.dumps(whole | request | {"problem": problem})]
    with tempfile.NamedTemporaryFile(encoding="utf-8", mode="r") as events:
        shell = ["sh", "-c", 'events=$1; shift; exec "$@" 3>"$events"', "sh", events.name, *command]
        done = subprocess.run(shell, stdout=subprocess.PIPE, stderr=subprocess.STDOUT, text=True, check=False)
        return done, last_event(events.read(), f"it ended with status {done.returncode}")
