"""The grader's command line, which is started by `harness --grade` and similar flags. See docs/teaching.md."""

import argparse
import contextlib
import dataclasses
import datetime
import os
import signal
import sys
import tempfile
import traceback
from pathlib import Path
from typing import Any, NoReturn

import report
from assignment import FOLDER, ROOT, Assignment, AssignmentError, names_of_assignments, read_assignment
from changes import solved_points
from compiler import COMPILE_SECONDS, Machine, Unavailable, printable
from engine import Grader
from gpu import Gpu
from gradebook import TableError
from ladder import check_writable, is_special, write_whole

# The options that go with each action; any others would have no effect.
GRADING = (
    "--assignment --course --hidden --attempt --pass-mark --report --junit --with-gpu --unsandboxed --compile-seconds"
)
HIDDEN_VARIABLE = "FLASH_LADDER_HIDDEN"
GOES_WITH = {
    "--grade": f"{GRADING} --gradescope",
    "--grade-dir": f"{GRADING} --out --share --jobs --archive --due --written --gradebook --column",
    "--compare-courses": "--assignment --unsandboxed --compile-seconds",
    "--starter": "--course --out",
    "--reference": "--course --out",
}


def complain(message: str, before: str = "") -> None:
    """Writes to standard error. If that fails, only the exit code reports the error."""
    with contextlib.suppress(OSError):
        print(f"{before}harness: {message}", file=sys.stderr)


class UsageError(Exception):
    """The command line requests something invalid."""


class Parser(argparse.ArgumentParser):
    """A parser whose errors are one line, like the harness's."""

    def error(self, message: str) -> NoReturn:
        complain(f"{message}; see harness --help")
        sys.exit(2)


def counted_from_one(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of 1 or more")
    return int(text)


def point_in_time(text: str) -> datetime.datetime:
    """A time without a zone is this machine's."""
    try:
        return datetime.datetime.fromisoformat(text).astimezone()
    except ValueError:
        raise argparse.ArgumentTypeError(
            f"'{text}' is no time; write 2026-05-01T18:00, or 2026-05-01T18:00+02:00 with a zone"
        ) from None


def points_that_pass(text: str) -> float:
    try:
        points = float(text)
    except ValueError:
        points = -1
    if not 0 <= points <= 100:
        raise argparse.ArgumentTypeError(f"'{text}' is no pass mark; it takes a number from 0 to 100")
    return points


def not_empty(text: str) -> str:
    """An empty word is most often an unset variable of a script."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give it a value, or leave it out")
    return text


def file_name(text: str) -> Path:
    return Path(not_empty(text))


def hidden_seed(file: Path | None, course: str) -> str:
    """The seed of shapes and inputs: the text of the file, or the environment variable's, or the course's name.

    It is never on a command line, which all users of a machine can list. Raises UsageError if the file cannot be read,
    or either of them is empty.
    """
    if file is None:
        seed = os.environ.get(HIDDEN_VARIABLE)
        if seed is None:
            return course
        origin = HIDDEN_VARIABLE
    else:
        origin = f"--hidden {file}"
        try:
            seed = file.read_text(encoding="utf-8")
        except (OSError, UnicodeDecodeError) as error:
            why = getattr(error, "strerror", None) or "it is not UTF-8"
            raise UsageError(
                f"{origin}: {why}; it takes a file that contains the seed, so that no list of processes shows it"
            ) from error
    if not seed.strip():
        raise UsageError(f"{origin} is empty; give it a seed, or leave it out")
    return seed.strip()


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="harness", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--grade", metavar="FILE", type=file_name, help="a submitted .cu file")
    what.add_argument("--grade-dir", metavar="DIR", type=file_name, help="a folder of them")
    what.add_argument("--compare-courses", metavar="COURSE", type=not_empty, action="extend", nargs="+",
                      help="two courses: which assignments of the second the first's answers would pass")  # fmt: skip
    what.add_argument("--starter", metavar="ASSIGNMENT", type=not_empty, help="write the starter of an assignment")
    what.add_argument("--reference", metavar="ASSIGNMENT", type=not_empty, help="write its reference answer")
    parser.add_argument("--assignment", type=not_empty, help="swizzle, 06 or 06_swizzle")
    parser.add_argument("--course", help="the seed that varies the assignment for a course")
    parser.add_argument("--hidden", metavar="FILE", type=file_name, help="a file that contains the seed of shapes and "
                        f"inputs; or put the seed into {HIDDEN_VARIABLE} (the course's name)")  # fmt: skip
    parser.add_argument(
        "--attempt",
        metavar="N",
        type=counted_from_one,
        help="the student's attempt: below the pass mark, N hints are shown",
    )
    parser.add_argument("--pass-mark", metavar="POINTS", type=points_that_pass, help="points that pass")
    parser.add_argument("--report", metavar="FILE", type=file_name, help="the result as JSON")
    parser.add_argument("--junit", metavar="FILE", type=file_name, help="the result as JUnit XML")
    parser.add_argument(
        "--out", metavar="FILE", type=file_name, help="of --grade-dir: the grades; of --starter: the file"
    )
    parser.add_argument("--gradescope", metavar="FILE", type=file_name, help="the result as Gradescope reads it")
    parser.add_argument(
        "--share", metavar="I/N", help="with --grade-dir: only each N-th file, from the I-th on; no grades yet"
    )
    parser.add_argument(
        "--archive", metavar="DIR", type=file_name, help="with --grade-dir: files of earlier years to compare with"
    )
    parser.add_argument("--due", metavar="TIME", type=point_in_time, help="with --grade-dir: when files were due")
    parser.add_argument(
        "--written", metavar="FILE", type=file_name, help="with --grade-dir: marks of the written question"
    )
    parser.add_argument(
        "--gradebook", metavar="FILE", type=file_name, help="with --grade-dir: Moodle's or Canvas's export, to fill in"
    )
    parser.add_argument("--column", metavar="NAME", type=not_empty, help="the assignment's column in Canvas's export")
    parser.add_argument("--jobs", type=counted_from_one, help="files at a time")
    parser.add_argument("--with-gpu", action="store_true", help="also time correct files; does not affect the points")
    parser.add_argument("--unsandboxed", action="store_true", help="grade without isolation: only files that you trust")
    parser.add_argument("--compile-seconds", type=int, help="CPU time of the compiler")
    build = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
    parser.add_argument("--build", type=Path, default=build, help=argparse.SUPPRESS)
    parser.add_argument("--assignments", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    parser.add_argument("--gpu-program", type=Path, help=argparse.SUPPRESS)  # for the tests
    args = parser.parse_args(arguments)
    given = {"--" + name.replace("_", "-") for name, value in vars(args).items() if value not in (None, False)}
    (action,) = given & set(GOES_WITH)
    for option in sorted(given & set(" ".join(GOES_WITH.values()).split()) - set(GOES_WITH[action].split())):
        actions = [other for other, options in GOES_WITH.items() if option in options.split()]
        parser.error(f"{option} cannot be combined with {action}, but with {', '.join(actions)}; leave it out")
    if args.share and (args.report or args.junit):
        parser.error("--share only grades; --report and --junit are for the run without it, which puts all together")
    args.course = args.course or ""
    args.jobs = args.jobs or os.cpu_count() or 1
    args.compile_seconds = args.compile_seconds or COMPILE_SECONDS
    return args


def look_at_outputs(args: argparse.Namespace) -> None:
    """Raises UsageError for outputs that could not be written, so that no work is lost at the end, and for outputs that
    would replace something else."""
    options = {"--out": args.out, "--report": args.report, "--junit": args.junit, "--gradescope": args.gradescope}
    named = {option: path for option, path in options.items() if path}
    inputs: dict[str, Path] = {}
    for option, path in named.items():
        try:
            check_writable(path)
        except OSError as error:
            raise UsageError(f"{option} {path} cannot be written: {error.strerror}; name a file in a folder that you "
                             "may write to") from error  # fmt: skip
    if args.starter or args.reference:
        return
    if args.grade_dir:
        if is_special(args.out):
            raise UsageError(f"--out {args.out} is not a regular file; grades are added to it and results are stored "
                             f"beside it: name a file")  # fmt: skip
        named["the list of equal files of --out,"] = report.similar_file(args.out)
        named["the feedback files of --out,"] = report.feedback_file(args.out)
        if args.gradebook:
            named["the gradebook of --out,"] = report.gradebook_file(args.out)
        for option in ("gradebook", "written"):
            if read := getattr(args, option):
                inputs[f"--{option}"] = read
        named["the results that are kept for --out,"] = report.results_folder(args.out)
    seen = inputs | ({"--grade": args.grade} if args.grade else {})
    for option, path in named.items():
        for other, its in seen.items():
            if is_special(path):
                continue  # a device or a pipe may receive everything
            first, second = Path(os.path.realpath(its)), Path(os.path.realpath(path))
            inside = other != "--grade" and (first in second.parents or second in first.parents)
            if first == second or inside:
                raise UsageError(f"{other} {its} and {option} {path} would replace each other; give each its own name")
        seen[option] = path
        # An empty file may have been created for this purpose, for example by mktemp.
        empty = path.is_file() and path.stat().st_size == 0 and path.suffix.lower() != ".cu"
        filled_in = args.grade_dir and path == report.gradebook_file(args.out)  # looks like any other gradebook
        if path.exists() and not (is_special(path) or empty or filled_in or report.is_ours(path)):
            raise UsageError(f"{option} {path}: it already exists and was not written by the grader; choose another "
                             "name, or remove it")  # fmt: skip


def compare_courses(machine: Machine, args: argparse.Namespace) -> int:
    """Says which assignments of a course the answers of another would pass: returns 1 if there are any. It grades the
    answers that are not the same."""
    before, now = args.compare_courses
    known = names_of_assignments(args.assignments)
    falls = 0
    for name in [args.assignment] if args.assignment else known:
        first, second = (read_assignment(name, course, args.assignments) for course in (before, now))
        if solved_points(first, second) == 100:
            score, passed, same = 100.0, True, ", the same answer"
        else:
            result = grade_text(machine, second, second.answer_from(first))
            score, passed, same = result["score"], result["passed"], ""
        falls += passed
        print(f"  {score:5.1f} of 100  {second.name}  {'passes' if passed else 'does not pass'}{same}", flush=True)
    print(f"The answers of {before} pass {falls} assignments of {now}"
          + ("; choose another name, or do not count these" if falls else ""))  # fmt: skip
    return 1 if falls else 0


def grade_text(machine: Machine, assignment: Assignment, text: str) -> dict[str, Any]:
    with tempfile.TemporaryDirectory(prefix="flash-ladder-courses-") as folder:
        path = Path(folder) / "answer.cu"
        path.write_text(text, encoding="utf-8")
        result = Grader(machine, assignment, assignment.course).grade(path)
    if result["status"] != "graded":
        raise Unavailable(f"{assignment.name}: {result['message']}")
    return result


def carry_out(args: argparse.Namespace) -> int:
    """Carries out the command line; returns the exit code."""
    name = args.starter or args.reference or args.assignment
    if args.compare_courses:
        if len(set(args.compare_courses)) != 2 or len(args.compare_courses) != 2:
            raise UsageError("--compare-courses takes the names of two courses: --compare-courses spring25 spring26")
        return compare_courses(Machine.of_build(args.build, not args.unsandboxed, args.compile_seconds), args)
    if name is None:
        raise UsageError("say which assignment it is for: --assignment swizzle, for example")
    assignment = read_assignment(name, args.course, args.assignments)
    if args.grade_dir and args.out is None:
        raise UsageError("--grade-dir needs --out FILE, which receives the grades")
    if args.pass_mark is not None:
        assignment = dataclasses.replace(assignment, data=assignment.data | {"pass_mark": args.pass_mark})
    if args.written and not assignment.data.get("rubric"):
        raise UsageError(f"--written: {assignment.name} has no [[rubric]] to mark a written question by")
    look_at_outputs(args)
    if args.starter or args.reference:
        text = assignment.starter() if args.starter else assignment.reference_answer()
        if args.out and args.out.is_file() and args.out.read_bytes() != text.encode():
            complain(
                f"--out {args.out}: this file already exists and may contain someone's work; choose another name, or "
                f"remove it"
            )
            return 2
        if args.out:
            write_whole(args.out, text)
        else:
            print(text, end="")
        return 0
    machine = Machine.of_build(args.build, not args.unsandboxed, args.compile_seconds)
    if args.gpu_program:
        machine = dataclasses.replace(machine, gpu_grader=str(args.gpu_program))
    gpu = Gpu.of_machine(machine) if args.with_gpu else None
    grader = Grader(machine, assignment, hidden_seed(args.hidden, args.course), gpu, args.attempt or 1)
    if args.grade_dir:
        return report.grade_folder(grader, args)
    if not os.path.lexists(args.grade):
        complain(f"--grade {args.grade}: there is no such file")
        return 2
    result = report.grade_file(grader, args.grade)
    print(report.to_text(result), end="")
    if args.report:
        write_whole(args.report, report.to_json(result))
    if args.junit:
        write_whole(args.junit, report.to_junit([result]))
    if args.gradescope and result["status"] == "graded":
        write_whole(args.gradescope, report.to_gradescope(result))
    return 3 if result["status"] != "graded" else 0 if result["passed"] else 1


def main() -> int:
    for stream in (sys.stdout, sys.stderr):  # starters are UTF-8, whatever the terminal's encoding
        stream.reconfigure(encoding="utf-8", errors="backslashreplace")
    args = parse()
    try:
        code = carry_out(args)
        sys.stdout.flush()  # here, so that an error is caught
        return code
    except (AssignmentError, TableError, UsageError) as error:
        complain(str(error))
        return 2
    except Unavailable as error:
        complain(str(error))
        return 3
    except OSError as error:
        if isinstance(error, BrokenPipeError) and error.filename is None:  # the reader of the output has gone
            signal.signal(signal.SIGPIPE, signal.SIG_DFL)
            signal.raise_signal(signal.SIGPIPE)
        complain(f"{error.filename or 'a file'} cannot be read or written: {error.strerror}")
        # Python would try again to print the rest, which would change the exit code.
        os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
        return 3
    except KeyboardInterrupt:
        goes_on = ": the same command continues where this one stopped" if args.grade_dir else ""
        complain(f"stopped{goes_on}", before="\n")
        return 3
    except Exception as error:  # a traceback's exit code would mean points below the pass mark
        place = traceback.extract_tb(error.__traceback__)[-1]
        where = f"{Path(place.filename).name}:{place.lineno}"
        complain(f"the grader failed, which says nothing about the file: {printable(repr(error))} in {where}")
        return 3


if __name__ == "__main__":
    sys.exit(main())
