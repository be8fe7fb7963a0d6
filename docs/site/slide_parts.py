"""Slides from chapters. A page of docs/site/slides/ says {slides of 06_swizzle} on a line of its own.

It is replaced by slides that contain the first sentence and the questions of each paragraph, and each drawing,
quotation, table and piece of code. The whole text goes into the speaker's notes. So slides say what the chapter says,
and their figures come from profiles/.

slide_layout.py divides a chapter into slides. Parts that only a reader needs are left out: sources, further reading,
and folded parts.
"""

from __future__ import annotations

import re
from typing import Any

import parts
import sources
from docutils import nodes
from facts import check_blank
from slide_layout import Kind, Piece, parts_of_table, slides_of
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

CHAPTERS = sources.PAGES / "chapters"
NO_SLIDES = ("Further reading", "How to do the exercises")  # sections
# The directives on slides; the others are for readers.
SHOWN = ("quote", "drawing", "measured", "busy", "sass", "worked", "prediction")
ENTRY = re.compile(r"^(?:\d+\.|-) ")  # an entry of a list
DIRECTIVE = re.compile(r"[`:]{3,}\{(\w+)\}")
logger = logging.getLogger(__name__)


def blocks_of(text: str) -> list[str]:
    """Paragraphs, lists, tables and fenced blocks, in order."""
    found: list[str] = []
    lines = text.split("\n")
    i = 0
    while i < len(lines):
        if not lines[i].strip():
            i += 1
            continue
        first = i
        if fence := re.match(r"(`{3,}|:{3,})", lines[i]):
            i += 1
            while i < len(lines) and lines[i].rstrip() != fence[1]:
                i += 1
            i += 1
        else:
            is_list = bool(ENTRY.match(lines[i]))
            # List entries may have further lines, which are indented.
            while i < len(lines):
                goes_on = is_list and re.match(r" {2,}\S", "".join(lines[i + 1 : i + 2]))
                if not lines[i].strip() and not goes_on:
                    break
                i += 1
        found.append("\n".join(lines[first:i]))
    return found


def main_sentences(paragraph: str, introduces: bool = False) -> str:
    """The first sentence, every question, and what introduces the next block: "The loop has three parts:".

    A full stop inside code, roles or emphasis does not end a sentence.
    """
    kept: list[str] = []

    def keep(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    text = re.sub(r"`[^`]*`", keep, " ".join(paragraph.split()))
    sentences = re.split(r"(?<=[.?!:])\)? (?=[^a-z0-9(])", text)
    last = len(sentences) - 1
    chosen = [
        sentence
        for i, sentence in enumerate(sentences)
        if i == 0
        or sentence.endswith("?")
        or (i == 1 and sentences[0].endswith(":"))
        or (i == last and introduces and sentence.endswith(":"))
    ]
    if not introduces and chosen[-1].endswith(":"):  # what it introduces is not on the slides
        chosen[-1] = f"{chosen[-1][:-1]}."
    return re.sub(r"\0(\d+)\0", lambda number: kept[int(number[1])], " ".join(chosen))


def without_links(text: str) -> str:
    """Removes links to pages and terms, which are not among the slides."""
    text = re.sub(r"\[([^\]]+)\]\([^)\s]*\)", r"\1", text)
    return re.sub(r"\{term\}`([^<`]*?)(?: <[^`]*>)?`", r"\1", text)


def pieces_of_section(text: str) -> list[Piece]:
    blocks = [block for block in blocks_of(text) if (found := DIRECTIVE.match(block)) is None or found[1] in SHOWN]
    pieces: list[Piece] = []
    for i, block in enumerate(blocks):
        if ENTRY.match(block):
            entries = re.split(r"\n(?=(?:\d+\.|-) )", block)
            for entry in entries:
                shorter = ENTRY.findall(entry)[0] + main_sentences(ENTRY.sub("", entry))
                pieces.append(Piece(Kind.entry, shorter, entry))
        elif block.startswith("|"):
            pieces += [Piece(Kind.table, part) for part in parts_of_table(block)]
        elif block.startswith(("```", ":::")):
            pieces.append(Piece(Kind.shown, block))
        else:
            introduces = i + 1 < len(blocks) and not is_paragraph(blocks[i + 1])
            pieces.append(Piece(Kind.sentences, main_sentences(block, introduces), block, introduces))
    return pieces


def is_paragraph(block: str) -> bool:
    return not ENTRY.match(block) and not block.startswith(("```", ":::", "|"))


def markdown_of(chapter: str) -> str:
    """A chapter as slides: the slides of a section are stacked vertically, and sections follow horizontally."""
    text = without_links((CHAPTERS / f"{chapter}.md").read_text(encoding="utf-8"))
    title, preface, *sections = re.split(r"^##? (.*)\n", text, flags=re.MULTILINE)[1:]
    lead = [Piece(Kind.shown, block) for block in blocks_of(preface) if block.startswith("```{chapter}")]
    named = [(heading, pieces_of_section(body)) for heading, body in zip(sections[::2], sections[1::2], strict=True)]
    return "\n\n".join(
        slide.markdown() for slide in slides_of([(title, lead), *(one for one in named if one[0] not in NO_SLIDES)])
    )


def write_slides(app: Sphinx, docname: str, source: list[str]) -> None:
    del app, docname
    source[0] = re.sub(r"^\{slides of (\w+)\}$", lambda found: markdown_of(found[1]), source[0], flags=re.MULTILINE)


class Answer(SphinxRole):
    """The answer of a calculation, which appears at the next key press."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            answer = check_blank(self.env.app.ladder_facts, self.text)
        except parts.ERRORS as error:
            logger.error("{blank}: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        return [nodes.inline("", parts.answer_shown(answer), classes=["fragment", "answer"])], []


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_role("blank", Answer(), override=True)
    app.connect("source-read", write_slides)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
