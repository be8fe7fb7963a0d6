"""What --json writes compared with its schema, and where it is written."""

import json
import os
import stat
import subprocess
from pathlib import Path
from typing import Any

import ladder
import pytest
from cli import H200, IN_8_BITS, KERNELS, RTX_4080, Cli
from schemas import validate_results

K = "--kernel"


def results_of(cli: Cli, *arguments: str) -> list[dict[str, Any]]:
    outcome = cli(*arguments, "--json", "-")
    document = json.loads(outcome.out)
    validate_results(document)
    return document["results"]


def test_of_a_gpu(cli: Cli) -> None:
    (result,) = results_of(cli, K, "07", "--seq-len", "1024")
    assert result["kernel"] == "07" and result["name"] == "ldmatrix" and result["config"] == "64x64"
    assert result["device"] == "NVIDIA H200" and result["status"] == "ok" and result["reason"] is None
    assert result["correct"] is True and result["tflops"] == 70.0 and result["ms"]["p10"] < result["ms"]["p90"]
    assert result["findings"] == [] and result["counters"] is None
    assert set(result["static"]) == {"sm_80", "sm_86", "sm_89", "sm_90"}
    assert result["static"]["sm_80"]["sass"]["HMMA"] > 0 and result["static"]["sm_86"]["sass"] is None
    assert "mismatches" not in result and "tile_map" not in result


def test_what_was_not_measured_is_null(cli: Cli) -> None:
    (result,) = results_of(cli, K, "07", "--no-bench")
    assert result["ms"] is None and result["tflops"] is None and result["correct"] is True
    (result,) = results_of(cli, K, "07", "--no-check")
    assert result["correct"] is None and result["max_abs_error"] is None and result["tflops"] == 70.0
    cli.device = None
    results = results_of(cli, K, "all")
    assert [result["name"] for result in results] == [kernel.name for kernel in KERNELS]
    for result in results:
        in_8_bits = result["name"] in IN_8_BITS  # it is not in the tables for 16 bits
        is_decoding = result["kernel"].startswith("D")  # nor in those for many queries
        assert result["status"] == ("skipped" if in_8_bits or is_decoding else "ok")
        assert not in_8_bits or ("fp16" in result["reason"] and "--dtype e4m3" in result["reason"])
        assert not is_decoding or "seq-len 4096" in result["reason"]
        assert in_8_bits or is_decoding or result["reason"] is None
        for member in ("device", "correct", "max_abs_error", "relative_error", "ms", "tflops", "counters"):
            assert result[member] is None


def test_of_every_status(cli: Cli) -> None:
    cli.device = RTX_4080
    cli.kernels = {"03": "wrong", "04": "cuda", "05": "crash"}
    results = results_of(cli, K, "all")
    assert [result["status"] for result in results][:6] == ["skipped", "ok", "wrong", "failed", "failed", "ok"]
    assert all(bool(result["reason"]) == (result["status"] != "ok") for result in results)
    wrong = results[2]
    assert wrong["correct"] is False and wrong["max_abs_error"] == "nan"
    assert wrong["mismatches"][0] == {"batch": 1, "head": 2, "row": 345, "column": 67, "got": "nan", "expected": 0.25}
    assert wrong["tile_map"]
    diagnosis = wrong["diagnosis"]
    assert diagnosis["suggests"] == ["scale_left_out"] and len(diagnosis["sentences"]) == 2
    assert diagnosis["first"] == {"warp": 2, "lane": 5, "mma_m": 0, "mma_n": 8, "register": 3}
    assert diagnosis["experiments"] == [{"name": "1 K/V tile", "right": False}]
    assert all("diagnosis" not in result for result in results if result["status"] != "wrong")


def test_the_log_of_json_has_the_diagnosis(cli: Cli) -> None:
    cli.kernels = {"05": "wrong"}
    outcome = cli(K, "05", "--json", "-")
    assert "05_cp_async: Suggests: " in outcome.err


def test_of_a_single_version_that_does_not_support_the_problem(cli: Cli) -> None:
    outcome = cli(K, "07", "--seq-len", "100", "--json", "-")
    assert outcome.rc == 2
    (result,) = json.loads(outcome.out)["results"]
    validate_results({"results": [result]})
    assert result["status"] == "skipped" and result["reason"] in outcome.err


@pytest.mark.parametrize("arguments", [[K, "07"], [K, "06-08"], [K, "07", "--sass"]])
def test_standard_output_holds_nothing_else(cli: Cli, arguments: list[str]) -> None:
    validate_results(json.loads(cli(*arguments, "--json", "-").out))
    cli.device = None
    validate_results(json.loads(cli(*arguments, "--json", "-").out))


def test_a_file(cli: Cli, tmp_path: Path) -> None:
    folder = tmp_path / "out"
    folder.mkdir()
    target = folder / "results.json"
    target.write_text("old")
    outcome = cli(K, "07", "--json", str(target))
    assert outcome.rc == 0 and "ldmatrix" in outcome.out, "the card is shown as well"
    validate_results(json.loads(target.read_text()))
    assert [*folder.iterdir()] == [target], "no temporary file is left"


def test_a_link_stays_a_link(cli: Cli, tmp_path: Path) -> None:
    link = tmp_path / "link.json"
    link.symlink_to(tmp_path / "target.json")
    (tmp_path / "target.json").write_text("old")
    assert cli(K, "07", "--sass", "--json", str(link)).rc == 0
    assert link.is_symlink()
    validate_results(json.loads((tmp_path / "target.json").read_text()))


def test_a_device_stays_a_device(cli: Cli, tmp_path: Path) -> None:
    assert cli(K, "07", "--sass", "--json", "/dev/null").rc == 0
    assert stat.S_ISCHR(os.stat("/dev/null").st_mode)
    pipe = tmp_path / "pipe"
    os.mkfifo(pipe)
    with subprocess.Popen(["cat", str(pipe)], stdout=subprocess.PIPE) as reader:
        assert cli(K, "07", "--sass", "--json", str(pipe)).rc == 0
        assert reader.stdout
        validate_results(json.loads(reader.stdout.read()))
    assert stat.S_ISFIFO(pipe.stat().st_mode)


def test_no_space(cli: Cli) -> None:
    outcome = cli(K, "07", "--sass", "--json", "/dev/full")
    assert outcome.rc == 3 and "No space left" in outcome.err
    done = subprocess.run(
        ["sh", "-c", '"$@" >/dev/full', "sh", *cli.command(K, "07", "--sass", "--json", "-")],
        env=cli.environment(),
        capture_output=True,
        text=True,
        check=False,
    )
    assert done.returncode == 3 and "standard output" in done.stderr


def test_the_scripts_know_the_same_shapes_and_versions(cli: Cli) -> None:
    document = json.loads(cli("--list", "--json", "-").out)
    shapes = [(shape["batch"], shape["seq_len"]) for shape in document["standard"]["shapes"]]
    assert shapes == ladder.SHAPES
    assert (document["standard"]["heads"], document["standard"]["head_dim"]) == (ladder.HEADS, ladder.HEAD_DIM)
    for version in document["versions"]:
        assert version["is_fast"] == ladder.is_fast(Path(version["file"]).stem), version["file"]


@pytest.mark.parametrize("name", ["NVIDIA A100-SXM4-80GB", "NVIDIA H200", "Other  GPU (2)"])
def test_the_scripts_name_the_same_folder(cli: Cli, name: str) -> None:
    cli.device = H200 | {"name": name}
    assert cli("--kernel", "07", "--record").rc == 0
    assert [folder.name for folder in cli.profiles.iterdir()] == [ladder.device_slug(name)]
