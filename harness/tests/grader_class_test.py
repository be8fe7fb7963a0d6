"""A class of 60 with known grades: each file consists of puzzles that are solved, left unchanged, or wrong, and its
generator knows what that is worth."""

import csv
import dataclasses
import random
import re
import sys
from pathlib import Path

import pytest
from grading import BUILD, ROOT, why_not_isolated

sys.path.append(str(ROOT / "harness" / "grader"))
import assignment
import grade

COURSE, HIDDEN, SEED = "practice of 60", "exam", 12
# For each puzzle: the points of its counter; the number of cases in which it is tried; the number in which the starter
# is right; a change of the answer that makes it wrong. The starters of `scale` and of `turn` are right, but slow.
PUZZLES = {
    "scale": (10, 1, 1, ("* s[col]", "* s[col] + 1")),
    "turn": (10, 1, 1, ("tile[threadIdx.x][col];", "tile[threadIdx.x][col] + 1;")),
    "group_reduce": (8, 1, 0, ("mask > 0", "mask > 1")),
    "logsumexp": (8, 2, 0, ("log", "- log")),
    "cta_reduce": (5, 1, 0, ("smem[0];", "smem[1];")),
    "one_mma": (5, 1, 0, ("pair + i % 2]", "pair + 1 - i % 2]")),
}
CASES = sum(cases for _, cases, _, _ in PUZZLES.values())
RESULTS, FINDINGS = 42, 12  # the points of all cases together


@dataclasses.dataclass
class Student:
    name: str
    text: str
    points: float
    copied_from: str = ""


def kernels(text: str) -> tuple[str, dict[str, str]]:
    """The text before the first kernel, and each kernel with the comment that precedes it."""
    parts = re.split(r"(?m)^(?=// \d\. )", text)
    return parts[0], {re.search(r"void (\w+)\(", part)[1]: part for part in parts[1:]}


def wrong(name: str, kernel: str) -> str:
    head, body = kernel.split("__global__", 1)
    old, new = PUZZLES[name][3]
    if name == "logsumexp":
        old, new = "= m + ", "= m - "
    assert old in body, name
    return head + "__global__" + body.replace(old, new)


def disguised(text: str, dice: random.Random) -> str:
    """The same program with different names, comments and spaces."""
    for name in ("i", "row", "col", "other", "mask", "tile", "step"):
        text = re.sub(rf"\b(?<![.>]){name}\b(?!\()", f"{name}_{dice.randrange(100)}", text)
    lines = [
        line + (f"  // {dice.random():.3f}" if dice.random() < 0.2 and "\\" not in line else "")
        for line in text.split("\n")
    ]
    return "\n".join(line.replace("  ", "\t") if dice.random() < 0.3 else line for line in lines)


def make_class(count: int) -> list[Student]:
    dice = random.Random(SEED)
    given = assignment.read_assignment("puzzles", COURSE)
    head, answers = kernels(given.reference_answer())
    _, starters = kernels(given.starter())
    assert list(answers) == list(starters) == list(PUZZLES)
    students: list[Student] = []
    for number in range(count):
        name, kind = f"student_{number:02}.cu", dice.random()
        if kind < 0.1:  # does not compile, or is not a text file
            broken = given.reference_answer().replace("__syncthreads();", "__syncthreads()", 1)
            text = dice.choice(["", "to do", head, broken, "\0", "#include </etc/passwd>"])
            students.append(Student(name, text, 0))
            continue
        if kind < 0.2 and (sources := [s for s in students if s.points > 60 and not s.copied_from]):
            source = dice.choice(sources)
            students.append(Student(name, disguised(source.text, dice), source.points, source.name))
            continue
        text, counters, right, skill = head, 0, 0, dice.random()
        for puzzle, (counter, cases, of_starter, _) in PUZZLES.items():
            luck = dice.random()
            if luck < skill:
                text, counters, right = text + answers[puzzle], counters + counter, right + cases
            elif luck < (1 + skill) / 2:
                text, right = text + starters[puzzle], right + of_starter
            else:
                text += wrong(puzzle, answers[puzzle])
        points = round(counters + round(RESULTS * right / CASES, 1) + round(FINDINGS * right / CASES, 1), 1)
        students.append(Student(name, text if dice.random() < 0.3 else disguised(text, dice), points))
    return students


def test_the_generator_makes_all_kinds() -> None:
    students = make_class(60)
    points = [student.points for student in students]
    assert 100 in points and 0 in points and any(0 < p < 60 for p in points) and any(60 <= p < 100 for p in points)
    assert sum(bool(student.copied_from) for student in students) >= 2


def test_a_class_of_60_gets_the_grades_that_are_predicted(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    students = make_class(60)
    folder = tmp_path / "submissions"
    folder.mkdir()
    for student in students:
        (folder / student.name).write_text(student.text)
    out, hidden = tmp_path / "grades.csv", tmp_path / "seed.txt"
    hidden.write_text(HIDDEN)
    arguments = ["--grade-dir", folder, "--assignment", "puzzles", "--course", COURSE, "--hidden", hidden, "--out", out,
                 "--build", BUILD, *(["--unsandboxed"] if why_not_isolated() else [])]  # fmt: skip
    monkeypatch.setattr(sys, "argv", ["harness", *map(str, arguments)])
    assert grade.main() == 0
    with open(out, newline="") as file:
        got = {row["file"]: float(row["score"]) for row in csv.DictReader(file)}
    assert got == {student.name: student.points for student in students}
    with open(tmp_path / "grades.similar.csv", newline="") as file:
        alike = {frozenset((row["first"], row["second"])) for row in csv.DictReader(file)}
    for student in students:
        if student.copied_from:
            assert frozenset((student.name, student.copied_from)) in alike
