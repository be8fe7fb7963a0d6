"""The drawings, made with matplotlib, as SVG. A page of the site contains it inline: it takes the page's colours, light
or dark.

A drawing is a function that is marked with @drawing and takes the facts. All numbers in it come from facts.py or
layouts.py. The site's drawings are made when the page is built; pages.py writes those of the pages on GitHub.
"""

from __future__ import annotations

import html
import io
import re
from collections.abc import Callable, Sequence
from math import log
from pathlib import Path

import layouts
import sources
from facts import BATCH, GPU, SEQ_LEN, Facts, Interval
from matplotlib import rc_context
from matplotlib.artist import Artist
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.lines import Line2D
from matplotlib.patches import FancyBboxPatch, Rectangle
from profile_data import Shape, three_digits

# A colour here stands for a variable of ladder.css, which has one value for light pages and one for dark ones.
INK, MUTED, GRID, PAPER = "#101010", "#606060", "#d8d8d8", "#fefefe"
# Together with INK and MUTED these are eight colours that colour-blind readers can distinguish (a test simulates that).
# A unit has the same colour in every drawing, or the fill at the same index, which is a lighter shade: tensor cores
# BLUE, HBM RED, shared memory GREEN, fp32 and MUFU (softmax) AMBER, L2 and copies VIOLET, issue slots and addresses
# CYAN.
BLUE, RED, GREEN, AMBER, VIOLET, CYAN = "#0452eb", "#74090c", "#1f7a42", "#946f0f", "#a91f93", "#053558"
FILLS = ["#d6e4f5", "#f7d9d4", "#d8efdc", "#fbe8c4", "#e6dcf5", "#d3eef0", "#f3dcea", "#e4e4d4"]
VARIABLES = {
    INK: "ink",
    MUTED: "muted",
    GRID: "grid",
    PAPER: "paper",
    BLUE: "blue",
    RED: "red",
    GREEN: "green",
    AMBER: "amber",
    VIOLET: "violet",
    CYAN: "cyan",
    **{fill: f"fill-{i}" for i, fill in enumerate(FILLS)},
}
HATCH = {"wait": "....", "P V": "////"}  # patterns in addition to the colours
STYLE = {
    "hatch.color": MUTED,
    "hatch.linewidth": 0.5,
    "svg.fonttype": "none",
    "font.size": 9,
    "text.color": INK,
    "axes.edgecolor": MUTED,
    "axes.labelcolor": INK,
    "xtick.color": INK,
    "ytick.color": INK,
    "axes.spines.top": False,
    "axes.spines.right": False,
    "axes.grid": False,
}


PX_PER_PT = 4 / 3  # matplotlib counts in points
MARGIN = 6  # of a drawing in a file of its own


class DrawingError(Exception):
    """A drawing that does not exist, or that uses a colour unknown to the pages."""


DRAWINGS: dict[str, Callable[..., Figure]] = {}


def drawing(function: Callable[..., Figure]) -> Callable[..., Figure]:
    DRAWINGS[function.__name__] = function
    return function


def svg(name: str, facts: Facts, alt: str, links: dict[str, str]) -> str:
    """The drawing as an <svg> element. `links`: the chapters' addresses by number, for drawings that link to them.

    If there is a drawing NAME_narrow it follows, and the page shows it on a phone instead.
    """
    if f"{name}_narrow" not in DRAWINGS:
        return _svg(name, facts, alt, links, "")
    narrow = _svg(f"{name}_narrow", facts, alt, links, ' data-width="narrow"')
    return _svg(name, facts, alt, links, ' data-width="wide"') + narrow


def _svg(name: str, facts: Facts, alt: str, links: dict[str, str], attributes: str) -> str:
    if name not in DRAWINGS:
        raise DrawingError(f"there is no drawing {name}; there are {', '.join(sorted(DRAWINGS))}")
    with rc_context({**STYLE, "svg.hashsalt": name}):
        figure = DRAWINGS[name](facts)
        buffer = io.StringIO()
        figure.savefig(
            buffer, format="svg", transparent=True, bbox_inches="tight", pad_inches=0.04, metadata={"Date": None}
        )
    text = _shortened(buffer.getvalue(), name)
    text = re.sub(r"#[0-9a-f]{6}\b", lambda m: _variable(name, m[0]), text)
    for number, link in links.items():
        address = f'href="{html.escape(link)}"'
        text = re.sub(rf'xlink:href="chapter:{number}:([^"]*)"', lambda m, a=address: f'{a} aria-label="{m[1]}"', text)
    text = re.sub(r'<a xlink:href="chapter:[^"]*"[^>]*>(.*?)</a>', r"\1", text)  # there is no such chapter
    text = _with_classes(text, name)
    has_links = ' href="' in text
    role = "group" if has_links else "img"
    opening = re.match(r"<svg[^>]*>", text)
    assert opening is not None
    box = re.search(r'viewBox="0 0 ([\d.]+) ([\d.]+)"', opening[0])
    assert box is not None
    label = html.escape(alt)
    new = f'<svg class="ladder-drawing"{attributes} role="{role}" aria-label="{label}" viewBox="{box[0][9:-1]}" '
    new += 'xmlns="http://www.w3.org/2000/svg" xmlns:xlink="http://www.w3.org/1999/xlink">'
    return new + text[opening.end() :].strip()


def _shortened(text: str, name: str) -> str:
    """Matplotlib's <svg>, without comments, clipping, ids without references, and spaces."""
    text = text[text.index("<svg") :]
    text = re.sub(r"<metadata>.*?</metadata>", "", text, flags=re.DOTALL)
    text = re.sub(r"<!--.*?-->", "", text, flags=re.DOTALL)
    text = re.sub(r' clip-path="[^"]*"', "", text)
    text = re.sub(r"<clipPath.*?</clipPath>", "", text, flags=re.DOTALL)
    used = set(re.findall(r'(?:xlink:href="#|url\(#)([^")]+)', text))
    # Several drawings on a page must not share their ids.
    text = re.sub(r' id="([^"]+)"', lambda m: f' id="{name}-{m[1]}"' if m[1] in used else "", text)
    text = re.sub(r"url\(#([^)]+)\)", rf"url(#{name}-\1)", text)
    text = re.sub(r'xlink:href="#([^"]+)"', rf'xlink:href="#{name}-\1"', text)
    text = re.sub(r"\s*\n\s*", " ", text).replace("> <", "><")
    # The page sets the font. A rotation by 0 degrees is dropped.
    text = re.sub(r"font-family: [^;\"]*;? ?", "", text)
    text = re.sub(r' transform="rotate\(-?0 [^)]*\)"', "", text)
    text = text.replace("; stroke-linejoin: miter", "")
    places = r' (?:d|x|y|width|height|transform)="[^"]*"'
    text = re.sub(places, lambda m: re.sub(r"(\.\d\d)\d+", r"\1", m[0]), text)
    rectangle = r'd="M ([\d.]+) ([\d.]+) L ([\d.]+) \2 L \3 ([\d.]+) L \1 \4 (?:L \1 \2 )?z ?"'
    text = re.sub(rectangle, r'd="M\1 \2H\3V\4H\1z"', text)
    while (shorter := re.sub(r"<g>(<(path|text)\b[^>]*(?:/>|>[^<]*</\2>))</g>", r"\1", text)) != text:
        text = shorter
    return re.sub(r"<pattern .*?</pattern>", _with_dots, text)


def _with_dots(pattern: re.Match[str]) -> str:
    """Replaces the dots by a pattern of one dot and the four around it: all the dots of a square inch are 180 kB of
    curves."""
    if " C " not in pattern[0]:
        return pattern[0]
    width = 72 / (6 * len(HATCH["wait"]))  # the spacing that matplotlib uses, with every other row offset by half
    dots = f"M0 0h0M{width:g} 0h0M{width / 2:g} {width:g}h0M0 {2 * width:g}h0M{width:g} {2 * width:g}h0"
    style = f"fill: none; stroke: {MUTED}; stroke-width: 1.1; stroke-linecap: round"
    text = pattern[0].replace('width="72" height="72"', f'width="{width:g}" height="{2 * width:g}"')
    return re.sub(r"<path [^>]*/>", f'<path d="{dots}" style="{style}"/>', text)


def _with_classes(text: str, name: str) -> str:
    """With a class for each style, because most cells of a drawing have the same style."""
    classes: dict[str, str] = {}

    def class_of(style: re.Match[str]) -> str:
        return f'class="{classes.setdefault(style[1], f"{name}-{len(classes)}")}"'

    text = re.sub(r'style="([^"]*)"', class_of, text)
    rules = "".join(f".{class_}{{{style}}}" for style, class_ in classes.items())
    return text.replace("</style>", f"{rules}</style>", 1)


def standalone(name: str, facts: Facts) -> str:
    """The same as a separate file, readable on both light and dark pages: in the colours of the light ones."""
    css = (Path(__file__).parent / "static" / "ladder.css").read_text(encoding="utf-8")
    colors = dict(re.findall(r"(--fl-[\w-]+): (#\w+);", css[: css.index("}")]))
    text = re.sub(r"var\((--fl-[\w-]+)\)", lambda m: colors[m[1]], _svg(name, facts, "", {}, ""))
    opening = re.match(r'<svg .*? viewBox="0 0 ([\d.]+) ([\d.]+)"', text)
    assert opening is not None
    width, height = (float(side) + 2 * MARGIN for side in opening.groups())
    new = f'<svg width="{width * PX_PER_PT:.0f}" height="{height * PX_PER_PT:.0f}" font-family="sans-serif"'
    new += f' viewBox="{-MARGIN} {-MARGIN} {width:.2f} {height:.2f}"'
    text = new + text[opening.end() :]
    paper = f'<rect x="{-MARGIN}" y="{-MARGIN}" width="100%" height="100%" fill="{colors["--fl-paper"]}"/>'
    return text.replace("<defs>", f"{paper}<defs>", 1).replace("><", ">\n<") + "\n"


def _variable(name: str, color: str) -> str:
    if color not in VARIABLES:
        raise DrawingError(f"{name} uses {color}, and pages have no such colour")
    return f"var(--fl-{VARIABLES[color]})"


# ---- helpers ----


def canvas(width: float, height: float, x: tuple[float, float], y: tuple[float, float]) -> tuple[Figure, Axes]:
    """A canvas without axes; y grows downwards, as rows do."""
    figure = Figure(figsize=(width, height))
    axes = figure.add_axes((0, 0, 1, 1))
    axes.set_xlim(*x)
    axes.set_ylim(y[1], y[0])
    axes.set_axis_off()
    return figure, axes


def cell(axes: Axes, x: float, y: float, text: str, fill: str, size: float = 6.5, width: float = 1, height: float = 1,
         color: str = INK, edge: str = GRID, weight: str = "normal") -> None:  # fmt: skip
    axes.add_patch(Rectangle((x, y), width, height, facecolor=fill, edgecolor=edge, linewidth=0.6))
    if text:
        axes.text(
            x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=color, weight=weight
        )


def box(axes: Axes, x: float, y: float, width: float, height: float, text: str, fill: str, size: float = 8.5) -> None:
    shape = FancyBboxPatch(
        (x, y), width, height, boxstyle="round,pad=0,rounding_size=0.12", facecolor=fill, edgecolor=MUTED, linewidth=0.8
    )
    axes.add_patch(shape)
    axes.text(x + width / 2, y + height / 2, text, ha="center", va="center", fontsize=size, color=INK, linespacing=1.35)


def note(
    axes: Axes,
    x: float,
    y: float,
    text: str,
    size: float = 8,
    ha: str = "left",
    color: str = INK,
    weight: str = "normal",
) -> None:
    axes.text(x, y, text, ha=ha, va="center", fontsize=size, color=color, weight=weight)


def arrow(axes: Axes, start: tuple[float, float], end: tuple[float, float]) -> None:
    axes.annotate("", end, start, arrowprops={"arrowstyle": "->", "color": MUTED, "linewidth": 1.0})


def labels_at_right(axes: Axes, labels: Sequence[tuple[str, float, str]], x: float, least: float) -> None:
    """Writes texts at their heights (as a fraction of the axes' scale), moved apart by at least `least`.

    A line connects the axes' right edge, at the height that the text refers to, with the text.
    """
    placed: list[float] = []
    for text, y, color in sorted(labels, key=lambda label: label[1]):
        place = max(y, placed[-1] + least) if placed else y
        placed.append(place)
        axes.plot([x - 0.06, x - 0.03, x - 0.005], [y, y, place], color=color, linewidth=0.6, linestyle=(0, (1, 1.5)),
                  transform=axes.transAxes, clip_on=False)  # fmt: skip
        axes.text(x, place, text, transform=axes.transAxes, va="center", fontsize=8, color=color)


# ---- the ladder as a whole ----


@drawing
def ladder(facts: Facts) -> Figure:
    """One bar per version, which links to its chapter if it has one; the peers as lines."""
    return _ladder(facts, 7.4)


@drawing
def ladder_narrow(facts: Facts) -> Figure:
    """The same for a phone, which would cut off the wide one where the second track begins."""
    return _ladder(facts, 3.9)


def _ladder(facts: Facts, width: float) -> Figure:
    shape = Shape(SEQ_LEN, BATCH[SEQ_LEN])
    tflops = {version.source.number: version.tflops.get(shape) for version in facts.device.rungs()}
    versions = facts.numbers()
    figure = Figure(figsize=(width, 0.3 * len(versions) + 1.2))
    axes = figure.add_subplot()
    for i, number in enumerate(versions):
        value = tflops.get(number)
        name = facts.stem(number).replace("_", " ", 1)
        reached = "not recorded" if value is None else f"{three_digits(value)} TFLOP/s"
        link = f"chapter:{number:02}:{name}, {reached}" if facts.has_chapter(number) else None
        label = axes.text(-6, i, name, ha="right", va="center", fontsize=9, color=BLUE)
        label.set_url(link)
        if value is None:
            axes.text(5, i, "not recorded", va="center", fontsize=8, color=MUTED).set_url(link)
            continue
        bar = axes.barh(i, value, color=BLUE, height=0.72)[0]
        bar.set_url(link)
        inside = value > 450 / width
        x, ha, color = (value - 5, "right", PAPER) if inside else (value + 5, "left", INK)
        axes.text(x, i, three_digits(value), ha=ha, va="center", fontsize=8, color=color)
    lines = [(peer.name, peer.tflops[shape], MUTED) for peer in facts.device.peers if shape in peer.tflops]
    lines += [(f"{name} ceiling", value, RED) for name, value in facts.device.ceilings.items()]
    top = max([value for _, value, _ in lines] + [value for value in tflops.values() if value is not None])
    # The lines' names are above, each to the left of its line, and higher than the lines that would cross it.
    placed: list[tuple[float, int]] = []
    for name, value, color in sorted(lines, key=lambda line: line[1]):
        text = f"{name} {three_digits(value)}"
        start = value - 5 * len(text) * top / (390 * width / 7.4)  # its width at 8 points, in TFLOP/s
        level = max((k + 1 for other, k in placed if other > start), default=0)
        placed.append((value, level))
        height = -0.9 - 0.75 * level
        axes.plot([value, value], [height + 0.1, len(versions) - 0.5], color=color, linewidth=0.8,
                  linestyle="-" if color == RED else (0, (4, 3)), zorder=0)  # fmt: skip
        axes.text(value - top / 200, height, text, ha="right", va="center", fontsize=8, color=color)
    axes.set_ylim(len(versions) - 0.4, -1.2 - 0.75 * max((k for _, k in placed), default=0))
    axes.set_xlim(0, 1.02 * top)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    break_line = " " if width > 6 else "\n"
    axes.set_xlabel(
        f"TFLOP/s: {facts.device.name}, {facts.device.dtype}, batch {shape.batch}, 16 heads,{break_line}"
        f"seq_len {shape.seq_len}, head_dim 128"
    )
    return figure


@drawing
def busy(facts: Facts) -> Figure:
    """Which unit is busy, version by version. The second track starts new lines."""
    numbers = [n for n in facts.numbers() if facts.has_busy(n) and facts.has_tflops(n)]
    tracks = [[n for n in numbers if facts.is_hopper(n) == is_hopper] for is_hopper in (False, True)]
    figure = Figure(figsize=(7.4, 3.3))
    axes = figure.add_subplot()
    labels = []
    for name, color, read, marker in (
        ("issue slots", CYAN, facts.issue, "s"),
        ("shared memory", GREEN, facts.shared, "^"),
        ("tensor cores", BLUE, facts.tensor, "o"),
    ):
        for track in tracks:
            axes.plot(track, [read(n) for n in track], marker=marker, color=color, markersize=4, linewidth=1.4)
        labels.append((name, read(numbers[-1]) / 105, color))
    labels_at_right(axes, labels, 1.02, 0.07)
    axes.set_xticks(numbers, [f"{n:02}" for n in numbers])
    axes.set_xlabel("version")
    axes.set_ylabel("busy, % of the cycles")
    axes.set_ylim(0, 105)
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


@drawing
def ceilings(facts: Facts) -> Figure:
    """One roof per level and version: the TFLOP/s if this level never waited, and no other mattered.

    For the first track only: the counter of shared memory counts loads and stores, whereas wgmma fetches its operands
    itself.
    """
    numbers = [n for n in facts.numbers() if facts.has_busy(n) and facts.has_tflops(n) and not facts.is_hopper(n)]
    reached = [facts.tflops(n, 2048) for n in numbers]
    hbm = [facts.flop_per_byte(n, "hbm") * GPU["hbm_tb_per_s"] for n in numbers]
    figure = Figure(figsize=(7.4, 3.8))
    axes = figure.add_subplot()
    axes.plot(numbers, hbm, color=RED, linewidth=1.2, linestyle=(0, (5, 2)))
    roofs = [("HBM", hbm[-1], RED)]
    for name, color, read, marker in (
        ("L2", VIOLET, facts.l2, "v"),
        ("shared memory", GREEN, facts.shared, "^"),
        ("issue slots", CYAN, facts.issue, "s"),
        ("tensor cores", BLUE, facts.tensor, "o"),
    ):
        # A version without mmas has no such roof.
        points = [(n, t * 100 / read(n)) for n, t in zip(numbers, reached, strict=True) if read(n) >= 1]
        axes.plot(
            [n for n, _ in points], [y for _, y in points], color=color, marker=marker, markersize=3.5, linewidth=1.2
        )
        roofs.append((name, points[-1][1], color))
    axes.plot(numbers, reached, "D-", color=INK, markersize=4, linewidth=1.6)
    roofs.append(("reached", reached[-1], INK))
    axes.set_yscale("log")
    axes.yaxis.set_major_formatter(lambda value, _: f"{value:g}")
    low, high = axes.get_ylim()
    labels_at_right(axes, [(name, log(y / low) / log(high / low), color) for name, y, color in roofs], 1.02, 0.065)
    axes.set_ylim(low, high)
    axes.set_xticks(numbers, [f"{n:02}" for n in numbers])
    axes.set_xlabel("version")
    axes.set_ylabel("TFLOP/s, seq_len 2048")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


def roofline_axes(axes: Axes, x: Sequence[float], y: Sequence[float], x_label: str, y_label: str) -> None:
    """Both logarithmic, with these limits."""
    axes.set_xscale("log")
    axes.set_yscale("log")
    for axis in (axes.xaxis, axes.yaxis):
        axis.set_major_formatter(lambda value, _: f"{value:g}")
    axes.set_xlim(*x)
    axes.set_ylim(*y)
    axes.set_xlabel(x_label)
    axes.set_ylabel(y_label)
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)


@drawing
def roofline(facts: Facts) -> Figure:
    """The classical roofline, for HBM, L2 and shared memory, of the first track."""
    clock = facts.max_clock_mhz() * 1e6
    shared_rate = GPU["sms"] * GPU["smem_bytes_per_cycle"] * clock / 1e12  # TB/s
    l2_rate = facts.l2_tb_per_s()
    ceiling = facts.device.ceilings.get("mma.sync")  # None if it was not recorded: then the roofs extend without limit
    fp32 = GPU["sms"] * GPU["ffma_per_sm_per_cycle"] * 2 * clock / 1e12
    figure = Figure(figsize=(7.4, 3.8))
    axes = figure.add_subplot()
    x, y = [0.3, 3000], [3, 1400]
    for name, rate, color, at in (
        ("HBM", GPU["hbm_tb_per_s"], RED, 14),
        ("L2", l2_rate, VIOLET, 4.5),
        ("shared memory", shared_rate, GREEN, 1.0),
    ):
        highest = ceiling or y[1]
        start = max(x[0], y[0] / rate)
        axes.plot([start, highest / rate], [start * rate, highest], color=color, linewidth=1.4)
        axes.text(at, at * rate * 1.25, f"{name}, {rate:.3g} TB/s", color=color, fontsize=8, rotation=33,
                  rotation_mode="anchor", ha="left", va="bottom")  # fmt: skip
    if ceiling:
        axes.plot([ceiling / shared_rate, x[1]], [ceiling, ceiling], color=BLUE, linewidth=1.4)
        text = f"tensor cores by mma.sync, {ceiling:.0f}"
        axes.text(x[1], ceiling * 1.1, text, color=BLUE, fontsize=8, ha="right", va="bottom")
    axes.plot([fp32 / shared_rate, x[1]], [fp32, fp32], color=AMBER, linewidth=1.0, linestyle=(0, (4, 2)))
    axes.text(x[1], fp32 * 1.1, f"FFMA, {fp32:.0f}", color=AMBER, fontsize=8, ha="right", va="bottom")
    for n in (n for n in facts.numbers() if facts.has_busy(n) and facts.has_tflops(n) and not facts.is_hopper(n)):
        reached = facts.tflops(n, 2048)
        for level, color, marker in (("shared", GREEN, "^"), ("l2", VIOLET, "v"), ("hbm", RED, "o")):
            where = facts.flop_per_byte(n, level)
            axes.plot([where], [reached], marker, color=color, markersize=4.5)
            if n in (2, 3, 4, 6, 16):
                axes.annotate(
                    f"{n:02}", (where, reached), (5, -7), textcoords="offset points", fontsize=7.5, color=color
                )
    roofline_axes(axes, x, y, "FLOP per byte that passes that level", "TFLOP/s, seq_len 2048")
    return figure


@drawing
def over_seq_len(facts: Facts) -> Figure:
    """TFLOP/s of some versions and of the peers at all lengths."""
    device = facts.device
    shapes = device.shapes()
    figure = Figure(figsize=(7.4, 4.2))
    axes = figure.add_subplot()
    labels = []
    top = max(tflops for measured in (*device.rungs(), *device.peers) for tflops in measured.tflops.values())
    shown = [v for v in device.rungs() if v.source.number in (5, 6, 7, 10, 11, 16) or v is device.rungs()[-1]]
    for measured, name, color, style in [
        *((version, version.source.label, BLUE, "o-") for version in shown),
        *((peer, peer.name, RED if peer.name == "FlashAttention-2" else MUTED, "--") for peer in device.peers),
    ]:
        points = [(s.seq_len, measured.tflops[s]) for s in shapes if s in measured.tflops]
        axes.plot([x for x, _ in points], [y for _, y in points], style, color=color, markersize=3.5, linewidth=1.2)
        labels.append((name, points[-1][1] / (1.04 * top), color))
    labels_at_right(axes, labels, 1.02, 0.055)
    axes.set_xscale("log", base=2)
    axes.set_xticks([s.seq_len for s in shapes], [str(s.seq_len) for s in shapes])
    axes.minorticks_off()
    axes.set_ylim(0, 1.04 * top)
    usual = BATCH[min(BATCH)]
    others = ", ".join(f"{batch} at {seq_len}" for seq_len, batch in BATCH.items() if batch != usual)
    axes.set_xlabel(f"seq_len (batch {usual}; {others})")
    axes.set_ylabel("TFLOP/s")
    axes.grid(axis="y", color=GRID, linewidth=0.6)
    axes.set_axisbelow(True)
    return figure


@drawing
def clock_and_watts(facts: Facts) -> Figure:
    """The SM clock and the power half-way through each timing at seq_len 4096, and the clock computed from cycles."""
    numbers = [n for n in facts.numbers() if facts.has_tflops(n)]
    figure = Figure(figsize=(7.4, 3.2))
    upper, lower = figure.subplots(2, 1, sharex=True)
    for axes, read, color, marker, unit in (
        (upper, facts.clock_mhz, INK, "o", "SM clock, MHz"),
        (lower, facts.watts, INK, "s", "power, W"),
    ):
        axes.plot(numbers, [read(n) for n in numbers], marker=marker, color=color, markersize=4, linewidth=1.3)
        axes.set_ylabel(unit)
        axes.grid(axis="y", color=GRID, linewidth=0.6)
        axes.set_axisbelow(True)
    counted = [n for n in numbers if facts.has_busy(n)]
    upper.plot(counted, [facts.clock_while_running_mhz(n) for n in counted], "--", color=MUTED, linewidth=1.3)
    low, high = upper.get_ylim()
    last = (facts.clock_mhz(numbers[-1]), facts.clock_while_running_mhz(counted[-1]))
    names = (("reported", INK), ("cycles by time", MUTED))
    labels = [(name, (y - low) / (high - low), color) for (name, color), y in zip(names, last, strict=True)]
    labels_at_right(upper, labels, 1.02, 0.13)
    lower.set_xticks(numbers, [f"{n:02}" for n in numbers])
    lower.set_xlabel("version")
    return figure


# ---- 00: the GPU ----


@drawing
def sm(facts: Facts) -> Figure:
    """One SM and its surroundings."""
    del facts
    figure, axes = canvas(7.4, 4.4, (0, 16), (0, 9.6))
    box(axes, 0.1, 0.2, 12.4, 7.4, "", FILLS[7])
    note(axes, 0.4, 0.62, f"one SM of {GPU['sms']:.0f}", 9, weight="bold")
    for i in range(int(GPU["schedulers_per_sm"])):
        x = 0.4 + i * 3.02
        box(axes, x, 1.0, 2.8, 1.0, "warp scheduler\n1 instruction a cycle", FILLS[5], 7.5)
        box(axes, x, 2.1, 2.8, 0.9, f"registers\n{GPU['registers_per_sm'] / 4 / 1024:.0f} Ki × 32 bits", FILLS[6], 7.5)
        box(axes, x, 3.1, 1.35, 0.9, f"FP32\n{GPU['ffma_per_sm_per_cycle'] / 4:.0f} lanes", FILLS[3], 7.5)
        box(axes, x + 1.45, 3.1, 1.35, 0.9, f"MUFU\n{GPU['ex2_per_sm_per_cycle'] / 4:.0f} lanes", FILLS[3], 7.5)
        box(axes, x, 4.1, 2.8, 0.8, "tensor core", FILLS[0], 7.5)
    memory = f"L1 and shared memory: {GPU['l1_and_smem_kib_per_sm']:.0f} KiB"
    memory += f", of which up to {GPU['smem_kib_per_sm']:.0f} KiB are shared memory"
    box(axes, 0.4, 5.2, 11.86, 1.0, memory, FILLS[2], 8)
    for bank in range(layouts.BANKS):
        cell(axes, 0.4 + bank * 11.86 / 32, 6.3, str(bank), PAPER, 5.5, width=11.86 / 32, height=0.5, edge=MUTED)
    banks = f"{layouts.BANKS} banks of {layouts.WORD} bytes: "
    banks += f"{GPU['smem_bytes_per_cycle']:.0f} bytes, one wavefront, a cycle"
    note(axes, 0.4, 7.15, banks, 8)
    box(axes, 13.1, 1.0, 2.7, 2.6, "131 more\nSMs", FILLS[7], 8.5)
    box(
        axes,
        0.1,
        7.85,
        15.7,
        0.75,
        f"L2 cache, {GPU['l2_mib']:.0f} MiB, in sectors of {layouts.SECTOR} bytes, for all SMs",
        FILLS[4],
        8.5,
    )
    box(
        axes,
        0.1,
        8.75,
        15.7,
        0.75,
        f"HBM (“memory”): {GPU['hbm_gb']:.0f} GB, {GPU['hbm_tb_per_s']} TB/s",
        FILLS[1],
        8.5,
    )
    return figure


@drawing
def memory_levels(facts: Facts) -> Figure:
    """The size of each level and its throughput, summed over all SMs. With one scale, HBM's bar extends beyond the
    drawing."""
    clock = facts.max_clock_mhz() * 1e6
    sms = GPU["sms"]
    rows = [
        ("registers", sms * GPU["registers_per_sm"] * 4, None, MUTED),
        ("shared memory", sms * GPU["smem_kib_per_sm"] * 1024, sms * GPU["smem_bytes_per_cycle"] * clock / 1e12, GREEN),
        ("L2", GPU["l2_mib"] * 2**20, None, VIOLET),
        ("HBM", GPU["hbm_gb"] * 1e9, GPU["hbm_tb_per_s"], RED),
    ]
    figure = Figure(figsize=(7.4, 2.2))
    axes = figure.add_subplot()
    end = 120.0  # MiB
    for i, (name, size, rate, color) in enumerate(rows):
        mib, leaves = size / 2**20, size / 2**20 > end
        axes.barh(i, min(mib, end), color=color, height=0.6)
        text = f"{size / 1e9:.0f} GB" if leaves else f"{mib:.0f} MiB"
        if rate:
            text += f", {rate:.3g} TB/s"
        if leaves:
            axes.plot([end, end + 3, end], [i - 0.3, i, i + 0.3], color=color, linewidth=1.4)
            text += f": at this scale {size / rows[2][1]:,.0f} times as long as the bar of L2"
        axes.text(3 if leaves else mib + 2, i, text, va="center", fontsize=8.5, color=PAPER if leaves else INK)
        axes.text(-2, i, name, ha="right", va="center", fontsize=9)
    axes.set_xlim(0, end + 4)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_yticks([])
    axes.spines["left"].set_visible(False)
    axes.set_xticks([0, 25, 50, 75, 100], ["0", "25 MiB", "50 MiB", "75 MiB", "100 MiB"])
    return figure


# ---- 01 to 03 ----


@drawing
def naive_sectors(facts: Facts) -> Figure:
    """The memory that one load of a warp in 01's first launch accesses: 16 keys, one row each."""
    del facts
    row_bytes = layouts.HEAD_DIM * layouts.ELEMENT
    figure, axes = canvas(7.4, 3.6, (-2.4, 17), (-2.0, 17))
    per_row = row_bytes // layouts.SECTOR
    for key in range(16):
        note(axes, -0.2, key + 0.5, f"key {key}", 7, "right")
        for sector in range(per_row):
            hit = sector == 0
            cell(axes, sector, key, "", FILLS[1] if hit else PAPER, edge=MUTED if hit else GRID)
        axes.add_patch(Rectangle((0, key + 0.15), 1 / 16, 0.7, facecolor=RED, edgecolor=RED, linewidth=0.4))
    note(axes, 0, -1.3, f"K in memory: {row_bytes} bytes a row, {per_row} sectors of {layouts.SECTOR} bytes", 8.5)
    addresses = [key * row_bytes for key in range(16) for _ in range(2)]
    touched = layouts.sectors(addresses, layouts.ELEMENT)
    x = 8.6
    note(axes, x, 2.0, "One load of K[d], d = 0:", 8.5, weight="bold")
    note(axes, x, 3.4, "lanes 0–15 want 2 bytes of 16 keys,", 8.5)
    note(axes, x, 4.6, "lanes 16–31 the same ones again.", 8.5)
    note(axes, x, 7.0, f"{touched} sectors move, {touched * layouts.SECTOR} bytes,", 8.5)
    note(axes, x, 8.2, f"for {16 * layouts.ELEMENT} bytes that are wanted.", 8.5)
    note(axes, x, 10.6, "The next 15 values of d lie in the", 8.5)
    note(axes, x, 11.8, "same sectors: L1 keeps them, and is", 8.5)
    note(axes, x, 13.0, "asked for all 16 again each time.", 8.5)
    return figure


@drawing
def online_softmax(facts: Facts) -> Figure:
    """Four scores, one at a time: the running state, and the effect of a new maximum on it."""
    del facts
    from worked import SCORES, steps

    figure, axes = canvas(7.4, 2.9, (0, 20), (-0.4, 7.2))
    columns = [("score", 3.2), ("m, the maximum", 6.2), ("rescale by", 10.0), ("p", 13.2), ("l, the sum", 16.4)]
    for text, x in columns:
        note(axes, x, 0.2, text, 8.5, "center", weight="bold")
    for i, step in enumerate(steps()):
        y = 1.2 + i * 1.5
        note(axes, 0.1, y + 0.5, f"key {i}", 8.5)
        grew = step.r != 1.0
        values = [f"{SCORES[0][i]:g}", f"{step.m:g}", f"{step.r:.4f}", f"{step.P[0]:.4f}", f"{step.l:.4f}"]
        for (_, x), value, mark in zip(columns, values, (False, grew, grew, False, False), strict=True):
            cell(axes, x - 1.3, y, value, FILLS[3] if mark else FILLS[0], 8.5, width=2.6, edge=MUTED)
    return figure


@drawing
def warp_row(facts: Facts) -> Figure:
    """02: the distribution of a row of K over the lanes, and the butterfly of warp_sum()."""
    del facts
    figure, axes = canvas(7.4, 2.9, (-3.2, 33), (-1.2, 13))
    note(axes, -0.4, 0.5, "K row", 8, "right")
    for lane in range(32):
        cell(axes, lane, 0, str(lane), FILLS[lane % 8 // 4], 6)
    note(axes, 0, -0.7, "256 bytes, 8 of each lane: its four elements of head_dim", 8)
    y = 2.2
    note(axes, -0.4, y + 0.5, "lane", 8, "right")
    for lane in range(32):
        cell(axes, lane, y, str(lane), PAPER, 6, edge=MUTED)
    for step, mask in enumerate((16, 8, 4, 2, 1)):
        y = 4.0 + step * 1.75
        note(axes, -0.4, y + 0.5, f"xor {mask}", 8, "right")
        for lane in range(32):
            fill = FILLS[0] if lane & mask else FILLS[3]
            cell(axes, lane, y, str(lane ^ mask), fill, 6)
    note(
        axes,
        0,
        12.7,
        "the number in a cell is the lane whose sum this lane adds; after five steps all 32 hold the total",
        8,
    )
    return figure


@drawing
def tile_walk(facts: Facts) -> Figure:
    """The tiles that a CTA of 03 processes, one after another."""
    q, kv = facts.block_q(3), facts.block_kv(3)
    figure, axes = canvas(7.4, 3.6, (-5.2, 30), (-5.4, 12.6))
    for row in range(4):
        cell(axes, -4.6, row * 3, "", FILLS[0] if row == 1 else PAPER, width=3.2, height=3, edge=MUTED)
    note(axes, -4.6, -0.7, "Q", 9, weight="bold")
    note(axes, -3.0, 4.5, f"{q} queries", 7.5, "center")
    for tile in range(6):
        x = tile * 2.6
        cell(axes, x, -4.6, "", FILLS[2], width=2.6, height=3.2, edge=MUTED)
        note(axes, x + 1.3, -3.0, f"K {tile}", 8, "center")
        for row in range(4):
            text = f"S {tile}" if row == 1 else ""
            cell(axes, x, row * 3, text, FILLS[3] if row == 1 else PAPER, 8, width=2.6, height=3, edge=MUTED)
    note(axes, 0, -5.1, f"Kᵀ, tiles of {kv} keys", 8.5)
    arrow(axes, (0.4, 5.5), (15.2, 5.5))
    for tile in range(6):
        cell(axes, 18.4, tile * 2, f"V {tile}", FILLS[4], 8, width=3.2, height=2, edge=MUTED)
    note(axes, 18.4, -0.7, "V", 9, weight="bold")
    for row in range(4):
        fill = FILLS[1] if row == 1 else PAPER
        cell(axes, 24.6, row * 3, "O += P V" if row == 1 else "", fill, 8, width=4.4, height=3, edge=MUTED)
    note(axes, 24.6, -0.7, "O", 9, weight="bold")
    return figure


@drawing
def tiles_03(facts: Facts) -> Figure:
    """03: the tiles of a CTA, and the elements that thread (5, 3) owns."""
    q, kv = facts.block_q(3), facts.block_kv(3)
    figure, axes = canvas(7.4, 4.2, (-9, 68), (-10, 76))
    box(axes, 0, 0, kv, q, "", PAPER)
    note(axes, kv / 2, -2, f"S: {q} queries × {kv} keys", 8.5, "center")
    row, col = 5, 3
    for r in range(q // 8):
        axes.plot([0, kv], [r * 8, r * 8], color=GRID, linewidth=0.5)
    for c in range(16):
        axes.plot([c * 2, c * 2], [0, q], color=GRID, linewidth=0.5)
    cell(axes, col * 2, row * 8, "", FILLS[1], width=2, height=8, edge=RED)
    note(axes, -1, row * 8 + 4, "8", 8.5, "right")
    note(axes, col * 2 + 1, row * 8 + 10, "2", 8.5, "center")
    note(axes, 0, q + 3.5, f"thread ({row}, {col}) owns 8 × 2 of S:", 8)
    note(axes, 0, q + 7.5, "8 + 2 values feed 16 FFMAs", 8)
    x = kv + 6
    width = 28
    box(axes, x, 0, width, q, "", PAPER)
    note(axes, x + width / 2, -2, f"O: {q} queries × 128 of head_dim", 8.5, "center")
    scale = width / 128
    for r in range(q // 8):
        axes.plot([x, x + width], [r * 8, r * 8], color=GRID, linewidth=0.5)
    for half in (0, 64):
        cell(axes, x + (half + col * 4) * scale, row * 8, "", FILLS[0], width=4 * scale, height=8, edge=BLUE)
    note(axes, x, q + 3.5, "and 8 × 8 of O, in two runs of four columns:", 8)
    note(axes, x, q + 7.5, "8 + 8 values feed 64 FFMAs", 8)
    note(axes, -8.6, -7.5, "128 threads as 8 rows × 16 columns", 8.5, weight="bold")
    return figure


# ---- 04 to 07: fragments and banks ----


def _fragment(
    axes: Axes, x0: float, y0: float, rows: int, cols: int, holder: dict[tuple[int, int], tuple[int, int]]
) -> None:
    for row in range(rows):
        for col in range(cols):
            lane, register = holder[row, col]
            cell(axes, x0 + col, y0 + row, str(lane), FILLS[register], 6)
    for col in range(cols):
        note(axes, x0 + col + 0.5, y0 - 0.4, str(col), 6, "center", MUTED)
    for row in range(rows):
        note(axes, x0 - 0.25, y0 + row + 0.5, str(row), 6, "right", MUTED)


def holders(which: str) -> dict[tuple[int, int], tuple[int, int]]:
    """(row, col) → (lane, register) of a fragment A, B or D."""
    found: dict[tuple[int, int], tuple[int, int]] = {}
    for lane in range(32):
        for register in range({"A": 4, "B": 2, "D": 4}[which]):
            if which == "D":
                found[layouts.fragment_D(lane, register)] = (lane, register)
            else:
                fragment = layouts.fragment_A if which == "A" else layouts.fragment_B
                for place in fragment(lane, register):
                    found[place] = (lane, register)
    return found


@drawing
def mma_fragments(facts: Facts) -> Figure:
    """A, B and D of mma.m16n8k16: each cell shows the lane, and its colour the register."""
    del facts
    figure, axes = canvas(7.4, 3.9, (-1.5, 38.5), (-2.6, 18.6))
    for name, which, x, rows, cols in (
        ("A [16 m][16 k]", "A", 0, 16, 16),
        ("B [16 k][8 n]", "B", 18.6, 16, 8),
        ("D [16 m][8 n]", "D", 29.4, 16, 8),
    ):
        note(axes, x + cols / 2, -1.9, name, 9, "center", weight="bold")
        _fragment(axes, x, 0, rows, cols, holders(which))
    for register in range(4):
        x = register * 4.4
        cell(axes, x, 17.2, "", FILLS[register], edge=MUTED)
        note(axes, x + 1.3, 17.7, f"register {register}", 8)
    note(axes, 18.6, 17.7, "the number in a cell is the lane that holds it", 8)
    return figure


@drawing
def s_to_p(facts: Facts) -> Figure:
    """Two accumulators of S form one operand A of P V."""
    del facts
    figure, axes = canvas(7.4, 3.9, (-1.5, 38.5), (-2.6, 18.6))
    for mma_n, x in ((0, 0), (1, 9.6)):
        note(axes, x + 4, -1.9, f"S, accumulator {mma_n}", 8.5, "center", weight="bold")
        _fragment(axes, x, 0, 16, 8, holders("D"))
    note(axes, 29.4, -1.9, "P, as operand A", 8.5, "center", weight="bold")
    arrow(axes, (18.2, 8), (20.6, 8))
    _fragment(axes, 21.4, 0, 16, 16, holders("A"))
    for row, key in ((5, 9),):
        lane = holders("A")[row, key][0]
        axes.add_patch(Rectangle((21.4 + key, row), 1, 1, facecolor="none", edgecolor=RED, linewidth=1.8))
        axes.add_patch(Rectangle((9.6 + key - 8, row), 1, 1, facecolor="none", edgecolor=RED, linewidth=1.8))
        note(
            axes,
            0,
            17.7,
            f"P({row}, {key}) is S({row}, {key}) of accumulator 1, column {key - 8}: both in lane {lane}."
            " No lane needs another's.",
            8,
        )
    return figure


def _bank_map(axes: Axes, y0: float, title: str, addresses: list[int], size: int) -> None:
    """Which lanes access which bank: one column per bank, one row per distinct word."""
    note(axes, 0, y0 - 1.0, title, 8.5, weight="bold")
    words: dict[int, dict[int, list[int]]] = {}
    for lane, address in enumerate(addresses):
        word = address // layouts.WORD
        words.setdefault(word % layouts.BANKS, {}).setdefault(word, []).append(lane)
    depth = max(len(found) for found in words.values())
    height = max(len(lanes) for found in words.values() for lanes in found.values())  # two lanes are drawn in two lines
    for bank in range(layouts.BANKS):
        note(axes, bank + 0.5, y0 - 0.3, str(bank), 5.5, "center", MUTED)
        found = words.get(bank, {})
        for i in range(depth):
            lanes = list(found.values())[i] if i < len(found) else []
            fill = FILLS[lanes[0] // 4 % 8] if lanes else PAPER
            cell(axes, bank, y0 + i * height, "\n".join(str(lane) for lane in lanes), fill, 6, height=height)
    count = layouts.wavefronts(addresses, size)
    note(
        axes,
        32.6,
        y0 + depth * height / 2,
        f"{count} wavefront{'s' if count > 1 else ''}",
        8.5,
        color=RED if count > 1 else GREEN,
    )


@drawing
def banks_unswizzled(facts: Facts) -> Figure:
    """One 32-bit load of K and one 16-bit load of V in 04 and 05."""
    del facts
    figure, axes = canvas(7.4, 4.0, (-0.2, 38.6), (-1.6, 19.2))
    _bank_map(axes, 0, "a 32-bit load of K: lanes by bank", layouts.K_load(False), 4)
    _bank_map(axes, 10.6, "a 16-bit load of V: two lanes may share a word", layouts.V_load(False), 2)
    return figure


@drawing
def banks_swizzled(facts: Facts) -> Figure:
    """The same loads in 06."""
    del facts
    figure, axes = canvas(7.4, 1.7, (-0.2, 38.6), (-1.6, 6.6))
    _bank_map(axes, 0, "a 32-bit load of K: lanes by bank", layouts.K_load(True), 4)
    _bank_map(axes, 4.0, "a 16-bit load of V: two lanes may share a word", layouts.V_load(True), 2)
    return figure


@drawing
def swizzle_rows(facts: Facts) -> Figure:
    """The places of the chunks of eight rows, before and after the XOR."""
    del facts
    figure, axes = canvas(7.4, 2.9, (-2.4, 38), (-2.2, 9.4))
    for x, swizzled, title in ((0, False, "04 and 05"), (20, True, "06 and later")):
        note(axes, x, -1.6, title, 8.5, weight="bold")
        for row in range(8):
            note(axes, x - 0.3, row + 0.5, f"row {row}", 7, "right", MUTED)
            for col in range(0, 64, 8):
                place = layouts.smem_offset(row, col, swizzled) % 256 // 16
                cell(axes, x + place * 2, row, str(col // 8), FILLS[col // 8], 7, width=2)
        for chunk in range(8):
            note(axes, x + chunk * 2 + 1, -0.45, f"{chunk * 4}–{chunk * 4 + 3}", 5.8, "center", MUTED)
    note(axes, 0, 8.9, "columns: the four banks that hold a chunk; numbers: which chunk of the row it is", 8)
    return figure


@drawing
def ldmatrix_lanes(facts: Facts) -> Figure:
    """The row to which each lane's address refers, for K and for V."""
    del facts
    figure, axes = canvas(7.4, 3.9, (-2, 39), (-2.6, 18.8))
    for x, which, title in ((0, "K", "K: lane → (key, head_dim)"), (21, "V", "V: lane → (key, head_dim)")):
        note(axes, x, -1.9, title, 8.5, weight="bold")
        for lane, (row, col) in enumerate(layouts.ldmatrix_rows(which)):
            cell(axes, x + col, row, f"lane {lane}", FILLS[lane // 8], 7, width=8, edge=MUTED)
        for row in range(16):
            note(axes, x - 0.3, row + 0.5, str(row), 6, "right", MUTED)
        for col in (0, 8):
            note(axes, x + col + 4, -0.6, f"{col}–{col + 7}", 7, "center", MUTED)
    for matrix in range(4):
        cell(axes, matrix * 5.5, 17.2, "", FILLS[matrix], edge=MUTED)
        note(axes, matrix * 5.5 + 1.3, 17.7, f"matrix {matrix}", 8)
    return figure


@drawing
def address_bits(facts: Facts) -> Figure:
    """The bits of an offset in a swizzled tile, and the part of (row, col) that each comes from."""
    del facts
    figure, axes = canvas(7.4, 1.9, (-0.2, 16.6), (-1.3, 4.4))
    parts = [("row", 8, 14, 0), ("half", 7, 8, 4), ("chunk ^ row % 8", 4, 7, 1), ("byte in the chunk", 0, 4, 2)]
    for bit in range(14):
        note(axes, 13 - bit + 0.5, -0.4, str(bit), 7, "center", MUTED)
    for text, low, high, fill in parts:
        cell(axes, 14 - high, 0, text, FILLS[fill], 8, width=high - low, height=1.1, edge=MUTED)
    note(axes, 14.2, 0.55, "bits of the byte offset", 7.5)
    note(
        axes, 0, 2.2, "mma_n, + 8 rows: only bits 11 and up change. It is added, and becomes a constant of the load.", 8
    )
    note(
        axes,
        0,
        3.2,
        "mma_k, + 16 columns: bits 5 and 6 change. XOR with a constant; every fourth step, bit 7 is added.",
        8,
    )
    return figure


def _sass_stack(facts: Facts, numbers: list[int]) -> Figure:
    """The composition of hot loops, per 128 mmas: from 14 on a loop has half as many."""
    addresses = ("IMAD", "LEA", "LOP3", "IADD3", "VIADD", "SHF", "MOV", "UIADD3", "ULEA", "ULOP3", "USHF", "UIMAD")
    groups = [
        ("tensor cores: HMMA", ("HMMA",), BLUE),
        ("shared memory: LDS, LDSM, STS", ("LDS", "LDSM", "STS"), GREEN),
        ("copies: LDG, LDGSTS", ("LDG", "LDGSTS"), VIOLET),
        ("fp32: FMUL, FADD, FFMA, FMNMX, MUFU", ("FMUL", "FADD", "FFMA", "FMNMX", "MUFU"), AMBER),
        ("addresses: IMAD, LEA, LOP3, IADD3 …", addresses, CYAN),
        ("rounding and packing: F2FP, PRMT", ("F2FP", "PRMT"), FILLS[7]),
        ("others", (), MUTED),
    ]
    figure = Figure(figsize=(7.4, 0.36 * len(numbers) + 0.5))
    axes = figure.add_subplot()
    for i, n in enumerate(numbers):
        loop = facts.hot_loop(n)
        scale, left = 128 / loop["HMMA"], 0.0
        for name, opcodes, color in groups:
            count = scale * sum(loop.get(o, 0) for o in opcodes) if opcodes else scale * sum(loop.values()) - left
            axes.barh(
                i,
                count,
                left=left,
                color=color,
                height=0.7,
                edgecolor=PAPER,
                linewidth=0.8,
                label=name if i == 0 else None,
            )
            left += count
        axes.text(left + 8, i, f"{left:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(numbers)), [facts.stem(n).replace("_", " ", 1) for n in numbers])
    axes.set_ylim(len(numbers) - 0.4, -0.6)
    axes.set_xlabel("instructions in the hot loop for 128 mmas, sm_90")
    figure.legend(loc="upper left", bbox_to_anchor=(0.0, -0.01), ncols=3, frameon=False, fontsize=8)
    return figure


@drawing
def sass_stack(facts: Facts) -> Figure:
    """The hot loops of 04 to 11."""
    return _sass_stack(facts, [n for n in range(4, 12) if n in facts.numbers() and facts.has_tflops(n)])


# ---- 12 to 16 ----


@drawing
def p_range(facts: Facts) -> Figure:
    """The maximum rounding error in 16 bits, relative to the rounded value: half a unit in the last place."""
    del facts
    figure = Figure(figsize=(7.4, 2.9))
    axes = figure.add_subplot()
    # Bits of the significand, and the binary exponents of the smallest normal number and of the first that overflows.
    for name, bits, smallest, beyond, color in (("fp16", 11, -14, 16, BLUE), ("bf16", 8, -126, 128, VIOLET)):
        xs = [x / 4 for x in range(-24 * 4, min(beyond, 20) * 4 + 1)]
        axes.plot(xs, [-bits + max(smallest - x, 0) for x in xs], color=color, linewidth=1.6)
        note(axes, -9, -bits + 0.55, f"{name}: 2^{-bits}", 8.5, color=color)
    for x, text in ((0, "1"), (12, "4096")):
        axes.plot([x, x], [-12, -0.5], color=MUTED, linewidth=0.8, linestyle=(0, (4, 3)))
        note(axes, x + 0.3, -1.1, text, 8.5)
    axes.plot([16], [-11], "o", color=RED, markersize=4.5)
    note(axes, 15.8, -10.3, "65,504", 8, "right", RED)
    axes.set_xticks([-24, -14, 0, 12, 16], ["2^-24", "2^-14", "1", "2^12", "2^16"])
    axes.set_yticks([-11, -8, -4, 0], ["2^-11", "2^-8", "2^-4", "1"])
    axes.set_ylim(-12.2, 0)
    axes.set_xlim(-24.5, 20.5)
    axes.set_xlabel("P")
    axes.set_ylabel("relative error, at most")
    axes.grid(color=GRID, linewidth=0.5)
    axes.set_axisbelow(True)
    return figure


@drawing
def ring_phases(facts: Facts) -> Figure:
    """13: which tile is in which buffer, and the phases of the four mbarriers, while tiles 0 to 6 are read."""
    del facts
    stages, tiles = 2, 7
    figure, axes = canvas(7.4, 3.6, (-2.0, tiles + 0.6), (-1.1, 8.6))
    for tile in range(tiles):
        note(axes, tile + 0.5, -0.6, f"reads tile {tile}", 7, "center")
        axes.plot([tile, tile], [-0.2, 7.4], color=GRID, linewidth=0.6)
    for stage in range(stages):
        y = stage * 3.8
        for row, name in enumerate((f"buffer {stage}", f"full[{stage}]", f"empty[{stage}]")):
            note(axes, -0.8, y + row + 0.5, name, 8, "right", weight="bold" if row == 0 else "normal")
        copied = read = -0.7
        for tile in range(stage, tiles, stages):
            phase = tile // stages
            # The copy is issued in the middle of the previous tile, and here it takes the rest of that tile.
            cell(axes, tile - 0.5, y, f"copy {tile}", FILLS[7], 7, width=0.5, height=0.85, edge=MUTED)
            cell(axes, tile, y, f"tile {tile}", FILLS[2], 8, width=1, height=0.85, edge=MUTED)
            for row, start, end in ((1, copied, float(tile)), (2, read, tile + 1.0)):
                fill = FILLS[0] if phase % 2 == 0 else FILLS[3]
                cell(axes, start, y + row, f"{phase}" if end - start < 1 else f"phase {phase}", fill, 7.5,
                     width=end - start, height=0.85, edge=MUTED)  # fmt: skip
            copied, read = float(tile), tile + 1.0
    for parity, fill in ((0, FILLS[0]), (1, FILLS[3])):
        cell(axes, 0.2 + parity * 1.8, 7.7, "", fill, width=0.4, height=0.6, edge=MUTED)
        note(axes, 0.7 + parity * 1.8, 8.0, f"parity {parity}", 8)
    return figure


@drawing
def q_transpose(facts: Facts) -> Figure:
    """14: 16 bytes of each lane of a group, before and after the exchanges, and the registers of A that they become."""
    del facts
    chunks = [layouts.Q_chunk(lane, 0) for lane in range(32)]
    origin = [[(lane, register) for register in range(4)] for lane in range(32)]
    after = layouts.transpose_in_group(origin)
    figure, axes = canvas(7.4, 2.9, (-3.4, 24.4), (-2.3, 6.0))
    for x, title, grid in ((0, "as loaded", origin), (13.4, "after the exchanges", after)):
        note(axes, x + 4.8, -1.7, title, 8.5, "center", weight="bold")
        for register in range(4):
            note(axes, x + register * 2.4 + 1.2, -0.5, f"register {register}", 7, "center", MUTED)
        for lane in range(4):
            note(axes, x - 0.3, lane + 0.5, f"lane {lane}", 7.5, "right")
            for register, (from_lane, from_register) in enumerate(grid[lane]):
                col = chunks[from_lane][from_register][1]
                cell(axes, x + register * 2.4, lane, f"{col}, {col + 1}", FILLS[from_lane], 8, width=2.4, edge=MUTED)
    arrow(axes, (10.0, 2), (11.2, 2))
    for register in range(4):
        text = f"mma_k {register // 2}\nA[{register % 2 * 2}]"
        note(axes, 13.4 + register * 2.4 + 1.2, 4.9, text, 7.5, "center")
    note(axes, 0, 4.7, "the numbers: columns of Q in row 0", 8)
    return figure


@drawing
def sass_stack_late(facts: Facts) -> Figure:
    """The hot loops of 10 to 16, per 128 mmas."""
    return _sass_stack(facts, [n for n in range(10, 17) if n in facts.numbers() and facts.has_tflops(n)])


# ---- what warps do, one instruction after another ----

PHASES = {  # in the order of drawing and of the legend: their names there, and their colours
    "wait": ("waits for other warps", PAPER),
    "copy": ("copies, loads from global memory", VIOLET),
    "load": ("loads fragments", FILLS[2]),
    "S": ("mma of S = Q Kᵀ", BLUE),
    "arithmetic": ("softmax, exchanges of lanes", FILLS[3]),
    "O": ("mma of O += P V", FILLS[0]),
    "store": ("stores", MUTED),
    "other": ("addresses at the start", GRID),
}
PATTERNS = {"wait": HATCH["wait"], "O": HATCH["P V"]}
SLIVERS = 560  # the number of slivers across a drawing; each shows what a warp does in most of its steps


def _phase(interval: Interval, product: range) -> str:
    """The name in PHASES. `product` is the part of the file that computes O += P V."""
    if interval.phase.startswith("wait"):
        return "wait"
    if interval.phase != "mma":
        return interval.phase
    return "O" if interval.line is not None and interval.line - 1 in product else "S"


def slivers(intervals: Sequence[Interval], product: range, width: float) -> list[tuple[str, float, float]]:
    """One warp's intervals as runs (phase, begin, end) of slivers of that width, each named for its longest part."""
    runs: list[tuple[str, float, float]] = []
    share: dict[str, float] = {}
    piece = 0

    def finish() -> None:
        most = max(share, key=lambda phase: share[phase])
        begin, end = piece * width, (piece + 1) * width
        if runs and runs[-1][0] == most:
            runs[-1] = (most, runs[-1][1], end)
        else:
            runs.append((most, begin, end))
        share.clear()

    for interval in intervals:
        at, phase = float(interval.begin), _phase(interval, product)
        while at < interval.end:
            end = min(float(interval.end), (piece + 1) * width)
            share[phase] = share.get(phase, 0.0) + end - at
            at = end
            if at >= (piece + 1) * width:
                finish()
                piece += 1
    if share:
        finish()
    return runs


def _timeline(facts: Facts, number: int) -> Figure:
    trace, product = facts.trace(number), sources.part(facts.file(number), "O += P V")
    warps = sorted({interval.warp for interval in trace})
    last = max(interval.end for interval in trace)
    figure = Figure(figsize=(7.4, 0.34 * len(warps) + 0.75))
    axes = figure.add_subplot()
    used = set()
    meets = Line2D([], [], color=INK, linewidth=1.4, label="wait at a barrier, an mbarrier")
    for warp in warps:
        by_phase: dict[str, list[tuple[float, float]]] = {}
        mine = [interval for interval in trace if interval.warp == warp]
        for phase, begin, end in slivers(mine, product, last / SLIVERS):
            by_phase.setdefault(phase, []).append((begin, min(end, last) - begin))
        for phase, spans in by_phase.items():
            used.add(phase)
            edge = {"edgecolor": MUTED, "linewidth": 0.6} if phase in PATTERNS else {"linewidth": 0}
            hatch = PATTERNS.get(phase)
            axes.broken_barh(spans, (warp - 0.38, 0.76), facecolor=PHASES[phase][1], hatch=hatch, **edge)
        asked = [interval.begin for interval in mine if interval.phase in ("wait: barrier", "wait: mbarrier")]
        axes.vlines(asked, warp - 0.46, warp + 0.46, color=INK, linewidth=1.4)
    axes.set_xlim(0, last)
    axes.set_ylim(max(warps) + 0.6, min(warps) - 0.6)
    axes.set_yticks(warps, [f"warp {warp}" for warp in warps])
    axes.set_xlabel("warp instructions issued, and not time")
    handles: list[Artist] = [
        Rectangle((0, 0), 1, 1, facecolor=color, edgecolor=MUTED, linewidth=0.6, label=name, hatch=PATTERNS.get(phase))
        for phase, (name, color) in PHASES.items()
        if phase in used
    ]
    handles.append(meets)
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=3, frameon=False, fontsize=7.5)
    return figure


@drawing
def timeline_05(facts: Facts) -> Figure:
    return _timeline(facts, 5)


@drawing
def timeline_08(facts: Facts) -> Figure:
    return _timeline(facts, 8)


@drawing
def timeline_15(facts: Facts) -> Figure:
    return _timeline(facts, 15)


@drawing
def timeline_16(facts: Facts) -> Figure:
    return _timeline(facts, 16)
