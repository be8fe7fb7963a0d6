"""Everything that the harness refuses: its messages and its exit codes."""

import json
import os
import re
import shlex
import signal
import subprocess
import sys
import time
from pathlib import Path

import pytest
from cli import BUILD, FAKE_WORKER, GTX_1080, H200, NAMES, ROOT, RTX_4080, Cli
from programs import write_program

K = "--kernel"

# Arguments, and what the message must contain.
BAD_USAGE = [
    ([], ["--kernel", "--help"]),
    ([K], ["--kernel"]),
    (["--no-such-flag"], ["--no-such-flag", "--help"]),
    ([K, "42"], ["'42'", *NAMES]),
    ([K, "07_swizzle"], ["'07_swizzle'", *NAMES]),
    ([K, "ldmatrx"], ["'ldmatrx'; did you mean ldmatrix?", *NAMES]),
    ([K, "06_swizle"], ["'06_swizle'; did you mean 06_swizzle?"]),
    ([K, "kernels/06_swizle.cu"], ["did you mean 06_swizzle?"]),
    (["06"], ["'06' belongs to no flag", "write --kernel 06"]),
    ([K, "5", "7"], ["'7' belongs to no flag", "write --kernel 5,7"]),
    (["--kernal", "06"], ["no flag --kernal; did you mean --kernel?"]),
    (["--kernal=06"], ["no flag --kernal=06; did you mean --kernel?"]),
    ([K, "06", "--dif"], ["no flag --dif; did you mean --diff?"]),
    ([K, "06", "--frobnicate"], ["no flag --frobnicate; see harness --help"]),
    (["--diff", "5-6"], ["'5-6' is one word", "--diff 5 6"]),
    (["--diff", "5,6"], ["--diff 5 6"]),
    ([K, "07", "--sm", "sm_75"], ["'sm_75'", "80, 86, 89 and 90"]),
    ([K, "-7"], ["'-7'"]),
    ([K, ""], ["no version ''"]),
    ([K, "05,"], ["no version ''"]),
    ([K, "99999999999999999999"], ["'99999999999999999999'"]),
    ([K, "05,42"], ["'42'"]),
    ([K, "08-05"], ["'08-05' is empty", "05-08"]),
    ([K, "30-40"], ["'30-40' is empty", *NAMES]),
    ([K, "07", "--seq-len", "100"], ["seq-len 100", "multiple of 64", "64 or 128"]),
    ([K, "07", "--seq-len-kv", "1000"], ["seq-len-kv 1000", "multiple of 64", "960 or 1024"]),
    ([K, "07", "--head-dim", "64"], ["head_dim 64", "128"]),
    ([K, "07", "--batch", "0"], ["--batch 0", "1 to"]),
    ([K, "07", "--heads", "-3"], ["--heads -3", "1 to"]),
    ([K, "07", "--seq-len", "0"], ["--seq-len 0", "1 to"]),
    ([K, "07", "--seq-len", "many"], ["--seq-len 'many'", "whole number"]),
    ([K, "07", "--seq-len", "64.5"], ["--seq-len '64.5'", "whole number"]),
    ([K, "07", "--batch", ""], ["--batch"]),
    ([K, "07", "--batch", "99999999999999999999"], ["--batch 99999999999999999999", "out of range"]),
    ([K, "07", "--seed", "-1"], ["--seed"]),
    ([K, "07", "--data", "steep"], ["--data 'steep' is unknown", "normal, ", "rising", "four-sinks"]),
    ([K, "07", "--data", "zeros", "--record"], ["--record cannot be combined with --data", "normal data"]),
    ([K, "07", "--sass", "--data", "zeros"], ["--sass", "--data", "runs nothing"]),
    (["--list", "--data", "zeros"], ["--list", "--data", "runs nothing"]),
    (["--tune", "07", "--data", "zeros"], ["--tune", "--data", "normal data"]),
    (["--diff", "05", "06", "--data", "zeros"], ["--diff", "--data", "normal data"]),
    ([K, "07", "--dtype", "fp8"], ["'fp8'", "fp16", "bf16", "e4m3"]),
    ([K, "27", "--dtype", "e4m3"], ["27_three_consumers has no configuration for e4m3", "--dtype fp16"]),
    ([K, "fp8", "--dtype", "bf16"], ["fp8 has no configuration for bf16", "--dtype e4m3"]),
    ([K, "07", "--sm", "75"], ["'75'", "80, 86, 89 and 90"]),
    ([K, "07", "--config", "1x1"], ["'1x1'", "64x64"]),
    ([K, "07", "--device", "tpu"], ["'tpu'", "auto, gpu, gpu:N and emulator"]),
    ([K, "07", "--device", "gpu:x"], ["'x'"]),
    ([K, "07", "--repeat", "0"], ["--repeat 0", "1 to"]),
    ([K, "07", "--repeat", "x"], ["--repeat 'x'"]),
    ([K, "07", "--timeout", "0"], ["--timeout '0'", "seconds"]),
    ([K, "07", "--timeout", "soon"], ["--timeout 'soon'", "seconds"]),
    ([K, "07", "--json", ""], ["--json"]),
    ([K, "07", "--no-check", "--no-bench"], ["--no-check", "--no-bench", "--sass"]),
    ([K, "07", "--record", "--no-bench"], ["--record", "--no-bench"]),
    ([K, "07", "--record", "--no-check"], ["--record", "--no-check"]),
    ([K, "07", "--record", "--batch", "4"], ["--record", "--batch", "standard shapes"]),
    ([K, "07", "--record", "--dtype", "bf16"], ["--record", "--dtype"]),
    ([K, "07", "--record", "--config", "64x64"], ["--record", "--config"]),
    ([K, "07", "--record", "--sm", "80"], ["--record", "--sm"]),
    ([K, "07", "--record", "--sass"], ["--record", "--sass"]),
    ([K, "07", "--record", "--repeat", "19"], ["--repeat 19", "at least 20"]),
    (["--list", K, "07"], ["--list", "--kernel"]),
    (["--list", "--device", "gpu"], ["--list", "--device"]),
    (["--list", "--config", "64x64"], ["--list", "--config"]),
    (["--list", "--repeat", "30"], ["--list", "--repeat", "runs nothing"]),
    ([K, "07", "--sass", "--seed", "3"], ["--sass", "--seed", "runs nothing"]),
    ([K, "07", "--quiz", "--config", "64x64"], ["--quiz", "--config"]),
    (["--diff", "05", "06", "--device", "gpu"], ["--diff", "--device"]),
    ([K, "07", "--sass", "--device", "gpu"], ["--sass", "--device"]),
    (["--tune", "42"], ["'42'", *NAMES]),
    (["--tune", "05-08"], ["'05-08'", *NAMES]),
    (["--tune", ""], ["''"]),
    (["--tune", "07", K, "07"], ["--tune", "--kernel"]),
    (["--tune", "07", "--config", "64x64"], ["--tune", "--config"]),
    (["--tune", "07", "--record"], ["--tune", "--record"]),
    (["--tune", "07", "--no-check"], ["--tune", "--no-check"]),
    (["--tune", "07", "--lines"], ["--tune", "--lines"]),
    (["--tune", "07", "--repeat", "19"], ["--tune", "--repeat 19", "at least 20"]),
    ([K, "07", "--trace", "-"], ["--trace writes a file"]),
    ([K, "07", "--trace", "a", "--json", "./a"], ["--trace and --json both name 'a'", "two files"]),
    (["--diff", "05", "06", "--html", "a", "--json", "a"], ["--html and --json both name 'a'", "two files"]),
    (["--diff", "05"], ["--diff"]),
    (["--diff", "05", "42"], ["'42'"]),
    (["--diff", "05", "06", K, "07"], ["--diff", "--kernel"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_USAGE, ids=lambda value: " ".join(value))
def test_bad_usage(cli: Cli, arguments: list[str], words: list[str]) -> None:
    outcome = cli(*arguments)
    assert outcome.rc == 2, outcome
    assert outcome.err.startswith("harness: ")
    for word in words:
        assert word in outcome.err
    assert outcome.out == ""
    assert cli.requests() == []


def test_profiles_without_a_name(tmp_path: Path) -> None:
    command = [BUILD / "harness", K, "07", "--device", "emulator", "--record", "--profiles", ""]
    done = subprocess.run(command, cwd=tmp_path, capture_output=True, text=True, check=False)
    assert done.returncode == 2 and "--profiles has an empty name" in done.stderr
    assert list(tmp_path.iterdir()) == []


def test_sizes_beyond_reason_name_the_memory_of_the_device(cli: Cli) -> None:
    cli.device = RTX_4080
    for flag in ("--batch", "--heads", "--seq-len", "--seq-len-kv"):
        outcome = cli(K, "07", flag, "1099511627776")
        assert outcome.rc == 2
        assert re.search(r"needs \d+\.\d [TPE]?B of GPU memory", outcome.err), outcome.err
        assert "16.0 GB of 17.0 GB" in outcome.err and "NVIDIA GeForce RTX 4080" in outcome.err
    outcome = cli(K, "07", "--batch", "1024")
    assert outcome.rc == 2
    assert "needs 68." in outcome.err and "16.0 GB" in outcome.err


def test_sizes_beyond_reason_name_the_memory_of_the_machine_without_a_gpu(cli: Cli) -> None:
    cli.device = None
    outcome = cli(K, "all", "--seq-len", "1099511627776")
    assert outcome.rc == 2
    assert re.search(r"Q, K, V and O alone take \d+\.\d [TPE]?B, and this machine has \d+\.\d GB", outcome.err)


@pytest.mark.parametrize("flags", [["--batch", "70000", "--heads", "1"], ["--batch", "1", "--heads", "70000"]])
def test_more_than_a_grid_can_hold(cli: Cli, flags: list[str]) -> None:
    outcome = cli(K, "07", "--seq-len", "64", *flags)
    assert outcome.rc == 2
    assert "70000" in outcome.err and "65535" in outcome.err


def test_a_problem_that_no_version_supports(cli: Cli) -> None:
    outcome = cli(K, "01-26", "--seq-len", "100")  # 27 accepts any length
    assert outcome.rc == 2
    assert "no version supports this problem" in outcome.err
    assert outcome.out.count("not a multiple of") == 26


@pytest.mark.parametrize("where", ["no/such/directory/out.json", ".", "file/out.json"])
def test_json_where_nothing_can_be_written(cli: Cli, tmp_path: Path, where: str) -> None:
    (tmp_path / "file").touch()
    outcome = cli(K, "07", "--json", str(tmp_path / where))
    assert outcome.rc == 2
    assert str(tmp_path) in outcome.err and "cannot write" in outcome.err
    assert cli.requests() == [], "it has to be refused before the work"


def test_json_to_a_link_that_leads_nowhere(cli: Cli, tmp_path: Path) -> None:
    loop = tmp_path / "loop"
    loop.symlink_to("loop")
    for target in (loop, tmp_path / ("x" * 300)):
        outcome = cli(K, "07", "--json", str(target))
        assert outcome.rc == 2 and "cannot write" in outcome.err and "name a file" in outcome.err
    dangling = tmp_path / "link"
    dangling.symlink_to("to-be.json")
    assert cli(K, "07", "--json", str(dangling)).rc == 0
    assert dangling.is_symlink() and json.loads((tmp_path / "to-be.json").read_text())["results"]


@pytest.mark.skipif(os.geteuid() == 0, reason="root may write everywhere")
def test_json_where_nothing_may_be_written(cli: Cli, tmp_path: Path) -> None:
    (tmp_path / "out.json").touch(mode=0o400)
    outcome = cli(K, "07", "--json", str(tmp_path / "out.json"))
    assert outcome.rc == 2 and "ermission denied" in outcome.err


def test_no_gpu(cli: Cli) -> None:
    cli.device = None
    for device in ("gpu", "gpu:0"):
        outcome = cli(K, "07", "--device", device)
        assert outcome.rc == 3 and outcome.out == ""
        assert "no such GPU" in outcome.err and "--device auto" in outcome.err
    outcome = cli(K, "07", "--record")
    assert outcome.rc == 3 and "--record needs a GPU" in outcome.err


def test_the_real_worker_without_a_gpu(cli: Cli) -> None:
    """What users of a laptop see: nothing is faked."""
    real = cli.worker.parent / "real-worker"
    program = BUILD / "harness-worker-gpu"
    assert program.exists(), "build it first"
    real.symlink_to(program)
    cli.worker = real
    outcome = cli(K, "07", "--device", "gpu", "--no-bench", "--batch", "1", "--heads", "1", "--seq-len", "64")
    if outcome.rc == 0:
        pytest.skip("this machine has a GPU")
    assert outcome.rc == 3 and "--device auto" in outcome.err
    assert "no NVIDIA driver" in cli(K, "07").words


def test_a_gpu_that_is_not_there(cli: Cli) -> None:
    outcome = cli(K, "07", "--device", "gpu:1")
    assert outcome.rc == 3 and "gpu:1" in outcome.err


def test_a_gpu_that_is_too_old(cli: Cli) -> None:
    cli.device = GTX_1080
    outcome = cli(K, "07", "--device", "gpu")
    assert outcome.rc == 3
    assert "GTX 1080" in outcome.err and "6.1" in outcome.err and "8.0" in outcome.err
    outcome = cli(K, "07")
    assert outcome.rc == 3
    assert "No kernel was run." in outcome.words and "compute capability 6.1" in outcome.words
    assert cli.requests() == []


def test_the_first_gpu_that_is_new_enough(cli: Cli) -> None:
    cli.device = [GTX_1080, RTX_4080]
    outcome = cli(K, "07")
    assert outcome.rc == 0 and "NVIDIA GeForce RTX 4080 (GPU 1" in outcome.words
    assert [request["device"] for request in cli.requests()][:1] == [1]


@pytest.mark.parametrize(
    "arguments",
    [
        ["--list"],
        ["--help"],
        [K, "07"],
        [K, "06-07"],
        [K, "07", "--sass"],
        [K, "07", "--json", "-"],
        ["--list", "--json", "-"],
    ],
)
def test_output_that_cannot_be_written(cli: Cli, arguments: list[str]) -> None:
    """A full disk, or a stream that the caller has closed, does not count as success."""
    for redirection, why in ((">/dev/full", "No space left on device"), (">&-", "Bad file descriptor")):
        command = f"{shlex.join(cli.command(*arguments))} {redirection}"
        done = subprocess.run(["bash", "-c", command], env=cli.environment(), capture_output=True, text=True)
        assert done.returncode == 3 and f"writing to standard output failed: {why}" in done.stderr, done


def test_errors_that_cannot_be_written(cli: Cli) -> None:
    """The exit code still reports the original error."""
    for redirection in ("2>/dev/full", "2>&-", "2> >(exec 0<&-; true)"):
        for arguments, code in (([K, "nope"], 2), (["--nonsense"], 2), ([K, "07", "--json", "/dev/full"], 3)):
            command = f"{shlex.join(cli.command(*arguments))} {redirection}"
            done = subprocess.run(["bash", "-c", command], env=cli.environment(), capture_output=True)
            assert done.returncode == code, (command, done)


def test_a_hangup_is_ignored_under_nohup(cli: Cli, tmp_path: Path) -> None:
    cli.kernels = {"05": "hang"}
    with (tmp_path / "out").open("w") as out:
        process = subprocess.Popen(
            cli.command(K, "05"), env=cli.environment(), stdout=out, stderr=out,
            preexec_fn=lambda: signal.signal(signal.SIGHUP, signal.SIG_IGN),
        )  # fmt: skip
        while not cli.requests():
            assert process.poll() is None
            time.sleep(0.02)
        process.send_signal(signal.SIGHUP)
        time.sleep(0.3)
        assert process.poll() is None
        process.send_signal(signal.SIGTERM)
        assert process.wait(300) == 130


def test_json_to_a_full_disk(cli: Cli) -> None:
    outcome = cli(K, "07", "--json", "/dev/full")
    assert outcome.rc == 3 and "writing '/dev/full' failed: No space left on device" in outcome.err


def test_a_closed_standard_output_is_no_other_file(cli: Cli, tmp_path: Path) -> None:
    """Otherwise the next file to be opened would get the stream's number and receive what is printed."""
    target = tmp_path / "out.json"
    command = f"{shlex.join(cli.command('--list', '--json', str(target)))} >&-"
    assert subprocess.run(["bash", "-c", command], env=cli.environment(), capture_output=True).returncode == 3
    assert not target.exists() and [*tmp_path.glob("out.json*")] == []


def test_a_reader_that_has_gone(cli: Cli, tmp_path: Path) -> None:
    """As in `harness … | head`: silent, ended by SIGPIPE, and without leaving temporary files."""
    temporary = tmp_path / "temporary"
    temporary.mkdir()
    command = shlex.join(cli.command(K, "05-08"))
    done = subprocess.run(
        ["bash", "-c", f"{command} | head -n 1; exit ${{PIPESTATUS[0]}}"],
        env=cli.environment(TMPDIR=str(temporary)), capture_output=True, text=True,
    )  # fmt: skip
    assert done.returncode == 128 + signal.SIGPIPE and "harness:" not in done.stderr, done
    assert [*temporary.iterdir()] == []


def test_an_environment_that_the_virtual_gpu_cannot_have(cli: Cli) -> None:
    cli.device, cli.emulator_worker = None, BUILD / "harness-worker-emulator"
    for arguments in ([K, "07"], [K, "06-07"], ["--diff", "05", "06"], [K, "07", "--device", "emulator"]):
        outcome = cli(*arguments, FLASH_LADDER_SM_COUNT="abc")
        assert outcome.rc != 0 and "FLASH_LADDER_SM_COUNT=abc " in outcome.err, outcome
        assert outcome.rc == 2 or "--device" in arguments


def test_a_diff_that_cannot_be_counted(cli: Cli) -> None:
    outcome = cli("--diff", "05", "06")
    assert outcome.rc == 3 and "no-virtual-gpu" in outcome.out
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = cli("--diff", "05", "06", "--seq-len", "100")
    assert outcome.rc == 2 and "seq-len 100 is not a multiple" in outcome.err


def test_no_virtual_gpu_program(cli: Cli) -> None:
    outcome = cli(K, "07", "--device", "emulator")
    assert outcome.rc == 3 and "no-virtual-gpu" in outcome.err and "build" in outcome.err


def test_no_worker_program(cli: Cli, tmp_path: Path) -> None:
    cli.worker = tmp_path / "no-such-program"
    outcome = cli(K, "07", "--device", "gpu")
    assert outcome.rc == 3 and "no-such-program" in outcome.err and "build" in outcome.err


def test_a_python_whose_path_has_a_blank(cli: Cli, tmp_path: Path) -> None:
    """The worker of these tests is a script, and a clone may be in any folder."""
    python = tmp_path / "with blank" / "python"
    python.parent.mkdir()
    python.symlink_to(sys.executable)
    write_program(cli.worker, FAKE_WORKER.read_text(encoding="utf-8"), str(python))
    assert cli(K, "07").rc == 0


def test_a_worker_that_cannot_say_which_device(cli: Cli) -> None:
    cli.device = {"name": 7}
    outcome = cli(K, "07", "--device", "gpu")
    assert outcome.rc == 3 and "not a device" in outcome.err


def test_profiles_directory_that_is_not_there(cli: Cli, tmp_path: Path) -> None:
    cli.profiles = tmp_path / "nowhere"
    outcome = cli("--list")
    assert outcome.rc == 3 and "nowhere" in outcome.err


def test_help(cli: Cli) -> None:
    outcome = cli("--help")
    assert outcome.rc == 0
    sources = [path.read_text(encoding="utf-8") for path in sorted((ROOT / "harness/app/options").glob("*.cpp"))]
    flags = {flag for source in sources for flag in re.findall(r"--[a-z][a-z-]+", source)}
    assert flags >= {"--kernel", "--debug", "--grade"}
    for flag in {"--causal", *flags} - {"--worker", "--emulator-worker", "--source"}:
        assert flag in outcome.out
    assert H200["name"] not in outcome.out and "--worker" not in outcome.out
