"""Excerpts from the kernels, located by the names of places, so that a page cannot quote code that differs from the
compiled code."""

from __future__ import annotations

import difflib
import re
import sys
from dataclasses import dataclass
from functools import cache
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))

from kernel_places import PlaceError, Places  # noqa: E402

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
def part(file: str, place: str) -> range:
    """The lines of a file, from 0, that belong to a place. Raises QuoteError."""
    try:
        return Places((ROOT / file).read_text(encoding="utf-8"), file).part(place)
    except PlaceError as error:
        raise QuoteError(str(error)) from error


def quote(file: str, start: str, end: str | None) -> Quote:
    """The lines from one place to another, as scripts/kernel_places.py names them.

    `end` may be "+ n", the nth statement after the comment in `start`, or "}" or "};", the next line that begins so.
    Without it, the quotation is the place `start`. Raises QuoteError.
    """
    path = ROOT / file
    if not path.is_file():
        raise QuoteError(f"there is no {file}")
    places = Places(path.read_text(encoding="utf-8"), file)
    lines = places.lines
    try:
        found = places.find(start)
        first, after = found.start, found.stop
        if end in ("}", "};"):
            after = next((i + 1 for i in range(first, len(lines)) if lines[i].lstrip().startswith(end)), 0)
        elif end is not None:
            after = places.find(f"{re.sub(r' [+] [0-9]+$', '', start)} {end}" if end.startswith("+ ") else end).stop
    except PlaceError as error:
        raise QuoteError(str(error)) from error
    if after <= first:
        raise QuoteError(f"{file} has no {end!r} after {start!r}")
    if after - first > MOST_LINES:
        raise QuoteError(
            f"{file}: {start!r} to {end!r} are {after - first} lines; at most {MOST_LINES} are quoted at a time"
        )
    return Quote(file, first + 1, lines[first:after])


def hunk(before: Quote, after: Quote) -> str:
    """The difference between two quotations, as `diff -u` shows it, without file names. Raises QuoteError."""
    # How far to the right a comment begins depends on its neighbours, and is not a difference.
    texts = [re.sub(r"(?<=\S) +//", "  //", quoted.text).splitlines() for quoted in (before, after)]
    lines = list(difflib.unified_diff(*texts, n=MOST_LINES, lineterm=""))[3:]
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
