#!/usr/bin/env python3
"""Draws the ladder from profiles/: docs/figures/ladder.svg and docs/figures/seq_len.svg.

Each figure carries a hash of what it shows and of this script in its metadata, so that scripts/update_docs.py --check
can tell whether it is out of date without drawing it again.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from profile_data import ROOT, Device, ProfileError, Shape, load_device, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE = "FlashAttention-2"  # the peer that the ladder aims at
BLUE, GREY, RED = "#1f5fa8", "#666666", "#b03030"


@dataclass(frozen=True)
class Plot:
    """A figure that can be drawn: the data it shows, and how."""

    name: str
    data: dict[str, Any]
    draw: Callable[[dict[str, Any]], Figure]

    @property
    def file(self) -> str:
        return f"{self.name}.svg"

    def hash(self) -> str:
        digest = hashlib.sha256(json.dumps(self.data, sort_keys=True).encode())
        digest.update(Path(__file__).read_bytes())
        return f"sha256:{digest.hexdigest()}"

    def is_current(self, folder: Path) -> bool:
        path = folder / self.file
        return path.is_file() and self.hash() in path.read_text(encoding="utf-8", errors="replace")

    def write(self, folder: Path) -> Path:
        import matplotlib

        matplotlib.use("svg")
        matplotlib.rcParams.update({"svg.hashsalt": self.name, "font.size": 9, "axes.spines.top": False})
        folder.mkdir(parents=True, exist_ok=True)
        path = folder / self.file
        unfinished = path.with_name(f".{path.name}.part")
        metadata = {"Title": self.data["title"], "Description": self.hash(), "Creator": "scripts/plot.py", "Date": None}
        self.draw(self.data).savefig(unfinished, format="svg", metadata=metadata, facecolor="white")
        os.replace(unfinished, path)
        return path


def plots(device: Device, shape: Shape) -> list[Plot]:
    """All figures of a device; `shape` is that of the first."""
    problem = f"{device.dtype}, {device.name}"
    ladder = {
        "title": f"The ladder: batch {shape.batch}, 16 heads, seq_len {shape.seq_len}, head_dim 128, {problem}",
        "versions": [[version.label, version.tflops.get(shape)] for version in device.versions],
        "peers": [[peer.name, peer.tflops[shape]] for peer in device.peers if shape in peer.tflops],
        "ceiling": device.mma_sync_ceiling,
    }
    seq_len = {
        "title": f"TFLOP/s over seq_len: 16 heads, head_dim 128, {problem}",
        "shapes": [[s.seq_len, s.batch] for s in device.shapes()],
        "versions": [[version.label, [version.tflops.get(s) for s in device.shapes()]] for version in device.versions],
        "peers": [
            [peer.name, [peer.tflops.get(s) for s in device.shapes()]]
            for peer in device.peers
            if peer.name == REFERENCE
        ],
        "ceiling": device.mma_sync_ceiling,
    }
    return [Plot("ladder", ladder, _draw_ladder), Plot("seq_len", seq_len, _draw_seq_len)]


def _draw_ladder(data: dict[str, Any]) -> Figure:
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5), layout="constrained")
    axes = figure.add_subplot()
    _style(axes, data["title"])

    labels = [label for label, _ in data["versions"]]
    measured = [(x, value) for x, (_, value) in enumerate(data["versions"]) if value is not None]
    axes.plot([x for x, _ in measured], [value for _, value in measured], "o-", color=BLUE)
    for x, value in measured:
        axes.annotate(three_digits(value), (x, value), (4, -12), textcoords="offset points", color=BLUE)
    axes.set_xticks(range(len(labels)), labels, rotation=35, ha="right")
    axes.set_xlim(-0.5, max(len(labels) - 0.5, 0.5))

    lines = [(name, value, GREY) for name, value in data["peers"]]
    if data["ceiling"] is not None:
        lines.append(("mma.sync ceiling", data["ceiling"], RED))
    for name, value, color in lines:
        axes.axhline(value, color=color, linewidth=0.8, linestyle="-" if name == "mma.sync ceiling" else "--")
    _set_limits(axes, [value for _, value in measured] + [value for _, value, _ in lines])
    _label_at_right(figure, axes, [(f"{name}  {three_digits(value)}", value, color) for name, value, color in lines])
    return figure


def _draw_seq_len(data: dict[str, Any]) -> Figure:
    import matplotlib
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 5.5), layout="constrained")
    axes = figure.add_subplot()
    _style(axes, data["title"])
    axes.set_xscale("log", base=2)
    x = [seq_len for seq_len, _ in data["shapes"]]
    axes.set_xticks(x, [f"{seq_len}\nbatch {batch}" for seq_len, batch in data["shapes"]])
    axes.minorticks_off()
    axes.set_xlabel("seq_len")

    colors = matplotlib.colormaps["viridis"]
    labels: list[tuple[str, float, Any]] = []
    values: list[float] = []

    def line(name: str, y: Sequence[float | None], style: str, color: Any) -> None:  # noqa: ANN401 (matplotlib's colors)
        points = [(seq_len, value) for seq_len, value in zip(x, y, strict=True) if value is not None]
        if not points:
            return
        axes.plot([seq_len for seq_len, _ in points], [value for _, value in points], style, color=color, markersize=4)
        labels.append((name, points[-1][1], color))
        values.extend(value for _, value in points)

    count = len(data["versions"])
    for i, (name, y) in enumerate(data["versions"]):
        line(name, y, "o-", colors(0.9 * i / max(count - 1, 1)))
    for name, y in data["peers"]:
        line(name, y, "--", GREY)
    if data["ceiling"] is not None:
        line("mma.sync ceiling", [data["ceiling"]] * len(x), "-", RED)
    _set_limits(axes, values)
    _label_at_right(figure, axes, labels)
    return figure


def _style(axes: Axes, title: str) -> None:
    axes.set_title(title, loc="left", fontsize=10)
    axes.set_ylabel("TFLOP/s")
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["right"].set_visible(False)


def _set_limits(axes: Axes, values: list[float]) -> None:
    if values:
        axes.set_ylim(min(values) / 1.8, max(values) * 1.4)


def _label_at_right(figure: Figure, axes: Axes, labels: list[tuple[str, float, Any]]) -> None:
    """Writes each label beside the axes at its value, moved where it would cover another."""
    figure.draw_without_rendering()  # settles how tall the axes are
    low, high = axes.get_ylim()
    line_height = 11 / (axes.get_window_extent().height * 72 / figure.dpi)  # 11 points, as a part of the axes' height

    labels = sorted(labels, key=lambda label: label[1])
    wanted = [log(value / low) / log(high / low) for _, value, _ in labels]
    places = list(wanted)
    for i in range(1, len(places)):
        places[i] = max(places[i], places[i - 1] + line_height)
    for i in reversed(range(len(places))):
        places[i] = min(places[i], 1 - (len(places) - 1 - i) * line_height)

    for (text, _, color), start, place in zip(labels, wanted, places, strict=True):
        axes.annotate(
            text,
            (1, start),
            (1.04, place),
            xycoords="axes fraction",
            textcoords="axes fraction",
            va="center",
            color=color,
            fontsize=8,
            arrowprops={"arrowstyle": "-", "color": color, "linewidth": 0.5, "relpos": (0, 0.5)},
        )


def main() -> int:
    parser = argparse.ArgumentParser(description="Draws docs/figures/*.svg from profiles/.")
    parser.add_argument("--device", default="h200", help="a folder of profiles/ (%(default)s)")
    parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"], help="(%(default)s)")
    parser.add_argument("--batch", type=int, default=16, help="of the first figure (%(default)s)")
    parser.add_argument("--seq-len", type=int, default=4096, help="of the first figure (%(default)s)")
    parser.add_argument("--out", type=Path, default=ROOT / "docs" / "figures", help="folder (docs/figures)")
    arguments = parser.parse_args()
    try:
        device = load_device(arguments.device, arguments.dtype)
    except ProfileError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 3
    shape = Shape(arguments.seq_len, arguments.batch)
    if shape not in device.shapes():
        known = ", ".join(f"({s.batch}, {s.seq_len})" for s in device.shapes())
        print(f"plot.py: nothing is recorded at ({shape.batch}, {shape.seq_len}); there is {known}", file=sys.stderr)
        return 2
    for plot in plots(device, shape):
        print(plot.write(arguments.out))
    return 0


if __name__ == "__main__":
    sys.exit(main())
