"""Each assignment, as a teacher would try it: neither its starter nor what can be copied is enough to pass, and the
reference answer scores full points."""

from __future__ import annotations

import copy
import dataclasses
import os
import re
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
sys.path.insert(0, str(ROOT / "harness" / "grader"))

from assignment import FOLDER, Assignment, draw, names_of_assignments, read_assignment  # noqa: E402
from compiler import Machine  # noqa: E402
from engine import Grader  # noqa: E402

NAMES = names_of_assignments()
COURSES = ("practice 1", "practice 6")  # courses whose answers everyone has; they vary every assignment
# Cases that must fail use one course for each assignment, because failing does not depend on the course. Another test
# checks that each variation can be written.
ONE_COURSE_EACH = [(name, COURSES[i % 2]) for i, name in enumerate(NAMES)]


def copied(assignment: Assignment) -> str:
    """The starter with the ladder's own lines in the places where the student is to write."""
    data = copy.deepcopy(assignment.data)
    for region in data["starter"].get("empty", []):
        region.pop("reference_with", None)
    return dataclasses.replace(assignment, data=data).reference_answer()


@pytest.fixture(scope="module")
def machine() -> Machine:
    """Without isolation, because the graded files are the project's own."""
    return Machine.of_build(BUILD, isolated=False)


@pytest.fixture(scope="module")
def graders(machine: Machine) -> dict[tuple[str, str], Grader]:
    return {
        (name, course): Grader(machine, read_assignment(name, course), "hidden") for name in NAMES for course in COURSES
    }


def grade(grader: Grader, folder: Path, text: str) -> dict:
    file = folder / "submission.cu"
    file.write_text(text, encoding="utf-8")
    result = grader.grade(file)
    assert result["status"] == "graded", result["message"]
    return result


def test_the_course_has_all_its_assignments() -> None:
    numbers = {"00", "02", "03", "04", "05", "06", "07", "08", "09", "16", "17", "18", "19"}
    assert {name[:2] for name in NAMES} >= numbers


@pytest.mark.parametrize("course", COURSES)
@pytest.mark.parametrize("name", NAMES)
def test_the_reference_answer_has_all_points(name: str, course: str, graders: dict, tmp_path: Path) -> None:
    grader = graders[name, course]
    result = grade(grader, tmp_path, grader.assignment.reference_answer())
    assert result["score"] == 100, [check for check in result["checks"] if check["lost"]]


@pytest.mark.parametrize(("name", "course"), ONE_COURSE_EACH)
def test_the_starter_compiles_and_does_not_pass(name: str, course: str, graders: dict, tmp_path: Path) -> None:
    grader = graders[name, course]
    result = grade(grader, tmp_path, grader.assignment.starter())
    assert not result["message"], "it is refused"
    assert result["score"] < grader.assignment.pass_mark and not result["passed"]
    assert result["hints"]
    for check in result["checks"]:
        assert check["lost"] or check["points"] == check["of"], "points are lost without a word"


@pytest.mark.parametrize(
    ("name", "course"), [pair for pair in ONE_COURSE_EACH if "from" in read_assignment(pair[0]).data["starter"]]
)
def test_the_ladders_own_lines_do_not_pass(name: str, course: str, graders: dict, tmp_path: Path) -> None:
    grader = graders[name, course]
    result = grade(grader, tmp_path, copied(grader.assignment))
    # 16 begins with the ladder's own lines, which are wrong there: K or V has the other layout.
    assert result["score"] < grader.assignment.pass_mark
    kernel = ROOT / "kernels" / f"{grader.assignment.data['starter']['from']}.cu"
    result = grade(grader, tmp_path, kernel.read_text(encoding="utf-8"))
    assert result["score"] < grader.assignment.pass_mark


def test_what_later_versions_do_is_not_enough_for_16(graders: dict, tmp_path: Path) -> None:
    """The softmax of 12 and the registers of 14 without regard to the mask: right, but below the pass mark."""
    grader = graders["16_overlapped_softmax", COURSES[0]]
    answer = grader.assignment.reference_answer()
    ported = re.sub(r"const int begin = .*;", "const int begin = 0, end = args.seq_len_kv;", answer)
    ported = re.sub(r"const bool is_seen = .*;", "const bool is_seen = true;", ported)
    assert ported.count("is_seen = true") == 1 and "begin = 0" in ported
    result = grade(grader, tmp_path, ported)
    assert result["score"] < grader.assignment.pass_mark and result["checks"][0]["points"] == 15
    hidden_from_all = answer.replace("= -1e30f;", "= -INFINITY;")
    assert (
        grade(grader, tmp_path, hidden_from_all.replace("const bool is_seen = ", "const bool is_seen = true || "))[
            "score"
        ]
        < result["score"]
    ), "a maximum of -inf minus -inf is NaN"


@pytest.mark.parametrize(
    ("course", "hidden"), [("practice 1", "a"), ("practice 6", "b"), ("practice b", "c"), ("practice f", "d")]
)
def test_02_without_a_running_maximum_does_not_pass(course: str, hidden: str, machine: Machine, tmp_path: Path) -> None:
    """The mistake in the page's question: right for small scores, and only NaN for large ones."""
    grader = Grader(machine, read_assignment("02_online_softmax", course), hidden)
    answer = grader.assignment.reference_answer()
    without = answer.replace("fmaxf(new_max, score[j])", "0.0f")
    assert without != answer
    result = grade(grader, tmp_path, without)
    assert result["score"] < grader.assignment.pass_mark and result["checks"][0]["points"] == 10
    assert all("large scores" in sentence.partition(":")[0] for sentence in result["checks"][0]["lost"])
    assert grade(grader, tmp_path, answer)["score"] == 100


@pytest.mark.parametrize(
    ("name", "maximum", "cases"),
    [
        ("03_tiled", "fmaxf(new_max, S_rmem[row][key])", ["large scores"]),
        ("08_bug_hunt", "fmaxf(row_max, x[col])", ["softmax_rows, long rows", "softmax_rows, short rows"]),
        ("08_bug_hunt", "fmaxf(row_max, score)", ["attend"]),
        ("16_overlapped_softmax", "fmaxf(row_max[mma_m][half], group_max(S_max) * scale)", ["large scores"]),
    ],
)
def test_a_missing_maximum_is_wrong_in_every_type(
    name: str, maximum: str, cases: list[str], graders: dict, tmp_path: Path
) -> None:
    """Also in bfloat16 and float, in which a p of more than 65504 does not overflow."""
    grader = graders[name, COURSES[0]]
    answer = grader.assignment.reference_answer()
    assert answer.count(maximum) == 1
    result = grade(grader, tmp_path, answer.replace(maximum, "0.0f"))
    correct = next(check for check in result["checks"] if check["kind"] == "correct")
    all_cases = [launch.case["name"] for launch in grader.launches]
    right = sum(case not in cases for case in all_cases) / len(all_cases)
    assert correct["points"] == pytest.approx(correct["of"] * right, abs=0.1), correct["lost"]


@pytest.mark.parametrize("hidden", ["a", "b", "c"])
def test_a_lane_that_has_seen_nothing_is_tried_in_00(hidden: str, machine: Machine, tmp_path: Path) -> None:
    grader = Grader(machine, read_assignment("00_puzzles", COURSES[0]), hidden)
    answer = grader.assignment.reference_answer()
    careless = re.sub(r"\((l|other_l) > 0 \? (.*?) : 0\)", r"\2", answer)
    assert careless != answer
    result = grade(grader, tmp_path, careless)
    lost = [sentence for check in result["checks"] for sentence in check["lost"]]
    assert result["score"] < 100 and all(sentence.startswith("logsumexp, short rows") for sentence in lost)


def never_launched(assignment: Assignment) -> str:
    """The reference answer's kernels under names that are never launched, to be appended to another answer."""
    text = assignment.reference_answer().replace("flash_attention", "dead_code")
    text = re.sub(r"^#include.*$", "", text, flags=re.MULTILINE)
    return text.replace("namespace flash_ladder::submission", "namespace flash_ladder::dead")


def test_what_is_never_executed_gets_no_points_in_05(graders: dict, tmp_path: Path) -> None:
    """A wait for all groups, and a correct one that does not count: in a kernel that is not launched, in a comment of
    the assembly, in a branch whose condition never holds."""
    grader = graders["05_cp_async", COURSES[0]]
    answer = grader.assignment.reference_answer()
    right = "cp_async_wait<kStages - 2>();"
    assert answer.count(right) == 1
    stages = grader.assignment.values["stages"]
    for late in (
        "cp_async_wait<0>();",
        f'cp_async_wait<0>(); asm volatile("// cp.async.wait_group {stages - 2};");',
        f'cp_async_wait<0>(); asm volatile("/* cp.async.wait_group {stages - 2}; */");',
        f"cp_async_wait<0>(); if (args.seq_len_kv < 0) {right}",
    ):
        result = grade(grader, tmp_path, answer.replace(right, late) + never_launched(grader.assignment))
        assert result["score"] == 50 and result["checks"][-1]["points"] == 0, late


def test_conflicts_of_the_copy_of_O_alone_are_not_called_those_of_fragments_in_06(
    graders: dict, tmp_path: Path
) -> None:
    """A rotation instead of the XOR separates the rows of fragments, but not the chunks of adjacent rows."""
    grader = graders["06_swizzle", COURSES[1]]  # rows of more than four chunks
    answer = grader.assignment.reference_answer()
    rotated = re.sub(r"\(col / kChunk\) \^ \((.*)\);", r"(col / kChunk + \1) % Traits::kChunksPerRow;", answer)
    assert rotated != answer
    lost = [sentence for check in grade(grader, tmp_path, rotated)["checks"] for sentence in check["lost"]]
    (line,) = {int(line) for sentence in lost for line in re.findall(r"line (\d+)", sentence)}
    assert "O_smem[" in answer.splitlines()[line - 1] or "O_gmem[" in answer.splitlines()[line - 1]
    assert all("fragment" not in sentence for sentence in lost)


def test_what_is_never_launched_gets_no_points_in_09(graders: dict, tmp_path: Path) -> None:
    grader = graders["09_double_buffered_mma", COURSES[0]]
    starter = grader.assignment.starter()
    alone = grade(grader, tmp_path, starter)
    assert grade(grader, tmp_path, starter + never_launched(grader.assignment))["checks"] == alone["checks"]


def test_an_assignment_of_another_course_is_another(graders: dict) -> None:
    for name in NAMES:
        first, second = (graders[name, course].assignment for course in COURSES)
        assert first.values != second.values, f"{name}: choose other courses for this test"
        assert first.reference_answer() != second.reference_answer(), name


@pytest.mark.parametrize("name", NAMES)
def test_every_variation_can_be_written(name: str) -> None:
    for seed in range(40):
        assignment = read_assignment(name, f"practice {seed}")
        starter, answer = assignment.starter(), assignment.reference_answer()
        assert "// TODO" not in answer and "@" not in answer and starter != answer
        assert "// answer" not in starter + answer and "// starter" not in starter + answer


@pytest.mark.parametrize("name", NAMES)
def test_a_page_has_what_a_student_and_a_teacher_need(name: str) -> None:
    assignment = read_assignment(name)
    text = (FOLDER / f"{name}.md").read_text(encoding="utf-8").split("<!-- grader")[0]
    headings = re.findall(r"^## (.*)$", text, flags=re.MULTILINE)
    assert headings[:5] == ["Goal", "Reading", "What you get", "What is graded", "Before you write"], headings
    assert re.fullmatch(r"(A question|Questions) to answer in words", headings[5])
    assert headings[6] == "For the ambitious"
    words = name.partition("_")[2]
    assert f"--starter {words} --course" in text and f"--assignment {words} --course" in text
    assert "{graded}" in text and "{hints}" in text
    assert len(assignment.data["hints"]) >= 3


def test_courses_are_drawn_evenly_enough() -> None:
    """A list of a few values would give no variation if a seed hardly ever selected some of them."""
    found = {draw("06_swizzle", f"course {seed}", "head_dim") % 6 for seed in range(60)}
    assert found == set(range(6))
