"""Who has the answers of a course: the teacher, in a folder; students have what they count; everyone has those of
courses for practice."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest
from grading import BUILD, ROOT, SMALL, Grading

PACK = ROOT / "harness" / "grader" / "pack.py"
ANSWERS, PASSWORD = "FLASH_LADDER_ANSWERS", "FLASH_LADDER_PASSWORD"
TEACHERS = """key = '''
Each product is rounded once.
'''
[regions]
"the product" = '''
  if (i < n) y[i] = x[i] * @factor@;
'''
"""


class Course:
    """The grader with an assignment whose answers, but for those of practice courses, are in a folder apart."""

    def __init__(self, folder: Path) -> None:
        page = SMALL.replace("// answer", "// answer the product")
        page = page.replace("[starter]", "[practice]\nfactor = [2]\n[starter]")
        self.grading = Grading(folder)
        (self.grading.assignments / "00_small.md").write_text(page)
        self.answers = folder / "answers"
        self.answers.mkdir()
        (self.answers / "00_small.answers.toml").write_text(TEACHERS)
        self.has(self.answers)

    def has(self, answers: Path | None) -> None:
        """Which folder of answers, or of what they count, the grader finds."""
        self.grading.environment.pop(ANSWERS, None)
        if answers:
            self.grading.environment[ANSWERS] = str(answers)

    def pack(self, *arguments: str | Path, password: str = "") -> subprocess.CompletedProcess:
        given = ["--build", BUILD, "--assignments", self.grading.assignments, "--unsandboxed"]
        environment = self.grading.environment | ({PASSWORD: password} if password else {})
        command = [sys.executable, PACK, *given, "--sealed", self.grading.folder / "answers.sealed", *arguments]
        return subprocess.run(command, capture_output=True, text=True, env=environment, check=False)


@pytest.fixture
def course(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Course:
    for variable in (ANSWERS, PASSWORD):
        monkeypatch.delenv(variable, raising=False)
    return Course(tmp_path)


def test_everyone_has_the_answers_of_a_practice_course(course: Course) -> None:
    course.has(None)
    answer = course.grading.text("--reference", "practice 3")
    assert "y[i] = 2 * x[i];" in answer
    assert course.grading.grade(answer, "--course", "practice 3", "--unsandboxed")["score"] == 100


def test_the_teachers_answer_comes_from_the_folder(course: Course) -> None:
    answer = course.grading.text("--reference", "spring")
    assert "y[i] = x[i] * " in answer and "2 * x" not in answer
    assert course.grading.grade(answer, "--course", "spring", "--unsandboxed")["score"] == 100


def test_without_it_the_message_says_what_to_do(course: Course) -> None:
    course.has(None)
    starter = course.grading.text("--starter", "spring")
    assert "TODO" in starter
    for arguments in (["--reference", "small"], ["--grade", course.answers, "--assignment", "small", "--unsandboxed"]):
        done = course.grading.run(*arguments, "--course", "spring")
        assert done.returncode == 2 and "only the teacher of the course 'spring' has its answers" in done.stderr
        assert ANSWERS in done.stderr and "'practice'" in done.stderr


def test_students_grade_themselves_by_what_the_answers_count(course: Course) -> None:
    out = course.grading.folder / "pack"
    done = course.pack("spring", out)
    assert done.returncode == 0, done.stderr
    assert (out / "teacher" / "00_small.key.txt").read_text() == "Each product is rounded once.\n"
    answer = (out / "teacher" / "00_small.cu").read_text()
    given = {path.name for path in (out / "students").iterdir()}
    assert given == {"00_small.cu", "counters.json"}
    for path in (out / "students").iterdir():
        assert "y[i] = x[i] *" not in path.read_text() and "rounded" not in path.read_text()

    slow = answer.replace("const int i = blockIdx.x * blockDim.x + threadIdx.x;",
                          "const int j = blockIdx.x * blockDim.x + threadIdx.x, i = j / 4 + j % 4 * (n / 4 + 1);\n"
                          "  if (j / 4 > n / 4) return;")  # fmt: skip
    assert slow != answer
    here = ("--course", "spring", "--unsandboxed")
    for source in (answer, slow, (out / "students" / "00_small.cu").read_text()):
        course.has(course.answers)
        teachers = course.grading.grade(source, *here)
        course.has(out / "students")
        students = course.grading.grade(source, *here)
        assert students["checks"] == teachers["checks"] and students["score"] == teachers["score"]

    hidden = course.grading.seed("exam")
    graded = ("--grade", out / "students" / "00_small.cu", "--assignment", "small")
    done = course.grading.run(*graded, "--hidden", hidden, *here)
    assert done.returncode == 2 and "only the teacher" in done.stderr, "other sizes are counted otherwise"
    done = course.grading.run(*graded, "--course", "autumn", "--unsandboxed")
    assert done.returncode == 2 and "is for the course 'spring', and --course is 'autumn'" in done.stderr
    page = course.grading.assignments / "00_small.md"
    page.write_text(page.read_text().replace("n = [100, 300", "n = [200, 300"))
    done = course.grading.run(*graded, *here)
    assert done.returncode == 2 and "is for another revision of 00_small" in done.stderr

    done = course.pack("spring", out)
    assert done.returncode == 2 and "is not empty" in done.stderr


def test_a_starter_from_which_answers_could_be_read_is_handed_out(course: Course) -> None:
    page = course.grading.assignments / "00_small.md"
    page.write_text(page.read_text().replace("[starter]", "[starter]\nteachers = true"))
    secrets = "[vary]\nfault = [7]\n[starters]\n'the product' = 'y[i] = @fault@;'\n[regions]"
    (course.answers / "00_small.answers.toml").write_text(TEACHERS.replace("[regions]", secrets))
    out = course.grading.folder / "pack"
    done = course.pack("spring", out)
    assert done.returncode == 0, done.stderr
    starter = (out / "students" / "00_small.cu").read_text()
    assert "y[i] = 7;" in starter and "TODO" not in starter
    course.has(out / "students")
    assert course.grading.text("--starter", "spring") == starter
    assert course.grading.grade(starter, "--course", "spring", "--unsandboxed")["score"] == 0
    course.has(None)
    done = course.grading.run("--starter", "small", "--course", "spring")
    assert done.returncode == 2 and "only the teacher of the course 'spring' has its starter" in done.stderr
    assert "TODO" in course.grading.text("--starter", "practice")


def test_a_pack_is_for_a_course_with_answers_of_its_own(course: Course) -> None:
    done = course.pack("practice", course.grading.folder / "pack")
    assert done.returncode == 2 and "a course for practice" in done.stderr
    course.has(None)
    done = course.pack("spring", course.grading.folder / "pack")
    assert done.returncode == 2 and "only the teacher" in done.stderr


def test_the_answers_are_sealed_and_opened_with_a_password(course: Course) -> None:
    opened, sealed = course.grading.folder / "opened", course.grading.folder / "answers.sealed"
    done = course.pack("--seal", course.answers)
    assert done.returncode == 2 and PASSWORD in done.stderr
    done = course.pack("--seal", course.answers, password="four words or more")
    assert done.returncode == 0, done.stderr
    assert "product" not in sealed.read_text()
    done = course.pack("--open", opened, password="another")
    assert done.returncode == 2 and "cannot be opened with this password" in done.stderr and not opened.exists()
    done = course.pack("--open", opened, password="four words or more")
    assert done.returncode == 0, done.stderr
    assert (opened / "00_small.answers.toml").read_text() == TEACHERS
    done = course.pack("--seal", opened / "none", password="four words or more")
    assert done.returncode == 2 and "contains no file of answers" in done.stderr


def test_the_pages_contain_no_answers_of_courses() -> None:
    """Each assignment that differs between courses has its answers, and its key, in the sealed file alone."""
    sys.path.insert(0, str(ROOT / "harness" / "grader"))
    import assignment

    for name in assignment.names_of_assignments():
        one = assignment.read_assignment(name, "spring")
        if "practice" in one.data:
            text = (assignment.FOLDER / f"{name}.md").read_text(encoding="utf-8")
            assert "\nkey = " not in text
            if ANSWERS not in os.environ:
                with pytest.raises(assignment.AnswersMissing):
                    one.reference_answer()
            assert (assignment.FOLDER / "answers.sealed").is_file()
