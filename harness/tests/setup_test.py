"""scripts/setup decides by whether something exists, and not by where: tested in a copy, with tools that record their
requests.

Also tests how scripts respond to --help and to unknown options.
"""

from __future__ import annotations

import os
import shutil
import stat
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]

# The programs in PATH besides the tools of the test: those that setup uses and that are the same everywhere.
PLAIN = [
    "bash", "cat", "chmod", "cut", "dirname", "echo", "env", "grep", "head", "id", "ln", "mkdir", "printf", "readlink",
    "rm", "sed", "sha256sum", "sort", "tr",
]  # fmt: skip

TOOLS = {
    "c++": 'echo "c++ (Made up) 12.2.0"',
    "nvcc": 'echo "Cuda compilation tools, release 13.0, V13.0.88"',
    "nvdisasm": "echo 13.0",
    "git": "echo 2.39",
    "ninja": "echo 1.11.1",
    "apt-get": 'echo "apt-get $*" >>"$LOG"',
    "dpkg-query": "echo install ok installed",
    # The interpreter of .venv is a separate file, so its folder is where it claims to be.
    "python3": """
case "$*" in
  *platform*) echo 3.11.2 ;;
  "-m venv --clear .venv")
    echo "venv" >>"$LOG"
    mkdir -p .venv/bin
    { echo '#!/usr/bin/env bash'
      echo 'case "$*" in *sys.prefix*) echo '"$PWD/.venv"' ;; *"-m pip"*) echo "pip ${*: -1}" >>"$LOG" ;; esac'
    } >.venv/bin/python
    chmod +x .venv/bin/python ;;
esac""",
    # Configures as CMake does, as far as setup reads the result.
    "cmake": """
case "$1" in
  --version) echo "cmake version 3.25.1" ;;
  --preset)
    kind=again
    [ "${*: -1}" != --fresh ] || kind=fresh
    [ -f build/CMakeCache.txt ] || kind=first
    echo "configure $kind" >>"$LOG"
    mkdir -p build
    { for argument in "$@"; do case "$argument" in -D*=*) echo "${argument#-D}" | sed 's/=/:FILEPATH=/' ;; esac; done
      echo "CMAKE_HOME_DIRECTORY:INTERNAL=$PWD"
      echo "CMAKE_GENERATOR:INTERNAL=Ninja"
      echo "CMAKE_COMMAND:INTERNAL=$(readlink -f "$0")"
      echo "CMAKE_MAKE_PROGRAM:FILEPATH=$(command -v ninja)"
    } >build/CMakeCache.txt
    echo >build/build.ninja ;;
  --build) echo "build ${*: -1}" >>"$LOG" ;;
esac""",
}


class Machine:
    """A folder of programs, a copy of the files that setup reads, and the outcome of a call."""

    def __init__(self, folder: Path) -> None:
        self.tree = folder / "tree"
        (self.tree / "scripts").mkdir(parents=True)
        for file in [ROOT / "scripts" / "setup", *(ROOT / "scripts").glob("requirements*.txt")]:
            shutil.copy(file, self.tree / "scripts")
        self.folder = folder
        self.log = folder / "log"
        self.plain = folder / "plain"
        self.plain.mkdir()
        for name in PLAIN:
            if found := shutil.which(name):
                (self.plain / name).symlink_to(found)
        self.usual = self.tools("usual", *TOOLS)

    def tools(self, name: str, *programs: str) -> Path:
        """A folder of that name that contains these programs."""
        folder = self.folder / name
        folder.mkdir()
        for program in programs:
            self.write(folder / program, TOOLS[program])
        return folder

    @staticmethod
    def write(file: Path, script: str) -> None:
        file.write_text(f"#!/usr/bin/env bash\n{script}\n", encoding="utf-8")
        file.chmod(file.stat().st_mode | stat.S_IXUSR)

    def setup(self, *before: Path, slim: bool = False) -> list[str]:
        """The requests to the tools, with these folders at the front of PATH."""
        self.log.write_text("", encoding="utf-8")
        path = ":".join(str(folder) for folder in [*before, self.usual, self.plain])
        done = subprocess.run(
            [self.tree / "scripts" / "setup", *(["--slim"] if slim else []), "harness"],
            env={"PATH": path, "LOG": str(self.log), "HOME": str(self.folder)},
            capture_output=True,
            text=True,
            check=False,
        )
        assert done.returncode == 0, done.stderr
        return self.log.read_text(encoding="utf-8").splitlines()


BUILD = ["build harness"]


@pytest.fixture
def machine(tmp_path: Path) -> Machine:
    machine = Machine(tmp_path)
    assert machine.setup() == ["venv", "pip scripts/requirements.txt", "configure first", *BUILD]
    return machine


def test_the_second_time_it_only_builds(machine: Machine) -> None:
    assert machine.setup() == BUILD


def test_an_active_virtual_environment_makes_no_difference(machine: Machine) -> None:
    assert machine.setup(machine.tools("environment", "python3", "cmake", "ninja")) == BUILD
    assert machine.setup() == BUILD


def test_an_environment_that_setup_ran_in_and_that_is_gone(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    environment = machine.tools("environment", "python3", "cmake", "ninja")
    machine.setup(environment)
    assert machine.setup() == BUILD, "what it was configured with is still there"
    shutil.rmtree(environment)
    assert machine.setup() == ["configure fresh", *BUILD]
    assert machine.setup() == BUILD
    python = machine.tree / ".venv" / "bin" / "python"
    assert f"Python3_EXECUTABLE:FILEPATH={python}\n" in (machine.tree / "build" / "CMakeCache.txt").read_text()


def test_another_compiler_is_configured_anew_and_nothing_installed(machine: Machine) -> None:
    for compiler in ("nvcc", "c++"):
        other = machine.tools(f"other {compiler}", compiler)
        assert machine.setup(other) == ["configure fresh", *BUILD], compiler
        assert machine.setup() == ["configure fresh", *BUILD], compiler


def test_another_compiler_under_the_same_name(machine: Machine) -> None:
    machine.write(machine.usual / "c++", 'echo "c++ (Made up) 13.1.0"')
    assert machine.setup() == ["configure fresh", *BUILD]
    assert machine.setup() == BUILD


def test_a_disassembler_that_went_missing_is_installed(machine: Machine) -> None:
    (machine.usual / "nvdisasm").unlink()
    assert machine.setup() == [
        "pip scripts/requirements.txt", "pip nvidia-cuda-nvdisasm", "configure again", *BUILD
    ]  # fmt: skip
    assert machine.setup() == BUILD


def test_requirements_that_changed_are_installed(machine: Machine) -> None:
    with (machine.tree / "scripts" / "requirements.txt").open("a", encoding="utf-8") as file:
        file.write("# another\n")
    assert machine.setup() == ["pip scripts/requirements.txt", "configure again", *BUILD]
    assert machine.setup() == BUILD


def test_a_folder_that_was_moved(machine: Machine) -> None:
    moved = machine.folder / "moved"
    machine.tree.rename(moved)
    machine.tree = moved
    assert machine.setup() == ["venv", "pip scripts/requirements.txt", "configure fresh", *BUILD]
    assert machine.setup() == BUILD


def test_a_student_gets_no_packages_of_the_tests(tmp_path: Path) -> None:
    machine = Machine(tmp_path)
    cache = machine.tree / "build" / "CMakeCache.txt"
    assert machine.setup(slim=True) == ["venv", "configure first", *BUILD]
    assert "PYTHON_PACKAGE:FILEPATH=OFF" in cache.read_text(encoding="utf-8")
    assert machine.setup(slim=True) == BUILD
    # A user who wants to run the tests gets the rest, once; from then on there is only one kind of setup.
    assert machine.setup() == ["pip scripts/requirements.txt", "configure again", *BUILD]
    assert "PYTHON_PACKAGE:FILEPATH=ON" in cache.read_text(encoding="utf-8")
    assert machine.setup(slim=True) == BUILD
    assert machine.setup() == BUILD


@pytest.mark.parametrize("script", ["setup", "docs", "slides", "test", "emulator_coverage"])
def test_help_is_the_head_of_the_script(script: str) -> None:
    for option in ("--help", "-h"):
        done = subprocess.run(
            [ROOT / "scripts" / script, option], capture_output=True, text=True, check=False, timeout=60
        )
        assert (done.returncode, done.stderr) == (0, "")
        assert f"scripts/{script}" in done.stdout and "set -euo" not in done.stdout and "#" not in done.stdout


@pytest.mark.parametrize("arguments", [["setup", "--bogus"], ["setup", "--slim", "--bogus"], ["docs", "--bogus"]])
def test_an_unknown_option(arguments: list[str]) -> None:
    script, *options = arguments
    done = subprocess.run(
        [ROOT / "scripts" / script, *options], capture_output=True, text=True, check=False, timeout=60
    )
    assert done.returncode == 2 and "unknown argument --bogus" in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.skipif(shutil.which("ninja") is None, reason="ninja, which lists the build's commands, is not on PATH")
@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--trials", "0"], "--trials is 0; allowed: 1 and more"),
        (["--kernel", "07", "--kernel", "7"], "--kernel is 7; allowed: 01, 02, 03, "),
        (["--kernel", "27"], "--kernel is 27; allowed: 01, 02, 03, "),
    ],
)
def test_steady_ptx_refuses_what_would_compile_nothing(arguments: list[str], message: str) -> None:
    build = os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build")
    command = [sys.executable, ROOT / "scripts" / "steady_ptx.py", "--build", build, *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    assert done.returncode == 2 and message in done.stderr, done.stderr
