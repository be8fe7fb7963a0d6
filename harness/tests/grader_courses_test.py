"""The variety of the assignments: what last year's answers are worth this year. Needs the teachers' answers
(FLASH_LADDER_ANSWERS), because the pages contain only those of practice courses."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
GRADE = ROOT / "harness" / "grader" / "grade.py"
sys.path.insert(0, str(ROOT / "harness" / "grader"))

from assignment import ANSWERS_VARIABLE, names_of_assignments, read_answers, read_assignment  # noqa: E402
from changes import solved_points  # noqa: E402
from compiler import Machine  # noqa: E402
from engine import Grader  # noqa: E402
from similarity import tokens  # noqa: E402

NAMES = names_of_assignments()
PAIRS = 50

pytestmark = pytest.mark.skipif(
    any(read_answers(name) is None for name in NAMES),
    reason=f"{ANSWERS_VARIABLE} does not name the folder of the teachers' answers: scripts/teacher_pack --open",
)


@pytest.mark.parametrize("name", NAMES)
def test_an_assignment_has_twenty_answers(name: str) -> None:
    """In the gaps of one starter, so that only the student's part counts."""
    starter = read_assignment(name, "here")
    found = {tuple(tokens(starter.answer_from(read_assignment(name, f"course {i}")))) for i in range(250)}
    assert len(found) >= 20


def test_few_of_last_years_answers_solve_this_years_assignments() -> None:
    fallen = {
        name: sum(
            solved_points(one := read_assignment(name, f"spring {i}"), read_assignment(name, f"autumn {i}"))
            >= one.pass_mark for i in range(PAIRS)
        ) for name in NAMES
    }  # fmt: skip
    assert max(fallen.values()) <= PAIRS // 10 and sum(fallen.values()) <= PAIRS * len(NAMES) // 20, fallen


@pytest.mark.parametrize("name", NAMES)
def test_no_practice_answer_solves_a_course(name: str) -> None:
    practice = read_assignment(name, "practice")
    for i in range(PAIRS):
        assert solved_points(practice, read_assignment(name, f"spring {i}")) < practice.pass_mark
    assert_does_not_pass(name, "practice", "spring 26")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("course", ["spring 26", "autumn 26"])
def test_the_teachers_answer_has_all_points_and_the_starter_does_not_pass(
    name: str, course: str, tmp_path: Path
) -> None:
    grader = Grader(Machine.of_build(BUILD, isolated=False), read_assignment(name, course), "hidden")
    file = tmp_path / "submission.cu"
    file.write_text(grader.assignment.reference_answer(), encoding="utf-8")
    result = grader.grade(file)
    assert result["score"] == 100, [check for check in result["checks"] if check["lost"]] or result["message"]
    file.write_text(grader.assignment.starter(), encoding="utf-8")
    result = grader.grade(file)
    assert not result["message"] and result["score"] < grader.assignment.pass_mark


@pytest.mark.parametrize("name", NAMES)
def test_another_answer_is_graded(name: str) -> None:
    """That different tokens are a different solution, for two courses whose answers differ."""
    assert_does_not_pass(name, "spring 26", "autumn 26")


def assert_does_not_pass(name: str, *courses: str) -> None:
    done = subprocess.run(
        [sys.executable, GRADE, "--build", BUILD, "--unsandboxed", "--assignment", name, "--compare-courses", *courses],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0 and f" of 100  {name}  does not pass\n" in done.stdout, done.stdout + done.stderr


@pytest.mark.parametrize("course", [f"fault {i}" for i in range(12)])
def test_every_fault_of_the_bug_hunt_shows(course: str, tmp_path: Path) -> None:
    grader = Grader(Machine.of_build(BUILD, isolated=False), read_assignment("08_bug_hunt", course), "hidden")
    file = tmp_path / "submission.cu"
    file.write_text(grader.assignment.starter(), encoding="utf-8")
    lost = " ".join(sentence for check in grader.grade(file)["checks"] for sentence in check["lost"])
    assert all(f"{kernel}" in lost for kernel in ("softmax_rows", "column_sums", "scores", "attend", "ring")), lost
