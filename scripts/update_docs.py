#!/usr/bin/env python3
"""Writes what was measured into the docs, from profiles/, so that no figure is ever typed:

  README.md             the results, between <!-- results --> and <!-- end -->
  docs/ladder_log.md    what version 06 reached, between <!-- tflops 06 --> and <!-- end -->, and how many times the
                        TFLOP/s of the version before at seq_len 512, between <!-- step 06 512 --> and <!-- end -->
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
from kernel_files import KernelFile
from profile_data import (
    HEAD_DIM,
    HEADS,
    ROOT,
    Device,
    Peer,
    ProfileError,
    Shape,
    Version,
    harmonic_mean,
    load_device,
    three_digits,
)

DEVICE = "h200"  # whose figures the docs show
SHAPE = Shape(seq_len=4096, batch=16)  # where versions are compared

README = Path("README.md")
LADDER_LOG = Path("docs/ladder_log.md")
FIGURES = Path("docs/figures")


class PageError(Exception):
    """A page has not the marks that this script fills in."""


def shares(tflops: dict[Shape, float], reference: Peer | None) -> list[str]:
    """How much of the reference it reaches at SHAPE, and in harmonic mean over all of the reference's shapes."""
    if reference is None:
        return ["–", "–"]
    shapes = sorted(reference.tflops)
    pairs = [
        (tflops.get(SHAPE), reference.tflops.get(SHAPE)),
        (harmonic_mean(tflops, shapes), harmonic_mean(reference.tflops, shapes)),
    ]
    return [f"{three_digits(100 * here / there)} %" if here and there else "–" for here, there in pairs]


def results_table(device: Device) -> str:
    """README's table: a row per version, then the peers, the slowest first."""
    shapes = device.shapes()
    reference = next((peer for peer in device.peers if peer.name == plot.REFERENCE), None)
    peers = sorted(device.peers, key=lambda peer: peer.tflops.get(SHAPE, 0.0))

    def row(name: str, tflops: dict[Shape, float], compared: dict[Shape, float]) -> str:
        cells = [name, *(three_digits(tflops.get(shape)) for shape in shapes), *shares(compared, reference)]
        return f"| {' | '.join(cells)} |"

    columns = [*(str(shape.seq_len) for shape in shapes), f"of {plot.SHORT_REFERENCE} at {SHAPE.seq_len}"]
    header = ["TFLOP/s at seq_len", *columns, f"of {plot.SHORT_REFERENCE}, mean"]
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    for version in device.versions:
        name = f"[{version.source.label}]({version.source.file})"
        lines.append(row(name, version.tflops, version.beside_peers or version.tflops))
    lines += [row(f"*{peer.name}*{'†' if peer.external else ''}", peer.tflops, peer.tflops) for peer in peers]

    batches = {shape.batch: [str(s.seq_len) for s in shapes if s.batch == shape.batch] for shape in shapes}
    batch = "; ".join(f"{size} at {', '.join(seq_lens)}" for size, seq_lens in batches.items())
    text = (
        f"{device.name}, {device.dtype}, {HEADS} heads, head_dim {HEAD_DIM}, non-causal; batch {batch}."
        f" {recorded_with(device.versions)}"
    )
    if device.mma_sync_ceiling:
        text += f" The ceiling of `mma.sync`: {three_digits(device.mma_sync_ceiling)} TFLOP/s†."
    paragraphs = [text]
    if reference:
        paragraphs.append(about_shares(device.versions))
    if peers or device.mma_sync_ceiling:
        paragraphs.append(about_peers(device, peers))
    return "\n".join([*lines, "", "\n\n".join(paragraphs)])


def about_shares(versions: list[Version]) -> str:
    text = (
        f"{plot.SHORT_REFERENCE} is {plot.REFERENCE}; the mean is the harmonic one, over the lengths that"
        f" {plot.SHORT_REFERENCE} was measured at."
    )
    together = [version.source for version in versions if version.beside_peers]
    apart = [version.source for version in versions if not version.beside_peers]
    if together:
        text += f" Shares of {ranges(together)} are from one run in which all took turns with it (`scripts/peers`)."
    if apart:
        text += f" Shares of {ranges(apart)} compare figures of different runs."
    return text


def ranges(versions: list[KernelFile]) -> str:
    """01–08, 16, causal"""
    runs: list[list[KernelFile]] = []
    for version in versions:
        before = runs[-1][-1].number if runs else None
        if before is not None and version.number == before + 1:
            runs[-1].append(version)
        else:
            runs.append([version])
    return ", ".join(f"{run[0].kernel}–{run[-1].kernel}" if len(run) > 1 else run[0].kernel for run in runs)


def about_peers(device: Device, peers: list[Peer]) -> str:
    named = [f"{peer.name} ({peer.note})" if peer.note else peer.name for peer in peers]
    text = f"The peers: {'; '.join(named) or 'none'}."
    if run := device.peers_run:
        programs = {"PyTorch": "pytorch", "its CUDA": "cuda", "cuDNN": "cudnn", "Triton": "triton", "driver": "driver"}
        used = ", ".join(f"{name} {run[member]}" for name, member in programs.items() if run[member] is not None)
        text += f" Measured {run['date'][:10]} by `scripts/peers` in {run['rounds']} rounds, with {used}."
    if any(peer.external for peer in peers) or device.mma_sync_ceiling:
        text += f"\n\n† Taken over, and not measured by this project: {device.source_of_external}"
    return text


def recorded_with(versions: list[Version]) -> str:
    if not versions:
        return "No version is recorded yet."

    def unique(values: Iterable[str | None]) -> str:
        return ", ".join(sorted({value or "unknown" for value in values}))

    return (
        f"Recorded {unique(version.date[:10] for version in versions)} with CUDA"
        f" {unique(version.toolkit for version in versions)}, driver {unique(version.driver for version in versions)}."
    )


def with_the_one_before(device: Device, number: int, seq_len: int) -> tuple[float | None, float | None]:
    """TFLOP/s of a version and of the one before it, at one of the standard shapes."""
    at_shape = {
        one.source.number: next((tflops for shape, tflops in one.tflops.items() if shape.seq_len == seq_len), None)
        for one in device.rungs()
    }
    return at_shape.get(number), at_shape.get(number - 1)


def ladder_log_cell(device: Device, number: int) -> str:
    """TFLOP/s, and how many times those of the version before: what the predictions are about."""
    here, before = with_the_one_before(device, number, SHAPE.seq_len)
    if here is None:
        return "not recorded"
    return three_digits(here) + (f" ({three_digits(here / before)}×)" if before else "")


def step_at(device: Device, number: int, seq_len: int) -> str:
    """How many times the TFLOP/s of the version before."""
    here, before = with_the_one_before(device, number, seq_len)
    return f"{three_digits(here / before)}×" if here and before else "not recorded"


def fill_readme(text: str, device: Device) -> str:
    marked = re.compile(r"(?<=<!-- results -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise PageError(f"{README} needs the marks <!-- results --> and <!-- end --> once, each on a line of its own")
    return marked.sub(lambda _: results_table(device) + "\n", text)


def fill_ladder_log(text: str, device: Device) -> str:
    reached = re.compile(r"<!-- tflops (\d\d) -->([^\n|]*?)<!-- end -->")
    step = re.compile(r"<!-- step (\d\d) (\d+) -->([^\n|]*?)<!-- end -->")
    found = len(reached.findall(text)) + len(step.findall(text))
    unfinished = text.count("<!-- tflops ") + text.count("<!-- step ") - found
    if unfinished:
        marks = "<!-- tflops NN --> or <!-- step NN SEQ_LEN -->"
        raise PageError(f"{LADDER_LOG}: {unfinished} of its marks {marks} have no <!-- end -->, or no such number")
    text = reached.sub(lambda m: f"<!-- tflops {m[1]} -->{ladder_log_cell(device, int(m[1]))}<!-- end -->", text)
    return step.sub(lambda m: f"<!-- step {m[1]} {m[2]} -->{step_at(device, int(m[1]), int(m[2]))}<!-- end -->", text)


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
