"""The points of answers as a teacher would give them: cheats do not pass, honest answers have nearly all points in
whatever style, and partial answers are ordered."""

from __future__ import annotations

import itertools
import json
import math
import os
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path

import pytest
from answers import MODULES
from answers.cp_async import tile_by_tile
from answers.edits import Write

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
TEACHERS = ROOT / "harness" / "tests" / "teachers.json"
SURELY = 10  # points by which both teachers place one answer above another
THOROUGH = "FLASH_LADDER_THOROUGH" in os.environ
sys.path.insert(0, str(ROOT / "harness" / "grader"))

from assignment import read_assignment  # noqa: E402
from changes import changed_tokens  # noqa: E402
from compiler import Machine  # noqa: E402
from engine import Grader  # noqa: E402
from influence import disturbed  # noqa: E402

COURSE = "practice 0"


class Graders:
    """A grader for each assignment that a test uses."""

    def __init__(self) -> None:
        self.machine = Machine.of_build(BUILD, isolated=False)  # the files are the project's own
        self.made: dict[str, Grader] = {}

    def __getitem__(self, name: str) -> Grader:
        if name not in self.made:
            self.made[name] = Grader(self.machine, read_assignment(name, COURSE), "hidden")
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
    """All answers of a kind; of cheats and honest answers, a third by default, and all with scripts/test --thorough."""
    step = 1 if kind == "ORDERED" or THOROUGH else 3
    return [
        (name, kind, what)
        for first, (name, module) in enumerate(MODULES.items())
        for what in list(dict(getattr(module, kind)))[first % step :: step]
    ]


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

    folder = tmp_path_factory.mktemp("answers")  # here, since mktemp must not be called by two threads at once

    def one(answer: tuple[str, str, str]) -> tuple[tuple[str, str, str], dict]:
        place = folder / str(answers.index(answer))
        place.mkdir()
        try:
            return answer, grade(graders[answer[0]], place, text_of(*answer, graders))
        except AssertionError as error:  # for the test of this answer
            return answer, {"score": math.nan, "checks": str(error)}

    answers = sorted(wanted)
    for name in {name for name, _, _ in answers}:
        graders[name]
    with ThreadPoolExecutor(os.cpu_count()) as pool:
        return dict(pool.map(one, answers))


def shown(answer: tuple[str, str, str]) -> str:
    return f"{answer[0]}: {answer[2]}"


@pytest.mark.parametrize("answer", answers_of("CHEATS"), ids=shown)
def test_a_cheat_does_not_pass(answer: tuple[str, str, str], graders: Graders, results: dict) -> None:
    result = results[answer]
    assert result["score"] < graders[answer[0]].assignment.pass_mark, result["checks"]


@pytest.mark.parametrize("answer", answers_of("HONEST"), ids=shown)
def test_an_honest_answer_has_nearly_all_points(answer: tuple[str, str, str], results: dict) -> None:
    result = results[answer]
    assert result["score"] >= 95, result["checks"]


@pytest.mark.parametrize("ordered", MODULES)
def test_better_answers_have_more_points(ordered: str, results: dict) -> None:
    scores = {answer[2]: results[answer]["score"] for answer in answers_of("ORDERED") if answer[0] == ordered}
    ascending = list(scores.values())
    assert ascending == sorted(set(ascending)), scores
    assert ascending[-1] == 100


@pytest.mark.parametrize("name", MODULES)
def test_there_are_many_of_each(name: str) -> None:
    assert len(MODULES[name].CHEATS) >= 8 and len(MODULES[name].HONEST) >= 10


def taught() -> list[list]:
    """What two teachers would give for some answers: assignment, answer, points of each, and what the grader gave."""
    return json.loads(TEACHERS.read_text(encoding="utf-8"))["answers"]


@pytest.mark.parametrize("ordered", MODULES)
def test_the_grader_orders_answers_as_two_teachers_do(ordered: str, results: dict) -> None:
    rows = [
        (what, first, second, results[ordered, "ORDERED", what]["score"], recorded)
        for name, what, first, second, recorded in taught()
        if name == ordered
    ]
    for what, *_, score, recorded in rows:
        assert score == pytest.approx(recorded, abs=1), (
            f"{what}: run this file with --record, then scripts/docs --pages"
        )
    for a, b in itertools.permutations(rows, 2):
        if a[1] + SURELY <= b[1] and a[2] + SURELY <= b[2]:
            assert a[3] < b[3], f"{a[0]} should be below {b[0]}"


def test_the_grader_is_about_as_far_from_the_teachers_as_they_are_from_each_other() -> None:
    rows = taught()
    assert len(rows) >= 40
    apart = sum(abs(first - second) for _, _, first, second, _ in rows) / len(rows)
    off = sum(abs((first + second) / 2 - recorded) for _, _, first, second, recorded in rows) / len(rows)
    assert off < 1.5 * apart, (off, apart)


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


def test_results_are_changed_in_the_text() -> None:
    mma = "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32 {%f1, %f2}, {%r1}, {%r2}, {%f1, %f2};"
    changed = disturbed(f"@%p1 {mma}", "mma")
    assert changed.split("\n")[1:] == [f"@%p1 mul.f32 %f{i}, %f{i}, 0f3F400000;" for i in (1, 2)]
    assert disturbed(mma, "ldmatrix") == mma
    load = "ldmatrix.sync.aligned.m8n8.x2.shared.b16 {%r1, %r2}, [%r3];"
    assert "xor.b32 %r2, %r2" in disturbed(load, "ldmatrix")
    assert "xor.b16 %rs1, %rs1" in disturbed("ld.shared.u16 %rs1, [%r3];", "shared_loads")
    assert "xor.b32 %r1, %r1" in disturbed("shfl.sync.bfly.b32 \t%r1|%p1, %r2, 16, 31, -1;", "shuffles")
    copy = disturbed("cp.async.cg.shared.global [%r1], [%rd2+32], 16;", "copies")
    assert "add.s64 %from_beside, %rd2, 32;" in copy and "[%r1], [%from_beside], 16;" in copy


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


def record() -> None:
    """Writes what the grader gives into the table of what teachers would give."""
    graders, table = Graders(), json.loads(TEACHERS.read_text(encoding="utf-8"))
    with tempfile.TemporaryDirectory() as folder:
        for row in table["answers"]:
            row[4:] = [grade(graders[row[0]], Path(folder), text_of(row[0], "ORDERED", row[1], graders))["score"]]
    rows = ",\n".join(f"    {json.dumps(row)}" for row in table["answers"])
    about = ",\n".join(f"    {json.dumps(line)}" for line in table["about"])
    TEACHERS.write_text(f'{{\n  "about": [\n{about}\n  ],\n  "answers": [\n{rows}\n  ]\n}}\n', encoding="utf-8")


if __name__ == "__main__" and sys.argv[1:] == ["--record"]:
    record()
