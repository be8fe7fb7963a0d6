"""`harness --trace` on the virtual GPU: what the warps of a CTA do, as a file for Perfetto."""

import json
import os
import re
import shutil
import subprocess
from collections import Counter
from pathlib import Path
from typing import Any

import pytest
from cli import AMPERE, BUILD, H200, KERNELS, ROOT, Cli

WAITS = {"wait: barrier", "wait: mbarrier", "wait: copies", "wait: wgmma"}
PHASES = WAITS | {"copy", "load", "mma", "arithmetic", "store", "other"}
SMALL = ["--device", "emulator", "--no-check", "--heads", "1"]


@pytest.fixture
def emulator(cli: Cli) -> Cli:
    cli.device = None
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    return cli


def trace(cli: Cli, tmp_path: Path, *arguments: str, **environment: str) -> tuple[list[dict[str, Any]], dict[str, Any]]:
    """The events other than names, and the document."""
    file = tmp_path / "trace.json"
    outcome = cli("--kernel", *arguments, *SMALL, "--trace", str(file), **environment)
    assert outcome.rc == 0, outcome.err
    assert "instructions, not time" in outcome.words and "Trace" in outcome.out
    document = json.loads(file.read_text(encoding="utf-8"))
    return [event for event in document["traceEvents"] if event["ph"] == "X"], document


@pytest.mark.parametrize("kernel", KERNELS, ids=lambda kernel: kernel.stem)
def test_every_version_can_be_traced(emulator: Cli, tmp_path: Path, kernel: Any) -> None:  # noqa: ANN401
    events, document = trace(emulator, tmp_path, kernel.kernel)
    assert {event["name"] for event in events} <= PHASES
    clocks: Counter[tuple[int, int]] = Counter()
    for event in events:
        row = (event["pid"], event["tid"])
        assert event["ts"] == clocks[row] and event["dur"] > 0, "a warp does one thing after another, without gaps"
        clocks[row] += event["dur"]
        line = event["args"]["line"]
        assert line is None or line.rpartition(":")[0].endswith(Path(kernel.file).name)
    assert document["otherData"]["kernel"] == kernel.kernel and document["otherData"]["ptx_hash"].startswith("sha256:")
    names = [event for event in document["traceEvents"] if event["ph"] == "M"]
    assert len(names) == len(clocks) + len({process for process, _ in clocks})
    if kernel.number is not None and kernel.number >= 4:
        loads = {"load"} if kernel in AMPERE else {"wait: wgmma", "copy"}  # wgmma reads its operands itself
        assert {"mma", "arithmetic", "store"} | loads <= {event["name"] for event in events}


def test_names_that_are_not_utf_8(emulator: Cli, tmp_path: Path) -> None:
    odd = os.fsdecode(os.fsencode(tmp_path / "trace") + b"\xff")
    outcome = emulator("--kernel", "08", *SMALL, "--trace", odd)
    assert outcome.rc == 2 and "is not UTF-8" in outcome.err, outcome
    shutil.copytree(ROOT / "profiles", odd)
    folders = [f"{odd}/h200", str(ROOT / "profiles" / "h100-80gb-hbm3")]
    command = [BUILD / "harness", "--profiles", *folders, "--kernel", "07", "--json", "-"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0 and "trace\N{REPLACEMENT CHARACTER}/h200" in done.stdout, done


def test_a_trace_of_the_whole_grid_has_all_that_is_counted(emulator: Cli, tmp_path: Path) -> None:
    """A single CTA, so that the counters of the launch equal those of the trace."""
    file = tmp_path / "trace.json"
    sizes = ["--seq-len", "64", "--seq-len-kv", "128"]
    outcome = emulator("--kernel", "08", *SMALL, *sizes, "--trace", str(file), "--json", str(tmp_path / "results.json"))
    assert outcome.rc == 0, outcome.err
    (result,) = json.loads((tmp_path / "results.json").read_text(encoding="utf-8"))["results"]
    events = [event for event in json.loads(file.read_text(encoding="utf-8"))["traceEvents"] if event["ph"] == "X"]
    assert sum(event["args"]["instructions"] for event in events) == result["counters"]["warp_instructions"]
    mmas = [event["args"] for event in events if event["name"] == "mma"]
    source = (ROOT / "kernels" / "08_pipelined_kv.cu").read_text(encoding="utf-8").splitlines()
    assert all("mma_m16n8k16" in source[int(mma["line"].rpartition(":")[2]) - 1] for mma in mmas)


def test_the_order_of_copies_is_the_lesson_of_08(emulator: Cli, tmp_path: Path) -> None:
    """05 copies a tile and then waits for it; 08 copies V before S and the next K before P V."""
    orders = {}
    for kernel in ("05", "08"):
        events, _ = trace(emulator, tmp_path, kernel)
        order = [event["name"] for event in events if event["tid"] == 0 and event["name"] in ("copy", "mma")]
        orders[kernel] = [name for i, name in enumerate(order) if i == 0 or name != order[i - 1]]
    assert orders["05"].count("copy") == 4, "one run of copies for each of four K/V tiles"
    assert orders["08"].count("copy") == 7, "the first K and V before any mma, then each K and each V apart"


def test_warps_of_13_wait_at_mbarriers_and_no_longer_for_all(emulator: Cli, tmp_path: Path) -> None:
    before, _ = trace(emulator, tmp_path, "12")
    after, _ = trace(emulator, tmp_path, "13")
    barriers = [sum(event["name"] == "wait: barrier" for event in events) for events in (before, after)]
    assert barriers[1] < barriers[0]
    assert not any(event["name"] == "wait: mbarrier" for event in before)
    assert any(event["name"] == "wait: mbarrier" for event in after)


def test_a_persistent_cta_shows_all_of_its_query_tiles(emulator: Cli, tmp_path: Path) -> None:
    sizes = ["16", "--seq-len", "512", "--seq-len-kv", "256"]
    one, _ = trace(emulator, tmp_path, *sizes)
    two, _ = trace(emulator, tmp_path, *sizes, FLASH_LADDER_SM_COUNT="1")
    mmas = [sum(event["args"]["instructions"] for event in events if event["name"] == "mma") for events in (one, two)]
    assert mmas[1] > 1.8 * mmas[0]


def test_the_roles_of_a_cta_and_what_each_waits_for(emulator: Cli, tmp_path: Path) -> None:
    file = tmp_path / "trace.json"
    outcome = emulator("--kernel", "27", *SMALL, "--seq-len", "192", "--seq-len-kv", "384", "--trace", str(file))
    assert outcome.rc == 0, outcome.err
    assert "warps 0–3: TMA loads, 32 " in outcome.words
    assert "warps 4–15: wgmma, TMA stores, 160 " in outcome.words and "(128 at the launch)" in outcome.words
    document = json.loads(file.read_text(encoding="utf-8"))
    producer, consumers = document["otherData"]["roles"]
    assert (producer["warps"], consumers["warps"]) == (list(range(4)), list(range(4, 16)))
    source = (ROOT / "kernels" / "hopper" / "27_three_consumers.cu").read_text(encoding="utf-8").splitlines()
    lines = {one["mbarrier"]: one["line"] for one in document["otherData"]["mbarriers"]}
    names = {byte: source[int(line.rpartition(":")[2]) - 1] for byte, line in lines.items()}
    assert len(names) == 4 + 4 * 3 and all("mbarrier_init(&" in name for name in names.values())
    events = [event for event in document["traceEvents"] if event.get("tid") in (0, 4)]
    waits = [event for event in events if event["name"] == "wait: mbarrier"]
    for event in waits:
        arguments, name = event["args"], names[event["args"]["mbarrier"]]
        assert ("_empty" in name) == (event["tid"] == 0), "the producer waits for empty buffers, others for full"
        assert arguments["calls"][0] == arguments["line"]
        if event["dur"] > 1:
            assert arguments["ended_by"] in (consumers if event["tid"] == 0 else producer)["warps"]
    assert any(event["dur"] > 1 for event in waits if event["tid"] == 0)
    phases = {event["args"]["phase"] for event in waits if event["tid"] == 0}
    assert phases == {-1, 0}, "six tiles go twice through three buffers, and the first time those are empty"
    loads = [event["args"] for event in events if event["name"] == "TMA load"]
    assert sum(load["bytes"] for load in loads) == (192 + 2 * 384) * 128 * 2
    assert all("_full" in names[load["mbarrier"]] for load in loads)
    arrivals = [event for event in events if event["name"] == "arrive" and "mbarrier" in event["args"]]
    assert {"_empty" in names[event["args"]["mbarrier"]] for event in arrivals if event["tid"] == 4} == {True}
    # Each product is in flight from its issue until a warp waits for it.
    wgmmas = [event for event in document["traceEvents"] if event.get("cat") == "wgmma"]
    begins, ends = ([event for event in wgmmas if event["ph"] == phase] for phase in "be")
    assert len(begins) == len(ends) and {event["id"] for event in begins} == {4, 8, 12}
    assert sum(event["args"]["count"] for event in begins) == 3 * (7 * 8 + 6 * 4), "S once more than there are tiles"


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--kernel", "05-06", "--device", "emulator"], "--trace is for a single version"),
        (["--debug", "05"], "--trace .* --debug"),
        (["--kernel", "05", "--record"], "--trace .* --record"),
    ],
)
def test_bad_usage(emulator: Cli, tmp_path: Path, arguments: list[str], message: str) -> None:
    outcome = emulator(*arguments, "--trace", str(tmp_path / "trace.json"))
    assert outcome.rc == 2 and re.search(message, " ".join(outcome.err.split())), outcome.err
    assert not (tmp_path / "trace.json").exists()


def test_a_file_that_cannot_be_written_is_refused_before_the_work(emulator: Cli, tmp_path: Path) -> None:
    outcome = emulator("--kernel", "05", "--device", "emulator", "--trace", str(tmp_path / "none" / "trace.json"))
    assert outcome.rc == 2 and "cannot write to" in outcome.err
    assert "needs the name of a file" in emulator("--kernel", "05", "--trace", "").err


def test_a_gpu_has_no_trace(cli: Cli, tmp_path: Path) -> None:
    cli.device = H200
    outcome = cli("--kernel", "05", "--trace", str(tmp_path / "trace.json"))
    assert outcome.rc == 2 and "add --device emulator" in " ".join(outcome.err.split())
