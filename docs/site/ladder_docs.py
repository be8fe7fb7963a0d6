"""The site's Sphinx extension: roles, and the directives listed in parts.py, as nodes."""

from __future__ import annotations

import html
import re
from pathlib import Path
from typing import Any

import drawings
import drawings_decoding  # noqa: F401 (its drawings)
import drawings_hopper  # noqa: F401 (its drawings)
import drawings_ideas  # noqa: F401 (its drawings)
import parts
import sources
from docutils import nodes
from docutils.parsers.rst import directives
from facts import FactError, Facts, blank_of
from profile_data import ProfileError
from sphinx.application import Sphinx
from sphinx.errors import ExtensionError
from sphinx.util import logging
from sphinx.util.docutils import SphinxDirective, SphinxRole

ROOT = sources.ROOT
logger = logging.getLogger(__name__)


def facts_of(env: Any) -> Facts:  # noqa: ANN401 (Sphinx's environment)
    return env.app.ladder_facts


class Num(SphinxRole):
    """A figure, with its expression as the title."""

    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            value = facts_of(self.env).text(self.text)
        except parts.ERRORS as error:
            logger.error("{num}: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        return [nodes.inline("", value, classes=["num"])], []


class Blank(SphinxRole):
    def run(self) -> tuple[list[nodes.Node], list[nodes.system_message]]:
        try:
            answer, exact = blank_of(facts_of(self.env), self.text)
        except parts.ERRORS as error:
            logger.error("{blank}: %s", error, location=self.get_location())
            return [nodes.literal(text=self.text)], []
        # Without scripts the reader sees the answer, which is better than nothing at all.
        shown = parts.answer_shown(answer)
        text = f'<span class="blank" data-answer="{answer}" data-exact="{exact!r}">{shown}</span>'
        return [nodes.raw("", text, format="html")], []


class PartsDirective(SphinxDirective):
    """A directive of parts.py. A failure is reported as an error with its location, and the page does not build."""

    final_argument_whitespace = True

    def run(self) -> list[nodes.Node]:
        facts = facts_of(self.env)
        try:
            asked = parts.Asked(self.env.docname, " ".join(self.arguments), self.options)
            return self.nodes_of(facts, parts.DIRECTIVES[self.name].says(facts, asked))
        except parts.ERRORS as error:
            logger.error("{%s}: %s", self.name, error, location=self.get_location())
            return []

    def nodes_of(self, facts: Facts, found: list[parts.Part]) -> list[nodes.Node]:
        return [node for part in found for node in self.node_of(facts, part)]

    def node_of(self, facts: Facts, part: parts.Part) -> list[nodes.Node]:
        match part:
            case parts.Content():
                return self.parse_content_to_nodes()
            case parts.Markdown(text):
                return self.parse_text_to_nodes(text)
            case parts.Plain(text, quoted, note):
                paragraph = nodes.paragraph("", text, classes=["table-note"] if note else [])
                return [nodes.block_quote("", paragraph)] if quoted else [paragraph]
            case parts.Table():
                return [html_of(table(part))]
            case parts.Quotation(text, language):
                place = html.escape(part.place())
                if (listing := self.listing(part.found.file)) is not None:
                    place = f'<a href="{listing}#{sources.anchor(part.found.file, part.found.first)}">{place}</a>'
                return [
                    nodes.literal_block(text, text, language=language),
                    html_of(f'<p class="quoted-from">{place}</p>'),
                ]
            case parts.Source(file):
                text = (ROOT / file).read_text(encoding="utf-8")
                block = nodes.literal_block(text, text, language="cuda", linenos=True)
                block["lineanchors"] = sources.anchor(file)
                return self.folded(f"The whole file, {file}", [block], "source")
            case parts.Lead(file, text):
                return self.parse_text_to_nodes(f"`{file}` · {text}")
            case parts.Banner(title, text, refused):
                if self.config.ladder_strict:
                    logger.error("{%s}: %s", self.name, refused, location=self.get_location())
                banner = nodes.admonition("", classes=["stale"])
                banner += nodes.title("", title)
                banner.extend(self.parse_text_to_nodes(text))
                return [banner]
            case parts.Drawing(name, alt):
                return self.drawing(facts, name, alt)
            case parts.Interactive() | parts.Guess() if self.env.app.builder.name == "revealjs":
                return []  # slides do not load their scripts, and would count each section as a slide
            case parts.Interactive(name, title):
                text = f'<section class="interactive" data-part="{name}" aria-label="{title}">'
                return [html_of(f"{text}<p>{title}: this part needs JavaScript.</p></section>")]
            case parts.Guess(before, after, step, regime):
                data = f'data-before="{before}" data-after="{after}" data-step="{step!r}" data-regime="{regime}"'
                title = "Your factor"
                text = f'<section class="interactive" data-part="guess" {data} aria-label="{title}"></section>'
                return [html_of(text)]
            case parts.Folded(summary, inner, kind):
                return self.folded(summary, self.nodes_of(facts, list(inner)), kind)

    def listing(self, file: str) -> str | None:
        """The page that contains the whole file, relative to this one: "" for this one; None if there is none."""
        stem = Path(file).stem
        return "" if self.env.docname == f"chapters/{stem}" else self._chapter(stem)

    def folded(self, summary: str, content: list[nodes.Node], kind: str) -> list[nodes.Node]:
        opening = f'<details class="folded {kind}"><summary>{html.escape(summary)}</summary>'
        return [html_of(opening), *content, html_of("</details>")]

    def drawing(self, facts: Facts, name: str, alt: str) -> list[nodes.Node]:
        links = {f"{n:02}": self._chapter(facts.stem(n)) for n in facts.numbers()}
        svg = drawings.svg(name, facts, alt, {n: link for n, link in links.items() if link})
        opening = f'<figure class="drawing" id="{name}"><div class="drawing-scroll" tabindex="0" role="group"'
        opening += f' aria-label="drawing">{svg}</div><figcaption>'
        return [html_of(opening), *self.parse_content_to_nodes(), html_of("</figcaption></figure>")]

    def _chapter(self, stem: str) -> str | None:
        page = f"chapters/{stem}"
        if page not in self.env.found_docs or not self.env.docname:
            return None
        return self.env.app.builder.get_relative_uri(self.env.docname, page)


def html_of(text: str) -> nodes.Node:
    return nodes.raw("", text, format="html")


def table(part: parts.Table) -> str:
    """Wide tables scroll separately."""
    head = "".join(f'<th scope="col">{html.escape(text)}</th>' for text in part.headings)
    body = ""
    for first, *others in part.rows:
        name = f"<code>{first}</code>" if part.code and first.isupper() else html.escape(first)
        name = re.sub(r"^\*(.*)\*$", r"<em>\1</em>", name)
        cells = "".join(f"<td>{html.escape(text)}</td>" for text in others)
        body += f'<tr><th scope="row">{name}</th>{cells}</tr>'
    return (
        '<div class="table-wrapper" tabindex="0" role="region" aria-label="table"><table class="docutils figures'
        f' {part.kind}"><thead><tr>{head}</tr></thead><tbody>{body}</tbody></table></div>'
    )


def check_harness(app: Sphinx) -> None:
    try:
        app.ladder_facts = Facts(Path(app.config.ladder_harness))  # type: ignore[attr-defined]
        _ = app.ladder_facts.registry, app.ladder_facts.device  # type: ignore[attr-defined]
    except (FactError, ProfileError) as error:
        raise ExtensionError(str(error)) from error


def read_all(app: Sphinx, env: Any, docnames: list[str]) -> None:  # noqa: ANN401
    """Profiles are not among a page's dependencies, so every page is read in every build, which takes seconds."""
    del app
    docnames[:] = sorted(env.found_docs)


def prepare(app: Sphinx, docname: str, source: list[str]) -> None:
    del app
    source[0] = parts.prepared(docname, source[0])


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_config_value("ladder_harness", "", "env")
    app.add_config_value("ladder_strict", False, "env", bool)
    app.add_role("num", Num())
    app.add_role("blank", Blank())
    for name, directive in parts.DIRECTIVES.items():
        members = {
            "required_arguments": int(directive.has_argument),
            "option_spec": dict.fromkeys(directive.options, directives.unchanged_required),
            "has_content": directive.has_content,
        }
        app.add_directive(name, type(f"{name.title()}Directive", (PartsDirective,), members))
    app.connect("builder-inited", check_harness)
    app.connect("env-before-read-docs", read_all)
    app.connect("source-read", prepare)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": True}
