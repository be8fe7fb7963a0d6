"""Slides from chapters. A page of docs/site/slides/ says {slides of 06_swizzle} on a line of its own.

It is replaced by one slide per section of that chapter, with the first sentence and the questions of each paragraph,
and one slide for each drawing, quotation, table and piece of code. The whole text goes into the speaker's notes. So
slides say what the chapter says, and their figures come from profiles/.

Parts that only a reader needs are left out: sources, further reading, and folded parts.
"""

from __future__ import annotations

import re
from dataclasses import dataclass, field
from typing import Any

import parts
import sources
from docutils import nodes
from facts import check_blank
from sphinx.application import Sphinx
from sphinx.util import logging
from sphinx.util.docutils import SphinxRole

CHAPTERS = sources.PAGES / "chapters"
NO_SLIDES = ("Further reading", "How to do the exercises")  # sections
# The directives on slides; the others are for readers.
SHOWN = ("quote", "drawing", "measured", "busy", "sass", "worked", "prediction")
MOST_SENTENCES = 4  # on a slide
ENTRY = re.compile(r"^(?:\d+\.|-) ")  # an entry of a list
logger = logging.getLogger(__name__)


@dataclass
class Slide:
    sentences: list[str] = field(default_factory=list)
    shown: str = ""  # a directive, a list, a table or code
    notes: list[str] = field(default_factory=list)


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


def main_sentences(paragraph: str) -> str:
    """The first sentence, and every question. A full stop inside code, roles or emphasis does not end a sentence."""
    kept: list[str] = []

    def keep(code: re.Match[str]) -> str:
        kept.append(code[0])
        return f"\0{len(kept) - 1}\0"

    text = re.sub(r"`[^`]*`", keep, " ".join(paragraph.split()))
    sentences = re.split(r"(?<=[.?!:])\)? (?=[^a-z0-9(])", text)
    chosen = [sentence for i, sentence in enumerate(sentences) if i == 0 or sentence.endswith("?")]
    return re.sub(r"\0(\d+)\0", lambda number: kept[int(number[1])], " ".join(chosen))


def without_links(text: str) -> str:
    """Removes links to pages and terms, which are not among the slides."""
    text = re.sub(r"\[([^\]]+)\]\([^)\s]*\)", r"\1", text)
    return re.sub(r"\{term\}`([^<`]*?)(?: <[^`]*>)?`", r"\1", text)


def slides_of_section(text: str) -> list[Slide]:
    slides, slide = [], Slide()

    def turn() -> None:
        nonlocal slide
        if slide.sentences or slide.shown:
            slides.append(slide)
        slide = Slide()

    for block in blocks_of(text):
        directive = re.match(r"[`:]{3,}\{(\w+)\}", block)
        if directive and directive[1] not in SHOWN:
            continue
        entries = re.split(r"\n(?=(?:\d+\.|-) )", block) if ENTRY.match(block) else []
        if entries:
            turn()
            shorter = [main_sentences(ENTRY.sub("", entry)) for entry in entries]
            shorter = [ENTRY.findall(entry)[0] + text for entry, text in zip(entries, shorter, strict=True)]
            for first in range(0, len(entries), MOST_SENTENCES + 1):
                last = first + MOST_SENTENCES + 1
                slide = Slide(shown="\n".join(shorter[first:last]), notes=entries[first:last])
                turn()
        elif directive or block.startswith(("```", "|")):
            slide.shown = block
            turn()
        else:
            if len(slide.sentences) == MOST_SENTENCES:
                turn()
            slide.sentences.append(main_sentences(block))
            slide.notes.append(block)
    turn()
    return slides


def markdown_of(chapter: str) -> str:
    """A chapter as slides: the slides of a section are stacked vertically, and sections follow horizontally."""
    text = without_links((CHAPTERS / f"{chapter}.md").read_text(encoding="utf-8"))
    title, *sections = re.split(r"^##? (.*)\n", text, flags=re.MULTILINE)[1:]
    parts = [f"## {title}\n", *(block for block in blocks_of(sections[0]) if block.startswith("```{chapter}"))]
    for heading, body in zip(["", *sections[1::2]], sections[0::2], strict=True):
        if heading in NO_SLIDES or not heading:
            continue
        for number, slide in enumerate(slides_of_section(body)):
            parts.append(f"{'###' if number else '##'} {heading}\n")
            sentences = [f"- {sentence}" for sentence in slide.sentences]
            parts.append("\n".join(sentences) if len(sentences) > 1 else "".join(slide.sentences))
            parts.append(slide.shown)
            if slide.notes:
                notes = "\n\n".join(slide.notes)
                parts.append(f"~~~{{revealjs-notes}}\n{notes}\n~~~")
    return "\n\n".join(part for part in parts if part) + "\n"


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
