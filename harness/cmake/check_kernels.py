"""Refuses kernel files whose code the linker would take for another version's: check_kernels.py FILE…

The build runs it before it compiles them. The linker identifies a template only by its name: if the traits of two
versions have the same name, it keeps the code of one of them and runs it for both. So the code of each file is in a
namespace that no other file uses: flash_ladder::vNN in NN_name.cu, flash_ladder::name in name.cu.

Prints each mistake as FILE:LINE: what is wrong; what to change. Exits with status 1 if there is one.
"""

import re
import sys
from collections import defaultdict
from pathlib import Path

NAMESPACE = re.compile(r"^\s*(?:inline\s+)?namespace\s+([\w:]+)\s*(?:\{|$)")
VERSION = re.compile(r"(?:flash_ladder::)?v\d+$")


def number_of(file: Path) -> str | None:
    """The digits before the first underscore; None if the name does not begin with digits."""
    match = re.match(r"(\d+)_", file.name)
    return match[1] if match else None


def mistakes(file: Path) -> list[str]:
    """What is wrong inside one file."""
    number = number_of(file)
    right = f"flash_ladder::{f'v{number}' if number else file.stem}"
    found = []
    has_right_one = False
    for line, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
        match = NAMESPACE.match(text)
        if not match:
            continue
        name = match[1]
        has_right_one = has_right_one or name == right
        if name != right and (name.startswith("flash_ladder") or VERSION.match(name)):
            found.append(
                f"{file}:{line}: the code is in namespace {name}, which belongs to another file: the linker would "
                f"run one version's code for both; write {right} here and after the closing brace"
            )
    if not has_right_one and not found:
        found.append(f"{file}:1: the code is not in a namespace of its own; put it into namespace {right} {{ … }}")
    return found


def main() -> int:
    files = [Path(argument) for argument in sys.argv[1:]]
    found = [mistake for file in files for mistake in mistakes(file)]
    same = defaultdict(list)
    for file in files:
        if number := number_of(file):
            same[int(number)].append(file)
    for number, several in same.items():
        found += [
            f"{other}:1: {several[0].name} is version {number:02} already; give the file, its namespace and its title "
            "another number"
            for other in several[1:]
        ]
    for mistake in found:
        print(mistake, file=sys.stderr)
    return 1 if found else 0


if __name__ == "__main__":
    sys.exit(main())
