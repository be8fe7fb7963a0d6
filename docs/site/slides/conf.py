"""The slides: scripts/slides builds them from the chapters into build/slides."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[3]
sys.path.insert(0, str(ROOT / "docs" / "site"))

project = "flash-ladder"
author = "the authors of flash-ladder"
extensions = ["myst_parser", "sphinx_revealjs", "ladder_docs", "slide_parts"]
source_suffix = {".md": "markdown"}
language = "en"
highlight_language = "text"
suppress_warnings = ["myst.xref_missing"]  # the targets of a chapter's links are not slides
ladder_harness = os.environ.get("FLASH_LADDER_HARNESS", str(ROOT / "build" / "harness"))

myst_enable_extensions = ["colon_fence"]
revealjs_static_path = [str(ROOT / "docs" / "site" / "static")]
revealjs_css_files = ["ladder.css", "slides.css"]
revealjs_js_files = ["slides.js"]
revealjs_style_theme = "white"
revealjs_script_conf = {
    "hash": True,
    "slideNumber": "c/t",
    "width": 1280,
    "height": 720,
    "margin": 0.03,
    "center": False,
    "display": "flex",
    "transition": "none",
}
revealjs_script_plugins = [{"name": "RevealNotes", "src": "revealjs/plugin/notes/notes.js"}]
