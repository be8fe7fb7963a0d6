#!/usr/bin/env python3
"""Uses Nsight Compute to count the metrics that the first lessons discuss, and writes profiles/<device>/ncu.json.

For every version at a small shape: shared-memory wavefronts compared with the conflict-free ideal, shared-memory load
instructions, and the sectors that global loads and stores request from L1. At a shape that fills the GPU (from version
02 on): how busy shared memory, the schedulers, the tensor cores and L2 are, instructions, cycles, and bytes through L2
and DRAM. The file contains the date and each version's code_hash, as in recorded profiles.

Needs a GPU, and ncu on PATH with permission to read counters. The script does not change the clocks. Exit status: 0 if
the file was written; 3 if ncu or a device is missing or ncu refused. In that case, the script prints the reason and
writes nothing.
"""

from __future__ import annotations

import argparse
import csv
import datetime
import io
import json
import math
import re
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

from ladder import ROOT, device_slug, write_whole
from worker_request import Configuration, add_arguments, configurations, run_worker

# Our names for ncu's metrics. All are sums over the launch.
METRICS = {
    "shared_wavefronts": "memory_l1_wavefronts_shared",
    "shared_wavefronts_ideal": "memory_l1_wavefronts_shared_ideal",
    "shared_load_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_ld.sum",
    "shared_store_wavefronts": "l1tex__data_pipe_lsu_wavefronts_mem_shared_op_st.sum",
    "shared_load_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_ld.sum",
    "shared_store_bank_conflicts": "l1tex__data_bank_conflicts_pipe_lsu_mem_shared_op_st.sum",
    "shared_load_instructions": "smsp__inst_executed_op_shared_ld.sum",
    "ldmatrix_instructions": "smsp__inst_executed_op_ldsm.sum",
    "ldgsts_instructions": "smsp__inst_executed_op_ldgsts.sum",
    "global_load_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_ld.sum",
    "global_load_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_ld.sum",
    "global_store_sectors": "l1tex__t_sectors_pipe_lsu_mem_global_op_st.sum",
    "global_store_requests": "l1tex__t_requests_pipe_lsu_mem_global_op_st.sum",
}
# The same for the shape that fills the GPU. Percentages are relative to the maximum of the unit.
BUSY_METRICS = {
    "lsu_data_pipe_percent": "l1tex__data_pipe_lsu_wavefronts.avg.pct_of_peak_sustained_elapsed",
    "issue_slots_percent": "smsp__issue_active.avg.pct_of_peak_sustained_active",
    "warp_instructions": "smsp__inst_executed.sum",
    "tensor_pipe_percent": "sm__pipe_tensor_cycles_active.avg.pct_of_peak_sustained_active",
    "cycles": "sm__cycles_elapsed.max",
    "l2_bytes": "lts__t_bytes.sum",
    "l2_percent": "lts__t_bytes.avg.pct_of_peak_sustained_elapsed",
    "dram_bytes": "dram__bytes.sum",
}
SCHEMA = 2  # harness/results/ncu.schema.json
PROBLEM = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 256}
BUSY_PROBLEM = {"batch": 16, "heads": 16, "seq_len": 2048, "seq_len_kv": 2048}


class RefusedError(Exception):
    """ncu did not count; the text gives the reason."""


def read_counters(output: str, metrics: dict[str, str]) -> dict[str, float]:
    """Extracts our counters from ncu's CSV, summed over the launches of one run (01 has three)."""
    if '"ID"' not in output:
        # ncu stops at a name that it does not know, and prints it: "==ERROR== Failed to find metric …".
        errors = [line for line in output.splitlines() if line.startswith(("==ERROR==", "==WARNING=="))]
        words = set(re.findall(r"\w+", " ".join(errors)))
        named = [metric for metric in metrics.values() if metric.split(".")[0] in words]
        raise RefusedError(f"it refused {', '.join(named)}" if named else "it wrote no counters")
    table = output[output.index('"ID"') :]
    names = {metric: name for name, metric in metrics.items()}
    counters: dict[str, float] = {}
    for row in csv.DictReader(io.StringIO(table)):
        metric, text = row["Metric Name"], row["Metric Value"]
        if metric not in names:  # printed by the program or ncu after the table
            continue
        try:
            value = float(text.replace(",", ""))
        except ValueError as error:
            raise RefusedError(f"it has no number for {metric}, but {text!r}") from error
        if not math.isfinite(value):
            raise RefusedError(f"it has no number for {metric}, but {text!r}")
        counters[names[metric]] = counters.get(names[metric], 0) + (int(value) if value.is_integer() else value)
    # Counters of individual instructions, memory_…, may be missing if a kernel has no such instruction; all others must
    # exist.
    missing = [metric for name, metric in metrics.items() if name not in counters and not metric.startswith("memory_")]
    if missing:
        raise RefusedError(f"it left out {', '.join(missing)}")
    return {name: counters.get(name, 0) for name in metrics}


def count(
    build: Path, selected: list[Configuration], problem: dict[str, Any], metrics: dict[str, str]
) -> dict[str, Any]:
    """The counters of each version's first launch. Ends the program if ncu fails."""
    versions = {}
    ncu = ["ncu", "--csv", "--print-units", "base", "--clock-control", "none", "--metrics", ",".join(metrics.values())]
    for configuration in selected:
        launches = "3" if configuration.kernel == "01" else "1"
        if configuration.kernel == "01" and problem is BUSY_PROBLEM:
            continue  # percentages of three launches cannot be added up
        tool = [*ncu, "--kernel-name", "regex:flash_attention|scores|softmax|output", "--launch-count", launches]
        request = {"check": False, "benchmark": True, "repeat": 1, "problem": problem}
        done, answer = run_worker(build, tool, configuration, request)
        name = configuration.label
        try:
            if done.returncode != 0 and '"ID"' in done.stdout:
                raise RefusedError(f"it ended with status {done.returncode}")
            versions[name] = read_counters(done.stdout, metrics)
        except RefusedError as why:
            worker = f"; the worker: {answer['message']}" if answer["event"] == "error" else ""
            print(f"{done.stdout}\nncu failed for {configuration}: {why}{worker}", file=sys.stderr)
            raise SystemExit(3) from why
        print(f"{configuration}: {versions[name]}", flush=True)
    whole = problem | {"head_dim": 128, "dtype": "fp16"}
    return {"problem": whole, "metrics": metrics, "versions": versions}


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--out", type=Path, help="file to write (default profiles/<device>/ncu.json)")
    arguments = parser.parse_args()
    if shutil.which("ncu") is None:
        print("ncu is not on PATH; it is part of the CUDA toolkit and of Nsight Compute", file=sys.stderr)
        return 3

    now = datetime.datetime.now(datetime.timezone.utc)
    selected = configurations(arguments.build, arguments.kernel, ("fp16",), every=False)
    code = {one.label: one.code_hash for one in selected}
    busy = count(arguments.build, selected, BUSY_PROBLEM, BUSY_METRICS)
    counted = count(arguments.build, selected, PROBLEM, METRICS) | {"busy": busy}

    query = ["nvidia-smi", "--query-gpu=name,driver_version", "--format=csv,noheader"]
    device, driver = subprocess.check_output(query, text=True).splitlines()[0].split(", ")
    version = subprocess.check_output(["ncu", "--version"], text=True).strip().splitlines()[-1]
    path = arguments.out or ROOT / "profiles" / device_slug(device) / "ncu.json"
    date = now.strftime("%Y-%m-%dT%H:%M:%SZ")
    made = {"schema": SCHEMA, "date": date, "device": device, "driver": driver, "ncu": version}
    write_whole(path, json.dumps(made | {"code_hash": code} | counted, indent=2) + "\n")
    print(f"wrote {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
