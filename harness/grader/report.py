"""Results as files, and a whole class at once."""

import argparse
import concurrent.futures
import contextlib
import csv
import hashlib
import io
import json
import os
import re
import sys
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import similarity
from compiler import NotGraded, Refused, compile_ptx, printable, ptx_hash, read_submission
from engine import Grader
from ladder import write_whole

COLUMNS = ("file", "score", "passed", "status", "message", "lost", "tflops", "sha256")


def to_json(result: dict[str, Any]) -> str:
    return json.dumps(result, indent=1, ensure_ascii=False) + "\n"


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


def to_csv(results: list[dict[str, Any]]) -> str:
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(COLUMNS)
    for result in results:
        lost = " | ".join(f"{check['name']}: {check['lost'][0]}" for check in result["checks"] if check["lost"])
        score = "" if result["score"] is None else f"{result['score']:g}"
        passed = {True: "yes", False: "no"}[result["passed"]] if result["status"] == "graded" else ""
        timings = result["gpu"]["timings"] if result["gpu"] else []
        tflops = f"{timings[0]['tflops']:.1f}" if timings else ""
        row = (result["file"], score, passed, result["status"], result["message"], lost, tflops, result["sha256"])
        writer.writerow([cell(value) for value in row])
    return out.getvalue()


# How each file that the grader writes begins: grades, the list of similar files, reports, JUnit and Gradescope results.
OURS = re.compile(
    rb'file,score,passed,status,|first,second,how,similarity\n|\[?\s*\{\s*"file": "[^\n]*",\s*"sha256": '
    rb'|<\?xml [^>]*>\s*<testsuites\b|\{\s*"score": [\d.]+,\s*"output": '
)


def is_ours(path: Path) -> bool:
    """Whether an earlier run has written this file, or folder of results. A .cu file belongs to a student."""
    if path.is_dir():
        return path.suffix == ".results" and all(re.match(r"\.?[0-9a-f]{64}\.json", e.name) for e in path.iterdir())
    if path.suffix.lower() == ".cu" or not path.is_file():
        return False
    try:
        with open(path, "rb") as file:
            return OURS.match(file.read(2000)) is not None
    except OSError:
        return False


def results_folder(grades: Path) -> Path:
    return grades.with_name(grades.name + ".results")


def similar_file(grades: Path) -> Path:
    return grades.with_name(grades.stem + ".similar.csv")


def where(path: Path) -> Path:
    """A canonical path, however the file was named. A link is not replaced by its target."""
    return path.parent.resolve() / path.name


def submissions(folder: Path, ours: set[Path]) -> tuple[list[Path], list[str]]:
    """The submissions: the entries of the folder and, for a folder in it, its .cu files, or the folder itself if it has
    none. Leaves out the grader's own outputs, `ours`, and anything that an earlier run has written; the second list
    contains the names of the latter. No link is followed."""
    found, left_out = [], []
    for entry in sorted(folder.iterdir()):
        if entry.name.startswith(".") or entry.name == "__MACOSX" or where(entry) in ours:
            continue
        if not entry.is_symlink() and is_ours(entry):
            left_out.append(printable(os.fsencode(entry.name).decode(errors="replace"), 200))
        elif entry.is_dir() and not entry.is_symlink():
            names = (path for path in entry.iterdir() if not path.name.startswith("."))  # ._a.cu is created by macOS
            found += sorted(path for path in names if path.suffix.lower() == ".cu") or [entry]
        else:
            found.append(entry)
    return found, left_out


def shown_name(path: Path, folder: Path) -> str:
    """A file's path in a folder, in a form that can be printed."""
    return printable(str(path.relative_to(folder)).encode(errors="replace").decode(), 200)


def graded_by() -> str:
    """A hash of everything that determines the points."""
    files = sorted(Path(__file__).parent.glob("*.py"))
    return hashlib.sha256(b"".join(path.read_bytes() for path in files)).hexdigest()


NO_FILE = Refused("there is no .cu file in this folder; its subfolders are not searched")


class Kept:
    """Results of this and earlier runs, one file each, so that an interrupted run can be resumed."""

    def __init__(self, grader: Grader, folder: Path) -> None:
        self.folder = folder
        program = hashlib.sha256(Path(grader.machine.grader).read_bytes()).hexdigest()
        what = grader.assignment
        self.same = "\0".join((what.digest, what.course, grader.hidden, grader.machine.toolkit, graded_by(), program,
                               str(grader.machine.isolated), grader.gpu.name if grader.gpu else ""))  # fmt: skip

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
    """Writes the list of similar files: of a class, the reference answer, and the archive."""
    reference = grader.assignment.reference_answer()
    names = [cell(name) for name in (*(result["file"] for result in results), "the reference answer", *archive)]
    known = dict(enumerate((reference, *archive.values()), len(results)))
    ptx = {i: result["ptx_sha256"] for i, result in enumerate(results) if result["ptx_sha256"]}
    with contextlib.suppress(Refused, NotGraded):
        ptx[len(results)] = ptx_hash(compile_ptx(grader.machine, reference.encode()))
    texts = {i: sources[i] for i in sorted(sources)}
    pairs = similarity.similar_pairs(texts, known, grader.assignment.starter(), ptx)
    out = io.StringIO()
    writer = csv.writer(out, lineterminator="\n")
    writer.writerow(("first", "second", "how", "similarity"))
    writer.writerows([(names[p.first], names[p.second], p.how, f"{p.similarity:.2f}") for p in pairs])
    write_whole(similar_file(args.out), out.getvalue())
    return pairs


def grade_folder(grader: Grader, args: argparse.Namespace) -> int:
    """Grades all files of a folder: writes a row for each to args.out, and similar pairs to args.out.similar.csv."""
    folder: Path = args.grade_dir
    if not folder.is_dir():
        print(f"harness: --grade-dir {folder}: there is no such folder", file=sys.stderr)
        return 2
    beside = (results_folder(args.out), similar_file(args.out))
    ours = {where(path) for path in (args.out, *beside, args.junit, args.report) if path}
    paths, left_out = submissions(folder, ours)
    if not paths:
        print(f"harness: --grade-dir {folder}: there is nothing in it to grade", file=sys.stderr)
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
            result = grader.refused(path, NO_FILE) if is_folder and path.parent == folder else grader.grade(path)
            result["file"] = shown_name(paths[index], folder)
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
                    results[index] = grader.failed(paths[index], error) | {"file": shown_name(paths[index], folder)}
                if sys.stderr.isatty():
                    end = "" if done < len(paths) else "\n"
                    print(f"\r{done} of {len(paths)} graded", end=end, file=sys.stderr, flush=True)
                if not args.share:
                    write_whole(args.out, to_csv([results[i] for i in sorted(results)]))
        except BaseException:  # Ctrl-C, or a full disk: no further work is started
            pool.shutdown(wait=False, cancel_futures=True)
            raise
    if args.share:
        print(f"{len(paths)} files graded; a run without --share collects all grades in {args.out}")
        return 0
    ordered = [results[i] for i in range(len(paths))]
    write_whole(args.out, to_csv(ordered))
    if args.junit:
        write_whole(args.junit, to_junit(ordered))
    if args.report:
        write_whole(args.report, json.dumps(ordered, indent=1, ensure_ascii=False) + "\n")

    pairs = write_similar(grader, args, ordered, sources, archive)
    open_files = [result for result in ordered if result["status"] != "graded"]
    scores = [result["score"] for result in ordered if result["score"] is not None]
    passed = sum(result["passed"] for result in ordered)
    mean = f", {sum(scores) / len(scores):.1f} points on average" if scores else ""
    compared = f", beside {len(archive)} of the archive" if args.archive else ""
    hidden = " with a hidden seed" if ordered[0]["hidden"] else ""
    print(f"{len(scores)} of {len(ordered)} files graded{hidden}{mean}, {passed} passed, {len(pairs)} pairs "
          f"alike{compared}: {args.out}")  # fmt: skip
    if left_out:
        print(f"  Left out, because an earlier run of the grader wrote them: {', '.join(left_out)}")
    for result in open_files:
        print(f"  {result['file']}: {result['message']}")
    return 3 if open_files else 0
