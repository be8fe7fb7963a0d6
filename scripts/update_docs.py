#!/usr/bin/env python3
"""Writes what was measured into the docs, from profiles/, so that no figure is ever typed:

  README.md             the results, between <!-- results --> and <!-- end -->
  docs/ladder_log.md    what version 06 reached, between <!-- tflops 06 --> and <!-- end -->
  docs/figures/*.svg    by scripts/plot.py

With --check it writes nothing, names what is out of date, and exits 1 if anything is. Exits 3 when a profile or a page
cannot be used.
"""

from __future__ import annotations

import argparse
import os
import re
import sys
from collections.abc import Iterable
from pathlib import Path

import plot
from profile_data import HEAD_DIM, HEADS, ROOT, Device, ProfileError, Shape, Version, load_device, three_digits

DEVICE = "h200"  # whose figures the docs show
SHAPE = Shape(seq_len=4096, batch=16)  # where versions are compared

README = Path("README.md")
LADDER_LOG = Path("docs/ladder_log.md")
FIGURES = Path("docs/figures")


class PageError(Exception):
    """A page has not the marks that this script fills in."""


def results_table(device: Device) -> str:
    """README's table: a row per version, then the peers."""
    shapes = device.shapes()
    reference = next((peer for peer in device.peers if peer.name == plot.REFERENCE), None)

    def row(name: str, tflops: dict[Shape, float]) -> str:
        cells = [name, *(three_digits(tflops.get(shape)) for shape in shapes)]
        here, there = tflops.get(SHAPE), reference.tflops.get(SHAPE) if reference else None
        cells.append(f"{three_digits(100 * here / there)} %" if here and there else "–")
        return f"| {' | '.join(cells)} |"

    header = ["TFLOP/s at seq_len", *(str(shape.seq_len) for shape in shapes), f"of {plot.REFERENCE}"]
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    lines += [row(f"[{version.label}]({version.file})", version.tflops) for version in device.versions]
    lines += [row(f"*{peer.name}* ({peer.note})", peer.tflops) for peer in device.peers]

    batches = {shape.batch: [str(s.seq_len) for s in shapes if s.batch == shape.batch] for shape in shapes}
    batch = "; ".join(f"{size} at {', '.join(seq_lens)}" for size, seq_lens in batches.items())
    text = (
        f"{device.name}, {device.dtype}, {HEADS} heads, head_dim {HEAD_DIM}, non-causal; batch {batch}. The last"
        f" column is for seq_len {SHAPE.seq_len}. {recorded_with(device.versions)}"
    )
    if device.mma_sync_ceiling:
        text += f" The ceiling of `mma.sync`: {three_digits(device.mma_sync_ceiling)} TFLOP/s."
    if device.peers:
        text += f" The peers: {device.source_of_peers}"
    return "\n".join([*lines, "", text])


def recorded_with(versions: list[Version]) -> str:
    if not versions:
        return "No version is recorded yet."

    def unique(values: Iterable[str | None]) -> str:
        return ", ".join(sorted({value or "unknown" for value in values}))

    return (
        f"Recorded {unique(version.date[:10] for version in versions)} with CUDA"
        f" {unique(version.toolkit for version in versions)}, driver {unique(version.driver for version in versions)}."
    )


def ladder_log_cell(device: Device, number: int) -> str:
    """TFLOP/s, and how many times those of the version before: what the predictions are about."""
    at_shape = {version.number: version.tflops.get(SHAPE) for version in device.versions}
    here, before = at_shape.get(number), at_shape.get(number - 1)
    if here is None:
        return "not recorded"
    return three_digits(here) + (f" ({three_digits(here / before)}×)" if before else "")


def fill_readme(text: str, device: Device) -> str:
    marked = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise PageError(f"{README} needs the marks <!-- results --> and <!-- end --> once, each on a line of its own")
    return marked.sub(lambda _: results_table(device) + "\n", text)


def fill_ladder_log(text: str, device: Device) -> str:
    mark = re.compile(r"<!-- tflops (\d\d) -->([^\n|]*?)<!-- end -->")
    unfinished = text.count("<!-- tflops ") - len(mark.findall(text))
    if unfinished:
        raise PageError(f"{LADDER_LOG}: {unfinished} of its <!-- tflops NN --> marks have no <!-- end -->")
    return mark.sub(lambda m: f"<!-- tflops {m[1]} -->{ladder_log_cell(device, int(m[1]))}<!-- end -->", text)


def update(check: bool) -> list[str]:
    """The files that were out of date; they are mended unless `check`."""
    device = load_device(DEVICE)
    for file in device.missing:
        folder = f"profiles/{DEVICE}"
        print(f"update_docs.py: {file} has no profile in {folder}, so the docs show no figures of it", file=sys.stderr)

    outdated = []
    for page, fill in ((README, fill_readme), (LADDER_LOG, fill_ladder_log)):
        path = ROOT / page
        if not path.is_file():
            raise PageError(f"there is no {page}")
        text = path.read_text(encoding="utf-8")
        filled = fill(text, device)
        if filled != text:
            outdated.append(str(page))
            if not check:
                unfinished = path.with_name(f".{path.name}.part")
                unfinished.write_text(filled, encoding="utf-8")
                os.replace(unfinished, path)
    for figure in plot.plots(device, SHAPE):
        if not figure.is_current(ROOT / FIGURES):
            outdated.append(str(FIGURES / figure.file))
            if not check:
                figure.write(ROOT / FIGURES)
    return outdated


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes what was measured into the docs, from profiles/.")
    parser.add_argument("--check", action="store_true", help="write nothing; exit 1 if something is out of date")
    arguments = parser.parse_args()
    try:
        outdated = update(arguments.check)
    except (ProfileError, PageError) as error:
        print(f"update_docs.py: {error}", file=sys.stderr)
        return 3
    for file in outdated:
        print(f"{file} {'is out of date' if arguments.check else 'updated'}")
    if outdated and arguments.check:
        print("Run: .venv/bin/python scripts/update_docs.py")
        return 1
    return 0


if __name__ == "__main__":
    sys.exit(main())
