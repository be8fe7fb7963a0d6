"""The virtual GPU catches every fault planted in the ladder's kernels: in the right place, or as a wrong result."""

import re
from pathlib import Path
from typing import Any

import pytest
from emulator_worker import run_worker, run_worker_that_prints
from planted_faults import FAULTS, MOVED, PROBES, Fault, lines_of

ONE_QUERY = {"batch": 1, "heads": 2, "seq_len": 1, "seq_len_kv": 253, "head_dim": 128, "dtype": "fp16"}
FORWARD = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 256, "dtype": "fp16"}
UNKNOWN_TO_THE_DIAGNOSIS = ("scores", "hopper_scores", "packed", "hopper_packed", "dropout", "D06_paged", "D09_append")
UNKNOWN_TO_THE_DIAGNOSIS += ("D10_rotary", "D14_fp8_cache")
# Problems in which a mistake with the newest field of a version for gradients shows, by the end of its name. The whole
# check, which has sets for all combinations, takes ten times as long.
SEVERAL = {"batch": 3, "lengths": [40, 200, 9], "lengths_kv": [150, 70, 256]}
SHOWN_IN: dict[str, dict[str, Any]] = {
    "_lengths": SEVERAL,
    "_packed": SEVERAL | {"packed": True},
    "_scores": {
        "seq_len_kv": 320, "window_left": 100, "window_right": 60, "kv_heads": 1, "softcap": 1.0, "alibi": True,
        "sinks": True,
    },
    "_dropout": {
        "causal": True, "batch": 2, "seq_len": 200, "kv_heads": 1, "dropout_p": 0.3, "dropout_seed": 1 << 40,
        "dropout_offset": 7,
    },
    "_head_dims": {"causal": True, "seq_len": 200, "kv_heads": 1, "dropout_p": 0.3},
}  # fmt: skip
KERNELS = Path(__file__).resolve().parents[2] / "kernels"


@pytest.mark.parametrize("fault", FAULTS, ids=lambda fault: f"{fault.kernel}: {fault.name}")
def test_fault_is_caught(fault: Fault) -> None:
    request: dict[str, Any] = {"kernel": fault.version, "max_instructions": 8_000_000}
    if fault.is_decoding:
        request["problem"] = ONE_QUERY
    if fault.head_dim is not None:
        request["problem"] = FORWARD | {"head_dim": fault.head_dim}
        if fault.head_dim_v is not None:
            request["problem"]["head_dim_v"] = fault.head_dim_v
    if fault.finding is None:
        result = wrong_in_its_problem(fault, request) or run_worker("harness-worker-faults", **request)
        assert result["status"] == "wrong", result
        assert result["correct"] is False
        if fault.is_backward:
            assert result.get("tile_map") or result["findings"]
            if not result["findings"]:
                assert_diagnosis(fault, result)
        elif fault.reason:
            assert fault.reason in result["reason"] and "tile_map" not in result
        elif fault.kernel not in UNKNOWN_TO_THE_DIAGNOSIS:
            assert result["tile_map"]
            assert_diagnosis(fault, result)
        return
    # Most are found with a single problem, and a few only by the whole check.
    own = problem_of(fault)
    for more in (
        *([] if own is None else [{"problem": own, "only_requested_problem": True}]),
        {"only_requested_problem": True},
        {},
    ):
        result = run_worker("harness-worker-faults", **(request | more))
        if is_found(fault, result):
            assert_first(fault, result)
            return
    pytest.fail("\n".join(finding["text"] for finding in result["findings"]) or str(result))


def problem_of(fault: Fault) -> dict[str, Any] | None:
    """That of SHOWN_IN."""
    fields = next((more for end, more in SHOWN_IN.items() if fault.is_backward and fault.kernel.endswith(end)), None)
    sizes = {"head_dim": fault.head_dim or 128} | ({"head_dim_v": fault.head_dim_v} if fault.head_dim_v else {})
    return None if fields is None else FORWARD | sizes | fields


def wrong_in_its_problem(fault: Fault, request: dict[str, Any]) -> dict[str, Any] | None:
    """The result in that problem, if it is wrong and says what the fault wants."""
    problem = problem_of(fault)
    if problem is None:
        return None
    result = run_worker("harness-worker-faults", **(request | {"problem": problem, "only_requested_problem": True}))
    if result["status"] != "wrong" or result["findings"] or "diagnosis" not in result:
        return None
    try:
        assert_diagnosis(fault, result)
    except AssertionError:
        return None
    return result


def is_found(fault: Fault, result: dict[str, Any]) -> bool:
    """Whether it is the finding that the fault specifies, in its place."""
    wanted = places_of(fault, fault.at)
    found = [finding for finding in result["findings"] if finding["kind"] == fault.finding]
    places = {place for finding in found for place in finding["position"] + (finding["other_position"] or [])}
    # In a deadlock other warps wait, too, and the message says where.
    named = [re.compile(rf"\b{Path(place).name}\b") for place in wanted]
    in_place = not places.isdisjoint(wanted) or any(
        name.search(finding["message"]) for name in named for finding in found
    )
    return result["status"] == "wrong" and in_place


def places_of(fault: Fault, place: str) -> set[str]:
    return {f"kernels/{fault.file}.cu:{line}" for line in lines_of(KERNELS / f"{fault.file}.cu", place)}


def assert_first(fault: Fault, result: dict[str, Any]) -> None:
    """The finding that a reader sees first is the fault, and names the wait that had no effect."""
    if not fault.first:
        return
    (first, *_) = result["findings"]
    assert is_found(fault, result | {"findings": [first]}), first["text"]
    if fault.waits_at:
        wanted = places_of(fault, fault.waits_at)
        assert any(not wanted.isdisjoint(wait) for wait in first["waits"]), first["text"]


def assert_diagnosis(fault: Fault, result: dict[str, Any]) -> None:
    """The diagnosis suggests and says what the fault specifies."""
    diagnosis = result["diagnosis"]
    whole = "\n".join(diagnosis["sentences"])
    if fault.suggests is not None:
        assert fault.suggests in diagnosis["suggests"], whole
        assert len(diagnosis["suggests"]) <= 2, whole
    for text in fault.says:
        assert text in whole, whole
    # For an mma of the forward pass.
    without_fragments = fault.kernel < "04" or fault.file.startswith(("hopper/", "decoding/", "backward/"))
    assert (diagnosis["first"] is None) == without_fragments


@pytest.mark.parametrize("probe", PROBES, ids=lambda probe: probe.kernel)
def test_the_rare_path_is_checked(probe: Fault) -> None:
    """With normal inputs the maximum of O never changes. In the check it does, thousands of times, correctly."""
    result, printed = run_worker_that_prints("harness-worker-faults", kernel=probe.version)
    assert result["correct"] is True and printed.count(MOVED) > 1000
    _, printed = run_worker_that_prints("harness-worker-faults", kernel=probe.version, only_requested_problem=True)
    assert MOVED not in printed
