"""The Slurm recipe under Slurm: a cluster of this machine only, started here, to which the array is submitted."""

import contextlib
import csv
import os
import shutil
import socket
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest
from grading import BUILD, ROOT, SMALL, why_not_isolated

RECIPE = ROOT / "harness" / "grader" / "recipes" / "slurm_array.sbatch"
PROGRAMS = ("munged", "slurmctld", "slurmd", "sbatch", "squeue", "sinfo", "scontrol")
PATH = f"{os.environ['PATH']}:/usr/sbin:/sbin"
MISSING = [program for program in PROGRAMS if not shutil.which(program, path=PATH)]
SECONDS = 600  # enough for a busy machine to start three daemons, or to grade four small files

pytestmark = [
    pytest.mark.skipif(bool(MISSING), reason=f"{', '.join(MISSING)} missing: slurmctld, slurmd, slurm-client, munge"),
    pytest.mark.skipif(os.geteuid() != 0, reason="a cluster of one's own takes root"),
    pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated()),
]

CONFIGURATION = """
ClusterName=one
SlurmctldHost={host}(127.0.0.1)
SlurmctldPort={controller}
SlurmdPort={node}
AuthInfo=socket={folder}/munge.socket
SlurmUser=root
SlurmdUser=root
StateSaveLocation={folder}/state
SlurmdSpoolDir={folder}/spool
SlurmctldPidFile={folder}/slurmctld.pid
SlurmdPidFile={folder}/slurmd.pid
SlurmctldLogFile={folder}/slurmctld.log
SlurmdLogFile={folder}/slurmd.log
ProctrackType=proctrack/linuxproc
TaskPlugin=task/none
MpiDefault=none
ReturnToService=2
SchedulerParameters=batch_sched_delay=1,sched_interval=2,bf_interval=2
SlurmdParameters=config_overrides
SelectType=select/cons_tres
SelectTypeParameters=CR_CPU
NodeName={host} NodeAddr=127.0.0.1 CPUs={cpus} RealMemory=100000 State=UNKNOWN
PartitionName=all Nodes={host} Default=YES State=UP
"""


def free_port() -> int:
    with socket.socket() as any_port:
        any_port.bind(("127.0.0.1", 0))
        return any_port.getsockname()[1]


class Cluster:
    """The daemons, and an environment in which Slurm's commands find them."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.environment = {"PATH": PATH, "SLURM_CONF": str(folder / "slurm.conf"), "HOME": str(folder)}

    def run(self, *command: str | Path, **more: str) -> str:
        done = subprocess.run(list(map(str, command)), env=self.environment | more, capture_output=True, text=True,
                              check=False)  # fmt: skip
        assert done.returncode == 0, (command, done.stderr, self.logs())
        return done.stdout.strip()

    def logs(self) -> str:
        return "\n".join(path.read_text(errors="replace")[-2000:] for path in sorted(self.folder.glob("*.log")))

    def wait_until(self, what: str, *command: str) -> None:
        """Repeats the command until it prints `what`."""
        deadline = time.monotonic() + SECONDS
        while what != self.run(*command):
            assert time.monotonic() < deadline, (command, self.run(*command), self.logs())
            time.sleep(0.2)


@pytest.fixture
def cluster(tmp_path: Path) -> Iterator[Cluster]:
    folder = tmp_path / "slurm"
    for name in ("", "state", "spool"):
        (folder / name).mkdir()
    key = folder / "munge.key"
    key.write_bytes(os.urandom(128))
    key.chmod(0o400)
    host = socket.gethostname().partition(".")[0]
    (folder / "slurm.conf").write_text(CONFIGURATION.format(
        host=host, folder=folder, controller=free_port(), node=free_port(), cpus=os.cpu_count()
    ))  # fmt: skip
    cluster = Cluster(folder)
    munge = ["munged", "--foreground", "--force", f"--key-file={key}", f"--socket={folder}/munge.socket",
             f"--pid-file={folder}/munged.pid", f"--log-file={folder}/munged.log",
             f"--seed-file={folder}/munge.seed"]  # fmt: skip
    with contextlib.ExitStack() as stack:
        for command in (munge, ["slurmctld", "-D"], ["slurmd", "-D", "-N", host]):
            log = stack.enter_context(open(folder / f"{command[0]}.out.log", "w"))
            process = subprocess.Popen(command, env=cluster.environment, stdout=log, stderr=log, cwd=folder)
            stack.callback(process.wait)
            stack.callback(process.terminate)
            deadline = time.monotonic() + SECONDS
            while command is munge and not (folder / "munge.socket").exists():
                assert process.poll() is None and time.monotonic() < deadline, cluster.logs()
                time.sleep(0.05)
        deadline = time.monotonic() + SECONDS
        while subprocess.run(["scontrol", "ping"], env=cluster.environment, capture_output=True).returncode != 0:
            assert time.monotonic() < deadline, cluster.logs()
            time.sleep(0.2)
        cluster.wait_until("idle", "sinfo", "--noheader", "--format=%T")
        yield cluster


def test_an_array_grades_a_class(cluster: Cluster, tmp_path: Path) -> None:
    """As the head of the recipe says, with the small assignment in place of a real one."""
    ladder = tmp_path / "ladder"  # the parts of a checkout that the recipe uses, with other assignments
    for name in ("harness", "scripts", "common", ".venv"):
        ladder.mkdir(exist_ok=True)
        if name != "harness":
            (ladder / name).symlink_to(ROOT / name)
    shutil.copytree(ROOT / "harness" / "grader", ladder / "harness" / "grader")
    assignments = ladder / "docs" / "source" / "assignments"
    assignments.mkdir(parents=True)
    (assignments / "00_small.md").write_text(SMALL)
    handed_in = tmp_path / "submissions"
    handed_in.mkdir()
    for i in range(3):
        factor = SMALL.partition("answer\n")[2].partition("\n")[0].replace("@factor@", str([2, 3, 5][i]))
        (handed_in / f"student {i}.cu").write_text(
            "__global__ void scaled(const float* x, float* y, int n) {\n"
            f"const int i = blockIdx.x * blockDim.x + threadIdx.x;\n{factor}\n}}\n"
        )
    (handed_in / "broken.cu").write_text("no C++")
    out = tmp_path / "grades.csv"
    names = {"SUBMISSIONS": handed_in, "OUT": out, "ASSIGNMENT": "small", "COURSE": "c", "HIDDEN": "h",
             "LADDER": ladder, "FLASH_LADDER_BUILD_DIR": BUILD}  # fmt: skip
    names = {name: str(value) for name, value in names.items()}
    submit = ("sbatch", "--parsable", "--export=ALL", f"--chdir={tmp_path}", "--cpus-per-task=1")
    job = cluster.run(*submit, "--array=0-1", RECIPE, **names)
    last = cluster.run(*submit, "--array=0-0", f"--dependency=afterany:{job}", RECIPE, **names)
    cluster.wait_until("", "squeue", "--noheader")
    said = "\n".join(path.read_text() for path in tmp_path.glob("slurm-*.out"))
    for number, tasks in ((job, (0, 1)), (last, (0,))):
        for task in tasks:
            assert "ExitCode=0:0" in cluster.run("scontrol", "show", "job", f"{number}_{task}"), said
    assert said.count("2 files graded") == 2 and "4 of 4 files graded" in said, said
    with open(out, newline="") as file:
        rows = {row["file"]: row["score"] for row in csv.DictReader(file)}
    assert sorted(rows) == ["broken.cu", "student 0.cu", "student 1.cu", "student 2.cu"]
    assert rows["broken.cu"] == "0" and set(rows.values()) <= {"0", "100", "10"}
