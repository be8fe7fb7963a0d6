"""The contents of the pages' directives, as data. ladder_docs.py turns it into the site's nodes, pages.py into
Markdown.

In a page:

{num}`step(6)`              a figure from profiles/ or the registry: an expression of facts.py; "; FORMAT" may follow
{blank}`128 = EXPRESSION`   a blank in a calculation; if the answer is not the figure, the page does not build
{term}`bank`                a term of the glossary; {term}`banks <bank>` for another form of it
```{quote} FILE             lines of a source file, located by their text (:start:, :end:); with
                            :against: FILE (:start-against:, :end-against:) the difference from there
```{chapter} NN             the top of a chapter: what it adds, in which file; a banner if recordings are not current
```{prediction} NN          the header's prediction, folded away, after a field for the reader's own (site) and the
                            command that asks for it in the terminal
```{measured} NN            TFLOP/s of the step and of the step before, over seq_len; the prediction, and the verdict
```{busy} NN NN …           how busy each unit is
```{by_data} DTYPE SEQ_LEN  TFLOP/s on each kind of data; a third word, causal: with the causal mask
```{fp8_errors}             how far attention in 8 bits is from float64, on each kind of data
```{sass} NN NN             instructions of the hot loop
```{drawing} NAME           a drawing of drawings.py; the content is its caption, :alt: what it shows
```{interactive} NAME       a part that ladder.js brings to life
```{worked} QUERY           the online softmax of worked.py, step by step
```{folded} SUMMARY         its content, folded away
```{recorded} EXPRESSION    its content, left out until that figure is recorded
```{unrecorded} EXPRESSION  its content, left out once that figure is recorded
```{source} NN              the whole file
```{graded}                 on an assignment's page: what is graded, with points
```{hints}                  on an assignment's page: its hints, each folded away
```{mistakes} NN NN …       the mistakes that the tests plant in a kernel, and their symptoms
```{teachers}              what two teachers would give for answers, and the grader's points
```{answer_mutants}        changed reference answers, and how many of them have fewer points
"""

from __future__ import annotations

import json
import re
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import drawings
import sources
import worked
from facts import BATCH, DEVICE, FactError, Facts, NotRecordedError

sys.path += [str(sources.ROOT / "harness" / folder) for folder in ("grader", "tests")]

import assignment
import planted_faults
import update_docs
from profile_data import ProfileError, Shape, Version, three_digits

ERRORS = (
    FactError,
    ProfileError,
    ValueError,  # a format that {num} does not know, or something that is not a number
    assignment.AssignmentError,
    drawings.DrawingError,
    sources.QuoteError,
    update_docs.PageError,
)


@dataclass(frozen=True)
class Markdown:
    text: str


@dataclass(frozen=True)
class Plain:
    """A paragraph without Markdown; `quoted`: someone else's words; `note`: in small print, below a table."""

    text: str
    quoted: bool = False
    note: bool = False


@dataclass(frozen=True)
class Table:
    """The first column is text, *emphasised* or code; the others are figures."""

    kind: str
    headings: list[str]
    rows: list[list[str]]
    code: bool = False  # names in the first column are in code font


@dataclass(frozen=True)
class Quotation:
    text: str
    language: str
    found: sources.Quote
    against: str | None

    def place(self) -> str:
        """kernels/06_swizzle.cu, lines 45–47"""
        first, last = self.found.first, self.found.first + len(self.found.lines) - 1
        lines = f"line {first}" if last == first else f"lines {first}–{last}"
        return f"{self.found.file}, {lines}" + (f", against {self.against}" if self.against else "")


@dataclass(frozen=True)
class Source:
    file: str


@dataclass(frozen=True)
class Lead:
    """The line below a chapter's title."""

    file: str
    text: str


@dataclass(frozen=True)
class Banner:
    title: str
    text: str  # Markdown
    refused: str  # the message that scripts/docs --strict prints instead


@dataclass(frozen=True)
class Drawing:
    """The directive's content becomes its caption."""

    name: str
    alt: str


@dataclass(frozen=True)
class Interactive:
    name: str
    title: str


@dataclass(frozen=True)
class Guess:
    """A field of the site for the reader's factor, which is then compared with the measured one."""

    before: str  # 06_swizzle
    after: str
    step: float  # how many times as fast
    regime: str  # how both were measured


@dataclass(frozen=True)
class Content:
    """The content of the directive, unchanged."""


@dataclass(frozen=True)
class Folded:
    summary: str
    parts: Sequence[Part]
    kind: str = ""


Part = Markdown | Plain | Table | Quotation | Source | Lead | Banner | Drawing | Interactive | Guess | Content | Folded


@dataclass(frozen=True)
class Asked:
    """A directive as used on a page."""

    page: str  # "chapters/06_swizzle"
    argument: str = ""
    options: dict[str, str] = field(default_factory=dict)

    def numbers(self) -> list[int]:
        return [int(number) for number in self.argument.split()]


Says = Callable[[Facts, Asked], list[Part]]


@dataclass(frozen=True)
class Directive:
    says: Says
    options: tuple[str, ...] = ()
    has_argument: bool = True
    has_content: bool = False


DIRECTIVES: dict[str, Directive] = {}


def directive(*options: str, **has: bool) -> Callable[[Says], Says]:
    def add(says: Says) -> Says:
        DIRECTIVES[says.__name__.rstrip("_")] = Directive(says, options, **has)
        return says

    return add


def answer_shown(answer: str) -> str:
    """1298 as 1,298"""
    return f"{float(answer):,.{len(answer.partition('.')[2])}f}"


def label(facts: Facts, number: int) -> str:
    """06 swizzle"""
    return facts.stem(number).replace("_", " ", 1)


# ---- code ----


@directive("start", "end", "against", "start-against", "end-against")
def quote(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    start, end, against = (asked.options.get(name) for name in ("start", "end", "against"))
    if start is None:
        raise sources.QuoteError("a quotation needs :start:")
    found = sources.quote(asked.argument, start, end)
    if against is None:
        return [Quotation(found.text, "cuda", found, None)]
    before = sources.quote(against, asked.options.get("start-against", start), asked.options.get("end-against", end))
    return [Quotation(sources.hunk(before, found), "diff", found, against)]


@directive()
def source(facts: Facts, asked: Asked) -> list[Part]:
    """The whole file of a version, given by its number, or of an extension, given by its path."""
    return [Source(asked.argument if asked.argument.endswith(".cu") else facts.file(asked.numbers()[0]))]


# ---- a version's chapter ----


@directive()
def chapter(facts: Facts, asked: Asked) -> list[Part]:
    number = asked.numbers()[0]
    file = facts.file(number)
    found: list[Part] = []
    if stale := facts.stale(number):
        were = "was" if len(stale) == 1 else "were"
        text = f"**The figures in this chapter are out of date.** {file} has changed since `{'` and `'.join(stale)}`"
        text += f" {were} recorded. The idea and the hand counts still hold; the measured figures may not."
        refused = f"version {number:02} has changed since {', '.join(stale)} was recorded"
        found.append(Banner("Stale profile", text, refused))
    if missing := facts.missing(number):
        text = f"**This chapter is not recorded yet:** there is no `{'`, `'.join(missing)}`."
        refused = f"version {number:02} is not recorded yet: there is no {', '.join(missing)}"
        found.append(Banner("Not recorded", text, refused))
    if number == 1:
        return [*found, Lead(file, "the first version")]
    added, removed = sources.code_lines_changed(facts.file(number - 1), file)
    # No speed: the page asks for a prediction first.
    size = f"compared with version {number - 1:02}, {added} lines of code added, {removed} removed"
    return [*found, Lead(file, size)]


@directive()
def prediction(facts: Facts, asked: Asked) -> list[Part]:
    number = asked.numbers()[0]
    header = Plain(sources.header(facts.file(number))["Prediction"], quoted=True)
    summary = "Write down your own figure first. Then open the prediction from the header of the file."
    folded = Folded(summary, [header], "prediction")
    if number == 1:
        return [folded]
    quiz = (
        f"In a terminal, `scripts/harness --kernel {number:02} --quiz` asks for your prediction, then shows the"
        " one in the file's header, the counters and the measured speedup."
    )
    try:
        step = facts.step(number)
    except NotRecordedError:
        return [Markdown(quiz), folded]
    return [Markdown(quiz), Guess(facts.stem(number - 1), facts.stem(number), step, facts.step_regime(number)), folded]


@directive()
def measured(facts: Facts, asked: Asked) -> list[Part]:
    number = asked.numbers()[0]
    numbers = [number - 1, number] if number > 1 else [number]
    versions = [version for version in facts.device.rungs() if version.source.number in numbers]
    shapes = [s for s in facts.device.shapes() if all(s in version.tflops for version in versions)]
    rows = [[version.source.label, *(three_digits(version.tflops[s]) for s in shapes)] for version in versions]
    if number > 1:
        rows.append(["step", *(f"{facts.text(f'step({number}, {s.seq_len})')}×" for s in shapes)])
    predicted = [update_docs.predicted_cell(number) if s == update_docs.SHAPE else "" for s in shapes]
    rows.append(["predicted", *predicted])
    table = Table("measured", ["TFLOP/s at seq_len", *(str(s.seq_len) for s in shapes)], rows)
    how = _measured_how(facts, versions, shapes)
    verdict = f"By the rule in the [ladder's log](../ladder_log.md), the verdict is *{facts.verdict(number)}*."
    return [table, Markdown(f"{how} {verdict}")]


def _measured_how(facts: Facts, versions: list[Version], shapes: list[Shape]) -> str:
    """One sentence for the regime of the figures in a table; an older version may have been recorded only."""
    regime = facts.device.regime
    alone = [v.source.label for v in versions if not all(shape in v.beside_peers.tflops for shape in shapes)]
    if regime is None or len(alone) == len(versions):
        return "All figures are from `harness --record`, which times a version alone for a short time."
    if not alone:
        return f"All figures are {regime.name} speeds, measured once the GPU's power draw has settled."
    return (
        f"The figures are {regime.name} speeds, measured once the GPU's power draw has settled, except those of"
        f" {', '.join(alone)}. These are from `harness --record`, which times a version alone for a short time."
    )


@directive()
def busy(facts: Facts, asked: Asked) -> list[Part]:
    numbers = [n for n in facts.numbers() if facts.has_busy(n)] if asked.argument == "all" else asked.numbers()
    headings = [
        "busy, % of the cycles",
        "issue slots",
        "shared memory",
        "tensor cores",
        "L2",
        "through L2, GB",
        "from memory, GB",
        "instructions per score",
        "cycles, millions",
    ]
    figures = ("issue({}); .0f", "shared({}); .0f", "tensor({}); .0f", "l2({}); .0f")
    figures += ("l2_gb({}); .1f", "dram_gb({}); .2f", "instructions_per_score({})", "cycles({}) / 1e6")
    # "–" if nothing is recorded
    rows = [[label(facts, n), *(facts.text(figure.format(n)) for figure in figures)] for n in numbers]
    note = (
        f"Nsight Compute on the {facts.device.name} at seq_len 2048, batch 16, 16 heads"
        f" (profiles/{DEVICE}/ncu.json). “Issue slots” and “Tensor cores” are the shares of an SM's active cycles in"
        " which these units were busy. “Shared memory” is the utilisation of the pipe that shared memory and L1 share."
        " “L2” is the number of bytes moved, as a share of the maximum that L2 could have moved."
    )
    missing = [f"{n:02}" for n in numbers if not facts.has_busy(n)]
    if missing:
        note += f" No counters are recorded yet for {', '.join(missing)}."
    return [Table("busy", headings, rows), Plain(note, note=True)]


@directive()
def by_data(facts: Facts, asked: Asked) -> list[Part]:
    dtype, seq_len, *mask = asked.argument.split()
    seq_len = int(seq_len)
    recorded = facts.device.by_data_causal if mask == ["causal"] else facts.device.by_data
    if recorded is None or not recorded.has(dtype, seq_len):
        return [Plain("Not recorded yet.", note=True)]
    header, *rows = update_docs.data_table(recorded, dtype, seq_len)
    about = update_docs.about_data_run(facts.device, recorded)
    note = f"At seq_len {seq_len}, batch {BATCH[seq_len]}, in {dtype}. {about}"
    return [Table("by-data", header, rows), Markdown(note)]


@directive(has_argument=False)
def fp8_errors(facts: Facts, asked: Asked) -> list[Part]:
    del asked
    try:
        recording = facts.fp8_error_recording()
    except NotRecordedError:
        command = "scripts/fp8_error.py --seq-len 4096 --heads 4 --gpu --record"
        return [Markdown(f"These errors are not recorded yet. To record them, run `{command}`.")]
    kernels = (("27", "fp16"), ("fp8", "e4m3"), ("FlashAttention-3", "e4m3"))
    alone = kernels[1:]
    headings = ["error, %", *(f"{name}, {dtype}" for name, dtype in kernels), "rounding of Q, K, V alone"]
    headings += [f"kernel alone: {name}" for name, _ in alone]
    rows = []
    for result in recording["results"]:
        errors = {one["name"]: one for one in result["errors"]}
        cells = [errors.get(name, {}).get("error") for name, _ in kernels] + [result["rounding"]]
        cells += [errors.get(name, {}).get("kernel_alone") for name, _ in alone]
        data = result["data"] + (", rotated" if result["rotated"] else "")
        rows.append([data, *("–" if cell is None else f"{100 * cell:.2g}" for cell in cells)])
    problem = recording["problem"]
    note = (
        f"{recording['device']}, batch {problem['batch']}, {problem['heads']} heads, seq_len {problem['seq_len']},"
        f" head_dim {problem['head_dim']}. Measured {recording['date'][:10]}."
        f" Not measured: {'; '.join(update_docs.not_measured(recording)) or 'nothing'}."
    )
    return [Table("fp8-errors", headings, rows), Markdown(note)]


@directive("least")
def sass(facts: Facts, asked: Asked) -> list[Part]:
    """Opcodes of the hot loop; those with fewer than :least: instructions in every column are added up.

    A version that is not recorded has no column.
    """
    numbers = [n for n in asked.numbers() if facts.has_machine_code(n)]
    if not numbers:
        return [Plain("Not recorded.", note=True)]
    least = int(asked.options.get("least", 8))
    loops = [facts.hot_loop(n) for n in numbers]
    opcodes = {opcode for loop in loops for opcode in loop}
    shown = {opcode for opcode in opcodes if max(loop.get(opcode, 0) for loop in loops) >= least}
    ordered = sorted(shown, key=lambda o: (-max(loop.get(o, 0) for loop in loops), o))
    rows = [[o, *(str(loop.get(o, 0)) for loop in loops)] for o in ordered]
    if opcodes - shown:
        rows.append(["others", *(str(sum(n for o, n in loop.items() if o not in shown)) for loop in loops)])
    rows.append(["all", *(str(sum(loop.values())) for loop in loops)])
    rows.append(["registers per thread", *(str(facts.registers(n)) for n in numbers)])
    rows.append(["CTAs per SM", *(str(facts.ctas(n)) for n in numbers)])
    return [Table("sass", ["in the hot loop, sm_90", *(label(facts, n) for n in numbers)], rows, code=True)]


# ---- what is shown, or folded away ----

EXERCISES = re.compile(r"^## (?:Exercises|Check yourself)\n.*?(?=^## |\Z)", re.DOTALL | re.MULTILINE)
ENTRY = re.compile(r"^(\d+\. )(.*?)\s*(?=^\d+\. |^## |\Z|^\S)", re.DOTALL | re.MULTILINE)


def with_folded_answers(text: str) -> str:
    """In a chapter's source, the answer to an exercise is in parentheses after the question; pages fold it away."""
    return EXERCISES.sub(lambda section: ENTRY.sub(_with_folded_answer, section[0]), text)


def _with_folded_answer(entry: re.Match[str]) -> str:
    question, answers = _question_and_answers(entry[2])
    if not answers:
        return entry[0]
    indent = " " * len(entry[1])
    lines = ["", ":::{folded} Answer", *" ".join(answers).splitlines(), ":::"]
    fold = "\n".join(f"{indent}{line.strip()}" if line else "" for line in lines)
    return f"{entry[1]}{question}\n{fold}\n\n"


def _question_and_answers(text: str) -> tuple[str, list[str]]:
    """An answer is a parenthesis that contains whole sentences and follows one."""
    question, answers, at = "", [], 0
    for found in re.finditer(r"(?<=[.?]) \(", text):
        if found.start() < at:
            continue
        end, depth = found.end(), 1
        while end < len(text) and depth:
            depth += {"(": 1, ")": -1}.get(text[end], 0)
            end += 1
        if depth == 0 and text[end - 2] in ".?":
            question += text[at : found.start()]
            answers.append(text[found.end() : end - 1])
            at = end
    return question + text[at:], answers


@directive("alt", has_content=True)
def drawing(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    alt = asked.options.get("alt")
    if not alt:
        raise drawings.DrawingError(f"{asked.argument} has no :alt:")
    return [Drawing(asked.argument, alt)]


@directive()
def interactive(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    known = {"banks": "Bank-conflict calculator", "fragments": "Which lane holds which element"}
    if asked.argument not in known:
        raise FactError(f"there is no interactive part {asked.argument}: {', '.join(known)}")
    return [Interactive(asked.argument, known[asked.argument])]


@directive(has_content=True)
def folded(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    return [Folded(asked.argument, [Content()])]


def is_recorded(facts: Facts, expression: str) -> bool:
    try:
        facts.evaluate(expression)
    except NotRecordedError:
        return False
    return True


@directive(has_content=True)
def recorded(facts: Facts, asked: Asked) -> list[Part]:
    """Text that is valid only if the figures exist."""
    return [Content()] if is_recorded(facts, asked.argument) else []


@directive(has_content=True)
def unrecorded(facts: Facts, asked: Asked) -> list[Part]:
    """Text that stands in for figures."""
    return [] if is_recorded(facts, asked.argument) else [Content()]


@directive()
def worked_(facts: Facts, asked: Asked) -> list[Part]:
    """The online softmax of one query of worked.py: every score, m, l and O."""
    del facts
    query = asked.numbers()[0]
    rows = []
    for key, (score, step) in enumerate(zip(worked.SCORES[query], worked.steps(query), strict=True)):
        O = ", ".join(f"{o:.4f}" for o in step.O)  # noqa: E741 (the paper's symbol)
        rows.append([str(key), f"{score:g}", f"{step.m:g}", f"{step.r:.4f}", f"{step.P[0]:.4f}", f"{step.l:.4f}", O])
    rows.append(["O / l", "", "", "", "", "", ", ".join(f"{o:.4f}" for o in worked.output(query))])
    headings = ["key", "score s", "m", "r = exp(m before − m)", "p = exp(s − m)", "l", "O"]
    return [Table("worked", headings, rows)]


# ---- assignments ----


def without_the_graders_part(text: str) -> str:
    """Starters, reference answers and keys are not part of a page."""
    return re.sub(r"^<!-- grader\n.*?^-->$", "", text, flags=re.DOTALL | re.MULTILINE)


def prepared(page: str, text: str) -> str:
    """The source of a page without the grader's part, and with the answers to a chapter's exercises folded away."""
    text = without_the_graders_part(text)
    return with_folded_answers(text) if page.startswith("chapters/") else text


KINDS = {
    "correct": "the result, for sizes and inputs that you have not seen",
    "findings": "no findings (races, uninitialised reads, accesses out of bounds …), and a right result",
}


def graders_part(page: str) -> dict[str, Any]:
    """The part of an assignment's page that the grader reads."""
    return assignment.read_assignment(Path(page).name).data


@directive(has_argument=False)
def graded(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    data = graders_part(asked.page)
    rows = [[check.get("name") or KINDS[check["kind"]], str(check["points"])] for check in data["check"]]
    note = (
        f"You pass with {data['pass_mark']} of 100 points. Counters earn points only if the result is right: none for"
        " a count like the starter's, all for a count like the reference answer's, and a proportion in between."
    )
    shown: list[Part] = [Table("graded", ["what", "points"], rows), Plain(note, note=True)]
    if rubric := data.get("rubric"):
        rows = [[entry["text"], str(entry["points"])] for entry in rubric]
        shown.append(Table("rubric", ["your written answer, which your teacher marks", "further points"], rows))
    return shown


@directive(has_argument=False)
def hints(facts: Facts, asked: Asked) -> list[Part]:
    del facts
    found = graders_part(asked.page)["hints"]
    return [Folded(f"Hint {number}", [Plain(hint)]) for number, hint in enumerate(found, 1)]


@directive()
def mistakes(facts: Facts, asked: Asked) -> list[Part]:
    """The mistakes that the tests plant in a kernel, and their symptoms."""
    kernels = [facts.stem(number) for number in asked.numbers()]
    rows = [[fault.name, _shows(fault)] for fault in planted_faults.FAULTS if fault.kernel in kernels]
    if not rows:
        raise FactError(f"no fault is planted in {', '.join(kernels)}")
    return [Table("mistakes", ["mistake", "how it shows up"], rows)]


@directive(has_argument=False)
def teachers(facts: Facts, asked: Asked) -> list[Part]:
    """What two teachers would give for some answers, and the grader's points."""
    del facts, asked
    table = json.loads((sources.ROOT / "harness" / "tests" / "teachers.json").read_text(encoding="utf-8"))
    rows = [
        [name.replace("_", " "), what, f"{first}", f"{second}", f"{grader:.0f}"]
        for name, what, first, second, grader in table["answers"]
    ]
    return [Table("teachers", ["assignment", "answer", "first teacher", "second teacher", "grader"], rows)]


@directive(has_argument=False)
def answer_mutants(facts: Facts, asked: Asked) -> list[Part]:
    """How many changes of each reference answer scripts/mutate_answers.py made, and what the grader gave."""
    del facts, asked
    recorded = json.loads((sources.ROOT / "harness" / "tests" / "answer_mutants.json").read_text(encoding="utf-8"))
    columns = ("mutants", "lowered", "equivalent", "kept")
    rows = [
        [name.replace("_", " "), *(f"{row[column]}" for column in columns)]
        for name, row in recorded["assignments"].items()
    ]
    rows.append(["all", *(f"{sum(row[column] for row in recorded['assignments'].values())}" for column in columns)])
    heads = ["assignment", "mutants", "fewer points", "as good as the answer", "missed"]
    return [Table("answer_mutants", heads, rows)]


def _shows(fault: planted_faults.Fault) -> str:
    if fault.finding:
        return f"a finding: {fault.finding.replace('_', ' ')}"
    says = [f"“{words}”" for words in fault.says]
    if fault.suggests:
        says.insert(0, f"--debug suggests {fault.suggests}")
    return "a wrong result" + (f"; {', '.join(says)}" if says else "")
