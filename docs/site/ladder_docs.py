"""Sphinx extension of the site. In a page:

{num}`step(6)`              a figure of profiles/ or the registry: an expression of facts.py; "; FORMAT" may follow
{blank}`128 = EXPRESSION`   a blank in a calculation by hand; where the answer is not the figure, no page is built
```{quote} FILE             lines of a source file by the text they start and end with (:start:, :end:); with
                            :against: FILE (:start-against:, :end-against:) the change from there
```{chapter} NN             the top of a chapter: what it adds, from which file; a banner where one is stale or missing
```{prediction} NN          the header's prediction, folded away, and how to be asked for one in the terminal
```{measured} NN            TFLOP/s of the step and of the one before, over seq_len; what was predicted, and the verdict
```{busy} NN NN …           how busy which unit is
```{by_data} DTYPE SEQ_LEN  TFLOP/s on each kind of data
```{fp8_errors}             how far attention in 8 bits is from float64, on each kind of data
```{sass} NN NN             instructions of the hot loop
```{drawing} NAME           a drawing of drawings.py; the content is its caption, :alt: what it shows
```{interactive} NAME       a part that ladder.js brings to life
```{worked} QUERY           the online softmax of worked.py, step by step
```{folded} SUMMARY         its content, folded away
```{recorded} EXPRESSION    its content, left out as long as that figure is not recorded
```{source} NN              the whole file, folded away
```{graded}                 of an assignment's page: what is graded, with points
```{hints}                  of an assignment's page: its hints, folded away one by one
```{mistakes} NN NN …       what the tests plant in a kernel, and how it shows
"""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any, ClassVar

import assignment
import drawings
import drawings_hopper  # noqa: F401 (its drawings)
import planted_faults
import sources
import update_docs
import worked
from docutils import nodes
from docutils.parsers.rst import directives
from facts import BATCH, DEVICE, FactError, Facts, NotRecordedError, blank_of
from profile_data import ProfileError, three_digits
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

ROOT = Path(__file__).resolve().parents[2]
logger = logging.getLogger(__name__)


def facts_of(env: Any) -> Facts:  # noqa: ANN401 (Sphinx's environment)
    return env.app.ladder_facts


class Num(SphinxRole):
    """A figure, with the expression it comes from as its title."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            value = facts_of(self.env).text(self.text)
        except (FactError, ProfileError, ValueError) as error:
            logger.error("{num}: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        return [nodes.inline("", value, classes=["num"])], []


class Blank(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            answer, exact = blank_of(facts_of(self.env), self.text)
        except (FactError, ProfileError) as error:
            logger.error("{blank}: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        # Without scripts the answer is what a reader sees: better than nothing at all.
        shown = f"{float(answer):,.{len(answer.partition('.')[2])}f}"
        text = f'<span class="blank" data-answer="{answer}" data-exact="{exact!r}">{shown}</span>'
        return [nodes.raw("", text, format="html")], []


class LadderDirective(SphinxDirective):
    """What fails is an error with its place, and the page does not build."""

    def run(self) -> list[nodes.Node]:
        try:
            return self.build(facts_of(self.env))
        except (FactError, ProfileError, sources.QuoteError, drawings.DrawingError, update_docs.PageError) as error:
            logger.error("{%s}: %s", self.name, error, location=self.get_location())
            return []

    def build(self, facts: Facts) -> list[nodes.Node]:
        raise NotImplementedError

    def numbers(self) -> list[int]:
        return [int(argument) for argument in self.arguments[0].split()]

    def parsed(self, text: str) -> list[nodes.Node]:
        return self.parse_text_to_nodes(text)

    def table(self, headings: list[str], rows: list[list[str]], classes: list[str]) -> nodes.Node:
        """The first column is text, the others are figures. Wide ones scroll by themselves."""
        head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in headings)
        body = "".join(
            f'<tr><th scope="row">{row[0]}</th>'
            + "".join(f"<td>{html.escape(text)}</td>" for text in row[1:])
            + "</tr>"
            for row in rows
        )
        return nodes.raw(
            "",
            f'<div class="table-wrapper" tabindex="0" role="region" aria-label="table"><table class="docutils figures '
            f'{" ".join(classes)}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>',
            format="html",
        )

    def folded(self, summary: str, content: list[nodes.Node], classes: str = "") -> list[nodes.Node]:
        opening = f'<details class="folded {classes}"><summary>{html.escape(summary)}</summary>'
        return [nodes.raw("", opening, format="html"), *content, nodes.raw("", "</details>", format="html")]


class QuoteDirective(LadderDirective):
    required_arguments = 1
    option_spec: ClassVar[dict[str, Any]] = {
        name: directives.unchanged_required for name in ("start", "end", "against", "start-against", "end-against")
    }

    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        start, end = self.options.get("start"), self.options.get("end")
        if start is None:
            raise sources.QuoteError("a quotation needs :start:")
        file = self.arguments[0]
        self.env.note_dependency(str(ROOT / file))
        found = sources.quote(file, start, end)
        text, language = found.text, "cuda"
        against = self.options.get("against")
        if against:
            self.env.note_dependency(str(ROOT / against))
            before = sources.quote(
                against, self.options.get("start-against", start), self.options.get("end-against", end)
            )
            text, language = sources.hunk(before, found), "diff"
        block = nodes.literal_block(text, text, language=language)
        last = found.first + len(found.lines) - 1
        lines = f"line {found.first}" if last == found.first else f"lines {found.first}–{last}"
        place = f"{file}, {lines}" + (f", against {against}" if against else "")
        return [block, nodes.raw("", f'<p class="quoted-from">{html.escape(place)}</p>', format="html")]


class ChapterDirective(LadderDirective):
    required_arguments = 1

    def banner(self, title: str, text: str) -> nodes.Node:
        banner = nodes.admonition("", classes=["stale"])
        banner += nodes.title("", title)
        banner.extend(self.parsed(text))
        return banner

    def build(self, facts: Facts) -> list[nodes.Node]:
        number = self.numbers()[0]
        file = facts.file(number)
        self.env.note_dependency(str(ROOT / file))
        found: list[nodes.Node] = []
        stale, missing = facts.stale(number), facts.missing(number)
        if self.config.ladder_strict and stale:
            raise FactError(f"version {number:02} has changed since {', '.join(stale)} was recorded")
        if self.config.ladder_strict and missing:
            raise FactError(f"version {number:02} is not recorded yet: there is no {', '.join(missing)}")
        if stale:
            text = (
                f"**The figures of this chapter are out of date.** {file} has changed since `{'`, `'.join(stale)}` was"
            )
            text += " recorded. The idea and the counts by hand still hold; the measured figures may not."
            found.append(self.banner("Stale profile", text))
        if missing:
            text = f"**This chapter is not recorded yet:** there is no `{'`, `'.join(missing)}`."
            found.append(self.banner("Not recorded", text))
        speed = f"{facts.text(f'tflops({number})')} TFLOP/s on the {facts.device.name}, fp16, seq_len 4096"
        if number > 1:
            before = facts.file(number - 1)
            added, removed = sources.code_lines_changed(before, file)
            speed += f" · {facts.text(f'step({number})')}× version {number - 1:02}"
            speed += f" · {added} lines of code added, {removed} removed"
        found += self.parsed(f"`{file}` · {speed}")
        return found


class PredictionDirective(LadderDirective):
    required_arguments = 1

    def build(self, facts: Facts) -> list[nodes.Node]:
        number = self.numbers()[0]
        header = sources.header(facts.file(number))
        block = nodes.block_quote("", nodes.paragraph("", header["Prediction"]))
        asked = "Write your figure down first. Then open what the header of the file predicts."
        folded = self.folded(asked, [block], "prediction")
        if number == 1:
            return folded
        quiz = (
            f"In a terminal, `scripts/harness --kernel {number:02} --quiz` asks for your factor, and then shows the"
            " header, the count and the measurement."
        )
        return [*self.parsed(quiz), *folded]


class MeasuredDirective(LadderDirective):
    required_arguments = 1

    def build(self, facts: Facts) -> list[nodes.Node]:
        number = self.numbers()[0]
        numbers = [number - 1, number] if number > 1 else [number]
        versions = [version for version in facts.device.rungs() if version.source.number in numbers]
        shapes = [s for s in facts.device.shapes() if all(s in version.tflops for version in versions)]
        rows = [[version.source.label, *(three_digits(version.tflops[s]) for s in shapes)] for version in versions]
        if number > 1:
            rows.append(["step", *(f"{facts.text(f'step({number}, {s.seq_len})')}×" for s in shapes)])
        predicted = [update_docs.predicted_cell(number) if s == update_docs.SHAPE else "" for s in shapes]
        rows.append(["predicted", *predicted])
        table = self.table(["TFLOP/s at seq_len", *(str(s.seq_len) for s in shapes)], rows, ["measured"])
        verdict = f"The verdict, by the rule of the [ladder's log](../ladder_log.md): *{facts.verdict(number)}*."
        return [table, *self.parsed(verdict)]


class BusyDirective(LadderDirective):
    required_arguments = 1
    final_argument_whitespace = True

    def build(self, facts: Facts) -> list[nodes.Node]:
        numbers = [n for n in facts.numbers() if facts.has_busy(n)] if self.arguments[0] == "all" else self.numbers()
        headings = [
            "busy, % of the cycles",
            "issue slots",
            "shared memory",
            "tensor cores",
            "L2",
            "through L2, GB",
            "from memory, GB",
        ]
        headings += ["instructions per score", "cycles, millions"]
        figures = ("issue({}); .0f", "shared({}); .0f", "tensor({}); .0f", "l2({}); .0f")
        figures += ("l2_gb({}); .1f", "dram_gb({}); .2f", "instructions_per_score({})", "cycles({}) / 1e6")
        rows = [
            [
                html.escape(facts.stem(n).replace("_", " ", 1)),
                *(facts.text(figure.format(n)) for figure in figures),  # – where nothing is recorded
            ]
            for n in numbers
        ]
        note = (
            f"Nsight Compute on the {facts.device.name} at seq_len 2048, batch 16, 16 heads"
            f" (profiles/{DEVICE}/ncu.json). Issue slots and tensor cores: of the cycles of an SM that has work. Shared"
            " memory: the pipe that it shares with L1. L2: of the bytes that it could move."
        )
        missing = [f"{n:02}" for n in numbers if not facts.has_busy(n)]
        if missing:
            note += f" Not counted yet: {', '.join(missing)}."
        return [self.table(headings, rows, ["busy"]), nodes.paragraph("", note, classes=["table-note"])]


class ByDataDirective(LadderDirective):
    required_arguments = 2

    def build(self, facts: Facts) -> list[nodes.Node]:
        dtype, seq_len = self.arguments[0], int(self.arguments[1])
        by_data = facts.device.by_data
        if by_data is None or not by_data.has(dtype, seq_len):
            return [nodes.paragraph("", "Not recorded yet.", classes=["table-note"])]
        header, *rows = update_docs.data_table(by_data, dtype, seq_len)
        named = [[re.sub(r"\*(.*)\*", r"<em>\1</em>", html.escape(row[0])), *row[1:]] for row in rows]
        note = f"At seq_len {seq_len}, batch {BATCH[seq_len]}, in {dtype}. {update_docs.about_data_run(facts.device)}"
        return [self.table(header, named, ["by-data"]), *self.parsed(note)]


class Fp8ErrorsDirective(LadderDirective):
    def build(self, facts: Facts) -> list[nodes.Node]:
        try:
            recording = facts.fp8_error_recording()
        except NotRecordedError:
            command = "scripts/fp8_error.py --seq-len 4096 --heads 4 --gpu --record"
            return self.parsed(f"Not recorded yet: `{command}` measures it.")
        kernels = (("27", "fp16"), ("fp8", "e4m3"), ("FlashAttention-3", "e4m3"))
        alone = kernels[1:]
        headings = ["error, %", *(f"{name}, {dtype}" for name, dtype in kernels), "rounding of Q, K, V alone"]
        headings += [f"kernel alone: {name}" for name, _ in alone]
        rows = []
        for result in recording["results"]:
            errors = {one["name"]: one for one in result["errors"]}
            cells = [errors.get(name, {}).get("error") for name, _ in kernels] + [result["rounding"]]
            cells += [errors.get(name, {}).get("kernel_alone") for name, _ in alone]
            label = html.escape(result["data"]) + (", rotated" if result["rotated"] else "")
            rows.append([label, *("–" if cell is None else f"{100 * cell:.2g}" for cell in cells)])
        problem = recording["problem"]
        note = (
            f"{recording['device']}, batch {problem['batch']}, {problem['heads']} heads, seq_len {problem['seq_len']},"
            f" head_dim {problem['head_dim']}. Measured {recording['date'][:10]}.{update_docs.left_out(recording)}"
        )
        return [self.table(headings, rows, ["fp8-errors"]), *self.parsed(note)]


class SassDirective(LadderDirective):
    """Opcodes of the hot loop; those with fewer than :least: instructions in every column are added up.

    A version that is not recorded has no column.
    """

    required_arguments = 1
    final_argument_whitespace = True
    option_spec: ClassVar[dict[str, Any]] = {"least": directives.nonnegative_int}

    def build(self, facts: Facts) -> list[nodes.Node]:
        numbers, least = [n for n in self.numbers() if facts.has_machine_code(n)], self.options.get("least", 8)
        if not numbers:
            return [nodes.paragraph("", "Not recorded.", classes=["table-note"])]
        loops = [facts.hot_loop(n) for n in numbers]
        opcodes = {opcode for loop in loops for opcode in loop}
        shown = {opcode for opcode in opcodes if max(loop.get(opcode, 0) for loop in loops) >= least}
        ordered = sorted(shown, key=lambda o: (-max(loop.get(o, 0) for loop in loops), o))
        rows = [[f"<code>{o}</code>", *(str(loop.get(o, 0)) for loop in loops)] for o in ordered]
        if opcodes - shown:
            rows.append(["others", *(str(sum(n for o, n in loop.items() if o not in shown)) for loop in loops)])
        rows.append(["all", *(str(sum(loop.values())) for loop in loops)])
        rows.append(["registers per thread", *(str(facts.registers(n)) for n in numbers)])
        rows.append(["CTAs per SM", *(str(facts.ctas(n)) for n in numbers)])
        headings = ["in the hot loop, sm_90", *(facts.stem(n).replace("_", " ", 1) for n in numbers)]
        return [self.table(headings, rows, ["sass"])]


class DrawingDirective(LadderDirective):
    required_arguments = 1
    has_content = True
    option_spec: ClassVar[dict[str, Any]] = {
        "alt": directives.unchanged_required,
        "width": directives.unchanged_required,
    }

    def build(self, facts: Facts) -> list[nodes.Node]:
        name = self.arguments[0]
        if not self.options.get("alt"):
            raise drawings.DrawingError(f"{name} has no :alt:")
        links = {f"{n:02}": self._chapter(facts, n) for n in facts.numbers()}
        svg = drawings.svg(name, facts, self.options["alt"], {n: link for n, link in links.items() if link})
        width = self.options.get("width", "")
        style = f' style="max-width: {html.escape(width)}"' if width else ""
        opening = f'<figure class="drawing" id="{name}"><div class="drawing-scroll" tabindex="0" role="group"'
        opening += f' aria-label="drawing"{style}>{svg}</div><figcaption>'
        caption = self.parse_content_to_nodes()
        return [nodes.raw("", opening, format="html"), *caption, nodes.raw("", "</figcaption></figure>", format="html")]

    def _chapter(self, facts: Facts, number: int) -> str | None:
        page = f"chapters/{facts.stem(number)}"
        if page not in self.env.found_docs or not self.env.docname:
            return None
        return self.env.app.builder.get_relative_uri(self.env.docname, page)


class InteractiveDirective(LadderDirective):
    required_arguments = 1

    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        known = {"banks": "Bank-conflict calculator", "fragments": "Which lane holds which element"}
        name = self.arguments[0]
        if name not in known:
            raise FactError(f"there is no interactive part {name}: {', '.join(known)}")
        text = f'<section class="interactive" data-part="{name}" aria-label="{known[name]}">'
        text += f"<p>{known[name]}: this part needs JavaScript.</p></section>"
        return [nodes.raw("", text, format="html")]


class WorkedDirective(LadderDirective):
    """The online softmax of one query of worked.py: every score, m, l and O."""

    required_arguments = 1

    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        query = self.numbers()[0]
        rows = []
        for key, (score, step) in enumerate(zip(worked.SCORES[query], worked.steps(query), strict=True)):
            O = ", ".join(f"{o:.4f}" for o in step.O)  # noqa: E741 (the paper's symbol)
            rows.append(
                [str(key), f"{score:g}", f"{step.m:g}", f"{step.rescale:.4f}", f"{step.p:.4f}", f"{step.l:.4f}", O]
            )
        rows.append(["O / l", "", "", "", "", "", ", ".join(f"{o:.4f}" for o in worked.output(query))])
        headings = ["key", "score s", "m", "r = exp(m before − m)", "p = exp(s − m)", "l", "O"]
        return [self.table(headings, rows, ["worked"])]


class FoldedDirective(LadderDirective):
    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        return self.folded(self.arguments[0], self.parse_content_to_nodes())


class RecordedDirective(LadderDirective):
    """What can only be said of figures that are there."""

    required_arguments = 1
    final_argument_whitespace = True
    has_content = True

    def build(self, facts: Facts) -> list[nodes.Node]:
        try:
            facts.evaluate(self.arguments[0])
        except NotRecordedError:
            return []
        return self.parse_content_to_nodes()


class AssignmentDirective(LadderDirective):
    """What a page says of the comment for the grader that it ends in."""

    def read(self) -> dict[str, Any]:
        try:
            return assignment.read_assignment(Path(self.env.docname).name).data
        except assignment.AssignmentError as error:
            raise FactError(str(error)) from error


class GradedDirective(AssignmentDirective):
    KINDS: ClassVar[dict[str, str]] = {
        "correct": "the result, for sizes and inputs that you have not seen",
        "findings": "no findings: races, reads of what nobody wrote, accesses out of bounds …, and a right result",
    }

    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        data = self.read()
        rows = [[html.escape(c.get("name") or self.KINDS[c["kind"]]), str(c["points"])] for c in data["check"]]
        note = (
            f"{data['pass_mark']} of 100 points pass. What is counted gives points only where the result is right, in"
            " proportion between the starter's kind of answer and the reference answer."
        )
        return [self.table(["what", "points"], rows, ["graded"]), nodes.paragraph("", note, classes=["table-note"])]


class HintsDirective(AssignmentDirective):
    def build(self, facts: Facts) -> list[nodes.Node]:
        del facts
        found: list[nodes.Node] = []
        for number, hint in enumerate(self.read()["hints"], 1):
            found += self.folded(f"Hint {number}", [nodes.paragraph("", hint)])
        return found


class MistakesDirective(LadderDirective):
    """What the tests plant in a kernel, and how it shows."""

    required_arguments = 1
    final_argument_whitespace = True

    def build(self, facts: Facts) -> list[nodes.Node]:
        kernels = [facts.stem(number) for number in self.numbers()]
        rows = [[html.escape(f.name), self._shows(f)] for f in planted_faults.FAULTS if f.kernel in kernels]
        if not rows:
            raise FactError(f"no fault is planted in {', '.join(kernels)}")
        return [self.table(["mistake", "how it shows"], rows, ["mistakes"])]

    @staticmethod
    def _shows(fault: planted_faults.Fault) -> str:
        if fault.finding:
            return f"a finding: {fault.finding.replace('_', ' ')}"
        says = [f"“{words}”" for words in fault.says]
        if fault.suggests:
            says.insert(0, f"--debug suggests {fault.suggests}")
        return "a wrong result" + (f"; {', '.join(says)}" if says else "")


class SourceDirective(LadderDirective):
    required_arguments = 1

    def build(self, facts: Facts) -> list[nodes.Node]:
        file = facts.file(self.numbers()[0])
        self.env.note_dependency(str(ROOT / file))
        text = (ROOT / file).read_text(encoding="utf-8")
        block = nodes.literal_block(text, text, language="cuda", linenos=True)
        return self.folded(f"The whole file, {file}", [block], "source")


def check_harness(app: Sphinx) -> None:
    try:
        app.ladder_facts = Facts(Path(app.config.ladder_harness))  # type: ignore[attr-defined]
        _ = app.ladder_facts.registry, app.ladder_facts.device  # type: ignore[attr-defined]
    except (FactError, ProfileError) as error:
        raise ExtensionError(str(error)) from error


def read_all(app: Sphinx, env: Any, docnames: list[str]) -> None:  # noqa: ANN401
    """Profiles have no place among a page's dependencies, so every page is read in every build: it takes seconds."""
    del app
    docnames[:] = sorted(env.found_docs)


def without_the_graders_part(app: Sphinx, docname: str, source: list[str]) -> None:
    """Starters, reference answers and keys are no part of the site's pages."""
    del app
    if docname.startswith("assignments/"):
        source[0] = re.sub(r"^<!-- grader\n.*?^-->$", "", source[0], flags=re.DOTALL | re.MULTILINE)


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("ladder_harness", "", "env")
    app.add_config_value("ladder_strict", False, "env", bool)
    app.add_role("num", Num())
    app.add_role("blank", Blank())
    for name, directive in {
        "quote": QuoteDirective,
        "chapter": ChapterDirective,
        "prediction": PredictionDirective,
        "measured": MeasuredDirective,
        "busy": BusyDirective,
        "by_data": ByDataDirective,
        "fp8_errors": Fp8ErrorsDirective,
        "sass": SassDirective,
        "drawing": DrawingDirective,
        "interactive": InteractiveDirective,
        "worked": WorkedDirective,
        "folded": FoldedDirective,
        "recorded": RecordedDirective,
        "source": SourceDirective,
        "graded": GradedDirective,
        "hints": HintsDirective,
        "mistakes": MistakesDirective,
    }.items():
        app.add_directive(name, directive)
    app.connect("builder-inited", check_harness)
    app.connect("env-before-read-docs", read_all)
    app.connect("source-read", without_the_graders_part)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
