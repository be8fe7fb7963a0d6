"""Programs that tests write as substitutes for others."""

from __future__ import annotations

import sys
from pathlib import Path


def write_program(path: Path, text: str, python: str = sys.executable) -> None:
    """Writes Python text as a program for `python`, whose path may contain blanks, which a #! line cannot express.

    For the shell, the second line starts Python, and nothing after it is read; for Python, it and the third are a
    string.
    """
    path.write_text(f"#!/bin/sh\n'''exec' \"{python}\" -IS \"$0\" \"$@\"\n' '''\n{text}", encoding="utf-8")
    path.chmod(0o755)
