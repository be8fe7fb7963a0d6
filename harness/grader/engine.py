"""Grades one file: reads it, compiles its device code, runs its kernels on the virtual GPU, and gives points. Compiling
and running happen in isolated processes (harness-grader), and no host code of the file ever runs. A score depends only
on the file, the seeds and the toolkit; anything that depends on the machine's speed ends without a score, as "not
graded"."""

import hashlib
import os
import re
import threading
import types
from pathlib import Path
from typing import Any

from assignment import TRAFFIC, Assignment, AssignmentError, evaluate
from compiler import Machine, NotGraded, Refused, compile_ptx, printable, ptx_hash, read_submission
from gpu import REFERENCE, THIS_FILE, Gpu
from launches import Launch, make_launch, run_launches


def first_finding(answer: dict[str, Any]) -> str:
    if not answer["findings"]:
        return ""
    # A kernel that does not end has other findings as well, but they matter less.
    finding = next((f for f in answer["findings"] if f["kind"] == "endless_loop"), answer["findings"][0])
    line = f" in line {finding['line']}" if finding["line"] else ""
    return f"{finding['kind'].replace('_', ' ')}{line}: {printable(finding['message'])}"


def costliest_lines(answer: dict[str, Any], kind: str) -> str:
    """The lines of the file that cause the most traffic beyond the ideal."""
    unit = TRAFFIC[kind]
    lines: dict[int, list[int]] = {}
    for line in answer["lines"]:
        if line["line"] is not None:
            counters = line["counters"]
            total = lines.setdefault(line["line"], [0, 0])
            total[0] += counters.get(f"{kind}_{unit}", 0)
            total[1] += counters.get(f"{kind}_ideal_{unit}", 0)
    beyond = [(got - ideal, number, got, ideal) for number, (got, ideal) in lines.items() if got > ideal]
    worst = sorted(beyond, key=lambda line: (-line[0], line[1]))[:2]
    return "; ".join(f"line {number}: {got} {unit} where {ideal} would do" for _, number, got, ideal in worst)


def grade_check(check: dict[str, Any], launches: list[Launch], answers: list[dict[str, Any]],
                reference: list[dict[str, Any]] | None) -> dict[str, Any]:  # fmt: skip
    """The points of one check, and a sentence about what is missing."""
    named = check.get("cases")
    chosen = [i for i, launch in enumerate(launches) if named is None or launch.case["name"] in named]
    shares, sentences = [], []
    for i in chosen:
        launch, answer = launches[i], answers[i]
        label = launch.case["label"]
        is_right = not answer["wrong"]
        share, sentence = 0.0, ""
        if check["kind"] == "correct":
            share = float(is_right)
            cause = first_finding(answer)
            sentence = f"{label}: {printable(answer['wrong'])}" + (f". The virtual GPU found: {cause}" if cause else "")
        elif check["kind"] == "findings":
            share = float(is_right and not answer["findings"])
            sentence = f"{label}: {first_finding(answer) or 'not examined, because the output is wrong'}"
        elif not is_right:
            sentence = f"{label}: not counted, because the output is wrong"
        else:
            try:
                share, sentence = grade_counter(check, launch, answer, reference[i] if reference else None)
            except AssignmentError as error:
                raise AssignmentError(f"the check '{check['name']}': {error}") from error
            sentence = f"{label}: {sentence}"
        shares.append(share)
        if share < 1:
            sentences.append((share, sentence))
    share = sum(shares) / len(shares) if shares else 0.0
    # What is true for several cases is reported once; the worst comes first.
    said: dict[str, str] = {}
    for _, sentence in sorted(sentences, key=lambda pair: pair[0]):
        label, _, words = sentence.partition(": ")
        said.setdefault(re.sub(r"[\d.]+", "#", words), sentence)
    points = round(check["points"] * share, 1)
    return {"name": check.get("name", check["kind"]), "kind": check["kind"], "points": points, "of": check["points"],
            "lost": list(said.values())}  # fmt: skip


def grade_counter(
    check: dict[str, Any], launch: Launch, answer: dict[str, Any], reference: dict[str, Any] | None
) -> tuple[float, str]:
    names = launch.names | answer["counters"] | {"ptx": answer["ptx"]}
    if reference:
        names["reference"] = types.SimpleNamespace(**reference["counters"])
    if "needs" in check and not evaluate(check["needs"], names):
        return 0.0, check["needs_lost"]
    try:
        value = float(evaluate(check["value"], names))
    except AssignmentError as error:
        if isinstance(error.__cause__, ZeroDivisionError):
            return 0.0, check.get("needs_lost", "what is counted here does not occur at all")
        raise
    full, none = float(evaluate(check["full"], names)), float(evaluate(check["none"], names))
    if full == none:
        raise AssignmentError(f"full and none are both {full:g}, with nothing in between")
    share = min(1.0, max(0.0, (value - none) / (full - none)))
    if check.get("steps") and share < 1:
        share = 0.0
    sentence = check["lost"].format(value=value, full=full, none=none)
    if "where" in check and (lines := costliest_lines(answer, check["where"])):
        sentence += f" ({lines})"
    return share, sentence


class Grader:
    """Grades files for one assignment of one course. With a Gpu, correct files are also timed."""

    def __init__(self, machine: Machine, assignment: Assignment, hidden: str, gpu: Gpu | None = None) -> None:
        self.machine = machine
        self.assignment = assignment
        self.hidden = hidden
        self.gpu = gpu
        functions = assignment.functions()
        self.launches = []
        for case in assignment.cases():
            try:
                self.launches.append(make_launch(assignment, case, hidden, functions))
            except Exception as error:  # any error here comes from the assignment
                why = str(error) if isinstance(error, AssignmentError) else repr(error)
                raise AssignmentError(f"{assignment.name}: the case '{case['label']}': {why}") from error
        self._reference_source = assignment.reference_answer().encode()
        self._reference: list[dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def reference(self) -> list[dict[str, Any]]:
        """The results of the reference answer."""
        with self._lock:
            if self._reference is None:
                try:
                    ptx = compile_ptx(self.machine, self._reference_source)
                except Refused as error:
                    raise AssignmentError(f"{self.assignment.name}: the reference answer: {error}") from error
                self._reference = run_launches(self.machine, ptx, self.launches)
        return self._reference

    def compares_with_reference(self) -> bool:
        """Whether any check compares results with those of the reference answer."""
        return any("reference." in str(check.get(key, "")) for check in self.assignment.data["check"]
                   for key in ("value", "needs", "full", "none"))  # fmt: skip

    def _empty_result(self, path: Path) -> dict[str, Any]:
        return {
            "file": printable(os.fsdecode(path.name).encode(errors="replace").decode(), 200),
            "sha256": "", "assignment": self.assignment.name, "assignment_sha256": self.assignment.digest,
            "course": self.assignment.course, "hidden": self.hidden != self.assignment.course,
            "toolkit": self.machine.toolkit, "isolated": self.machine.isolated,
            "status": "graded", "message": "", "score": 0.0, "pass_mark": self.assignment.pass_mark, "passed": False,
            "ptx_sha256": "", "checks": [], "cases": [], "printed": "", "hints": [], "gpu": None,
        }  # fmt: skip

    def failed(self, path: Path, error: Exception) -> dict[str, Any]:
        """The result if grading itself has failed."""
        message = f"not graded: the grader failed: {printable(repr(error))}"
        return self._empty_result(path) | {"status": "not graded", "score": None, "message": message}

    def _no_points(self, error: Refused) -> dict[str, Any]:
        checks = [
            {"name": check.get("name", check["kind"]), "kind": check["kind"], "points": 0.0, "of": check["points"],
             "lost": [str(error)]} for check in self.assignment.data["check"]
        ]  # fmt: skip
        return {"message": f"0 points: {error}", "checks": checks}

    def refused(self, path: Path, error: Refused) -> dict[str, Any]:
        """The result if there is no file to read."""
        return self._empty_result(path) | self._no_points(error)

    def grade(self, path: Path) -> dict[str, Any]:
        """The result of a file, in the form of harness/results/grade.schema.json. Never raises because of the file's
        contents."""
        result = self._empty_result(path)
        checks = self.assignment.data["check"]
        try:
            source = read_submission(path)
            result["sha256"] = hashlib.sha256(source).hexdigest()
            reference = self.reference() if self.compares_with_reference() else None
            ptx = compile_ptx(self.machine, source)
            if reference is not None and source == self._reference_source:
                answers = reference
            else:
                answers = run_launches(self.machine, ptx, self.launches)
            result["ptx_sha256"] = ptx_hash(ptx)
        except Refused as error:
            return result | self._no_points(error)
        except NotGraded as error:
            return result | {"status": "not graded", "score": None, "message": f"not graded: {error}"}
        result["cases"] = [
            {"name": launch.case["label"],
             "counters": {name: count for name, count in answer["counters"].items() if count}}
            for launch, answer in zip(self.launches, answers, strict=True)
        ]
        try:
            result["checks"] = [grade_check(check, self.launches, answers, reference) for check in checks]
        except AssignmentError as error:
            raise AssignmentError(f"{self.assignment.name}: {error}") from error
        result["printed"] = printable(" ".join(answer.get("printed", "") for answer in answers))
        result["score"] = round(sum(check["points"] for check in result["checks"]), 1)
        result["passed"] = result["score"] >= self.assignment.pass_mark
        if not result["passed"]:
            result["hints"] = self.assignment.data.get("hints", [])
        if self.gpu is not None:
            result["gpu"] = self._time(ptx, answers)
        return result

    def _time(self, ptx: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
        """The GPU's results for a file. Runs only files that are known to be right, because others have no speed."""
        if any(answer["wrong"] or answer["findings"] for answer in answers):
            return self.gpu.nothing("not timed: only files with correct results and no findings are")
        try:
            reference = compile_ptx(self.machine, self._reference_source)
            return self.gpu.time(self.machine, self.assignment, {THIS_FILE: ptx, REFERENCE: reference})
        except NotGraded as error:
            return self.gpu.nothing(f"not timed: {error}")
