"""How much of a file has been changed, counted in tokens: of a starter by a student, of an answer by another course."""

import difflib
import re

from assignment import Assignment
from similarity import tokens

# A function that is longer than this counts as rewritten, because comparing two takes time in proportion to the product
# of their lengths.
LONGEST = 1500


def functions(source: str) -> dict[str, list[str]]:
    """The tokens of each function of device code by the function's name; those between functions under ""."""
    # A string may be assembly: its words count.
    words = [part for word in tokens(source) for part in (re.findall(r"\w+|[^\w\s]", word) if '"' in word else [word])]
    found: dict[str, list[str]] = {"": []}
    i = 0
    while i < len(words):
        if words[i] not in ("__global__", "__device__"):
            found[""].append(words[i])
            i += 1
            continue
        begin, name = i, ""
        while i < len(words) and words[i] not in ("{", ";"):
            if words[i] == "(" and not name:
                name = words[i - 1]
            i += 1
        depth = 0
        while i < len(words):
            depth += {"{": 1, "}": -1}.get(words[i], 0)
            i += 1
            if depth <= 0:
                break
        found.setdefault(name, []).extend(words[begin:i])
    return found


def difference(before: list[str], after: list[str]) -> int:
    """The number of tokens that were replaced, removed or added."""
    if max(len(before), len(after)) > LONGEST:
        return 0 if before == after else max(len(before), len(after))
    blocks = difflib.SequenceMatcher(None, before, after, autojunk=False).get_opcodes()
    return sum(max(i2 - i1, j2 - j1) for tag, i1, i2, j1, j2 in blocks if tag != "equal")


def changed_tokens(starter: str, source: str) -> dict[str, int]:
    """For each kernel, the number of tokens that have changed in it and in the code that all kernels may use."""
    before, after = functions(starter), functions(source)
    kernels = re.findall(r"__global__\s+void\s+(\w+)", starter)
    shared = sum(
        difference(before.get(name, []), after.get(name, [])) for name in before.keys() | after.keys() - set(kernels)
        if name not in kernels
    )  # fmt: skip
    return {name: shared + difference(before[name], after.get(name, [])) for name in kernels}


def solved_points(before: Assignment, now: Assignment) -> float:
    """The points of the checks and cases that the answer of another course solves, because what they launch has the
    same tokens. Different tokens may still be right: only grading can tell."""
    right, other = now.reference_answer(), now.answer_from(before)
    if tokens(right) == tokens(other):
        return 100.0
    if "from" in now.data["starter"]:  # a single kernel
        return 0.0
    changed = changed_tokens(right, other)
    kernels = {case["name"]: case["kernel"] for case in now.cases()}
    points = 0.0
    for check in now.data["check"]:
        cases = check.get("cases", list(kernels))
        points += check["points"] * sum(changed[kernels[case]] == 0 for case in cases) / len(cases)
    return round(points, 1)
