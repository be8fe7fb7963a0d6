"""A kernel in kernels/hopper/ and one in kernels/extensions/ are found by every command, and refused by name where
necessary.

The ladder is fake_tracks.cpp's: 01_first, 02_wgmma for sm_90a only, and `causal`, which extends 01. Its sources and
study files are written here.
"""

import json
import os
import re
import shutil
import subprocess
from pathlib import Path
from typing import Any

import pytest
from cli import BUILD, H200, ROOT, RTX_4080, Cli
from kernel_files import kernel_files
from schemas import validate_profile, validate_results, validate_tuning, validate_versions

K = "--kernel"
FILES = {
    "kernels/01_first.cu": ("01 · first", "v01", "int version = 1;"),
    "kernels/hopper/02_wgmma.cu": ("02 · wgmma", "v02", "int version = 2;"),
    "kernels/extensions/causal.cu": ("causal", "causal", "int version = 1;\nbool causal;"),
}
SASS = """\t.section\t.text.{0},"ax",@progbits
        .global         {0}
        .size           {0},(.L_x_99 - {0})
{0}:
.text.{0}:
        /*0000*/ {1} ;
        /*0010*/ EXIT ;
.L_x_99:
"""
PTXAS = """ptxas info    : Compiling entry function '{0}' for 'sm_80'
    0 bytes stack frame, 0 bytes spill stores, 0 bytes spill loads
ptxas info    : Used {1} registers, used 1 barriers, 0 bytes smem, 512 bytes cmem[0]
"""


def write(path: Path, text: str) -> None:
    """A file that is older than the program."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(text, encoding="utf-8")
    os.utime(path, (0, 0))


@pytest.fixture
def tracks(cli: Cli, tmp_path: Path) -> Cli:
    cli.source = tmp_path / "tree"
    shutil.copytree(ROOT / "common", cli.source / "common")
    for path in (cli.source / "common").rglob("*"):
        os.utime(path, (0, 0))
    for file, (title, namespace, code) in FILES.items():
        header = f"// {title}\n//\n// Idea        The idea of {title}.\n// Prediction  2x.\n"
        write(cli.source / file, f"{header}\nnamespace flash_ladder::{namespace} {{\n{code}\n}}\n")
    cli.names = [kernel.stem for kernel in kernel_files(cli.source)]
    # The program looks for study files in its own folder.
    cli.harness = tmp_path / "program/harness"
    cli.harness.parent.mkdir()
    shutil.copy(BUILD / "fake_tracks/harness-fake-tracks", cli.harness)
    for stem, function, opcode, architectures in (
        ("01_first", "_ZN12flash_ladder3v0112first_kernelEv", "FFMA R1, R1, R1, R1", ("sm_80", "sm_90")),
        ("02_wgmma", "_ZN12flash_ladder3v0212wgmma_kernelEv", "HGMMA.64x64x16.F32 R24, gdesc[UR4], R24", ("sm_90a",)),
        ("causal", "_ZN12flash_ladder6causal13causal_kernelEv", "FMNMX R1, R1, R1, PT", ("sm_80", "sm_90")),
    ):
        for architecture in architectures:
            study = cli.harness.parent / "study" / f"{stem}.{architecture}"
            write(study.with_suffix(f".{architecture}.sass"), SASS.format(function, opcode))
            write(study.with_suffix(f".{architecture}.ptxas"), PTXAS.format(function, 168))
    return cli


def results(cli: Cli, *arguments: str, rc: int = 0) -> list[dict[str, Any]]:
    outcome = cli(*arguments, "--json", "-")
    assert outcome.rc == rc, outcome.err
    document = json.loads(outcome.out)
    validate_results(document)
    return document["results"]


def virtual(cli: Cli) -> Cli:
    """No GPU, and a virtual one that is faked."""
    cli.device = H200 | {"name": "virtual GPU", "compute_capability": 80, "is_virtual": True}
    cli.device["smem_per_cta_bytes"] = 166_912
    cli.emulator_worker = cli.worker
    return cli


def test_the_scripts_find_the_same_files_in_the_same_order(tracks: Cli) -> None:
    document = json.loads(tracks("--list", "--json", "-").out)
    validate_versions(document)
    versions = document["versions"]
    assert [version["file"] for version in versions] == list(FILES)
    assert [kernel.file for kernel in kernel_files(tracks.source)] == list(FILES)
    assert [(v["kernel"], v["name"]) for v in versions] == [(k.kernel, k.name) for k in kernel_files(tracks.source)]
    assert [version["architecture"] for version in versions] == ["sm_80", "sm_90a", "sm_80"]
    assert [version["extends"] for version in versions] == [None, None, "01"]
    none = {"causal": False, "any_length": False, "kv_heads": False, "window": False, "lengths": False}
    none |= {"head_dim_v": False}
    none |= {"packed": False, "paged": False, "append": False, "rotary": False, "fp8_cache": False}
    none |= {"scores": False, "dropout": False, "log_sum_exp": False}
    assert versions[0]["solves"] == none and versions[2]["solves"] == none | {"causal": True, "any_length": True}
    assert [version["is_fast"] for version in versions] == [False, False, True]


def test_list(tracks: Cli) -> None:
    outcome = tracks("--list")
    assert outcome.rc == 0
    named = [line.split()[0] for line in outcome.out.splitlines() if line.startswith(tuple(tracks.names))]
    assert named == tracks.names
    assert "The idea of causal" in outcome.out and "The idea of 02 · wgmma" in outcome.out


def test_the_list_shows_each_track_once() -> None:
    """Extensions are ordered by name whatever their track, and once split the list into eight parts."""
    listed = subprocess.run([BUILD / "harness", "--list"], capture_output=True, text=True, check=True).stdout
    tracks = re.findall(r"^kernels/\S*$", listed, re.MULTILINE)
    assert "kernels/hopper/extensions/" in tracks and len(tracks) == len(set(tracks))


@pytest.mark.parametrize(("text", "kernels"), [
    ("causal", ["causal"]), ("02", ["02"]), ("2_wgmma", ["02"]), ("1-9", ["01", "02"]), ("causal,1", ["01", "causal"]),
    ("all", ["01", "02", "causal"]),
])  # fmt: skip
def test_kernel(tracks: Cli, text: str, kernels: list[str]) -> None:
    assert [result["kernel"] for result in results(tracks, K, text)] == kernels
    # A version whose step is shown is also timed, but not checked.
    assert [request["kernel"] for request in tracks.requests() if request["check"]] == kernels


def test_a_card(tracks: Cli) -> None:
    words = tracks(K, "causal").words
    assert "causal 64x64 fp16 Idea The idea of causal." in words
    assert "3.00x of version 01_first (10.0 TFLOP/s measured now)" in words
    assert "kernels/extensions/causal.cu · harness --diff 01 causal · harness --kernel causal --sass" in words
    words = tracks(K, "02").words
    assert "02 · wgmma 64x64 fp16" in words and "kernels/hopper/02_wgmma.cu · harness --diff 01 02" in words
    assert "168 registers, no spills, 200 KiB" in words and "limited by shared memory (sm_90) SASS" in words


def test_what_a_device_cannot_run_is_skipped_with_the_reason_and_its_static_study(tracks: Cli) -> None:
    why = "Correct skipped: 02_wgmma uses Hopper's instructions (sm_90a): "
    for device, reason in (
        (virtual, "compute capability 9.0, but virtual GPU has 8.0"),
        (None, "compute capability 9.0, but NVIDIA GeForce RTX 4080 has 8.9"),
    ):
        if device:
            virtual(tracks)
        else:
            tracks.device = RTX_4080
        name = ["--device", "emulator"] if device else ["--device", "gpu"]
        flags = name if device else []
        # On a device that was not requested by name, the static study is the answer.
        expected = 3 if device else 0
        outcome = tracks(K, "02", *flags)
        assert outcome.rc == expected, outcome.err
        assert why in outcome.words and reason in outcome.words and "No kernel was run." in outcome.words
        assert "168 registers" in outcome.words
        assert tracks(K, "02", *name).rc == 3
        (result,) = results(tracks, K, "02", *flags, rc=expected)
        assert result["status"] == "skipped" and result["reason"].endswith(reason)
        assert list(result["static"]) == ["sm_90"] and result["static"]["sm_90"]["sass"] == {"EXIT": 1, "HGMMA": 1}
        # Among others it is one line, and they run.
        found = results(tracks, K, "all", *flags)
        assert [one["status"] for one in found] == ["ok", "skipped", "ok"]
        row = next(line for line in tracks(K, "all", *flags).out.splitlines() if line.startswith("02_wgmma"))
        assert " skipped " in row and row.endswith("1 shared memory (sm_90)")
        assert tracks(K, "02", "--record", *flags).rc == 3
        assert tracks(K, "all", "--record", *flags).rc == 0
    assert "02" not in [request["kernel"] for request in tracks.requests()]
    assert tracks("--tune", "02").rc == 3


def test_without_a_gpu(tracks: Cli) -> None:
    tracks.device = None
    outcome = tracks(K, "02")
    assert outcome.rc == 3 and "No kernel was run." in outcome.words and "168 registers" in outcome.words
    outcome = tracks(K, "02", "--sm", "80")
    assert outcome.rc == 2 and "compute capability 9.0, but sm_80 has 8.0" in outcome.err


def test_sass(tracks: Cli) -> None:
    outcome = tracks(K, "all", "--sass")
    assert outcome.rc == 0
    assert "02 · wgmma 64x64 fp16 sm_90" in outcome.words and "HGMMA 1" in outcome.words
    assert "causal 64x64 fp16 sm_90" in outcome.words and "FMNMX 1" in outcome.words


def test_diff(tracks: Cli) -> None:
    outcome = tracks("--diff", "01", "causal")
    assert outcome.rc == 3 and "01_first → causal" in outcome.out, "there is no virtual GPU here, to count"
    changed = [line for line in outcome.out.splitlines() if line.startswith(("+", "-"))]
    assert changed == ["--- kernels/01_first.cu", "+++ kernels/extensions/causal.cu", "+bool causal;"]
    assert re.search(r"\b1 .* added, 0 removed", outcome.words) and "CTAs per SM (sm_90)" in outcome.words
    outcome = tracks("--diff", "01", "02")
    assert outcome.rc == 3 and "+++ kernels/hopper/02_wgmma.cu" in outcome.out
    assert "CTAs per SM (sm_90)" in outcome.words and "HGMMA 0 1 +1" in outcome.words


def test_machine_code_of_a_hopper_version(tracks: Cli) -> None:
    """It has the code for sm_90a only, with the lines of a different PTX."""
    file = tracks.folder / "page.html"
    assert tracks("--diff", "01", "02", "--html", str(file)).rc == 3, "there is no virtual GPU here, to count"
    assert "There is no machine code to show: " in file.read_text(encoding="utf-8"), "nor lines of the PTX"
    for stem, architecture, opcode in (("01_first", "90", "FFMA"), ("02_wgmma", "90a", "HGMMA")):
        study = tracks.harness.parent / "study" / stem
        sass = study.with_suffix(f".sm_{architecture}.sass")
        line = f'//## File ".nv_debug_ptx_txt", line 3\n        /*0000*/ {opcode}'
        write(sass, sass.read_text(encoding="utf-8").replace(f"        /*0000*/ {opcode}", line))
        ptx = f'.entry f()\n{{\n{opcode.lower()}.sync;\n}}\n.file 1 "{ROOT}/kernels/{stem}.cu"\n'
        write(study.with_suffix(f".compute_{architecture}.ptx"), ptx)
    listing = tracks(K, "02", "--sass", "--listing")
    assert listing.rc == 0 and "// 02_wgmma 64x64 fp16 sm_90a" in listing.out
    assert "    HGMMA.64x64x16.F32 R, gdesc[UR], R" in listing.out
    tracks("--diff", "01", "02", "--html", str(file))
    page = file.read_text(encoding="utf-8")
    assert "<td class=\"only-from\">FFMA R1" in page and "HGMMA.64x64x16.F32 R24" in page
    outcome = tracks(K, "02", "--sass", "--listing", "--sm", "80")
    assert outcome.rc != 0, "there is no such code"


@pytest.mark.parametrize("command", [
    [K, "{}", "--quiz"],
    ["--debug", "{}"],
    [K, "{}", "--ptx", "mma"],
    [K, "{}", "--device", "emulator", "--lines"],
    [K, "{}", "--device", "emulator", "--trace", "trace.json"],
])  # fmt: skip
def test_every_other_command_looks_for_them_in_the_same_list(tracks: Cli, command: list[str]) -> None:
    def said(version: str) -> str:
        return tracks(*(argument.format(version) for argument in command)).err

    assert "there is no version 'nobody'; there are 01_first, 02_wgmma, causal" in said("nobody")
    for version in ("02", "wgmma", "causal"):
        assert "there is no version" not in said(version)


@pytest.mark.parametrize(("version", "file"), [("02", "02_wgmma.json"), ("causal", "causal.json")])
def test_two_recordings_are_those_of_its_file(tracks: Cli, version: str, file: str) -> None:
    for folder in ("before", "after"):
        (tracks.folder / folder).mkdir()
    command = [str(tracks.harness), "--source", str(tracks.source), K, version, "--profiles", "before", "after"]
    done = subprocess.run(
        command, env=tracks.environment(), cwd=tracks.folder, capture_output=True, text=True, check=False
    )
    assert done.returncode == 3 and f"before/{file}" in done.stderr


def test_a_problem_that_only_an_extension_solves(tracks: Cli) -> None:
    outcome = tracks(K, "01", "--causal")
    assert outcome.rc == 2
    assert re.match("harness: --causal .* 01_first; ", outcome.err)
    assert outcome.err.endswith(" causal\n")
    outcome = tracks(K, "01", "--seq-len", "100")
    assert outcome.rc == 2 and "seq-len 100 " in outcome.err
    outcome = tracks(K, "causal", "--causal", "--seq-len", "100")
    assert outcome.rc == 0 and "seq_len 100, head_dim 128, fp16, causal" in outcome.words
    found = results(tracks, K, "all", "--causal")
    assert [result["status"] for result in found] == ["skipped", "skipped", "ok"]
    assert found[2]["problem"]["causal"] is True and "causal" not in results(tracks, K, "causal")[0]["problem"]


@pytest.mark.parametrize(("flags", "field"), [
    (["--kv-heads", "4"], "--kv-heads"),
    (["--window-left", "128"], "--window-left"),
    (["--window-right", "128"], "--window-right"),
    (["--lengths", "64,7"], "--lengths"),
    (["--lengths-kv", "64,7"], "--lengths-kv"),
])  # fmt: skip
def test_a_field_that_nobody_solves(tracks: Cli, flags: list[str], field: str) -> None:
    outcome = tracks(K, "causal", *flags)
    assert outcome.rc == 2
    assert outcome.err.startswith(f"harness: {field} ") and " causal;" in outcome.err


def test_what_says_nothing_is_the_plain_problem(tracks: Cli) -> None:
    flags = ["--kv-heads", "16", "--window-left", "4096", "--window-right", "4095"]
    flags += ["--lengths", ",".join(["4096"] * 16)]
    assert results(tracks, K, "01", *flags)[0]["problem"] == results(tracks, K, "01")[0]["problem"]


@pytest.mark.parametrize(("flags", "message"), [
    (["--kv-heads", "5"], "--kv-heads 5 does not divide heads 16"),
    (["--window-left", "-1"], "--window-left -1 "),
    (["--lengths", "64,7", "--batch", "3"], "--lengths has 2 numbers, and batch is 3"),
    (["--lengths", "64,700", "--seq-len", "640"], "--lengths 700 is out of range; allowed: 0 to seq-len 640"),
    (["--lengths-kv", "65", "--seq-len-kv", "64"], "--lengths-kv 65 .* 0 to seq-len-kv 64"),
    (["--lengths", "64,,7"], "--lengths '' is not a whole number"),
    (["--lengths", ""], "--lengths '' is not a whole number"),
])  # fmt: skip
def test_fields_that_cannot_be(tracks: Cli, flags: list[str], message: str) -> None:
    outcome = tracks(K, "causal", *flags)
    assert outcome.rc == 2 and re.match(f"harness: {message}", outcome.err), outcome.err


def test_record(tracks: Cli) -> None:
    assert tracks(K, "all", "--record").rc == 0
    folder = tracks.profiles / "h200"
    assert sorted(path.name for path in folder.iterdir()) == ["01_first.json", "02_wgmma.json", "causal.json"]
    profile = json.loads((folder / "causal.json").read_text())
    validate_profile(profile)
    problems = [(result["problem"]["seq_len"], result["problem"].get("causal", False)) for result in profile["results"]]
    # At two lengths what its base solves, too; at all of them what it adds. The last is bf16.
    assert problems == [(n, False) for n in (4096, 16384)] + [
        (n, True) for n in (512, 1024, 2048, 4096, 8192, 16384, 4096)
    ]
    assert "Recorded 30.0 TFLOP/s on NVIDIA H200" in tracks(K, "causal", "--causal").words
    listed = tracks("--list").words
    assert "causal 30.0" in listed and "02_wgmma 20.0" in listed


def test_tune(tracks: Cli) -> None:
    for kernel, flags in (("causal", []), ("causal", ["--causal"]), ("02", [])):
        assert tracks("--tune", kernel, *flags).rc == 0
    document = json.loads((tracks.profiles / "h200/tuning.json").read_text(encoding="utf-8"))
    validate_tuning(document)
    assert [(e["kernel"], e["problem"].get("causal", False)) for e in document["entries"]] == [
        ("02", False), ("causal", False), ("causal", True),
    ]  # fmt: skip
    assert "Tuned 64x64" in tracks(K, "causal", "--causal").words
