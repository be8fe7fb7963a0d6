"""The pages that are read on GitHub correspond to docs/source/, are complete, and do not depend on the toolkit."""

from __future__ import annotations

import os
import re
import shutil
import subprocess
import sys
from pathlib import Path
from urllib.parse import unquote

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
DOCS = ROOT / "docs"
sys.path[:0] = [str(DOCS / "site"), str(ROOT / "scripts")]

import pages  # noqa: E402
from sources import PAGES as SOURCES  # noqa: E402

LIBRARY = pages.Library.of(None, SOURCES)
NAMES = sorted(LIBRARY.sources)
# Plain pages, which are their own source, contain links and are linked to.
READ_ON_GITHUB = sorted({*(f"{name}.md" for name in NAMES), *(path.name for path in DOCS.glob("*.md"))})


def run(root: Path, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(root / "docs" / "site" / "pages.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


@pytest.fixture
def tree(tmp_path: Path) -> Path:
    """The repository with the sources of three pages, and a harness that can only list."""
    for folder in ("docs/site", "profiles", "scripts"):
        shutil.copytree(ROOT / folder, tmp_path / folder, ignore=shutil.ignore_patterns("__pycache__"))
    for folder in ("common", "harness", "kernels"):
        (tmp_path / folder).symlink_to(ROOT / folder)
    shutil.copy(ROOT / "README.md", tmp_path / "README.md")
    for name in ("glossary", "chapters/00_gpu", "chapters/08_pipelined_kv"):
        source = tmp_path / (SOURCES / f"{name}.md").relative_to(ROOT)
        source.parent.mkdir(parents=True, exist_ok=True)
        shutil.copy(SOURCES / f"{name}.md", source)
        page = tmp_path / "docs" / f"{name}.md"
        page.parent.mkdir(exist_ok=True)
        shutil.copy(DOCS / f"{name}.md", page)
        for drawing in re.findall(r"\((\S+\.svg)\)", page.read_text(encoding="utf-8")):
            (tmp_path / "docs" / "figures" / "drawings").mkdir(parents=True, exist_ok=True)
            shutil.copy(DOCS / "chapters" / drawing, tmp_path / "docs" / "chapters" / drawing)
    (tmp_path / "build").mkdir()
    harness = tmp_path / "build" / "harness"
    harness.write_text(f'#!/bin/sh\n[ "$1" = --list ] || exit 2\nexec "{BUILD / "harness"}" "$@"\n', encoding="utf-8")
    harness.chmod(0o755)
    return tmp_path


# ---- pages that are out of date ----


def test_the_pages_of_this_repository_are_up_to_date() -> None:
    done = run(ROOT, "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_harness_is_only_asked_what_the_sources_say(tree: Path) -> None:
    """It is not asked for machine code of the build, nor for a trace: 08 has the drawing of one."""
    done = run(tree, "--check")
    assert (done.returncode, done.stdout, done.stderr) == (0, "", "")


def test_what_is_out_of_date_is_named_and_mended(tree: Path) -> None:
    source = tree / (SOURCES / "chapters" / "08_pipelined_kv.md").relative_to(ROOT)
    page = tree / "docs" / "chapters" / "08_pipelined_kv.md"
    source.write_text(source.read_text(encoding="utf-8").replace("# 08 ·", "# 08 · Another title ·"), encoding="utf-8")
    before = page.read_bytes()
    drawings = tree / "docs" / "figures" / "drawings"
    (drawings / "sm.svg").write_text("<svg/>", encoding="utf-8")
    (drawings / "nobody_shows_this.svg").write_text("<svg/>", encoding="utf-8")
    done = run(tree, "--check")
    assert done.returncode == 1
    named = ["chapters/08_pipelined_kv.md", "figures/drawings/nobody_shows_this.svg", "figures/drawings/sm.svg"]
    assert sorted(done.stdout.splitlines()) == [
        "Run: scripts/docs --pages",
        *(f"docs/{file} is out of date" for file in named),
    ]
    assert page.read_bytes() == before, "--check writes nothing"
    assert run(tree).returncode == 0
    assert "# 08 · Another title ·" in page.read_text(encoding="utf-8")
    assert (drawings / "sm.svg").read_bytes() == (DOCS / "figures" / "drawings" / "sm.svg").read_bytes()
    assert not (drawings / "nobody_shows_this.svg").exists()
    assert run(tree, "--check").returncode == 0


def test_what_a_source_cannot_ask_for_is_named_and_nothing_is_written(tree: Path) -> None:
    source = tree / (SOURCES / "chapters" / "08_pipelined_kv.md").relative_to(ROOT)
    wrong = "\n".join(
        [
            "{num}`stop(6)`, {blank}`3 = 2 + 2`, {term}`no such word`, {nothing}`x`",
            "```{nothing} x\n```",
            "```{quote} kernels/06_swizzle.cu\n:begin: x\n```",
            "```{drawing} no_such_drawing\n:alt: x\n```",
        ]
    )
    source.write_text(source.read_text(encoding="utf-8") + wrong, encoding="utf-8")
    before = {path: path.read_bytes() for path in tree.glob("docs/**/*.*")}
    done = run(tree)
    assert done.returncode == 3
    for message in (
        "docs/source/chapters/08_pipelined_kv.md: {num}`stop(6)`: 'stop(6)' cannot be computed",
        "{blank}`3 = 2 + 2`: the answer 3 is not 2 + 2",
        "{term}`no such word`: no glossary has 'no such word'",
        "{nothing}`x`: there is no such role",
        "{nothing} x: there is no such directive",
        "{quote} kernels/06_swizzle.cu: it has no option begin",
        "{drawing} no_such_drawing: there is no drawing no_such_drawing",
    ):
        assert message in done.stderr
    assert before == {path: path.read_bytes() for path in tree.glob("docs/**/*.*")}


def test_a_stale_recording_is_said_on_the_page(tree: Path) -> None:
    profile = tree / "profiles" / "h200" / "08_pipelined_kv.json"
    text = profile.read_text(encoding="utf-8")
    profile.write_text(re.sub(r'"code_hash": "sha256:\w{8}', '"code_hash": "sha256:00000000', text), encoding="utf-8")
    assert run(tree, "--check").returncode == 1
    assert run(tree).returncode == 0
    page = (tree / "docs" / "chapters" / "08_pipelined_kv.md").read_text(encoding="utf-8")
    said = r"> \[!WARNING\]\n> Stale profile: .*since `profiles/h200/08_pipelined_kv.json`.* (was|were) recorded"
    assert re.search(said, page)


def test_another_processor_may_round_differently() -> None:
    assert pages.alike('<path d="M 1.25 3"/>', '<path d="M 1.26 3"/>')
    assert not pages.alike('<path d="M 1.25 3"/>', '<path d="M 1.35 3"/>')
    assert not pages.alike('<path d="M 1.25 3"/>', '<path d="M 1.25 4"/>')
    assert not pages.alike('<path d="M 1.25 3"/>', '<path d="M 1.25 3"/><path d="M 1.25 3"/>')


# ---- what is on them ----


def text_of(page: str) -> str:
    return (DOCS / page).read_text(encoding="utf-8")


def prose_of(page: str) -> str:
    """The page without code."""
    text = re.sub(r"^( *)(```+).*?^\1\2$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    return re.sub(r"(`+)(?!`).+?(?<!`)\1(?!`)", "", text, flags=re.DOTALL)


def anchors_of(page: str) -> set[str]:
    """The anchors that GitHub generates from headings, and those that are written explicitly."""
    text = re.sub(r"^```.*?^```$", "", text_of(page), flags=re.DOTALL | re.MULTILINE)
    found = set(re.findall(r'<a id="([^"]+)">', text))
    for heading in re.findall(r"^#{1,6} (.*)$", text, re.MULTILINE):
        heading = re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", heading)
        found.add(re.sub(r"[^\w\- ]", "", heading.lower()).replace(" ", "-"))
    return found


def site() -> str:
    (found,) = re.findall(r"^\[site\]: (.*)$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
    return found


@pytest.mark.parametrize("name", NAMES)
def test_a_page_says_where_its_source_is_and_where_the_site(name: str) -> None:
    lines = text_of(f"{name}.md").splitlines()
    assert lines[0] == f"<!-- Made from docs/source/{name}.md. Edit that file, and run scripts/docs --pages. -->"
    assert lines[2].startswith("# ")
    assert f"({site()}/{name}.html)" in lines[4]


@pytest.mark.parametrize("name", sorted(LIBRARY.plain))
def test_a_page_that_is_its_own_source_ends_with_the_link_to_the_site(name: str) -> None:
    assert text_of(f"{name}.md").endswith(f"({site()}/{name}.html)</sub>\n")


@pytest.mark.parametrize("name", NAMES)
def test_nothing_of_the_source_is_left_over(name: str) -> None:
    text, prose = text_of(f"{name}.md"), prose_of(f"{name}.md")
    assert not re.search(r"^ *[`:]{3,}\{", text, re.MULTILINE)
    assert not re.search(r"\{\w+\}`", prose) and ":::" not in prose
    assert "<!-- grader" not in prose and not ("reference_with" in text and name.startswith("assignments/"))
    assert text.count("<details>") == text.count("</details>") == text.count("<summary>")
    source = (SOURCES / f"{name}.md").read_text(encoding="utf-8")
    blanks = len(re.findall(r"\{blank\}`", source))
    assert prose.count(r"\_\_\_\_\_<sub>(") == blanks == len(re.findall(r"\*\*\(\d+\)\*\* [\d.]", prose))
    always = re.sub(r"^:::\{recorded\}.*?^:::$", "", source, flags=re.DOTALL | re.MULTILINE)
    least, most = (part.count("{drawing}") + part.count("![") for part in (always, source))
    assert least <= text.count("![") <= most, "a picture of what is not recorded yet is left out"


@pytest.mark.parametrize("page", READ_ON_GITHUB)
def test_links_lead_somewhere(page: str) -> None:
    for link in re.findall(r"\]\(([^)\s]+)(?: \"[^\"]*\")?\)", prose_of(page)):
        if re.match(r"[a-z]+:", link):
            continue
        file, _, anchor = unquote(link).partition("#")
        target = Path(os.path.normpath(DOCS / Path(page).parent / file)) if file else DOCS / page
        assert target.is_file(), f"docs/{page} links to {link}"
        if target.suffix == ".md" and anchor:
            assert anchor in anchors_of(str(target.relative_to(DOCS))), f"docs/{page} links to {link}"
        elif lines := re.fullmatch(r"L(\d+)(?:-L(\d+))?", anchor):
            assert int(lines[2] or lines[1]) <= len(target.read_text(encoding="utf-8").splitlines())


@pytest.mark.parametrize("drawing", sorted((DOCS / "figures" / "drawings").glob("*.svg")), ids=lambda path: path.stem)
def test_a_drawing_is_a_file_of_its_own(drawing: Path) -> None:
    """GitHub shows it as an image: no style of the page applies to it, and it has its own background."""
    text = drawing.read_text(encoding="utf-8")
    assert "var(" not in text and "<script" not in text
    assert set(re.findall(r"https?://[^\"]+", text)) <= {"http://www.w3.org/2000/svg", "http://www.w3.org/1999/xlink"}
    ground = '<rect x="-6" y="-6" width="100%" height="100%" fill="#ffffff"/>'
    assert re.match(r'<svg width="\d+" height="\d+" [^>]*>\n(.*)\n', text)[1] == ground
    assert len(text) < 150_000
