"""Drawings of the decoding track."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from itertools import pairwise

from drawings import AMBER, BLUE, FILLS, GREEN, GRID, INK, RED, drawing, roofline_axes
from facts import GPU, Facts, NotRecordedError
from matplotlib.figure import Figure

HEADS, BATCH, KEYS = 32, 16, 32768  # of Q, and the shape at which the versions are shown


@drawing
def decoding_roofline(facts: Facts) -> Figure:
    """The roofline of memory, with versions for one query, and with 16 for as many queries as keys."""
    bandwidth, ceiling = GPU["hbm_tb_per_s"], facts.mma_ceiling()
    figure = Figure(figsize=(7.4, 3.4))
    axes = figure.add_subplot()
    x, y = (0.4, 6000), (0.3, 1400)
    ridge = ceiling / bandwidth
    axes.plot([x[0], ridge, x[1]], [x[0] * bandwidth, ceiling, ceiling], color=RED, linewidth=1.4)
    axes.text(14, 14 * bandwidth * 1.25, f"memory, {bandwidth:.1f} TB/s", color=RED, fontsize=8, rotation=29,
              rotation_mode="anchor", ha="left", va="bottom")  # fmt: skip
    flat = f"tensor cores by mma.sync, {ceiling:.0f}"
    axes.text(x[1], ceiling * 1.1, flat, color=RED, fontsize=8, ha="right", va="bottom")
    axes.plot([ridge, ridge], [y[0], ceiling], color=GRID, linewidth=0.9, linestyle=(0, (4, 2)))
    axes.text(ridge * 0.93, y[0] * 1.25, f"ridge point, {ridge:.0f}", fontsize=8, ha="right", color=INK)
    for kernel, color in (("D01", AMBER), ("D02", GREEN), ("D04", BLUE)):
        for kv_heads in (HEADS, 8):
            group = HEADS // kv_heads  # FLOP per byte: of two bytes each, a key has four operations for each head
            try:
                reached = facts.kv_gb_per_s(kernel, BATCH, KEYS, kv_heads) / 1e3 * group
            except NotRecordedError:
                continue
            axes.plot([group], [reached], "o", color=color, markersize=4.5)
            # With as many heads of K and V, D02 is as fast as D04.
            place = (-24, -2) if kernel == "D02" and group == 1 else (6, -4)
            axes.annotate(kernel, (group, reached), place, textcoords="offset points", fontsize=7.5, color=color)
    if facts.has_busy(16) and facts.has_tflops(16):
        where = (facts.flop_per_byte(16, "hbm"), facts.tflops(16, 2048))
        axes.plot(*([one] for one in where), "D", color=INK, markersize=4.5)
        axes.annotate("16", where, (6, -4), textcoords="offset points", fontsize=7.5, color=INK)
    roofline_axes(axes, x, y, "FLOP per byte of memory", "TFLOP/s")
    return figure


PLACES = 6  # CTAs that run at a time in decoding_shares
SLICES = (20, 2, 3, 1, 4, 2, 3, 1)  # of eight sequences


@drawing
def decoding_shares(facts: Facts) -> Figure:
    """What the CTAs of D06, D07 and D08 read of one long sequence and seven short ones."""
    figure = Figure(figsize=(7.4, 3.6))
    axes = figure.subplots(1, 3, sharex=True, sharey=True)
    colours = [FILLS[0] if slices == max(SLICES) else FILLS[2 + i % 2] for i, slices in enumerate(SLICES)]
    versions = ("D06: a CTA per row", "D07: room for 20 slices each", "D08: the slices that exist")
    for panel, title, ctas in zip(axes, versions, (_rows_in_turn(), _shares([20] * 8), _shares(SLICES)), strict=True):
        for cta, parts in enumerate(ctas):
            begin = 0
            for sequence, slices in parts:
                panel.barh(cta, slices, left=begin, height=0.7, color=colours[sequence], edgecolor=INK, linewidth=0.6)
                panel.text(begin + slices / 2, cta, str(sequence), fontsize=7, ha="center", va="center", color=INK)
                begin += slices
        panel.set_title(title, fontsize=8.5)
        panel.set_yticks(range(PLACES))
        panel.set_xlabel("slices of 64 keys")
        panel.grid(axis="x", color=GRID, linewidth=0.5)
        panel.set_axisbelow(True)
    axes[0].invert_yaxis()
    axes[0].set_ylabel("place on the GPU")
    figure.tight_layout()
    return figure


def _rows_in_turn() -> list[list[tuple[int, int]]]:
    """The sequences and their slices that each place gets, if the next row begins wherever a place is free first."""
    places: list[list[tuple[int, int]]] = [[] for _ in range(PLACES)]
    for sequence, slices in enumerate(SLICES):
        min(places, key=lambda place: sum(n for _, n in place)).append((sequence, slices))
    return places


def _shares(segments: Sequence[int]) -> list[list[tuple[int, int]]]:
    """The same for equal shares of a line whose segments are so long: first_slice() of D07."""
    line = [(sequence, i) for sequence, length in enumerate(segments) for i in range(length)]
    cuts = [cta * len(line) // PLACES for cta in range(PLACES + 1)]
    shares = []
    for begin, end in pairwise(cuts):
        read = Counter(sequence for sequence, i in line[begin:end] if i < SLICES[sequence])
        shares.append(sorted(read.items()))
    return shares
