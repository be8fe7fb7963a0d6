"""No file and no function of the harness is too long to be read at one go. What still is has to be listed here with the
reason, and may not grow. An entry that is not needed any more fails the test, so that the lists can only shrink.
"""

import re
from collections.abc import Iterator
from pathlib import Path
from typing import NamedTuple

ROOT = Path(__file__).resolve().parents[2]
FOLDERS = ("harness", "common/host")
SUFFIXES = (".h", ".cpp", ".cu")
MOST_LINES_OF_FILE = 600
MOST_LINES_OF_FUNCTION = 80

CASES = "test cases, of which each is read alone"

# file → lines, reason
LONG_FILES = {
    "harness/tests/emulator_cases.cpp": (913, CASES),
    "harness/tests/emulator_findings_test.cpp": (1300, CASES),
    "harness/tests/emulator_hopper_test.cpp": (950, CASES),
    "harness/tests/emulator_isa_test.cpp": (900, CASES),
    "harness/tests/virtual_runtime_test.cpp": (930, CASES),
}
# file and function → lines, reason
LONG_FUNCTIONS: dict[str, tuple[int, str]] = {}

NOT_CODE = re.compile(
    r"""//[^\n]* | /\*.*?\*/                            # comments
      | R"(?P<mark>[^(\s]*)\(.*?\)(?P=mark)"            # strings
      | "(?:\\.|[^"\\\n])*" | '(?:\\.|[^'\\\n])+'(?!\w) # and characters; not the ' in 1'000
      | ^[ \t]*\#(?:[^\n]*\\\n)*[^\n]*                  # directives""",
    re.DOTALL | re.MULTILINE | re.VERBOSE,
)
OPERATOR = re.compile(r"\boperator\s*(?:\(\)|[^\w\s(]+)")


class Definition(NamedTuple):
    name: str
    line: int
    lines: int


def code_of(text: str) -> str:
    """The text without comments, directives and what is in quotes, with the same lines."""
    return NOT_CODE.sub(lambda match: "\n" * match.group().count("\n"), text)


def after_block(code: str, start: int) -> int:
    """Just after the brace that closes the one at `start`."""
    depth = 0
    for match in re.compile(r"[{}]").finditer(code, start):
        depth += 1 if match.group() == "{" else -1
        if depth == 0:
            return match.end()
    raise ValueError("a brace is not closed")


def outline_of(head: str) -> str:
    """The text without what is in parentheses and brackets."""
    flat, depth = "", 0
    for symbol in OPERATOR.sub("operator", head):
        depth -= symbol in ")]"
        flat += symbol if depth == 0 else ""
        depth += symbol in "(["
    while (shorter := re.sub(r"<[^<>]*>", "", flat)) != flat:
        flat = shorter
    return flat


def kind_of(head: str) -> str:
    """What a brace opens that follows this text: a scope in which there are definitions, a function, or a value."""
    outline = outline_of(head)
    if re.match(r"\s*(?:inline\s+)?namespace\b|\s*extern\s*$", outline):
        return "scope"
    if "=" in outline:
        return "value"
    if re.search(r"\b(?:class|struct|union|enum)\b", outline) and not re.search(r"(?<!alignas)\(\)", outline):
        return "scope"
    after_colon = re.search(r"\)[^:]*(?<!:):(?!:)(.*)", outline, re.DOTALL)  # the initialisers of a constructor
    if after_colon and re.search(r"\w\s*$", after_colon.group(1)):
        return "value"
    return "function" if "(" in outline else "value"


def name_of(head: str) -> str:
    return re.search(r"(~?\w+)\s*\(", outline_of(head)).group(1)


def definitions(text: str) -> Iterator[Definition]:
    """The functions that are defined in a namespace or a class, from the first line of their head to the last brace."""
    code = code_of(text)
    head = position = parentheses = 0
    while position < len(code):
        symbol = code[position]
        parentheses += (symbol in "([") - (symbol in ")]")
        position += 1
        if symbol == "{" and parentheses == 0 and kind_of(code[head : position - 1]) == "scope":
            head = position
        elif symbol == "{":
            end = after_block(code, position - 1)
            if parentheses == 0 and kind_of(code[head : position - 1]) == "function":
                text_of_head = code[head : position - 1]
                first = head + len(text_of_head) - len(text_of_head.lstrip())
                yield Definition(
                    name_of(text_of_head), code.count("\n", 0, first) + 1, code.count("\n", first, end) + 1
                )
                head = end
            position = end
        elif parentheses == 0 and (symbol in ";}" or (symbol == ":" and is_access(code[head:position]))):
            head = position


def is_access(head: str) -> bool:
    return re.search(r"\b(?:public|private|protected)\s*:$", head) is not None


def sources() -> Iterator[Path]:
    for folder in FOLDERS:
        yield from sorted(path for path in (ROOT / folder).rglob("*") if path.suffix in SUFFIXES and path.is_file())


def long_files() -> dict[str, int]:
    lengths = {str(path.relative_to(ROOT)): path.read_text(encoding="utf-8").count("\n") for path in sources()}
    return {path: lines for path, lines in lengths.items() if lines > MOST_LINES_OF_FILE}


def long_functions() -> dict[str, int]:
    found = {}
    for path in sources():
        for definition in definitions(path.read_text(encoding="utf-8")):
            if definition.lines > MOST_LINES_OF_FUNCTION:
                found[f"{path.relative_to(ROOT)}: {definition.name}"] = definition.lines
    return found


def differences(found: dict[str, int], listed: dict[str, tuple[int, str]]) -> list[str]:
    grown = [f"{place}: {lines} lines" for place, lines in found.items() if lines > listed.get(place, (0, ""))[0]]
    return grown + [f"{place} need not be listed" for place in listed.keys() - found.keys()]


def test_no_file_is_too_long() -> None:
    assert differences(long_files(), LONG_FILES) == []


def test_no_function_is_too_long() -> None:
    assert differences(long_functions(), LONG_FUNCTIONS) == []


def test_what_grows_or_need_not_be_listed_is_seen() -> None:
    assert differences({"a": 90}, {"a": (90, "")}) == []
    assert differences({"a": 91}, {"a": (90, "")}) == ["a: 91 lines"]
    assert differences({"a": 90}, {}) == ["a: 90 lines"]
    assert differences({}, {"a": (90, "")}) == ["a need not be listed"]


def test_functions_are_measured() -> None:
    text = """
namespace a {  // not } a brace
constexpr int kTable[] = {1, 2};
const auto kLambda = [](int x) {
  return x;
};
enum class Kind : int { one, two };

template <typename T>
T twice(T x) {
  const char* text = "{";
  return x + x + '{';
}

struct Point {
  int x = 0;
  bool operator==(const Point&) const = default;
  bool operator()(int (&of)[2], int y = {}) const {
    return [&] { return of[0] == y; }();
  }

 private:
  Point(int first)
      : x{first} {
    if (first == 1'000'000) {
    }
  }
};

struct Point made() { return {}; }

#define BRACE {
std::vector<struct Point> Other::many(
    int count) {
  return {};
}
}  // namespace a
extern "C" {
int f() { return R"(
})"[0]; }
}
"""
    measured = [(definition.name, definition.lines) for definition in definitions(text)]
    assert measured == [("twice", 5), ("operator", 3), ("Point", 5), ("made", 1), ("many", 4), ("f", 2)]
