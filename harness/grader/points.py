"""The points of each check, from what the launches did, and sentences about what is missing."""

import dataclasses
import re
import types
from typing import Any

from assignment import TRAFFIC, AssignmentError, evaluate
from compiler import printable
from launches import Launch

ALL_WORK = 0.97  # from this share on, the lesson's work is complete


@dataclasses.dataclass(frozen=True)
class Graded:
    """The launches of a file, by case, and what they are compared with."""

    launches: list[Launch]
    answers: list[dict[str, Any]]
    reference: list[dict[str, Any]] | None  # the answers of the reference answer, if any expression needs them
    starter: list[dict[str, Any]] | None
    changed: dict[str, int] | None  # by kernel: tokens that differ from the starter
    influence: list[dict[str, float]] | None  # by case: whether the results of some instructions matter

    def names(self, i: int) -> dict[str, Any]:
        """What expressions about case i may use."""
        launch, answer = self.launches[i], self.answers[i]
        names = launch.names | counted(answer) | {"ptx": answer.get("ptx", "")}
        for name, others in (("reference", self.reference), ("starter", self.starter)):
            if others is not None:
                names[name] = counts(counted(others[i]))
        if self.influence is not None:
            names["influence"] = counts(self.influence[i])
        if self.changed is not None:
            names["changed"] = self.changed.get(launch.case["kernel"], 0)
        return names

    def work(self, i: int) -> tuple[float, str]:
        """The share of the lesson's work that case i has done, and what to say if that is not all."""
        case = self.launches[i].case
        if "work" not in case:
            return 1.0, ""
        names = self.names(i)
        share = number(case["work"], names)
        if share >= ALL_WORK:
            return 1.0, ""
        share = max(0.0, share)
        return share, case["work_lost"].format(value=share, changed=names.get("changed", 0))


def counted(answer: dict[str, Any]) -> dict[str, Any]:
    more = {"useful": counts(answer["useful"]), "shared_bytes": answer["shared_bytes"]}
    if "lines" in answer:  # what a course hands out of its reference answer does not have them
        more["worst"] = counts({kind: worst_line(answer, kind) for kind in TRAFFIC})
    return answer["counters"] | more


def worst_line(answer: dict[str, Any], kind: str) -> float:
    """The most that the traffic of a line exceeds the ideal, as a ratio."""
    return max([1.0, *(got / ideal for got, ideal in traffic_by_line(answer, kind).values() if ideal)])


def counts(values: dict[str, Any]) -> types.SimpleNamespace:
    return types.SimpleNamespace(**values)


def number(expression: Any, names: dict[str, Any]) -> float:  # noqa: ANN401, whatever the assignment's author wrote
    """An expression's value; 0 if it divides by what did not happen."""
    try:
        return float(evaluate(expression, names))
    except AssignmentError as error:
        if isinstance(error.__cause__, ZeroDivisionError):
            return 0.0
        raise


def first_finding(answer: dict[str, Any]) -> str:
    if not answer["findings"]:
        return ""
    # A kernel that does not end has other findings as well, but they matter less.
    finding = next((f for f in answer["findings"] if f["kind"] == "endless_loop"), answer["findings"][0])
    line = f" in line {finding['line']}" if finding["line"] else ""
    return f"{finding['kind'].replace('_', ' ')}{line}: {printable(finding['message'])}"


def traffic_by_line(answer: dict[str, Any], kind: str) -> dict[int | None, tuple[int, int]]:
    """The traffic of each line of the file, and what would be ideal; None: of other files."""
    unit = TRAFFIC[kind]
    lines: dict[int | None, tuple[int, int]] = {}
    for line in answer["lines"]:
        counters = line["counters"]
        got, ideal = lines.get(line["line"], (0, 0))
        more = counters.get(f"{kind}_{unit}", 0), counters.get(f"{kind}_ideal_{unit}", 0)
        lines[line["line"]] = got + more[0], ideal + more[1]
    return lines


def costliest_lines(answer: dict[str, Any], kind: str) -> str:
    """The lines of the file that cause the most traffic beyond the ideal."""
    unit = TRAFFIC[kind]
    lines = {line: traffic for line, traffic in traffic_by_line(answer, kind).items() if line is not None}
    beyond = [(got - ideal, number, got, ideal) for number, (got, ideal) in lines.items() if got > ideal]
    worst = sorted(beyond, key=lambda line: (-line[0], line[1]))[:2]
    return "; ".join(f"line {number}: {got} {unit} where {ideal} would do" for _, number, got, ideal in worst)


def grade_check(check: dict[str, Any], graded: Graded) -> dict[str, Any]:
    """The points of one check, and a sentence about what is missing."""
    named = check.get("cases")
    chosen = [i for i, launch in enumerate(graded.launches) if named is None or launch.case["name"] in named]
    shares, sentences = [], []
    for i in chosen:
        share, sentence = share_of(check, graded, i)
        shares.append(share)
        if share < 1:
            sentences.append((share, f"{graded.launches[i].case['label']}: {sentence}"))
    share = sum(shares) / len(shares) if shares else 0.0
    # If the same is true for several cases, it is reported once; the worst comes first.
    said: dict[str, str] = {}
    for _, sentence in sorted(sentences, key=lambda pair: pair[0]):
        words = sentence.partition(": ")[2]
        said.setdefault(re.sub(r"[\d.]+", "#", words), sentence)
    points = round(check["points"] * share, 1)
    return {"name": check.get("name", check["kind"]), "kind": check["kind"], "points": points, "of": check["points"],
            "lost": list(said.values())}  # fmt: skip


def share_of(check: dict[str, Any], graded: Graded, i: int) -> tuple[float, str]:
    """The share of a check's points that one case earns, and a sentence if that is not all."""
    answer = graded.answers[i]
    if answer["wrong"]:
        if check["kind"] == "correct":
            cause = first_finding(answer)
            return 0.0, printable(answer["wrong"]) + (f". The virtual GPU saw: {cause}" if cause else "")
        is_counter = check["kind"] == "counter"
        return 0.0, "not counted, because the output is wrong" if is_counter else (
            first_finding(answer) or "not examined, because the output is wrong"
        )
    if check["kind"] == "findings" and answer["findings"]:
        return 0.0, first_finding(answer)
    try:
        work, lost = graded.work(i)
        if check["kind"] != "counter":
            return (1 + work) / 2, lost
        share, sentence = share_of_counter(check, graded.names(i), answer)
    except AssignmentError as error:
        raise AssignmentError(f"the check '{check.get('name', check['kind'])}': {error}") from error
    return share * work, lost or sentence


def share_of_counter(check: dict[str, Any], names: dict[str, Any], answer: dict[str, Any]) -> tuple[float, str]:
    if "needs" in check and not evaluate(check["needs"], names):
        return 0.0, check["needs_lost"]
    try:
        value = float(evaluate(check["value"], names))
    except AssignmentError as error:
        if isinstance(error.__cause__, ZeroDivisionError):
            return 0.0, check.get("needs_lost", "what is counted here does not happen at all")
        raise
    full, none = float(evaluate(check["full"], names)), float(evaluate(check["none"], names))
    if full == none:
        raise AssignmentError(f"full and none are both {full:g}, with nothing in between")
    share = min(1.0, max(0.0, (value - none) / (full - none)))
    if check.get("steps") and share < 1:
        share = 0.0
    share **= check.get("power", 1)
    times = min(1.0, max(0.0, number(check.get("times", 1), names)))
    if share == 1 and times < 1:
        return times, check["times_lost"]
    sentence = check["lost"].format(value=value, full=full, none=none)
    if "where" in check and (lines := costliest_lines(answer, check["where"])):
        sentence += f" ({lines})"
    if times < 1:
        sentence += f" {check['times_lost']}"
    return share * times, sentence
