"""Divides a chapter into slides that are well filled.

A slide is filled from the top until the next piece no longer fits, by an estimate of heights. What introduces a
drawing, a table or code stays with it. A section begins a slide, unless all of it fits below the preceding one, or the
preceding slide would be sparse otherwise. Nothing follows a prediction, because what comes next contains the answer.

The estimates need not be exact: drawings take the height that is left (slides.css), and slides_test.py measures the
slides in a browser.
"""

from __future__ import annotations

import enum
import math
import re
from collections.abc import Sequence
from dataclasses import dataclass, field

import sources

# In pixels of a slide of 1280 × 720, with the sizes of slides.css.
HEIGHT = 690  # the rest is for the slide's number
HEADING = 60
LINE, CHARACTERS = 34, 105  # of a text
MARGIN = 24  # below a paragraph or an entry
CODE_LINE, CODE_MARGIN, CODE_CHARACTERS = 23, 30, 108
PLACE = 30  # the file and the lines of a quotation
ROW, ROW_MARGIN, ROW_CHARACTERS = 24, 12, 120  # of a table
LEAST_DRAWING = 360  # with its caption
DIRECTIVES = {"chapter": 150, "measured": 240, "busy": 160, "sass": 500, "worked": 400, "prediction": 300}
SPARSE = 0.4 * HEIGHT  # the next section may begin on a slide that is not filled to this height


class Kind(enum.Enum):
    sentences = enum.auto()  # of a paragraph
    entry = enum.auto()  # of a list
    shown = enum.auto()  # a directive or code
    table = enum.auto()  # or a part of one
    heading = enum.auto()  # of another section, within a slide


@dataclass
class Piece:
    kind: Kind
    text: str
    notes: str = ""
    introduces: bool = False  # the next piece

    @property
    def height(self) -> int:
        match self.kind:
            case Kind.sentences | Kind.entry:
                return LINE * math.ceil(len(visible(self.text)) / CHARACTERS) + MARGIN
            case Kind.heading:
                return LINE + MARGIN
            case Kind.table:
                return sum(map(row_height, self.text.split("\n")))
            case Kind.shown:
                return height_of_shown(self.text)


def visible(text: str) -> str:
    """About what is shown of a text: of a role, the figure."""
    text = re.sub(r"\{(?:num|blank)\}`[^`]*`", "00000", text)
    return re.sub(r"\{\w+\}|[`*]", "", text)


def row_height(row: str) -> int:
    if set(row) <= set("|-: "):
        return 0
    return ROW * math.ceil(len(visible(row)) / ROW_CHARACTERS) + ROW_MARGIN


def height_of_shown(block: str) -> int:
    lines = block.split("\n")
    directive = re.match(r"[`:]{3,}\{(\w+)\} ?(.*)", lines[0])
    if directive is None:
        return height_of_code(lines[1:-1])
    name, argument = directive.groups()
    if name == "drawing":
        return LEAST_DRAWING
    if name == "quote":
        options = dict(re.findall(r"^:([\w-]+): (.*)$", block, re.MULTILINE))
        try:
            lines = quoted_lines(argument, options)
        except (KeyError, sources.QuoteError):  # reported when the directive is run
            lines = []
        return height_of_code(lines) + PLACE
    return DIRECTIVES[name]


def quoted_lines(file: str, options: dict[str, str]) -> list[str]:
    start, end = options["start"], options.get("end")
    found = sources.quote(file, start, end)
    if "against" not in options:
        return found.lines
    before = sources.quote(options["against"], options.get("start-against", start), options.get("end-against", end))
    return sources.hunk(before, found).split("\n")


def height_of_code(lines: Sequence[str]) -> int:
    return CODE_LINE * sum(max(1, math.ceil(len(line) / CODE_CHARACTERS)) for line in lines) + CODE_MARGIN


def parts_of_table(block: str) -> list[str]:
    """A table in parts that fit on slides, each with the headings."""
    heading, line, *rows = block.split("\n")
    parts: list[list[str]] = [[]]
    height = row_height(heading)
    for row in rows:
        if parts[-1] and height + row_height(row) > HEIGHT - HEADING - 3 * LINE:
            parts.append([])
            height = row_height(heading)
        parts[-1].append(row)
        height += row_height(row)
    return ["\n".join([heading, line, *part]) for part in parts]


@dataclass
class Slide:
    heading: str
    begins_section: bool
    pieces: list[Piece] = field(default_factory=list)

    @property
    def height(self) -> int:
        return HEADING + sum(piece.height for piece in self.pieces)

    def is_lone(self) -> bool:
        """Whether it has a single sentence, or less."""
        return len(self.pieces) < 2 and all(piece.kind is Kind.sentences for piece in self.pieces)

    def is_sparse(self) -> bool:
        return self.height < SPARSE or self.is_title()

    def is_title(self) -> bool:
        return any(piece.text.startswith("```{chapter}") for piece in self.pieces[-1:])

    def is_final(self) -> bool:
        return any("{prediction}" in piece.text for piece in self.pieces)

    def fits(self, more: Sequence[Piece]) -> bool:
        return not self.is_final() and self.height + sum(piece.height for piece in more) <= HEIGHT

    def markdown(self) -> str:
        blocks = [f"{'##' if self.begins_section else '###'} {self.heading}"]
        in_list = False
        for i, piece in enumerate(self.pieces):
            before, after = self.pieces[max(i - 1, 0)], self.pieces[min(i + 1, len(self.pieces) - 1)]
            neighbours = [near for near in (before, after) if near is not piece]
            text = piece.text
            bullet = piece.kind is Kind.sentences and not piece.introduces
            if bullet and any(near.kind is Kind.sentences and not near.introduces for near in neighbours):
                text = f"- {text}"
            elif piece.kind is Kind.heading:
                text = f"```{{rubric}} {text}\n```"
            is_entry = text.startswith("- ") or piece.kind is Kind.entry
            if in_list and is_entry:
                blocks[-1] += f"\n{text}"
            else:
                blocks.append(text)
            in_list = is_entry
        notes = "\n\n".join(piece.notes for piece in self.pieces if piece.notes)
        if notes:
            blocks.append(f"~~~{{revealjs-notes}}\n{notes}\n~~~")
        return "\n\n".join(blocks) + "\n"


def units_of(pieces: Sequence[Piece]) -> list[list[Piece]]:
    """What stays on one slide: a piece, with what introduces it."""
    units: list[list[Piece]] = []
    for piece in pieces:
        if units and units[-1][-1].introduces:
            units[-1].append(piece)
        else:
            units.append([piece])
    return units


def slides_of(sections: Sequence[tuple[str, list[Piece]]]) -> list[Slide]:
    """The slides of sections, given as headings and pieces."""
    slides: list[Slide] = []
    for heading, pieces in sections:
        name = Piece(Kind.heading, heading)
        units = units_of(pieces)
        last = slides[-1] if slides else None
        if last is not None and last.fits([name, *(units[0] if last.is_sparse() else pieces)]):
            last.pieces.append(name)
        else:
            slides.append(Slide(heading, True))
        for unit in units:
            if not slides[-1].fits(unit) and slides[-1].pieces:
                slides.append(Slide(heading, False))
            slides[-1].pieces += unit
        share(slides)
    return slides


def share(slides: list[Slide]) -> None:
    """Moves a piece from the last slide but one, if the last one would contain only a sentence."""
    if len(slides) < 2 or not slides[-1].is_lone() or slides[-1].begins_section:
        return
    before, last = slides[-2:]
    units = units_of(before.pieces)
    if len(units) > 2 and units[-2][-1].kind is not Kind.heading and last.fits(units[-1]):
        del before.pieces[-len(units[-1]) :]
        last.pieces[:0] = units[-1]
