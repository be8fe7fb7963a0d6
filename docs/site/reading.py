"""Aids for readers of the site: tooltips for terms, descriptions of pages, and a search that shows what it found.

The search index leaves out whole source files that pages embed, because each of their words would be found in the
chapter of its version. _static/pages.js contains the text of each page for the excerpts, because a page that is opened
as a file cannot fetch others.
"""

from __future__ import annotations

import html
import json
import re
from pathlib import Path
from typing import Any

from docutils import nodes
from sphinx.application import Sphinx

DESCRIPTION = 160  # characters that search engines show


class EmbeddedSource(nodes.General, nodes.Element):
    """A whole file: shown like any code, but without text of its own, so that the search does not index it."""


def visit_embedded_source(self: Any, node: EmbeddedSource) -> None:  # noqa: ANN401 (an HTML translator)
    code = self.highlighter.highlight_block(
        node["code"], node["language"], linenos="inline", lineanchors=node["lineanchors"], location=node
    )
    self.body.append(f'<div class="highlight-{node["language"]} notranslate">{code}</div>\n')
    raise nodes.SkipNode


def shortened(text: str, length: int) -> str:
    if len(text) <= length:
        return text
    return text[: length - 1].rsplit(" ", 1)[0].rstrip(",;:.") + "…"


def kind_of(docname: str) -> str:
    """The kind of a search result: "chapter 06", "assignment 06" …"""
    folder, _, name = docname.rpartition("/")
    number = re.match(r"\d\d(?=_)", name)
    kind = {"chapters": "chapter", "assignments": "assignment"}.get(folder, "page")
    return f"{kind} {number[0]}" if number and kind != "page" else kind


def text_of(doctree: nodes.document) -> str:
    """Everything that is read as running text or code, without embedded sources."""
    parts = [
        node.astext()
        for node in doctree.findall(lambda node: isinstance(node, nodes.TextElement))
        if not isinstance(node, nodes.raw | nodes.comment | nodes.title)
        and not isinstance(node.parent, nodes.TextElement)
        and not _is_embedded(node)
    ]
    return re.sub(r"\s+", " ", " ".join(parts)).strip()


def _is_embedded(node: nodes.Node) -> bool:
    return isinstance(node, nodes.literal_block) and bool(node.get("linenos"))


def remember(app: Sphinx, doctree: nodes.document) -> None:
    """Stores each page's text, and the definitions of its glossary. All pages are read before any is written."""
    pages, terms = _remembered(app)
    docname = app.env.docname
    title = next(iter(doctree.findall(nodes.title)), None)
    pages[docname] = {
        "title": title.astext() if title is not None else docname,
        "kind": kind_of(docname),
        "text": text_of(doctree),
    }
    for item in doctree.findall(nodes.definition_list_item):
        definition = next(iter(item.findall(nodes.definition)), None)
        for term in item.findall(nodes.term):
            for name in term["ids"]:
                if definition is not None:
                    terms[name] = re.sub(r"\s+", " ", definition.astext())


def _remembered(app: Sphinx) -> tuple[dict[str, dict[str, str]], dict[str, str]]:
    if not hasattr(app, "ladder_pages"):
        app.ladder_pages, app.ladder_terms = {}, {}  # type: ignore[attr-defined]
    return app.ladder_pages, app.ladder_terms  # type: ignore[attr-defined]


def resolved(app: Sphinx, doctree: nodes.document, docname: str) -> None:
    """Terms get their definition as a tooltip; embedded sources are removed from the searchable text."""
    del docname
    if app.builder.format != "html":
        return
    _, terms = _remembered(app)
    for reference in doctree.findall(nodes.reference):
        name = reference.get("refid") or reference.get("refuri", "").partition("#")[2]
        if name in terms:
            reference["reftitle"] = shortened(terms[name], 300)
    for block in list(doctree.findall(_is_embedded)):
        block.replace_self(
            EmbeddedSource(
                "", code=block.astext(), language=block["language"], lineanchors=block.get("lineanchors", "")
            )
        )


def page_context(
    app: Sphinx, pagename: str, templatename: str, context: dict[str, Any], doctree: nodes.document | None
) -> None:
    del templatename
    if pagename == "search":
        app.add_js_file("pages.js")
        app.add_js_file("search.js")
    if doctree is None:
        return
    # The line under a chapter's title, which names the file, describes nothing.
    paragraphs = (
        text for node in doctree.findall(nodes.paragraph) if not (text := node.astext()).startswith("kernels/")
    )
    text = next((words for words in paragraphs if len(words) > DESCRIPTION / 2), None)
    if text:
        description = html.escape(shortened(re.sub(r"\s+", " ", text), DESCRIPTION))
        context["metatags"] = context.get("metatags", "") + f'\n<meta name="description" content="{description}">'


def write_pages(app: Sphinx, error: Exception | None) -> None:
    if error is None and app.builder.format == "html":
        pages, _ = _remembered(app)
        text = "window.LADDER_PAGES = " + json.dumps(pages, ensure_ascii=False) + ";\n"
        (Path(app.outdir) / "_static" / "pages.js").write_text(text, encoding="utf-8")


def setup(app: Sphinx) -> dict[str, Any]:
    app.add_node(EmbeddedSource, html=(visit_embedded_source, None))
    app.connect("doctree-read", remember)
    app.connect("doctree-resolved", resolved)
    app.connect("html-page-context", page_context)
    app.connect("build-finished", write_pages)
    return {"version": "1", "parallel_read_safe": False, "parallel_write_safe": False}
