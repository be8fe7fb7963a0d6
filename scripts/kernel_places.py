"""Finds places in a kernel file by the file's comments, so that renaming a variable does not break any reference. Pages
name the places that they quote, planted faults and assignments name the places that they edit, and tests name the
places where the virtual GPU must find a fault.

    Copy the next K               the comment that begins with these words, on lines of its own or after code
    Online softmax > m            the first such comment after another one, within its part of the file
    S = Q Kᵀ + 3                  the third statement after a comment

Only one comment of the file may begin with the first name. Its part extends to the next paragraph that begins with a
comment and is not indented further, or to code that is indented less; the part of a comment after code is its line. A
statement ends at a semicolon or a brace outside parentheses, and `for (…)` and `if (…)` end at their parenthesis.
Braces alone, lines of the preprocessor and `template <…>` do not count.

harness/source/named_places.h finds the places of `harness --debug`, by name alone.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import cached_property


class PlaceError(Exception):
    """A name that no comment has, or more than one."""


@dataclass(frozen=True)
class Comment:
    line: int  # from 0
    last: int  # a comment on lines of its own may have several
    text: str  # of the first line
    indentation: int | None  # None: it follows code

    def begins_with(self, words: str) -> bool:
        return self.text.startswith(words) and not re.match(r"\w", self.text[len(words) :])


class Places:
    """The places of one file."""

    def __init__(self, text: str, file: str) -> None:
        self.lines = text.split("\n")
        self.file = file

    def find(self, place: str) -> range:
        """The lines of the comment or of the statement, numbered from 0. Raises PlaceError."""
        names, count = _split(place)
        comment = self._comment(names, place)
        if count is None:
            return range(comment.line, comment.last + 1)
        end = len(self.lines) if comment.indentation is None else self._part(comment).stop
        statements = self._statements(range(comment.last + 1, end))
        if len(statements) < count:
            raise PlaceError(f"{self.file} has {len(statements)} statements after '{' > '.join(names)}', not {count}")
        return statements[count - 1]

    def part(self, place: str) -> range:
        """The lines from the comment to the end of its part, or those of the statement. Raises PlaceError."""
        names, count = _split(place)
        return self.find(place) if count is not None else self._part(self._comment(names, place))

    def _comment(self, names: list[str], place: str) -> Comment:
        found = [comment for comment in self.comments if comment.begins_with(names[0])]
        if len(found) != 1:
            what = f"{len(found)} comments that begin" if found else "no comment that begins"
            raise PlaceError(f"{self.file} has {what} with '{names[0]}'" + (f", for '{place}'" if names[1:] else ""))
        for name in names[1:]:
            part = self._part(found[0])
            found = [one for one in self.comments if one.line > part.start and one.line in part
                     and one.begins_with(name)]  # fmt: skip
            if not found:
                raise PlaceError(f"{self.file} has no comment that begins with '{name}', for '{place}'")
        return found[0]

    def _part(self, comment: Comment) -> range:
        if comment.indentation is None:
            return range(comment.line, comment.line + 1)
        for at in range(comment.last + 1, len(self.lines)):
            line = self.lines[at]
            if not line.strip() or line.startswith("#"):
                continue
            indentation = len(line) - len(line.lstrip())
            begins_paragraph = line.lstrip().startswith("//") and not self.lines[at - 1].strip()
            if indentation < comment.indentation or (indentation == comment.indentation and begins_paragraph):
                return range(comment.line, at)
        return range(comment.line, len(self.lines))

    @cached_property
    def comments(self) -> list[Comment]:
        found: list[Comment] = []
        for at, line in enumerate(self.lines):
            code, mark, text = line.partition("//")
            if not mark:
                continue
            indentation = None if code.strip() else len(code)
            before = found[-1] if found else None
            if before and indentation is not None and (before.last, before.indentation) == (at - 1, indentation):
                found[-1] = Comment(before.line, at, before.text, indentation)
            else:
                found.append(Comment(at, at, text.lstrip("/").strip(), indentation))
        return found

    def _statements(self, lines: range) -> list[range]:
        found: list[range] = []
        code = ""  # of the statement so far
        start = depth = 0
        for at in lines:
            if self.lines[at].startswith(("#", "template <")):
                continue
            for character in self.lines[at].partition("//")[0]:
                depth += (character in "([") - (character in ")]")
                if not code and not re.match(r"\w", character):
                    continue
                if not code:
                    start = at
                code += character
                if depth == 0 and (character in ";{}" or (character == ")" and re.match(r"(for|if|while)\b", code))):
                    found.append(range(start, at + 1))
                    code = ""
        return found


def _split(place: str) -> tuple[list[str], int | None]:
    name, plus, count = place.rpartition(" + ")
    if plus and count.isdigit():
        return name.split(" > "), int(count)
    return place.split(" > "), None
