#!/usr/bin/env python3
"""Measures whether the grader's points follow the work: it changes each assignment's reference answer in many places,
one at a time, and grades the result.

A mutant is the reference answer with one token or one line of the student's part changed, as scripts/mutate.py changes
versions. The places depend only on the answer's text and on --seed. The answers are those of a course for practice,
which are in the project, and each is graded with hidden sizes and inputs. The outcome is one of these:

  lowered        fewer than 100 points, or no score because it does not end
  kept           all points: a gap, unless scripts/equivalent_answers.toml says why the mutant is as good
  no mutant      it is refused before it runs, or the compiler generates the same code

Results are kept in --output, and a run resumes where the previous run ended.

  scripts/mutate_answers.py --assignments mma,swizzle --jobs 2    two assignments, and the mutants that keep all points
  scripts/mutate_answers.py --jobs 2 --publish                    all, for the table in docs/teaching.md

Needs a build of harness-grader (scripts/setup --slim harness-grader). A mutant takes about a second of CPU time. Exit
status: 0 done, 1 a mutant keeps all points without a reason, 2 bad usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import copy
import dataclasses
import hashlib
import json
import random
import re
import sys
import tempfile
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import mutate
import tomllib
from ladder import BUILD, ROOT

sys.path.insert(0, str(ROOT / "harness" / "grader"))
from assignment import Assignment, AssignmentError, find_assignment, names_of_assignments, read_assignment
from compiler import Machine, Refused, Unavailable, compile_ptx, ptx_hash
from engine import Grader

EQUIVALENT = ROOT / "scripts" / "equivalent_answers.toml"
PUBLISHED = ROOT / "harness" / "tests" / "answer_mutants.json"
COURSE, HIDDEN = "practice", "hidden"
NO_MUTANT = ("refused", "same code")
NAME = r"(?<![\w.:])(?!const|int|float|auto|return|if|else|for)[a-z]\w*"  # of a variable
BEGIN, END = "// the student's part", "// the end of the student's part"


# ---- Mutants ----


def answer_of(assignment: Assignment) -> tuple[str, set[int]]:
    """The reference answer, and the numbers of the lines that a student writes."""
    data = copy.deepcopy(assignment.data)
    starter = data["starter"]
    if "source" in starter:
        starter["source"] = re.sub(
            r"^( *// answer\b[^\n]*\n)(.*?)^( *// end\n)", rf"\1{BEGIN}\n\2{END}\n\3", starter["source"],
            flags=re.DOTALL | re.MULTILINE,
        )  # fmt: skip
    marked = dataclasses.replace(assignment, data=data).reference_answer()
    lines: list[str] = []
    written: set[int] = set()
    inside = False
    for line in marked.split("\n"):
        if line in (BEGIN, END):
            inside = line == BEGIN
            continue
        lines.append(line)
        if inside:
            written.add(len(lines))
    text = "\n".join(lines)
    for region in starter.get("empty", []):
        if region.get("with") != region.get("reference_with") or "with" not in region:
            begin, end = assignment.region(text, region)
            written |= set(range(text.count("\n", 0, begin) + 1, text.count("\n", 0, end) + 2))
    return text, written


def mutants_of(assignment: Assignment, text: str, written: set[int], seed: int) -> list[mutate.Mutant]:
    """All mutants of the student's part, in the order in which they are tried. A second change of the same place comes
    after the first changes of all others, and after these the other changes of tokens, because some answers have only a
    few places."""
    lines = [(number, code) for number, code in mutate.lines_of_code(text) if number in written]
    key = f"{seed}:{assignment.name}"
    mutants = mutate.alternating(lines, key, again=True)
    known = {(mutant.line, mutant.column, mutant.new) for mutant in mutants}
    others = [mutant for mutant in other_tokens(lines) if (mutant.line, mutant.column, mutant.new) not in known]
    generator = random.Random(key)
    return mutants + sorted(others, key=lambda mutant: (generator.random(), mutant.key))


def other_tokens(lines: list[tuple[int, str]]) -> Iterator[mutate.Mutant]:
    """Each operator, digit and name of these lines in place of each other one."""
    names = sorted({name for _, code in lines for name in re.findall(rf"{NAME}(?=[^\w(:<{{])", code)})
    for place, (number, code) in enumerate(lines):
        for pattern, others in ((r"(?<= )[-+*/%^|&](?= )", "+-*/%^|&"), (r"(?<![\w.])\d(?![\w.])", "0123456789"),
                                (rf"{NAME}(?=[^\w(:<{{])", names)):  # fmt: skip
            for match in re.finditer(pattern, code):
                for new in others:
                    changed = (code[: match.start()] + new + code[match.end() :]).strip()
                    if new != match[0]:
                        yield mutate.Mutant(number, place, match.start(), "token", code.strip(), changed)


def digest(assignment: Assignment) -> str:
    """Of the reference answer without its comments, and of everything that decides its points."""
    graded = {name: assignment.data.get(name) for name in ("launch", "case", "check", "python")}
    text = mutate.code_digest(assignment.reference_answer()) + json.dumps(graded)
    return hashlib.sha256(text.encode()).hexdigest()


# ---- Grading ----


class Workshop:
    """Makes and grades the mutants of an assignment's answer."""

    def __init__(self, machine: Machine, name: str) -> None:
        self.grader = Grader(machine, read_assignment(name, COURSE), HIDDEN)
        self.text, self.written = answer_of(self.grader.assignment)
        if self.text != self.grader.assignment.reference_answer():
            raise mutate.Missing(f"{name}: the student's part of the reference answer cannot be found")
        self.ptx = ptx_hash(compile_ptx(machine, self.text.encode()))
        if (right := self._grade(self.text))["points"] != 100:
            raise mutate.Missing(f"{name}: the reference answer has {right['points']} points")

    def run(self, mutant: mutate.Mutant) -> dict[str, Any]:
        text = mutate.mutated(self.text, mutant)
        try:
            if ptx_hash(compile_ptx(self.grader.machine, text.encode())) == self.ptx:
                return {"outcome": "same code"}
        except Refused as error:
            return {"outcome": "refused", "by": str(error).splitlines()[0][:200]}
        return self._grade(text)

    def _grade(self, text: str) -> dict[str, Any]:
        with tempfile.TemporaryDirectory(prefix="answer-") as folder:
            file = Path(folder) / "answer.cu"
            file.write_text(text, encoding="utf-8")
            result = self.grader.grade(file)
        points = result["score"]
        lost = [check["name"] for check in result["checks"] if check["points"] < check["of"]]
        by = "; ".join(lost) or result["message"][:200]
        return {"outcome": "kept" if points == 100 else "lowered", "points": points, "by": by}


class Record:
    """The results so far, kept in a file."""

    def __init__(self, path: Path, seed: int) -> None:
        self.path = path
        self.data: dict[str, Any] = {"seed": seed, "assignments": {}}
        if path.exists():
            try:
                self.data = json.loads(path.read_text(encoding="utf-8"))
                if self.data["seed"] != seed:
                    raise mutate.Missing(f"{path} has --seed {self.data['seed']}; use it, or name another --output")
            except (ValueError, KeyError, TypeError) as error:
                raise mutate.Missing(
                    f"{path} was not written by this script ({error!r}); name another --output"
                ) from error

    def of(self, workshop: Workshop) -> dict[str, Any]:
        """The results for the assignment's present answer and checks; others are discarded."""
        assignment = workshop.grader.assignment
        known = self.data["assignments"].get(assignment.name)
        if known is None or known["answer"] != digest(assignment):
            known = self.data["assignments"][assignment.name] = {"answer": digest(assignment), "mutants": {}}
        return known["mutants"]

    def write(self) -> None:
        self.path.write_text(json.dumps(self.data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")


def run_assignment(name: str, machine: Machine, record: Record, arguments: argparse.Namespace) -> None:
    workshop = Workshop(machine, name)
    mutants = mutants_of(workshop.grader.assignment, workshop.text, workshop.written, arguments.seed)
    known = record.of(workshop)

    def run(mutant: mutate.Mutant) -> None:
        outcome = workshop.run(mutant)
        entry = {"line": mutant.line, "kind": mutant.kind, "old": mutant.old, "new": mutant.new}
        known[mutant.key] = entry | outcome
        if not arguments.quiet:
            said = f"{outcome['outcome']} {outcome.get('points', '')} {outcome.get('by', '')}"
            print(f"{mutate.described(name, mutant.__dict__)}\n    {said}", flush=True)

    def todo() -> list[mutate.Mutant]:
        """Those of the first mutants that have not been tried, not counting those that turned out not to be mutants."""
        first = [one for one in mutants if known.get(one.key, {}).get("outcome") not in NO_MUTANT][: arguments.places]
        return [one for one in first if one.key not in known]

    with ThreadPoolExecutor(arguments.jobs) as pool:
        while batch := todo():
            for _ in pool.map(run, batch):
                pass
            record.write()


# ---- Reports ----


def equivalent() -> list[dict[str, Any]]:
    return tomllib.loads(EQUIVALENT.read_text(encoding="utf-8")).get("mutant", []) if EQUIVALENT.exists() else []


def reason_of(name: str, mutant: dict[str, Any], known: list[dict[str, Any]]) -> str | None:
    """Why a mutant is as good as the answer, if the reason is known."""
    for entry in known:
        same = mutant["old"] == entry["old"] and mutant["new"] in mutate.changes_to(entry, mutant["new"])
        if same and name == entry["assignment"]:
            return entry["reason"]
    return None


def summary(name: str, mutants: list[dict[str, Any]], pass_mark: float, known: list[dict[str, Any]]) -> dict[str, int]:
    kept = [mutant for mutant in mutants if mutant["outcome"] == "kept"]
    lowered = [mutant for mutant in mutants if mutant["outcome"] == "lowered"]
    equal = sum(reason_of(name, mutant, known) is not None for mutant in kept)
    return {
        "mutants": len(kept) + len(lowered),
        "lowered": len(lowered),
        "fail": sum(mutant["points"] is None or mutant["points"] < pass_mark for mutant in lowered),
        "equivalent": equal,
        "kept": len(kept) - equal,
    }


def report(record: Record) -> tuple[dict[str, dict[str, int]], list[str]]:
    """The table's row of each assignment, and the mutants that keep all points."""
    known = equivalent()
    rows, kept = {}, []
    for name, tried in sorted(record.data["assignments"].items()):
        mutants = [*tried["mutants"].values()]
        rows[name] = summary(name, mutants, read_assignment(name, COURSE).pass_mark, known)
        for mutant in sorted(mutants, key=lambda one: one["line"]):
            if mutant["outcome"] == "kept":
                why = reason_of(name, mutant, known)
                kept.append(mutate.described(name, mutant) + (f"  (equivalent: {why})" if why else ""))
    return rows, kept


def publish(record: Record, rows: dict[str, dict[str, int]], places: int) -> None:
    """Writes the rows of the assignments that were tried completely."""
    earlier = json.loads(PUBLISHED.read_text(encoding="utf-8"))["assignments"] if PUBLISHED.exists() else {}
    for name, row in rows.items():
        if row["mutants"] < places:
            print(f"{name}: only {row['mutants']} mutants were tried", file=sys.stderr)
        else:
            earlier[name] = {"answer": record.data["assignments"][name]["answer"], **row}
    document = {"seed": record.data["seed"], "places": places, "assignments": dict(sorted(earlier.items()))}
    PUBLISHED.write_text(json.dumps(document, indent=1) + "\n", encoding="utf-8")
    print(f"wrote {PUBLISHED.relative_to(ROOT)}")


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--assignments", default="all", help="mma,06 or all (%(default)s)")
    parser.add_argument("--places", type=int, default=60, metavar="N", help="mutants of each answer (%(default)s)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed that selects them (%(default)s)")
    parser.add_argument("--jobs", type=int, default=1, metavar="N", help="mutants graded at a time (%(default)s)")
    parser.add_argument("--build", type=Path, default=BUILD, help="build folder with the grader (build/)")
    parser.add_argument(
        "--output", type=Path, default=Path("answer_mutants.json"), metavar="FILE", help="results (%(default)s)"
    )
    parser.add_argument("--publish", action="store_true", help=f"write {PUBLISHED.relative_to(ROOT)}")
    parser.add_argument("--quiet", action="store_true", help="no lines for each mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    arguments = parser.parse_args()
    for option in ("places", "jobs"):
        if getattr(arguments, option) < 1:
            parser.error(f"--{option} {getattr(arguments, option)} is out of range; give 1 or more")
    try:
        wanted = names_of_assignments()
        if arguments.assignments != "all":
            wanted = [find_assignment(name).stem for name in arguments.assignments.split(",")]
        if arguments.list:
            for name in wanted:
                assignment = read_assignment(name, COURSE)
                for mutant in mutants_of(assignment, *answer_of(assignment), arguments.seed)[: arguments.places]:
                    print(mutate.described(name, mutant.__dict__))
            return 0
        machine = Machine.of_build(arguments.build, isolated=False)  # the files are the project's own
        record = Record(arguments.output, arguments.seed)
        for name in wanted:
            run_assignment(name, machine, record, arguments)
        rows, kept = report(record)
        print("\n".join(kept))
        for name, row in rows.items():
            print(f"{name:24}" + "".join(f"{count:5} {what}" for what, count in row.items()))
        if arguments.publish:
            publish(record, rows, arguments.places)
        return 1 if any(row["kept"] for row in rows.values()) else 0
    except AssignmentError as error:
        print(f"mutate_answers.py: {error}", file=sys.stderr)
        return 2
    except (mutate.Missing, Unavailable) as error:
        print(f"mutate_answers.py: {error}", file=sys.stderr)
        return 3


if __name__ == "__main__":
    sys.exit(main())
