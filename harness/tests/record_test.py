"""scripts/record on a made-up GPU: what it runs, what it does not run again, and what it prints."""

from __future__ import annotations

import datetime
import json
import os
import shutil
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from ladder import SHAPES
from programs import write_program

ROOT = Path(__file__).resolve().parents[2]
HASHES = {"01_naive": "sha256:" + "1" * 64, "02_online_softmax": "sha256:" + "2" * 64}
TUNED = "02_online_softmax"
STUB = """import sys
if "--list" in sys.argv:
    print({listed!r})
    raise SystemExit(0)
with open({log!r}, "a") as log:
    print({name!r}, *sys.argv[1:], file=log)
raise SystemExit({status})
"""


BY_SCRIPT = tuple(f"scripts/{name}.py" for name in ("fp8_error", "peer_cases", "model_example", "train_gpt"))


class Sitting:
    """A tree with the script, and substitutes for all programs that it runs, which only record how they were called."""

    def __init__(self, root: Path) -> None:
        self.root, self.log, self.folder = root, root / "log", root / "profiles" / "h200"
        (root / "scripts").mkdir()
        for script in ("record", "ladder.py"):
            shutil.copy(ROOT / "scripts" / script, root / "scripts")
        for program in ("build/harness", "scripts/peers", "scripts/ncu_counters.py", *BY_SCRIPT):
            self.program(program)
        nvidia_smi = root / "bin" / "nvidia-smi"
        nvidia_smi.parent.mkdir()
        nvidia_smi.write_text("#!/bin/sh\necho NVIDIA H200\n", encoding="utf-8")
        nvidia_smi.chmod(0o755)
        self.folder.mkdir(parents=True)

    def program(self, path: str, status: int = 0) -> None:
        versions = [
            {"kernel": name[:2], "name": name[3:], "file": f"kernels/{name}.cu", "code_hash": code,
             "configurations": [{"name": "64x64"}, {"name": "64x32" if name == TUNED else "64x64"}]}
            for name, code in HASHES.items()
        ]  # fmt: skip
        extension = {"kernel": "causal", "name": "causal", "file": "kernels/extensions/causal.cu"}
        more = {"code_hash": "sha256:3", "configurations": [{"name": "64x64"}, {"name": "64x32"}]}
        versions.append(extension | more)
        listed = json.dumps({"versions": versions})
        (self.root / path).parent.mkdir(exist_ok=True)
        text = STUB.format(listed=listed, log=str(self.log), name=Path(path).name, status=status)
        write_program(self.root / path, text)

    def write(self, name: str, document: Any) -> None:  # noqa: ANN401 (any JSON)
        (self.folder / name).write_text(json.dumps(document), encoding="utf-8")

    def run(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        self.log.write_text("", encoding="utf-8")
        path = f"{self.root / 'bin'}{os.pathsep}{os.environ['PATH']}"
        command = [sys.executable, "-B", self.root / "scripts" / "record", "--python", sys.executable, *arguments]
        return subprocess.run(command, capture_output=True, text=True, check=False, env=os.environ | {"PATH": path})

    def ran(self) -> list[str]:
        return self.log.read_text(encoding="utf-8").splitlines()


@pytest.fixture
def sitting(tmp_path: Path) -> Sitting:
    return Sitting(tmp_path)


PROFILES = "harness --kernel 01,02,causal --record"  # one run, in which the versions share reference results
BY_DATA = "peers --data all"
BY_DATA_CAUSAL = "peers --data all --causal"
BY_PROBLEM = "peers --problem all"
TABLES = [BY_DATA, BY_DATA_CAUSAL, BY_PROBLEM]
FP8_ERROR = "fp8_error.py --seq-len 4096 --heads 4 --gpu --record"
DECODING = "peers --decoding all"
GRADIENTS = "peers --gradients all"
PEER_CASES, MODELS, TRAINING = (f"{name}.py --record" for name in ("peer_cases", "model_example", "train_gpt"))
LAST = (PEER_CASES, DECODING, GRADIENTS, MODELS, TRAINING, "ncu_counters.py")
TUNING = [f"harness --tune 02 --seq-len {seq_len} --batch {batch}" for batch, seq_len in SHAPES]


def ago(hours: float) -> str:
    then = datetime.datetime.now(datetime.timezone.utc) - datetime.timedelta(hours=hours)
    return then.strftime("%Y-%m-%dT%H:%M:%SZ")


def regime(hours: float, code: str = HASHES["02_online_softmax"]) -> dict[str, Any]:
    version = {"kernel": "02", "name": "online_softmax", "code_hash": code}
    return {"run": {"date": ago(hours)}, "versions": [version], "peers": [], "ceilings": []}


def test_all_is_recorded(sitting: Sitting) -> None:
    done = sitting.run()
    assert done.returncode == 0, done.stderr
    assert sitting.ran() == [PROFILES, *TUNING, "peers --regime both", *TABLES, FP8_ERROR, *LAST]
    steps = ("profiles", "tuning", "peers", "by_data", "by_data_causal", "by_problem", "fp8_error", "peer_cases",
             "decoding", "gradients", "models", "training", "counters")  # fmt: skip
    assert [line.split(",")[0] for line in done.stdout.splitlines()[-13:]] == [f"{step}: recorded" for step in steps]


def test_what_is_fresh_is_not_recorded_again(sitting: Sitting) -> None:
    sitting.write("01_naive.json", {"code_hash": HASHES["01_naive"], "date": ago(1)})
    sitting.write("02_online_softmax.json", {"code_hash": "sha256:" + "0" * 64, "date": ago(1)})
    entry = {"code_hash": HASHES["02_online_softmax"], "date": ago(1), "problem": {"batch": 16, "seq_len": 1024}}
    sitting.write("tuning.json", {"entries": [entry]})
    sitting.write("peers.json", {"regimes": {"sustained": regime(1), "interleaved": regime(30)}})
    sitting.write("peers_by_data.json", regime(1))
    sitting.write("peers_by_data_causal.json", regime(1))
    sitting.write("peers_by_problem.json", regime(1))
    sitting.write("peers_decoding.json", regime(1))
    sitting.write("peers_gradients.json", regime(1))
    for name in ("fp8_error", "peer_cases", "models", "training"):
        sitting.write(f"{name}.json", {"code_hash": {"01": HASHES["01_naive"]}, "date": ago(1)})
    sitting.write("causal.json", {"code_hash": "sha256:3", "date": ago(1)})
    sitting.write("ncu.json", {"code_hash": HASHES | {"causal": "sha256:3"}, "date": ago(1)})
    assert sitting.run().returncode == 0
    rest = [line for line in TUNING if "1024" not in line]
    changed = "harness --kernel 02 --record"
    assert sitting.ran() == [changed, *rest, "peers --regime interleaved"], "02 has changed, and turns are too old"
    assert sitting.run("--fresh", "0").returncode == 0
    assert sitting.ran() == [PROFILES, *TUNING, "peers --regime both", *TABLES, FP8_ERROR, *LAST]


OF_PEERS = [
    ("by_data", BY_DATA), ("by_data_causal", BY_DATA_CAUSAL), ("by_problem", BY_PROBLEM), ("decoding", DECODING),
    ("gradients", GRADIENTS),
]  # fmt: skip


@pytest.mark.parametrize(("step", "command"), OF_PEERS)
def test_a_table_is_recorded_again_when_it_is_old_or_of_other_code(sitting: Sitting, step: str, command: str) -> None:
    for found in (regime(30), regime(1, "sha256:" + "0" * 64)):
        sitting.write(f"peers_{step}.json", found)
        assert sitting.run("--only", step).returncode == 0
        assert sitting.ran() == [command]
    sitting.write(f"peers_{step}.json", regime(1))
    assert sitting.run("--only", step).returncode == 0 and sitting.ran() == []


def test_problems_that_an_update_kept_may_be_too_old(sitting: Sitting) -> None:
    for hours, commands in ((30, [BY_PROBLEM]), (2, [])):
        problems = {"causal": {"date": ago(hours)}, "packed": {}}
        sitting.write("peers_by_problem.json", regime(1) | {"problems": problems})
        assert sitting.run("--only", "by_problem").returncode == 0 and sitting.ran() == commands


@pytest.mark.parametrize(("step", "command"), OF_PEERS)
@pytest.mark.parametrize(
    ("part", "resumes"), [(regime(1), True), (regime(30), False), (regime(1, "sha256:" + "0" * 64), False)]
)
def test_a_table_is_resumed_if_its_part_is_fresh_and_of_this_code(
    sitting: Sitting, part: dict[str, Any], resumes: bool, step: str, command: str
) -> None:
    sitting.write(f"peers_{step}.part.json", part)
    assert sitting.run("--only", step).returncode == 0
    assert sitting.ran() == [command + " --resume" * resumes]


@pytest.mark.parametrize(
    ("step", "command"),
    [("fp8_error", FP8_ERROR), ("peer_cases", PEER_CASES), ("models", MODELS), ("training", TRAINING)],
)
def test_what_has_hashes_is_recorded_again_when_it_is_old_or_of_other_code(
    sitting: Sitting, step: str, command: str
) -> None:
    for code, hours in ((HASHES["01_naive"], 30), ("sha256:" + "0" * 64, 1)):
        sitting.write(f"{step}.json", {"code_hash": {"01": code}, "date": ago(hours)})
        assert sitting.run("--only", step).returncode == 0
        assert sitting.ran() == [command]


def test_the_first_versions_take_long_and_may_be_left_out(sitting: Sitting) -> None:
    assert sitting.run("--only", "profiles", "--first", "02").returncode == 0
    assert sitting.ran() == ["harness --kernel 02,causal --record"]


def test_an_interrupted_run_of_peers_goes_on(sitting: Sitting) -> None:
    sitting.write("peers.part.json", {"regimes": {"sustained": regime(1)}})
    assert sitting.run("--only", "peers", "--regime", "sustained").returncode == 0
    assert sitting.ran() == ["peers --regime sustained --resume"]
    sitting.write("peers.part.json", {"regimes": {"sustained": regime(30)}})
    assert sitting.run("--only", "peers").returncode == 0
    assert sitting.ran() == ["peers --regime both"], "that part is of another day"


def test_a_step_that_fails_does_not_end_the_sitting(sitting: Sitting) -> None:
    sitting.program("scripts/peers", status=1)
    (sitting.root / "scripts" / "ncu_counters.py").unlink()
    (sitting.folder / "01_naive.json").write_text("{", encoding="utf-8")
    done = sitting.run("--only", "peers,profiles")
    assert done.returncode == 1 and "peers: exit status 1, " in done.stdout and "profiles: recorded" in done.stdout
    assert sitting.ran() == ["peers --regime both", PROFILES]


def test_what_is_missing(sitting: Sitting) -> None:
    done = sitting.run("--only", "peers,plots")
    assert done.returncode == 2
    steps = "profiles, tuning, peers, by_data, by_data_causal, by_problem, fp8_error, peer_cases, decoding, gradients"
    assert f"'plots' is not a step; allowed: {steps}, models, training, counters" in done.stderr
    (sitting.root / "build" / "harness").unlink()
    done = sitting.run()
    assert done.returncode == 3 and "scripts/setup" in done.stderr
