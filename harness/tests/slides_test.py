"""The slides agree with the chapters, and need no network."""

from __future__ import annotations

import os
import re
import statistics
import subprocess
import sys
from pathlib import Path

import pytest
from browser import needs_chromium, visit

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
SLIDES = ROOT / "docs" / "site" / "slides"
SESSIONS = sorted(SLIDES.glob("[0-9]*.md"))
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "scripts")]

pytest.importorskip("sphinx_revealjs", reason="sphinx-revealjs is not installed: scripts/slides does that")

import slide_layout  # noqa: E402
import slide_parts  # noqa: E402
import sources  # noqa: E402
from slide_layout import Kind, Piece, Slide, parts_of_table, slides_of  # noqa: E402


@pytest.fixture(scope="module")
def built(tmp_path_factory: pytest.TempPathFactory) -> Path:
    out = tmp_path_factory.mktemp("slides")
    command = [sys.executable, "-m", "sphinx", "-q", "-W", "--keep-going", "-b", "revealjs"]
    command += ["-d", str(out / "doctrees"), "-c", str(SLIDES), str(SLIDES), str(out / "slides")]
    environment = {**os.environ, "FLASH_LADDER_HARNESS": str(BUILD / "harness")}
    done = subprocess.run(command, capture_output=True, text=True, check=False, env=environment)
    assert done.returncode == 0 and not done.stderr, done.stderr
    return out / "slides"


def test_there_are_six_sessions() -> None:
    assert [session.name[0] for session in SESSIONS] == list("123456")


@pytest.mark.parametrize("session", SESSIONS, ids=lambda session: session.stem)
def test_a_session_is_made_of_its_chapters(session: Path, built: Path) -> None:
    page = (built / f"{session.stem}.html").read_text(encoding="utf-8")
    chapters = re.findall(r"\{slides of (\w+)\}", session.read_text(encoding="utf-8"))
    assert chapters and "{slides of" not in page
    for chapter in chapters:
        text = (sources.PAGES / "chapters" / f"{chapter}.md").read_text(encoding="utf-8")
        if "## By hand" in text:
            assert "fragment answer" in page, "answers appear with a key press"
        assert page.count("<figure") >= text.count("```{drawing}") > 0
        for heading in re.findall(r"^## (.*)$", text, flags=re.MULTILINE):
            is_there = f">{heading.replace('’', '&#8217;')}<" in page or f">{heading}<" in page
            assert is_there == (heading not in slide_parts.NO_SLIDES), heading
    assert page.count('class="notes"') >= 10
    loaded = re.findall(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"([^\"]*)\"", page)
    assert loaded
    for address in loaded:
        assert not address.startswith(("http", "//")), address
        assert (built / address.partition("?")[0]).is_file(), address


def test_a_slide_has_the_first_sentence_the_questions_and_what_introduces_the_next_block() -> None:
    text = "It is `a. B` {num}`f(1, 2); .2f`. Then more. And why? So. In two steps:"
    assert slide_parts.main_sentences(text) == "It is `a. B` {num}`f(1, 2); .2f`. And why?"
    assert slide_parts.main_sentences(text, introduces=True).endswith("And why? In two steps:")
    assert slide_parts.main_sentences("In short: It is. So.", introduces=False) == "In short: It is."
    assert slide_parts.main_sentences("It has two parts:", introduces=False) == "It has two parts."
    assert slide_parts.without_links("[a](b.md#c) {term}`warps <warp>` {term}`lane`") == "a warps lane"


def test_pieces_of_a_chapter() -> None:
    text = "One\ntwo.\n\nMore. In steps:\n\n1. a\n   b\n2. c\n\n```{quote} x\n:start: y\n\nz\n```\n"
    text += ":::{recorded} f\nt\n:::\n| a | b |\n|---|---|\n| 1 | 2 |\n"
    pieces = slide_parts.pieces_of_section(text)
    assert [(piece.kind.name, piece.text.split("\n")[0], piece.introduces) for piece in pieces] == [
        ("sentences", "One two.", False), ("sentences", "More. In steps:", True),
        ("entry", "1. a b", False), ("entry", "2. c", False),
        ("shown", "```{quote} x", False), ("table", "| a | b |", False),
    ]  # fmt: skip


def text_of(words: str, introduces: bool = False) -> Piece:
    return Piece(Kind.sentences, words, words, introduces)


def code_of(lines: int) -> Piece:
    return Piece(Kind.shown, "\n".join(["```", *("x" * lines), "```"]))


def contents(slides: list[Slide]) -> list[list[str]]:
    return [[slide.heading, *(piece.text.split("\n")[0] for piece in slide.pieces)] for slide in slides]


def test_a_short_section_shares_a_slide_and_a_lone_sentence_does_not_stay_alone() -> None:
    short, long = [text_of("One.")], [text_of(f"{n}.") for n in range(9)]
    assert contents(slides_of([("A", short), ("B", [*short, code_of(15)])])) == [["A", "One.", "B", "One.", "```"]]
    assert contents(slides_of([("A", long), ("B", short), ("C", [*short, code_of(15)])])) == [
        ["A", *(f"{n}." for n in range(9))], ["B", "One.", "C", "One.", "```"]
    ]  # fmt: skip
    slides = slides_of([("A", [*(text_of(f"{n}.") for n in range(10)), text_of("last.")])])
    assert [len(slide.pieces) for slide in slides] == [9, 2], "the last but one goes with it"


def test_what_introduces_code_stays_with_it_and_nothing_follows_a_prediction() -> None:
    pieces = [code_of(20), text_of("See:", introduces=True), code_of(9)]
    assert contents(slides_of([("A", pieces)])) == [["A", "```"], ["A", "See:", "```"]]
    guess = Piece(Kind.shown, "```{prediction} 04\n```")
    assert contents(slides_of([("A", [guess]), ("B", [text_of("It is 3.")])])) == [
        ["A", "```{prediction} 04"], ["B", "It is 3."]
    ]  # fmt: skip


def test_a_table_is_divided_between_rows_and_repeats_its_headings() -> None:
    rows = [f"| {n} | {'word ' * 40}|" for n in range(20)]
    parts = parts_of_table("\n".join(["| a | b |", "|---|---|", *rows]))
    assert len(parts) > 1 and [row for part in parts for row in part.split("\n")[2:]] == rows
    assert all(part.startswith("| a | b |\n|---|---|\n") for part in parts)
    assert all(Piece(Kind.table, part).height < slide_layout.HEIGHT for part in parts)


@needs_chromium
def test_slides_are_neither_cut_nor_empty(built: Path, tmp_path: Path) -> None:
    names = [session.stem for session in SESSIONS]
    found = visit(tmp_path, built, [(name, f"{name}.html", "slides") for name in names])
    for name in names:
        title, *slides = found[name]
        assert title["text"] and len(slides) > 5, name
        for slide in slides:
            assert slide["bottom"] <= 720 and slide["right"] <= 1281 and not slide["cut"], slide
            assert all(height > 150 for height in slide["drawings"]), slide
            assert slide["blocks"] or len(re.findall(r"[.?!](?= |$)", slide["text"])) > 1, slide
        assert statistics.mean(slide["bottom"] for slide in slides) > 720 / 2, name
