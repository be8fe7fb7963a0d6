"""What the chapters of the Hopper track say of their planted bugs, on a GPU: a wrong result, or a hang.

Needs a GPU of compute capability 9.0, and `cmake --build build --target harness-worker-hopper-faults`.
"""

import shutil
import subprocess

import pytest
from emulator_worker import BUILD, run_worker_that_prints
from planted_faults import HOPPER_FAULTS, Fault

PROGRAM = "harness-worker-hopper-faults"
PATIENCE = 60.0  # seconds: each is done in two


def has_hopper() -> bool:
    if shutil.which("nvidia-smi") is None:
        return False
    command = ["nvidia-smi", "--query-gpu=compute_cap", "--format=csv,noheader"]
    return "9.0" in subprocess.run(command, capture_output=True, text=True, check=False).stdout


@pytest.mark.skipif(not has_hopper(), reason="there is no GPU of compute capability 9.0")
@pytest.mark.skipif(not (BUILD / PROGRAM).exists(), reason=f"{PROGRAM} is not built")
@pytest.mark.parametrize("fault", HOPPER_FAULTS, ids=lambda fault: f"{fault.kernel[:2]}: {fault.name}")
def test_fault_is_caught(fault: Fault) -> None:
    problem = {"batch": 1, "heads": fault.heads, "seq_len": fault.seq_len, "seq_len_kv": fault.seq_len, "head_dim": 128}
    request = {"kernel": fault.version, "problem": problem | {"dtype": "fp16"}}
    try:
        result, _ = run_worker_that_prints(PROGRAM, timeout=PATIENCE, **request)
    except subprocess.TimeoutExpired:
        assert fault.hangs
        return
    assert not fault.hangs and result["correct"] is False, result
