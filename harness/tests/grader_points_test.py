"""The points of answers as a teacher would give them: cheats do not pass, honest answers have nearly all points in
whatever style, and partial answers are ordered."""

from __future__ import annotations

import os
import sys
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answers import MODULES
from answers.cp_async import tile_by_tile
from answers.edits import Write

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
sys.path.insert(0, str(ROOT / "harness" / "grader"))

from assignment import read_assignment  # noqa: E402
from changes import changed_tokens  # noqa: E402
from compiler import Machine  # noqa: E402
from engine import Grader  # noqa: E402


def course_of(name: str) -> str:
    """In 06, four rows start in the same bank, so that half of the conflicts can be removed."""
    courses = (f"practice {i}" for i in range(100))
    return next(course for course in courses if read_assignment(name, course).values.get("alike", 4) == 4)


class Graders:
    """A grader for each assignment that a test uses."""

    def __init__(self) -> None:
        self.machine = Machine.of_build(BUILD, isolated=False)  # the files are the project's own
        self.made: dict[str, Grader] = {}

    def __getitem__(self, name: str) -> Grader:
        if name not in self.made:
            self.made[name] = Grader(self.machine, read_assignment(name, course_of(name)), "hidden")
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


def answers_of(kind: str) -> list[tuple[str, str, str]]:
    return [(name, kind, what) for name, module in MODULES.items() for what in dict(getattr(module, kind))]


def text_of(name: str, kind: str, what: str, graders: Graders) -> str:
    write: Write = dict(getattr(MODULES[name], kind))[what]
    return write(graders[name].assignment)


@pytest.fixture(scope="module")
def results(graders: Graders, request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> dict:
    """The results of all answers that the selected tests need, graded side by side."""
    wanted: set[tuple[str, str, str]] = set()
    for item in request.session.items:
        parameters = getattr(item, "callspec", None)
        if parameters is not None and "answer" in parameters.params:
            wanted.add(parameters.params["answer"])
        elif parameters is not None and "ordered" in parameters.params:
            wanted |= {answer for answer in answers_of("ORDERED") if answer[0] == parameters.params["ordered"]}

    def one(answer: tuple[str, str, str]) -> tuple[tuple[str, str, str], dict]:
        return answer, grade(graders[answer[0]], tmp_path_factory.mktemp("answer"), text_of(*answer, graders))

    for name in {name for name, _, _ in wanted}:
        graders[name]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(one, sorted(wanted)))


def shown(answer: tuple[str, str, str]) -> str:
    return f"{answer[0]}: {answer[2]}"


@pytest.mark.parametrize("answer", answers_of("CHEATS"), ids=shown)
def test_a_cheat_does_not_pass(answer: tuple[str, str, str], graders: Graders, results: dict) -> None:
    result = results[answer]
    assert result["score"] < graders[answer[0]].assignment.pass_mark, result["checks"]


@pytest.mark.parametrize("answer", answers_of("HONEST"), ids=shown)
def test_an_honest_answer_has_nearly_all_points(answer: tuple[str, str, str], results: dict) -> None:
    result = results[answer]
    assert result["score"] >= 95, [check for check in result["checks"] if check["lost"]]


@pytest.mark.parametrize("ordered", MODULES)
def test_better_answers_have_more_points(ordered: str, results: dict) -> None:
    scores = {answer[2]: results[answer]["score"] for answer in answers_of("ORDERED") if answer[0] == ordered}
    ascending = list(scores.values())
    assert ascending == sorted(set(ascending)), scores
    assert ascending[-1] == 100


@pytest.mark.parametrize("name", MODULES)
def test_there_are_many_of_each(name: str) -> None:
    assert len(MODULES[name].CHEATS) >= 8 and len(MODULES[name].HONEST) >= 10


def test_parts_that_are_right_are_named(graders: Graders, tmp_path: Path) -> None:
    grader = graders["04_mma"]
    result = grade(grader, tmp_path, text_of("04_mma", "ORDERED", "one index of P wrong", graders))
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
    assembly = starter.replace("x[0] = 1;", 'asm("mov.u32 %0, 1; st.global.u32 [%1], %0;");')
    assert changed_tokens(starter, assembly)["a"] > 15, "the words of a string"
    added = changed_tokens(starter, starter + "__device__ void g() { while (true) f(1); }")
    assert added == {"a": 16, "b": 16}
    assert changed_tokens(starter, "")["a"] > 10, "what was removed has changed"
    assert changed_tokens(starter, starter.replace("x[0] = 1;", "x[0] = 1;" * 5000))["a"] > 1000
