#!/usr/bin/env python3
"""Runs every version, in both types, under compute-sanitizer: memcheck, racecheck, initcheck and synccheck.

Needs a GPU and compute-sanitizer on PATH. Exit status: 0 all clean, 1 something was found, 3 a tool is missing.
"""

from __future__ import annotations

import argparse
import shutil
import sys

from worker_request import add_arguments, configurations, run_worker

TOOLS = ("memcheck", "racecheck", "initcheck", "synccheck")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--tool", choices=TOOLS, action="append", help="only this one; may be repeated (default all)")
    arguments = parser.parse_args()
    if shutil.which("compute-sanitizer") is None:
        print("compute-sanitizer is not on PATH: it comes with the CUDA toolkit", file=sys.stderr)
        return 3

    failures = 0
    for configuration in configurations(arguments.build, arguments.kernel, ("fp16", "bf16")):
        for tool in arguments.tool or TOOLS:
            # Without the checker, which is slow here and looks for other things.
            request = {"check": False, "benchmark": True, "repeat": 1}
            done = run_worker(
                arguments.build, ["compute-sanitizer", "--tool", tool, "--error-exitcode", "9"], configuration, request
            )
            summary = [line for line in done.stdout.splitlines() if "SUMMARY" in line]
            clean = done.returncode == 0 and bool(summary)
            print(f"{configuration} {tool}: {'clean' if clean else 'FAILED'}", flush=True)
            if not clean:
                failures += 1
                print(done.stdout)
    print(f"{failures} failed" if failures else "all clean")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
