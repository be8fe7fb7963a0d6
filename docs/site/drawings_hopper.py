"""The drawings of 17 to 27: how wgmma and TMA access shared memory, and which role waits for which. See drawings.py."""

from __future__ import annotations

import re
from collections.abc import Sequence
from math import exp, floor, gcd, log, log2
from random import Random

import layouts
import sources
from drawings import (
    AMBER,
    BLUE,
    CYAN,
    FILLS,
    GREEN,
    GRID,
    HATCH,
    INK,
    MUTED,
    PAPER,
    RED,
    VIOLET,
    arrow,
    box,
    canvas,
    cell,
    drawing,
    note,
)
from facts import Facts
from matplotlib.axes import Axes
from matplotlib.figure import Figure
from matplotlib.patches import Rectangle
from roles import RoleTrace
from timeline import Span

FIRST = 17  # the first version of the Hopper track


def hopper(facts: Facts) -> list[int]:
    return [n for n in facts.numbers() if n >= FIRST]


# ---- the layout of tiles ----


@drawing
def swizzle_128(facts: Facts) -> Figure:
    """Eight rows of a tile in halves: the place of each 16-byte chunk of a row of 256 bytes."""
    del facts
    figure, axes = canvas(7.4, 3.3, (-3.4, 37), (-2.6, 9.6))
    rows = 64
    for half, x in ((0, 0), (1, 20)):
        note(axes, x + 8, -2.1, f"half {half}: columns {half * 64}–{half * 64 + 63}", 8.5, "center", weight="bold")
        for place in range(8):
            note(axes, x + place * 2 + 1, -0.9, f"{place * 4}–{place * 4 + 3}", 5.8, "center", MUTED)
        for row in range(8):
            start = half * rows * 128 + row * 128
            note(axes, x - 0.3, row + 0.5, f"{start:,}", 6.5, "right", MUTED)
            for chunk in range(8):
                offset = layouts.half_offset(row, half * 64 + chunk * 8, rows)
                place = (offset - start) // 16
                cell(axes, x + place * 2, row, str(half * 8 + chunk), FILLS[chunk], 7, width=2)
    note(axes, 0, 8.8, "left: the byte at which the row starts; above: banks; in the cells: which chunk of 16 bytes", 8)
    return figure


@drawing
def descriptor_k_major(facts: Facts) -> Figure:
    """K as an operand of S = Q Kᵀ: what each wgmma reads of 16 rows, as addresses and after the swizzle."""
    del facts
    figure, axes = canvas(7.4, 4.6, (-3.6, 38.5), (-2.8, 20.6))
    for x, title, swizzled in ((0, "the addresses that it counts", False), (21, "what it reads", True)):
        note(axes, x + 8, -2.2, title, 8.5, "center", weight="bold")
        for row in range(16):
            y = row + (0.7 if row >= 8 else 0)
            for k in range(0, 64, 8):
                plain = row * 128 + k * 2
                offset = layouts.K_major(0, row, k) if swizzled else plain
                cell(axes, x + offset % 128 / 8, y, str(k // 16), FILLS[k // 16], 7, width=2)
            if row in (0, 7, 8, 15):
                note(axes, x - 0.3, y + 0.5, f"key {row}", 7, "right", MUTED)
    axes.annotate("", (17.3, 9.2), (17.3, 0.5), arrowprops={"arrowstyle": "->", "color": RED, "linewidth": 1.2})
    note(axes, 17.6, 4.6, "stride", 7.5, color=RED)
    note(axes, 17.6, 5.5, "1,024", 7.5, color=RED)
    axes.annotate("", (4.0, -0.35), (0.0, -0.35), arrowprops={"arrowstyle": "->", "color": BLUE, "linewidth": 1.2})
    note(axes, 4.3, -0.6, "+32 bytes: the next wgmma", 7.5, color=BLUE)
    note(axes, 0, 18.1, "the number: which wgmma, mma_k, reads it: 16 columns of head_dim, two chunks of 16 bytes", 8)
    note(axes, 0, 19.4, f"mma_k 4 to 7 read the other half, {layouts.start_of_K(4, 128):,} bytes further on "
         "where a tile has 128 keys", 8)  # fmt: skip
    return figure


@drawing
def descriptor_mn_major(facts: Facts) -> Figure:
    """V as an operand of O += P V: 32 keys, both halves of head_dim."""
    del facts
    figure, axes = canvas(7.4, 4.7, (-3.6, 41.0), (-2.6, 25.4))
    rows = 128
    for half, x in ((0, 0), (1, 20)):
        note(axes, x + 8, -1.3, f"n = {half * 64} to {half * 64 + 63}", 8.5, "center", weight="bold")
        for group in range(4):
            y = group * 5.4
            for chunk in range(8):
                cell(axes, x + chunk * 2, y, "", FILLS[group // 2], width=2, height=4.9)
            text = f"keys {group * 8}–{group * 8 + 7}"
            start = layouts.half_offset(group * 8, half * 64, rows)
            note(axes, x + 8, y + 1.7, text, 8, "center")
            note(axes, x + 8, y + 3.3, f"from byte {start:,}", 8, "center", MUTED)
    axes.annotate("", (-0.6, 5.6), (-0.6, 0.2), arrowprops={"arrowstyle": "->", "color": RED, "linewidth": 1.2})
    note(axes, -0.9, 2.4, "stride", 7.5, "right", RED)
    note(axes, -0.9, 3.6, "1,024", 7.5, "right", RED)
    axes.annotate("", (20.0, 2.3), (16.1, 2.3), arrowprops={"arrowstyle": "->", "color": VIOLET, "linewidth": 1.2})
    note(axes, 18, 0.6, "leading", 7.5, "center", VIOLET)
    note(axes, 18, 4.0, f"{rows * 128:,}", 7.5, "center", VIOLET)
    for mma_k in range(2):
        y = mma_k * 10.8
        axes.plot([37, 37.4, 37.4, 37], [y, y, y + 10.3, y + 10.3], color=BLUE, linewidth=1.2)
        note(axes, 37.8, y + 5.2, f"mma_k {mma_k}", 7.5, color=BLUE)
    note(axes, 0, 22.7, f"a wgmma takes 16 keys: the next starts {layouts.start_of_V(1):,} bytes further on", 8)
    note(axes, 0, 24.1, "each block: eight rows of 128 bytes, swizzled as above", 8)
    return figure


@drawing
def wgmma_accumulator(facts: Facts) -> Figure:
    """D of a wgmma: 64 rows over four warps, and the lane and register of the elements of the first warp."""
    del facts
    figure, axes = canvas(7.4, 4.6, (-1.2, 39), (-2.4, 20.4))
    note(axes, 4, -1.7, "D [64][128]", 9, "center", weight="bold")
    for warp in range(4):
        for n in range(4):
            text = f"warp {warp}" if n == 0 else ""
            cell(axes, n * 2 + (0.4 if n == 3 else 0), warp * 4, text if n else "", FILLS[7], width=2, height=4)
        note(axes, 3, warp * 4 + 1.5, f"warp {warp}", 8, "center")
        note(axes, 3, warp * 4 + 2.7, f"rows {warp * 16}–{warp * 16 + 15}", 7, "center", MUTED)
    axes.add_patch(Rectangle((0, 0), 2, 4, facecolor="none", edgecolor=RED, linewidth=1.6))
    note(axes, 0, 16.9, "mma_n 0 to 15,", 7.5)
    note(axes, 0, 18.0, "eight columns each", 7.5)
    x0 = 13
    note(axes, x0 + 12, -1.7, "rows 0–15, columns 0–7: the lane in the cell, its register as colour", 8.5, "center",
         weight="bold")  # fmt: skip
    for lane in range(32):
        for register in range(4):
            row, col = layouts.wgmma_D(lane, 0, register)
            cell(axes, x0 + col * 3, row, str(lane), FILLS[register], 7, width=3)
    for row in range(0, 16, 5):
        note(axes, x0 - 0.3, row + 0.5, str(row), 6.5, "right", MUTED)
    for register in range(4):
        cell(axes, x0 + register * 6, 17.3, "", FILLS[register], edge=MUTED)
        note(axes, x0 + register * 6 + 1.4, 17.8, f"D[mma_n][{register}]", 8)
    arrow(axes, (9.4, 2), (12.2, 2))
    return figure


@drawing
def tma_box(facts: Facts) -> Figure:
    """One request: a box of the tensor, its place in shared memory, and the barrier that counts its bytes."""
    rows = facts.block_kv(18)
    size = rows * layouts.HEAD_DIM * layouts.ELEMENT
    figure, axes = canvas(7.4, 3.3, (-0.3, 32.3), (-1.6, 12.0))
    note(axes, 0, -1.0, "K of one head, in memory", 8.5, weight="bold")
    for i, text in enumerate((f"rows 0–{rows - 1}", f"rows {rows}–{2 * rows - 1}", "…")):
        for half in range(2):
            cell(axes, half * 4, i * 3, "", FILLS[half] if i == 1 else PAPER, width=4, height=3, edge=MUTED)
        note(axes, 4, i * 3 + 1.5, text, 8, "center")
    note(axes, 0, 10.2, f"rows of {layouts.HEAD_DIM * 2} bytes,", 7.5)
    note(axes, 0, 11.2, "any stride between them", 7.5)
    box(axes, 11.6, 1.2, 6.4, 5.6, "TMA\n\ncounts addresses,\nswizzles, and tells\nthe barrier", FILLS[3], 8)
    note(axes, 14.8, 8.3, "one thread asks: which map,", 7.5, "center")
    note(axes, 14.8, 9.3, "which box, where to, which barrier", 7.5, "center")
    arrow(axes, (8.3, 4.4), (11.4, 4.4))
    arrow(axes, (18.2, 3.2), (21.6, 2.2))
    arrow(axes, (18.2, 5.6), (21.6, 8.2))
    note(axes, 22, -1.0, "shared memory", 8.5, weight="bold")
    for half in range(2):
        cell(axes, 22, half * 2.6, f"half {half}: {rows} rows of 128 bytes", FILLS[half], 8, width=10, height=2.6,
             edge=MUTED)  # fmt: skip
    cell(axes, 22, 7.2, f"mbarrier: {size:,} bytes to come", FILLS[2], 8, width=10, height=1.7, edge=MUTED)
    note(axes, 22, 10.0, "all threads wait for its phase", 7.5)
    return figure


@drawing
def stmatrix_banks(facts: Facts) -> Figure:
    """The eight rows of one 8×8 matrix of an stmatrix in 22: without the swizzle, and with it."""
    del facts
    figure, axes = canvas(7.4, 2.9, (-2.6, 38.2), (-2.4, 9.6))
    for x, swizzled, title in ((0, False, "rows as they are"), (20, True, "swizzled")):
        note(axes, x, -1.8, title, 8.5, weight="bold")
        for place in range(8):
            note(axes, x + place * 2 + 1, -0.5, f"{place * 4}–{place * 4 + 3}", 5.8, "center", MUTED)
        for row in range(8):
            note(axes, x - 0.3, row + 0.5, f"row {row}", 7, "right", MUTED)
            at = layouts.half_offset(row, 16, 64) % 128 // 16 if swizzled else 2
            for place in range(8):
                hit = place == at
                cell(axes, x + place * 2, row, f"lane {row}" if hit else "", FILLS[1] if hit else PAPER, 6.5, width=2)
    note(axes, 0, 9.0, "above: banks. Columns 16 to 23 of eight rows of O, as one 8×8 matrix goes to shared memory", 8)
    return figure


# ---- which role waits for which ----


WAITS = ("wait", "wgmma")
WORK = {  # as in the legends: colour, pattern
    "softmax": (FILLS[3], None),
    "wgmma: S = Q Kᵀ": (BLUE, None),
    "wgmma: O += P V": (FILLS[0], HATCH["P V"]),
    "copy by TMA": (FILLS[4], None),
    "waits": (PAPER, HATCH["wait"]),
}


def _legend(axes: Axes, names: Sequence[str]) -> None:
    handles = [
        Rectangle((0, 0), 1, 1, facecolor=color, hatch=hatch, edgecolor=MUTED, linewidth=0.6, label=name)
        for name in names
        for color, hatch in [WORK[name]]
    ]
    axes.legend(handles=handles, loc="lower left", bbox_to_anchor=(0.0, 1.0), ncols=len(names), frameon=False,
                fontsize=7.5, handlelength=1.6, columnspacing=1.4)  # fmt: skip


def _bars(axes: Axes, y: float, spans: Sequence[Span], work: str, height: float = 0.7) -> None:
    labelled = ""
    for span in spans:
        width = span.end - span.begin
        name = "waits" if span.what in WAITS else "wgmma: O += P V" if span.what.startswith("P") else work
        color, hatch = WORK[name]
        axes.add_patch(
            Rectangle((span.begin, y - height / 2), width, height, facecolor=color, edgecolor=MUTED, linewidth=0.6,
                      hatch=hatch)
        )  # fmt: skip
        if name != "waits" and width > 150 and span.what != labelled:  # the second part of a softmax is short
            labelled = span.what
            _label(axes, span.begin + width / 2, y, span.what.replace("softmax ", "soft "), color)


def _label(axes: Axes, x: float, y: float, text: str, fill: str) -> None:
    """On a pattern, the text gets its own background."""
    has_pattern = fill in (FILLS[0], PAPER)
    ground = {"boxstyle": "round,pad=0.1", "facecolor": fill, "edgecolor": "none"} if has_pattern else None
    axes.text(x, y, text, ha="center", va="center", fontsize=6, color=PAPER if fill == BLUE else INK, clip_on=True,
              bbox=ground)  # fmt: skip


def _timeline(facts: Facts, number: int, until: float, rings: bool = False, begin: float = 0.0) -> Figure:
    spans = facts.timeline_of(number)
    by_who: dict[str, list[Span]] = {}
    for span in spans:
        by_who.setdefault(span.who, []).append(span)
    rows: list[tuple[str, list[Span], str]] = []
    if rings:
        for who in sorted(who for who in by_who if re.match(r"[KV] \d", who)):
            rows.append((f"copy to {who[0]}[{who[2:]}]", by_who[who], "copy by TMA"))
    consumers = sum(who.startswith("consumer") for who in by_who)
    for i in range(consumers):
        rows.append(("consumer" if consumers == 1 else f"consumer {i}", by_who[f"consumer {i}"], "softmax"))
    for i in range(consumers):
        name = "tensor cores" if consumers == 1 else f"wgmmas of {i}"
        rows.append((name, by_who[f"tensor {i}"], "wgmma: S = Q Kᵀ"))
    figure = Figure(figsize=(7.4, 0.36 * len(rows) + 0.95))
    axes = figure.add_subplot()
    for y, (_, mine, work) in enumerate(rows):
        shown = [
            Span(s.who, s.what, max(s.begin, begin), min(s.end, until))
            for s in mine
            if s.begin < until - 1 and s.end > begin + 1
        ]
        _bars(axes, y, shown, work)
    axes.set_yticks(range(len(rows)), [name for name, _, _ in rows])
    axes.set_xlim(begin, until)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("cycles: the order is that of a trace, the lengths are calculated")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend(axes, [name for name in WORK if rings or name != "copy by TMA"])
    return figure


@drawing
def rings_19(facts: Facts) -> Figure:
    """A producer ahead of one consumer."""
    return _timeline(facts, 19, 5600, rings=True)


@drawing
def consumers_20(facts: Facts) -> Figure:
    """Two consumers that start together."""
    return _timeline(facts, 20, 6600)


@drawing
def overlap_23(facts: Facts) -> Figure:
    return _timeline(facts, 23, 6600)


@drawing
def turns_26(facts: Facts) -> Figure:
    return _timeline(facts, 26, 6600)


@drawing
def three_27(facts: Facts) -> Figure:
    return _timeline(facts, 27, 5000)


# ---- the same in instructions, for CTA 0 on the virtual GPU ----


def _waits(trace: RoleTrace, warp: int) -> list[tuple[int, int, str, str]]:
    steps = [step for step in trace.steps(warp) if step.what == "wait" and step.end - step.begin > 1]
    return [(step.begin, step.end, step.barrier, "waits") for step in steps]


def _role_rows(trace: RoleTrace, facts: Facts, number: int) -> list[tuple[str, list[tuple[int, int, str, str]]]]:
    """(name, [(begin, end, text, key of WORK)]): buffers, the producer, consumers, their wgmmas."""
    rows: list[tuple[str, list[tuple[int, int, str, str]]]] = []
    producer = trace.warps(multiply=False)[0]
    ends, tiles = trace.ends_of_phases(), {"K": 0, "V": 0}
    buffers: dict[str, list[tuple[int, int, str, str]]] = {}
    last = max(step.end for warp in trace.warps(multiply=True) for step in trace.steps(warp))
    for step in trace.steps(producer):
        which = step.barrier[0]
        if step.what != "copy" or which not in tiles:
            continue
        read = ends.get((step.barrier.replace("full", "empty"), step.phase or 0), last)
        name = step.barrier.replace("_full", "")
        buffers.setdefault(name, []).append((step.begin, read, f"{which}{tiles[which]}", "copy by TMA"))
        tiles[which] += 1
    rows += [(f"tile in {name}", buffers[name]) for name in sorted(buffers)]
    rows.append(("producer waits for", _waits(trace, producer)))
    consumers = trace.warps(multiply=True)
    for i, warp in enumerate(consumers):
        name = f" {i}" if len(consumers) > 1 else ""
        bars = [(begin, end, "", "softmax") for begin, end in trace.arithmetic(warp)]
        bars += _waits(trace, warp)
        rows.append((f"consumer{name}", bars))
        for product, place, what in (
            ("S", "Starts S = Q Kᵀ", "wgmma: S = Q Kᵀ"),
            ("P V", "Starts O += P V", "wgmma: O += P V"),
        ):
            part = sources.part(facts.file(number), place)
            mine = [w for w in trace.wgmmas(warp) if w.line - 1 in part]
            work = [(w.begin, w.end, product, what) for w in mine]
            rows.append((f"{product} of {i} under way" if name else f"{product} under way", work))
    return rows


def _roles(facts: Facts, number: int) -> Figure:
    rows = _role_rows(facts.role_trace(number, 4), facts, number)
    last = max(end for _, bars in rows for _, end, _, _ in bars)
    figure = Figure(figsize=(7.4, 0.34 * len(rows) + 0.85))
    axes = figure.add_subplot()
    for y, (_, bars) in enumerate(rows):
        for begin, end, text, what in bars:
            (color, hatch), plain = WORK[what], what == "softmax"
            axes.add_patch(Rectangle((begin, y - 0.36), end - begin, 0.72, facecolor=color, hatch=hatch,
                                     edgecolor=color if plain else MUTED, linewidth=0 if plain else 0.6))  # fmt: skip
            if text and (end - begin) / last > 0.011 * len(text):
                _label(axes, (begin + end) / 2, y, text, color)
    axes.set_yticks(range(len(rows)), [name for name, _ in rows])
    axes.set_xlim(0, last)
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlabel("warp instructions issued, and not time")
    axes.xaxis.set_major_formatter(lambda value, _: f"{value:,.0f}")
    _legend(axes, list(WORK))
    return figure


@drawing
def roles_19(facts: Facts) -> Figure:
    return _roles(facts, 19)


@drawing
def roles_23(facts: Facts) -> Figure:
    return _roles(facts, 23)


# ---- what it costs ----


@drawing
def clock_and_share(facts: Facts) -> Figure:
    """TFLOP/s over the clock, with lines of equal tensor-core utilisation."""
    figure = Figure(figsize=(7.4, 3.6))
    axes = figure.add_subplot()
    numbers = [n for n in hopper(facts) if facts.has_tflops(n)]
    clocks = [facts.clock_mhz(n) for n in numbers]
    reached = [facts.tflops(n) for n in numbers]
    low, high = 1380.0, facts.max_clock_mhz() + 60
    for share in (0.4, 0.6, 0.8, 1.0):
        axes.plot([low, high], [share * facts.wgmma_tflops_at(mhz) for mhz in (low, high)], color=GRID, linewidth=1)
        at = high if share < 1 else low + 60
        axes.text(at, share * facts.wgmma_tflops_at(at), f" {share:.0%}", fontsize=7.5, color=MUTED, va="center")
    axes.plot(clocks, reached, "o", color=BLUE, markersize=4)
    # Labels are in a separate column beside the group of points that they name, each with a line to its point.
    points = sorted(zip(numbers, clocks, reached, strict=True), key=lambda point: point[2])
    groups: list[list[tuple[int, float, float]]] = []
    for point in points:
        if groups and abs(point[1] - groups[-1][-1][1]) < 120 and point[2] - groups[-1][-1][2] < 60:
            groups[-1].append(point)
        else:
            groups.append([point])
    for group in groups:
        x = max(point[1] for point in group) + 28
        y = sum(point[2] for point in group) / len(group) - 34 * (len(group) - 1) / 2
        for n, clock, tflops in group:
            axes.plot([clock, x - 3], [tflops, y], color=MUTED, linewidth=0.6)
            axes.text(x, y, f"{n}", fontsize=8, color=INK, va="center")
            y += 34
    axes.set_xlim(low, high + 45)
    axes.set_ylim(150, 950)
    axes.set_xlabel("SM clock that the GPU reports, MHz")
    axes.set_ylabel("TFLOP/s, seq_len 4096")
    return figure


@drawing
def sass_stack_hopper(facts: Facts) -> Figure:
    """The hot loops of a consumer, per 64 rows × 128 keys."""
    numbers = [n for n in hopper(facts) if facts.has_machine_code(n)]
    groups = [
        ("exponentials: MUFU", ("MUFU",), AMBER, None),
        ("FFMA, FADD, FMUL", ("FFMA", "FADD", "FMUL"), FILLS[3], None),
        ("maxima: FMNMX", ("FMNMX",), FILLS[3], "////"),
        ("packing: F2FP", ("F2FP",), FILLS[7], None),
        ("for the whole warp: U…", (), CYAN, None),
        ("others", (), MUTED, None),
    ]
    figure = Figure(figsize=(7.4, 0.33 * len(numbers) + 0.5))
    axes = figure.add_subplot()
    for i, n in enumerate(numbers):
        loop = facts.hot_loop(n)
        scale, left = 128 / facts.block_kv(n), 0.0
        for name, opcodes, color, hatch in groups:
            if name == "others":
                count = scale * sum(loop.values()) - left
            elif not opcodes:
                count = scale * sum(c for o, c in loop.items() if o.startswith("U"))
            else:
                count = scale * sum(loop.get(o, 0) for o in opcodes)
            axes.barh(i, count, left=left, color=color, height=0.7, edgecolor=MUTED, linewidth=0.6, hatch=hatch,
                      label=name if i == 0 else None)  # fmt: skip
            left += count
        axes.text(left + 4, i, f"{left:.0f}", va="center", fontsize=8)
    axes.set_yticks(range(len(numbers)), [facts.stem(n).replace("_", " ", 1) for n in numbers])
    axes.set_ylim(len(numbers) - 0.4, -0.6)
    axes.set_xlabel("instructions in the straight part of the hot loop, for 64 rows × 128 keys")
    figure.legend(loc="upper left", bbox_to_anchor=(0.0, -0.01), ncols=3, frameon=False, fontsize=8)
    return figure


@drawing
def guess_window(facts: Facts) -> Figure:
    """25: which first sums are accepted, on the scale of the exponentials."""
    figure, axes = canvas(7.4, 2.5, (-31, 22), (-2.0, 6.2))
    for low, high, text, fill in (
        (-30, -25, "lost", FILLS[1]),
        (-25, -14, "fp16, fewer digits", FILLS[3]),
        (-14, 16, "fp16, 11 binary digits", FILLS[2]),
        (16, 21, "infinity", FILLS[1]),
    ):
        cell(axes, low, 0, text, fill, 7.5, width=high - low, height=1.2, edge=MUTED)
    for x in (-25, -14, 0, 5, 12, 16):
        note(axes, x, -0.7, f"2^{x}" if x else "1", 7.5, "center", MUTED)
    too_high = "done again: the guess may be above the maximum"
    cell(axes, -30, 2.0, too_high, FILLS[7], 7.5, width=35, height=1.2, edge=MUTED)
    cell(axes, 5, 2.0, "taken", FILLS[0], 7.5, width=7, height=1.2, edge=BLUE)
    cell(axes, 12, 2.0, "done again", FILLS[7], 7.5, width=9, height=1.2, edge=MUTED)
    keys = facts.block_kv(25) // 4
    expected = keys * exp(0.5) * 8  # of normal scores
    axes.plot([log2(expected)] * 2, [3.2, 4.0], color=BLUE, linewidth=1.2)
    note(axes, log2(expected), 4.4, f"normal data: {expected:.0f}", 7.5, "center", BLUE)
    note(axes, -30, 5.7, "above: what an exponential becomes as P in fp16; below: a lane's first sum of"
         f" {keys} of them, on the same scale", 8)  # fmt: skip
    return figure


def key_order_of(tiles: int) -> list[int]:
    """The tiles of K and V as version 28 visits them."""
    stride = max(1, int(0.618 * tiles))
    while gcd(stride, tiles) != 1:
        stride += 1
    return [(tiles - 1 + visit * stride) % tiles for visit in range(tiles)]


def raised(most: int, *, spread: float, rise: float, order: list[int]) -> tuple[list[float], list[int]]:
    """How often a warp of 27, 28 or 29 raises its references.

    Scores have a standard deviation of `spread` and rise by `rise` from tile to tile, both in powers of two; the tiles
    of 64 keys are visited in `order`. Returns the largest exponential of each visit, as a power of two, and the visits
    in which a lane's sum reaches 2^most, or is too small for the first guess, which bf16 (2^32) hardly limits.
    """
    random, rows, lanes, keys = Random(28), 16, 4, 16  # keys of each lane in a tile
    reference, largest, again = [-3.0] * rows, [], []
    for visit, tile in enumerate(order):
        scores = [[[random.gauss(rise * tile, spread) for _ in range(keys)] for _ in range(lanes)] for _ in range(rows)]
        maxima = [max(map(max, row)) for row in scores]
        largest.append(max(m - r for m, r in zip(maxima, reference, strict=True)))
        sums = [sum(2 ** (s - reference[i]) for s in lane) for i, row in enumerate(scores) for lane in row]
        if max(sums) >= 2**most or (visit == 0 and min(sums) < (keys if most <= 15 else 2**-16)):
            again.append(visit)
            old = [-float("inf")] * rows if visit == 0 else reference
            reference = [max(r, floor(m)) for r, m in zip(old, maxima, strict=True)]
    return largest, again


@drawing
def key_order(facts: Facts) -> Figure:
    """28: the order of the tiles, and the largest score so far if scores rise."""
    tiles = 4096 // facts.block_kv(28)
    rise = 16 / layouts.HEAD_DIM**0.5 / log(2)
    figure = Figure(figsize=(7.4, 3.0))
    left, right = figure.subplots(1, 2)
    for name, order, color, marker in (
        ("27", list(range(tiles)), AMBER, "s"),
        ("28", key_order_of(tiles), BLUE, "o"),
    ):
        left.plot(range(tiles), order, marker, color=color, markersize=2.6, label=name)
        right.plot(range(tiles), [rise * max(order[: visit + 1]) for visit in range(tiles)], color=color, linewidth=1.4,
                   linestyle="--" if name == "27" else "-", label=name)  # fmt: skip
    left.set_ylabel("tile of K and V")
    right.set_ylabel("largest score so far (log2)")
    right.set_ylim(-4, rise * tiles * 1.08)
    for axes in (left, right):
        axes.set_xticks(range(0, tiles + 1, 16))
        axes.set_xlabel("visit")
    right.text(tiles * 0.56, rise * tiles * 0.4, "27", color=AMBER, fontsize=9)
    right.text(tiles * 0.3, rise * tiles * 0.9, "28", color=BLUE, fontsize=9)
    left.legend(loc="upper left", bbox_to_anchor=(0, 1.17), ncols=2, fontsize=8, frameon=False, handletextpad=0.2)
    figure.subplots_adjust(wspace=0.32)
    return figure


@drawing
def redone(facts: Facts) -> Figure:
    """28 and 29 on Q x 6: how large exponentials become, and when a reference is raised."""
    tiles = 4096 // facts.block_kv(29)
    figure = Figure(figsize=(7.4, 3.4))
    axes = figure.add_subplot()
    for name, most, color, style in (
        ("29, bf16", 32, GREEN, "-."),
        ("29, fp16", 15, BLUE, "-"),
        ("28", 12, AMBER, "--"),
    ):
        largest, again = raised(most, spread=6 / log(2), rise=0, order=key_order_of(tiles))
        axes.plot(range(tiles), largest, style, color=color, linewidth=1.0)
        axes.plot(again, [largest[visit] for visit in again], "o", color=color, markersize=4.5)
        axes.text(tiles, most - 0.9, f"{name}: {len(again)} of {tiles}", color=color, fontsize=8, va="center")
        axes.axhline(most, xmax=0.72, color=color, linewidth=0.6, linestyle=":")
    axes.set_yticks((0, 12, 15, 32), ["1", "2^12", "2^15", "2^32"])
    axes.set_xticks(range(0, tiles + 1, 8))
    axes.set_xlim(-1, tiles * 1.39)
    axes.set_ylim(-12, 35)
    axes.set_xlabel("visit")
    axes.set_ylabel("largest exponential")
    return figure


@drawing
def rows_and_bytes(facts: Facts) -> Figure:
    """27: bytes of K and V that a CTA requests, per query row and key, by its number of rows."""
    del facts
    figure = Figure(figsize=(7.4, 1.9))
    axes = figure.add_subplot()
    sizes = (64, 128, 192, 256)
    for i, rows in enumerate(sizes):
        per_score = 2 * layouts.HEAD_DIM * layouts.ELEMENT / rows
        axes.barh(i, per_score, color=BLUE if rows == 192 else FILLS[0], height=0.66)
        axes.text(per_score + 0.06, i, f"{per_score:.2f}", va="center", fontsize=8)
    axes.set_yticks(range(len(sizes)), [f"{rows} rows" for rows in sizes])
    axes.set_ylim(len(sizes) - 0.4, -0.6)
    axes.set_xlim(0, 9)
    axes.set_xlabel("bytes of K and V that come to shared memory, for each element of S")
    return figure
