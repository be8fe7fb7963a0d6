"""The worker's answers about kernels that are wrong on purpose (planted_kernels.cu). Skipped without a GPU."""

import json
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import BUILD

WORKER = BUILD / "harness-worker-planted"
PROBLEM = {"batch": 2, "heads": 2, "seq_len": 64, "seq_len_kv": 96, "head_dim": 128}


def ask(request: dict[str, Any], folder: Path, timeout: float | None = None) -> dict[str, Any]:
    """The last event of a worker. Raises TimeoutExpired if it does not arrive in time."""
    events = folder / "events"
    command = ["sh", "-c", 'exec "$0" "$1" 3>"$2"', str(WORKER), json.dumps(request), str(events)]
    done = subprocess.run(command, timeout=timeout, check=False)
    lines = [json.loads(line) for line in events.read_text(encoding="utf-8").splitlines()]
    assert done.returncode == 0, "an answer or an error was written"
    assert [line["event"] for line in lines[:-1]] == ["progress"] * (len(lines) - 1)
    return lines[-1]


@pytest.fixture(autouse=True, scope="module")
def gpu(tmp_path_factory: pytest.TempPathFactory) -> dict[str, Any]:
    answer = ask({"command": "device"}, tmp_path_factory.mktemp("device"))
    if answer["event"] == "error":
        assert answer["kind"] == "unavailable"
        pytest.skip(answer["message"])
    return answer["device"]


def run(
    kernel: str, folder: Path, *, dtype: str = "fp16", timeout: float | None = None, **more: str | int | bool
) -> dict[str, Any]:
    request = {"command": "run", "kernel": kernel, "problem": PROBLEM | {"dtype": dtype}}
    return ask(request | more, folder, timeout)


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_a_right_kernel_is_checked_and_timed(tmp_path: Path, dtype: str) -> None:
    answer = run("90", tmp_path, dtype=dtype, seed=3)
    result = answer["result"]
    assert result["status"] == "ok", result["reason"]
    assert result["correct"] is True
    assert 0 < result["relative_error"] <= 1
    assert 0 < result["ms"]["p10"] <= result["ms"]["median"] <= result["ms"]["p90"]
    assert result["tflops"] > 0
    assert set(result["load"]) == {"sm_clock_mhz", "power_watts"}


def test_references_are_kept(tmp_path: Path) -> None:
    cache = tmp_path / "cache"
    cache.mkdir()
    first = run("90", tmp_path, reference_cache=str(cache), benchmark=False)["result"]
    written = {kept: kept.read_bytes() for kept in cache.iterdir()}
    assert len(written) > 1, "of the small problems, too"
    for kept, content in written.items():
        kept.write_bytes(content[:-8] + bytes(8))  # corrupt, so it is computed again
    second = run("90", tmp_path, reference_cache=str(cache), benchmark=False)["result"]
    assert {kept: kept.read_bytes() for kept in cache.iterdir()} == written
    assert run("90", tmp_path, reference_cache=str(cache), benchmark=False)["result"] == second == first


def test_configurations_are_timed_in_turn(tmp_path: Path) -> None:
    request = {"command": "time", "kernel": "90", "configs": ["16x16", "16x16"], "repeat": 30}
    answer = ask(request | {"problem": PROBLEM | {"dtype": "fp16"}}, tmp_path)
    assert answer["event"] == "results"
    first, second = answer["results"]
    for result in (first, second):
        assert result["config"] == "16x16" and result["status"] == "ok" and result["correct"] is None
        assert 0 < result["ms"]["p10"] <= result["ms"]["median"] <= result["ms"]["p90"]
    assert 0.5 < first["tflops"] / second["tflops"] < 2
    answer = ask(request | {"configs": ["16x16", "1x1"], "problem": PROBLEM | {"dtype": "fp16"}}, tmp_path)
    assert answer["kind"] == "usage"
    assert all(fact in answer["message"] for fact in ("90_right", "'1x1'", "fp16", "16x16"))


def test_the_requested_problem_alone_in_many_launches(tmp_path: Path) -> None:
    alone = {"only_requested_problem": True, "launches": 100, "benchmark": False}
    assert run("90", tmp_path, **alone)["result"]["correct"] is True
    result = run("91", tmp_path, **alone)["result"]
    assert result["reason"].startswith("the requested problem"), "and not one of the small ones"
    assert "two launches" in run("97", tmp_path, **alone)["result"]["reason"]


def test_without_check_nothing_is_said_of_correctness(tmp_path: Path) -> None:
    result = run("91", tmp_path, check=False, repeat=3)["result"]
    assert result["status"] == "ok"
    assert result["correct"] is None
    assert result["tflops"] > 0


def test_a_skipped_tile_is_found_where_it_is(tmp_path: Path) -> None:
    answer = run("91", tmp_path)
    result = answer["result"]
    assert result["status"] == "wrong"
    assert result["correct"] is False
    assert result["relative_error"] > 1
    problem = "batch 2, heads 3, seq_len 32, seq_len_kv 112, head_dim 128, fp16"
    assert result["reason"].startswith(f"normal inputs ({problem}): ")
    first = result["mismatches"][0]
    assert (first["batch"], first["head"]) == (0, 1)
    assert 16 <= first["row"] < 32
    assert "batch  0 head  0  ..\nbatch  0 head  1  .X\n" in result["tile_map"]
    assert result["ms"] is None, "a wrong kernel is not timed"
    assert "load" not in result


@pytest.mark.parametrize(
    ("kernel", "reason"),
    [
        ("92", "1 elements past the end of O, the nearest 1 "),
        ("97", "two launches"),
        ("98", " Q: first at batch 0, head 0, row 0, column 0"),
        ("99", "1 of 24576 elements were never written; "),
    ],
)
def test_what_is_wrong_is_said(tmp_path: Path, kernel: str, reason: str) -> None:
    result = run(kernel, tmp_path)["result"]
    assert result["status"] == "wrong"
    assert reason in result["reason"]


def test_a_fault_is_a_cuda_error(tmp_path: Path) -> None:
    answer = run("93", tmp_path)
    assert answer["event"] == "error"
    assert answer["kind"] == "cuda"
    assert "running 93_illegal_address, configuration 16x16" in answer["message"]


def test_the_next_process_runs_after_a_fault(tmp_path: Path) -> None:
    run("93", tmp_path)
    assert run("90", tmp_path)["result"]["status"] == "ok"


def test_a_kernel_that_never_ends_can_be_killed(tmp_path: Path) -> None:
    with pytest.raises(subprocess.TimeoutExpired):
        run("94", tmp_path, timeout=20)
    assert run("90", tmp_path)["result"]["status"] == "ok"


def test_too_much_shared_memory_is_refused(tmp_path: Path, gpu: dict[str, Any]) -> None:
    answer = run("95", tmp_path, config="16x16")
    assert answer["event"] == "error"
    assert answer["kind"] == "usage"
    assert "1048576 bytes" in answer["message"] and gpu["name"] in answer["message"]


def test_a_launch_that_cuda_refuses_is_a_cuda_error(tmp_path: Path) -> None:
    answer = run("96", tmp_path)
    assert answer["event"] == "error"
    assert answer["kind"] == "cuda"
    assert "launching 96_unannounced_smem" in answer["message"]


@pytest.mark.parametrize(
    ("change", "message"),
    [
        ({"kernel": "7"}, "version '7'; there are 90_right, 91_"),
        ({"config": "1x1"}, "'1x1'"),
        ({"problem": PROBLEM | {"dtype": "fp16", "seq_len": 100}}, "seq-len 100 "),
        ({"problem": PROBLEM | {"dtype": "fp16", "head_dim": 64}}, "head_dim 64"),
        ({"problem": PROBLEM | {"dtype": "fp16", "batch": 70_000}}, "65535"),
        ({"problem": PROBLEM | {"dtype": "fp16", "seq_len": 16 << 26, "heads": 65_535}}, "PB of GPU memory"),
    ],
)
def test_what_cannot_be_is_refused(tmp_path: Path, change: dict[str, Any], message: str) -> None:
    request = {"command": "run", "kernel": "90", "problem": PROBLEM | {"dtype": "fp16"}}
    answer = ask(request | change, tmp_path)
    assert answer["event"] == "error"
    assert answer["kind"] == "usage"
    assert message in answer["message"]


def test_a_gpu_that_does_not_exist_is_unavailable(tmp_path: Path) -> None:
    answer = ask({"command": "device", "device": 99}, tmp_path)
    assert answer["kind"] == "unavailable"
    assert "GPU 99 does not exist" in answer["message"]


def test_the_device_is_described(gpu: dict[str, Any]) -> None:
    for member in ("name", "compute_capability", "memory_free_bytes", "sm_count", "l2_bytes", "smem_per_cta_bytes"):
        assert gpu[member], member
    assert gpu["memory_free_bytes"] <= gpu["memory_total_bytes"]


def test_events_go_to_standard_output_when_nobody_listens_at_descriptor_3() -> None:
    command = ["sh", "-c", 'exec 3>&-; exec "$0" "$1"', str(WORKER), '{"command": "device"}']
    done = subprocess.run(command, capture_output=True, check=True)
    assert json.loads(done.stdout)["event"] == "device"
