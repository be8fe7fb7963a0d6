"""Grades files as a user would, for a small assignment of two kernels that compiles fast."""

import contextlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from schemas import validate_grade

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
GRADE = ROOT / "harness" / "grader" / "grade.py"

sys.path.append(str(ROOT / "harness" / "grader"))
import compiler  # noqa: E402


def why_not_isolated() -> str:
    """What this machine lacks for isolating submissions; empty: nothing."""
    try:
        compiler.Machine.of_build(BUILD, isolated=True)
    except compiler.Unavailable as why:
        return str(why)
    return ""


SMALL = """# small

<!-- grader
pass_mark = 60
hints = ["Look at the index."]
python = '''
def times(factor, values):
    return [factor * value for value in values]
'''
[vary]
factor = [2, 3, 5, 7, 11, 13]
[starter]
source = '''
__global__ void scaled(const float* x, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // answer
  if (i < n) y[i] = @factor@ * x[i];
  // starter: // TODO: y[i] = @factor@ * x[i]
  // end
}
'''
[launch]
kernel = "scaled"
grid = ["(n + 127) // 128"]
block = 128
instructions = 100_000
arguments = ["x", "y", "n"]
buffers.x = { type = "f32", count = "n", values = "normal" }
buffers.y = { type = "f32", count = "n", expected = "times(factor, x)", tolerance = 1e-6 }
[[case]]
name = "short"
sizes = { n = [100, 300, 500, 700, 900, 1100, 1300, 1500] }
[[case]]
name = "long"
sizes = { n = [2100, 2300, 2500, 2700, 2900, 3100, 3300, 3500] }
[[check]]
name = "output"
kind = "correct"
points = 60
[[check]]
kind = "findings"
points = 20
[[check]]
kind = "counter"
name = "sectors"
points = 20
value = "global_load_sectors / global_load_ideal_sectors"
full = 1
none = 3
needs = "global_load_requests > 0"
needs_lost = "Nothing is read."
lost = "{value:.2f} sectors are read where 1 is ideal"
where = "global_load"
-->
"""


class Grading:
    """The grader with the small assignment, in its own folder."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        self.assignments = folder / "assignments"
        self.assignments.mkdir()
        (self.assignments / "00_small.md").write_text(SMALL)
        self.home = folder / "home"
        self.home.mkdir()
        self.temporary = folder / "tmp"
        self.temporary.mkdir()
        self.environment = os.environ | {"HOME": str(self.home), "TMPDIR": str(self.temporary)}

    def run(self, *arguments: str | Path, **more: Any) -> subprocess.CompletedProcess:  # noqa: ANN401, of subprocess.run
        command = [sys.executable, str(GRADE), "--build", str(BUILD), "--assignments", str(self.assignments)]
        return subprocess.run(
            [*command, *map(str, arguments)], capture_output=True, text=True, env=self.environment, check=False, **more
        )

    def seed(self, text: str) -> str:
        """The name of a file that contains a hidden seed."""
        path = self.folder / "seed.txt"
        path.write_text(f"{text}\n", encoding="utf-8")
        return str(path)

    def text(self, what: str, course: str = "") -> str:
        """The output of --starter or --reference."""
        done = self.run(what, "small", "--course", course)
        assert done.returncode == 0, done.stderr
        return done.stdout

    def grade(self, source: str | bytes | Path, *arguments: str) -> dict[str, Any]:
        """The report on a file, with which the exit code must agree. The printed text is in "shown"."""
        path = source
        if not isinstance(source, Path):
            path = self.folder / "handed_in.cu"
            path.write_bytes(source.encode() if isinstance(source, str) else source)
        report = self.folder / "report.json"
        report.unlink(missing_ok=True)
        if "--assignment" not in arguments:
            arguments = ("--assignment", "small", *arguments)
        done = self.run("--grade", path, "--report", report, *arguments)
        assert report.is_file(), done.stdout + done.stderr
        assert not done.stderr, "the grader does not crash"
        result = json.loads(report.read_text())
        validate_grade(result)
        wanted = 3 if result["status"] != "graded" else 0 if result["passed"] else 1
        assert done.returncode == wanted
        return result | {"shown": done.stdout}


@contextlib.contextmanager
def nothing_else_changes(grading: Grading) -> Iterator[None]:
    """Neither the home folder nor temporary folders keep anything; other files of the folder are unchanged."""

    def files() -> dict[str, bytes]:
        return {
            str(path): path.read_bytes()
            for path in grading.folder.rglob("*")
            if path.is_file() and not path.is_symlink() and path.name not in ("report.json", "handed_in.cu")
        }

    before = files()
    yield
    assert files() == before
    assert not list(grading.temporary.iterdir()) and not list(grading.home.iterdir())
