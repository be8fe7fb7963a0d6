"""scripts/stress.py, sanitize.py, ncu_counters.py: on the virtual GPU, and with fake workers and tools."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest
from cli import BUILD, IN_8_BITS, NAMES, ROOT
from programs import write_program
from schemas import validate_ncu

# Answers that everything is right, except for what it is told to report.
WORKER = """import json, os, sys
request = json.loads(sys.argv[1])
gpu = {{"smem_per_cta_bytes": 232448, "compute_capability": 90, "is_virtual": False}}
answer = {{"event": "device", "device": gpu}}
if request["command"] == "run":
    answer = {{"event": "result", "result": {{"status": "ok", "correct": True, "reason": None}}}}
    if {condition}:
        answer = {answer}
if answer is not None:
    os.write(3, json.dumps(answer).encode() + b"\\n")
print("==== ERROR SUMMARY: 0 errors")
"""
WRONG = '{"event": "result", "result": {"status": "wrong", "correct": False, "reason": "two launches differ"}}'
REFUSED = '{"event": "error", "kind": "usage", "message": "a grid is at most 65535 wide"}'


def run(script: str, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(ROOT / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, env=os.environ | environment, check=False)


@pytest.fixture
def build(tmp_path: Path) -> Path:
    """A build folder with the real harness; its worker answers that everything is right."""
    (tmp_path / "harness").symlink_to(BUILD / "harness")
    pretend(tmp_path, "False", "None")
    return tmp_path


def pretend(build: Path, condition: str, answer: str) -> None:
    write_program(build / "harness-worker-gpu", WORKER.format(condition=condition, answer=answer))


# The last version of each track, whose CTAs take several query tiles, also in the other type. For the others that only
# changes the type of an element, and cli_emulator_test.py runs the whole check for both types in every configuration.
BOTH_TYPES = ["16_overlapped_softmax", "27_three_consumers"]


@pytest.mark.parametrize(
    ("arguments", "dtypes", "names"),
    [
        ([], ["fp16", "e4m3"], NAMES),
        (["--kernel", ",".join(name[:2] for name in BOTH_TYPES)], ["bf16"], BOTH_TYPES),
    ],
)
def test_every_version_on_the_virtual_gpu(arguments: list[str], dtypes: list[str], names: list[str]) -> None:
    flags = [flag for dtype in dtypes for flag in ("--dtype", dtype)]
    done = run("stress.py", "--device", "emulator", "--build", str(BUILD), *arguments, *flags)
    assert done.returncode == 0, "\n".join(line for line in done.stdout.splitlines() if "WRONG" in line) + done.stderr
    for name in names:
        dtype = "e4m3" if name in IN_8_BITS else dtypes[0]
        lines = [line for line in done.stdout.splitlines() if line.startswith(f"{name} ") and f" {dtype}: " in line]
        assert len(lines) >= 7 and all(line.endswith(": right") for line in lines), lines


@pytest.mark.parametrize(
    ("condition", "answer", "words"),
    [
        (
            'request["problem"]["heads"] == 40',
            WRONG,
            "40 heads (batch 1, heads 40, seq_len 64, seq_len_kv 192): WRONG: two",
        ),
        ('request.get("launches") == 100', WRONG, "100 launches (batch 2, heads 3"),
        (
            'request["problem"]["seq_len_kv"] == 5 * 64 and request["problem"]["batch"] == 9',
            WRONG,
            "100 launches of 1,080 query tiles, five K/V tiles each (batch 9, heads 40, seq_len 192, seq_len_kv 320):",
        ),
        ('request["problem"]["heads"] == 40', REFUSED, "WRONG: a grid is at most 65535 wide"),
        ('request["problem"]["heads"] == 40', "None", "WRONG: the worker gave no answer: "),
        ('not request["only_requested_problem"]', WRONG, "the whole check"),
    ],
)
def test_what_is_wrong_is_named(build: Path, condition: str, answer: str, words: str) -> None:
    pretend(build, condition, answer)
    done = run("stress.py", "--kernel", "07", "--build", str(build))
    assert done.returncode == 1 and words in done.stdout, done.stdout


def test_more_than_a_grid_can_hold_may_be_refused(build: Path) -> None:
    assert run("stress.py", "--kernel", "07", "--build", str(build)).returncode == 0
    pretend(build, '70_000 in request["problem"].values()', REFUSED)
    assert run("stress.py", "--kernel", "07", "--build", str(build)).returncode == 0
    pretend(build, '70_000 in request["problem"].values()', WRONG)
    done = run("stress.py", "--kernel", "07", "--build", str(build))
    assert done.returncode == 1 and done.stdout.count("WRONG") == 4


def test_large(build: Path) -> None:
    # Right up to 4 GiB and wrong beyond, as with a 32-bit offset, in the last 128 rows of every head.
    rows = 'max(request["problem"]["seq_len"], request["problem"]["seq_len_kv"])'
    pretend(build, f'256 * request["problem"]["heads"] * ({rows} - 128) >= 1 << 32', WRONG)
    done = run("stress.py", "--kernel", "06-07", "--large", "--build", str(build))
    assert done.returncode == 1 and done.stdout.count("WRONG") == 4
    done = run("stress.py", "--large", "--device", "emulator", "--build", str(build))
    assert done.returncode == 2 and "--device emulator" in done.stderr


@pytest.mark.parametrize("script", ["stress.py", "sanitize.py"])
def test_what_cannot_be(build: Path, script: str) -> None:
    tool = build / "compute-sanitizer"
    tool.symlink_to("/bin/true")
    path = f"{build}:{os.environ['PATH']}"
    done = run(script, "--kernel", "42", "--build", str(build), PATH=path)
    assert done.returncode == 2 and "'42'" in done.stderr
    done = run(script, "--build", str(build / "nowhere"), PATH=path)
    assert done.returncode == 3 and "nowhere" in done.stderr
    worker = build / "harness-worker-gpu"
    worker.write_text('#!/bin/sh\necho \'{"event": "error", "message": "no GPU is visible"}\' >&3\n', encoding="utf-8")
    done = run(script, "--build", str(build), PATH=path)
    assert done.returncode == 3 and "no GPU is visible" in done.stderr


def test_sanitizer(build: Path) -> None:
    tool = build / "compute-sanitizer"
    pretence = r"""#!/bin/sh
[ "$1 $3" = "--tool --error-exitcode" ] || exit 1
case "$2 $5" in
  racecheck\ --num-cuda-barriers | synccheck\ --num-cuda-barriers) shift 2 ;;
  racecheck* | synccheck*) exit 1 ;;
esac
shift 4
"$@"
"""
    tool.write_text(pretence, encoding="utf-8")
    tool.chmod(0o755)
    path = f"{build}:{os.environ['PATH']}"
    done = run("sanitize.py", "--build", str(build), PATH=path)
    assert done.returncode == 0, done.stdout
    lines = [line for line in done.stdout.splitlines() if line.endswith(": clean")]
    assert {line.split()[0] for line in lines} == set(NAMES) and len(lines) % (2 * 4) == 0
    assert "16_overlapped_softmax 256x64 bf16 synccheck (batch 1, heads 2, seq_len 512, seq_len_kv 192): clean" in lines
    assert (
        "16_overlapped_softmax 256x64 bf16 synccheck (batch 2, heads 150, seq_len 256, seq_len_kv 128): clean" in lines
    )
    pretend(build, 'request["problem"]["dtype"] == "bf16"', REFUSED)
    done = run("sanitize.py", "--kernel", "07", "--tool", "racecheck", "--build", str(build), PATH=path)
    small = "racecheck (batch 1, heads 2, seq_len 128, seq_len_kv 192)"
    assert done.returncode == 1 and f"bf16 {small}: FAILED" in done.stdout, "nothing was launched"
    assert f"fp16 {small}: clean" in done.stdout and "1 of 2 failed" in done.stdout
    pretend(build, 'request["problem"]["heads"] == 150', REFUSED)
    done = run("sanitize.py", "--kernel", "14-15", "--tool", "memcheck", "--build", str(build), PATH=path)
    assert done.returncode == 1 and "4 of 12 failed" in done.stdout
    failed = [line for line in done.stdout.splitlines() if line.endswith("FAILED")]
    assert all(line.startswith("15_") and "memcheck (batch 2, heads 150, " in line for line in failed), failed
    tool.write_text("#!/bin/sh\nexit 9\n", encoding="utf-8")
    assert run("sanitize.py", "--kernel", "07", "--build", str(build), PATH=path).returncode == 1


def test_no_sanitizer(build: Path) -> None:
    done = run("sanitize.py", "--build", str(build), PATH=str(build))
    assert done.returncode == 3 and "compute-sanitizer is not on PATH" in done.stderr


# Counts 1,000.5 of everything, in every launch that it is told to count.
NCU = r"""import sys
if "--version" in sys.argv:
    sys.exit(print("NVIDIA (R) Nsight Compute\nVersion 2025.3"))
value = dict(zip(sys.argv, sys.argv[1:]))
metrics = value["--metrics"].split(",")
{behave}
print('==PROF== Connected\n"ID","Kernel Name","Metric Name","Metric Unit","Metric Value"')
for launch in range(int(value["--launch-count"])):
    for metric in metrics:
        print(f'"{{launch}}","flash_attention","{{metric}}","","1,000.5"')
"""


def count(build: Path, behave: str = "") -> subprocess.CompletedProcess[str]:
    write_program(build / "ncu", NCU.format(behave=behave))
    (build / "nvidia-smi").write_text("#!/bin/sh\necho NVIDIA H200, 580.1\n", encoding="utf-8")
    (build / "nvidia-smi").chmod(0o755)
    arguments = ("--build", str(build), "--kernel", "1-2", "--out", str(build / "ncu.json"))
    return run("ncu_counters.py", *arguments, PATH=f"{build}:{os.environ['PATH']}")


def test_counters_say_when_and_of_which_code(build: Path) -> None:
    done = count(build)
    assert done.returncode == 0, done.stderr
    document = json.loads((build / "ncu.json").read_text(encoding="utf-8"))
    validate_ncu(document)
    assert (document["device"], document["driver"], document["ncu"]) == ("NVIDIA H200", "580.1", "Version 2025.3")
    listed = subprocess.check_output([BUILD / "harness", "--list", "--json", "-"])
    hashes = {f"{one['kernel']}_{one['name']}": one["code_hash"] for one in json.loads(listed)["versions"]}
    assert document["code_hash"] == {name: hashes[name] for name in NAMES[:2]}
    assert document["versions"]["01_naive"]["global_load_sectors"] == 3001.5, "01 has three launches"
    assert document["versions"][NAMES[1]]["global_load_sectors"] == 1000.5
    assert set(document["busy"]["versions"][NAMES[1]]) >= {"tensor_pipe_percent", "l2_bytes", "dram_bytes"}
    assert list(document["busy"]["versions"]) == NAMES[1:2]


@pytest.mark.parametrize(
    ("behave", "words"),
    [
        (
            'if "lts__t_bytes.sum" in metrics: sys.exit("==ERROR== Failed to find metric lts__t_bytes.sum")',
            "it refused lts__t_bytes.sum",
        ),
        ('metrics = [metric for metric in metrics if metric != "lts__t_bytes.sum"]', "it left out lts__t_bytes.sum"),
        ('print = lambda text: sys.stdout.write(text.replace("1,000.5", "n/a") + "\\n")', "has no number for l1tex__d"),
        ('sys.exit("==ERROR== ERR_NVGPUCTRPERM")', "it wrote no counters"),
    ],
)
def test_what_ncu_refuses_is_named(build: Path, behave: str, words: str) -> None:
    done = count(build, behave)
    assert done.returncode == 3 and f"ncu failed for {NAMES[1]} " in done.stderr, done.stderr
    assert words in done.stderr.splitlines()[-1]
    assert not (build / "ncu.json").exists()
