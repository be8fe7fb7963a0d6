"""Versions with several configurations: which one is launched, --config, --tune, and what --tune stores.

The ladder is fake_ladder.cpp's: 01_single, and 02_several with 256x128 (139 KiB), 128x64 (70 KiB) and 128x32 (50 KiB,
only fp16).
"""

import json
import os
import re
import shutil
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import BUILD, H200, ROOT, RTX_4080, Cli
from schemas import validate_results, validate_tuning, validate_versions

K = "--kernel"


@pytest.fixture
def ladder(cli: Cli, tmp_path: Path) -> Cli:
    """The made-up ladder, with sources to edit."""
    cli.harness = BUILD / "fake_ladder/harness-fake-ladder"
    cli.names = ["01_single", "02_several"]
    cli.source = tmp_path / "tree"
    (cli.source / "kernels").mkdir(parents=True)
    shutil.copytree(ROOT / "common", cli.source / "common")
    for path in (cli.source / "common").rglob("*"):
        os.utime(path, (0, 0))  # the program, which need not be rebuilt for each of them, is newer
    for name in cli.names:
        write_source(cli, name, "// Idea\nint version;\n")
    return cli


def write_source(cli: Cli, name: str, text: str) -> None:
    """A version's source, older than the program."""
    path = cli.source / f"kernels/{name}.cu"
    path.write_text(text, encoding="utf-8")
    os.utime(path, (0, 0))


def tuning(cli: Cli) -> dict[str, Any]:
    document = json.loads((cli.profiles / "h200/tuning.json").read_text(encoding="utf-8"))
    validate_tuning(document)
    return document


def launched(cli: Cli) -> list[str]:
    return [request["config"] for request in cli.requests() if request["command"] == "run"]


def test_the_first_configuration_that_fits_is_launched(ladder: Cli) -> None:
    assert ladder(K, "02").rc == 0
    ladder.device = RTX_4080
    assert ladder(K, "02").rc == 0
    assert [config for config in launched(ladder)][0::2] == ["256x128", "128x64"]


def test_config_picks_one(ladder: Cli) -> None:
    outcome = ladder(K, "02", "--config", "128x32", "--seq-len", "384")
    assert outcome.rc == 0 and "02 · several 128x32 fp16" in outcome.words
    outcome = ladder(K, "02", "--config", "128x64", "--json", "-")
    assert json.loads(outcome.out)["results"][0]["config"] == "128x64"


@pytest.mark.parametrize(
    ("flags", "words"),
    [
        (["--config", "1x1"], ["'1x1'", "fp16", "256x128, 128x64, 128x32"]),
        (["--config", "128x32", "--dtype", "bf16"], ["'128x32'", "bf16", "256x128, 128x64"]),
        (["--config", "128x32", "--seq-len", "192"], ["seq-len 192", "multiple of 128", "128 or 256"]),
    ],
)
def test_a_configuration_that_cannot_be(ladder: Cli, flags: list[str], words: list[str]) -> None:
    for device in (H200, None):
        ladder.device = device
        outcome = ladder(K, "02", *flags)
        assert outcome.rc == 2
        for word in words:
            assert word in outcome.err
    assert launched(ladder) == []


def test_a_configuration_that_does_not_fit_the_device(ladder: Cli) -> None:
    ladder.device = RTX_4080
    outcome = ladder(K, "02", "--config", "256x128")
    assert outcome.rc == 2 and "142336 bytes" in outcome.err and "--config 128x64" in outcome.err


def test_config_in_a_range_skips_the_versions_without_it(ladder: Cli) -> None:
    outcome = ladder(K, "all", "--config", "128x64")
    assert outcome.rc == 0 and "01_single has no configuration '128x64' for fp16; it has 64x64" in outcome.words
    assert launched(ladder) == ["128x64"]


@pytest.mark.parametrize("arguments", [["--sass", K, "02"], ["--diff", "02", "02"]])
def test_config_without_running(ladder: Cli, arguments: list[str]) -> None:
    ladder.device = None
    outcome = ladder(*arguments, "--config", "1x1")
    assert outcome.rc == 2 and "it has 256x128, 128x64" in outcome.err
    outcome = ladder(*arguments, "--config", "128x32")
    assert outcome.rc == 3 and "128x32" in outcome.words and launched(ladder) == [], "this ladder has no study"
    assert "The build has no" in outcome.out


def test_config_on_the_virtual_gpu(cli: Cli) -> None:
    cli.device, cli.emulator_worker = None, BUILD / "harness-worker-emulator"
    assert "07 · ldmatrix 64x64" in cli(K, "07", "--device", "emulator", "--config", "64x64", "--no-check").words
    outcome = cli(K, "07", "--device", "emulator", "--config", "1x1")
    assert outcome.rc == 2 and "07_ldmatrix" in outcome.err and "'1x1'" in outcome.err


def test_record_takes_every_configuration(ladder: Cli) -> None:
    assert ladder(K, "02", "--record").rc == 0
    assert set(launched(ladder)) == {"256x128", "128x64", "128x32"}


def test_list(ladder: Cli) -> None:
    assert "02_several 256x128, 128x64, 128x32" in ladder("--list").words
    document = json.loads(ladder("--list", "--json", "-").out)
    validate_versions(document)
    single, several = document["versions"]
    assert (single["kernel"], single["name"]) == ("01", "single")
    assert [(c["name"], c["dtype"]) for c in several["configurations"]][:3] == [
        ("256x128", "fp16"), ("128x64", "fp16"), ("128x32", "fp16"),
    ]  # fmt: skip
    assert several["configurations"][1] == {
        "name": "128x64", "dtype": "fp16", "block_q": 128, "block_kv": 64, "head_dim": 128, "head_dim_v": 128,
        "num_warps": 4, "stages": 2, "step_kv": 16, "smem_bytes": 71680,
    }  # fmt: skip


def test_tune(ladder: Cli) -> None:
    ladder.tflops = {"02 256x128": 300.0, "02 128x64": 400.0, "02 128x32": 200.0}
    outcome = ladder("--tune", "02", "--repeat", "25", "--seed", "4", "--seq-len", "1024")
    assert outcome.rc == 0 and outcome.err == ""
    rows = [line.split() for line in outcome.out.splitlines() if line.split()[:1] and line.split()[0].isdigit()]
    assert [row[:8] for row in rows[1:]] == [
        ["1", "128x64", "128x64", "4", "2", "16", "400.0", "100.0"],
        ["2", "256x128", "256x128", "8", "2", "16", "300.0", "75.0"],
        ["3", "128x32", "128x32", "4", "2", "16", "200.0", "50.0"],
    ]
    assert "02_several now runs 128x64 on NVIDIA H200" in outcome.words

    *checks, timing = ladder.requests()
    assert [(r["command"], r["config"], r["check"], r["benchmark"]) for r in checks] == [
        ("run", config, True, False) for config in ("256x128", "128x64", "128x32")
    ]
    assert timing["command"] == "time" and timing["configs"] == ["256x128", "128x64", "128x32"]
    for request in (*checks, timing):
        assert request["seed"] == 4 and request["problem"]["seq_len"] == 1024
    assert timing["repeat"] == 25

    document = tuning(ladder)
    assert document["device"] == "NVIDIA H200"
    (entry,) = document["entries"]
    assert entry["kernel"] == "02" and entry["name"] == "several" and entry["driver"] == "580.159.04"
    assert entry["problem"] == {
        "batch": 16, "heads": 16, "seq_len": 1024, "seq_len_kv": 1024, "head_dim": 128, "dtype": "fp16",
    }  # fmt: skip
    assert [(t["config"], t["tflops"]) for t in entry["ranking"]] == [
        ("128x64", 400.0), ("256x128", 300.0), ("128x32", 200.0),
    ]  # fmt: skip


def test_tune_by_name_and_as_json(ladder: Cli) -> None:
    ladder.tflops = {"02 128x32": 500.0}
    outcome = ladder("--tune", "02_several", "--json", "-")
    assert outcome.rc == 0
    document = json.loads(outcome.out)
    validate_results(document)
    assert [result["config"] for result in document["results"]] == ["128x32", "256x128", "128x64"]
    assert all(result["correct"] and result["ms"] and result["tflops"] for result in document["results"])
    assert all(result["load"]["sm_clock_mhz"] for result in document["results"])


def test_tune_leaves_out_what_cannot_run(ladder: Cli) -> None:
    ladder.device = RTX_4080
    outcome = ladder("--tune", "02")
    assert outcome.rc == 0 and "256x128 of 02_several needs 142336 bytes" in outcome.words
    document = json.loads((ladder.profiles / "geforce-rtx-4080/tuning.json").read_text(encoding="utf-8"))
    validate_tuning(document)
    assert {t["config"] for t in document["entries"][0]["ranking"]} == {"128x64", "128x32"}
    assert ladder.requests()[-1]["configs"] == ["128x64", "128x32"]

    ladder.device = H200
    outcome = ladder("--tune", "02", "--seq-len", "128", "--seq-len-kv", "160")
    assert outcome.rc == 0 and tuning(ladder)["entries"][0]["ranking"][0]["config"] == "128x32"


def test_tune_where_nothing_can_run(ladder: Cli) -> None:
    outcome = ladder("--tune", "02", "--seq-len", "100")
    assert outcome.rc == 2 and outcome.err.count("not a multiple of") == 3
    assert "no configuration can run this problem" in outcome.err
    assert ladder.requests() == [] and not (ladder.profiles / "h200").exists()


@pytest.mark.parametrize(
    ("behaviour", "rc", "words"),
    [
        ({"02 128x64": "wrong"}, 1, "the output differs from the reference"),
        ({"02 128x64": "crash"}, 3, "ended by signal 11"),
        ({"02 time": "cuda"}, 3, "an illegal memory access was encountered"),
        ({"02 time": "incomplete"}, 3, "returned no time for this configuration"),
        ({"02 time": "garbage"}, 3, "not an event"),
    ],
)
def test_nothing_is_kept_unless_all_is_right(ladder: Cli, behaviour: dict[str, str], rc: int, words: str) -> None:
    ladder.kernels = behaviour
    outcome = ladder("--tune", "02")
    assert outcome.rc == rc
    assert words in outcome.words and "nothing was written" in outcome.err
    assert not (ladder.profiles / "h200").exists()
    if "02 128x64" in behaviour:
        assert ladder.requests()[-1]["configs"] == ["256x128", "128x32"], "the others are shown all the same"


@pytest.mark.parametrize("device", ["auto", "gpu", "emulator"])
def test_tune_needs_a_clock(ladder: Cli, device: str) -> None:
    ladder.emulator_worker = ladder.worker
    if device == "emulator":
        ladder.device = H200 | {"name": "virtual GPU (sm_90)"}
    else:
        ladder.device = None
        ladder.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = ladder("--tune", "02", "--device", device)
    assert outcome.rc == (2 if device == "emulator" else 3)
    assert outcome.out == "" and ladder.requests() == []
    assert "the virtual GPU has no clock" in outcome.err if device == "emulator" else "GPU" in outcome.err
    if device == "auto":
        assert "--tune measures time, which only a GPU has: " in outcome.err
        assert "It counts" not in outcome.err, "what is said of the virtual GPU belongs elsewhere"


def test_what_was_tuned_is_launched_and_said(ladder: Cli) -> None:
    ladder.tflops = {"02 128x32": 500.0}
    assert ladder("--tune", "02", "--seq-len", "1024").rc == 0
    ladder.log.unlink()

    outcome = ladder(K, "02", "--seq-len", "1024")
    assert outcome.rc == 0 and outcome.err == ""
    assert "02 · several 128x32 fp16" in outcome.words
    assert "Tuned 128x32, the fastest of 3 for this problem (--tune, 20" in outcome.words
    outcome = ladder(K, "01-02", "--seq-len", "1024")
    assert "tuned: 128x32, " in outcome.words
    assert launched(ladder) == ["128x32", "64x64", "64x64", "128x32"]

    # It is not used for another problem, with --config, on another device, or without a clock.
    for flags in (
        ["--seq-len", "2048"],
        ["--seq-len", "1024", "--heads", "8"],
        ["--seq-len", "1024", "--dtype", "bf16"],
    ):
        outcome = ladder(K, "02", *flags)
        assert "02 · several 256x128" in outcome.words and "Tuned" not in outcome.out
    outcome = ladder(K, "02", "--seq-len", "1024", "--config", "128x64")
    assert "02 · several 128x64" in outcome.words and "Tuned" not in outcome.out
    ladder.device = RTX_4080
    assert "Tuned" not in ladder(K, "02", "--seq-len", "1024").out
    ladder.device = None
    assert "02 · several 256x128" in ladder(K, "02", "--seq-len", "1024").words


def test_tuning_adds_to_what_was_tuned_before(ladder: Cli) -> None:
    for flags in (["--seq-len", "2048"], ["--seq-len", "512"], ["--seq-len", "512", "--dtype", "bf16"]):
        assert ladder("--tune", "02", *flags).rc == 0
    assert ladder("--tune", "01", "--seq-len", "512").rc == 0
    entries = tuning(ladder)["entries"]
    assert [(e["kernel"], e["problem"]["dtype"], e["problem"]["seq_len"]) for e in entries] == [
        ("01", "fp16", 512), ("02", "fp16", 512), ("02", "fp16", 2048), ("02", "bf16", 512),
    ]  # fmt: skip
    ladder.tflops = {"02 128x32": 500.0}
    assert ladder("--tune", "02", "--seq-len", "512").rc == 0
    again = tuning(ladder)["entries"]
    assert [e for e in again if e != again[1]] == [e for e in entries if e != entries[1]]
    assert again[1]["ranking"][0] != entries[1]["ranking"][0]
    assert [path.name for path in (ladder.profiles / "h200").iterdir()] == ["tuning.json"], "nothing half written"


def test_stale_when_the_code_changes(ladder: Cli) -> None:
    ladder.tflops = {"02 128x32": 500.0}
    assert ladder("--tune", "02").rc == 0
    write_source(ladder, "02_several", "// a better comment\nint version;\n")
    assert "Tuned" in ladder(K, "02").out
    write_source(ladder, "02_several", "int version, changed;\n")
    outcome = ladder(K, "02")
    assert outcome.rc == 0 and "Tuned" not in outcome.out and "02 · several 256x128" in outcome.words
    assert "tuning.json" in outcome.err and "stale" in outcome.err and "harness --tune 02" in outcome.err
    assert ladder(K, "01").err.count("stale") == 0, "only of the version in question"
    assert "stale" not in ladder(K, "02", "--config", "128x64").err, "nor where --config decides"


def edit(path: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


BROKEN = [
    (lambda path: path.write_text(path.read_text()[:100]), "truncated or not JSON"),
    (lambda path: path.write_text(""), "it is empty"),
    (lambda path: edit(path, lambda d: d.update(schema=7)), "has schema 7, .* schema 1"),
    (lambda path: edit(path, lambda d: d.pop("schema")), 'no "schema"'),
    (lambda path: edit(path, lambda d: d.update(device="NVIDIA L4")), "for another device, NVIDIA L4"),
    (lambda path: edit(path, lambda d: d["entries"][0].update(ranking=[])), "a ranking is empty"),
    (lambda path: edit(path, lambda d: d["entries"][0].pop("problem")), "does not conform"),
]


@pytest.mark.parametrize(("damage", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_broken_tuning(ladder: Cli, damage: Callable[[Path], object], words: str) -> None:
    ladder.tflops = {"02 128x32": 500.0}
    assert ladder("--tune", "02").rc == 0
    path = ladder.profiles / "h200/tuning.json"
    damage(path)
    outcome = ladder(K, "02")
    assert outcome.rc == 0 and "02 · several 256x128" in outcome.words and "Tuned" not in outcome.out
    assert str(path) in outcome.err and re.search(words, outcome.err) and "--tune" in outcome.err
    before, requests = path.read_bytes(), len(ladder.requests())
    outcome = ladder("--tune", "02")
    assert outcome.rc == 3 and re.search(words, outcome.err), "it would be lost"
    assert path.read_bytes() == before and len(ladder.requests()) == requests


def test_a_tuned_configuration_that_is_gone(ladder: Cli) -> None:
    assert ladder("--tune", "02").rc == 0
    edit(ladder.profiles / "h200/tuning.json", lambda d: d["entries"][0]["ranking"][0].update(config="1x1"))
    outcome = ladder(K, "02")
    assert outcome.rc == 0 and "there is no configuration '1x1'" in outcome.err and "Tuned" not in outcome.out


def test_the_ladder_itself_can_be_tuned(cli: Cli) -> None:
    outcome = cli("--tune", "07")
    assert outcome.rc == 0
    study = json.loads(cli(K, "07", "--sass", "--json", "-").out)["results"][0]["static"]["sm_90"]
    row = next(line.split() for line in outcome.out.splitlines() if line.split()[:2] == ["1", "64x64"])
    assert str(study["registers"]) in row and row[-2:] == [str(study["ctas_per_sm"]), study["limited_by"]]


def test_sources_that_are_newer_than_the_compiled_code(ladder: Cli) -> None:
    in_an_hour = time.time() + 3600
    os.utime(ladder.source / "kernels/02_several.cu", (in_an_hour, in_an_hour))
    outcome = ladder("--tune", "02")
    assert outcome.rc == 2 and "02_several.cu is newer" in outcome.err and ladder.requests() == []
