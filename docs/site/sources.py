"""Excerpts from the kernels, located by their text, so that a page cannot quote code that differs from the compiled
code."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
PAGES = ROOT / "docs" / "source"  # the sources of the pages
MOST_LINES = 15  # limit for a quotation


class QuoteError(Exception):
    """A quotation that is not found, not unique or too long."""


@dataclass(frozen=True)
class Quote:
    file: str
    first: int  # line, from 1
    lines: list[str]

    @property
    def text(self) -> str:
        """The text with its common indentation removed; a #pragma has none."""
        moved = [line for line in self.lines if line.strip() and not line.startswith("#")]
        indent = min((len(line) - len(line.lstrip()) for line in moved), default=0)
        return "\n".join(line if line.startswith("#") else line[indent:] for line in self.lines)


def anchor(file: str, line: int | None = None) -> str:
    """The anchor of a line in the listing of the whole file, "06_swizzle-45"; without a line, their common part."""
    stem = Path(file).stem
    return stem if line is None else f"{stem}-{line}"


@cache
def lines_of(file: str) -> list[str]:
    """The lines of a file, given by its path from the root of the project."""
    return (ROOT / file).read_text(encoding="utf-8").splitlines()


def quote(file: str, start: str, end: str | None) -> Quote:
    """The lines from the one that contains `start` up to and including the next one that contains `end`.

    Only one line may contain `start`, so that an edit cannot make a page quote something else. Without `end`, the
    quotation is that one line. Raises QuoteError.
    """
    path = ROOT / file
    if not path.is_file():
        raise QuoteError(f"there is no {file}")
    lines = path.read_text(encoding="utf-8").splitlines()
    found = [i for i, line in enumerate(lines) if start in line]
    if len(found) != 1:
        raise QuoteError(
            f"{file} has {len(found)} lines with {start!r}; a quotation starts at a text that stands in one"
        )
    first = last = found[0]
    if end is not None:
        after = [i for i in range(first, len(lines)) if end in lines[i]]
        if not after:
            raise QuoteError(f"{file} has no {end!r} after {start!r}")
        last = after[0]
    if last - first + 1 > MOST_LINES:
        raise QuoteError(
            f"{file}: {start!r} to {end!r} are {last - first + 1} lines; at most {MOST_LINES} are quoted at a time"
        )
    return Quote(file, first + 1, lines[first : last + 1])


def hunk(before: Quote, after: Quote) -> str:
    """The difference between two quotations, as `diff -u` shows it, without file names. Raises QuoteError."""
    lines = list(difflib.unified_diff(before.text.splitlines(), after.text.splitlines(), n=MOST_LINES, lineterm=""))[3:]
    if not any(line[0] in "+-" for line in lines):
        raise QuoteError(f"{before.file} and {after.file} do not differ from {after.lines[0].strip()!r} on")
    if len(lines) > MOST_LINES:
        raise QuoteError(
            f"the change to {after.file} at {after.lines[0].strip()!r} is {len(lines)} lines; at most {MOST_LINES}"
        )
    return "\n".join(lines)


def header(file: str) -> dict[str, str]:
    """The paragraphs of a kernel's header comment: Idea, Changed, Prediction. Raises QuoteError."""
    paragraphs: dict[str, str] = {}
    name = ""
    for line in (ROOT / file).read_text(encoding="utf-8").splitlines()[1:]:
        if not line.startswith("//"):
            break
        match = re.match(r"// ([A-Z]\w+)  +(.*)", line)
        if match:
            name = match[1]
            paragraphs[name] = match[2]
        elif name:
            paragraphs[name] += " " + line[2:].strip()
    if not {"Idea", "Changed", "Prediction"} <= paragraphs.keys():
        raise QuoteError(f"{file} has no Idea, Changed and Prediction at its top")
    return paragraphs


def code_lines_changed(before: str, after: str) -> tuple[int, int]:
    """Lines of code that were added and removed, ignoring comments, blank lines and the version's number."""

    def code(file: str) -> list[str]:
        number = re.search(r"/(\d\d)_(\w+)\.cu", file)
        text = (ROOT / file).read_text(encoding="utf-8")
        stripped = (re.sub(r"\s*//.*", "", line).strip() for line in text.splitlines())
        own = {f".number = {int(number[1])},", f'.name = "{number[2]}",'} if number else set()
        return [
            line.replace(f"v{number[1]}", "vNN") if number else line for line in stripped if line and line not in own
        ]

    matcher = difflib.SequenceMatcher(None, code(before), code(after), autojunk=False)
    changes = [op for op in matcher.get_opcodes() if op[0] != "equal"]
    return sum(j2 - j1 for *_, j1, j2 in changes), sum(i2 - i1 for _, i1, i2, *_ in changes)
