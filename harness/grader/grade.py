"""The grader's command line, which is started by `harness --grade` and similar flags. See docs/teaching.md."""

import argparse
import contextlib
import dataclasses
import os
import signal
import sys
import traceback
from pathlib import Path
from typing import NoReturn

import report
from assignment import FOLDER, ROOT, AssignmentError, read_assignment
from compiler import COMPILE_SECONDS, Machine, Unavailable, printable
from engine import Grader
from gpu import Gpu
from ladder import check_writable, is_special, write_whole

# The options that go with each action; any others would have no effect.
GRADING = "--assignment --course --hidden --report --junit --with-gpu --unsandboxed --compile-seconds"
GOES_WITH = {
    "--grade": f"{GRADING} --gradescope",
    "--grade-dir": f"{GRADING} --out --share --jobs --archive",
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


def files_at_a_time(text: str) -> int:
    if not (text.isdecimal() and int(text) >= 1):
        raise argparse.ArgumentTypeError(f"'{text}' is not a number of files; allowed: 1 or more")
    return int(text)


def not_empty(text: str) -> str:
    """An empty word is most often an unset variable of a script."""
    if not text:
        raise argparse.ArgumentTypeError("it is empty; give it a value, or leave it out")
    return text


def file_name(text: str) -> Path:
    return Path(not_empty(text))


def parse(arguments: list[str] | None = None) -> argparse.Namespace:
    parser = Parser(prog="harness", description=__doc__)
    what = parser.add_mutually_exclusive_group(required=True)
    what.add_argument("--grade", metavar="FILE", type=file_name, help="a submitted .cu file")
    what.add_argument("--grade-dir", metavar="DIR", type=file_name, help="a folder of them")
    what.add_argument("--starter", metavar="ASSIGNMENT", type=not_empty, help="write the starter of an assignment")
    what.add_argument("--reference", metavar="ASSIGNMENT", type=not_empty, help="write its reference answer")
    parser.add_argument("--assignment", type=not_empty, help="swizzle, 06 or 06_swizzle")
    parser.add_argument("--course", help="the seed that varies the assignment for a course")
    parser.add_argument("--hidden", type=not_empty, help="the seed of shapes and inputs (the course's)")
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
    parser.add_argument("--jobs", type=files_at_a_time, help="files at a time")
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
        named["the results that are kept for --out,"] = report.results_folder(args.out)
    seen = {"--grade": args.grade} if args.grade else {}
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
        if path.exists() and not (is_special(path) or empty or report.is_ours(path)):
            raise UsageError(f"{option} {path}: it already exists and was not written by the grader; choose another "
                             f"name, or remove it")  # fmt: skip


def show(result: dict) -> None:
    """For a reader: the points, and why points were lost."""
    course = f", course {result['course']}" if result["course"] else ""
    hidden = ", with a hidden seed" if result["hidden"] else ""
    print(f"{result['file']} · {result['assignment']}{course}{hidden}")
    for check in result["checks"]:
        print(f"  {check['points']:5.1f} of {check['of']:3}  {check['name']}")
        for sentence in check["lost"]:
            if not result["message"].endswith(sentence):  # reported once, below
                print(f"                 {sentence}")
    if result["printed"]:
        print(f"  The kernels printed: {result['printed']}")
    if result["message"]:
        print(f"  {result['message']}")
    if result["status"] == "graded":
        verdict = "passed" if result["passed"] else "not passed"
        print(f"  {result['score']:5.1f} of 100  {verdict}: the pass mark is {result['pass_mark']}")
    if not result["passed"] and not result["course"]:
        print("  This was graded without --course. A starter that was created with one needs it here, too.")
    for hint in result["hints"]:
        print(f"  Hint: {hint}")
    if result["gpu"]:
        show_speed(result["gpu"])


def show_speed(gpu: dict) -> None:
    """Times measured in turn on a GPU. The last is the ladder's version, with which the others are compared."""
    print(f"  On {gpu['device']}{': ' + gpu['message'] if gpu['message'] else ', which does not affect the points:'}")
    for timing in gpu["timings"]:
        share = timing["tflops"] / gpu["timings"][-1]["tflops"]
        print(f"  {timing['tflops']:7.1f} TFLOP/s  {share:5.2f}x  {timing['name']}  ({timing['problem']})")


def carry_out(args: argparse.Namespace) -> int:
    """Carries out the command line; returns the exit code."""
    name = args.starter or args.reference or args.assignment
    if name is None:
        raise UsageError("say which assignment it is for: --assignment swizzle, for example")
    assignment = read_assignment(name, args.course, args.assignments)
    if args.grade_dir and args.out is None:
        raise UsageError("--grade-dir needs --out FILE, which receives the grades")
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
    grader = Grader(machine, assignment, args.hidden if args.hidden is not None else args.course, gpu)
    if args.grade_dir:
        return report.grade_folder(grader, args)
    if not os.path.lexists(args.grade):
        complain(f"--grade {args.grade}: there is no such file")
        return 2
    result = grader.grade(args.grade)
    show(result)
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
    except (AssignmentError, UsageError) as error:
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
