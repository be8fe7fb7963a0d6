"""Writes the pages that are read on GitHub, from the sources of the site.

docs/source/chapters/06_swizzle.md becomes docs/chapters/06_swizzle.md: with its figures, its code, tables, results, and
answers folded away. Its drawings go to docs/figures/drawings/. A source that only includes ../NAME.md stands for a page
that is plain Markdown and is its own source; only the link to the site, at its end, is generated.

scripts/docs --pages runs this; --check writes nothing, lists what is out of date, and exits with status 1 if anything
is. Exits with status 3 if a source refers to something that does not exist.

The result does not depend on the toolkit of the build: machine code is shown as it was recorded, and a drawing of a
trace is redrawn only if the version's code, or the program that draws it, has changed.
"""

from __future__ import annotations

import argparse
import fnmatch
import hashlib
import html
import inspect
import itertools
import os
import re
import sys
from collections.abc import Iterator
from dataclasses import dataclass, field
from functools import cached_property
from pathlib import Path

import drawings
import drawings_decoding  # noqa: F401 (its drawings)
import drawings_hopper  # its drawings
import drawings_ideas  # noqa: F401 (its drawings)
import parts
import roles
import sources
import timeline
from facts import Facts, check_blank
from ladder import HARNESS, ROOT, write_whole

COMMAND = "scripts/docs --pages"
PAGES = ROOT / "docs"
DRAWINGS = PAGES / "figures" / "drawings"
LINK = "<sub>[This page on the site]"  # to where it is published; the site leaves it out of pages that it includes

FENCE = re.compile(r"( *)(`{3,}|:{3,}|~{3,})(?:\{(\w+)\})? *(.*)")
OPTION = re.compile(r":([\w-]+): *(.*)")
IMAGE = re.compile(r"(?P<alt>!\[[^\]]*\])\((?P<path>[^)\s:]+)\)")
HEADING = re.compile(r"#{1,6} ")
# A code span comes first, so that text within it that looks like a role is not taken for one.
INLINE = re.compile(
    r"(?P<code>(?P<ticks>`+)(?!`).+?(?<!`)(?P=ticks)(?!`))|\{(?P<role>[\w:-]+)\}`(?P<text>[^`]+)`", re.DOTALL
)


class SourceError(Exception):
    """Something in a source that cannot be shown."""


# ---- words ----


@dataclass(frozen=True)
class Term:
    page: str
    anchor: str
    meaning: str  # Markdown


def terms_of(page: str, text: str) -> dict[str, Term]:
    """The terms of the page's glossary, by their names in lower case."""
    found: dict[str, Term] = {}
    for glossary in re.findall(r"^```\{glossary\}\n(.*?)^```$", text, re.DOTALL | re.MULTILINE):
        for names, meaning in entries_of(glossary):
            for name in names:
                found[name.lower()] = Term(page, f"term-{slug(names[0])}", meaning)
    return found


def entries_of(glossary: str) -> Iterator[tuple[list[str], str]]:
    """(names, meaning): the names are on one line or several, followed by the meaning, which is indented."""
    for entry in re.findall(r"^((?:\S.*\n)+)((?:(?: +.*)?\n?)+)", glossary, re.MULTILINE):
        yield entry[0].splitlines(), " ".join(entry[1].split())


def slug(text: str) -> str:
    return re.sub(r"[^\w]+", "-", text.lower()).strip("-")


def escaped(text: str) -> str:
    """Plain text as Markdown."""
    return re.sub(r"([\\`*_\[\]<>|~$#])", r"\\\1", text)


def cell(text: str) -> str:
    return text.replace("|", r"\|").replace("\n", " ")


# ---- a page ----


@dataclass
class Library:
    """What the pages share."""

    facts: Facts
    sources: dict[str, str] = field(default_factory=dict)  # by page, "chapters/06_swizzle"
    plain: dict[str, Path] = field(default_factory=dict)  # pages that are their own source
    titles: dict[str, str] = field(default_factory=dict)  # of both

    @classmethod
    def of(cls, facts: Facts, folder: Path) -> Library:
        library = cls(facts)
        for path in sorted(folder.rglob("*.md")):
            name, text = path.relative_to(folder).with_suffix("").as_posix(), path.read_text(encoding="utf-8")
            if plain := re.fullmatch(r"```\{include\} (\S+)\n(?::[a-z-]+:.*\n)*```\n", text):
                library.plain[name] = Path(os.path.normpath(path.parent / plain[1]))
                text = library.plain[name].read_text(encoding="utf-8")
            else:
                library.sources[name] = text
            library.titles[name] = text.partition("\n")[0].removeprefix("# ")
        return library

    @cached_property
    def terms(self) -> dict[str, Term]:
        found: dict[str, Term] = {}
        for page, text in self.sources.items():
            found |= terms_of(page, text)
        return found

    @cached_property
    def site(self) -> str:
        """Where the site is published: README.md contains the one line that says so."""
        found = re.search(r"^\[site\]: (\S+?)/?$", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE)
        if not found:
            raise SourceError("README.md has no line `[site]: https://…` that says where the site is published")
        return found[1]

    def link(self, name: str, answers: bool = False) -> str:
        return f"{LINK}({self.site}/{name}.html){' checks your answers.' if answers else ''}</sub>"

    def linked(self, name: str) -> str:
        """A page that is its own source, with the link at its end, which the site leaves out."""
        text = self.plain[name].read_text(encoding="utf-8").partition(LINK)[0]
        return f"{text.rstrip()}\n\n{self.link(name)}\n"


@dataclass
class Page:
    library: Library
    name: str  # "chapters/06_swizzle"
    drawings: list[str] = field(default_factory=list)  # the drawings that it shows
    errors: list[str] = field(default_factory=list)
    answers: list[str] = field(default_factory=list)  # of the blanks in the section
    has_contents: bool = False
    depth: int = 0  # nesting depth of directives

    def markdown(self) -> str:
        text = parts.prepared(self.name, self.library.sources[self.name]).strip() + "\n"
        head, _, body = text.partition("\n")
        if not head.startswith("# "):
            self.errors.append(f"{self.name}.md begins with no title")
        made = f"<!-- Made from docs/source/{self.name}.md. Edit that file, and run {COMMAND}. -->"
        site = self.library.link(self.name, answers="{blank}`" in text)
        converted = self.converted(body)
        return f"{made}\n\n{head}\n\n{site}\n\n{converted.strip()}\n"

    def link(self, page: str) -> str:
        """The link to a file, given by its path from the root of the repository."""
        return os.path.relpath(ROOT / page, (PAGES / self.name).parent).replace(os.sep, "/")

    def converted(self, text: str) -> str:
        found: list[str] = []
        lines = text.split("\n")
        at = 0
        while at < len(lines):
            fence = FENCE.fullmatch(lines[at])
            if fence:
                end = next((i for i in range(at + 1, len(lines)) if _closes(lines[i], fence[2])), len(lines))
                if fence[3]:
                    inner = [line.removeprefix(fence[1]) for line in lines[at + 1 : end]]
                    shown = self.directive(fence[3], fence[4].strip(), inner)
                    found += [fence[1] + line if line else "" for line in shown.split("\n")]
                else:
                    found += lines[at : end + 1]
                at = end + 1
                continue
            end = at + 1
            while end < len(lines) and not FENCE.fullmatch(lines[end]) and not HEADING.match(lines[end]):
                end += 1
            if HEADING.match(lines[at]) and self.depth == 0:
                found += self.folded_answers()
            found.append(self.inline("\n".join(lines[at:end])))
            at = end
        if self.depth == 0:
            found += self.folded_answers()
        return re.sub(r"\n{3,}", "\n\n", "\n".join(found))

    def within(self, text: str) -> str:
        """A directive's content."""
        self.depth += 1
        try:
            return self.converted(text).strip()
        finally:
            self.depth -= 1

    # ---- roles ----

    def inline(self, text: str) -> str:
        return INLINE.sub(self.role, IMAGE.sub(self.image, text))

    def image(self, found: re.Match[str]) -> str:
        """A picture of docs/, whose path in the source begins with docs/source/."""
        file = (sources.PAGES / self.name).parent / found["path"]
        return f"{found['alt']}({self.link(os.path.relpath(file, ROOT))})"

    def role(self, found: re.Match[str]) -> str:
        if found["code"]:
            return found["code"]
        name, text = found["role"], " ".join(found["text"].split())
        try:
            if name == "num":
                return self.library.facts.text(text)
            if name == "blank":
                return self.blank(check_blank(self.library.facts, text))
            if name == "term":
                return self.term(text)
            raise SourceError("there is no such role")
        except (*parts.ERRORS, SourceError) as error:
            self.errors.append(f"{self.name}.md: {{{name}}}`{text}`: {error}")
            return found[0]

    def blank(self, answer: str) -> str:
        number = len(self.answers) + 1
        self.answers.append(f"**({number})** {parts.answer_shown(answer)}")
        return rf"\_\_\_\_\_<sub>({number})</sub>"

    def folded_answers(self) -> list[str]:
        if not self.answers:
            return []
        answers = " · ".join(self.answers)
        self.answers.clear()
        return ["", fold("Answers", answers), ""]

    def term(self, text: str) -> str:
        shown, name = text, text
        if named := re.fullmatch(r"(.*?) *<(.*)>", text):
            shown, name = named.groups()
        term = self.library.terms.get(name.lower())
        if term is None:
            raise SourceError(f"no glossary has {name!r}")
        page = "" if term.page == self.name else self.link(f"docs/{term.page}.md")
        return f'[{shown}]({page}#{term.anchor} "{self.plain(term.meaning)}")'

    def plain(self, meaning: str) -> str:
        """Plain text for a title, which cannot contain Markdown."""
        text = re.sub(r"\{num\}`([^`]+)`", lambda found: self.library.facts.text(found[1]), meaning)
        text = re.sub(r"\{term\}`([^`<]*?)(?: *<[^`>]*>)?`", r"\1", text)
        return re.sub(r"\[([^\]]*)\]\([^)]*\)", r"\1", text).replace("`", "").replace('"', "”")

    # ---- directives ----

    def directive(self, name: str, argument: str, lines: list[str]) -> str:
        options = {}
        while lines and (option := OPTION.fullmatch(lines[0])):
            options[option[1]] = option[2]
            lines = lines[1:]
        content = "\n".join(lines)
        if name == "toctree":
            return self.contents(options.get("caption", ""), lines)
        if name == "glossary":
            return "\n\n".join(self.entry(names, meaning) for names, meaning in entries_of(content + "\n"))
        try:
            directive = parts.DIRECTIVES.get(name)
            if directive is None:
                raise SourceError("there is no such directive")
            if unknown := options.keys() - set(directive.options):
                raise SourceError(f"it has no option {', '.join(sorted(unknown))}")
            found = directive.says(self.library.facts, parts.Asked(self.name, argument, options))
            return "\n\n".join(filter(None, (self.part(part, content) for part in found)))
        except (*parts.ERRORS, SourceError) as error:
            self.errors.append(f"{self.name}.md: {{{name}}} {argument}: {error}")
            return ""

    def contents(self, caption: str, patterns: list[str]) -> str:
        """The site shows its contents beside each page."""
        heading = "" if self.has_contents else "## Contents\n\n"
        self.has_contents = True
        names = [name for pattern in patterns for name in fnmatch.filter(self.library.titles, pattern.strip() or "-")]
        links = [f"- [{self.library.titles[name]}]({self.link(f'docs/{name}.md')})" for name in names]
        return f"{heading}**{caption}**\n\n" + "\n".join(links)

    def entry(self, names: list[str], meaning: str) -> str:
        return f'<a id="term-{slug(names[0])}"></a>**{", ".join(names)}**: {self.inline(meaning)}'

    def part(self, part: parts.Part, content: str) -> str:
        match part:
            case parts.Content():
                return self.within(content)
            case parts.Markdown(text):
                return text
            case parts.Plain(text, quoted, note):
                text = escaped(text)
                return f"> {text}" if quoted else f"<sub>{text}</sub>" if note else text
            case parts.Table():
                return table(part)
            case parts.Quotation(text, language, found, against):
                last = found.first + len(found.lines) - 1
                lines = f"#L{found.first}" + (f"-L{last}" if last > found.first else "")
                place = f"[{escaped(part.place().partition(', against')[0])}]({self.link(found.file)}{lines})"
                if against:
                    place += f", against [{escaped(against)}]({self.link(against)})"
                return f"```{language}\n{text}\n```\n\n<sub>{place}</sub>"
            case parts.Source(file):
                return f"The whole file: [{file}]({self.link(file)})"
            case parts.Lead(file, text):
                return f"[`{file}`]({self.link(file)}) · {text}"
            case parts.Banner(title, text):
                return f"> [!WARNING]\n> {title}: {text}"
            case parts.Drawing(name, alt):
                self.drawings.append(name)
                image = f"![{escaped(alt)}]({self.link(f'docs/figures/drawings/{name}.svg')})"
                caption = self.within(content)
                return f"{image}\n\n<sub>{caption}</sub>" if caption else image
            case parts.Interactive(name, title):
                return f"[{title}, on the site]({self.library.site}/{self.name}.html#{name})"
            case parts.Guess():
                return ""  # the command in the text above asks for it
            case parts.Folded(summary, inner):
                return fold(summary, "\n\n".join(self.part(one, content) for one in inner))


def _closes(line: str, fence: str) -> bool:
    text = line.strip()
    return len(text) >= len(fence) and set(text) == {fence[0]}


def fold(summary: str, content: str) -> str:
    return f"<details>\n<summary>{html.escape(summary, quote=False)}</summary>\n\n{content}\n\n</details>"


def table(part: parts.Table) -> str:
    """Figures are right-aligned in their column, words left-aligned."""
    columns = list(zip(*part.rows, strict=True))
    lines = [f"| {' | '.join(cell(heading) for heading in part.headings)} |"]
    lines.append("|---|" + "".join("---|" if re.search("[a-z]{3}", "".join(c)) else "---:|" for c in columns[1:]))
    for first, *others in part.rows:
        name = f"`{first}`" if part.code and first.isupper() else escaped(first)
        name = re.sub(r"^\\\*(.*)\\\*$", r"*\1*", name)
        lines.append(f"| {cell(name)} | {' | '.join(escaped(other) for other in others)} |")
    return "\n".join(lines)


# ---- drawings ----


class Noting(Facts):
    """Records the versions whose traces are requested."""

    def __init__(self, harness: Path | None = None, of_the_build: bool = True) -> None:
        super().__init__(harness, of_the_build)
        self.traced: set[int] = set()

    def trace(self, number: int) -> list:
        self.traced.add(number)
        return super().trace(number)

    def role_trace(self, number: int, kv_tiles: int = 6) -> roles.RoleTrace:
        self.traced.add(number)
        return super().role_trace(number, kv_tiles)

    def timeline_of(self, number: int) -> list[timeline.Span]:
        self.traced.add(number)  # the trace itself may have been made for another drawing
        return super().timeline_of(number)


def stamp(facts: Facts, number: int) -> str:
    """Identifies the code of a trace, and the programs that drew it. The output of nvcc is not included."""
    programs = [Path(program.__file__) for program in (drawings, drawings_hopper, roles, timeline)]
    digest = hashlib.sha256(facts.registry[f"{number:02}"]["code_hash"].encode())
    for program in (*programs, Path(__file__).parent / "static" / "ladder.css"):
        digest.update(program.read_bytes())
    if number >= drawings_hopper.FIRST:
        digest.update(repr(facts.lengths(number)).encode())
    for method in (Facts.trace, Facts.role_trace, Facts.timeline_of, Facts._traced):
        digest.update(inspect.getsource(method).encode())
    return f"<!-- Of a trace of {number:02}: {digest.hexdigest()[:16]} -->\n"


def drawn(facts: Noting, path: Path) -> str:
    """The contents that the file should have."""
    there = path.read_text(encoding="utf-8") if path.is_file() else ""
    old = re.search(r"<!-- Of a trace of (\d\d): \w+ -->\n", there)
    if old and old[0] == stamp(facts, int(old[1])):
        return there
    facts.traced = set()
    new = drawings.standalone(path.stem, facts)
    new += "".join(stamp(facts, number) for number in sorted(facts.traced))
    return there if alike(there, new) else new


def alike(one: str, other: str) -> bool:
    """Whether they are equal except for the last digit of a coordinate, because processors round differently."""
    pieces = [re.split(r"(\d+\.\d+)", text) for text in (one, other)]
    return len(pieces[0]) == len(pieces[1]) and all(
        a == b or (i % 2 == 1 and abs(float(a) - float(b)) < 0.02) for i, (a, b) in enumerate(zip(*pieces, strict=True))
    )


# ---- everything ----


def wanted(facts: Noting) -> dict[Path, str | None]:
    """Each file with its intended contents; None for a drawing that no page shows any more. Raises SourceError."""
    library = Library.of(facts, sources.PAGES)
    pages = [Page(library, name) for name in library.sources]
    files: dict[Path, str | None] = {path: None for path in DRAWINGS.glob("*.svg")}
    files |= {PAGES / f"{page.name}.md": page.markdown() for page in pages}
    files |= {path: library.linked(name) for name, path in library.plain.items()}
    errors = [error for page in pages for error in page.errors]
    shown = sorted(set(itertools.chain.from_iterable(page.drawings for page in pages)))
    for name in shown:
        try:
            files[DRAWINGS / f"{name}.svg"] = drawn(facts, DRAWINGS / f"{name}.svg")
        except parts.ERRORS as error:
            errors.append(f"{{drawing}} {name}: {error}")
    if errors:
        raise SourceError("\n".join(f"docs/source/{error}" for error in errors))
    return files


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the pages that are read on GitHub, from docs/source/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    arguments = parser.parse_args()
    try:
        files = wanted(Noting(HARNESS, of_the_build=False))
    except (*parts.ERRORS, SourceError) as error:
        print(error, file=sys.stderr)
        return 3
    outdated = 0
    for path, text in files.items():
        if (path.read_text(encoding="utf-8") if path.is_file() else None) == text:
            continue
        outdated += 1
        print(f"{path.relative_to(ROOT)} {'is out of date' if arguments.check else 'updated'}")
        if not arguments.check:
            path.unlink() if text is None else write_whole(path, text)
    if outdated and arguments.check:
        print(f"Run: {COMMAND}")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
