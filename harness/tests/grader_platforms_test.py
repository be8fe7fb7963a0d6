"""Classes as Moodle and Canvas export them, and the tables that go back."""

import csv
import os
import sys
import time
import zipfile
from pathlib import Path

import pytest
from grading import ROOT, SMALL, Grading, why_not_isolated

sys.path.append(str(ROOT / "harness" / "grader"))
import gradebook
import handed_in

pytestmark = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())

RUBRIC = """
[[rubric]]
points = 4
text = "names a counter"
[[rubric]]
points = 6
text = "says why"
"""
ADA, BOB = "Ada Lovelace_1234567_assignsubmission_file", "Bob_7654321_assignsubmission_file"
MOODLE = """Identifier,Full name,Status,Grade,Maximum Grade,Last modified (grade),Feedback comments
Participant 1234567,Ada Lovelace,Submitted,-,50.00,-,
Participant 7654321,Bob,Submitted,-,50.00,-,
Participant 1,"Eve, who has handed in nothing",No submission,-,50.00,-,=1+1
"""
CANVAS = """Student,ID,SIS User ID,SIS Login ID,Section,Puzzles (11),Swizzle (12),Final Score
    Points Possible,,,,,10,200,(read only)
"Lovelace, Ada",501,u501,ada,A,9,,
"Builder, Bob",502,u502,bob,A,8,7,
"""


@pytest.fixture
def grading(tmp_path: Path) -> Grading:
    return Grading(tmp_path)


def half(grading: Grading) -> str:
    return grading.text("--reference").replace("if (i < n)", "if (i < n && n < 2000)")


def zipped(path: Path, files: dict[str, str], date: tuple[int, ...] = (2026, 5, 1, 17, 0, 0)) -> Path:
    with zipfile.ZipFile(path, "w") as packed:
        for name, text in files.items():
            packed.writestr(zipfile.ZipInfo(name, date), text)
    return path


def grade_all(grading: Grading, what: Path, *more: str | Path) -> tuple[dict[str, dict[str, str]], str]:
    """The grades by file, and what was printed."""
    out = grading.folder / "grades.csv"
    done = grading.run("--grade-dir", what, "--assignment", "small", "--out", out, *more)
    assert done.returncode == 0, done
    with open(out, newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}, done.stdout


def test_moodles_zip_and_worksheet(grading: Grading) -> None:
    exported = zipped(grading.folder / "class.zip", {
        f"{ADA}/project/src/a.cu": grading.text("--reference"), f"{ADA}/project/README.md": "Mine.",
        f"{ADA}/project/Makefile": "all:", f"{BOB}/b.cu": half(grading), f"__MACOSX/{BOB}/._b.cu": "",
    })  # fmt: skip
    worksheet = grading.folder / "worksheet.csv"
    worksheet.write_text("\ufeff" + MOODLE, encoding="utf-8")
    for _ in range(2):  # the second run may replace what the first has written
        grades, said = grade_all(grading, exported, "--gradebook", worksheet)
    assert {name: row["score"] for name, row in grades.items()} == {
        f"{ADA}/project/src/a.cu": "100", f"{BOB}/b.cu": "50"
    }  # fmt: skip
    assert f"Ignored: {ADA}/project/Makefile, {ADA}/project/README.md" in said
    wanted = MOODLE.replace("Ada Lovelace,Submitted,-", "Ada Lovelace,Submitted,50")
    wanted = wanted.replace("Bob,Submitted,-", "Bob,Submitted,25")
    assert (grading.folder / "grades.gradebook.csv").read_text() == wanted
    with zipfile.ZipFile(grading.folder / "grades.feedback.zip") as packed:
        assert sorted(packed.namelist()) == [f"{ADA}_/a.feedback.txt", f"{BOB}_/b.feedback.txt"]
        assert b" 50.0 of 100  not passed" in packed.read(f"{BOB}_/b.feedback.txt")
    assert worksheet.read_text(encoding="utf-8-sig") == MOODLE and not list(grading.temporary.iterdir())


def test_canvas_zip_and_gradebook(grading: Grading) -> None:
    exported = zipped(grading.folder / "class.zip", {
        "lovelaceada_LATE_501_9001_swizzle.cu": grading.text("--reference"),
        "builderbob_502_9002_one.cu": half(grading), "builderbob_502_9003_two-1.cu": half(grading),
        "evemallory_777_9004_e.cu": "no C++", "builderbob_502_9005_Makefile": "all:",
    })  # fmt: skip
    book = grading.folder / "book.csv"
    book.write_text(CANVAS)
    grades, said = grade_all(grading, exported, "--gradebook", book, "--column", "Swizzle")
    assert {name: row["late"] for name, row in grades.items() if row["late"]} == {
        "lovelaceada_LATE_501_9001_swizzle.cu": "yes"
    }
    filled = (grading.folder / "grades.gradebook.csv").read_text()
    assert filled == CANVAS.replace("ada,A,9,,", "ada,A,9,200,"), "Bob has two files, so his grade stays"
    assert "several files of one student: builderbob_502_9002_one.cu, builderbob_502_9003_two-1.cu" in said
    assert "does not list the student: evemallory_777_9004_e.cu" in said
    with zipfile.ZipFile(grading.folder / "grades.feedback.zip") as packed:
        assert packed.namelist() == ["builderbob_502_9002_one.feedback.txt", "builderbob_502_9003_two-1.feedback.txt",
                                     "evemallory_777_9004_e.feedback.txt",
                                     "lovelaceada_LATE_501_9001_swizzle.feedback.txt"]  # fmt: skip


@pytest.mark.parametrize(
    ("table", "column", "said"),
    [
        ("", [], "is empty"),
        ("a,b\n", [], "neither the columns Identifier and Grade"),
        (CANVAS, [], "0 columns that begin with ''"),
        (CANVAS, ["--column", "Tiled"], "0 columns that begin with 'Tiled'"),
        (CANVAS, ["--column", "S"], "5 columns that begin with 'S'"),
    ],
)
def test_a_table_that_is_no_gradebook(grading: Grading, table: str, column: list[str], said: str) -> None:
    book, folder = grading.folder / "book.csv", grading.folder / "in"
    book.write_text(table)
    folder.mkdir()
    (folder / "a.cu").write_text("no C++")
    out = grading.folder / "grades.csv"
    arguments = ("--grade-dir", folder, "--assignment", "small", "--out", out, "--gradebook", book, *column)
    done = grading.run(*arguments)
    assert done.returncode == 2 and said in done.stderr and not out.exists()


def test_late_files(grading: Grading) -> None:
    exported = zipped(grading.folder / "class.zip", {"a.cu": "no C++"}, (2026, 5, 1, 20, 30, 0))
    for due, late in (("2026-05-01T18:00", "2.5 h"), ("2026-05-02", "no")):
        grades, said = grade_all(grading, exported, "--due", due)
        assert grades["a.cu"]["late"] == late and ("Late: 1 of 1" in said) == (late != "no")
    folder = grading.folder / "in"
    folder.mkdir()
    (folder / "a.cu").write_text("no C++")
    there = time.mktime((2026, 5, 1, 18, 0, 0, 0, 0, -1))
    os.utime(folder / "a.cu", (there, there))
    assert grade_all(grading, folder, "--due", "2026-05-01T18:00")[0]["a.cu"]["late"] == "no"
    done = grading.run("--grade-dir", folder, "--assignment", "small", "--out", "x.csv", "--due", "tomorrow")
    assert done.returncode == 2 and "'tomorrow' is no time" in done.stderr


def test_a_pass_mark_for_a_run(grading: Grading) -> None:
    result = grading.grade(half(grading), "--pass-mark", "50")
    assert result["passed"] and result["pass_mark"] == 50 and not result["hints"]
    assert not grading.grade(half(grading))["passed"]
    folder = grading.folder / "in"
    folder.mkdir()
    (folder / "half.cu").write_text(half(grading))
    assert grade_all(grading, folder)[0]["half.cu"]["passed"] == "no"
    assert grade_all(grading, folder, "--pass-mark", "50")[0]["half.cu"]["passed"] == "yes"


def test_marks_of_the_written_question(grading: Grading) -> None:
    (grading.assignments / "00_small.md").write_text(SMALL.replace("[[case]]", RUBRIC + "[[case]]", 1))
    exported = zipped(grading.folder / "c.zip", {f"{ADA}/a.cu": grading.text("--reference"), f"{BOB}/=b.cu": "no C++"})
    sheet, book = grading.folder / "written.csv", grading.folder / "book.csv"
    book.write_text(MOODLE)
    _, said = grade_all(grading, exported, "--written", sheet)
    assert sheet.read_text().splitlines() == [
        "file,names a counter (0 to 4),says why (0 to 6)", f"{ADA}/a.cu,,", f"{BOB}/=b.cu,,"
    ]  # fmt: skip
    assert "is an empty sheet" in said
    sheet.write_text(sheet.read_text().replace("a.cu,,", "a.cu,3,4.5"))
    filled = sheet.read_text()
    grades, said = grade_all(grading, exported, "--written", sheet, "--gradebook", book)
    assert (grades[f"{ADA}/a.cu"]["written"], grades[f"{ADA}/a.cu"]["total"]) == ("7.5", "107.5")
    assert grades[f"{BOB}/=b.cu"]["total"] == "" and f"Not marked in {sheet}: {BOB}/=b.cu" in said
    assert sheet.read_text() == filled, "a teacher's work stays"
    # 107.5 of 110 points, of which the worksheet gives 50.
    assert "Ada Lovelace,Submitted,48.86,50.00" in (grading.folder / "grades.gradebook.csv").read_text()
    sheet.write_text(filled.replace("3,4.5", "5,4.5"))
    arguments = ("--grade-dir", exported, "--assignment", "small", "--out", grading.folder / "grades.csv")
    done = grading.run(*arguments, "--written", sheet)
    assert done.returncode == 2 and "'5' for 'names a counter'; it takes a number from 0 to 4" in done.stderr


@pytest.mark.parametrize("name", ["../out.cu", "/out.cu", "a/../../out.cu", "..\\out.cu"])
def test_a_zip_does_not_write_outside_of_its_folder(grading: Grading, name: str) -> None:
    exported = zipped(grading.folder / "c.zip", {name: "x"})
    done = grading.run("--grade-dir", exported, "--assignment", "small", "--out", grading.folder / "grades.csv")
    assert done.returncode == 2 and "lies outside" in done.stderr and not list(grading.folder.rglob("out.cu"))


def test_zips_that_cannot_be_unpacked_and_one_that_is_huge_inside(grading: Grading) -> None:
    broken = grading.folder / "broken.zip"
    broken.write_text("no zip")
    done = grading.run("--grade-dir", broken, "--assignment", "small", "--out", grading.folder / "grades.csv")
    assert done.returncode == 2 and "cannot be unpacked" in done.stderr
    huge = grading.folder / "huge.zip"
    with zipfile.ZipFile(huge, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.writestr("a.cu", b"/" * (64 << 20))
    handed_in.unpack(huge, grading.folder / "in")
    assert (grading.folder / "in" / "a.cu").stat().st_size <= 1 << 20


def test_whose_a_file_is() -> None:
    def student(name: str) -> tuple[str, str] | None:
        found = handed_in.student_of(Path("in") / name, Path("in"))
        return found and (found.platform, found.id)

    assert student("Ada_1_assignsubmission_file_/a.cu") == ("Moodle", "1"), "before Moodle 4.1"
    assert student("Ada_1_assignsubmission_file_a.cu") == ("Moodle", "1"), "without folders"
    assert student("doe_2_3_a.cu") == ("Canvas", "2")
    assert student("swizzle_06.cu") is None and student("a/doe_2_3_a.cu") is None
    assert gradebook.as_number("-") is None
