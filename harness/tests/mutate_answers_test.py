"""scripts/mutate_answers.py: the set of mutants, some that the grader once gave all points, and the published table."""

from __future__ import annotations

import json
import os
import subprocess
import sys
from pathlib import Path

import mutate
import mutate_answers
import pytest
from ladder import ROOT

sys.path.insert(0, str(ROOT / "harness" / "grader"))
from assignment import names_of_assignments, read_assignment
from compiler import Machine

BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
NAMES = names_of_assignments()
SCORES = "kBlockKV; ++j) {\n#pragma unroll\n      for (int i = 0; i < kPerLane; ++i) score[j]"
# Changes of a line that kept all points before the grader's cases and checks took them into account.
GAPS = [
    ("00_puzzles", "col += 32", "col += 33"),
    ("02_online_softmax", "load_row(k[j], K_gmem + (key + j) * args.K.", "load_row(k[j], K_gmem + (key + j) * args.V."),
    ("02_online_softmax", "for (int j = 0; j < kBlockKV; ++j) new_max", "for (int j = 1; j < kBlockKV; ++j) new_max"),
    ("02_online_softmax", f"j < {SCORES}", f"j <= {SCORES}"),
    ("05_cp_async", "K_gmem + kv_row * args.K.row_stride", "K_gmem + kv_row * args.V.row_stride"),
    ("05_cp_async", "V_gmem + kv_row * args.V.row_stride", "V_gmem + kv_row * args.Q.row_stride"),
    ("05_cp_async", "Q_gmem, args.Q.row_stride", "Q_gmem, args.V.row_stride"),
]  # fmt: skip


@pytest.mark.parametrize("name", NAMES)
def test_there_are_sixty_mutants_of_each_answer(name: str) -> None:
    assignment = read_assignment(name, mutate_answers.COURSE)
    text, written = mutate_answers.answer_of(assignment)
    assert text == assignment.reference_answer()
    mutants = mutate_answers.mutants_of(assignment, text, written, 0)
    assert len(mutants) >= 60 and len({(one.line, one.column, one.new) for one in mutants}) == len(mutants)
    assert {mutant.line for mutant in mutants} <= written
    assert mutants == mutate_answers.mutants_of(assignment, text, written, 0), "the seed alone decides"


@pytest.mark.parametrize("name", NAMES)
def test_what_the_starter_contains_is_left_alone(name: str) -> None:
    """Lines outside of the student's part are the same in the starter."""
    assignment = read_assignment(name, mutate_answers.COURSE)
    text, written = mutate_answers.answer_of(assignment)
    given = set(assignment.starter().split("\n"))
    assert {line for number, line in enumerate(text.split("\n"), 1) if number not in written} <= given


@pytest.mark.parametrize(("name", "old", "new"), GAPS)
def test_a_change_that_once_kept_all_points_loses_some(name: str, old: str, new: str, tmp_path: Path) -> None:
    assignment = read_assignment(name, mutate_answers.COURSE)
    grader = mutate_answers.Grader(Machine.of_build(BUILD, isolated=False), assignment, mutate_answers.HIDDEN)
    text = assignment.reference_answer()
    assert text.count(old) == 1
    file = tmp_path / "answer.cu"
    file.write_text(text.replace(old, new), encoding="utf-8")
    result = grader.grade(file)
    assert result["status"] == "graded" and result["score"] < 98, result["checks"]


def test_equivalent_mutants_are_some_that_can_be_made() -> None:
    for entry in mutate_answers.equivalent():
        assignment = read_assignment(entry["assignment"], mutate_answers.COURSE)
        mutants = mutate_answers.mutants_of(assignment, *mutate_answers.answer_of(assignment), 0)
        fits = [mutant.new for mutant in mutants if mutant.old == entry["old"]]
        assert fits and set(mutate.changes_to(entry, fits[0])) <= set(fits), entry
        assert entry["reason"].endswith(".")


def test_the_summary_leaves_out_what_is_no_mistake() -> None:
    def mutant(outcome: str, points: float | None, new: str = "b") -> dict:
        return {"line": 1, "kind": "delete", "old": "wait();", "new": new, "outcome": outcome, "points": points}

    known = [{"assignment": "a", "old": "wait();", "new": "c", "reason": "Nothing waits."}]
    tried = [mutant("lowered", 40.0), mutant("lowered", 90.0), mutant("lowered", None), mutant("kept", 100.0),
             mutant("kept", 100.0, "c"), mutant("refused", None), mutant("same code", None)]  # fmt: skip
    row = mutate_answers.summary("a", tried, 60, known)
    assert row == {"mutants": 5, "lowered": 3, "fail": 2, "equivalent": 1, "kept": 1}


def test_the_published_table_has_every_assignment_and_no_gap() -> None:
    recorded = json.loads(mutate_answers.PUBLISHED.read_text(encoding="utf-8"))
    assert list(recorded["assignments"]) == NAMES
    for row in recorded["assignments"].values():
        assert row["mutants"] >= 60 and row["mutants"] == row["lowered"] + row["equivalent"] and row["kept"] == 0


def test_a_few_are_graded_and_kept(tmp_path: Path) -> None:
    output = tmp_path / "answers.json"
    command = [sys.executable, ROOT / "scripts" / "mutate_answers.py", "--build", BUILD, "--assignments", "swizzle",
               "--places", "2", "--output", output]  # fmt: skip
    first = subprocess.run(command, capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stdout + first.stderr
    kept = output.read_text(encoding="utf-8")
    tried = json.loads(kept)["assignments"]["06_swizzle"]["mutants"].values()
    assert sum(mutant["outcome"] == "lowered" for mutant in tried) == 2
    again = subprocess.run(command, capture_output=True, text=True, check=False)
    assert again.returncode == 0 and "→" not in again.stdout and output.read_text(encoding="utf-8") == kept
    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, check=False)
    assert other.returncode == 3 and "has --seed 0" in other.stderr


def test_bad_usage_is_one_message() -> None:
    for arguments, said in (
        (["--assignments", "99"], "there is no assignment '99'"),
        (["--jobs", "0"], "--jobs 0 is out"),
    ):
        done = subprocess.run([sys.executable, ROOT / "scripts" / "mutate_answers.py", *arguments], capture_output=True,
                              text=True, check=False)  # fmt: skip
        assert done.returncode == 2 and said in done.stderr
