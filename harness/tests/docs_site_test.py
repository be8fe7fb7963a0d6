"""The site builds without warnings, says when a profile is stale, and every page works in a browser without a network.

Needs Sphinx (scripts/docs installs it); the pages are tested in headless Chromium if it is installed.
"""

from __future__ import annotations

import html
import json
import os
import re
import shutil
import subprocess
import sys
from pathlib import Path

import pytest
from browser import needs_chromium, visit
from recordings import as_if_of_these_sources

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "scripts")]

import layouts  # noqa: E402
from sources import PAGES  # noqa: E402

CHAPTERS = sorted((PAGES / "chapters").glob("[0-9]*.md"))  # the others are about extensions
CHAPTERS_OF_VERSIONS = [path.stem for path in CHAPTERS if path.stem != "00_gpu"]

pytest.importorskip("sphinx", reason="Sphinx is not installed: scripts/docs does that")
pytest.importorskip("furo", reason="the theme is not installed: scripts/docs does that")


def build(
    out: Path, harness: Path, docs: Path = PAGES, strict: bool = False, pages: tuple[Path, ...] = ()
) -> subprocess.CompletedProcess[str]:
    """All pages are read, and all are written unless some are named."""
    command = [sys.executable, "-m", "sphinx", "-q", "-n", "-W", "--keep-going", "-D", f"ladder_strict={int(strict)}"]
    command += ["-d", str(out / "doctrees"), str(docs), str(out / "site"), *map(str, pages)]
    environment = {**os.environ, "FLASH_LADDER_HARNESS": str(harness)}
    return subprocess.run(command, capture_output=True, text=True, check=False, env=environment)


@pytest.fixture(scope="session")
def other_harness(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A harness that claims that version 06 differs from the code of its recordings."""
    folder = tmp_path_factory.mktemp("other")
    listed = subprocess.run(
        [BUILD / "harness", "--list", "--json", "-"], capture_output=True, text=True, check=True
    ).stdout
    registry = json.loads(listed)
    for version in registry["versions"]:
        if version["kernel"] == "06":
            version["code_hash"] = "sha256:" + "0" * 64
    (folder / "list.json").write_text(json.dumps(registry), encoding="utf-8")
    script = folder / "harness"
    # All other requests, such as a trace, go to the real one.
    text = f"#!/bin/sh\ncase $1 in --list) cat '{folder}/list.json' ;; *) exec '{BUILD / 'harness'}' \"$@\" ;; esac\n"
    script.write_text(text, encoding="utf-8")
    script.chmod(0o755)
    return script


@pytest.fixture(scope="session")
def site(tmp_path_factory: pytest.TempPathFactory, other_harness: Path) -> Path:
    """The site, whose page of version 06 says that its profile is stale."""
    out = tmp_path_factory.mktemp("docs")
    built = build(out, other_harness)
    assert built.returncode == 0, built.stderr
    return out / "site"


def pages(site: Path) -> list[str]:
    return sorted(str(path.relative_to(site)) for path in site.rglob("*.html"))


# ---- what is built ----


def test_no_page_asks_for_anything_from_a_network(site: Path) -> None:
    for page in pages(site):
        text = (site / page).read_text(encoding="utf-8")
        loaded = re.findall(r"<(?:script|img|iframe|link)\b[^>]*\b(?:src|href)=\"(https?:[^\"]*)\"", text)
        assert not loaded, (page, loaded)


def test_internal_links_lead_somewhere(site: Path) -> None:
    ids = {page: set(re.findall(r'\bid="([^"]+)"', (site / page).read_text(encoding="utf-8"))) for page in pages(site)}
    for page in pages(site):
        for link in re.findall(r'<a\b[^>]*?\bhref="([^"]*)"', (site / page).read_text(encoding="utf-8")):
            if re.match(r"[a-z]+:", link) or link in ("", "#"):
                continue
            file, _, anchor = html.unescape(link).partition("#")
            target = os.path.normpath(os.path.join(os.path.dirname(page), file)) if file else page
            assert (site / target).is_file(), f"{page} links to {link}"
            assert not anchor or target not in ids or anchor in ids[target], f"{page} links to {link}"


def test_the_bars_of_the_landing_page_lead_to_the_chapters(site: Path) -> None:
    text = (site / "index.html").read_text(encoding="utf-8")
    start = text.index('<svg class="ladder-drawing"')
    chart = text[start : text.index("</svg>", start)]
    for chapter in CHAPTERS_OF_VERSIONS:
        assert chart.count(f'href="chapters/{chapter}.html"') == 2, chapter  # the bar and its name
        number, _, name = chapter.partition("_")
        assert len(re.findall(rf'aria-label="{number} {name}, (?:[\d.]+ TFLOP/s|not recorded)"', chart)) == 2, chapter
    assert "chapter:" not in chart


def test_headings_do_not_skip_levels(site: Path) -> None:
    for page in pages(site):
        article = (site / page).read_text(encoding="utf-8").partition("<article")[2].partition("</article>")[0]
        levels = [int(level) for level in re.findall(r"<h([1-6])\b", article)]
        skipped = [(a, b) for a, b in zip([0, *levels], levels, strict=False) if b > a + 1]
        assert not skipped, (page, levels)


def test_pages_have_a_description_and_an_icon(site: Path) -> None:
    found = {}
    for page in pages(site):
        text = (site / page).read_text(encoding="utf-8")
        assert re.search(r'<link rel="(?:shortcut )?icon" href="[^"]*favicon\.svg"', text), page
        if page not in ("search.html", "genindex.html"):
            description = re.search(r'<meta name="description" content="([^"]*)"', text)
            assert description and not description[1].startswith("kernels/"), page
            assert 40 < len(html.unescape(description[1])) <= 160, page
            found[page] = description[1]
    assert len(set(found.values())) == len(found), "each page has its own"


def test_terms_have_their_definition_as_a_tooltip(site: Path) -> None:
    text = (site / "chapters" / "06_swizzle.html").read_text(encoding="utf-8")
    titles = re.findall(r'<a class="reference internal" href="[^"]*#term-[^"]*" title="([^"]*)"', text)
    assert titles and all(len(title) > 15 for title in titles)


@pytest.mark.parametrize("kernel", ["kernels/07_ldmatrix.cu", "kernels/hopper/extensions/fp8.cu"])
def test_a_quotation_links_to_its_lines_in_the_listing(site: Path, kernel: str) -> None:
    stem = Path(kernel).stem
    text = (site / "chapters" / f"{stem}.html").read_text(encoding="utf-8")
    links = re.findall(rf'<p class="quoted-from"><a href="([^"]*)">({re.escape(kernel)}), lines? (\d+)', text)
    assert links
    for link, file, line in links:
        assert link == f"#{stem}-{line}"
        source = (ROOT / file).read_text(encoding="utf-8").splitlines()[int(line) - 1]
        shown = text.partition(f'id="{link[1:]}"')[2].partition("\n")[0]
        assert html.unescape(re.sub(r"<[^>]*>", "", shown.partition(">")[2])).rstrip().endswith(source.strip())


def test_the_search_knows_no_embedded_source(site: Path) -> None:
    """A word that is in every kernel's file, but in no page's text."""
    word = "cudaError_t"
    assert word in (ROOT / "kernels" / "03_tiled.cu").read_text(encoding="utf-8")
    assert word in (site / "chapters" / "03_tiled.html").read_text(encoding="utf-8"), "the page embeds the file"
    listed = json.loads((site / "_static" / "pages.js").read_text(encoding="utf-8").partition("= ")[2].rstrip(";\n"))
    assert "shared memory" in listed["chapters/03_tiled"]["text"]
    assert not [page for page, shown in listed.items() if word in shown["text"]]
    assert word.lower() not in (site / "searchindex.js").read_text(encoding="utf-8").lower()


def test_a_stale_profile_is_a_banner(site: Path) -> None:
    text = (site / "chapters" / "06_swizzle.html").read_text(encoding="utf-8")
    assert "Stale profile" in text and "profiles/h200/06_swizzle.json" in text
    assert "profiles/h200/07_ldmatrix.json" not in (site / "chapters" / "07_ldmatrix.html").read_text(encoding="utf-8")


def without_07s_profile(folder: Path) -> Path:
    """The sources in a copy of the repository, in which version 07 is not recorded."""
    repository = folder / "repository"
    for name in ("docs", "profiles"):
        shutil.copytree(ROOT / name, repository / name)
    for name in ("kernels", "scripts", "harness", "common"):
        (repository / name).symlink_to(ROOT / name)
    (repository / "profiles" / "h200" / "07_ldmatrix.json").unlink()
    as_if_of_these_sources(repository / "profiles")
    return repository / PAGES.relative_to(ROOT)


def test_a_profile_that_is_not_there_is_none_that_is_stale(tmp_path: Path) -> None:
    docs = without_07s_profile(tmp_path)
    build(tmp_path, BUILD / "harness", docs=docs, pages=(docs / "chapters" / "07_ldmatrix.md",))
    text = (tmp_path / "site" / "chapters" / "07_ldmatrix.html").read_text(encoding="utf-8")
    assert "This chapter is not recorded yet:" in text and "profiles/h200/07_ldmatrix.json" in text
    assert "has changed since" not in text and "Stale profile" not in text


def test_without_a_harness_it_says_what_to_do(tmp_path: Path) -> None:
    built = build(tmp_path, tmp_path / "harness")
    assert built.returncode != 0
    assert "build it with scripts/setup harness" in built.stderr


MISTAKES = [
    ("{num}`step(6); .2f`", "{num}`stop(6); .2f`", "'stop' is not defined"),
    ("{blank}`1 = wavefronts(K_load(True), 4)`", "{blank}`2 = wavefronts(K_load(True), 4)`", "the answer 2 is not"),
    (":start: The offset of element + 1", ":start: The offset of no element + 1", "The offset of no element"),
    ("[chapter 04](04_mma.md)", "[chapter 04](04_mna.md)", "cross-reference target not found: '04_mna.md'"),
    ("```{drawing} swizzle_rows", "```{drawing} swizzle_row", "there is no drawing swizzle_row"),
    (":alt: The same two loads", "The same two loads", "banks_swizzled has no :alt:"),
]


def test_what_does_not_hold_does_not_build(tmp_path: Path, other_harness: Path) -> None:
    docs = without_07s_profile(tmp_path)
    page = docs / "chapters" / "06_swizzle.md"
    text = page.read_text(encoding="utf-8")
    for old, new, _ in MISTAKES:
        assert old in text
        text = text.replace(old, new)
    page.write_text(text, encoding="utf-8")
    built = build(tmp_path, other_harness, docs=docs, strict=True, pages=(page,))
    assert built.returncode != 0
    for _, _, message in MISTAKES:
        assert message in built.stderr
    assert "version 06 has changed since profiles/h200/06_swizzle.json" in built.stderr, "--strict refuses that too"
    assert "version 07 is not recorded yet: there is no profiles/h200/07_ldmatrix.json" in built.stderr


# ---- in a browser ----


@needs_chromium
def test_every_page_is_sound_at_400_pixels_light_and_dark(site: Path, tmp_path: Path) -> None:
    tasks = [(page, page, "look") for page in pages(site)]
    found = visit(tmp_path, site, tasks)
    assert len(found) == len(tasks)
    for page, result in found.items():
        assert result == {"wide": [], "empty": [], "faint": {"light": [], "dark": []}}, page


@needs_chromium
def test_the_bank_calculator_agrees_with_the_model(site: Path, tmp_path: Path) -> None:
    wanted = {
        "k32-256-none": layouts.wavefronts(layouts.K_load(False), 4),
        "k32-256-xor": layouts.wavefronts(layouts.K_load(True), 4),
        "v16-256-none": layouts.wavefronts(layouts.V_load(False), 2),
        "v16-256-xor": layouts.wavefronts(layouts.V_load(True), 2),
        "k32-272-none": layouts.wavefronts([lane // 4 * 272 + lane % 4 * 4 for lane in range(32)], 4),
        "ldmatrix-256-none": layouts.most_words_in_a_bank([row * 256 for row in range(8)], 16),
        "ldmatrix-256-xor": layouts.most_words_in_a_bank([layouts.smem_offset(row, 0, True) for row in range(8)], 16),
        "column-128-none": 32,
        "column-132-none": 1,
        "row-128-none": 1,
    }
    tasks = []
    for state in wanted:
        access, stride, swizzle = state.split("-")
        tasks.append((state, f"chapters/00_gpu.html?access={access}&stride={stride}&swizzle={swizzle}", "banks"))
    tasks.append(("by hand", "chapters/00_gpu.html?access=k32&stride=256", "set_swizzle"))
    found = visit(tmp_path, site, tasks)
    assert found.pop("by hand") == {"wavefronts": 1, "focused": True}
    assert {state: result["wavefronts"] for state, result in found.items()} == wanted


@needs_chromium
def test_the_fragment_lookup_agrees_with_the_model(site: Path, tmp_path: Path) -> None:
    wanted: dict[str, list] = {operand: [] for operand in "ABD"}  # row, column, lane, register
    for lane in range(32):
        for register in range(4):
            wanted["A"] += [[row, k, lane, register] for row, k in layouts.fragment_A(lane, register)]
            wanted["D"] += [[*layouts.fragment_D(lane, register), lane, register]]
        for register in range(2):
            wanted["B"] += [[k, n, lane, register] for k, n in layouts.fragment_B(lane, register)]
    chosen = {operand: cells[len(cells) // 3] for operand, cells in wanted.items()}
    tasks = [
        (operand, f"chapters/04_mma.html?operand={operand}&row={row}&col={col}", "fragments")
        for operand, (row, col, _, _) in chosen.items()
    ]
    tasks.append(("by keyboard", "chapters/04_mma.html", "arrow"))
    found = visit(tmp_path, site, tasks)
    by_keyboard = found.pop("by keyboard")
    assert by_keyboard == {"text": "Element (6, 10) of A: lane 25, register A[2], its lower half.", "focused": True}
    assert {operand: found[operand]["chosen"] for operand in "ABD"} == {o: at[2:] for o, at in chosen.items()}
    assert {operand: found[operand]["cells"] for operand in "ABD"} == {o: sorted(at) for o, at in wanted.items()}


@needs_chromium
def test_blanks_and_the_chart_answer(site: Path, tmp_path: Path) -> None:
    found = visit(tmp_path, site, [("blanks", "chapters/04_mma.html", "blanks"), ("links", "index.html", "links")])
    answer = found["blanks"]["answer"]
    assert found["blanks"] == {
        "answer": answer,
        "right": "blank right",
        "wrong": "blank wrong",
        "shown": answer,
        "after": "blank right",
    }
    assert len(found["links"]) == 2 * len(CHAPTERS_OF_VERSIONS)
    assert all(focused for _, focused in found["links"])


@needs_chromium
def test_blanks_take_what_rounds_to_the_answer_or_is_more_precise(site: Path, tmp_path: Path) -> None:
    pages = {"06": "chapters/06_swizzle.html", "path": "learning_path.html"}
    found = visit(tmp_path, site, [(name, page, "all_blanks") for name, page in pages.items()])
    blanks = {blank["answer"]: (blank["exact"], blank["judged"]) for page in found.values() for blank in page}
    assert {"5.54", "0.1353", "1298"} <= set(blanks)
    for answer, (exact, judged) in blanks.items():
        assert judged[answer] and not judged[f"-{answer}"], judged
        if float(answer) == exact:
            assert not judged[f"{answer}7"] and not judged[f"0x{int(exact):x}"], judged
        else:
            assert judged[f"{exact:.3f}"], judged
    _, judged = blanks["5.54"]
    assert judged["5.54"] and judged["5.538"] and not judged["0.14"]
    _, judged = blanks["0.1353"]
    assert judged["0.135"] and not judged["0.14"] and not judged["5.54"]
    assert not blanks["1298"][1]["0x512"]


@needs_chromium
def test_no_code_is_cut_off(site: Path, tmp_path: Path) -> None:
    """At 1280 and at 400 pixels; drawings that consist of characters may scroll."""
    tasks = [(page, page, "code") for page in pages(site)]
    found = visit(tmp_path, site, tasks)
    assert sum(of_page["all"] for of_page in found.values()) > 100
    assert {
        page: of_page["overflowing"] for page, of_page in found.items() if any(of_page["overflowing"].values())
    } == {}
    assert all(of_page["copied"] for of_page in found.values())


@needs_chromium
def test_all_banks_and_all_bars_are_in_sight(site: Path, tmp_path: Path) -> None:
    tasks = [("banks", "chapters/06_swizzle.html", "bank_columns"), ("ladder", "index.html", "ladder")]
    found = visit(tmp_path, site, tasks)
    assert found["banks"] == {str(width): list(range(32)) for width in (1280, 800, 400)}
    for width in ("1280", "390"):
        at = found["ladder"][width]
        assert at["others"] == 0 and not at["cut"], (width, at)
        assert len(at["names"]) == 2 * len(CHAPTERS_OF_VERSIONS) and all(
            "TFLOP/s" in name or "not" in name for name in at["names"]
        )


@needs_chromium
def test_plots_stay_legible_on_a_phone(site: Path, tmp_path: Path) -> None:
    found = visit(tmp_path, site, [(page, f"{page}.html", "plots") for page in ("results", "the_data")])
    assert [plot["name"] for plots in found.values() for plot in plots] == ["seq_len.svg", "by_data.svg"]
    for plot in (plot for plots in found.values() for plot in plots):
        assert plot["width"] > 700 and plot["scrolls"] and "Swipe" in plot["said"], plot


@needs_chromium
def test_arrow_keys_turn_pages_but_not_inside_of_parts(site: Path, tmp_path: Path) -> None:
    found = visit(tmp_path, site, [("keys", "chapters/04_mma.html", "arrow_keys")])
    assert found["keys"] == ["04_mma.html", "05_cp_async.html", "04_mma.html"]


@needs_chromium
def test_search_results_say_what_they_are_and_show_the_words(site: Path, tmp_path: Path) -> None:
    results = visit(tmp_path, site, [("search", "search.html?q=swizzle", "search_results")])["search"]
    by_page = {result["page"]: result for result in results}
    assert by_page["chapters/06_swizzle.html"]["kind"] == "chapter 06"
    assert by_page["assignments/06_swizzle.html"]["kind"] == "assignment 06"
    for result in results:
        assert result["kind"] and result["excerpt"], result
    assert "swizzl" in by_page["chapters/06_swizzle.html"]["excerpt"].lower()


@needs_chromium
def test_a_factor_is_compared_as_in_the_quiz(site: Path, tmp_path: Path) -> None:
    found = visit(tmp_path, site, [("guess", "chapters/07_ldmatrix.html", "guess")])["guess"]
    assert found["before"] == "" and "Type a factor above 0" in found["none"]
    assert f"measured {found['step']:.2f}×" in found["right"] and found["right"].endswith("within 5 %.")
    assert found["twice"].endswith("too much by a factor of 2.00.")
    assert found["slower"].endswith(", in the opposite direction.") and found["open"]


@needs_chromium
def test_predictions_are_folded_and_search_finds_words_in_the_text(site: Path, tmp_path: Path) -> None:
    tasks = [("fold", "chapters/06_swizzle.html", "fold"), ("search", "search.html?q=permute", "search")]
    found = visit(tmp_path, site, tasks)
    assert found["fold"] == {"before": False, "focused": True, "after": True}
    assert "chapters/06_swizzle.html" in found["search"]
