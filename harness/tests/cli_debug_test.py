"""`harness --debug` on the virtual GPU: correct versions, and planted faults that it must locate."""

import json
import os
import re
import shutil
from math import inf, isclose
from pathlib import Path
from typing import Any

import pytest
from blockwise_attention import attend, recorded_row
from cli import AMPERE, BUILD, H200, ROOT, Cli
from cli_terminal_test import lines_on_a_terminal
from planted_faults import FAULTS, Fault, lines_of
from planted_faults import planted as planted_text
from programs import write_program
from schemas import validate_debug

SMALL = ["--heads", "1"]


@pytest.fixture
def emulator(cli: Cli) -> Cli:
    cli.device = None
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    return cli


def debug(cli: Cli, *arguments: str, rc: int = 0, **environment: str) -> dict[str, Any]:
    outcome = cli("--debug", *arguments, "--json", "-", **environment)
    assert outcome.rc == rc, outcome.err
    document = json.loads(outcome.out)
    validate_debug(document)
    assert document["right"] == (rc == 0)
    return document


# ---- Correct versions ----


@pytest.mark.parametrize("kernel", [kernel.kernel for kernel in AMPERE if not kernel.is_backward])
def test_every_version_is_right_after_every_tile(emulator: Cli, kernel: str) -> None:
    seen = debug(emulator, kernel, *SMALL)
    assert [cut["tiles"] for cut in seen["cuts"]] == [1, 2, 3, 4]
    for cut in seen["cuts"]:
        assert cut["compared"] == seen["problem"]["seq_len"] * 128 and cut["wrong"] == 0 and cut["of_bound"] <= 1
        assert all(isclose(a, b, abs_tol=1e-2) for a, b in zip(cut["O"], cut["O_expected"], strict=True))
    assert seen["also_right"] == ["ramp", "large-logit", "offset-mean"]
    # 01 solves any tile, and its "tiles" are larger than O has columns.
    if seen["block_kv"] <= 128:
        assert seen["P"]["wrong"] == 0 and {layout["tensor"] for layout in seen["layouts"]} == {"K", "V"}
        assert all(layout["wrong"] == 0 and layout["elements"] == seen["block_kv"] * 128 for layout in seen["layouts"])


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_two_blockwise_implementations_agree(emulator: Cli, dtype: str) -> None:
    """The harness's implementation in C++, with which the kernel is compared, and the one that students read."""
    seen = debug(emulator, "07", *SMALL, "--row", "77", "--dtype", dtype, "--seed", "4")
    steps = attend(*recorded_row(seen))
    assert seen["row"]["row"] == 77 and len(steps) == len(seen["cuts"]) == 4
    for step, cut in zip(steps, seen["cuts"], strict=True):
        assert isclose(step.m, cut["m"], rel_tol=1e-6), "the harness's scale is an fp32"
        assert isclose(step.r, cut["r"], rel_tol=1e-6)
        assert isclose(step.l, cut["l"], rel_tol=1e-6)
        pairs = zip(step.output, cut["O_expected"], strict=True)
        assert all(isclose(a, b, rel_tol=1e-5, abs_tol=1e-7) for a, b in pairs)
    last = steps[-1]
    assert all(isclose(a, b, rel_tol=1e-6, abs_tol=1e-9) for a, b in zip(last.S, seen["P"]["S_expected"], strict=True))
    for p, expected, got in zip(last.P, seen["P"]["P_expected"], seen["P"]["P"], strict=True):
        assert isclose(p / last.l, expected, rel_tol=1e-5)
        assert isclose(got, expected, rel_tol=2e-2, abs_tol=1e-6), "and the kernel's P is seen through a one-hot V"


def test_many_tiles_are_cut_further_and_further_apart(emulator: Cli) -> None:
    seen = debug(emulator, "07", *SMALL, "--seq-len-kv", str(64 * 20))
    assert [cut["tiles"] for cut in seen["cuts"]] == [1, 2, 3, 4, 5, 6, 7, 8, 16, 20]


def test_the_lesson_of_a_row(emulator: Cli) -> None:
    outcome = emulator("--debug", "07", "--row", "9", "--head", "1")
    assert outcome.rc == 0
    assert "O is right after each of 4 K/V tiles" in outcome.words
    assert "Row 9 of head 1: warp 0, lanes 4 to 7, registers D[2] and D[3]" in outcome.words
    assert "All 8192 elements" in outcome.words
    assert "Look at" not in outcome.out
    assert len(outcome.out.splitlines()) < 35, "short"


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize("kernel", ["02", "07", "16"])
def test_lines_fit(emulator: Cli, columns: int, kernel: str) -> None:
    lines = lines_on_a_terminal(emulator, columns, "--debug", kernel)
    assert max(map(len, lines)) <= columns, [line for line in lines if len(line) > columns]
    assert any(line.lstrip().startswith("tile") for line in lines)


# ---- Planted faults ----


# The faults of 07 and 12 that make the output wrong for the problem that --debug examines.
WRONG = [
    fault
    for fault in FAULTS
    if fault.kernel in ("07_ldmatrix", "12_optimized_softmax") and fault.finding is None
    and fault.name not in ("V comes from the other batch entry", "seq_len is used instead of seq_len_kv")
]  # fmt: skip


@pytest.fixture
def planted(emulator: Cli, tmp_path: Path) -> Cli:
    worker = tmp_path / "planted-worker"
    write_program(worker, Path(__file__).with_name("planted_worker.py").read_text(encoding="utf-8"))
    emulator.emulator_worker = worker
    return emulator


def planted_lines(fault: Fault) -> tuple[int, int]:
    """The first and the last line that the fault changes."""
    file = ROOT / "kernels" / f"{fault.file}.cu"
    text = file.read_text(encoding="utf-8")
    lines = zip(text.split("\n"), planted_text(fault, text, file.name).split("\n"), strict=True)
    changed = [number for number, (before, after) in enumerate(lines, 1) if before != after]
    return changed[0], changed[-1]


def nearest(fault: Fault, look_at: list[str]) -> float:
    """How many lines the reader has to read on from the last line named before the fault; inf: no line was named."""
    first, last = planted_lines(fault)
    named = [int(place.rpartition(":")[2]) for place in look_at]
    return min((max(first - line, 0) for line in named if line <= last), default=inf)


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: f"{fault.kernel[:2]}: {fault.name}")
def test_a_fault_is_seen_and_led_to(planted: Cli, fault: Fault) -> None:
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, fault.kernel[:2], rc=1, **environment)
    wrong = [cut for cut in seen["cuts"] if cut["wrong"]]
    assert wrong and wrong[0]["first"]["holder"] is not None
    first = wrong[0]["first"]
    assert (seen["row"]["head"], seen["row"]["row"]) == (first["head"], first["row"])
    assert wrong[0]["O"][first["column"]] == first["got"] and isclose(
        wrong[0]["O_expected"][first["column"]], first["expected"], rel_tol=1e-6, abs_tol=1e-9
    )
    assert nearest(fault, seen["look_at"]) <= 20, (planted_lines(fault), seen["look_at"], seen["diagnosis"])


def test_a_wrong_layout_is_named(planted: Cli) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "one piece of head_dim is read from the wrong place"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    outcome = planted("--debug", "07", **environment)
    assert outcome.rc == 1
    assert "K/V tile 0 (keys 0–63): row 0, column 0 of head 0" in outcome.words
    assert "D[0] of O at mma_m 0, mma_n 0, in lane 0 of warp 0" in outcome.words
    assert "there is K[0][80]" in outcome.words
    assert "K[0][48] belongs in B[0] of lane 0" in outcome.words and "at mma_n 0, mma_k 3" in outcome.words
    assert "// B = Kᵀ" in outcome.out


def test_a_fault_of_one_tile_to_the_next_begins_with_the_second(planted: Cli) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "O is rescaled by the factor of the other row"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, "07", rc=1, **environment)
    assert [cut["wrong"] > 0 for cut in seen["cuts"]] == [False, True, True, True]
    assert seen["P"]["tile"] == 1 and all(layout["wrong"] == 0 for layout in seen["layouts"])


def test_inputs_that_show_the_fault_are_found(planted: Cli) -> None:
    """With normal inputs, the maximum in 12 never changes after the first tile."""
    (fault,) = [fault for fault in FAULTS if fault.name == "row sums are not rescaled when a maximum changes"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, "12", rc=1, **environment)
    assert seen["inputs"] == "ramp" and seen["also_right"] == ["normal"]
    assert all(layout["wrong"] == 0 for layout in seen["layouts"]), "rows of V are scaled, and no other rows"


def test_what_the_virtual_gpu_finds_counts(planted: Cli) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "O is read before its warp has written it"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, "07", rc=1, **environment)
    assert seen["cuts"][0]["findings"] > 0 and seen["findings"][0]["kind"] == "race"
    assert "race: " in planted("--debug", "07", **environment).out


def look_at(planted: Cli, kernel: str, name: str) -> tuple[dict[str, Any], list[int]]:
    """The output of --debug for a fault, and the numbers of the lines that it names."""
    (fault,) = [fault for fault in FAULTS if fault.kernel == kernel and fault.name == name]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, kernel[:2], rc=1, **environment)
    return seen, [int(place.rpartition(":")[2]) for place in seen["look_at"]]


def line_at(kernel: str, place: str) -> int:
    return lines_of(ROOT / "kernels" / f"{'hopper/' if kernel >= '17' else ''}{kernel}.cu", place).start


@pytest.mark.parametrize(
    ("kernel", "name", "places"),
    [
        (
            "05_cp_async",
            "V begins in the middle of K",
            ["Copy K and V + 2", "Copy K and V + 4"],
        ),
        (
            "05_cp_async",
            "K and V are committed as one group",
            ["Copy Q + 1", "this thread's copies of K", "S = Q Kᵀ + 5"],
        ),
        (
            "08_pipelined_kv",
            "the next K overwrites one that is still being read",
            ["Copy V + 3", "this thread's copies of V have arrived", "O += P V + 3"],
        ),
        (
            "14_q_in_registers",
            "V begins in the middle of K",
            ["Copies this thread's share + 2", "Copies this thread's share + 3"],
        ),
        (
            "18_tma",
            "the parity changes with each tile instead of each round",
            ["S = Q Kᵀ + 4", "S = Q Kᵀ + 1", "S = Q Kᵀ + 2"],
        ),
    ],
)
def test_what_is_found_leads_the_way(planted: Cli, kernel: str, name: str, places: list[str]) -> None:
    """The lines of the first finding: one access, the wait that had no effect, the other access. Values suggest
    nothing."""
    seen, lines = look_at(planted, kernel, name)
    assert lines == [line_at(kernel, place) for place in places], seen["findings"][0]["text"]
    found = [(finding["kind"], finding["position"], finding["other_position"]) for finding in seen["findings"]]
    assert all(found.count(one) == 1 for one in found), "each once, not once for each launch"
    (fault,) = [fault for fault in FAULTS if fault.kernel == kernel and fault.name == name]
    out = planted("--debug", kernel[:2], FLASH_LADDER_FAULT=fault.version, FLASH_LADDER_BUILD_DIR=str(BUILD)).out
    assert "Diagnosis" not in out and "Layouts" not in out
    assert out.index("Look at") < out.index("tile  keys")


@pytest.mark.parametrize(
    ("kernel", "name", "place"),
    [
        ("02_online_softmax", "a row sum is not rescaled", "l"),
        ("03_tiled", "P is stored in a different order of keys", "P to shared memory"),
        ("06_swizzle", "two registers of a fragment of P are swapped", "two neighbouring keys"),
        ("08_pipelined_kv", "the same K tile is copied again", "Copy the next K"),
    ],
)
def test_a_wrong_value_leads_to_its_line(planted: Cli, kernel: str, name: str, place: str) -> None:
    seen, lines = look_at(planted, kernel, name)
    assert line_at(kernel, place) in lines, (seen["look_at"], seen["diagnosis"])


def test_a_line_that_is_missing_is_a_gap(planted: Cli, tmp_path: Path) -> None:
    """The line is in the file of the version before but not in this one: the two lines around the gap are named."""
    planted.source = tmp_path / "source"
    shutil.copytree(ROOT / "kernels", planted.source / "kernels")
    source = planted.source / "kernels" / "07_ldmatrix.cu"
    text, line = source.read_text(encoding="utf-8"), f"        row_max[mma_m][half] = new_max;{37 * ' '}// m\n"
    times = source.stat()
    source.write_text(text.replace(line, ""), encoding="utf-8")
    os.utime(source, (times.st_atime, times.st_mtime))
    before = text[: text.index(line)].count("\n")  # the line before it
    (fault,) = [fault for fault in FAULTS if fault.name == "the new maximum is not kept"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, "07", rc=1, **environment)
    assert {f"kernels/07_ldmatrix.cu:{number}" for number in (before, before + 1)} <= set(seen["look_at"])
    out = planted("--debug", "07", **environment).words
    assert f"Between :{before} and :{before + 1}, 06_swizzle has `row_max[mma_m][half] = new_max;`" in out


def test_a_kernel_that_faults_is_wrong(planted: Cli) -> None:
    (fault,) = [fault for fault in FAULTS if fault.name == "K is read one row too late"]
    environment = {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}
    seen = debug(planted, "07", "--heads", "1", rc=1, **environment)
    assert seen["cuts"][-1]["faulted"] and seen["cuts"][-1]["O"] == []
    outcome = planted("--debug", "07", "--heads", "1", **environment)
    assert "the kernel faults" in outcome.words and "out_of_bounds" in outcome.out


# ---- Usage ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--debug", "99"], "there is no version '99'"),
        (["--debug", "fp8"], "try --debug 27"),
        (
            ["--debug", "fp8", "--dtype", "e4m3"],
            "fp8 computes only e4m3",
        ),
        (["--debug", "07", "--row", "128"], "--row 128 is out of range; this problem has 0 to 127"),
        (["--debug", "07", "--head", "2"], "--head 2 .* 0 to 1"),
        (["--debug", "07", "--row", "-1"], "--row"),
        (["--debug", "07", "--seq-len-kv", "100"], "seq-len-kv 100 "),
        (["--debug", "07", "--kernel", "07"], "--debug .* --kernel"),
        (["--debug", "07", "--no-check"], "--debug .* --no-check"),
        (["--debug", "07", "--config", "1x1"], "no configuration '1x1'"),
        (["--kernel", "07", "--row", "1"], "--row selects what --debug shows"),
    ],
)
def test_bad_usage(emulator: Cli, arguments: list[str], message: str) -> None:
    outcome = emulator(*arguments)
    assert outcome.rc == 2 and re.search(message, " ".join(outcome.err.split())), outcome.err


def test_without_any_gpu_nothing_can_be_seen(cli: Cli) -> None:
    cli.device = None
    outcome = cli("--debug", "07")
    assert outcome.rc == 3 and "--debug has to run the version" in outcome.err


def test_an_answer_of_another_kind_is_not_believed(cli: Cli) -> None:
    cli.device = H200
    outcome = cli("--debug", "07")
    assert outcome.rc == 3 and "not a debug report's" in " ".join(outcome.err.split())
