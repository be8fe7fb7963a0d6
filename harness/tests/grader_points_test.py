"""The points of answers as a teacher would give them: cheats do not pass, honest answers have nearly all points in
whatever style, and partial answers are ordered."""

from __future__ import annotations

import os
import sys
from pathlib import Path

import pytest
from answers import CHEATS, HONEST, ORDERED, Answer, tile_by_tile

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
sys.path.insert(0, str(ROOT / "harness" / "grader"))

from assignment import read_assignment  # noqa: E402
from changes import changed_tokens  # noqa: E402
from compiler import Machine  # noqa: E402
from engine import Grader  # noqa: E402


class Graders:
    """A grader for each assignment that a test uses."""

    def __init__(self) -> None:
        self.machine = Machine.of_build(BUILD, isolated=False)  # the files are the project's own
        self.made: dict[str, Grader] = {}

    def __getitem__(self, name: str) -> Grader:
        if name not in self.made:
            # In 06, four rows start in the same bank, so that half of the conflicts can be removed.
            courses = (f"practice {i}" for i in range(100))
            course = next(c for c in courses if read_assignment(name, c).values.get("alike", 4) == 4)
            self.made[name] = Grader(self.machine, read_assignment(name, course), "hidden")
        return self.made[name]


@pytest.fixture(scope="module")
def graders() -> Graders:
    return Graders()


def grade(grader: Grader, folder: Path, text: str) -> dict:
    file = folder / "submission.cu"
    file.write_text(text, encoding="utf-8")
    result = grader.grade(file)
    assert result["status"] == "graded" and not result["message"], result["message"]
    return result


def shown(answer: Answer) -> str:
    return f"{answer.assignment}: {answer.name}"


@pytest.mark.parametrize("answer", CHEATS, ids=shown)
def test_a_cheat_does_not_pass(answer: Answer, graders: Graders, tmp_path: Path) -> None:
    grader = graders[answer.assignment]
    result = grade(grader, tmp_path, answer.write(grader.assignment))
    assert result["score"] < grader.assignment.pass_mark, result["checks"]


@pytest.mark.parametrize("answer", HONEST, ids=shown)
def test_an_honest_answer_has_nearly_all_points(answer: Answer, graders: Graders, tmp_path: Path) -> None:
    grader = graders[answer.assignment]
    result = grade(grader, tmp_path, answer.write(grader.assignment))
    assert result["score"] >= 95, [check for check in result["checks"] if check["lost"]]


@pytest.mark.parametrize("name", ORDERED)
def test_better_answers_have_more_points(name: str, graders: Graders, tmp_path: Path) -> None:
    grader = graders[name]
    scores = {what: grade(grader, tmp_path, write(grader.assignment))["score"] for what, write in ORDERED[name]}
    ascending = list(scores.values())
    assert ascending == sorted(set(ascending)), scores
    assert ascending[-1] == 100


def test_parts_that_are_right_are_named(graders: Graders, tmp_path: Path) -> None:
    grader = graders["04_mma"]
    (wrong,) = (write for what, write in ORDERED["04_mma"] if what == "one index of P wrong")
    result = grade(grader, tmp_path, wrong(grader.assignment))
    (parts,) = (check for check in result["checks"] if check["kind"] == "parts")
    assert result["score"] < grader.assignment.pass_mark
    right, wrong = parts["lost"]
    assert all(f"load_{tensor}_fragments()" in right for tensor in "QKV")
    assert wrong.endswith("the conversion of P")


def test_hidden_cases_do_not_say_what_is_expected(graders: Graders, tmp_path: Path) -> None:
    for name in ("00_puzzles", "04_mma"):
        hidden = graders[name]
        plain = Grader(graders.machine, hidden.assignment, hidden.assignment.course)
        said = [
            " ".join(sentence for check in grade(grader, tmp_path, grader.assignment.starter())["checks"]
                     for sentence in check["lost"]) for grader in (hidden, plain)
        ]  # fmt: skip
        assert "should be" not in said[0] and "should be" in said[1]


def test_hints_come_one_for_each_attempt(graders: Graders, tmp_path: Path) -> None:
    assignment = graders["05_cp_async"].assignment
    hints = assignment.data["hints"]
    for attempt in (1, 2, len(hints) + 1):
        grader = Grader(graders.machine, assignment, "hidden", attempt=attempt)
        assert grade(grader, tmp_path, tile_by_tile(assignment))["hints"] == hints[:attempt]


def test_changes_are_counted_by_kernel() -> None:
    starter = """#define N 4
__device__ int f(int x) { return x; }
__global__ void a(int* x) { x[0] = 1; }
__global__ void b() {}
"""
    assert changed_tokens(starter, "// a comment\n" + starter) == {"a": 0, "b": 0}
    assert changed_tokens(starter, starter.replace("= 1", "= 2 + 3")) == {"a": 3, "b": 0}
    assert changed_tokens(starter, starter.replace("return x", "return -x")) == {"a": 1, "b": 1}, "both may call it"
    assert changed_tokens(starter, starter.replace("N 4", "N 5")) == {"a": 1, "b": 1}
    added = changed_tokens(starter, starter + "__device__ void g() { while (true) f(1); }")
    assert added == {"a": 16, "b": 16}
    assert changed_tokens(starter, "")["a"] > 10, "what was removed has changed"
    assert changed_tokens(starter, starter.replace("x[0] = 1;", "x[0] = 1;" * 5000))["a"] > 1000
