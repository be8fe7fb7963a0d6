"""The site: scripts/docs builds it into build/docs."""

from __future__ import annotations

import os
import sys
from pathlib import Path

ROOT = Path(__file__).parents[2]
sys.path.insert(0, str(ROOT / "docs" / "site"))

project = "flash-ladder"
copyright = "the authors of flash-ladder; MIT licence"
extensions = ["myst_parser", "ladder_docs", "reading"]
source_suffix = {".md": "markdown"}
nitpicky = True
language = "en"
highlight_language = "text"
# Where `harness --list --json` is asked for the registry and the code hashes.
ladder_harness = os.environ.get("FLASH_LADDER_HARNESS", str(ROOT / "build" / "harness"))

myst_enable_extensions = ["colon_fence", "deflist"]
myst_heading_anchors = 3

html_theme = "furo"
html_title = "flash-ladder"
html_favicon = "../site/static/favicon.svg"
html_static_path = ["../site/static"]
html_css_files = ["ladder.css"]
html_js_files = ["ladder.js"]
html_copy_source = False
html_show_sourcelink = False
# The summaries are fetched, which a browser refuses for file://. reading.py and search.js show others.
html_show_search_summary = False
html_theme_options = {
    "light_css_variables": {"color-brand-primary": "#0452eb", "color-brand-content": "#0452eb"},
    "dark_css_variables": {"color-brand-primary": "#9fcffe", "color-brand-content": "#9fcffe"},
}
