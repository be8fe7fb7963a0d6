#!/usr/bin/env python3
"""Runs every version under compute-sanitizer, in all configurations and both types: memcheck, racecheck, initcheck and
synccheck. Versions with persistent CTAs, from 15 on, also run with enough query tiles that CTAs process several.

Needs a GPU and compute-sanitizer on PATH. Exit status: 0 all clean, 1 something was found, 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import os
import shutil
import sys
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path

from worker_request import Configuration, add_arguments, configurations, run_worker

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")
# More than all concurrently running CTAs have: no version has more than 6 per CTA, or more than 2 CTAs with mbarriers
# on an SM.
MBARRIERS = 4096
FIRST_PERSISTENT = 15  # from this version on, the CTAs of most versions take several query tiles


@dataclass(frozen=True)
class Run:
    """One problem for one configuration, under one tool."""

    configuration: Configuration
    tool: str
    problem: dict[str, int]

    def __str__(self) -> str:
        sizes = ", ".join(f"{name} {size}" for name, size in self.problem.items())
        return f"{self.configuration} {self.tool} ({sizes})"


def problems(c: Configuration) -> list[dict[str, int]]:
    # Two query tiles, an odd number of K/V tiles, two heads: every code path, in little time.
    found = [{"batch": 1, "heads": 2, "seq_len": 2 * c.block_q, "seq_len_kv": 3 * c.block_kv}]
    # More query tiles than two CTAs on each of 148 SMs process at a time, so that some CTAs take one more.
    if not c.kernel.isdigit() or int(c.kernel) >= FIRST_PERSISTENT:
        found.append({"batch": 2, "heads": 150, "seq_len": c.block_q, "seq_len_kv": 2 * c.block_kv})
    return found


def sanitize(build: Path, run: Run) -> tuple[bool, str]:
    """Whether it is clean, and what the tool printed."""
    configuration, tool = run.configuration, run.tool
    # Without the checker, which is slow here and looks for other errors.
    request = {"check": False, "benchmark": True, "repeat": 1, "problem": run.problem}
    command = ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"]
    if tool in ("racecheck", "synccheck"):  # by default they do not find mbarriers in dynamic shared memory
        command += ["--num-cuda-barriers", str(MBARRIERS)]
    done, answer = run_worker(build, command, configuration, request)
    if answer["event"] == "error":  # the kernel was not launched, or the tool stopped it
        return False, f"{done.stdout}{answer['message']}"
    return done.returncode == 0 and "SUMMARY" in done.stdout, done.stdout


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="check only this version; may be repeated "
        "(default all)")
    jobs = min(8, os.cpu_count() or 1)
    parser.add_argument("--jobs", type=int, default=jobs, metavar="N", help="number of runs at a time "
        "(%(default)s)")
    arguments = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH; it is part of the CUDA toolkit", file=sys.stderr)
        return 3

    runs = [
        Run(configuration, tool, problem)
        for configuration in configurations(arguments.build, arguments.kernel, ("fp16", "bf16", "e4m3"))
        for tool in arguments.tool or TOOLS
        for problem in problems(configuration)
    ]
    failures = 0
    with ThreadPoolExecutor(max(1, arguments.jobs)) as pool:
        outcomes = pool.map(lambda run: sanitize(arguments.build, run), runs)
        for run, (clean, output) in zip(runs, outcomes, strict=True):
            print(f"{run}: {'clean' if clean else 'FAILED'}", flush=True)
            if not clean:
                failures += 1
                print(output)
    print(f"{failures} of {len(runs)} failed" if failures else f"{len(runs)} runs, all of them clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
