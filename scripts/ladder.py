"""Facts about the ladder that all scripts share. It needs only Python, because any Python may run scripts/peers.

The harness has a copy of the shapes, in harness/app/options/standard_shapes.h, and names folders in
harness/results/profile.cpp; cli_json_test.py compares them.
"""

from __future__ import annotations

import contextlib
import errno
import os
import re
from pathlib import Path

ROOT = Path(__file__).resolve().parent.parent
BUILD = ROOT / "build"
HARNESS = BUILD / "harness"

# The shapes at which every version is measured on a GPU.
SHAPES = [(16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384)]  # (batch, seq_len)
HEADS = 16
HEAD_DIM = 128

REGIMES = ("sustained", "interleaved")  # regimes of scripts/peers, in display order; never compared with each other


def number_of(name: str) -> int | None:
    """The number of a version that has one: 16 for "16_overlapped_softmax"."""
    return int(name[:2]) if re.match(r"\d\d_", name) else None


def is_fast(name: str) -> bool:
    """Whether a version uses the tensor cores, as from 04 and B03 on. Timing the others would take most of the time."""
    number = number_of(name)
    return name[:3] not in ("B01", "B02") and (number is None or number >= 4)


def device_slug(name: str) -> str:
    """The device's folder in profiles/: "NVIDIA H200" is h200."""
    return re.sub(r"[^a-z0-9]+", "-", name.removeprefix("NVIDIA ").lower()).strip("-") or "unknown"


# Both functions follow the rules of harness/results/atomic_file.cpp, except that the folder is created.


def is_special(path: Path) -> bool:
    """Whether the path is a device or a pipe, which must be written to directly: renaming a file would replace it."""
    return path.exists() and not path.is_file() and not path.is_dir()


def written_file(path: Path) -> Path:
    """The target of `path`, if it is a symbolic link, so that the link itself is kept."""
    target = Path(os.path.realpath(path))
    if target.is_symlink():
        raise OSError(errno.ELOOP, os.strerror(errno.ELOOP), str(path))
    return target


def check_writable(path: Path) -> None:
    """Raises OSError if write_whole() would, as far as this can be checked in advance. Changes nothing."""
    target = path if is_special(path) else written_file(path)
    there = next(place for place in (target, *target.parents) if place.exists())
    if target.is_dir():
        reason = errno.EISDIR
    elif there != target and not there.is_dir():
        reason = errno.ENOTDIR
    elif not os.access(there, os.W_OK) or (target.is_file() and not os.access(target.parent, os.W_OK)):
        reason = errno.EACCES
    else:
        return
    raise OSError(reason, os.strerror(reason), str(path))


def write_whole(path: Path, content: str | bytes) -> None:
    """Writes under another name first, so that a reader never sees half a file. Creates the folder. Raises OSError."""
    data = content if isinstance(content, bytes) else content.encode()
    if path.is_dir():
        raise IsADirectoryError(errno.EISDIR, os.strerror(errno.EISDIR), str(path))
    special = is_special(path)
    target = path if special else written_file(path)
    unfinished = target.with_name(f".{target.name}.{os.getpid()}.part")
    target.parent.mkdir(parents=True, exist_ok=True)
    try:
        (target if special else unfinished).write_bytes(data)
        if not special:
            os.replace(unfinished, target)
    except OSError as error:
        with contextlib.suppress(OSError):
            unfinished.unlink()
        raise OSError(error.errno, error.strerror, str(path)) from error
