"""An assignment: one Markdown file for students, which ends in a comment in TOML for the grader (docs/teaching.md says
how to write one). This module reads it, draws the values that depend on the course seed, and creates the starter and
the reference answer."""

import dataclasses
import hashlib
import math
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
FOLDER = ROOT / "docs" / "source" / "assignments"
ELEMENTS = {"fp16": "__half", "bf16": "__nv_bfloat16"}
KINDS = ("correct", "findings", "counter")
# What a counter's check may name as `where`, and the unit counted there.
TRAFFIC = {"shared_load": "wavefronts", "shared_store": "wavefronts", "shared_copy": "wavefronts",
           "global_load": "sectors", "global_store": "sectors"}  # fmt: skip
# The keys of each table; those with a star are required. docs/teaching.md says what they mean.
CASE = "types shared sm instructions problem inputs sizes buffers"
TABLES = {
    "comment": "pass_mark* starter* case* check* hints key python vary launch gpu",
    "starter": "from source header replace empty",
    "starter.replace": "find* with* count",
    "starter.empty": "after* before* with reference_with",
    "launch": f"kernel grid block arguments {CASE}",
    "case": f"name* kernel* grid* block* arguments* {CASE}",
    "buffer": "type* count* values expected tolerance",
    "check": "kind* points* name cases",
    "counter": "kind* name* points* cases value* full* none* lost* steps needs needs_lost where",
    "gpu": "version problem",
}
# The types of some keys, whatever the table. The others contain expressions, which are checked when they are evaluated.
HOLDS = {
    "number from 0 to 100": "pass_mark points",
    "text": "key python from source header find with after before reference_with kernel name kind lost needs_lost "
            "where version",
    "list": "arguments",
    "list of texts": "hints types cases",
    "table": "starter vary launch gpu problem sizes buffers",
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
    digest: str  # hash of the whole file

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
                full["label"] = case["name"] + (f", {kind}" if kind else "")
                cases.append(full)
        return cases

    def reference_answer(self) -> str:
        return self._source(is_starter=False)

    def starter(self) -> str:
        return self._source(is_starter=True)

    def _source(self, is_starter: bool) -> str:
        starter = self.data["starter"]
        text = from_ladder(self, starter) if "from" in starter else starter["source"].lstrip("\n")
        for change in starter.get("replace", []):
            text = self._replaced(text, change)
        for region in starter.get("empty", []):
            text = self._emptied(text, region, is_starter)
        return fill_in(keep_part(text, is_starter), self.values)

    def _replaced(self, text: str, change: dict[str, Any]) -> str:
        find, want = fill_in(change["find"], self.values), change.get("count", 1)
        found = text.count(find)
        if found != want and not (want == 0 and found > 0):
            times = want or "at least once"
            raise AssignmentError(f"{self.name}: '{find}' is {found} times in the starter's text; it should be {times}")
        return text.replace(find, change["with"])

    def _emptied(self, text: str, region: dict[str, Any], is_starter: bool) -> str:
        after, before = fill_in(region["after"], self.values), fill_in(region["before"], self.values)
        start = text.find(after) + len(after)
        end = text.find(before, start)
        if start < len(after) or end < 0 or text.find(after, start) >= 0:
            raise AssignmentError(f"{self.name}: there is no region between '{after}' and '{before}', or there are two")
        content = region.get("with" if is_starter else "reference_with", text[start:end])
        return text[:start] + content + text[end:]


def keep_part(text: str, is_starter: bool) -> str:
    """Keeps, between "// answer" and "// end", either the answer or the text of the "// starter:" lines."""
    kept, part = [], ""
    for line in text.split("\n"):
        marker = line.strip()
        if marker in ("// answer", "// end"):
            part = "answer" if marker == "// answer" else ""
        elif part and marker.startswith("// starter:"):
            if is_starter:
                indentation = line[: len(line) - len(line.lstrip())]
                kept.append((indentation + marker.removeprefix("// starter:").removeprefix(" ")).rstrip())
        elif not (part and is_starter):
            kept.append(line)
    if part:
        raise AssignmentError('a region that begins with "// answer" has no "// end"')
    return "\n".join(kept)


def from_ladder(assignment: Assignment, starter: dict[str, Any]) -> str:
    """A file of the ladder without its header, launch and registration, in the namespace of submissions, with the
    launched kernels."""
    path = ROOT / "kernels" / f"{starter['from']}.cu"
    if not path.is_file():
        raise AssignmentError(f"{assignment.name}: there is no kernels/{starter['from']}.cu to cut the starter from")
    lines = path.read_text(encoding="utf-8").split("\n")
    while lines[0].startswith("//"):
        del lines[0]
    text = "\n".join(lines).lstrip("\n")
    text = text.replace('#include "registry.h"', '#include "attention.h"')
    number = starter["from"].split("_")[0]
    text = text.replace(f"flash_ladder::v{number}", "flash_ladder::submission")
    # Whatever the last functions are called: the launches belong to the host, and so does everything after them.
    launch = re.search(r"^template <[^\n]*>\n(?:cudaError_t launch\()|^cudaError_t launch\(", text, flags=re.MULTILINE)
    end = text.rfind("}  // namespace")
    if launch is None or end < 0:
        raise AssignmentError(f"{assignment.name}: {path.name} has no launch() that could be cut away")
    instantiations = []
    for case in assignment.cases():
        line = f"template __global__ void {case['kernel']}(AttentionArgs);"
        if line not in instantiations:
            instantiations.append(line)
    plain = f"{assignment.name}\n\nThe grader launches the kernels at the end of this file."
    header = textwrap.dedent(starter.get("header", plain)).strip("\n")
    comment = "\n".join(f"// {line}".rstrip() for line in header.split("\n"))
    return (
        f"{comment}\n\n{text[: launch.start()]}// What is launched. Leave it as it is.\n"
        + "\n".join(instantiations) + f"\n\n{text[end:]}"
    )  # fmt: skip


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
    return isinstance(value, {"text": str, "list": list, "table": dict}[what])


def look_at_choices(table: dict[str, Value], what: str) -> None:
    """Raises AssignmentError for an empty list to draw from."""
    for key, value in table.items():
        if value == []:
            raise AssignmentError(f"{what} has {key} = [], with nothing to draw from")


def look_at(data: dict[str, Any]) -> None:
    """Raises AssignmentError for omissions and misspellings by the author."""
    look_at_keys(data, "comment", "the grader's comment")
    for key, whole in (("case", data), ("check", data), ("replace", data["starter"]), ("empty", data["starter"])):
        if not isinstance(whole.get(key, []), list):
            raise AssignmentError(f"{key} is a single table: there may be several, so its header needs double brackets")
    look_at_choices(data.get("vary", {}), "[vary]")
    look_at_keys(data["starter"], "starter", "[starter]")
    if ("from" in data["starter"]) == ("source" in data["starter"]):
        raise AssignmentError("[starter] must have either from or source")
    for kind in ("replace", "empty"):
        for region in data["starter"].get(kind, []):
            look_at_keys(region, f"starter.{kind}", f"[[starter.{kind}]]")
    look_at_keys(data.get("launch", {}), "launch", "[launch]")
    look_at_keys(data.get("gpu", {}), "gpu", "[gpu]")
    for case in data["case"]:
        what = f"the case '{case.get('name', '')}'"
        case = data.get("launch", {}) | case
        look_at_keys(case, "case", what)
        if ("problem" in case) == ("buffers" in case):
            raise AssignmentError(f"{what} must have either problem or buffers")
        for key in ("sizes", "problem"):
            look_at_choices(case.get(key, {}), f"{key} of {what}")
        for name, buffer in case.get("buffers", {}).items():
            look_at_keys(buffer, "buffer", f"the buffer {name} of {what}")
        if unknown := set(case.get("types", [])) - set(ELEMENTS):
            raise AssignmentError(f"{what} has the type '{unknown.pop()}'; there are {', '.join(ELEMENTS)}")
    for check in data["check"]:
        if check.get("kind") not in KINDS:
            raise AssignmentError(f"a check of kind '{check.get('kind')}'; there are {', '.join(KINDS)}")
        what = f"the check '{check.get('name', check['kind'])}'"
        look_at_keys(check, "counter" if check["kind"] == "counter" else "check", what)
        if unknown := set(check.get("cases", [])) - {case["name"] for case in data["case"]}:
            raise AssignmentError(f"{what} names the case '{unknown.pop()}', which does not exist")
        if "needs" in check and "needs_lost" not in check:
            raise AssignmentError(f"{what} has needs, but no needs_lost")
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
    values: dict[str, Any] = {}
    for key, value in data.get("vary", {}).items():
        try:
            values[key] = (
                value[draw(path.stem, course, key) % len(value)] if isinstance(value, list) else evaluate(value, values)
            )
        except AssignmentError as error:
            raise AssignmentError(f"{path.name}: [vary] {key}: {error}") from error
    total = sum(check["points"] for check in data["check"])
    if total != 100:
        raise AssignmentError(f"{path.name}: the points of the checks add up to {total}, not 100")
    digest = hashlib.sha256(text.encode()).hexdigest()
    return Assignment(path.stem, course, values, data, digest)
