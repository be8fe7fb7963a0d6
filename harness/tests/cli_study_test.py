"""Studies of versions: what is run, what is shown, and that a failure of one version does not affect the others."""

import json
import os
import pty
import re
import shutil
import signal
import subprocess
import time
from pathlib import Path
from typing import Any

import pytest
from cli import AMPERE, DECODING, H200, KERNELS, NAMES, NUMBERS, RTX_4080, Cli
from recordings import as_if_of_these_sources

K = "--kernel"


@pytest.mark.parametrize(
    ("text", "numbers"),
    [
        ("7", ["07"]),
        ("07", ["07"]),
        ("07_ldmatrix", ["07"]),
        ("05-08", ["05", "06", "07", "08"]),
        ("07,05", ["05", "07"]),
        ("05-06,06,6", ["05", "06"]),
        ("all", NUMBERS),
        ("swizzle", ["06"]),
        ("kernels/06_swizzle.cu", ["06"]),
        ("./kernels/06_swizzle.cu, 07_ldmatrix.cu", ["06", "07"]),
        ("5, 7", ["05", "07"]),
        (" 05 - 06 , all", NUMBERS),
        ("08-99", [number for number in NUMBERS[7:] if number.isdigit()]),
    ],
)
def test_selection(cli: Cli, text: str, numbers: list[str]) -> None:
    cli.device = None
    outcome = cli(K, text, "--json", "-")
    assert outcome.rc == 3, "nothing can run here"
    assert [result["kernel"] for result in json.loads(outcome.out)["results"]] == numbers


def test_defaults_of_a_gpu(cli: Cli) -> None:
    assert cli(K, "07").rc == 0
    request = cli.requests()[0]
    assert request["problem"] == {
        "batch": 16, "heads": 16, "seq_len": 4096, "seq_len_kv": 4096, "head_dim": 128, "dtype": "fp16",
    }  # fmt: skip
    assert request["kernel"] == "07" and request["config"] == "64x64" and request["device"] == 0
    assert request["check"] is True and request["benchmark"] is True
    assert request["repeat"] == 20 and request["seed"] == 0
    assert not Path(request["reference_cache"]).exists(), "it has to be removed at the end"


def test_flags_reach_the_worker(cli: Cli) -> None:
    flags = "--batch 2 --heads 3 --seq-len 128 --seq-len-kv 192 --dtype bf16 --seed 5 --repeat 7 --no-check"
    assert cli(K, "04", "--config", "64x64", "--device", "gpu:0", *flags.split()).rc == 0
    request = cli.requests()[0]
    assert request["problem"] == {
        "batch": 2, "heads": 3, "seq_len": 128, "seq_len_kv": 192, "head_dim": 128, "dtype": "bf16",
    }  # fmt: skip
    assert request["seed"] == 5 and request["repeat"] == 7 and request["check"] is False
    assert cli(K, "04", "--seq-len", "128", "--no-bench").rc == 0
    request = cli.requests()[-1]
    assert request["problem"]["seq_len_kv"] == 128 and request["benchmark"] is False


def test_other_data_are_named_and_compared_with_nothing_recorded(cli: Cli) -> None:
    """The recordings and peers of profiles/h200 are for normal data."""
    shutil.copytree(Path(__file__).parents[2] / "profiles/h200", cli.profiles / "h200")
    as_if_of_these_sources(cli.profiles)
    normal = cli(K, "07")
    assert "head_dim 128, fp16; normal data" in normal.words and "TFLOP/s by --record on NVIDIA H200)" in normal.words
    assert "Peers" in normal.out and "Busy" in normal.out
    assert [request["data"] for request in cli.requests()] == ["normal"]
    assert "data" not in json.loads(cli(K, "07", "--json", "-").out)["results"][0]

    earlier = len(cli.requests())
    rising = cli(K, "07", "--data", "rising")
    assert "fp16; rising data: q = z + 8 u, k = z + t u" in rising.words
    assert "Recorded nothing to compare with" in rising.words
    assert "measured now)" in rising.words and "by --record" not in rising.words
    assert "Peers" not in rising.out and "Busy" not in rising.out
    asked = cli.requests()[earlier:]
    assert [(request["kernel"], request["data"]) for request in asked] == [("07", "rising"), ("06", "rising")]

    done = cli(K, "06-07", "--data", "rising", "--json", "-")
    document = json.loads(done.out)
    assert [result["data"] for result in document["results"]] == ["rising", "rising"] and document["busy"] == []
    table = cli(K, "06-07", "--data", "zeros")
    assert "zeros data: q, k, v = 0" in table.words


def test_a_profile_of_other_data_is_not_read(cli: Cli) -> None:
    recorded = Path(__file__).parents[2] / "profiles/h200/07_ldmatrix.json"
    text = recorded.read_text(encoding="utf-8").replace('"problem":', '"data":"zeros","problem":', 1)
    (cli.profiles / "h200").mkdir()
    (cli.profiles / "h200" / recorded.name).write_text(text, encoding="utf-8")
    outcome = cli(K, "07")
    assert "a result is for zeros data" in outcome.err
    assert "Recorded nothing " in outcome.words


def static_study(cli: Cli, kernel: str, sm: str) -> dict[str, Any]:
    """The properties of the compiled code, whichever compiler generated it."""
    results = json.loads(cli(K, kernel, "--sass", "--json", "-").out)["results"]
    return results[0]["static"][sm]


def test_study_card(cli: Cli) -> None:
    cli.tflops = {"06": 150.0, "07": 225.0}
    outcome = cli(K, "07")
    before, study = static_study(cli, "06", "sm_90"), static_study(cli, "07", "sm_90")
    ldsm, lds_before = study["hot_loop_sass"]["LDSM"], before["hot_loop_sass"]["LDS"]
    assert outcome.rc == 0 and outcome.err == ""
    header = (Path(__file__).parents[2] / "kernels/07_ldmatrix.cu").read_text(encoding="utf-8")
    idea = re.search(r"Idea +(\S+ \S+ \S+)", header)
    assert idea and idea[1] in outcome.words
    for words in (
        "07 · ldmatrix 64x64 fp16",
        "Changed",
        "Prediction",
        "NVIDIA H200 (GPU 0, compute capability 9.0)",
        "Correct yes, max |error| 4.00e-04, 0.40 of ",
        "225.0 TFLOP/s, median",
        "1.50x of version 06_swizzle (150.0 TFLOP/s measured now)",
        f"{study['registers']} registers, no spills, {study['smem_bytes'] / 1024:g} KiB of shared memory",
        f"{study['ctas_per_sm']} CTAs per SM, limited by {study['limited_by']} (sm_90)",
        f"sm_90 {sum(study['hot_loop_sass'].values())} instructions in the hot loop",
        f"LDS 0 (-{lds_before})",
        f"LDSM {ldsm} (+{ldsm})",
        "kernels/07_ldmatrix.cu",
        "harness --diff 06 07",
    ):
        assert words in outcome.words
    assert len(outcome.out.splitlines()) <= 40, "one screen"
    assert max(map(len, outcome.out.splitlines())) <= 120
    assert "\x1b" not in outcome.out, "no terminal, no colour"


def test_first_version_has_no_step(cli: Cli) -> None:
    outcome = cli(K, "01", "--seq-len", "512")
    assert outcome.rc == 0 and "Step" not in outcome.out and "--diff" not in outcome.out


def test_sm_chooses_the_limits(cli: Cli) -> None:
    assert "(sm_86)" in cli(K, "03", "--sm", "86").words
    cli.device = RTX_4080
    assert "(sm_89)" in cli(K, "03").words
    cli.device = None
    assert "(sm_90)" in cli(K, "03").words, "that of the GPUs in profiles/"
    assert "(sm_80)" in cli(K, "03", "--sm", "sm_80").words


def test_occupancy_on_every_architecture(cli: Cli) -> None:
    words = cli(K, "03", "--sm", "86").words
    results = json.loads(cli(K, "03", "--sass", "--json", "-").out)["results"]
    studies = results[0]["static"]
    assert set(studies) == {"sm_80", "sm_86", "sm_89", "sm_90"}
    others = "; ".join(f"{sm}: {studies[sm]['ctas_per_sm']}, {studies[sm]['limited_by']}" for sm in sorted(studies))
    others = others.replace(f"sm_86: {studies['sm_86']['ctas_per_sm']}, {studies['sm_86']['limited_by']}; ", "")
    assert f"limited by {studies['sm_86']['limited_by']} (sm_86); {others}" in words


def test_a_configuration_that_does_not_fit_the_device(cli: Cli) -> None:
    cli.device = RTX_4080 | {"smem_per_cta_bytes": 40_000}
    outcome = cli(K, "01-04", "--seq-len", "512")
    assert outcome.rc == 0
    assert "04_mma needs 49152 bytes" in outcome.words
    assert [request["kernel"] for request in cli.requests()] == ["01", "02"]
    outcome = cli(K, "04", "--seq-len", "512")
    assert outcome.rc == 2 and "49152" in outcome.err and "40000" in outcome.err


def test_versions_that_do_not_fit_the_memory_are_skipped(cli: Cli) -> None:
    cli.device = RTX_4080
    outcome = cli(K, "all", "--json", str(cli.folder / "out.json"))
    assert outcome.rc == 0
    needed = r"01_naive needs 2\d\.\d GB of GPU memory"  # 25.8 GB for S and P alone
    assert re.search(needed, outcome.words) and "16.0 GB of 17.0 GB are free" in outcome.words
    results = json.loads((cli.folder / "out.json").read_text())["results"]
    fits = [kernel in AMPERE and kernel.name != "naive" and not kernel.is_decoding for kernel in KERNELS]
    assert [result["status"] for result in results] == ["ok" if fit else "skipped" for fit in fits]
    assert re.search(needed, results[0]["reason"])
    outcome = cli(K, "01")
    assert outcome.rc == 2 and re.search(needed, outcome.err)


@pytest.mark.parametrize(
    ("typed", "seq_len", "kernel"), [("grouped_heads", 512, "grouped_heads"), ("D03", 8, "D03"), ("swizzle", 512, "06")]
)
def test_an_extension_has_its_name_to_itself(cli: Cli, typed: str, seq_len: int, kernel: str) -> None:
    """D03 is named grouped_heads, too, and B06 is named swizzle."""
    assert cli(K, typed, "--seq-len", str(seq_len)).rc == 0
    assert cli.requests()[0]["kernel"] == kernel  # the others are what it is compared with


def test_a_range_in_which_some_tiles_do_not_fit(cli: Cli) -> None:
    outcome = cli(K, "02-04", "--seq-len", "96", "--seq-len-kv", "96", "--json", "-")
    assert outcome.rc == 0
    assert [result["status"] for result in json.loads(outcome.out)["results"]] == ["ok", "skipped", "skipped"]
    assert "seq-len 96 " in outcome.err


@pytest.mark.parametrize(
    ("behaviour", "reason"),
    [
        ("crash", "signal 11 (Segmentation fault) (last step: check normal inputs 1/4)"),
        ("cuda", "an illegal memory access was encountered"),
        ("silent", "ended with status 7"),
        ("garbage", "wrote something that is not an event: Segmentation fault (core dumped)"),
        ("other", "answered about another version"),
    ],
)
def test_a_version_that_ends_badly_is_not_the_end_of_the_others(cli: Cli, behaviour: str, reason: str) -> None:
    cli.kernels = {"05": behaviour}
    outcome = cli(K, "04-06", "--json", str(cli.folder / "out.json"))
    assert outcome.rc == 3
    assert reason in outcome.words
    results = json.loads((cli.folder / "out.json").read_text())["results"]
    assert [result["status"] for result in results] == ["ok", "failed", "ok"]
    assert reason in results[1]["reason"] and results[1]["correct"] is None
    assert "3 versions, 2 ok, 1 failed" in outcome.words

    outcome = cli(K, "05")
    assert outcome.rc == 3 and reason in outcome.words


# A busy machine may need longer than a short limit to start a worker that answers immediately: then the test is
# repeated with a longer limit. A worker that hangs does so under every limit.
TIME_LIMITS = [0.5 * 2**i for i in range(10)]


def test_a_hanging_worker_is_killed(cli: Cli) -> None:
    cli.kernels = {"05": "hang"}
    for limit in TIME_LIMITS:
        cli.forget_requests()
        outcome = cli(K, "04-06", "--timeout", f"{limit:g}", "--json", str(cli.folder / "out.json"))
        if "3 versions, 2 ok, 1 failed" in outcome.words:
            break
    reason = f"no progress for {limit:g} s"
    assert outcome.rc == 3 and reason in outcome.words
    results = json.loads((cli.folder / "out.json").read_text())["results"]
    assert [result["status"] for result in results] == ["ok", "failed", "ok"]
    assert reason in results[1]["reason"] and results[1]["correct"] is None
    assert [request["kernel"] for request in cli.requests()] == ["04", "05", "06"]
    assert cli.requests()[2]["still_there"] == [], "it has to be gone before the next one starts"


def test_a_slow_worker_with_news_is_left_alone(cli: Cli) -> None:
    cli.kernels = {"05": "slow"}
    for limit in TIME_LIMITS:
        cli.seconds_per_step = 0.3 * limit  # six times this is more than the limit
        outcome = cli(K, "05", "--timeout", f"{limit:g}", "--no-bench")
        if outcome.rc == 0 and "Correct yes" in outcome.words:
            break
    assert outcome.rc == 0 and "Correct yes" in outcome.words, outcome


def test_a_wrong_result(cli: Cli) -> None:
    cli.kernels = {"05": "wrong"}
    outcome = cli(K, "05")
    assert outcome.rc == 1
    for words in (
        "Correct NO, max |error| nan, 17.50 of ",
        "the scores are not scaled. Wrong in rows 8–15 modulo 16.",
        "batch head row column got expected",
        "1 2 345 67 nan 0.25",
        "1 3 346 68 0.5 0.125",
        "batch 1, head 2: . . # .",
    ):
        assert words in outcome.words
    outcome = cli(K, "04-06")
    assert outcome.rc == 1 and "1 2 345 67 nan 0.25" in outcome.words and "1 wrong" in outcome.words
    assert "the scores are not scaled." in outcome.words, "in the table, too"


def test_wrong_weighs_more_than_failed(cli: Cli) -> None:
    cli.kernels = {"04": "cuda", "05": "wrong"}
    assert cli(K, "04-06").rc == 1


def test_without_a_gpu_the_study_is_static(cli: Cli) -> None:
    cli.device = None
    outcome = cli(K, "07")
    assert outcome.rc == 3 and cli.requests() == [], "what was requested was to run it"
    assert "No kernel was run." in outcome.words and "this machine has no such GPU" in outcome.words
    assert "registers, no spills" in outcome.words and "LDSM" in outcome.out
    assert "Correct" not in outcome.out
    outcome = cli(K, "all")
    assert outcome.rc == 3 and "No kernel was run." in outcome.words
    shown = [name for name in NAMES if name not in ("fp8", *DECODING)]  # these are skipped
    assert [line.split()[0] for line in outcome.out.splitlines() if " not run " in line] == shown
    skipped = len(NAMES) - len(shown)
    assert f"{len(NAMES)} versions, {len(shown)} not run, {skipped} skipped" in outcome.out
    assert "TFLOP/s" in outcome.out


def test_sass(cli: Cli) -> None:
    outcome = cli(K, "07", "--sass")
    assert outcome.rc == 0 and cli.requests() == []
    rows = {line.split()[0]: line.split()[1:] for line in outcome.out.splitlines() if line.startswith("  ")}
    study = static_study(cli, "07", "sm_90")
    loop = study["hot_loop_sass"]
    assert rows["HMMA"][:3] == [str(study["sass"]["HMMA"]), str(loop["HMMA"]), "1.000"]
    assert rows["LDSM"][:3] == [str(study["sass"]["LDSM"]), str(loop["LDSM"]), f"{loop['LDSM'] / loop['HMMA']:.3f}"]
    assert f"{sum(study['sass'].values())}" in outcome.out.split("total")[1].split()[0]
    assert "tensor core" in outcome.out and "shared memory" in outcome.out and "sm_90" in outcome.out
    other = cli(K, "07", "--sass", "--sm", "80")
    assert "sm_80" in other.out and other.out != outcome.out
    assert "sm_80" in cli(K, "07", "--sass", "--sm", "89").out, "sm_89 runs the code of sm_80"
    both = cli(K, "06-07", "--sass")
    assert "06 · swizzle" in both.out and "07 · ldmatrix" in both.out


def read_all(file: int) -> str:
    """What a terminal received before its other end was closed."""
    text = b""
    while True:
        try:
            chunk = os.read(file, 4096)
        except OSError:  # EIO: closed
            break
        if not chunk:
            break
        text += chunk
    return text.decode()


def on_a_terminal(cli: Cli, *arguments: str, **environment: str) -> str:
    """Both outputs on one terminal."""
    ours, theirs = pty.openpty()
    command = cli.command(*arguments)
    process = subprocess.Popen(command, env=cli.environment(**environment), stdout=theirs, stderr=theirs)
    os.close(theirs)
    text = read_all(ours)
    os.close(ours)
    assert process.wait() == 0
    return text


def test_colour_and_progress_on_a_terminal_only(cli: Cli) -> None:
    text = on_a_terminal(cli, K, "07", NO_COLOR="")
    assert "\x1b[32myes" in text
    assert "\r07_ldmatrix 64x64 fp16, batch 16, seq_len 4096: check normal inputs 1/4" in text
    text = on_a_terminal(cli, K, "07", NO_COLOR="1")
    assert "\x1b[32m" not in text and "\x1b[1m" not in text and "Correct     yes" in text


def running(pid: int) -> bool:
    try:
        status = Path(f"/proc/{pid}/stat").read_text(encoding="utf-8")
    except FileNotFoundError:
        return False
    return status.rsplit(")", 1)[1].split()[0] != "Z"  # dead, and waiting only to be reaped


@pytest.mark.parametrize("signal_number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_no_worker_outlives_the_harness(cli: Cli, tmp_path: Path, signal_number: signal.Signals) -> None:
    cli.kernels = {"05": "hang"}
    temporary = tmp_path / "tmp"
    temporary.mkdir()
    process = subprocess.Popen(
        cli.command(K, "05"), env=cli.environment(TMPDIR=str(temporary)), stdout=subprocess.PIPE, stderr=subprocess.PIPE
    )
    while not cli.requests():
        assert process.poll() is None
        time.sleep(0.02)
    assert [*temporary.iterdir()]
    process.send_signal(signal_number)
    process.communicate()
    # It hangs for ten minutes, so half of that is enough for any machine to kill it first.
    pid = cli.requests()[0]["pid"]
    deadline = time.monotonic() + 300
    while running(pid) and time.monotonic() < deadline:
        time.sleep(0.02)
    assert not running(pid)
    if signal_number != signal.SIGKILL:
        assert process.returncode == 130
        assert not [*temporary.iterdir()], "temporary files have to be removed"


def test_the_worker_writes_to_standard_output_only_where_it_may(cli: Cli) -> None:
    assert "a kernel's own printf" in cli(K, "07", "--no-bench").out
    outcome = cli(K, "07", "--no-bench", "--json", "-")
    assert "a kernel's own printf" not in outcome.out and "a kernel's own printf" in outcome.err


def test_sources_that_are_newer_than_the_compiled_code(cli: Cli, tmp_path: Path) -> None:
    copy = tmp_path / "tree"
    (copy / "kernels").mkdir(parents=True)
    (copy / "common").mkdir()
    (copy / "kernels/07_ldmatrix.cu").write_text("// edited, and not built\n")
    in_an_hour = time.time() + 3600
    os.utime(copy / "kernels/07_ldmatrix.cu", (in_an_hour, in_an_hour))
    cli.source = copy
    cli.device = None
    outcome = cli(K, "07")
    assert outcome.rc == 3 and "newer than the compiled code" in outcome.err
    cli.device = H200
    outcome = cli(K, "07", "--record")
    assert outcome.rc == 2 and "07_ldmatrix.cu is newer" in outcome.err and cli.requests() == []
