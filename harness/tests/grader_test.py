"""Points, starters, reports and whole classes."""

import csv
import ctypes
import json
import os
import re
import shutil
import signal
import subprocess
import sys
import threading
import time
from pathlib import Path
from xml.etree import ElementTree

import pytest
from grader_workflow import GitHub
from grading import BUILD, GRADE, ROOT, SMALL, Grading, why_not_isolated
from schemas import validate_grade

sys.path.append(str(ROOT / "harness" / "grader"))
import assignment
import compiler
import ladder
import launches
import report
import similarity

pytestmark = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())


@pytest.fixture
def grading(tmp_path: Path) -> Grading:
    return Grading(tmp_path)


def with_body(grading: Grading, body: str) -> str:
    """The starter with this text in its only gap."""
    return re.sub(r" *// TODO.*", lambda _: body, grading.text("--starter"))


# ---- Points ----


def test_all_points_and_none(grading: Grading) -> None:
    result = grading.grade(grading.text("--reference"))
    assert (
        result["score"] == 100
        and result["passed"]
        and not result["hints"]
        and "100.0 of 100  passed" in result["shown"]
    )
    assert [case["name"] for case in result["cases"]] == ["short", "long"]
    assert all(case["counters"]["global_load_requests"] > 0 for case in result["cases"])
    result = grading.grade(grading.text("--starter"))
    assert result["score"] == 0 and not result["passed"] and result["hints"] == ["Look at the index."]
    assert "y[0], was never written" in result["checks"][0]["lost"][0]


def test_a_part_of_the_points(grading: Grading) -> None:
    factor = re.search(r"(\d+) \* x", grading.text("--reference"))[1]
    # Right, but every lane reads a different sector.
    spread = f"  volatile float unused = x[i * 8 % n]; if (i < n) y[i] = {factor} * x[i];"
    result = grading.grade(with_body(grading, spread))
    output, findings, sectors = result["checks"]
    assert (output["points"], findings["points"]) == (60, 20) and 0 <= sectors["points"] < 20
    assert re.search(r"sectors .* 1 .* \(line \d+: \d+ .* \d+ ", sectors["lost"][0])
    # Right in one of two cases.
    result = grading.grade(with_body(grading, f"  if (i < n && n < 2000) y[i] = {factor} * x[i];"))
    assert [check["points"] for check in result["checks"]] == [30, 10, 10]
    assert result["checks"][0]["lost"][0].startswith("long: ")
    assert [lost.partition(",")[0] for lost in result["checks"][2]["lost"]] == ["long: not counted"]


def test_a_factor_lowers_the_points_of_a_counter(grading: Grading) -> None:
    page = grading.assignments / "00_small.md"
    factor = 'full = 1\ntimes = "1.25 - worst.global_load / 4"\ntimes_lost = "One line reads more."\n'
    page.write_text(page.read_text().replace("full = 1\n", factor))
    reference = grading.text("--reference")
    assert grading.grade(reference)["score"] == 100
    # Every second element, in a line of its own: twice the sectors there.
    spread = re.search(r"(\d+) \* x", reference)[1]
    body = f"  if (i >= n) return;\n  volatile float unused = x[i * 2 % n];\n  y[i] = {spread} * x[i];"
    sectors = grading.grade(with_body(grading, body))["checks"][2]
    assert 0 < sectors["points"] < 15 and sectors["lost"][0].endswith(") One line reads more.")


def test_counters_give_nothing_where_nothing_is_done(grading: Grading) -> None:
    """No traffic does not count as good traffic."""
    assert grading.grade("__global__ void scaled(const float* x, float* y, int n) {}")["score"] == 0


def test_a_finding_costs_though_the_output_is_right(grading: Grading) -> None:
    race = "  __shared__ float s[2]; s[threadIdx.x % 2] = n; volatile float* v = s; (void)v[0];\n"
    result = grading.grade(with_body(grading, race + re.search(r".*\* x\[i\];", grading.text("--reference"))[0]))
    assert [check["points"] for check in result["checks"][:2]] == [60, 0]
    assert "race in line" in result["checks"][1]["lost"][0]


def test_the_same_file_gets_the_same_report(grading: Grading) -> None:
    source = with_body(grading, "  if (i < n) y[i] = x[i * 7 % n];")
    first, second = (grading.grade(source, "--hidden", grading.seed("h")) for _ in range(2))
    assert first == second
    assert first["hidden"] and "small, with a hidden seed\n" in first["shown"]
    assert not grading.grade(source)["hidden"]
    grading.environment["FLASH_LADDER_HIDDEN"] = "h"
    assert grading.grade(source) == first, "the variable takes the same seed"


def test_a_hidden_seed_that_is_not_there(grading: Grading, tmp_path: Path) -> None:
    empty = tmp_path / "empty.txt"
    empty.write_text("\n")
    (tmp_path / "binary.txt").write_bytes(b"\xff")
    for file, said in (
        ("no_such_file.txt", "--hidden no_such_file.txt: No such file or directory"),
        (tmp_path, "Is a directory"),
        (tmp_path / "binary.txt", "it is not UTF-8"),
        (empty, f"--hidden {empty} is empty"),
    ):
        done = grading.run("--grade", "x.cu", "--assignment", "small", "--hidden", file)
        assert done.returncode == 2 and said in done.stderr and len(done.stderr.splitlines()) == 1
    grading.environment["FLASH_LADDER_HIDDEN"] = ""
    done = grading.run("--grade", "x.cu", "--assignment", "small")
    assert done.returncode == 2 and "FLASH_LADDER_HIDDEN is empty" in done.stderr


def test_seeds_vary_what_is_asked_and_what_is_tried(grading: Grading) -> None:
    starters = {grading.text("--starter", f"course {i}") for i in range(8)}
    assert len(starters) > 2
    answer = grading.text("--reference", "course 1")
    other = next(f"course {i}" for i in range(2, 20) if grading.text("--reference", f"course {i}") != answer)
    assert grading.grade(answer, "--course", "course 1")["score"] == 100
    assert not grading.grade(answer, "--course", other)["passed"], "the answer of another course"
    given = assignment.read_assignment("small", "", grading.assignments)
    shapes = {
        launches.make_launch(given, given.cases()[0], hidden, given.functions()).names["n"] for hidden in "abcdefgh"
    }
    assert len(shapes) > 2


def test_usage(grading: Grading) -> None:
    for arguments, said in (
        (["--grade", "x.cu"], "--assignment"),
        (["--grade", "x.cu", "--assignment", "large"], "there is no assignment 'large'; there are 00_small"),
        (["--grade", "no_such_file.cu", "--assignment", "small"], "there is no such file"),
        (["--grade-dir", grading.folder, "--assignment", "small"], "needs --out"),
        (["--grade-dir", grading.home, "--assignment", "small", "--out", "x.csv"], "nothing in it to grade"),
        (["--grade-dir", "no_such_folder", "--assignment", "small", "--out", "x.csv"], "there is no such folder"),
        (["--grade-dir", grading.home, "--assignment", "small", "--jobs", "0"], "'0' is not a number"),
        (["--grade", "x.cu", "--starter", "small"], "not allowed with argument"),
        (["--grade", "", "--assignment", "small"], "--grade: it is empty"),
        (["--starter", ""], "--starter: it is empty"),
        (["--grade", "x.cu", "--assignment", "small", "--hidden", ""], "--hidden: it is empty"),
        (
            ["--grade", "x.cu", "--assignment", "small", "--out", "x.csv"],
            "--out cannot be combined with --grade, ",
        ),
        (["--grade", "x.cu", "--assignment", "small", "--jobs", "2"], "--jobs .* --grade"),
        (
            ["--grade-dir", grading.home, "--assignment", "small", "--out", "x.csv", "--gradescope", "x.json"],
            "--gradescope .* --grade-dir",
        ),
        (
            [
                "--grade-dir",
                grading.home,
                "--assignment",
                "small",
                "--out",
                "x.csv",
                "--share",
                "0/2",
                "--junit",
                "x.xml",
            ],
            "--share only grades",
        ),
        (["--starter", "small", "--assignment", "small"], "--assignment .* --starter"),
        (["--starter", "small", "--report", "x.json"], "--report .* --starter"),
        (["--reference", "small", "--with-gpu"], "--with-gpu .* --reference"),
        (["--grade", "x.cu", "--asignment", "small"], "unrecognized arguments: --asignment"),
    ):
        done = grading.run(*arguments)
        assert done.returncode == 2 and re.search(said, done.stderr) and len(done.stderr.splitlines()) == 1


def test_a_starter_does_not_take_the_place_of_somebodys_work(grading: Grading) -> None:
    mine = grading.folder / "mine.cu"
    for _ in range(2):
        assert grading.run("--starter", "small", "--out", mine).returncode == 0
    mine.write_text(mine.read_text() + "// an hour's work\n")
    done = grading.run("--starter", "small", "--out", mine)
    assert done.returncode == 2 and "this file already exists" in done.stderr and "hour" in mine.read_text()


def test_why_a_file_does_not_compile_is_said_once(grading: Grading) -> None:
    shown = grading.grade(with_body(grading, "  if (i < n) y[i] = x[i]"))["shown"]
    assert shown.count('expected a ";"') == 1 and "0 points: it does not compile: submission.cu(" in shown


@pytest.mark.parametrize("course", ["Spring26", "", "spring 26"])
def test_a_file_of_another_course_is_not_graded(grading: Grading, course: str) -> None:
    answer = grading.text("--reference", "spring26")
    result = grading.grade(answer, *(["--course", course] if course else []))
    assert result["status"] == "not graded" and result["score"] is None
    assert "says 'spring26'" in result["message"] and "--course 'spring26'" in result["message"]
    assert grading.grade(answer, "--course", "spring26")["score"] == 100


@pytest.mark.parametrize("course", ["ends in \\", 'a "b"', "  two\nlines ", "ü"])
def test_a_starter_carries_any_name_of_a_course(grading: Grading, course: str) -> None:
    assert grading.grade(grading.text("--reference", course), "--course", course)["score"] == 100


def test_which_assignments_fall_to_the_answers_of_another_course(grading: Grading) -> None:
    factors: dict[int, str] = {}
    for course in "abcdefghijklmnop":
        factor = assignment.read_assignment("small", course, grading.assignments).values["factor"]
        if factor in factors:
            twins = (factors[factor], course)
        factors.setdefault(factor, course)
    done = grading.run("--compare-courses", *twins)
    assert done.returncode == 1 and "100.0 of 100  00_small  passes, the same answer" in done.stdout, done
    done = grading.run("--compare-courses", factors[2], factors[13])
    assert done.returncode == 0 and " 0.0 of 100  00_small  does not pass\n" in done.stdout, done
    done = grading.run("--compare-courses", "a", "a")
    assert done.returncode == 2 and "takes the names of two courses" in done.stderr


def test_a_course_that_was_forgotten_is_said(grading: Grading) -> None:
    starter = grading.text("--starter", "c").split("\n", 1)[1]
    assert "graded without --course" in grading.grade(starter)["shown"]
    assert "graded without --course" not in grading.grade(starter, "--course", "c")["shown"]
    assert "graded without --course" not in grading.grade(grading.text("--reference"))["shown"]


@pytest.mark.parametrize("change, said", [
    (("points = 60", "points = 50"), "add up to 90"),
    (('kind = "findings"', 'kind = "style"'), "kind 'style'"),
    (("factor = [2", "factor = [2 3"), "is not valid TOML"),
    (("pass_mark = 60", ""), "no pass_mark"),
    (("times(factor, x)", "tims(factor, x)"), "'tims(factor, x)' has no value"),
    (("  // end\n", ""), 'has no "// end"'),
    (('"x", "y", "n"', '"x", "y", "m"'), "the argument 'm' is unknown"),
    (("\nlost = ", "\nlots = "), "the check 'sectors' has 'lots'"),
    (("full = 1\n", ""), "the check 'sectors' has no full"),
    (("{value:.2f}", "{values}"), "takes {value}, {full} and {none}"),
    (('where = "global_load"', 'where = "loads"'), "has where = 'loads'; there are shared_load"),
    (("needs_lost", "# needs_lost"), "has needs, but no needs_lost"),
    (("full = 1\n", 'full = 1\ntimes = "0.5"\n'), "has times, but no times_lost"),
    (("block = 128", ""), "the case 'short' has no block"),
    (('type = "f32", count', 'type = "f32", size'), "the buffer x of the case 'short' has 'size'"),
    (("sizes = { n = [100", 'types = ["fp8"]\nsizes = { n = [100'), "the case 'short' has the type 'fp8'"),
    (("def times(", "def times"), "`python` does not run: SyntaxError"),
    (("[starter]\n", '[starter]\nfrom = "06_swizzle"\n'), "either from or source"),
    (("pass_mark = 60", 'pass_mark = "60"'), "comment has pass_mark = '60', "),
    (("pass_mark = 60", "pass_mark = 160"), "pass_mark = 160, "),
    (("pass_mark = 60", "pass_mark = true"), "pass_mark = True, "),
    (("points = 60", 'points = "60"'), "the check 'output' has points = '60', "),
    (("points = 60", "points = -60"), "the check 'output' has points = -60, "),
    (("full = 1\n", "full = 3\n"), "00_small.md: the check 'sectors': full and none are both 3"),
    (("full = 1\n", 'full = "4 - 1"\n'), "00_small: the check 'sectors': full and none are both 3"),
    (('value = "global_load_sectors', 'value = "global_load_sector'), "the check 'sectors': the expression"),
    (("factor = [2, 3, 5, 7, 11, 13]", "factor = []"), "[vary] has factor = [], "),
    (("factor = [2, 3, 5, 7, 11, 13]", 'factor = "facto"'), "00_small.md: [vary] factor: the expression 'facto'"),
    (("n = [100, 300", "m = [], n = [100, 300"), "sizes of the case 'short' has m = [], "),
    (("kernel = ", 'types = "fp16"\nkernel = '), "[launch] has types = 'fp16', "),
    (("[launch]\n", "[launch]\ntypes = []\n"), "[launch] has types = [], "),
    (('kernel = "scaled"', "kernel = 5"), "[launch] has kernel = 5, "),
    (('hints = ["Look at the index."]', 'hints = "Look"'), "hints = 'Look', "),
    (("(n + 127) // 128", "batchx"), "00_small: the case 'short': the expression 'batchx' "),
    (('"x", "y", "n"', '"x", "y", "arg"'), "00_small: the case 'short': the argument 'arg' "),
    (('count = "n", values', 'count = "[n]", values'), "00_small: the case 'short': TypeError"),
    (("[starter]\n", "[starter]\nreplace = { find = 'a', with = 'b' }\n"), "its header needs double brackets"),
])  # fmt: skip
def test_a_mistake_in_an_assignment_is_said(grading: Grading, change: tuple[str, str], said: str) -> None:
    assert change[0] in SMALL
    path = grading.folder / "any.cu"
    path.write_text("__global__ void scaled(const float* x, float* y, int n) { y[0] = x[0] * n; }")
    if change[0] in ("full = 1\n", 'value = "global_load_sectors'):
        path.write_text(grading.text("--reference"))
    (grading.assignments / "00_small.md").write_text(SMALL.replace(*change))
    done = grading.run("--grade", path, "--assignment", "small")
    if done.returncode == 1:  # messages that concern only the starter
        done = grading.run("--starter", "small")
    assert done.returncode == 2 and said in done.stderr, done
    assert len(done.stderr.splitlines()) == 1


def test_a_fault_of_the_grader_is_no_grade(grading: Grading) -> None:
    (grading.assignments / "00_small.md").write_bytes(b"\xff")
    done = grading.run("--starter", "small")
    assert done.returncode == 3 and "harness: the grader failed" in done.stderr and "UnicodeDecodeError" in done.stderr
    assert len(done.stderr.splitlines()) == 1


def broken_build(grading: Grading, **changes: str) -> Path:
    """A copy of the build in which some facts are changed."""
    build = grading.folder / "build"
    build.mkdir(exist_ok=True)
    known = json.loads((BUILD / "grader.json").read_text(encoding="utf-8")) | changes
    (build / "grader.json").write_text(json.dumps(known), encoding="utf-8")
    return build


def test_a_grader_that_cannot_be_run_is_one_message(grading: Grading) -> None:
    source = grading.folder / "a.cu"
    source.write_text(grading.text("--reference"))
    plain, text = grading.folder / "plain", grading.folder / "text"
    plain.write_text("")
    text.write_text("this is no program")
    text.chmod(0o755)

    def refused(said: str, build: Path) -> None:
        done = grading.run("--build", build, "--grade", source, "--assignment", "small")
        assert (done.returncode, done.stdout) == (3, "") and said in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and "scripts/setup --slim harness-grader" in done.stderr

    refused("has no grader", grading.folder)
    refused("plain may not be executed", broken_build(grading, grader=str(plain)))
    refused("nowhere is missing", broken_build(grading, grader="/nowhere"))
    refused("text does not run", broken_build(grading, grader=str(text)))
    refused("nowhere/nvcc is missing", broken_build(grading, nvcc="/nowhere/nvcc"))
    (grading.folder / "build" / "grader.json").write_text("{")
    refused("damaged", grading.folder / "build")


def test_a_compiler_that_does_not_work_costs_nobody_points(grading: Grading) -> None:
    nvcc = grading.folder / "nvcc"
    nvcc.write_text("#!/bin/sh\necho 'No space left on device' >&2\nexit 1\n")
    nvcc.chmod(0o755)
    build = broken_build(grading, nvcc=str(nvcc))
    result = grading.grade("__global__ void scaled() {}", "--build", str(build))
    assert result["score"] is None and "not graded: the compiler does not work" in result["message"]
    (grading.home / "a.cu").write_text("__global__ void scaled() {}")
    out = grading.folder / "grades.csv"
    done = grading.run("--grade-dir", grading.home, "--assignment", "small", "--out", out, "--build", build)
    assert done.returncode == 3 and rows(out)["a.cu"]["status"] == "not graded", "as --grade says it"


NO_FILE = "cicc: IO error: No such file or directory"
NO_TEMPORARY = 'Catastrophic error: cannot open source file "/tmp/tmpxft_0001_submission.cudafe1.cpp"'


@pytest.mark.parametrize("trouble", [NO_FILE, NO_TEMPORARY])
def test_a_compiler_that_has_failed_once_is_asked_again(grading: Grading, trouble: str) -> None:
    nvcc = failing_compiler(
        grading, f"[ -e {grading.folder}/failed ] || {{ touch {grading.folder}/failed; FAIL; }}", trouble
    )
    result = grading.grade(grading.text("--reference"), "--unsandboxed", "--build", str(nvcc))
    assert result["score"] == 100


@pytest.mark.parametrize("trouble", [NO_FILE, NO_TEMPORARY])
def test_a_compiler_that_fails_for_one_file_alone_costs_no_points(grading: Grading, trouble: str) -> None:
    """A small file compiles, so the compiler works; but its message is not about this file."""
    build = failing_compiler(grading, "if grep -q scaled submission.cu; then FAIL; fi", trouble)
    result = grading.grade(grading.text("--reference"), "--unsandboxed", "--build", str(build))
    assert result["score"] is None and "the compiler failed twice" in result["message"]
    assert trouble.partition(":")[0] in result["message"]


def test_a_file_that_the_compiler_always_dies_of_gets_no_points(grading: Grading) -> None:
    """Fails as if it exceeded its memory: without naming a line, but in the same way each time."""
    build = failing_compiler(grading, "if grep -q scaled submission.cu; then FAIL; fi", "")
    result = grading.grade(grading.text("--reference"), "--unsandboxed", "--build", str(build))
    assert result["score"] == 0 and "no error message" in result["message"]


@pytest.mark.parametrize(
    "source",
    [
        "#error no\n",
        "#include <nowhere.h>\n",
        '#line 1 "other.cu"\nno C++;\n',
        "template <class T> void f() { T::x; }\nauto g = f<int>;",
    ],
)
def test_a_students_mistake_is_no_trouble_of_the_compilers(grading: Grading, source: str) -> None:
    result = grading.grade(source)
    assert result["score"] == 0 and "it does not compile" in result["message"]


def failing_compiler(grading: Grading, when: str, message: str) -> Path:
    """A build whose nvcc prints this and ends at FAIL."""
    known = json.loads((BUILD / "grader.json").read_text(encoding="utf-8"))
    nvcc = grading.folder / "nvcc"
    fail = f"echo '{message}' >&2; exit 1"
    nvcc.write_text(f'#!/bin/sh\n{when.replace("FAIL", fail)}\nexec {known["nvcc"]} "$@"\n')
    nvcc.chmod(0o755)
    return broken_build(grading, nvcc=str(nvcc))


@pytest.mark.parametrize("option", ["--report", "--junit", "--out"])
def test_what_cannot_be_written_is_said_before_any_work(grading: Grading, option: str) -> None:
    source = grading.folder / "in" / "a.cu"
    source.parent.mkdir()
    source.write_text("no C++")
    loop = grading.folder / "loop"
    loop.symlink_to(loop)
    arguments = ["--assignment", "small", "--build", "nowhere"]  # the message must come before that failure
    arguments += ["--grade-dir", source.parent] if option == "--out" else ["--grade", source]
    folder = grading.folder
    for path, said in (("", "it is empty"), (".", f"{option} . cannot be written: Is a directory"),
                       (folder, f"{option} {folder} cannot be written: Is a directory"),
                       (source / "file", "Not a directory"), (loop, "Too many levels of symbolic links")):  # fmt: skip
        done = grading.run(*arguments, option, path)
        assert done.returncode == 2 and said in done.stderr and option in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1 and not done.stdout
    assert not list(grading.folder.rglob("*.part"))


def test_links_stay_and_pipes_are_written_into(grading: Grading) -> None:
    target, link, pipe = (grading.folder / name for name in ("target", "link", "pipe"))
    for _ in range(2):  # a link that leads nowhere, and then to a file
        link.symlink_to(target.name)
        assert grading.run("--starter", "small", "--out", link).returncode == 0
        assert link.is_symlink() and target.read_text() == grading.text("--starter")
        link.unlink()
    os.mkfifo(pipe)
    reader = subprocess.Popen(["cat", pipe], stdout=subprocess.PIPE, text=True)
    assert grading.run("--starter", "small", "--out", pipe, timeout=60).returncode == 0
    assert reader.communicate(timeout=60)[0] == grading.text("--starter") and pipe.is_fifo()
    done = grading.run("--grade-dir", grading.home, "--assignment", "small", "--out", pipe)
    assert done.returncode == 2 and "is not a regular file" in done.stderr


def test_what_is_written_takes_the_place_of_nothing_else(grading: Grading) -> None:
    folder, mine = grading.folder / "in", grading.folder / "in" / "mine.cu"
    (folder / "kim.results").mkdir(parents=True)
    texts = {mine: "no C++", folder / "empty.cu": "", folder / "notes.txt": "notes", folder / "kim.results/a.cu": "//"}
    for path, text in texts.items():
        path.write_text(text)
    link = grading.folder / "link.csv"
    link.symlink_to(mine)
    a, b = grading.folder / "a", grading.folder / "b"
    one, whole = ["--grade", mine, "--assignment", "small"], ["--grade-dir", folder, "--assignment", "small"]
    for arguments, said in (
        ([*one, "--report", mine], f"--grade {mine} and --report {mine} "),
        (["--grade", folder / "empty.cu", *one[2:], "--junit", folder / "../in/empty.cu"], "/in/../in/empty.cu "),
        ([*one, "--report", folder / "notes.txt"], f"--report {folder / 'notes.txt'}: it already exists"),
        ([*one, "--report", a, "--junit", a], f"--report {a} and --junit {a} would replace each other"),
        ([*one, "--report", a, "--junit", a / "b"], f"--report {a} and --junit {a / 'b'} "),
        ([*whole, "--out", mine], "was not written by the grader"),
        ([*whole, "--out", link], f"--out {link}: it already exists"),
        ([*whole, "--out", folder / "empty.cu"], f"--out {folder / 'empty.cu'}: it already exists"),
        ([*whole, "--out", folder / "kim"], "kim.results: it already exists"),
        ([*whole, "--out", a, "--report", a], f"--out {a} and --report {a} "),
        ([*whole, "--out", a, "--report", f"{a}.similar.csv"], f"the list of equal files of --out, {a}.similar.csv"),
        ([*whole, "--out", a, "--junit", f"{a}.results"], f"--junit {a}.results and the results "),
    ):
        done = grading.run(*arguments, "--build", "nowhere")  # the message must come before that failure
        assert done.returncode == 2 and said in done.stderr, done.stderr
        assert len(done.stderr.splitlines()) == 1
    assert {path: path.read_text() for path in texts} == texts and link.is_symlink()
    # The grader may overwrite its own output and empty files, and may write through a link whose target does not exist.
    b.symlink_to("nowhere")
    (folder / "notes.txt").write_text("")
    for _ in range(2):
        assert grading.run(*one, "--report", a, "--junit", b, "--gradescope", folder / "notes.txt").returncode == 1
    for _ in range(2):
        assert grading.run(*whole, "--out", folder / "g", "--report", a, "--junit", b).returncode == 0
    os.mkfifo(pipe := grading.folder / "pipe")
    with open(os.open(pipe, os.O_RDWR), "rb", buffering=0) as reader:
        assert grading.run(*one, "--report", pipe, "--junit", pipe, timeout=60).returncode == 1
        assert reader.read(1 << 20).endswith(b"</testsuites>\n"), "a pipe may get both"


def test_a_file_that_cannot_be_written_in_the_end_is_called_by_its_name(tmp_path: Path) -> None:
    path = tmp_path / ("x" * 250)  # longer with the suffix that it has until it is complete
    with pytest.raises(OSError) as caught:
        ladder.write_whole(path, "")
    assert caught.value.filename == str(path) and not list(tmp_path.iterdir())
    os.mkfifo(pipe := tmp_path / "pipe")
    reader = os.open(pipe, os.O_RDONLY | os.O_NONBLOCK)
    closed = threading.Timer(1, os.close, [reader])  # during the write, which is more than a pipe holds
    closed.start()
    with pytest.raises(BrokenPipeError) as caught:
        ladder.write_whole(pipe, b" " * (1 << 24))
    assert caught.value.filename == str(pipe)
    for path in (tmp_path, Path()):
        with pytest.raises(IsADirectoryError):
            ladder.write_whole(path, "")


def test_what_is_printed_is_utf_8(grading: Grading) -> None:
    page = grading.assignments / "00_small.md"
    page.write_text(page.read_text().replace("// TODO: ", "// TODO, y → y: "))
    starter = grading.text("--starter")
    grading.environment["PYTHONIOENCODING"] = "latin-1"  # as with a locale that is not UTF-8
    done = grading.run("--starter", "small", encoding="utf-8")
    assert "// TODO, y → y: " in starter and (done.returncode, done.stdout) == (0, starter), done.stderr


@pytest.mark.parametrize(
    ("redirection", "code", "said"),
    [
        ("1>&3", -signal.SIGPIPE, ""),
        (">/dev/full", 3, "harness: a file cannot be read or written: No space left on device\n"),
        (">/dev/full 2>&1", 3, ""),
    ],
)
@pytest.mark.parametrize("what", [["--starter", "small"], ["--grade", "starter.cu", "--assignment", "small"]])
def test_what_cannot_be_printed(grading: Grading, what: list[str], redirection: str, code: int, said: str) -> None:
    (grading.folder / "starter.cu").write_text(grading.text("--starter"))
    command = [sys.executable, GRADE, "--build", BUILD, "--assignments", grading.assignments, *what]
    read, write = os.pipe()
    os.close(read)  # it has no reader
    shell = ["bash", "-c", f'exec 3>&{write}; exec "$@" {redirection}', "bash"]
    done = subprocess.run([*shell, *command], pass_fds=[write], cwd=grading.folder, capture_output=True, text=True,
                          check=False)  # fmt: skip
    os.close(write)
    assert (done.returncode, done.stderr) == (code, said)


def test_junit(grading: Grading) -> None:
    source = grading.folder / "a.cu"
    source.write_text(grading.text("--starter"))
    junit = grading.folder / "junit.xml"
    grading.run("--grade", source, "--assignment", "small", "--junit", junit)
    suite = ElementTree.parse(junit).find("testsuite")
    assert suite.attrib == {"name": "a.cu", "tests": "3", "failures": "3", "errors": "0"}
    assert "never written" in suite.find("testcase/failure").attrib["message"]


def test_the_harness_starts_it(tmp_path: Path) -> None:
    harness = BUILD / "harness"
    if not harness.is_file():
        pytest.skip("the harness is not built")
    starter = tmp_path / "starter.cu"
    subprocess.run([harness, "--starter", "swizzle", "--course", "practice", "--out", starter], check=True)
    done = subprocess.run([harness, "--grade", starter, "--assignment", "swizzle", "--course", "practice"],
                          capture_output=True, text=True, check=False)  # fmt: skip
    assert done.returncode == 1 and "06_swizzle, course practice" in done.stdout and "not passed" in done.stdout


# ---- Machines that cannot isolate ----


def without_landlock() -> None:
    """In a child: from now on Landlock's system calls are unknown, as on an old kernel."""
    libc = ctypes.CDLL(None, use_errno=True)

    class Filter(ctypes.Structure):
        _fields_ = (("code", ctypes.c_uint16), ("yes", ctypes.c_uint8), ("no", ctypes.c_uint8), ("k", ctypes.c_uint32))

    class Program(ctypes.Structure):
        _fields_ = (("length", ctypes.c_uint16), ("filter", ctypes.POINTER(Filter)))

    load, equal, end = 0x20, 0x15, 0x06
    create_ruleset, allow, unknown = 444, 0x7FFF0000, 0x00050000 | 38
    steps = (Filter * 4)(Filter(load, 0, 0, 0), Filter(equal, 0, 1, create_ruleset), Filter(end, 0, 0, unknown),
                         Filter(end, 0, 0, allow))  # fmt: skip
    set_no_new_privileges, set_seccomp, by_filter = 38, 22, 2
    libc.prctl(set_no_new_privileges, 1, 0, 0, 0)
    libc.prctl(set_seccomp, by_filter, ctypes.byref(Program(4, steps)), 0, 0)


def test_without_isolation_it_refuses_unless_told_otherwise(grading: Grading) -> None:
    source = grading.folder / "a.cu"
    source.write_text(grading.text("--reference"))
    arguments = ("--grade", source, "--assignment", "small")
    done = grading.run(*arguments, preexec_fn=without_landlock)
    assert done.returncode == 3 and not done.stdout
    assert "it lacks Landlock" in done.stderr and "--unsandboxed" in done.stderr
    done = grading.run(*arguments, "--unsandboxed", preexec_fn=without_landlock)
    assert done.returncode == 0 and "100.0 of 100" in done.stdout


# ---- A class ----


def rows(path: Path) -> dict[str, dict[str, str]]:
    with open(path, newline="") as file:
        return {row["file"]: row for row in csv.DictReader(file)}


@pytest.fixture
def handed_in(grading: Grading) -> Path:
    folder = grading.folder / "submissions"
    folder.mkdir()
    (folder / "right.cu").write_text(grading.text("--reference"))
    (folder / "starter.cu").write_text(grading.text("--starter"))
    (folder / "broken.cu").write_text("this is no C++")
    (folder / "empty.cu").write_text("")
    (folder / "link.cu").symlink_to("/etc/passwd")
    (folder / "student").mkdir()
    (folder / "student" / "half.cu").write_text(
        grading.text("--reference").replace("if (i < n)", "if (i < n && n < 2000)")
    )
    return folder


def test_a_class(grading: Grading, handed_in: Path) -> None:
    out = grading.folder / "grades.csv"
    junit = grading.folder / "j.xml"
    done = grading.run("--grade-dir", handed_in, "--assignment", "small", "--out", out, "--junit", junit)
    assert done.returncode == 0 and "6 of 6 files graded" in done.stdout, done
    table = rows(out)
    assert {name: row["score"] for name, row in table.items()} == {
        "right.cu": "100", "starter.cu": "0", "broken.cu": "0", "empty.cu": "0", "link.cu": "0",
        "student/half.cu": "50",
    }  # fmt: skip
    assert "does not compile" in table["broken.cu"]["message"] and "symbolic link" in table["link.cu"]["message"]
    assert "long: " in table["student/half.cu"]["lost"] and table["right.cu"]["passed"] == "yes"
    assert len(ElementTree.parse(junit).findall("testsuite")) == 6
    pairs = (grading.folder / "grades.similar.csv").read_text().splitlines()[1:]
    assert "right.cu,the reference answer,same tokens,1.00" in pairs


def test_a_class_is_compared_with_the_reference_answers_ptx_and_with_earlier_years(
    grading: Grading, handed_in: Path
) -> None:
    """right.cu says the same as the reference answer in other tokens; half.cu is another year's, with other numbers."""
    reference = grading.text("--reference")
    (handed_in / "right.cu").write_text(reference.replace("if (i < n) y[i] =", "if (n > i) *(y + i) ="))
    archive = grading.folder / "archive"
    (archive / "2025" / "a").mkdir(parents=True)
    half = (handed_in / "student" / "half.cu").read_text()
    (archive / "2025" / "a" / "old.cu").write_text(half.replace("n < 2000", "m < 1999").replace("int n", "int m"))
    (archive / "2025" / "broken.cu").write_bytes(b"\xff")
    out = grading.folder / "grades.csv"
    done = grading.run("--grade-dir", handed_in, "--assignment", "small", "--out", out, "--archive", archive)
    assert done.returncode == 0 and "beside 1 of the archive" in done.stdout, done
    pairs = (grading.folder / "grades.similar.csv").read_text()
    assert "right.cu,the reference answer,same PTX," in pairs
    assert "student/half.cu,archive: 2025/a/old.cu,same tokens except for names and numbers,1.00" in pairs
    done = grading.run("--grade-dir", handed_in, "--assignment", "small", "--out", out, "--archive", archive / "none")
    assert done.returncode == 2 and "there is no such folder" in done.stderr


def test_a_class_goes_on_where_it_was(grading: Grading, handed_in: Path) -> None:
    out = grading.folder / "grades.csv"
    arguments = ("--grade-dir", handed_in, "--assignment", "small", "--out", out)
    grading.run(*arguments)
    kept = {path: path.stat().st_mtime_ns for path in (grading.folder / "grades.csv.results").iterdir()}
    assert len(kept) == 4, "of those that could be read"
    whole = out.read_text()
    out.unlink()
    (handed_in / "late.cu").write_text(grading.text("--reference") + "// late\n")
    grading.run(*arguments)
    assert all(path.stat().st_mtime_ns == kept[path] for path in kept), "nothing was graded again"
    assert rows(out)["late.cu"]["score"] == "100" and set(whole.splitlines()) < set(out.read_text().splitlines())
    # With a different seed, all files are graded again.
    grading.run(*arguments, "--hidden", grading.seed("other"))
    assert len(list((grading.folder / "grades.csv.results").iterdir())) == 10


def test_what_is_in_the_folder_of_a_class(grading: Grading) -> None:
    """Each entry has a row, except for what the grader has written there."""
    folder = grading.folder / "in"
    for student in ("three", "none", "deep/er", "__MACOSX/three"):
        (folder / student).mkdir(parents=True)
    for name in (
        "three/a.cu",
        "three/B.CU",
        "three/c.cu",
        "three/._a.cu",
        "__MACOSX/three/._a.cu",
        "deep/er/a.cu",
        "UPPER.CU",
        "none/main.cpp",
        "none\n1.cu",
        "notes.txt",
    ):
        (folder / name).write_text("no C++")
    out = folder / "grades.csv"
    for _ in range(2):
        arguments = ("--assignment", "small", "--out", out, "--junit", folder / "j.xml", "--report", folder / "r.json")
        assert grading.run("--grade-dir", folder, *arguments).returncode == 0
        table = rows(out)
        assert sorted(table) == ["UPPER.CU", "deep/er/a.cu", "none", "none 1.cu", "notes.txt", "three/B.CU",
                                 "three/a.cu", "three/c.cu"]  # fmt: skip
    assert table["none"]["message"].startswith("0 points: there is no .cu file in this folder")
    assert {row["score"] for row in table.values()} == {"0"}
    for result in json.loads((folder / "r.json").read_text()):
        validate_grade(result)


def test_files_that_are_shown_by_the_same_name_are_all_compared(grading: Grading) -> None:
    folder = grading.folder / "in"
    folder.mkdir()
    long = "x" * 230
    for name in ("a b.cu", "a  b.cu", "the reference answer", f"{long}1.cu", f"{long}2.cu"):
        (folder / name).write_text(grading.text("--reference"))
    out = grading.folder / "grades.csv"
    assert grading.run("--grade-dir", folder, "--assignment", "small", "--out", out).returncode == 0
    assert len((grading.folder / "grades.similar.csv").read_text().splitlines()) == 1 + 6 * 5 // 2


def test_what_an_earlier_run_has_written_is_not_graded(grading: Grading, handed_in: Path) -> None:
    (handed_in / "copied.cu").write_text("file,score,passed,status,message,lost,tflops,sha256\n")
    for name in ("one", "two"):
        out = handed_in / ".." / handed_in.name / f"{name}.csv"
        files = ("--out", out, "--report", handed_in / f"{name}.json", "--junit", handed_in / f"{name}.xml")
        done = grading.run("--grade-dir", handed_in, "--assignment", "small", *files)
        assert done.returncode == 0 and "7 of 7 files graded" in done.stdout and "copied.cu" in rows(out), done
        assert ("Left out" in done.stdout) == (name == "two")
    assert "wrote them: one.csv, one.csv.results, one.json, one.similar.csv, one.xml" in done.stdout


def test_ctrl_c_stops_a_class_at_once(grading: Grading) -> None:
    folder = grading.folder / "in"
    folder.mkdir()
    for i in range(40):
        (folder / f"{i}.cu").write_text(grading.text("--reference") + f"// {i}\n" if i == 0 else f"no C++ {i}")
    out = grading.folder / "grades.csv"
    command = [sys.executable, GRADE, "--build", BUILD, "--assignments", grading.assignments, "--grade-dir", folder,
               "--assignment", "small", "--out", out, "--jobs", "1"]  # fmt: skip
    process = subprocess.Popen(command, env=grading.environment, start_new_session=True, text=True,
                               stdout=subprocess.PIPE, stderr=subprocess.PIPE)  # fmt: skip
    results = grading.folder / "grades.csv.results"
    while not (results.is_dir() and list(results.glob("*.json"))):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGINT)
    _, said = process.communicate()
    assert process.returncode == 3 and said == "\nharness: stopped: the same command continues where this one stopped\n"
    assert len(list(results.glob("*.json"))) < 20 and not list(grading.temporary.iterdir())


def test_a_class_that_was_stopped(grading: Grading, handed_in: Path) -> None:
    """If killed in the middle, it keeps what it has, and can be resumed."""
    for i in range(6):
        (handed_in / f"more_{i}.cu").write_text(grading.text("--reference") + f"// {i}\n")
    out = grading.folder / "grades.csv"
    command = [sys.executable, GRADE, "--build", BUILD, "--assignments", grading.assignments, "--grade-dir", handed_in,
               "--assignment", "small", "--out", out, "--jobs", "1"]  # fmt: skip
    process = subprocess.Popen(command, env=grading.environment, start_new_session=True, stdout=subprocess.DEVNULL)
    results = grading.folder / "grades.csv.results"
    while not (results.is_dir() and len(list(results.glob("*.json"))) >= 2):
        assert process.poll() is None
        time.sleep(0.05)
    os.killpg(process.pid, signal.SIGKILL)
    process.wait()
    before = len(list(results.glob("*.json")))
    done = grading.run(*command[6:])
    assert done.returncode == 0 and "12 of 12 files graded" in done.stdout
    assert before < len(list(results.glob("*.json"))) == 10


def test_shares_of_a_class_are_put_together(grading: Grading, handed_in: Path) -> None:
    """The class is graded in shares, as by the tasks of a Slurm array."""
    out = grading.folder / "grades.csv"
    recipe = ROOT / "harness" / "grader" / "recipes" / "slurm_array.sbatch"
    names = {
        "SUBMISSIONS": handed_in,
        "OUT": out,
        "ASSIGNMENT": "swizzle",
        "COURSE": "practice",
        "FLASH_LADDER_HIDDEN": "h",
        "LADDER": ROOT,
    }
    environment = grading.environment | {name: str(value) for name, value in names.items()}
    environment |= {"FLASH_LADDER_BUILD_DIR": str(BUILD), "SLURM_ARRAY_TASK_COUNT": "2", "SLURM_ARRAY_TASK_MIN": "5"}
    for task in ("5", "6"):
        environment["SLURM_ARRAY_TASK_ID"] = task
        subprocess.run(["bash", recipe], env=environment, check=True, capture_output=True)
        assert not out.exists()
    kept = {path: path.stat().st_mtime_ns for path in (grading.folder / "grades.csv.results").iterdir()}
    assert len(kept) == 4
    environment |= {"SLURM_ARRAY_TASK_COUNT": "1"}
    subprocess.run(["bash", recipe], env=environment, check=True, capture_output=True)
    assert len(rows(out)) == 6 and all(path.stat().st_mtime_ns == kept[path] for path in kept), "nothing graded again"


# ---- GitHub Actions ----


def test_the_workflow_grades_what_is_pushed(tmp_path: Path) -> None:
    """All its steps, unchanged, for three pushes of a student. What GitHub itself does is simulated by
    grader_workflow.py; setup finds tools that record their requests, and uses this build."""
    pytest.importorskip("yaml", reason="PyYAML is missing: scripts/docs_packages brings it")
    listed = subprocess.run(["git", "-C", ROOT, "ls-files"], capture_output=True, text=True, check=False)
    if listed.returncode != 0:
        pytest.skip("this is no git repository")
    github = GitHub(tmp_path, BUILD)
    ladder = github.create("OWNER/flash-ladder")
    for name in listed.stdout.splitlines():
        if (ROOT / name).is_file():
            (ladder / name).parent.mkdir(parents=True, exist_ok=True)
            shutil.copy(ROOT / name, ladder / name)
    github.commit("OWNER/flash-ladder")
    mine = github.create("school/mine")
    workflow = mine / ".github" / "workflows" / "grade.yml"
    workflow.parent.mkdir(parents=True)
    recipe = (ROOT / "harness" / "grader" / "recipes" / "github_actions.yml").read_text()
    assert "COURSE: spring\n" in recipe
    workflow.write_text(recipe.replace("COURSE: spring\n", "COURSE: practice\n"))  # a course whose answers are public
    given = assignment.read_assignment("swizzle", "practice")

    (mine / "swizzle.cu").write_text(given.starter())
    run = github.push("school/mine")
    assert run.setup == ["apt-get update", "apt-get install", "venv", "configure first", "build harness-grader",
                         "compile"], run.said  # fmt: skip
    assert not run.succeeded and "not passed: the pass mark is 85" in run.summary
    assert run.said.endswith(run.summary.removeprefix("```\n").removesuffix("```\n")), "both say the same"
    validate_grade(json.loads(run.artifacts["results.json"].read_text()))
    assert len(github.caches) == 1, "a push that does not pass is one after which another comes"

    # A new machine: cached files are not rebuilt, and the system's packages are not in the cache.
    (mine / "swizzle.cu").write_text(given.reference_answer())
    run = github.push("school/mine")
    assert run.setup == ["apt-get update", "apt-get install", "configure again", "build harness-grader"], run.said
    assert run.succeeded and "100.0 of 100  passed" in run.summary
    assert ElementTree.parse(run.artifacts["results.xml"]).find("testsuite").attrib["failures"] == "0"

    (mine / "swizzle.cu").unlink()
    run = github.push("school/mine")
    assert not run.succeeded and run.summary == "Hand in one .cu file; there are 0.\n" and not run.artifacts


# ---- Gradescope ----


def test_the_autograder_for_gradescope(grading: Grading) -> None:
    """The zip, unpacked as Gradescope does, in an otherwise empty environment. setup.sh needs the network, so it is
    given this build instead."""
    recipe = ROOT / "harness" / "grader" / "recipes" / "gradescope"
    build, packed = recipe / "build_zip", grading.folder / "autograder.zip"
    assert subprocess.run([build, "swizzle", "c", "none.txt", packed], capture_output=True).returncode == 2
    seed = grading.seed("$(touch x)")
    done = subprocess.run([build, "swizzle", "practice course", seed, packed], capture_output=True, text=True)
    if "not a git repository" in done.stderr:
        pytest.skip("this is no git repository")
    assert done.returncode == 0, done.stderr
    misspelt = subprocess.run([build, "swizle", "a course", seed, grading.folder / "no.zip"],
                              capture_output=True, text=True)  # fmt: skip
    assert misspelt.returncode == 2 and "there is no assignment 'swizle'" in misspelt.stderr
    assert not (grading.folder / "no.zip").exists()
    root = grading.folder / "autograder"
    for folder in ("source", "submission", "results"):
        (root / folder).mkdir(parents=True)
    subprocess.run([sys.executable, "-m", "zipfile", "-e", packed, root / "source"], check=True)
    shutil.copy(root / "source" / "run_autograder", root)
    (root / "source" / "ladder" / "build").symlink_to(BUILD)
    (root / "source" / "ladder" / ".venv").symlink_to(sys.prefix)
    environment = {
        "PATH": f"{Path(sys.executable).parent}:/usr/bin:/bin",
        "AUTOGRADER": str(root),
        "HOME": str(grading.home),
    }

    def run() -> subprocess.CompletedProcess:
        return subprocess.run(
            ["bash", root / "run_autograder"], env=environment, cwd="/", capture_output=True, check=False
        )

    results = root / "results" / "results.json"
    assert run().returncode == 0 and json.loads(results.read_text())["output"] == "Hand in one .cu file; there are 0."
    given = assignment.read_assignment("swizzle", "practice course")
    (root / "submission" / "mine.cu").write_text(given.reference_answer())
    assert run().returncode == 0
    shown = json.loads(results.read_text())
    assert shown["score"] == 100 == sum(test["max_score"] for test in shown["tests"])
    results.unlink()
    (root / "source" / "ladder" / "build").unlink()
    assert run().returncode != 0 and not results.exists(), "no score where nothing can be graded"


# ---- Similarity ----

STARTER = "void f() { a(); }\n"
LONG = """void g(int x) {
  int sum = 0;
  for (int i = 0; i < x; ++i) { sum += i * x - 3; if (sum > 100) sum /= 2; }
  use(sum, x + 1);
}
"""
OTHER = """int h(float y) {
  while (y > 1) y = sqrt(y) - cos(y) * 2;
  return int(y) + table[3] - more(y, y, y);
}
"""


def pairs(files: dict[str, str], ptx: dict[str, str] | None = None) -> dict[tuple[str, str], str]:
    names = list(files)
    compiled = {names.index(name): text for name, text in (ptx or {}).items()}
    found = similarity.similar_pairs(dict(enumerate(files.values())), {}, STARTER, compiled)
    return {(names[pair.first], names[pair.second]): pair.how for pair in found}


def test_what_is_alike() -> None:
    renamed = LONG.replace("sum", "total").replace("g(", "h(")
    files = {
        "a": STARTER + LONG,
        "comments": STARTER + "// mine\n" + LONG.replace(" ", "  "),
        "names": STARTER + renamed,
        "a line more": STARTER + LONG.replace("use(", "check(); use("),
        "other": STARTER
        + "int h(float y) { while (y > 1) y = sqrt(y) - cos(y) * 2; return int(y) + table[3] - more(y, y, y); }",
        "nothing": STARTER,
        "nothing either": STARTER + "// really",
    }
    found = pairs(files)
    assert found[("a", "comments")] == "same tokens" and found[("a", "names")] == "same tokens except for names"
    assert found[("a", "a line more")] == "similar tokens"
    assert not [pair for pair in found if "other" in pair or "nothing" in pair], "the starter alone is no likeness"
    assert pairs({"a": STARTER + LONG, "b": files["other"]}, {"a": "same", "b": "same"}) == {("a", "b"): "same PTX"}


@pytest.mark.parametrize("name", ["puzzles", "tiled", "mma", "cp_async", "ldmatrix", "double_buffered_mma"])
def test_a_reference_answer_with_three_other_lines_is_found(name: str) -> None:
    given = assignment.read_assignment(name, "practice")
    starter, answer = given.starter(), given.reference_answer().split("\n")
    own = [i for i, line in enumerate(answer) if line.strip() not in starter and not line.strip().startswith("//")]
    for i in own[:: len(own) // 3][:3]:
        answer[i] = "if (threadIdx.y == 7) return nothing<3>(12, 'x');"
    known = {1: given.reference_answer()}
    for text in ("\n".join(answer), "\n".join(answer) + LONG * 9):
        assert [pair.how for pair in similarity.similar_pairs({0: text}, known, starter, {})] == ["similar tokens"]


def test_right_answers_of_different_people_are_not_alike() -> None:
    """Answers to 06 that a student may find; all of them are right for neighbouring rows."""
    given = assignment.read_assignment("swizzle", "practice")
    gap = "  return row * Traits::kHeadDim + col;\n"
    assert gap in given.starter()
    bodies = (
        "  const int c = col / 8, s = (row >> 1) & 3;\n  return row * Traits::kHeadDim + ((c ^ s) << 3) + (col & 7);\n",
        "  int chunk = col / Traits::kChunk;\n  chunk ^= (row / 2) % 4;\n"
        "  return row * Traits::kHeadDim + chunk * Traits::kChunk + col % Traits::kChunk;\n",
        "  const int key = (row / 2) % 4;\n  const int permuted = (col / 8) ^ key;\n"
        "  const int offset = permuted * 8 + col % 8;\n  return Traits::kHeadDim * row + offset;\n",
        "  return row * Traits::kHeadDim + (col ^ (((row >> 1) & 3) * 8));\n",
    )
    files = {i: given.starter().replace(gap, body) for i, body in enumerate(bodies)}
    assert not similarity.similar_pairs(files, {9: given.reference_answer()}, given.starter(), {})


def test_an_archived_file_of_another_course_is_found_despite_its_numbers() -> None:
    found = similarity.similar_pairs(
        {0: STARTER + LONG.replace("100", "200")}, {1: STARTER + LONG, 2: STARTER}, STARTER, {}
    )
    assert [(pair.second, pair.how) for pair in found] == [(1, "same tokens except for names and numbers")]


@pytest.mark.parametrize("opening", ['R"(', 'R"x(', "/*", '"', "'", "1'", "a", "\n", "\\"])
def test_a_search_reads_a_file_once(opening: str) -> None:
    """A search that reads the rest of these four million characters anew at each opening takes hours, and so this test
    would."""
    text = "int x; " + opening * (4_000_000 // len(opening))
    assert similarity.tokens(text)[:3] == ["int", "x", ";"]
    assert compiler.ptx_hash(text) == compiler.ptx_hash(".loc 1 2 3\n" + text)


def test_ptx_is_the_same_whatever_names_and_lines_are() -> None:
    ptx = '.file 1 "x.cu"\n.visible .entry _Z1aPf(.param .u64 _Z1aPf_param_0)\n'
    ptx += "{\n.loc 1 3 1\nld.param.u64 %rd1, [_Z1aPf_param_0];\n}"
    other = ptx.replace("_Z1aPf", "_Z7anotherPf").replace(".loc 1 3 1", ".loc 1 9 2").replace("x.cu", "y.cu")
    assert compiler.ptx_hash(ptx) == compiler.ptx_hash(other)
    assert compiler.ptx_hash(ptx) != compiler.ptx_hash(ptx.replace("%rd1", "%rd2"))


def test_values_are_those_of_the_type() -> None:
    def rounded(kind: str, *values: float) -> list[float]:
        return launches.unpack(kind, launches.pack(kind, list(values)))

    assert rounded("bf16", 1.0, -2.5, 3.140625) == [1.0, -2.5, 3.140625]
    assert rounded("bf16", 1 + 2**-8, 1 + 3 * 2**-8) == [1.0, 1 + 2**-6], "halves to even"
    assert rounded("f16", 0.1) == [0.0999755859375]
    assert json.loads(report.to_json({"a": 1})) == {"a": 1}
