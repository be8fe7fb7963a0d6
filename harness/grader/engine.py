"""Grades one file: reads it, compiles its device code, runs its kernels on the virtual GPU, and gives points. Compiling
and running happen in isolated processes (harness-grader), and no host code of the file ever runs. A score depends only
on the file, the seeds and the toolkit; anything that depends on the machine's speed ends without a score, as "not
graded"."""

import hashlib
import os
import re
import threading
from pathlib import Path
from typing import Any

from assignment import AnswersMissing, Assignment, AssignmentError
from changes import changed_tokens
from compiler import Machine, NotGraded, Refused, compile_ptx, printable, ptx_hash, read_submission
from counters import kept_counters
from gpu import REFERENCE, THIS_FILE, Gpu
from influence import KINDS, influence
from launches import make_launch, run_launches
from points import Graded, grade_check
from similarity import tokens

BELOW_PASS = 5  # a file whose output is wrong gets at most the pass mark less these points


class Grader:
    """Grades files for one assignment of one course. With a Gpu, correct files are also timed."""

    def __init__(
        self, machine: Machine, assignment: Assignment, hidden: str, gpu: Gpu | None = None, attempt: int = 1
    ) -> None:
        self.machine = machine
        self.assignment = assignment
        self.hidden = hidden
        self.gpu = gpu
        self.attempt = attempt  # one hint for each
        functions = assignment.functions()
        self.launches = []
        for case in assignment.cases():
            try:
                self.launches.append(make_launch(assignment, case, hidden, functions))
            except Exception as error:  # any error here comes from the assignment
                why = str(error) if isinstance(error, AssignmentError) else repr(error)
                raise AssignmentError(f"{assignment.name}: the case '{case['label']}': {why}") from error
        self._starter_source = assignment.starter()
        # Those of the reference answer and of the starter, and the PTX that gave them.
        self._answers: dict[str, tuple[str, list[dict[str, Any]]]] = {}
        try:
            self.reference_source = assignment.reference_answer()
        except AnswersMissing as error:
            self.reference_source = None
            labels = [launch.case["label"] for launch in self.launches]
            self._answers["reference answer"] = "", kept_counters(assignment, hidden, labels, error)
        self._starter_score: float | None = None
        self._lock = threading.RLock()

    def _answers_of(self, what: str, source: str | None) -> tuple[str, list[dict[str, Any]]]:
        with self._lock:
            if what not in self._answers:
                try:
                    ptx = compile_ptx(self.machine, source.encode())
                except Refused as error:
                    raise AssignmentError(f"{self.assignment.name}: the {what}: {error}") from error
                self._answers[what] = ptx, run_launches(self.machine, ptx, self.launches)
            return self._answers[what]

    def reference(self) -> list[dict[str, Any]]:
        """The results of the reference answer."""
        return self._answers_of("reference answer", self.reference_source)[1]

    def starter(self) -> list[dict[str, Any]]:
        """The results of the untouched starter."""
        return self._answers_of("starter", self._starter_source)[1]

    def starter_score(self) -> float:
        """The points of the untouched starter."""
        with self._lock:
            if self._starter_score is None:
                ptx, answers = self._answers_of("starter", self._starter_source)
                graded = self._graded(answers, self._starter_source, ptx)
                checks = [grade_check(check, graded) for check in self.assignment.data["check"]]
                self._starter_score = sum(check["points"] for check in checks)
            return self._starter_score

    def _mentions(self, name: str) -> bool:
        """Whether any expression uses this name."""
        tables = [*self.assignment.data["check"], *self.assignment.data["case"], self.assignment.data.get("launch", {})]
        return any(re.search(rf"\b{name}\b", str(table.get(key, ""))) for table in tables
                   for key in ("value", "needs", "full", "none", "work"))  # fmt: skip

    def _influence(self, answers: list[dict[str, Any]], ptx: str) -> list[dict[str, float]] | None:
        kinds = [kind for kind in KINDS if self._mentions(rf"influence\.{kind}")]
        return influence(self.machine, ptx, self.launches, answers, kinds) if kinds else None

    def _graded(self, answers: list[dict[str, Any]], source: str, ptx: str) -> Graded:
        return Graded(
            self.launches, answers,
            self.reference() if self._mentions("reference") else None,
            self.starter() if self._mentions("starter") else None,
            changed_tokens(self._starter_source, source) if self._mentions("changed") else None,
            self._influence(answers, ptx),
        )  # fmt: skip

    def _parts(self, source: str) -> dict[str, float]:
        """The parts of the starter that the file has changed, and the share of cases in which each is right inside the
        reference answer."""
        shares: dict[str, float] = {}
        if self.reference_source is None:
            return shares
        for region in self.assignment.data["starter"].get("empty", []):
            content = self.assignment.region(source, region) if "part" in region else None
            if content is None:
                continue
            untouched = self.assignment.region(self._starter_source, region)
            if tokens(source[slice(*content)]) == tokens(self._starter_source[slice(*untouched)]):
                continue
            begin, end = self.assignment.region(self.reference_source, region)
            mixed = self.reference_source[:begin] + source[slice(*content)] + self.reference_source[end:]
            try:
                answers = run_launches(self.machine, compile_ptx(self.machine, mixed.encode()), self.launches)
            except Refused:
                answers = []
            right = sum(not answer["wrong"] and not answer["findings"] for answer in answers)
            shares[region["part"]] = right / len(self.launches)
        return shares

    def _points_for_parts(self, source: str, score: float) -> dict[str, Any] | None:
        """For a file whose output is wrong: what it gets beyond its score for parts that are right by themselves. It
        begins at the points of the untouched starter, and ends below the pass mark."""
        number = sum("part" in region for region in self.assignment.data["starter"].get("empty", []))
        shares = self._parts(source) if number else {}
        if not any(shares.values()):
            return None
        least, most = self.starter_score(), self.assignment.pass_mark - BELOW_PASS
        points = round(least + sum(shares.values()) / number * max(0.0, most - least) - score, 1)
        if points <= 0:
            return None
        right = [part for part, share in shares.items() if share == 1]
        wrong = [part for part, share in shares.items() if share < 1]
        lost = []
        if right:
            lost.append(f"right inside the reference answer: {', '.join(right)}")
        if wrong:
            lost.append(f"wrong even inside the reference answer: {', '.join(wrong)}")
        return {"name": "parts that are right by themselves", "kind": "parts", "points": points, "of": points,
                "lost": lost}  # fmt: skip

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
            ptx = compile_ptx(self.machine, source)
            answers = run_launches(self.machine, ptx, self.launches)
            result["ptx_sha256"] = ptx_hash(ptx)
        except Refused as error:
            return result | self._no_points(error)
        except NotGraded as error:
            return result | {"status": "not graded", "score": None, "message": f"not graded: {error}"}
        result["cases"] = [
            {
                "name": launch.case["label"],
                "counters": {name: count for name, count in answer["counters"].items() if count},
            }
            for launch, answer in zip(self.launches, answers, strict=True)
        ]
        try:
            graded = self._graded(answers, source.decode(), ptx)
            result["checks"] = [grade_check(check, graded) for check in checks]
            if any(answer["wrong"] for answer in answers):
                own = sum(check["points"] for check in result["checks"])
                if (parts := self._points_for_parts(source.decode(), own)) is not None:
                    result["checks"].append(parts)
        except AssignmentError as error:
            raise AssignmentError(f"{self.assignment.name}: {error}") from error
        except NotGraded as error:
            return result | {"status": "not graded", "score": None, "checks": [], "message": f"not graded: {error}"}
        result["printed"] = printable(" ".join(answer.get("printed", "") for answer in answers))
        result["score"] = round(sum(check["points"] for check in result["checks"]), 1)
        result["passed"] = result["score"] >= self.assignment.pass_mark
        if not result["passed"]:
            result["hints"] = self.assignment.data.get("hints", [])[: self.attempt]
        if self.gpu is not None:
            result["gpu"] = self._time(ptx, answers)
        return result

    def _time(self, ptx: str, answers: list[dict[str, Any]]) -> dict[str, Any]:
        """The GPU's results for a file. Runs only files that are known to be right, because others have no speed."""
        if any(answer["wrong"] or answer["findings"] for answer in answers):
            return self.gpu.nothing("not timed: only files with correct results and no findings are")
        try:
            files = {THIS_FILE: ptx}
            if self.reference_source is not None:
                files[REFERENCE] = compile_ptx(self.machine, self.reference_source.encode())
            return self.gpu.time(self.machine, self.assignment, files)
        except NotGraded as error:
            return self.gpu.nothing(f"not timed: {error}")
