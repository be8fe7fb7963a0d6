"""Runs a worker of the virtual GPU, as the harness does."""

import json
import os
import subprocess
import tempfile
from pathlib import Path
from typing import Any

BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", Path(__file__).resolve().parents[2] / "build"))
REFERENCES = tempfile.TemporaryDirectory()  # shared by requests that check the same problems; removed at the end


def run_worker(program: str, **request: object) -> dict[str, Any]:
    """The result of one version: the worker and the request are as in harness/rules/protocol.h."""
    return run_worker_that_prints(program, **request)[0]


def run_worker_that_prints(program: str, **request: object) -> tuple[dict[str, Any], str]:
    """The same, together with the output of the kernels."""
    problem = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 256, "head_dim": 128, "dtype": "fp16"}
    whole = {"command": "run", "benchmark": False, "problem": problem, "reference_cache": REFERENCES.name} | request
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" "$1" 3>&1 1>&2', BUILD / program, json.dumps(whole)],
        capture_output=True,
        text=True,
        check=True,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "result", (last, done.stderr)
    return last["result"], done.stderr
