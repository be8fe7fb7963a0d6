#!/usr/bin/env python3
"""Draws the ladder from profiles/: docs/figures/ladder.svg, docs/figures/seq_len.svg, and, once they are recorded, the
table of other data, docs/figures/by_data.svg, and the losses of scripts/train_gpt.py, docs/figures/training.svg.

The metadata of each figure contains a hash of its data and of this script, so that scripts/update_docs.py --check can
tell whether it is out of date without drawing it again.
"""

from __future__ import annotations

import argparse
import hashlib
import io
import json
import sys
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from math import log
from pathlib import Path
from typing import TYPE_CHECKING, Any

from ladder import ROOT, check_writable, write_whole
from profile_data import Cell, Device, ProfileError, Shape, devices, load_device, load_training, three_digits

if TYPE_CHECKING:
    from matplotlib.axes import Axes
    from matplotlib.figure import Figure

REFERENCE, SHORT_REFERENCE = "FlashAttention-2", "FA2"  # the peer that the ladder tries to match
# The colours of docs/site/drawings.py, which colour-blind readers can distinguish.
INK, GREY, BLUE, RED, GREEN, AMBER, VIOLET, CYAN = (
    "#101010", "#606060", "#0452eb", "#74090c", "#1f7a42", "#946f0f", "#a91f93", "#053558"
)  # fmt: skip
OF_LINES = (BLUE, AMBER, GREEN, VIOLET, CYAN, RED)
MARKERS = "os^Dv"  # the colours repeat, but not with the same marker


def _line_style(i: int) -> tuple[str, str]:
    """Marker and colour of the i-th of many lines."""
    return MARKERS[i // len(OF_LINES) % len(MARKERS)], OF_LINES[i % len(OF_LINES)]


@dataclass(frozen=True)
class Plot:
    """A figure to draw: its data, and the function that draws it."""

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
        path = folder / self.file
        drawn = io.BytesIO()
        metadata = {"Title": self.data["title"], "Description": self.hash(), "Creator": "scripts/plot.py", "Date": None}
        self.draw(self.data).savefig(drawn, format="svg", metadata=metadata, facecolor="white")
        write_whole(path, drawn.getvalue())
        return path


def plots(device: Device, shape: Shape) -> list[Plot]:
    """All figures of a device; `shape` applies to the first."""
    problem = f"{device.dtype}, {device.name}" + (f", {device.regime.name}" if device.regime else "")
    ladder = {
        "title": f"The ladder: batch {shape.batch}, 16 heads, seq_len {shape.seq_len}, head_dim 128, {problem}",
        "versions": [[version.source.label, version.tflops.get(shape)] for version in device.rungs()],
        "peers": [[peer.name, peer.tflops[shape]] for peer in device.peers if shape in peer.tflops],
        "ceilings": [[f"{name} ceiling", value] for name, value in device.ceilings.items()],
    }
    seq_len = {
        "title": f"TFLOP/s over seq_len: 16 heads, head_dim 128, {problem}",
        "shapes": [[s.seq_len, s.batch] for s in device.shapes()],
        "versions": [[one.source.label, [one.tflops.get(s) for s in device.shapes()]] for one in device.rungs()],
        "peers": [[peer.name, [peer.tflops.get(s) for s in device.shapes()]] for peer in device.peers],
    }
    found = [Plot("ladder", ladder, _draw_ladder), Plot("seq_len", seq_len, _draw_seq_len)]
    if device.by_data is not None and device.by_data.has(device.dtype, shape.seq_len):
        cells = [Cell(data, device.dtype, shape.seq_len) for data in device.by_data.definitions]
        run = device.by_data.run
        shown = f"batch {shape.batch}, seq_len {shape.seq_len}, {device.dtype}, {device.name}; each ran alone, timed"
        shown += f" for {run['timed_seconds']:g} s after {run['warm_up_seconds']:g} s to warm up"
        by_data = {
            "title": f"TFLOP/s by data: {shown}",
            "data": list(device.by_data.definitions),
            "versions": [[label, [of.get(c) for c in cells]] for label, of in device.by_data.versions.items()],
            "peers": [[name, [of.get(c) for c in cells]] for name, of in device.by_data.peers.items()],
        }
        found.append(Plot("by_data", by_data, _draw_by_data))
    if training := load_training(device.folder):
        names = {"ladder": "the ladder", "sdpa": "PyTorch", "standard": "PyTorch, storing all scores"}
        losses = {
            "title": f"Loss of a GPT, {training['model']['parameters'] / 1e6:.0f} million parameters, {device.name}",
            "steps_per_loss": training["steps_per_loss"],
            "runs": [[names[run["name"]], run["losses"]] for run in training["runs"]],
        }
        found.append(Plot("training", losses, _draw_training))
    return found


def _first_fast(best: Sequence[float | None], peers: list[float]) -> int:
    """The first version from which on all are at least a quarter as fast as the slowest peer; 0 if there is none.

    Slower versions can be distinguished only on a logarithmic scale, where faster ones can hardly be distinguished.
    """
    least = min(peers, default=0.0) / 4
    first = len(best)
    while first > 0 and (best[first - 1] or 0.0) >= least:
        first -= 1
    return first if first < len(best) else 0


def _draw_ladder(data: dict[str, Any]) -> Figure:
    """All versions on a logarithmic scale, and next to it the fast ones and the peers on a linear one."""
    from matplotlib.figure import Figure

    values = [value for _, value in data["versions"]]
    first = _first_fast(values, [value for _, value in data["peers"]])
    lines = [(name, value, GREY) for name, value in data["peers"]]
    lines += [(name, value, RED) for name, value in data["ceilings"]]

    figure = Figure(figsize=(12, 5), layout="constrained")
    figure.suptitle(data["title"], x=0.01, ha="left", fontsize=10)
    panels = figure.subplots(1, 2, width_ratios=[4, 7]) if first > 0 else [figure.add_subplot()]
    if first > 0:
        # By number: their names, and the figures of the later ones, are in the right-hand plot.
        numbered = [[label[:2], value] for label, value in data["versions"]]
        _draw_steps(panels[0], numbered, lines, with_figures=first + 1)
        _logarithmic(panels[0])
        _set_log_limits(panels[0], [value for value in values if value is not None] + [value for _, value, _ in lines])
        panels[0].set_xlabel("version (the lines are those on the right)", fontsize=8)
    last = panels[-1]
    _draw_steps(last, data["versions"][first:], lines, with_figures=len(values))
    if first > 0:
        last.set_ylim(0, 1.06 * max(value for _, value, _ in lines + [("", v or 0.0, "") for v in values]))
    else:
        _logarithmic(last)
        _set_log_limits(last, [value for value in values if value is not None] + [value for _, value, _ in lines])
    _label_at_right(figure, last, [(f"{name}  {three_digits(value)}", value, color) for name, value, color in lines])
    return figure


def _draw_steps(axes: Axes, versions: list[list[Any]], lines: list[tuple[str, float, str]], with_figures: int) -> None:
    """One point per version, with figures for the first `with_figures` of them, and a horizontal line per peer."""
    _style(axes)
    measured = [(x, value) for x, (_, value) in enumerate(versions) if value is not None]
    axes.plot([x for x, _ in measured], [value for _, value in measured], "o-", color=BLUE, markersize=5)
    # Figures are above the points, or below if the figure before is above and about as high, over the lines of the
    # peers; if the curve is steep, below and to the right, unless the next point is about as high and its figure would
    # be there.
    steep = with_figures < len(versions)
    box = None if steep else {"boxstyle": "square,pad=0.1", "facecolor": "white", "edgecolor": "none"}
    above = False  # the figure before, if it is about as high: then this one is below
    for i, (x, value) in enumerate(measured[:with_figures]):
        level_before = i > 0 and abs(value - measured[i - 1][1]) < 0.06 * max(value for _, value in measured)
        above = not (above and level_before)
        level = any(value / 1.3 < other < 1.3 * value for _, other in measured[i + 1 : i + 2])
        if steep:
            place, ha = ((-4, 4), "right") if level else ((5, -8), "left")
        else:
            place, ha = (0, 7 if above else -14), "center"
        text = three_digits(value)
        axes.annotate(text, (x, value), place, textcoords="offset points", ha=ha, color=BLUE, fontsize=7.5, bbox=box)
    labels = [label for label, _ in versions]
    tilted = {"rotation": 40, "ha": "right", "rotation_mode": "anchor"} if any(len(text) > 2 for text in labels) else {}
    every = 1 if tilted else 1 + (len(labels) - 1) // 14  # more numbers than this would overlap
    shown = [text if x % every == 0 else "" for x, text in enumerate(labels)]
    axes.set_xticks(range(len(labels)), shown, fontsize=8, **tilted)
    axes.set_xlim(-0.6, max(len(labels) - 0.4, 0.6))
    for name, value, color in lines:
        axes.axhline(value, color=color, linewidth=0.8, linestyle="-" if name.endswith("ceiling") else "--", zorder=1)


def _draw_seq_len(data: dict[str, Any]) -> Figure:
    """The fast versions and the peers on a linear scale, because the slow versions hardly change with seq_len."""
    from matplotlib.figure import Figure

    def best(y: list[float | None]) -> float | None:
        return max((value for value in y if value is not None), default=None)

    peers = [best(y) for _, y in data["peers"]]
    first = _first_fast([best(y) for _, y in data["versions"]], [value for value in peers if value is not None])
    versions = data["versions"][first:]

    figure = Figure(figsize=(11, 6), layout="constrained")
    axes = figure.add_subplot()
    _style(axes)
    left_out = f"; version {versions[0][0][:2]} and later" if first > 0 else ""
    axes.set_title(data["title"] + left_out, loc="left", fontsize=10)
    axes.set_xscale("log", base=2)
    x = [seq_len for seq_len, _ in data["shapes"]]
    axes.set_xticks(x, [f"{seq_len}\nbatch {batch}" for seq_len, batch in data["shapes"]])
    axes.minorticks_off()
    axes.set_xlabel("seq_len")

    labels: list[tuple[str, float, Any]] = []
    values: list[float] = []

    def line(name: str, y: Sequence[float | None], style: str, color: Any) -> None:  # noqa: ANN401 (matplotlib's colors)
        points = [(seq_len, value) for seq_len, value in zip(x, y, strict=True) if value is not None]
        if not points:
            return
        axes.plot([seq_len for seq_len, _ in points], [value for _, value in points], style, color=color, markersize=4)
        labels.append((name, points[-1][1], color))
        values.extend(value for _, value in points)

    for i, (name, y) in enumerate(versions):
        marker, color = _line_style(i)
        line(name, y, f"{marker}-", color)
    for name, y in data["peers"]:
        line(name, y, "--", INK if name == REFERENCE else GREY)
    if first > 0:
        axes.set_ylim(0, 1.05 * max(values))
    else:
        _logarithmic(axes)
        _set_log_limits(axes, values)
    _label_at_right(figure, axes, labels)
    return figure


def _draw_by_data(data: dict[str, Any]) -> Figure:
    """One position for each kind of data, with a mark per implementation; the marks of the last version are
    joined."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(11, 5), layout="constrained")
    axes = figure.add_subplot()
    _style(axes)
    axes.set_title(data["title"], loc="left", fontsize=10)
    axes.set_xticks(range(len(data["data"])), data["data"], fontsize=8, rotation=25, ha="right", rotation_mode="anchor")
    axes.set_xlim(-0.5, len(data["data"]) - 0.5)

    labels: list[tuple[str, float, Any]] = []
    values: list[float] = []
    last = next((name for name, _ in reversed(data["versions"]) if name[:2].isdigit()), None)
    lines = [(name, y, "s--", INK if i == 0 else GREY) for i, (name, y) in enumerate(_fastest_first(data["peers"]))]
    for i, (name, y) in enumerate(data["versions"], 1):  # BLUE is the last version's
        marker, color = _line_style(i)
        lines.append((name, y, f"{marker}-", color))
    for name, y, style, faint in lines:
        points = [(x, value) for x, value in enumerate(y) if value is not None]
        if not points:
            continue
        newest = name == last
        color, width, size = (BLUE, 1.8, 6) if newest else (faint, 0.8, 4)
        axes.plot(*zip(*points, strict=True), style, color=color, linewidth=width, markersize=size)
        labels.append((name, points[-1][1], color))
        values.extend(value for _, value in points)
    axes.set_ylim(0, 1.05 * max(values))
    _label_at_right(figure, axes, labels)
    return figure


def _draw_training(data: dict[str, Any]) -> Figure:
    """A line for each run. The first is wide, so that one that covers it can be seen to."""
    from matplotlib.figure import Figure

    figure = Figure(figsize=(9, 4), layout="constrained")
    axes = figure.add_subplot()
    _style(axes, "loss, nats per character")
    axes.set_title(data["title"], loc="left", fontsize=10)
    axes.set_xlabel("step")
    for i, (name, losses) in enumerate(data["runs"]):
        steps = [data["steps_per_loss"] * (block + 1) for block in range(len(losses))]
        axes.plot(steps, losses, color=(AMBER, BLUE, RED)[i % 3], linewidth=3 if i == 0 else 1, label=name)
    axes.legend(frameon=False)
    return figure


def _fastest_first(rows: list[list[Any]]) -> list[list[Any]]:
    """In order of their first figures."""
    return sorted(rows, key=lambda row: -(row[1][0] or 0.0))


def _style(axes: Axes, what: str = "TFLOP/s") -> None:
    axes.set_ylabel(what)
    axes.grid(axis="y", color="#dddddd", linewidth=0.6)
    axes.set_axisbelow(True)
    axes.spines["right"].set_visible(False)


def _logarithmic(axes: Axes) -> None:
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")


def _set_log_limits(axes: Axes, values: list[float]) -> None:
    if values:
        axes.set_ylim(min(values) / 1.8, max(values) * 1.6)


def _label_at_right(figure: Figure, axes: Axes, labels: list[tuple[str, float, Any]]) -> None:
    """Writes each label beside the axes at its value, moved if it would cover another one."""
    figure.draw_without_rendering()  # determines the height of the axes
    low, high = axes.get_ylim()
    to_scale = log if axes.get_yscale() == "log" else float
    line_height = 11 / (axes.get_window_extent().height * 72 / figure.dpi)  # 11 points, as a fraction of the height

    labels = sorted(labels, key=lambda label: label[1])
    height = to_scale(high) - to_scale(low)
    wanted = [(to_scale(value) - to_scale(low)) / height for _, value, _ in labels]
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
    try:
        first = next(iter(devices()), None)
        parser.add_argument(
            "--device", default=first, required=first is None, help="a folder of profiles/ (%(default)s)"
        )
        parser.add_argument("--dtype", default="fp16", choices=["fp16", "bf16"], help="(%(default)s)")
        parser.add_argument("--batch", type=int, default=16, help="shown in the first figure (%(default)s)")
        parser.add_argument("--seq-len", type=int, default=4096, help="shown in the first figure (%(default)s)")
        parser.add_argument("--out", type=Path, help="output folder (docs/figures; required for figures that the "
                                                     "docs do not show)")
        arguments = parser.parse_args()
        device = load_device(arguments.device, arguments.dtype)
    except ProfileError as error:
        print(f"plot.py: {error}", file=sys.stderr)
        return 3
    shape = Shape(arguments.seq_len, arguments.batch)
    if shape not in device.shapes():
        known = ", ".join(f"({s.batch}, {s.seq_len})" for s in device.shapes())
        what = f"plot.py: profiles/{arguments.device} has no TFLOP/s in {arguments.dtype}"
        where = f"at batch {shape.batch}, seq_len {shape.seq_len}; there are (batch, seq_len) {known}"
        print(f"{what} {where}" if known else what, file=sys.stderr)
        return 2
    if arguments.out is None:
        if (arguments.device, arguments.dtype, arguments.batch, arguments.seq_len) != (first, "fp16", 16, 4096):
            parser.error("the docs' figures show another device, dtype or shape: name a folder with --out")
        arguments.out = ROOT / "docs" / "figures"
    for plot in plots(device, shape):
        try:
            check_writable(arguments.out / plot.file)
            print(plot.write(arguments.out))
        except OSError as error:
            where = arguments.out / plot.file
            print(f"plot.py: {where} cannot be written: {error.strerror}; name another folder: --out", file=sys.stderr)
            return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
