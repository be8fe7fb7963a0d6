"""Results as files, and a whole class at once."""

import argparse
import concurrent.futures
import contextlib
import csv
import dataclasses
import hashlib
import io
import json
import re
import sys
import tempfile
import zipfile
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import gradebook
import handed_in
import similarity
from assignment import course_line, course_of
from compiler import NotGraded, Refused, compile_ptx, printable, ptx_hash, read_submission
from engine import Grader
from ladder import write_whole

COLUMNS = ("file", "score", "passed", "status", "message", "lost", "tflops", "sha256", "late", "written", "total")


def to_json(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


def to_text(result: dict[str, Any]) -> str:
    """For a reader: the points, and why points were lost."""
    course = f", course {result['course']}" if result["course"] else ""
    hidden = ", with a hidden seed" if result["hidden"] else ""
    lines = [f"{result['file']} · {result['assignment']}{course}{hidden}"]
    for check in result["checks"]:
        lines.append(f"  {check['points']:5.1f} of {check['of']:3}  {check['name']}")
        for sentence in check["lost"]:
            if not result["message"].endswith(sentence):  # reported once, below
                lines.append(f"                 {sentence}")
    if result["printed"]:
        lines.append(f"  The kernels printed: {result['printed']}")
    if result["message"]:
        lines.append(f"  {result['message']}")
    if result["status"] == "graded":
        verdict = "passed" if result["passed"] else "not passed"
        lines.append(f"  {result['score']:5.1f} of 100  {verdict}: the pass mark is {result['pass_mark']:g}")
    if not result["passed"] and not result["course"]:
        lines.append("  This was graded without --course. A starter that was made with one needs it here, too.")
    lines += [f"  Hint: {hint}" for hint in result["hints"]]
    if result["gpu"]:
        lines += speed(result["gpu"])
    return "\n".join(lines) + "\n"


def speed(gpu: dict[str, Any]) -> list[str]:
    """Times measured in turn on a GPU. The last is the ladder's version, with which the others are compared."""
    what = f": {gpu['message']}" if gpu["message"] else ", which does not affect the points:"
    lines = [f"  On {gpu['device']}{what}"]
    for timing in gpu["timings"]:
        share = timing["tflops"] / gpu["timings"][-1]["tflops"]
        lines.append(f"  {timing['tflops']:7.1f} TFLOP/s  {share:5.2f}x  {timing['name']}  ({timing['problem']})")
    return lines


def to_junit(results: list[dict[str, Any]]) -> str:
    """A suite per file, a case per check: a failure if points are missing, an error if nothing was graded."""
    suites = ElementTree.Element("testsuites")
    for result in results:
        suite = ElementTree.SubElement(suites, "testsuite", name=result["file"])
        name = result["assignment"]
        for check in result["checks"]:
            case = ElementTree.SubElement(
                suite, "testcase", classname=name, name=f"{check['name']}: {check['points']:g} of {check['of']} points"
            )
            if check["lost"]:
                ElementTree.SubElement(case, "failure", message=check["lost"][0]).text = "\n".join(check["lost"])
        if result["status"] != "graded":
            case = ElementTree.SubElement(suite, "testcase", classname=name, name="grading")
            ElementTree.SubElement(case, "error", message=result["message"])
        suite.set("tests", str(len(suite)))
        suite.set("failures", str(len(suite.findall("testcase/failure"))))
        suite.set("errors", str(len(suite.findall("testcase/error"))))
    ElementTree.indent(suites)
    return ElementTree.tostring(suites, encoding="unicode", xml_declaration=True) + "\n"


def to_gradescope(result: dict[str, Any]) -> str:
    """https://gradescope-autograders.readthedocs.io/en/latest/specs/"""
    tests = [
        {"name": check["name"], "score": check["points"], "max_score": check["of"], "output": "\n".join(check["lost"])}
        for check in result["checks"]
    ]
    said = [result["message"], *(f"Hint: {hint}" for hint in result["hints"])]
    output = "\n".join(text for text in said if text)
    return (
        json.dumps({"score": result["score"], "output": output, "output_format": "text", "tests": tests}, indent=1)
        + "\n"
    )


def cell(text: str) -> str:
    """Text that a spreadsheet does not interpret as a formula, whatever a file is called."""
    return f"'{text}" if text[:1] in ("=", "+", "-", "@") else text


@dataclasses.dataclass(frozen=True)
class Extra:
    """What the grades say of a file besides its result."""

    student: handed_in.Student | None = None
    late: str = ""
    written: float | None = None  # the marks of the written question

    def total(self, result: dict[str, Any]) -> float | None:
        missing = self.written is None or result["score"] is None
        return None if missing else round(result["score"] + self.written, 1)


def number(value: float | None) -> str:
    return "" if value is None else f"{value:g}"


def to_csv(results: list[dict[str, Any]], extras: list[Extra]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result, extra in zip(results, extras, strict=True):
        lost = " | ".join(f"{check['name']}: {check['lost'][0]}" for check in result["checks"] if check["lost"])
        passed = {True: "yes", False: "no"}[result["passed"]] if result["status"] == "graded" else ""
        timings = result["gpu"]["timings"] if result["gpu"] else []
        tflops = f"{timings[0]['tflops']:.1f}" if timings else ""
        row = (result["file"], number(result["score"]), passed, result["status"], result["message"], lost, tflops,
               result["sha256"], extra.late, number(extra.written), number(extra.total(result)))  # fmt: skip
        writer.writerow([cell(value) for value in row])
    return out.getvalue()


# How each file that the grader writes begins: grades, the list of similar files, reports, JUnit and Gradescope results.
OURS = re.compile(
    rb'file,score,passed,status,|first,second,how,similarity\n|\[?\s*\{\s*"file": "[^\n]*",\s*"sha256": '
    rb'|<\?xml [^>]*>\s*<testsuites\b|\{\s*"score": [\d.]+,\s*"output": '
)


FEEDBACK = b"feedback by flash-ladder's grader"  # the comment of a zip


def is_ours(path: Path) -> bool:
    """Whether an earlier run has written this file, or folder of results. A .cu file belongs to a student."""
    if path.is_dir():
        return path.suffix == ".results" and all(re.match(r"\.?[0-9a-f]{64}\.json", e.name) for e in path.iterdir())
    if path.suffix.lower() == ".cu" or not path.is_file():
        return False
    try:
        if zipfile.is_zipfile(path):
            with zipfile.ZipFile(path) as packed:
                return packed.comment == FEEDBACK
        with open(path, "rb") as file:
            return OURS.match(file.read(2000)) is not None
    except (OSError, zipfile.BadZipFile):
        return False


def results_folder(grades: Path) -> Path:
    return grades.with_name(grades.name + ".results")


def similar_file(grades: Path) -> Path:
    return grades.with_name(grades.stem + ".similar.csv")


def feedback_file(grades: Path) -> Path:
    return grades.with_name(grades.stem + ".feedback.zip")


def gradebook_file(grades: Path) -> Path:
    return grades.with_name(grades.stem + ".gradebook.csv")


def feedback_zip(results: list[dict[str, Any]], extras: list[Extra], paths: list[Path]) -> bytes:
    """A text for each student whose platform is known, under names that the platform accepts."""
    out = io.BytesIO()
    with zipfile.ZipFile(out, "w", zipfile.ZIP_DEFLATED) as packed:
        packed.comment = FEEDBACK
        for result, extra, path in zip(results, extras, paths, strict=True):
            if extra.student is None:
                continue
            said = to_text(result)
            if extra.written is not None:
                said += f"  {extra.written:g} points for the written question\n"
            name = extra.student.feedback_name(path)
            while name in packed.namelist():  # files of the same name in several folders
                name = name.replace(".feedback.txt", "_.feedback.txt")
            packed.writestr(zipfile.ZipInfo(name), said)
    return out.getvalue()


def where(path: Path) -> Path:
    """A canonical path, however the file was named. A link is not replaced by its target."""
    return path.parent.resolve() / path.name


def submissions(folder: Path, ours: set[Path]) -> handed_in.Class:
    """The submissions: the entries of the folder and, for a folder in it, the .cu files in it at any depth, or the
    folder itself if it has none. Leaves out the grader's own outputs, `ours`, and whatever an earlier run has
    written."""
    found = handed_in.Class()
    for entry in sorted(folder.iterdir()):
        if handed_in.is_hidden(entry) or where(entry) in ours:
            continue
        if not entry.is_symlink() and is_ours(entry):
            found.written_before.append(entry)
        elif entry.is_dir() and not entry.is_symlink():
            files = handed_in.files_below(entry)
            sources = [path for path in files if handed_in.is_cuda(path)]
            found.paths += sources or [entry]
            found.ignored += [path for path in files if not handed_in.is_cuda(path)]
        elif handed_in.USUAL.fullmatch(handed_in.own_name(entry.name)):
            found.ignored.append(entry)
        else:
            found.paths.append(entry)
    return found


def shown_name(path: Path, folder: Path) -> str:
    """A file's path in a folder, in a form that can be printed."""
    return printable(str(path.relative_to(folder)).encode(errors="replace").decode(), 200)


def graded_by() -> str:
    """A hash of everything that determines the points."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


NO_FILE = Refused("there is no .cu file in this folder or in its subfolders")


class Kept:
    """Results of this and earlier runs, one file each, so that an interrupted run can be resumed."""

    def __init__(self, grader: Grader, folder: Path) -> None:
        self.folder = folder
        program = hashlib.sha256(Path(grader.machine.grader).read_bytes()).hexdigest()
        what = grader.assignment
        self.same = "\0".join((what.digest, what.course, grader.hidden, grader.machine.toolkit, graded_by(), program,
                               str(grader.machine.isolated), str(what.pass_mark),
                               grader.gpu.name if grader.gpu else ""))  # fmt: skip

    def path(self, name: str, source: bytes) -> Path:
        key = hashlib.sha256(source + b"\0" + f"{name}\0{self.same}".encode(errors="surrogateescape")).hexdigest()
        return self.folder / f"{key}.json"

    def read(self, path: Path) -> dict[str, Any] | None:
        try:
            result = json.loads(path.read_text(encoding="utf-8"))
        except (OSError, ValueError):
            return None
        return result if result.get("status") == "graded" else None


def archived(archive: Path, folder: Path) -> dict[str, str]:
    """The files of earlier years by name: all .cu files of a folder, at any depth, that could be graded. Not those of
    `folder`, which are graded now."""
    texts = {}
    for path in sorted(archive.rglob("*")):
        if path.suffix.lower() != ".cu" or folder.resolve() in path.resolve().parents:
            continue
        with contextlib.suppress(Refused, NotGraded):
            texts[f"archive: {shown_name(path, archive)}"] = read_submission(path).decode()
    return texts


def write_similar(grader: Grader, args: argparse.Namespace, results: list[dict[str, Any]], sources: dict[int, str],
                  archive: dict[str, str]) -> list[similarity.Pair]:  # fmt: skip
    """Writes the list of similar files among the class, the reference answer and the archive."""
    reference = {} if grader.reference_source is None else {"the reference answer": grader.reference_source}
    names = [cell(name) for name in (*(result["file"] for result in results), *reference, *archive)]
    known = dict(enumerate((*reference.values(), *archive.values()), len(results)))
    ptx = {i: result["ptx_sha256"] for i, result in enumerate(results) if result["ptx_sha256"]}
    for text in reference.values():
        with contextlib.suppress(Refused, NotGraded):
            ptx[len(results)] = ptx_hash(compile_ptx(grader.machine, text.encode()))
    texts = {i: sources[i] for i in sorted(sources)}
    pairs = similarity.similar_pairs(texts, known, grader.assignment.starter(), ptx)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("first", "second", "how", "similarity"))
    writer.writerows([(names[p.first], names[p.second], p.how, f"{p.similarity:.2f}") for p in pairs])
    write_whole(similar_file(args.out), out.getvalue())
    return pairs


def grade_file(grader: Grader, path: Path) -> dict[str, Any]:
    """The result of a file. A file that was made for another course would be judged by another assignment's standards,
    so it is not graded."""
    here = grader.assignment.course
    try:
        made_for = course_of(read_submission(path).decode())
    except (Refused, NotGraded):
        made_for = None  # which the grader says
    if made_for is None or course_line(made_for) == course_line(here):
        return grader.grade(path)
    made_for, of = printable(made_for), f"for the course '{here}'" if here else "without --course"
    why = f"its line '// Course' says '{made_for}', and it was to be graded {of}; try --course '{made_for}'"
    return grader.failed(path, ValueError()) | {"message": f"not graded: {why}"}


def grade_folder(grader: Grader, args: argparse.Namespace) -> int:
    """Grades all files of a folder, or of a zip: writes a row for each to args.out, and more files beside it."""
    if args.grade_dir.is_file() and args.grade_dir.suffix.lower() == ".zip":
        with tempfile.TemporaryDirectory(prefix="flash-ladder-class-") as folder:
            try:
                handed_in.unpack(args.grade_dir, Path(folder))
            except handed_in.NotAZip as error:
                print(f"harness: --grade-dir {args.grade_dir} cannot be unpacked: {error}", file=sys.stderr)
                return 2
            return grade_files(grader, args, Path(folder))
    if not args.grade_dir.is_dir():
        print(f"harness: --grade-dir {args.grade_dir}: there is no such folder, nor a zip", file=sys.stderr)
        return 2
    return grade_files(grader, args, args.grade_dir)


def named(paths: list[Path], folder: Path) -> str:
    """The first ten names, and how many more there are."""
    more = f" and {len(paths) - 10} more" if len(paths) > 10 else ""
    return ", ".join(shown_name(path, folder) for path in paths[:10]) + more


def grade_files(grader: Grader, args: argparse.Namespace, folder: Path) -> int:
    beside = (results_folder(args.out), similar_file(args.out), feedback_file(args.out), gradebook_file(args.out))
    ours = {where(path) for path in (args.out, *beside, args.junit, args.report, args.written, args.gradebook) if path}
    given = submissions(folder, ours)
    paths = given.paths
    if not paths:
        print(f"harness: --grade-dir {args.grade_dir}: there is nothing in it to grade", file=sys.stderr)
        return 2
    if args.archive and not args.archive.is_dir():
        print(f"harness: --archive {args.archive}: there is no such folder", file=sys.stderr)
        return 2
    archive = archived(args.archive, folder) if args.archive else {}
    if args.share:
        index, _, count = args.share.partition("/")
        if not (index.isdecimal() and count.isdecimal() and int(index) < int(count)):
            print(f"harness: --share '{args.share}' is not a share; 0/4 to 3/4 are the four quarters", file=sys.stderr)
            return 2
        paths = paths[int(index) :: int(count)]
    rubric = grader.assignment.data.get("rubric", [])
    book = gradebook.Gradebook(args.gradebook, args.column) if args.gradebook else None
    marks = gradebook.read_written(args.written, rubric) if args.written and args.written.exists() else {}
    students = [handed_in.student_of(path, folder) for path in paths]
    names = [shown_name(path, folder) for path in paths]
    extras = [
        Extra(student, handed_in.lateness(path, student, args.due), marks.get(cell(name)))
        for path, name, student in zip(paths, names, students, strict=True)
    ]
    kept = Kept(grader, results_folder(args.out))
    kept.folder.mkdir(parents=True, exist_ok=True)
    results: dict[int, dict[str, Any]] = {}
    sources: dict[int, str] = {}

    def grade(index: int) -> dict[str, Any]:
        path = paths[index]
        name = str(path.relative_to(folder))
        try:
            source = read_submission(path)
            sources[index] = source.decode()
        except Exception:
            source = None
        file = kept.path(name, source) if source is not None else None
        result = kept.read(file) if file else None
        if result is None:
            is_folder = path.is_dir() and not path.is_symlink()
            result = grader.refused(path, NO_FILE) if is_folder and path.parent == folder else grade_file(grader, path)
            result["file"] = names[index]
            if file:
                write_whole(file, to_json(result))
        return result

    with concurrent.futures.ThreadPoolExecutor(max_workers=max(1, args.jobs)) as pool:
        futures = {pool.submit(grade, index): index for index in range(len(paths))}
        try:
            for done, future in enumerate(concurrent.futures.as_completed(futures), 1):
                index = futures[future]
                try:
                    results[index] = future.result()
                except Exception as error:  # one broken file must never stop the rest
                    results[index] = grader.failed(paths[index], error) | {"file": names[index]}
                if sys.stderr.isatty():
                    end = "" if done < len(paths) else "\n"
                    print(f"\r{done} of {len(paths)} graded", end=end, file=sys.stderr, flush=True)
                if not args.share:
                    order = sorted(results)
                    write_whole(args.out, to_csv([results[i] for i in order], [extras[i] for i in order]))
        except BaseException:  # Ctrl-C, or a full disk: no further work is started
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if args.share:
        print(f"{len(paths)} files graded; a run without --share collects all grades in {args.out}")
        return 0
    ordered = [results[i] for i in range(len(paths))]
    write_whole(args.out, to_csv(ordered, extras))
    if args.junit:
        write_whole(args.junit, to_junit(ordered))
    if args.report:
        write_whole(args.report, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")

    pairs = write_similar(grader, args, ordered, sources, archive)
    if any(students):
        write_whole(feedback_file(args.out), feedback_zip(ordered, extras, paths))

    open_files = [result for result in ordered if result["status"] != "graded"]
    scores = [result["score"] for result in ordered if result["score"] is not None]
    passed = sum(result["passed"] for result in ordered)
    mean = f", {sum(scores) / len(scores):.1f} points on average" if scores else ""
    compared = f", beside {len(archive)} of the archive" if args.archive else ""
    hidden = " with a hidden seed" if ordered[0]["hidden"] else ""
    print(f"{len(scores)} of {len(ordered)} files graded{hidden}{mean}, {passed} passed, {len(pairs)} pairs "
          f"alike{compared}: {args.out}")  # fmt: skip
    if late := sum(extra.late not in ("", "no") for extra in extras):
        print(f"  Late: {late} of {len(extras)}")
    if given.ignored:
        print(f"  Ignored: {named(given.ignored, folder)}")
    if given.written_before:
        print(f"  Left out, because an earlier run of the grader wrote them: {named(given.written_before, folder)}")
    if args.written and not args.written.exists():
        write_whole(args.written, gradebook.empty_sheet([cell(name) for name in names], rubric))
        print(f"  {args.written} is an empty sheet for the written question: fill it in, and run this command again")
    elif args.written and (unmarked := [path for path, e in zip(paths, extras, strict=True) if e.written is None]):
        print(f"  Not marked in {args.written}: {named(unmarked, folder)}")
    if book:
        points = 100 + sum(entry["points"] for entry in rubric) if args.written else 100
        for result, extra in zip(ordered, extras, strict=True):
            grade_of_file = extra.total(result) if args.written else result["score"]
            if extra.student is not None and grade_of_file is not None:
                book.enter(extra.student.id, result["file"], grade_of_file / points)
        write_whole(gradebook_file(args.out), book.filled_in())
        print(f"  {gradebook_file(args.out)} has the grades of {len(book.grades)} students")
        for note in book.notes():
            print(f"  {note}")
    for result in open_files:
        print(f"  {result['file']}: {result['message']}")
    return 3 if open_files else 0
