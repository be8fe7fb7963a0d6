"""The slides agree with the chapters, and need no network."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
SLIDES = ROOT / "docs" / "site" / "slides"
SESSIONS = sorted(SLIDES.glob("[0-9]*.md"))
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "scripts")]

pytest.importorskip("sphinx_revealjs", reason="sphinx-revealjs is not installed: scripts/slides does that")

import slide_parts  # noqa: E402
import sources  # noqa: E402


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
    assert page.count('class="notes"') > 10
    loaded = re.findall(r"<(?:script|img|link)\b[^>]*\b(?:src|href)=\"([^\"]*)\"", page)
    assert loaded
    for address in loaded:
        assert not address.startswith(("http", "//")), address
        assert (built / address.partition("?")[0]).is_file(), address


def test_a_slide_has_the_first_sentence_and_the_questions() -> None:
    assert slide_parts.main_sentences("It is `a. B` {num}`f(1, 2); .2f`. Then more. And why? So.") == (
        "It is `a. B` {num}`f(1, 2); .2f`. And why?"
    )
    assert slide_parts.without_links("[a](b.md#c) {term}`warps <warp>` {term}`lane`") == "a warps lane"


def test_blocks_of_a_chapter() -> None:
    text = "One\ntwo.\n\n1. a\n   b\n2. c\n\n```{quote} x\n:start: y\n\nz\n```\n"
    text += ":::{recorded} f\nt\n:::\n| a | b |\n|---|---|\n"
    slides = slide_parts.slides_of_section(text)
    assert [slide.sentences for slide in slides] == [["One two."], [], [], []]
    assert [slide.shown[:9] for slide in slides] == ["", "1. a b\n2.", "```{quote", "| a | b |"]
