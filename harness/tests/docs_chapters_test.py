"""The chapters are correct: answers of calculations, figures, quotations, and the layouts that are drawn."""

from __future__ import annotations

import os
import re
import subprocess
import sys
from dataclasses import replace
from math import dist, exp, isclose
from pathlib import Path

import ml_dtypes
import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
sys.path[:0] = [str(ROOT / "docs" / "site"), str(ROOT / "scripts")]

import bits  # noqa: E402
import drawings  # noqa: E402
import drawings_decoding  # noqa: E402, F401 (its drawings)
import drawings_hopper  # noqa: E402
import drawings_ideas  # noqa: E402, F401 (its drawings)
import layouts  # noqa: E402
import parts  # noqa: E402
import plot  # noqa: E402
import sources  # noqa: E402
import timeline  # noqa: E402
import worked  # noqa: E402
from blockwise_attention import definition  # noqa: E402
from facts import GPU, FactError, Facts, NotRecordedError, check_blank  # noqa: E402
from kernel_files import kernel_files  # noqa: E402
from kernel_places import Places  # noqa: E402
from matplotlib import rc_context  # noqa: E402
from matplotlib.text import Text  # noqa: E402
from planted_faults import FAULTS  # noqa: E402
from profile_data import ByData, ByProblem, Cell, ProblemCell  # noqa: E402
from roles import Step, Wgmmas  # noqa: E402

BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
PAGES = sorted([*sources.PAGES.glob("*.md"), *(sources.PAGES / "chapters").glob("*.md")])
CHAPTERS = [page for page in PAGES if re.match(r"(0[1-9]|[12]\d)_", page.name)]
KERNELS = {kernel.stem: kernel.file for kernel in kernel_files(ROOT)}
HOPPER = [page for page in CHAPTERS if KERNELS[page.stem].startswith("kernels/hopper/")]
COUNTED = [page for page in CHAPTERS if page not in HOPPER]
SECTIONS = [
    "The question",
    "Your prediction first",
    "The idea",
    "By hand",
    "The (diff|code), .*",
    "Prediction and measurement",
    "What the machine code and the counters say",
    "What keeps the GPU busy now",
    "When it does not pay off",
    "Exercises",
    "Further reading",
]


@pytest.fixture(scope="module")
def facts() -> Facts:
    return Facts(BUILD / "harness")


@pytest.fixture
def counted(facts: Facts) -> Facts:
    """For tests of the virtual GPU's counts by line. cli_profiles_test.py checks whether recordings are current."""
    stale = [n for n in (1, 4, 5, 6, 7) if any("emulator" in file for file in facts.stale(n) + facts.missing(n))]
    if stale:
        pytest.skip(f"the recordings of {stale} are of other code, or not there")
    return facts


def name(page: Path) -> str:
    return page.name


def roles(page: Path, role: str) -> list[str]:
    return re.findall(r"\{" + role + r"\}`([^`]+)`", page.read_text(encoding="utf-8"))


def test_the_limits_of_an_sm_are_those_of_the_harness() -> None:
    """They come from sm_limits.h."""
    text = (ROOT / "common" / "host" / "sm_limits.h").read_text(encoding="utf-8")
    (row,) = re.findall(r"\.compute_capability = 90,(.*?)\}", text, re.DOTALL)
    limits = {name: eval(value) for name, value in re.findall(r"\.(\w+) = ([\d *<]+)", row)}
    assert limits["registers"] == GPU["registers_per_sm"] and limits["ctas"] == GPU["ctas_per_sm"]
    assert limits["threads"] == 32 * GPU["warps_per_sm"] and limits["sm_count"] == GPU["sms"]
    assert limits["smem_bytes"] == 1024 * GPU["smem_kib_per_sm"]  # the L2 is an H100's there, an H200's on the pages
    assert limits["smem_per_cta_bytes"] == 1024 * GPU["smem_kib_per_cta"]
    assert f"kMaxRegistersPerThread = {GPU['registers_per_thread']};" in text


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_answers_of_calculations_are_the_counters(page: Path, facts: Facts) -> None:
    for blank in roles(page, "blank"):
        check_blank(facts, blank)


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_figures_are_recorded(page: Path, facts: Facts) -> None:
    for expression in roles(page, "num"):
        assert facts.text(expression)


def by_hand_of(page: Path) -> str:
    text = page.read_text(encoding="utf-8")
    return text[text.index("## By hand") : text.index("\n## The ", text.index("## By hand"))]


def test_every_chapter_has_a_calculation_and_a_command_that_checks_it() -> None:
    for page in COUNTED:
        by_hand = by_hand_of(page)
        assert by_hand.count("{blank}") >= 3, f'{page.name}: "By hand" has fewer than three {{blank}}s'
        command = f"scripts/harness --kernel {page.name[:2]} --device emulator"
        assert command in by_hand, f'{page.name}: "By hand" has no line {command}'
        counted = [blank for blank in re.findall(r"\{blank\}`([^`]+)`", by_hand) if re.search(r"\b(count|at)\(", blank)]
        assert counted, f"{page.name}: no blank is held against a counter of the virtual GPU, which the command shows"


@pytest.mark.parametrize("page", HOPPER, ids=name)
def test_calculations_without_the_virtual_gpu_are_held_against_machine_code(page: Path, facts: Facts) -> None:
    """The card that is shown without a GPU contains the answers; so do the Python models, if a page refers to them."""
    by_hand, version = by_hand_of(page), int(page.name[:2])
    assert by_hand.count("{blank}") >= 3, f'{page.name}: "By hand" has fewer than three {{blank}}s'
    for command in (f"scripts/harness --kernel {version}", f"scripts/harness --kernel {version} --sass"):
        assert f"\n{command}\n" in by_hand, f'{page.name}: "By hand" has no line {command}'

    def told_by(flag: str) -> str:
        command = [BUILD / "harness", "--kernel", str(version), flag]
        return subprocess.run(command, capture_output=True, text=True, check=False).stdout

    card, listed = re.sub(r"\s+", " ", told_by("--no-check")), told_by("--sass")
    assert f"{facts.registers(version)} registers" in card
    assert f"{facts.smem_bytes_per_cta(version) / 1024:.4g} KiB of shared memory" in card
    # For each opcode: in the whole kernel, in the hot loop, in the loop per HGMMA, behind its branches.
    columns = {row[0]: row[1:] for line in listed.splitlines() if len(row := line.split()) == 5}
    blanks = " ".join(re.findall(r"\{blank\}`([^`]+)`", by_hand))
    asked = re.findall(rf"\b(sass|sass_whole|sass_behind)\({version}, '(\w+)'\)", blanks)
    for column, opcode in asked:
        count = getattr(facts, column)(version, opcode)
        at = {"sass_whole": 0, "sass": 1, "sass_behind": 3}[column]
        assert columns.get(opcode, ["-"] * 4)[at] == (str(count) if count else "-"), opcode
    assert asked or re.search(rf"\b(loop|registers|smem_bytes_per_cta)\({version}\b", blanks)
    for python in re.findall(r'^PYTHONPATH=docs/site python3 -c "(.*)"$', by_hand, re.MULTILINE):
        told = subprocess.run(
            [sys.executable, "-c", python],
            capture_output=True,
            text=True,
            check=False,
            env={**os.environ, "PYTHONPATH": str(ROOT / "docs" / "site")},
        )
        assert told.returncode == 0 and told.stdout.strip(), told.stderr


def test_machine_code_that_no_gpu_has_recorded_is_that_of_the_build(monkeypatch: pytest.MonkeyPatch) -> None:
    """So that the chapter of a new version can be written, and its answers checked, before a GPU is available."""
    monkeypatch.setattr("facts.DEVICE", "nothing_recorded")
    facts = Facts(BUILD / "harness")
    assert facts.has_machine_code(27)
    for page in HOPPER:
        test_calculations_without_the_virtual_gpu_are_held_against_machine_code(page, facts)
    with pytest.raises(NotRecordedError, match=r"there is no profiles/nothing_recorded/27_"):
        Facts().registers(27)


@pytest.mark.parametrize("page", COUNTED, ids=name)
def test_that_command_shows_the_counters(page: Path, facts: Facts) -> None:
    """The figures with which the answers are compared are on the card, digit by digit. Other tests check the card."""
    by_hand = by_hand_of(page)
    version = int(page.name[:2])
    command = re.search(rf"^scripts/harness (--kernel {version:02} --device emulator.*)$", by_hand, re.MULTILINE)
    assert command
    command = [BUILD / "harness", *command[1].split(), "--no-check"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    blanks = " ".join(re.findall(r"\{blank\}`([^`]+)`", by_hand))
    counters = re.findall(rf"\b(?:count|at)\({version}, '[^']*'(?:, '[^']*')*\)", blanks)
    assert counters
    for counter in counters:
        assert re.search(rf"(?<!\d)(?<!\d,){facts.evaluate(counter):,d}(?!,?\d)", done.stdout), counter


@pytest.mark.parametrize("page", CHAPTERS, ids=name)
def test_the_planted_bug_of_a_chapter_is_planted(page: Path) -> None:
    """planted_faults.py contains the bug, with the code and the finding that the chapter names; its test shows how the
    bug is caught."""
    text = page.read_text(encoding="utf-8")
    exercise = text[text.index("2. **A planted bug.**") : text.index("3. **Open.**")]
    told = [code or quoted for code, quoted in re.findall(r"`([^`]+)`|“([^”]+)”", exercise)]
    told = [part.rstrip(";") for part in told if len(part) > 6]
    there = []
    for fault in FAULTS:
        if fault.kernel == page.stem:
            kernel = (ROOT / KERNELS[page.stem]).read_text(encoding="utf-8")
            part = Places(kernel, page.stem).part(fault.place)
            line = next(line for line in kernel.split("\n")[part.start :] if fault.old.splitlines()[0] in line)
            there += [fault] * any(part in fault.new or part in line for part in told)
    assert there, (
        f"{page.name}: exercise 2 names nothing of a fault that planted_faults.py plants in {page.stem}; "
        "plant it there, and have the exercise quote its code, or part of the line that it replaces"
    )
    findings = [fault.finding for fault in there]
    assert any(finding is None or f"`{finding}`" in exercise for finding in findings), (
        f"{page.name}: exercise 2 does not name what the virtual GPU finds, one of {findings}"
    )


@pytest.mark.parametrize("page", CHAPTERS[1:], ids=name)
def test_a_chapter_opens_with_a_figure_of_the_step_before(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    question = text[text.index("## The question") : text.index("## Your prediction first")]
    before = int(page.name[:2]) - 1
    assert re.search(rf"\{{num\}}`[^`]*\({before}\b", question), (
        f'{page.name}: "The question" has no figure of version {before}, such as {{num}}`tflops({before})`'
    )


@pytest.mark.parametrize("page", CHAPTERS[1:], ids=name)
def test_a_chapter_says_which_unit_is_busy_before_and_after(page: Path) -> None:
    version = int(page.name[:2])
    shown = re.search(r"```\{busy\} ([\d ]+)\n", page.read_text(encoding="utf-8"))
    numbers = {int(number) for number in shown[1].split()} if shown else set()
    assert {version - 1, version} - {1} <= numbers, (
        f"{page.name}: no ```{{busy}} table has both {version - 1} and {version}; the first one has {sorted(numbers)}"
    )


def test_a_wrong_answer_is_refused(counted: Facts) -> None:
    right = "16384 = at(6, 'B = Kᵀ', 'shared_load_wavefronts')"
    assert check_blank(counted, right) == "16384"
    with pytest.raises(FactError, match="the answer 16385 is not"):
        check_blank(counted, right.replace("16384", "16385"))
    with pytest.raises(FactError, match="ANSWER = EXPRESSION"):
        check_blank(counted, "at(6)")
    with pytest.raises(FactError, match="'no such text'"):
        counted.text("at(6, 'no such text', 'warp_instructions')")


def test_what_is_not_recorded_is_a_dash_and_what_is_not_there_an_error(facts: Facts) -> None:
    assert facts.text("tflops(1, 16384)") == "–"
    with pytest.raises(NotRecordedError, match="no TFLOP/s at seq_len 16384"):
        facts.evaluate("tflops(1, 16384)")
    with pytest.raises(FactError, match="cannot be computed"):
        facts.text("speed(6)")
    with pytest.raises(FactError, match="0 versions have the number 99"):
        facts.text("tflops(99)")


def test_figures_by_data(facts: Facts) -> None:
    cells = {Cell("normal", "fp16", 4096): 600.0, Cell("steps", "fp16", 4096): 450.0}
    label = next(kernel.label for kernel in kernel_files(ROOT) if kernel.number == 27)
    definitions = {"normal": "z", "steps": "z + j u", "zeros": "0"}
    clocks = {label: {Cell("normal", "fp16", 4096): 1500}}
    recorded = Facts()
    by_data = ByData(False, {}, definitions, {label: cells}, {"P": cells}, clocks)
    causal = ByData(True, {}, definitions, {}, {"P": {Cell("steps", "fp16", 4096): 225.0}}, {})
    recorded.__dict__["device"] = replace(facts.device, by_data=by_data, by_data_causal=causal)
    for expression, text in {
        "by_data(27, 'steps'); .0f": "450",
        "by_data('P', 'steps'); .0f": "450",
        "of_normal(27, 'steps')": "0.750",
        "clock_by_data(27, 'normal')": "1,500",
        "by_data(27, 'zeros')": "–",
        "by_data(26, 'steps')": "–",
        "by_data('Q', 'steps')": "–",
        "clock_by_data('P', 'steps')": "–",
        "by_data(27, 'steps', 1024)": "–",
        "by_data(27, 'steps', dtype='bf16')": "–",
        "by_data_causal('P', 'steps')": "225",
        "by_data_causal(27, 'steps')": "–",
    }.items():
        assert recorded.text(expression) == text
    with pytest.raises(FactError, match="there are no data stairs: normal, steps, zeros"):
        recorded.text("by_data(27, 'stairs')")
    recorded.__dict__["device"] = replace(facts.device, by_data=None)
    assert recorded.text("by_data(27, 'steps')") == "–"


def test_figures_by_problem(facts: Facts) -> None:
    recorded, cell = Facts(), ProblemCell("causal", 4096)
    by_problem = ByProblem({}, "fp16", {"causal": [4096]}, {"causal": {cell: 400.0}}, {"P": {cell: 500.0}}, {"causal"})
    recorded.__dict__["device"] = replace(facts.device, by_problem=by_problem, gradients=None)
    assert recorded.text("gradients('causal', 'causal')") == "–"
    recorded.__dict__["device"] = replace(facts.device, by_problem=None, gradients=by_problem)
    assert recorded.text("gradients('causal', 'causal') / gradients('P', 'causal'); .2f") == "0.80"
    recorded.__dict__["device"] = replace(facts.device, by_problem=by_problem)
    for expression, text in {
        "by_problem('causal', 'causal') / by_problem('P', 'causal'); .2f": "0.80",
        "by_problem('causal', 'causal', 512)": "–",
        "by_problem('window', 'causal')": "–",
    }.items():
        assert recorded.text(expression) == text
    with pytest.raises(FactError, match="there is no problem grouped: causal"):
        recorded.text("by_problem('causal', 'grouped')")
    recorded.__dict__["device"] = replace(facts.device, by_problem=None)
    assert recorded.text("by_problem('causal', 'causal')") == "–"


def test_errors_in_8_bits() -> None:
    errors = [{"name": "fp8", "dtype": "e4m3", "error": 0.05, "kernel_alone": 0.02}]
    results = [{"data": "outliers", "rotated": True, "rounding": 0.04, "errors": errors}]
    recorded = Facts()
    recorded.__dict__["_fp8_error"] = {"results": results}
    assert recorded.evaluate("fp8_error('outliers', 'fp8', rotated=True)") == 0.05
    assert recorded.evaluate("fp8_error('outliers', 'fp8', kernel_alone=True, rotated=True)") == 0.02
    assert recorded.evaluate("fp8_error('outliers', 'rounding', rotated=True)") == 0.04
    assert recorded.text("fp8_error('outliers', 'fp8')") == recorded.text("fp8_error('normal', 'rounding')") == "–"


@pytest.mark.parametrize(("dtype", "numbers"), [("fp16", np.float16), ("bf16", ml_dtypes.bfloat16)])
def test_bits_that_change(dtype: str, numbers: type) -> None:
    random = np.random.default_rng(0)
    here, there = (random.standard_normal(200000).astype(numbers).view(np.uint16) for _ in range(2))
    counted = np.unpackbits((here ^ there).view(np.uint8)).sum() / len(here)
    assert bits.flipped_bits(dtype) == pytest.approx(counted, abs=0.02)


@pytest.mark.parametrize("page", CHAPTERS, ids=name)
def test_a_chapter_has_all_sections(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    found = re.findall(r"^## (.*)$", text, re.MULTILINE)
    assert len(found) == len(SECTIONS), f"{page.name} has the sections {found}; it must have {SECTIONS}"
    for heading, wanted in zip(found, SECTIONS, strict=True):
        assert re.fullmatch(wanted, heading)
    exercises = text[text.index("## Exercises") : text.index("## Further reading")]
    kinds = re.findall(r"^\d\. \*\*(.*?)\.\*\*", exercises, re.MULTILINE)
    kinds_of_all = ["Warm-up", "A planted bug", "Open"]
    assert kinds == kinds_of_all, f"{page.name} has the exercises {kinds}; they must be {kinds_of_all}"
    words = re.sub(r"```.*?```", "", text, flags=re.DOTALL).split()
    assert 900 <= len(words) <= 2000, f"{page.name} has {len(words)} words outside of ``` blocks; allowed: 900 to 2000"


@pytest.mark.parametrize("page", CHAPTERS, ids=name)
def test_a_chapter_asks_before_it_answers(page: Path, facts: Facts) -> None:
    """Neither the line under the title nor the question has the speed of the step."""
    number = int(page.name[:2])
    text = page.read_text(encoding="utf-8")
    before = text[: text.index("## The idea")]
    assert not re.search(rf"\b(?:tflops|step|verdict)\({number}[,)]", before)
    top = parts.chapter(facts, parts.Asked(f"chapters/{page.stem}", f"{number:02}"))
    shown = " ".join(part.text for part in top if isinstance(part, parts.Lead))
    assert shown and "TFLOP/s" not in shown and "×" not in shown
    asked = parts.prediction(facts, parts.Asked(f"chapters/{page.stem}", f"{number:02}"))
    assert isinstance(asked[-1], parts.Folded)
    for guess in (part for part in asked if isinstance(part, parts.Guess)):
        assert guess.step == facts.step(number) and guess.after == page.stem and number > 1


def test_measured_figures_name_their_regime(facts: Facts) -> None:
    how = {n: parts.measured(facts, parts.Asked("", f"{n:02}"))[-1].text for n in (3, 4, 7)}
    assert how[3].startswith("All figures are from `harness --record`")
    assert how[4].startswith("The figures are sustained") and "except those of 03 tiled" in how[4]
    assert how[7].startswith("All figures are sustained")


@pytest.mark.parametrize("page", [*CHAPTERS, sources.PAGES / "chapters" / "00_gpu.md"], ids=name)
def test_answers_of_exercises_are_folded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folded = parts.with_folded_answers(text)
    sections = "".join(parts.EXERCISES.findall(folded))
    outside = re.sub(r"^ *:::\{folded\} Answer$.*?^ *:::$", "", sections, flags=re.DOTALL | re.MULTILINE)
    assert sections and not re.search(r"[.?] \([^()]*[.?]\)", outside)
    words = [re.sub(r"[^\w]+", "", part) for part in (folded.replace(":::{folded} Answer", ""), text)]
    assert sorted(words[0]) == sorted(words[1]), "nothing is lost"


def test_an_answer_is_a_parenthesis_of_sentences_after_a_question() -> None:
    text = "## Exercises\n\n1. **A.** Why (in 06)? (No: f(1) is 2. So.) And why?\n2. **B.** How (it\n   is) so?\n"
    text += "\n## Next\n\n1. x? (Y.)\n"
    assert parts.with_folded_answers(text) == (
        "## Exercises\n\n1. **A.** Why (in 06)? And why?\n\n   :::{folded} Answer\n   No: f(1) is 2. So.\n   :::\n\n"
        "2. **B.** How (it\n   is) so?\n\n## Next\n\n1. x? (Y.)\n"
    )


@pytest.mark.parametrize("page", PAGES, ids=name)
def test_drawings_have_alt_texts_and_captions(page: Path) -> None:
    for drawing in re.findall(
        r"^```\{drawing\} \w+\n(.*?)^```", page.read_text(encoding="utf-8"), re.DOTALL | re.MULTILINE
    ):
        alt, _, caption = drawing.partition("\n\n")
        assert re.match(r":alt: .{40,}", alt)
        assert len(caption.split()) >= 4


def test_all_drawings_are_shown() -> None:
    texts = "".join(page.read_text(encoding="utf-8") for page in PAGES)
    drawn = {name for name in drawings.DRAWINGS if name.removesuffix("_narrow") not in set(drawings.DRAWINGS) - {name}}
    assert drawn == set(re.findall(r"^```\{drawing\} (\w+)$", texts, re.MULTILINE))


# Linear RGB as seen by people without one kind of cone: Machado, Oliveira and Fernandes, 2009, severity 1.
SEEN = {
    "all cones": ((1, 0, 0), (0, 1, 0), (0, 0, 1)),
    "protanopia": ((0.152286, 1.052583, -0.204868), (0.114503, 0.786281, 0.099216), (-0.003882, -0.048116, 1.051998)),
    "deuteranopia": ((0.367322, 0.860646, -0.227968), (0.280085, 0.672501, 0.047413), (-0.011820, 0.042940, 0.968881)),
    "tritanopia": ((1.255528, -0.076749, -0.178779), (-0.078411, 0.930809, 0.147602), (0.004733, 0.691367, 0.303900)),
}


def lab(color: str, seen: tuple[tuple[float, ...], ...]) -> tuple[float, float, float]:
    parts = [int(color[i : i + 2], 16) / 255 for i in (1, 3, 5)]
    linear = [part / 12.92 if part <= 0.04045 else ((part + 0.055) / 1.055) ** 2.4 for part in parts]
    r, g, b = (min(1, max(0, sum(m * part for m, part in zip(row, linear, strict=True)))) for row in seen)
    xyz = (
        (0.4124564 * r + 0.3575761 * g + 0.1804375 * b) / 0.95047,
        0.2126729 * r + 0.7151522 * g + 0.0721750 * b,
        (0.0193339 * r + 0.1191920 * g + 0.9503041 * b) / 1.08883,
    )
    x, y, z = (part ** (1 / 3) if part > 0.008856 else 7.787 * part + 16 / 116 for part in xyz)
    return 116 * y - 16, 500 * (x - y), 200 * (y - z)


@pytest.mark.parametrize("seen", SEEN)
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_the_eight_colours_differ_for_colour_blind_readers(scheme: str, seen: str) -> None:
    """Under protanopia, copies and tensor cores used to have the same colour; a difference of 2 is just visible."""
    css = (ROOT / "docs" / "site" / "static" / "ladder.css").read_text(encoding="utf-8")
    names = ("ink", "muted", "blue", "red", "green", "amber", "violet", "cyan")
    blocks = re.findall(r"\{([^{}]*--fl-ink:[^{}]*)\}", css)
    assert len(blocks) == 3, "light, dark by the button, dark by the system"
    of_block = [dict(re.findall(r"--fl-([\w-]+): (#\w+);", block)) for block in blocks]
    assert of_block[1] == of_block[2]
    colors = of_block[0 if scheme == "light" else 1]
    if scheme == "light":
        own = {drawings.VARIABLES[c]: c for c in drawings.VARIABLES}
        assert {name: colors[name] for name in names[2:]} == {name: own[name] for name in names[2:]}
    for i, one in enumerate(names):
        for other in names[:i]:
            assert dist(lab(colors[one], SEEN[seen]), lab(colors[other], SEEN[seen])) > 15, (one, other)


def test_the_plots_have_the_colours_of_the_drawings() -> None:
    for color in ("INK", "GREY", "BLUE", "RED", "GREEN", "AMBER", "VIOLET", "CYAN"):
        assert getattr(plot, color) == getattr(drawings, {"GREY": "MUTED"}.get(color, color)), color
    lines = [plot._line_style(i) for i in range(len(kernel_files(ROOT)))]
    assert len(set(lines)) == min(len(lines), len(plot.OF_LINES) * len(plot.MARKERS))
    assert len({color for _, color in lines[: len(plot.OF_LINES)]}) == len(plot.OF_LINES)


@pytest.mark.parametrize("drawing", ["over_seq_len", "clock_and_share"])
def test_labels_are_not_next_to_other_points(drawing: str, facts: Facts) -> None:
    with rc_context(drawings.STYLE):
        figure = drawings.DRAWINGS[drawing](facts)
        figure.draw_without_rendering()
    (axes,) = figure.axes
    points = [
        (float(x), float(y))
        for line in axes.lines
        if line.get_marker() not in ("None", None, "")
        for x, y in axes.transData.transform(line.get_xydata())
    ]
    assert len(points) > 8
    for text in axes.texts:
        box = Text.get_window_extent(text).padded(3)
        assert not [point for point in points if box.contains(*point)], text.get_text()


def test_version_16_is_among_the_curves(facts: Facts) -> None:
    with rc_context(drawings.STYLE):
        (axes,) = drawings.DRAWINGS["over_seq_len"](facts).axes
    assert any(text.get_text().startswith("16 ") for text in axes.texts)


def test_memory_has_one_linear_scale(facts: Facts) -> None:
    with rc_context(drawings.STYLE):
        (axes,) = drawings.DRAWINGS["memory_levels"](facts).axes
    assert axes.get_xscale() == "linear"


@pytest.mark.parametrize("drawing", ["rings_19", "consumers_20", "overlap_23", "turns_26", "three_27", "roles_23"])
def test_timelines_explain_their_waits(drawing: str, facts: Facts) -> None:
    with rc_context(drawings.STYLE):
        (axes,) = drawings.DRAWINGS[drawing](facts).axes
    legend = axes.get_legend()
    named = {text.get_text(): box for text, box in zip(legend.get_texts(), legend.get_patches(), strict=True)}
    assert {"softmax", "waits"} <= set(named)
    explained = {(box.get_facecolor(), box.get_hatch()) for box in named.values()}
    assert {(box.get_facecolor(), box.get_hatch()) for box in axes.patches} <= explained


@pytest.mark.parametrize("drawing", drawings.DRAWINGS)
def test_texts_of_a_drawing_do_not_cover_each_other(drawing: str, facts: Facts) -> None:
    with rc_context(drawings.STYLE):
        figure = drawings.DRAWINGS[drawing](facts)
        figure.draw_without_rendering()
    texts = []
    for axes in figure.axes:
        texts += axes.texts
        for axis in (axes.xaxis, axes.yaxis) if axes.axison else ():
            low, high = sorted(axis.get_view_interval())
            texts += [axis.label, *(tick.label1 for tick in axis.get_major_ticks() if low <= tick.get_loc() <= high)]
    level = [text for text in texts if text.get_text() and text.get_visible() and not text.get_rotation()]
    boxes = [(text.get_text(), Text.get_window_extent(text).padded(-0.5)) for text in level]  # without its line
    assert len(boxes) > 5
    for i, (one, box) in enumerate(boxes):
        for other, other_box in boxes[:i]:
            assert not box.overlaps(other_box), f"{one} covers {other}"


def test_every_instruction_of_the_hot_loops_is_in_the_glossary(facts: Facts) -> None:
    glossary = (sources.PAGES / "glossary.md").read_text(encoding="utf-8")
    opcodes = {opcode for n in facts.numbers() if facts.has_machine_code(n) for opcode in facts.hot_loop(n)}
    assert len(opcodes) > 30
    assert {opcode for opcode in opcodes if not re.search(rf"\b{opcode}\b", glossary)} == set()


# ---- quotations ----


@pytest.fixture
def file(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> str:
    monkeypatch.setattr(sources, "ROOT", tmp_path)
    text = """\
// A first one
// of two lines.
void f() {
  // Copy K.
  g(1);
  for (int i = 0; i < 4; ++i) {
    h(K[i]);  // m
  }

  // Copy V. (Its part begins here.)
#pragma unroll
  for (int i = 0;
       i < 4; ++i)
    h(V[i]);  // m
}

// A second
template <typename T>
T k() {
  return {
"""
    (tmp_path / "a.cu").write_text(text + "      1,\n" * 20 + "  };\n}\n", encoding="utf-8")
    return "a.cu"


@pytest.mark.parametrize(
    ("start", "end", "first", "text"),
    [
        ("Copy K + 2", None, 6, "for (int i = 0; i < 4; ++i) {"),
        ("Copy K + 2", "+ 3", 6, "for (int i = 0; i < 4; ++i) {\n  h(K[i]);  // m"),
        ("A first one", "Copy K", 1, "// A first one\n// of two lines.\nvoid f() {\n  // Copy K."),
        ("Copy V > m", None, 14, "h(V[i]);  // m"),
        ("Copy V + 1", None, 12, "for (int i = 0;\n     i < 4; ++i)"),
        ("Copy K > m", "}", 7, "  h(K[i]);  // m\n}"),
        ("A second + 1", None, 19, "T k() {"),
    ],
)
def test_a_quotation_is_found_by_the_names_of_its_places(
    file: str, start: str, end: str | None, first: int, text: str
) -> None:
    found = sources.quote(file, start, end)
    assert (found.first, found.text) == (first, text)


@pytest.mark.parametrize(
    ("start", "end", "message"),
    [
        ("no such place", None, "no comment that begins with 'no such place'"),
        ("Copy", None, "2 comments that begin with 'Copy'"),
        ("Copy K > n", None, "no comment that begins with 'n'"),
        ("Copy K + 9", None, "3 statements after 'Copy K', not 9"),
        ("Copy V", "Copy K", "no 'Copy K' after 'Copy V'"),
        ("A second", "};", "25 lines; at most 15"),
    ],
)
def test_a_quotation_that_drifted_is_refused(file: str, start: str, end: str | None, message: str) -> None:
    with pytest.raises(sources.QuoteError, match=re.escape(message)):
        sources.quote(file, start, end)


def test_a_change_is_quoted_as_a_diff() -> None:
    before = sources.quote("kernels/05_cp_async.cu", "The offset of element + 1", "}")
    after = sources.quote("kernels/06_swizzle.cu", "The offset of element + 1", "}")
    assert "-  return row * Traits::kHeadDim + col;" in sources.hunk(before, after)
    with pytest.raises(sources.QuoteError, match="do not differ"):
        sources.hunk(before, before)


# ---- the layouts that are drawn ----

PAIRS = 2 * 4 * 4 * 4  # warps times K/V tiles: heads, query tiles, warps, tiles in the problem that the virtual GPU
# counts
K_REGISTERS = [(n, k, i) for n in range(8) for k in range(8) for i in range(2)]
V_REGISTERS = [(n, k, i, high) for n in range(16) for k in range(4) for i in range(2) for high in (False, True)]


@pytest.mark.parametrize(("version", "swizzled"), [(4, False), (5, False), (6, True)])
def test_banks_are_those_that_the_virtual_gpu_counts(version: int, swizzled: bool, counted: Facts) -> None:
    K = PAIRS * sum(layouts.wavefronts(layouts.K_load(swizzled, *register), 4) for register in K_REGISTERS)
    assert counted.at(version, "B = Kᵀ", "shared_load_wavefronts") == K
    Q = PAIRS * sum(layouts.wavefronts(layouts.Q_load(swizzled, k, i), 4) for k in range(8) for i in range(4))
    assert counted.at(version, "A = Q", "shared_load_wavefronts") == Q
    V = PAIRS * sum(layouts.wavefronts(layouts.V_load(swizzled, *register), 2) for register in V_REGISTERS)
    assert counted.at(version, "B = V", "shared_load_wavefronts") == V


def test_ldmatrix_is_what_the_virtual_gpu_counts(counted: Facts) -> None:
    for which, place in (("Q", "A = Q"), ("K", "B = Kᵀ"), ("V", "B = V")):
        loads = counted.at(7, place, "shared_load_requests")
        each = layouts.ldmatrix_wavefronts(layouts.ldmatrix_rows(which), swizzled=True)
        assert counted.at(7, place, "shared_load_wavefronts") == loads * each


def test_sectors_are_those_that_the_virtual_gpu_counts(counted: Facts) -> None:
    loads = counted.at(1, "S = Q Kᵀ", "global_load_requests") // 2  # one of Q and one of K
    Q = layouts.sectors([lane // 16 * 256 for lane in range(32)], 2)
    K = layouts.sectors([lane % 16 * 256 for lane in range(32)], 2)
    assert counted.at(1, "S = Q Kᵀ", "global_load_sectors") == loads * (Q + K)


def test_fragments_cover_each_element_once() -> None:
    A = [place for lane in range(32) for i in range(4) for place in layouts.fragment_A(lane, i)]
    B = [place for lane in range(32) for i in range(2) for place in layouts.fragment_B(lane, i)]
    D = [layouts.fragment_D(lane, i) for lane in range(32) for i in range(4)]
    assert sorted(A) == [(row, k) for row in range(16) for k in range(16)]
    assert sorted(B) == [(k, n) for k in range(16) for n in range(8)]
    assert sorted(D) == [(row, n) for row in range(16) for n in range(8)]


def test_two_accumulators_are_an_operand() -> None:
    """As packed by 04: register i of A consists of elements i % 2 * 2 and the next of accumulator i / 2."""
    for lane in range(32):
        for i in range(4):
            from_S = [layouts.fragment_D(lane, i % 2 * 2 + j) for j in range(2)]
            assert layouts.fragment_A(lane, i) == [(row, col + i // 2 * 8) for row, col in from_S]


def test_ldmatrix_deals_out_what_the_fragments_want() -> None:
    """Lane l gets elements (l / 4, l % 4 · 2) and the next of matrix i; with .trans it is column l / 4 instead."""
    for which in "QKV":
        rows = layouts.ldmatrix_rows(which)
        for lane in range(32):
            for i in range(4):
                row, col = rows[i * 8]  # where matrix i starts
                group, pair = lane // 4, lane % 4 * 2
                if which == "V":
                    got = [(row + pair + j, col + group) for j in range(2)]
                    wanted = [(k, n + i // 2 * 8) for k, n in layouts.fragment_B(lane, i % 2)]
                elif which == "K":
                    got = [(row + group, col + pair + j) for j in range(2)]
                    wanted = [(n + i // 2 * 8, k) for k, n in layouts.fragment_B(lane, i % 2)]
                else:
                    got = [(row + group, col + pair + j) for j in range(2)]
                    wanted = layouts.fragment_A(lane, i)
                assert got == wanted, (which, lane, i)


def test_exchanged_chunks_of_Q_are_fragments() -> None:
    """As assigned by 14: for chunk i, registers 0 to 3 are A[half], A[half + 2] of mma_k 2 i, then of 2 i + 1."""
    for i in range(4):
        after = layouts.transpose_in_group([layouts.Q_chunk(lane, i) for lane in range(32)])
        for lane in range(32):
            for register in range(4):
                row, col = after[lane][register]
                wanted = layouts.fragment_A(lane, register % 2 * 2)  # half 0: rows 0 to 7
                assert (row, col - (2 * i + register // 2) * 16) == wanted[0]


def test_exchanged_pairs_of_O_are_16_bytes_of_a_row() -> None:
    """Lane j of a group has columns 8 mma_n + 2 j of accumulators mma_n = 4 i to 4 i + 3, and stores chunk 4 i + j."""
    for i in range(4):
        pairs = [[(lane // 4, (4 * i + n) * 8 + lane % 4 * 2) for n in range(4)] for lane in range(32)]
        for lane, stored in enumerate(layouts.transpose_in_group(pairs)):
            assert stored == layouts.Q_chunk(lane, i)


# ---- 17 and later: wgmma, TMA, rings ----


@pytest.mark.parametrize("rows", [64, 128])
def test_a_descriptor_reads_what_was_copied(rows: int) -> None:
    """Each wgmma of S finds its 16 columns, and each of P V its 16 keys, where smem_offset() of 17 places them."""
    for mma_k in range(8):
        for row in range(rows):
            for k in range(16):
                read = layouts.K_major(layouts.start_of_K(mma_k, rows), row, k)
                assert read == layouts.half_offset(row, mma_k * 16 + k, rows)
    for mma_k in range(rows // 16):
        for k in range(16):
            for n in range(128):
                read = layouts.MN_major(layouts.start_of_V(mma_k), k, n, leading=rows * 128)
                assert read == layouts.half_offset(mma_k * 16 + k, n, rows)


def test_the_layouts_are_those_of_the_kernels() -> None:
    """The formulas of layouts.py are those in the files."""
    kernel = (ROOT / "kernels" / "hopper" / "17_wgmma.cu").read_text(encoding="utf-8")
    for text in (
        "constexpr int kCols = 64, kChunk = 8",
        "const int chunk = ((col / kChunk) ^ row) % 8;",
        "return col / kCols * kRows * kCols + row * kCols + chunk * kChunk + col % kChunk;",
        "matrix_descriptor(Q_smem, 0, 1024), K = matrix_descriptor(K_smem, 0, 1024)",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32)",
        "matrix_descriptor(V_smem, Traits::kBlockKV * 128, 1024)",
        "advance(V, mma_k * 16 * 128)",
    ):
        assert text in kernel
    header = (ROOT / "common" / "hopper" / "wgmma.h").read_text(encoding="utf-8")
    assert "(smem_address(smem) & 0x3FFFF) >> 4) |" in header and "std::uint64_t{1} << 62" in header
    assert layouts.descriptor(0x4400, 16384, 1024) == 1 << 62 | 64 << 32 | 1024 << 16 | 0x440


def test_a_warpgroup_holds_each_element_once() -> None:
    D = [layouts.wgmma_D(thread, n, i) for thread in range(128) for n in range(16) for i in range(4)]
    assert sorted(D) == [(row, col) for row in range(64) for col in range(128)]


def at_tensor_cores(spans: list[timeline.Span], consumer: int) -> dict[str, timeline.Span]:
    return {span.what: span for span in spans if span.who == f"tensor {consumer}"}


@pytest.mark.parametrize("number", [19, 20, 23, 26, 27])
def test_a_timeline_computes_each_step_once_and_in_order(number: int, facts: Facts) -> None:
    spans, tiles = facts.timeline_of(number), 12
    consumers = sorted({span.who for span in spans if span.who.startswith("consumer")})
    assert len(consumers) == (1 if number < 20 else 2 if number < 27 else 3)
    for me, who in enumerate(consumers):
        mine = at_tensor_cores(spans, me)
        for tile in range(tiles):
            softmax = [span for span in spans if span.who == who and span.what == f"softmax {tile}"]
            assert mine[f"S{tile}"].end <= softmax[0].begin + 1e-3
            assert softmax[-1].end <= mine[f"PV{tile}"].begin + 1e-3
            if 0 < tile < tiles - 1:
                length = sum(span.end - span.begin for span in softmax)
                assert isclose(length, facts.lengths(number).softmax, rel_tol=0.02)
    # A tile is copied to a buffer after all consumers have read the one before it, and arrives before it is used.
    stages = len({span.who for span in spans if span.who[0] == "K"})
    assert stages == (3 if number == 27 else 2)
    for which, product in (("K", "S"), ("V", "PV")):
        for tile in range(tiles):
            (copy,) = [span for span in spans if span.what == f"{which}{tile}" and span.who[0] == which]
            used = [at_tensor_cores(spans, me)[f"{product}{tile}"] for me in range(len(consumers))]
            assert all(copy.end <= span.begin + 1e-3 for span in used)
            if tile >= stages:
                before = [at_tensor_cores(spans, me)[f"{product}{tile - stages}"] for me in range(len(consumers))]
                assert all(span.end <= copy.begin + 1e-3 for span in before)


@pytest.mark.parametrize("number", [19, 26])
def test_a_timeline_waits_and_arrives_in_the_order_of_the_trace(number: int, facts: Facts) -> None:
    trace = facts.role_trace(number, 12)
    for warp in (trace.warps(multiply=False)[0], *trace.warps(multiply=True)):
        actions = timeline.actions_of(trace, warp, timeline.Lengths(512, 630))
        followed = [
            f"{'wgmma_wait' if action.kind == 'finish' else action.kind} {action.key[0]}".strip()
            for action in actions
            if action.kind in ("wait", "arrive", "copy", "finish")
        ]
        assert followed == [str(step) for step in trace.steps(warp)] and len(followed) > 40


def test_two_consumers_that_begin_together_stay_together_and_turns_part_them(facts: Facts) -> None:
    alone = 2 * facts.lengths(20).product
    assert isclose(facts.timeline_share(19), alone / (alone + facts.lengths(19).softmax), rel_tol=0.01)
    assert isclose(facts.timeline_share(20), 2 * alone / (2 * alone + facts.lengths(20).softmax), rel_tol=0.01)
    assert facts.timeline_share(20) < facts.timeline_share(23) < facts.timeline_share(25) < 0.99
    assert isclose(facts.timeline_share(26), 1, rel_tol=1e-3) and isclose(facts.timeline_share(27), 1, rel_tol=1e-3)


class MadeUpTrace:
    """A producer and a consumer of four tiles, which has one buffer."""

    def __init__(self, tiles: int = 4, arrivals: int = 99) -> None:
        self.tiles, self.by_warp = tiles, {0: [], 4: []}
        for tile in range(tiles):
            at = 100 * tile
            producer = [Step("wait", "K_empty", at, at + 1, tile - 1)]
            producer += [Step(what, "K_full", at + 2, at + 3, tile) for what in ("arrive", "copy")]
            consumer = [Step("wait", "K_full", at, at + 1, tile), Step("wgmma_wait", "", at + 9, at + 10)]
            consumer += [Step("arrive", "K_empty", at + 11, at + 12, tile)] if tile < arrivals else []
            self.by_warp[0] += producer
            self.by_warp[4] += consumer

    def steps(self, warp: int) -> list[Step]:
        return self.by_warp[warp]

    def warps(self, *, multiply: bool) -> list[int]:
        return [4] if multiply else [0]

    def wgmmas(self, warp: int) -> list[Wgmmas]:
        return [Wgmmas(4, 100 * i + 5, 100 * i + 10, 1) for i in range(self.tiles)] if warp == 4 else []

    def arithmetic(self, warp: int) -> list[tuple[int, int]]:
        return [(100 * i + 12, 100 * i + 52) for i in range(self.tiles)] if warp == 4 else []

    def arrivals(self) -> dict[tuple[str, int], set[int]]:
        return {}


def test_a_timeline_takes_the_order_from_the_trace_and_the_lengths_from_elsewhere() -> None:
    spans = timeline.timeline(MadeUpTrace(), timeline.Lengths(product=10, softmax=30, copy=5))
    assert [(span.what, span.begin, span.end) for span in spans if span.who in ("K", "tensor 0")] == [
        ("K", 0, 5), ("S0", 5, 15),
        ("K", 15, 20), ("S1", 45, 55),
        ("K", 55, 60), ("S2", 85, 95),
        ("K", 95, 100), ("S3", 125, 135),
    ]  # fmt: skip


def test_a_trace_that_is_too_short_or_incomplete_has_no_timeline() -> None:
    with pytest.raises(timeline.TimelineError, match="2 tiles of keys, and 3 are needed"):
        timeline.timeline(MadeUpTrace(tiles=2), timeline.Lengths(10, 30))
    trace = MadeUpTrace()
    trace.by_warp[0] = trace.by_warp[0][:3]  # the producer stops after the first tile
    trace.by_warp[4][3] = Step("wait", "K_full", 100, 101, 1)
    trace.by_warp[0] += [Step("wait", "K_empty", 103, 104, 1), Step("arrive", "K_full", 105, 106, 1)]
    with pytest.raises(timeline.TimelineError, match=r"does not show what ends these waits: producer: .*K_empty"):
        timeline.timeline(trace, timeline.Lengths(10, 30))


def test_the_command_prints_the_timeline_of_a_trace(tmp_path: Path) -> None:
    command = [BUILD / "harness", "--kernel", "19", "--device", "emulator", "--no-check"]
    for tiles in (6, 2):
        file = tmp_path / f"{tiles}.json"
        subprocess.run([*command, "--seq-len-kv", str(128 * tiles), "--trace", file], check=True, capture_output=True)
    printer = [sys.executable, Path(timeline.__file__), "--product", "512", "--softmax", "630"]
    done = subprocess.run([*printer, tmp_path / "6.json"], capture_output=True, text=True, check=True)
    assert "     500    1,012  tensor 0    S0" in done.stdout.splitlines()
    done = subprocess.run([*printer, tmp_path / "2.json"], capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "2 tiles" in done.stderr


def test_heads_and_query_tiles_of_the_bug_of_21() -> None:
    """3 heads and 2 query tiles per head: every pair occurs. 16 and 32: one out of 16."""

    def pairs(heads: int, q_tiles: int) -> int:
        return len({(q_tile % q_tiles, q_tile % heads) for q_tile in range(heads * q_tiles)})

    assert pairs(3, 2) == 6 and pairs(16, 32) == 16 * 32 // 16


def special(kernel: str, data: str) -> int:
    """Executed instructions of the exponential unit, at the shape of chapters 28 and 29."""
    shape = ["--batch", "1", "--heads", "2", "--seq-len", "192", "--seq-len-kv", "4096", "--no-check"]
    command = [BUILD / "harness", "--kernel", kernel, "--device", "emulator", "--data", data, *shape]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    return int(re.search(r"special ([\d,]+)", done.stdout)[1].replace(",", ""))


@pytest.mark.parametrize("kernel", ["27", "28"])
def test_softmaxes_that_are_redone_are_as_chapter_28_says(kernel: str) -> None:
    page = (sources.PAGES / "chapters" / "28_key_order.md").read_text(encoding="utf-8")
    said = re.search(rf"^\| {kernel} \| (\d+) \| (\d+) \| (\d+) \| (\d+) \|$", page, re.MULTILINE).groups()
    normal = special(kernel, "normal")
    redone = [(special(kernel, data) - normal) / 34 for data in ("steps", "rising", "falling", "q-times-6")]
    assert redone == [int(count) for count in said]
    tiles = drawings_hopper.key_order_of(64) if kernel == "28" else list(range(64))
    _, again = drawings_hopper.raised(12, spread=1.4427, rise=2.04, order=tiles)
    assert isclose(len(again) / 64, redone[0] / 1536, rel_tol=0.15), "the model agrees"


def test_29_repeats_no_exponential_of_q_times_6() -> None:
    page = (sources.PAGES / "chapters" / "29_power_of_two.md").read_text(encoding="utf-8")
    before, now = re.search(r"28 executes ([\d,]+) MUFU and 29 executes ([\d,]+), as many as on normal", page).groups()
    assert special("28", "q-times-6") == int(before.replace(",", ""))
    assert special("29", "q-times-6") == special("29", "normal") == int(now.replace(",", ""))


def test_28_visits_every_tile_once() -> None:
    for tiles in range(1, 200):
        assert sorted(drawings_hopper.key_order_of(tiles)) == list(range(tiles))
    assert drawings_hopper.key_order_of(64)[:4] == [63, 38, 13, 52]


# ---- the online softmax that the learning path computes by hand ----


@pytest.mark.parametrize("query", range(4))
def test_the_worked_softmax_is_attention(query: int) -> None:
    exact = definition(worked.Q[query], worked.K, worked.V, scale=1)
    assert all(isclose(a, b, rel_tol=1e-14) for a, b in zip(worked.output(query), exact, strict=True))
    for key, step in enumerate(worked.steps(query)):
        so_far = worked.SCORES[query][: key + 1]
        assert step.m == max(so_far)
        assert isclose(step.l, sum(exp(score - step.m) for score in so_far), rel_tol=1e-14)
        assert step.P[0] <= 1 and step.r <= 1


def test_the_worked_example_is_the_one_on_the_page() -> None:
    page = (sources.PAGES / "learning_path.md").read_text(encoding="utf-8")
    block = page[page.index("Q = (1 0)") : page.index("```", page.index("Q = (1 0)"))]
    rows = [
        [tuple(float(x) for x in row.split()) for row in re.findall(r"\(([^)]*)\)", line)]
        for line in block.splitlines()
    ]
    assert [list(column) for column in zip(*rows, strict=True)] == [worked.Q, worked.K, worked.V]


# ---- statements that chapters make in words ----

SAID = [
    # statements that are words on a page and so cannot be expressions there: "less than predicted", "the busiest unit"
    ("02, as predicted", "4.5 < step(2) < 6"),
    ("03, a little better than predicted", "verdict(3) == 'as predicted' and step(3) > 4.2"),
    ("04, far less than predicted", "step(4) < 2"),
    ("05, 5 % at most, and the limit stays", "step(5) <= 1.1 and shared(5) > 90"),
    ("06, the step that gains the most", "max((tflops(n) - tflops(n - 1), n) for n in range(2, 12))[1] == 6"),
    ("06, less than its wavefronts promise", "step(6) < wavefronts_per_score(5) / wavefronts_per_score(6)"),
    ("07, as predicted", "1.2 < step(7) < 1.45"),
    ("08, less than predicted", "1 < step(8) < 1.1"),
    ("08, the faster version gets the lower clock", "clock_mhz(8) < clock_mhz(7)"),
    ("04, no version with mmas stays at the maximum", "max(clock_while_running_mhz(n) for n in range(4, 17)) < 1900"),
    ("04, at its limit", "0.9 * cycles_per_score(4) < 2.375 < cycles_per_score(4)"),
    ("09, a step down", "step(9) < 1 and registers(9) > registers(8)"),
    ("10, better than predicted", "step(10) > 1.06 and ctas(10) == 3 and ctas(9) == 2"),
    ("11, less than predicted", "1 < step(11) < 1.15"),
    (
        "11, shared memory was slower than the tensor cores",
        "wavefronts_per_score(10) > 1.3 * tensor_cycles_per_score(10)",
    ),
    ("02, issue slots", "issue(2) > 80 and issue(2) > shared(2)"),
    ("03, shared memory", "shared(3) > issue(3)"),
    ("04, shared memory, nearly all the time", "shared(4) > 95"),
    ("06, nothing is near 100 %", "max(shared(6), issue(6), tensor(6)) < 80"),
    ("09, issue slots are busier, tensor cores less", "issue(9) > issue(8) and tensor(9) < tensor(8)"),
    ("12, a little less than predicted", "verdict(12) == 'as predicted' and step(12) < 1.15"),
    ("12, cycles and time gain alike", "0.97 < cycles(11) / cycles(12) / step(12, 2048) < 1.03"),
    ("12, the largest error grows", "share_of_allowed(12) > share_of_allowed(11)"),
    ("12, in bf16, too", "share_of_allowed(12, 'bf16') > share_of_allowed(11, 'bf16')"),
    ("12, whoever takes the branch is slower than 11", "loop(12) + behind_branches(12) > loop(11)"),
    ("13, the same instructions in less time", "0.9 < instructions_per_score(13) / instructions_per_score(12) < 1.1"),
    ("13, and the same wavefronts", "0.9 < wavefronts_per_score(13) / wavefronts_per_score(12) < 1.1"),
    ("13, less waiting", "cycles(13) < cycles(12)"),
    ("14, short sequences gain least", "step(14, 512) < step(14) and step(14, 512) < step(14, 8192)"),
    ("14, more instructions", "2 * loop(14) > loop(13)"),
    ("14, fewer wavefronts", "wavefronts_per_score(14) < 0.8 * wavefronts_per_score(13)"),
    ("14, less through L2", "l2_gb(14) < l2_gb(13)"),
    ("15, the gain falls with seq_len", "step(15, 512) > step(15)"),
    (
        "15, the fixed part of a round gets shorter",
        "8 * milliseconds(15, 512) / 4 - milliseconds(15) / 32 < 8 * milliseconds(14, 512) / 4 - milliseconds(14) / 32",
    ),
    ("16, less than predicted", "1 < step(16) < 1.08"),
    ("16, not the same instructions", "loop(16) > 1.05 * loop(15)"),
    ("16, cycles gain more than time", "cycles(15) / cycles(16) > step(16, 2048)"),
    ("16, the tensor cores are the busiest unit", "tensor(16) > max(tensor(15), issue(16), shared(16))"),
    ("00, each byte moves once from 02 on", "max(dram_gb(n) for n in range(2, 12)) < 0.6"),
    ("00, faster versions of the second track have lower clocks", "clock_mhz(27) < clock_mhz(20) < clock_mhz(17)"),
    ("17, much slower than predicted", "step(17) < 0.7"),
    ("17, less than 10", "ratio(17, 10) < 1"),
    ("18, far more than predicted", "step(18) > 1.4"),
    ("18, no addresses", "registers(18) < registers(17) and behind_branches(18) < behind_branches(17) / 3"),
    ("19, nothing gained", "0.96 < step(19) < 1.03"),
    ("20, less than predicted, and the largest step after 18", "1.2 < step(20) < 1.4"),
    ("20, to the instruction", "hot_loop(20) == hot_loop(19)"),
    ("20, the clock falls", "clock_mhz(20) < clock_mhz(19)"),
    ("20, the new track has passed the old one", "ratio(20, 16) > 1.05"),
    ("21, the gain falls with seq_len, and is larger than in 15", "step(21, 512) > max(step(21), step(15, 512))"),
    ("22, more than predicted at 512", "step(22, 512) > 1.06"),
    ("23, the clock falls", "clock_mhz(23) < clock_mhz(22)"),
    ("23, the same work", "sass(23, 'MUFU') == sass(22, 'MUFU') and loop(23) < 1.05 * loop(22)"),
    ("24, a gain at 4096 and none at 512", "step(24) > 1.05 and step(24, 512) < 1.01"),
    ("25, 512 wins back what it lost", "step(25, 512) > 1.03 and ratio(25, 23, 512) > 0.98"),
    ("26, a little for short sequences", "step(26, 512) > 1.005 and 1.01 < step(26, 1024) < 1.08"),
    ("26, around 1 from 2048 on", "max((step(26, n) - 1) ** 2 for n in (2048, 4096, 16384)) < 0.03 ** 2"),
    ("27, more at 16,384 than at 4096", "step(27, 16384) > step(27) > 0.99"),
    ("27, less through L2", "l2_gb(27) < l2_gb(26)"),
    ("28 and 29, no slower on normal data", "0.985 < step(28) < 1.015 and 0.985 < step(29) < 1.015"),
    *(
        (f"README, {number} is faster than {peer}", f"min(of_peer({number}, '{peer}', 2**n) for n in range(9, 15)) > 1")
        for number, peer in ((16, "FlashAttention-2"), (29, "FlashAttention-3"), (29, "cuDNN"))
    ),
]


@pytest.mark.parametrize(("words", "holds"), SAID, ids=[words for words, _ in SAID])
def test_what_is_said_in_words_is_what_was_measured(words: str, holds: str, facts: Facts) -> None:
    try:
        held = facts.evaluate(holds)
    except NotRecordedError as error:
        pytest.skip(f"not recorded yet: {error}")
    assert held, f"{words}: {holds} no longer holds; measure again, or rewrite the chapter"
