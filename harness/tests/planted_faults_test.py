"""The virtual GPU catches every fault planted in the ladder's kernels: at the right line, or as a wrong result."""

from pathlib import Path

import pytest
from emulator_worker import run_worker
from planted_faults import FAULTS, Fault, line_of

KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kernel[:2]}: {fault.name}")
def test_fault_is_caught(fault: Fault) -> None:
    request = {"kernel": fault.number, "max_instructions": 1_000_000}
    result = run_worker("harness-worker-faults", sm_count=fault.sm_count, **request)
    assert result["status"] == "wrong", result
    if fault.finding is None:
        assert result["correct"] is False and result["tile_map"]
        return
    place = f"kernels/{fault.kernel}.cu:{line_of(fault, KERNELS / f'{fault.kernel}.cu')}"
    places = [
        place
        for finding in result["findings"]
        if finding["kind"] == fault.finding
        for place in finding["position"] + (finding["other_position"] or [])
    ]
    assert place in places, [finding["text"] for finding in result["findings"]]
