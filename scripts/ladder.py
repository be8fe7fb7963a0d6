"""What all scripts say of the ladder alike. It needs nothing but Python, since any Python may run scripts/peers.

The harness has the shapes, too, in harness/app/standard_shapes.h, and names folders in harness/results/profile.cpp;
cli_json_test.py compares.
"""

from __future__ import annotations

import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
HARNESS = BUILD / "harness"

# What every version is measured at on a GPU.
SHAPES = [(16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384)]  # (batch, seq_len)
HEADS = 16
HEAD_DIM = 128

REGIMES = ("sustained", "interleaved")  # of scripts/peers, in the order in which they are shown; never compared


def number_of(name: str) -> int | None:
    """Of a version that has one: 16 for "16_optimized_softmax"."""
    return int(name[:2]) if re.match(r"\d\d_", name) else None


def is_fast(name: str) -> bool:
    """Whether a version uses the tensor cores, which come in with 04. What does not would take most of the time."""
    number = number_of(name)
    return number is None or number >= 4


def device_slug(name: str) -> str:
    """The device's folder in profiles/: "NVIDIA H200" is h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.removeprefix("NVIDIA ").lower()).strip("-") or "unknown"


def write_whole(path: Path, content: str | bytes) -> None:
    """Under another name first, so that nobody ever reads half a file. Makes the folder. Raises OSError."""
    unfinished = path.with_name(f".{path.name}.{os.getpid()}.part")
    path.parent.mkdir(parents=True, exist_ok=True)
    try:
        unfinished.write_bytes(content if isinstance(content, bytes) else content.encode())
        os.replace(unfinished, path)
    except OSError:
        unfinished.unlink(missing_ok=True)
        raise
