"""Pages in a headless Chromium."""

from __future__ import annotations

import html
import json
import re
import shutil
import subprocess
from pathlib import Path

import pytest

CHROMIUM = next(
    (found for name in ("chromium", "chromium-browser", "google-chrome") if (found := shutil.which(name))), None
)
needs_chromium = pytest.mark.skipif(
    CHROMIUM is None, reason="there is no Chromium on PATH (Debian: apt-get install chromium)"
)


def visit(folder: Path, site: Path, tasks: list[tuple[str, str, str]], *flags: str) -> dict:
    """Performs `what` of docs_visitor.html in each (name, page, what); returns the outcomes by name.

    A message on a page's console counts as an error. `flags` are Chromium's.
    """
    script = (Path(__file__).parent / "docs_visitor.html").read_text(encoding="utf-8")
    listed = json.dumps([[name, f"{site.as_uri()}/{page}", what] for name, page, what in tasks])
    (folder / "visitor.html").write_text(script.replace("TASKS", listed), encoding="utf-8")
    assert CHROMIUM is not None
    command = [CHROMIUM, "--headless=new", "--no-sandbox", "--disable-gpu", "--allow-file-access-from-files"]
    command += [
        "--enable-logging=stderr",
        "--virtual-time-budget=600000",
        f"--user-data-dir={folder / 'profile'}",
        "--dump-dom",
        *flags,
    ]
    done = subprocess.run([*command, (folder / "visitor.html").as_uri()], capture_output=True, text=True, check=False)
    messages = [line for line in done.stderr.splitlines() if "CONSOLE" in line]
    assert not messages, messages
    text = re.search(r'<pre id="found">(.*?)</pre>', done.stdout, re.DOTALL)
    assert text and text[1], done.stdout[-2000:] + done.stderr[-2000:]
    return json.loads(html.unescape(text[1]))
