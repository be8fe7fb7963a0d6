"""Texts of answers, as changes of the starter and of the reference answer of the course, so that they follow both."""

from __future__ import annotations

import re
import sys
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).resolve().parents[3] / "harness" / "grader"))
from assignment import Assignment

Write = Callable[[Assignment], str]  # the text of an answer


def changed(text: str, *changes: tuple[str, str]) -> str:
    for old, new in changes:
        assert old in text, old
        text = text.replace(old, new)
    return text


def from_reference(*changes: tuple[str, str]) -> Write:
    return lambda assignment: changed(assignment.reference_answer(), *changes)


def from_starter(*changes: tuple[str, str]) -> Write:
    return lambda assignment: changed(assignment.starter(), *changes)


def replaced(*changes: tuple[str, str]) -> Write:
    """The reference answer with other text for each regular expression, which must match."""

    def write(assignment: Assignment) -> str:
        text = assignment.reference_answer()
        for old, new in changes:
            text, count = re.subn(old, new, text, flags=re.DOTALL | re.MULTILINE)
            assert count, old
        return text

    return write


def replaced_kernel(text: str, name: str, body: str) -> str:
    """A kernel with another body."""
    begin = text.index(f"__global__ void {name}(")
    begin = text.index("{\n", begin)
    end = text.index("\n}\n", begin)
    return text[:begin] + "{\n" + body + text[end:]


def renamed(assignment: Assignment) -> str:
    """Other names, other comments, other white space: the same answer."""
    text = re.sub(r"//(?! What is launched)[^\n]*", "", assignment.reference_answer())
    return re.sub(r"\bwarp_row\b", "first_row_of_warp", text)


def only(*parts: str) -> Write:
    """The starter with these of its parts taken from the reference answer."""

    def write(assignment: Assignment) -> str:
        text, answer = assignment.starter(), assignment.reference_answer()
        for region in assignment.data["starter"]["empty"]:
            if region.get("part") in parts:
                begin, end = assignment.region(text, region)
                text = text[:begin] + answer[slice(*assignment.region(answer, region))] + text[end:]
        return text

    return write


def starter(assignment: Assignment) -> str:
    return assignment.starter()


def reference(assignment: Assignment) -> str:
    return assignment.reference_answer()


# For each assignment, answers in the order in which a teacher would place them, the best last.
