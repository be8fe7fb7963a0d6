"""An assignment: one Markdown file for students, which ends in a comment in TOML for the grader (docs/teaching.md says
how to write one). This module reads it, draws the values that depend on the course seed, and creates the starter and
the reference answer."""

import dataclasses
import hashlib
import math
import os
import re
import sys
import textwrap
from collections.abc import Mapping
from pathlib import Path
from typing import Any

try:
    import tomllib
except ModuleNotFoundError:  # Python 3.10: scripts/requirements-toml.txt
    import tomli as tomllib

ROOT = Path(__file__).resolve().parents[2]
sys.path.append(str(ROOT / "scripts"))  # ladder.py, for all modules that import this one first

from kernel_places import PlaceError, Places  # noqa: E402

FOLDER = ROOT / "docs" / "source" / "assignments"
ANSWERS_VARIABLE = "FLASH_LADDER_ANSWERS"  # a folder of NN_name.answers.toml, which the pages do not contain
PRACTICE = "practice"
WHERE_ANSWERS_ARE = (
    f"Set {ANSWERS_VARIABLE} to the folder that you got from your teacher or, as a teacher, to the folder of the "
    f"answers (docs/teaching.md); or use a course whose name begins with '{PRACTICE}'"
)
ELEMENTS = {"fp16": "__half", "bf16": "__nv_bfloat16"}
LAUNCHED = "// What is launched. Leave it as it is.\n"
GRADIENTS = ("dQ", "dK", "dV")
KINDS = ("correct", "findings", "counter")
# What a counter's check may name as `where`, and the unit counted there.
TRAFFIC = {"shared_load": "wavefronts", "shared_store": "wavefronts", "shared_copy": "wavefronts",
           "global_load": "sectors", "global_store": "sectors"}  # fmt: skip
# The keys of each table; those with a star are required. docs/teaching.md says what they mean.
CASE = ("types shared sm instructions then problem inputs log_sum_exp_base gradients workspace sizes buffers work "
        "work_lost")
TABLES = {
    "comment": "pass_mark* starter* case* check* hints key rubric python vary practice launch gpu",
    "starter": "from source header replace empty teachers",
    "starter.replace": "find* with* count",
    "starter.empty": "after* before* with reference_with part name",
    "answers": "key vary starters regions*",
    "launch": f"kernel grid block arguments {CASE}",
    "case": f"name* kernel* grid* block* arguments* {CASE}",
    "then": "kernel* grid* block* arguments* shared",
    "buffer": "type* count* values expected tolerance",
    "check": "kind* points* name cases",
    "counter": "kind* name* points* cases value* full* none* lost* steps power times times_lost needs needs_lost where",
    "rubric": "text* points*",
    "gpu": "version problem",
}
# The types of some keys, whatever the table. The others contain expressions, which are checked when they are evaluated.
HOLDS = {
    "number from 0 to 100": "pass_mark points",
    "text or a place": "after before",
    "text": "text key python from source header find with reference_with place kernel name kind lost needs_lost "
            "times_lost where version work_lost part",
    "list": "arguments rubric then",
    "list of texts": "hints types cases gradients",
    "table": "starter vary practice launch gpu problem sizes buffers starters regions",
}  # fmt: skip
# The functions that an expression may call, besides those that an assignment defines in `python`.
FUNCTIONS = {
    name: __builtins__[name] if isinstance(__builtins__, dict) else getattr(__builtins__, name)
    for name in ("abs", "bool", "enumerate", "float", "int", "len", "list", "max", "min", "pow", "range", "reversed",
                 "round", "sorted", "sum", "tuple", "zip")
} | {"math": math, "re": re}  # fmt: skip


# What an assignment's author writes (a number, an expression, or values to draw from), and its value.
Value = Any


class AssignmentError(Exception):
    """The requested assignment does not exist, or its file contains something invalid."""


class AnswersMissing(AssignmentError):
    """The reference answer is the teacher's, and it is not on this machine."""


def draw(*key: str) -> int:
    """A number below 2^63 that depends only on the key."""
    return int.from_bytes(hashlib.sha256("\0".join(key).encode()).digest()[:8], "big") >> 1


def evaluate(expression: Value, names: Mapping[str, Any]) -> Value:
    """The value of a Python expression written by an assignment's author. Numbers stand for themselves."""
    if not isinstance(expression, str):
        return expression
    try:
        return eval(expression, {"__builtins__": FUNCTIONS, **names})
    except Exception as error:
        raise AssignmentError(f"the expression '{expression}' has no value: {error!r}") from error


def fill_in(text: str, names: Mapping[str, Any]) -> str:
    """The text with each @expression@ replaced by its value."""
    return re.sub(r"@([^@\n]+)@", lambda match: str(evaluate(match[1], names)), text)


@dataclasses.dataclass(frozen=True)
class Assignment:
    """An assignment for a particular course."""

    name: str  # "06_swizzle", its file's name
    course: str
    values: dict[str, Any]  # the values drawn with the course seed
    data: dict[str, Any]  # the TOML
    digest: str  # hash of the whole file, and of the teacher's answers
    page: str  # hash of the whole file
    # Of regions, by their names: the answers, and the starter's text if it differs from the page's. None: only the
    # teacher has them.
    answers: dict[str, str] | None = None
    starters: dict[str, str] | None = None

    @property
    def pass_mark(self) -> float:
        return self.data["pass_mark"]

    def functions(self) -> dict[str, Any]:
        """The functions that `python` defines."""
        names: dict[str, Any] = {"__builtins__": FUNCTIONS, **self.values}
        try:
            exec(self.data.get("python", ""), names)
        except Exception as error:
            raise AssignmentError(f"{self.name}: `python` does not run: {error!r}") from error
        del names["__builtins__"]
        return names

    def cases(self) -> list[dict[str, Any]]:
        """All cases with the defaults of [launch], once for each of their types."""
        cases = []
        for case in self.data["case"]:
            case = self.data.get("launch", {}) | case
            for kind in case.get("types", [None]):
                names = self.values | ({"type": kind, "element": ELEMENTS[kind]} if kind else {})
                full = case | {"type": kind, "kernel": fill_in(case["kernel"], names)}
                full["then"] = [
                    step | {"kernel": fill_in(step["kernel"], names)} for step in case.get("then", [])
                ]
                full["label"] = case["name"] + (f", {kind}" if kind else "")
                cases.append(full)
        return cases

    def reference_answer(self) -> str:
        """Raises AnswersMissing if only the teacher has it."""
        return self._source(is_starter=False)

    def starter(self) -> str:
        """Raises AnswersMissing if only the teacher can make it, and has not handed it out."""
        if self.starters is not None:
            return self._source(is_starter=True)
        path = Path(os.environ.get(ANSWERS_VARIABLE) or ".") / f"{self.name}.cu"
        text = path.read_text(encoding="utf-8") if path.is_file() else ""
        if text.split("\n")[0] != course_line(self.course):
            raise AnswersMissing(
                f"{self.name}: only the teacher of the course '{self.course}' has its starter, {path.name}, because "
                f"what makes it contains the answers. {WHERE_ANSWERS_ARE}"
            )
        return text

    def answer_from(self, other: "Assignment") -> str:
        """The starter of this course with the answers of another course in its gaps."""
        return self._source(is_starter=False, other=other)

    def _source(self, is_starter: bool, other: "Assignment | None" = None) -> str:
        other = other or self
        if not is_starter and other.answers is None:
            raise AnswersMissing(
                f"{self.name}: only the teacher of the course '{other.course}' has its answers. {WHERE_ANSWERS_ARE}"
            )
        starter = self.data["starter"]
        text = from_ladder(self, starter) if "from" in starter else starter["source"].lstrip("\n")
        for change in starter.get("replace", []):
            text = self._replaced(text, change)
        if "from" in starter:
            text = with_instantiations(self, text)
        for region in starter.get("empty", []):
            text = self._emptied(text, region, is_starter, other)
        text = fill_in(keep_part(text, other, is_starter), self.values)
        return f"{course_line(self.course)}\n{text}" if self.course else text

    def _replaced(self, text: str, change: dict[str, Any]) -> str:
        find, want = fill_in(change["find"], self.values), change.get("count", 1)
        found = text.count(find)
        if found != want and not (want == 0 and found > 0):
            times = want or "at least once"
            raise AssignmentError(f"{self.name}: '{find}' is {found} times in the starter's text; it should be {times}")
        return text.replace(find, change["with"])

    def region(self, text: str, region: dict[str, Any]) -> tuple[int, int] | None:
        """Where a region of the starter begins and ends in a file that was made from it; None if its surroundings have
        changed."""
        try:
            start = self._end_of(text, region["after"])
            return start, self._start_of(text, region["before"], region["after"], start)
        except AssignmentError:
            return None

    def _emptied(self, text: str, region: dict[str, Any], is_starter: bool, other: "Assignment") -> str:
        start = self._end_of(text, region["after"])
        end = self._start_of(text, region["before"], region["after"], start)
        content = region.get("with" if is_starter else "reference_with", text[start:end])
        is_given = "with" in region and region["with"] == region.get("reference_with")
        if not is_starter and not is_given:
            content = fill_in(other.answers.get(region.get("name", region.get("part")), content), other.values)
        return text[:start] + content + text[end:]

    def _end_of(self, text: str, after: str | dict[str, str]) -> int:
        if isinstance(after, dict):
            return self._lines(text, after)[1]
        after = fill_in(after, self.values)
        if (found := text.count(after)) != 1:
            raise AssignmentError(f"{self.name}: '{after}' is {found} times in the starter's text; it should be 1")
        return text.index(after) + len(after)

    def _start_of(self, text: str, before: str | dict[str, str], after: str | dict[str, str], start: int) -> int:
        if not isinstance(before, dict):
            before = fill_in(before, self.values)
            end = text.find(before, start)
        elif before["place"] == "}" and isinstance(after, dict):  # of the block that the statement before opens
            opening = text[self._lines(text, after)[0] :]
            closing = re.compile(f"^{re.match(' *', opening)[0]}}}", re.MULTILINE).search(text, start)
            end = closing.start() if closing else -1
        else:
            end = self._lines(text, before)[0]
        if end < start:
            raise AssignmentError(f"{self.name}: the starter's text has no '{before}' after '{after}'")
        return end

    def _lines(self, text: str, at: dict[str, str]) -> tuple[int, int]:
        """Where the lines of a place begin and end in the text."""
        try:
            lines = Places(text, "the starter").find(at["place"])
        except PlaceError as error:
            raise AssignmentError(f"{self.name}: {error}") from error
        ends = [0]
        for line in text.split("\n"):
            ends.append(ends[-1] + len(line) + 1)
        return ends[lines.start], ends[lines.stop]


def course_line(course: str) -> str:
    """The first line of a starter. It is how a file that is graded for another course is recognised."""
    # Without the quotation mark at its end, a name that ends in a backslash would join the next line to the comment.
    return f'// Course: "{" ".join(course.split())}"'


def course_of(source: str) -> str | None:
    """The course that a file's starter was made for, if the file says so."""
    found = re.search(r'^// Course: "(.*)"$', source, flags=re.MULTILINE)
    return found[1].strip() if found else None


def keep_part(text: str, assignment: Assignment, is_starter: bool) -> str:
    """Keeps, between "// answer NAME" and "// end", either the answer of an assignment or its starter: the text of the
    "// starter:" lines, or the teacher's."""
    kept: list[str] = []
    name: str | None = None  # of the region that the line is in
    teachers = assignment.starters if is_starter else assignment.answers
    for line in text.split("\n"):
        marker = line.strip()
        if marker == "// answer" or marker.startswith("// answer "):
            name = marker.removeprefix("// answer").strip()
            if name in teachers:
                kept.append(fill_in(teachers[name].rstrip("\n"), assignment.values))
        elif marker == "// end":
            name = None
        elif name is None:
            kept.append(line)
        elif name in teachers:
            continue
        elif not marker.startswith("// starter:"):
            if not is_starter:
                kept.append(fill_in(line, assignment.values))
        elif is_starter:
            indentation = line[: len(line) - len(line.lstrip())]
            kept.append((indentation + marker.removeprefix("// starter:").removeprefix(" ")).rstrip())
    if name is not None:
        raise AssignmentError('a region that begins with "// answer" has no "// end"')
    return "\n".join(kept)


def from_ladder(assignment: Assignment, starter: dict[str, Any]) -> str:
    """A file of the ladder without its header, launch and registration, in the namespace of submissions."""
    path = ROOT / "kernels" / f"{starter['from']}.cu"
    if not path.is_file():
        raise AssignmentError(f"{assignment.name}: there is no kernels/{starter['from']}.cu to cut the starter from")
    lines = path.read_text(encoding="utf-8").split("\n")
    while lines[0].startswith("//"):
        del lines[0]
    text = "\n".join(lines).lstrip("\n")
    text = re.sub(r'^#include "host/.*\n', "", text, flags=re.MULTILINE)
    text = text.replace('#include "registry.h"', '#include "attention.h"')
    number = path.stem.split("_")[0]
    text = text.replace(f"flash_ladder::v{number}", "flash_ladder::submission")
    # Whatever the last functions are called: the launches belong to the host, and so does everything after them.
    host = r"(?://[^\n]*\n)*(?:template <[^\n]*>\n)?(?:std::size_t workspace_bytes|cudaError_t launch)\("
    launch = re.search(rf"^{host}", text, flags=re.MULTILINE)
    end = text.rfind("}  // namespace")
    if launch is None or end < 0:
        raise AssignmentError(f"{assignment.name}: {path.name} has no launch() that could be cut away")
    plain = f"{assignment.name}\n\nThe grader launches the kernels at the end of this file."
    header = textwrap.dedent(starter.get("header", plain)).strip("\n")
    comment = "\n".join(f"// {line}".rstrip() for line in header.split("\n"))
    return f"{comment}\n\n{text[: launch.start()]}{LAUNCHED}\n{text[end:]}"


def with_instantiations(assignment: Assignment, text: str) -> str:
    """The file with the kernels that are launched at its end."""
    instantiations = []
    for case in assignment.cases():
        for step in (case, *case["then"]):
            line = f"template __global__ void {step['kernel']}({parameter_types(text, step['kernel'])});"
            if line not in instantiations:
                instantiations.append(line)
    return text.replace(LAUNCHED, LAUNCHED + "\n".join(instantiations) + "\n")


def parameter_types(text: str, kernel: str) -> str:
    """The types of a kernel's parameters, as its definition in the text gives them: "AttentionArgs, const int*"."""
    name = kernel.partition("<")[0]
    found = re.search(rf"^__global__ void\b.*?\b{name}\(([^()]*)\)", text, flags=re.MULTILINE | re.DOTALL)
    if found is None:
        raise AssignmentError(f"the starter's text has no kernel {name}")
    return ", ".join(re.sub(r"\s*\w+$", "", " ".join(parameter.split())) for parameter in found[1].split(","))


def is_practice(course: str) -> bool:
    """Whether a course is only for practice: everyone may see its answers."""
    return not course or course.lower().startswith(PRACTICE)


def read_answers(name: str) -> dict[str, Any] | None:
    """The teacher's file of answers to an assignment, if this machine has it."""
    folder = os.environ.get(ANSWERS_VARIABLE)
    path = Path(folder or ".") / f"{name}.answers.toml"
    if not folder or not path.is_file():
        return None
    try:
        answers = tomllib.loads(path.read_text(encoding="utf-8"))
        look_at_keys(answers, "answers", "the file")
    except (tomllib.TOMLDecodeError, AssignmentError) as error:
        raise AssignmentError(f"{path}: {error}") from error
    return answers


def names_of_assignments(folder: Path = FOLDER) -> list[str]:
    return sorted(path.stem for path in folder.glob("[0-9]*.md"))


def find_assignment(name: str, folder: Path = FOLDER) -> Path:
    """Finds an assignment by "06_swizzle", "swizzle", "06" or "6"."""
    known = names_of_assignments(folder)
    for candidate in known:
        number, _, words = candidate.partition("_")
        if name in (candidate, words, number, number.lstrip("0") or "0"):
            return folder / f"{candidate}.md"
    raise AssignmentError(f"there is no assignment '{name}'; there are {', '.join(known) or 'none'}")


def look_at_keys(table: Value, kind: str, what: str) -> None:
    """Raises AssignmentError for an unknown key, and for a missing one."""
    if not isinstance(table, dict):
        raise AssignmentError(f"{what} is not a table")
    keys = TABLES[kind].split()
    known = [key.rstrip("*") for key in keys]
    for key in table:
        if key not in known:
            raise AssignmentError(f"{what} has '{key}', which is unknown; allowed: {', '.join(known)}")
    for key in keys:
        if key.endswith("*") and key[:-1] not in table:
            raise AssignmentError(f"{what} has no {key[:-1]}")
    for held, names in HOLDS.items():
        for key in names.split():
            if key in table and not holds(table[key], held):
                raise AssignmentError(f"{what} has {key} = {table[key]!r}, which is no {held}")


def holds(value: Value, what: str) -> bool:
    if what == "number from 0 to 100":
        return isinstance(value, (int, float)) and not isinstance(value, bool) and 0 <= value <= 100
    if what == "list of texts":
        return isinstance(value, list) and bool(value) and all(isinstance(text, str) for text in value)
    if what == "text or a place":
        return isinstance(value, str) or (
            isinstance(value, dict) and list(value) == ["place"] and holds(value["place"], "text")
        )
    return isinstance(value, {"text": str, "list": list, "table": dict}[what])


def look_at_choices(table: dict[str, Value], what: str) -> None:
    """Raises AssignmentError for an empty list to draw from."""
    for key, value in table.items():
        if value == []:
            raise AssignmentError(f"{what} has {key} = [], with nothing to draw from")


def look_at(data: dict[str, Any]) -> None:
    """Raises AssignmentError for omissions and misspellings by the author."""
    look_at_keys(data, "comment", "the grader's comment")
    several = [(key, data) for key in ("case", "check", "rubric")]
    several += [(key, data["starter"]) for key in ("replace", "empty")]
    for key, whole in several:
        if not isinstance(whole.get(key, []), list):
            raise AssignmentError(f"{key} is a single table: there may be several, so its header needs double brackets")
    for table in ("vary", "practice"):
        look_at_choices(data.get(table, {}), f"[{table}]")
    look_at_keys(data["starter"], "starter", "[starter]")
    if ("from" in data["starter"]) == ("source" in data["starter"]):
        raise AssignmentError("[starter] must have either from or source")
    for kind in ("replace", "empty"):
        for region in data["starter"].get(kind, []):
            look_at_keys(region, f"starter.{kind}", f"[[starter.{kind}]]")
    look_at_keys(data.get("launch", {}), "launch", "[launch]")
    look_at_keys(data.get("gpu", {}), "gpu", "[gpu]")
    for entry in data.get("rubric", []):
        look_at_keys(entry, "rubric", "[[rubric]]")
    for case in data["case"]:
        what = f"the case '{case.get('name', '')}'"
        case = data.get("launch", {}) | case
        look_at_keys(case, "case", what)
        if ("problem" in case) == ("buffers" in case):
            raise AssignmentError(f"{what} must have either problem or buffers")
        for key in ("sizes", "problem"):
            look_at_choices(case.get(key, {}), f"{key} of {what}")
        for step in case.get("then", []):
            look_at_keys(step, "then", f"a later launch of {what}")
        for name, buffer in case.get("buffers", {}).items():
            look_at_keys(buffer, "buffer", f"the buffer {name} of {what}")
        if ("work" in case) != ("work_lost" in case):
            raise AssignmentError(f"{what} has work or work_lost, but not both")
        if unknown := set(case.get("types", [])) - set(ELEMENTS):
            raise AssignmentError(f"{what} has the type '{unknown.pop()}'; there are {', '.join(ELEMENTS)}")
        if unknown := set(case.get("gradients", [])) - set(GRADIENTS):
            raise AssignmentError(f"{what} has the gradient '{unknown.pop()}'; there are {', '.join(GRADIENTS)}")
    for check in data["check"]:
        if check.get("kind") not in KINDS:
            raise AssignmentError(f"a check of kind '{check.get('kind')}'; there are {', '.join(KINDS)}")
        what = f"the check '{check.get('name', check['kind'])}'"
        look_at_keys(check, "counter" if check["kind"] == "counter" else "check", what)
        if unknown := set(check.get("cases", [])) - {case["name"] for case in data["case"]}:
            raise AssignmentError(f"{what} names the case '{unknown.pop()}', which does not exist")
        for key in ("needs", "times"):
            if key in check and f"{key}_lost" not in check:
                raise AssignmentError(f"{what} has {key}, but no {key}_lost")
        if check["kind"] == "counter" and check["full"] == check["none"]:
            raise AssignmentError(f"{what}: full and none are both {check['full']}, with nothing in between")
        if check.get("where", "shared_load") not in TRAFFIC:
            raise AssignmentError(f"{what} has where = '{check['where']}'; there are {', '.join(TRAFFIC)}")
        try:
            check.get("lost", "").format(value=0.0, full=0.0, none=0.0)
        except (KeyError, IndexError, ValueError) as error:
            raise AssignmentError(f"{what}: `lost` takes {{value}}, {{full}} and {{none}}: {error!r}") from error


def read_assignment(name: str, course: str = "", folder: Path = FOLDER) -> Assignment:
    path = find_assignment(name, folder)
    text = path.read_text(encoding="utf-8")
    comment = re.search(r"^<!-- grader\n(.*?)^-->$", text, flags=re.DOTALL | re.MULTILINE)
    if comment is None:
        raise AssignmentError(f'{path.name} has no comment that begins with "<!-- grader"')
    try:
        data = tomllib.loads(comment[1])
    except tomllib.TOMLDecodeError as error:
        raise AssignmentError(f"{path.name}: the grader's comment is not valid TOML: {error}") from error
    try:
        look_at(data)
    except AssignmentError as error:
        raise AssignmentError(f"{path.name}: {error}") from error
    teachers = read_answers(path.stem) if "practice" in data else {}
    if is_practice(course) or "practice" not in data:
        vary, answers, starters = data.get("vary", {}) | data.get("practice", {}), {}, {}
    else:
        vary, answers = data.get("vary", {}) | (teachers or {}).get("vary", {}), teachers and teachers["regions"]
        starters = (teachers and teachers.get("starters", {})) if data["starter"].get("teachers") else {}
    values: dict[str, Any] = {}
    for key, value in vary.items():
        try:
            values[key] = (
                value[draw(path.stem, course, key) % len(value)] if isinstance(value, list) else evaluate(value, values)
            )
        except AssignmentError as error:
            raise AssignmentError(f"{path.name}: [vary] {key}: {error}") from error
    total = sum(check["points"] for check in data["check"])
    if total != 100:
        raise AssignmentError(f"{path.name}: the points of the checks add up to {total}, not 100")
    page, digest = (hashlib.sha256(hashed.encode()).hexdigest() for hashed in (text, f"{text}{teachers or ''}"))
    key = data.get("key", (teachers or {}).get("key", ""))
    return Assignment(path.stem, course, values, data | {"key": key}, digest, page, answers, starters)
