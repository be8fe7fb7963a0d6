"""Drawings of single ideas: of the learning path, and of 09, 11, 16, 21 and fp8."""

from __future__ import annotations

import layouts
from drawings import AMBER, BLUE, FILLS, INK, MUTED, PAPER, RED, canvas, cell, drawing, note
from facts import GPU, Facts
from matplotlib.figure import Figure

TENSOR_CORES, SHARED, SOFTMAX = FILLS[0], FILLS[2], FILLS[3]  # one fill per unit, as in all drawings
MMA = 16  # rows of an mma, and keys or columns of an ldmatrix


@drawing
def memory_wall(facts: Facts) -> Figure:
    """The learning path: how long attention takes for its bytes and for its operations, if S and P are stored."""
    heads, tokens = 16 * 16, 4096
    rate = GPU["hbm_tb_per_s"] * 1e9  # bytes per ms
    rows = [
        ("move Q, K, V and O", 4 * heads * tokens * layouts.HEAD_DIM * 2 / rate, RED, ""),
        ("multiply", 4 * heads * tokens**2 * layouts.HEAD_DIM / (facts.mma_ceiling() * 1e9), BLUE, ""),
        ("move S and P, too", heads * tokens**2 * 12 / rate, RED, "////"),
    ]
    figure = Figure(figsize=(7.4, 1.8))
    axes = figure.add_subplot()
    for i, (name, time, color, hatch) in enumerate(rows):
        axes.barh(i, time, color=PAPER if hatch else color, edgecolor=color, hatch=hatch, height=0.62)
        axes.text(time + 0.12, i, f"{time:.2g} ms" if time < 1 else f"{time:.1f} ms", va="center", fontsize=8.5)
        axes.text(-0.15, i, name, va="center", ha="right", fontsize=9)
    axes.set_yticks([])
    axes.set_ylim(len(rows) - 0.4, -0.6)
    axes.set_xlim(0, 12.4)
    axes.set_xlabel(f"ms at the highest rate: batch 16, 16 heads, seq_len {tokens}, head_dim {layouts.HEAD_DIM}")
    return figure


@drawing
def pieces_09(facts: Facts) -> Figure:
    """08 loads all fragments of a slice, then multiplies; 09 loads the next piece while it multiplies."""
    pieces = facts.block_kv(8) // MMA  # of one slice of K
    figure, axes = canvas(7.4, 2.5, (-4.4, 24.4), (-1.4, 7.6))
    note(axes, -4.2, 0.5, "08", 9, weight="bold")
    note(axes, -4.2, 4.6, "09", 9, weight="bold")
    x = 0
    for k in range(2):
        for piece in range(pieces):
            cell(axes, x + piece, 0, f"{piece}", SHARED, 8)
        note(axes, x + pieces / 2, -0.8, f"load K({k}), {facts.block_kv(8)} keys", 7.5, "center")
        x += pieces
        for _ in range(2 * pieces):
            cell(axes, x, 0, "mma", TENSOR_CORES, 6)
            x += 1
    note(axes, -0.3, 4, "load", 8, "right")
    note(axes, -0.3, 5.5, "multiply", 8, "right")
    for piece in range(2 * pieces + 1):
        cell(axes, 2.4 * piece, 3.5, f"piece {piece}, set {piece % 2}", SHARED, 6, width=2.4)
        if piece:
            for j in range(2):
                cell(axes, 2.4 * piece + 1.2 * j, 5, "mma", TENSOR_CORES, 6, width=1.2)
    note(axes, 0, 6.9, f"A piece is one ldmatrix: {MMA} keys, 4 registers, 2 mmas. Piece p is in set p % 2.", 8)
    return figure


@drawing
def rectangles_11(facts: Facts) -> Figure:
    """The scores of a warp and tile in 10 and 11: the same area, and shorter edges."""
    figure, axes = canvas(7.4, 3.3, (-12, 148), (-12, 60))
    x = 0
    for number in (10, 11):
        rows, keys = facts.block_q(number) // facts.warps(number), facts.block_kv(number)
        loads = (8 * rows // MMA, 8 * keys // MMA, keys // MMA * (layouts.HEAD_DIM // MMA))
        cell(axes, x, 0, f"{rows * keys:,} scores", TENSOR_CORES, 9, width=keys, height=rows, edge=BLUE)
        axes.plot([x - 1.5, x - 1.5], [0, rows], color=MUTED, linewidth=4)
        axes.plot([x, x + keys], [-1.8, -1.8], color=MUTED, linewidth=4)
        note(axes, x - 3.5, rows / 2, f"Q\n{rows}", 8.5, "right")
        note(axes, x + keys / 2, -5.5, f"K and V: {keys} keys", 8.5, "center")
        note(axes, x, 39, f"{number}: ldmatrix for 128 mmas", 9, weight="bold")
        note(axes, x, 46, f"Q {loads[0]} + K {loads[1]} + V {loads[2]} = {sum(loads)}", 8.5)
        note(axes, x, 53, f"{4 * sum(loads)} wavefronts, {4 * sum(loads) / (rows * keys):.2f} per score", 8.5)
        x += 88
    return figure


@drawing
def out_of_step_16(facts: Facts) -> Figure:
    """Two warps of a scheduler in 16: one computes its softmax while the mmas of the other run."""
    mmas = facts.sass(16, "HMMA")
    # The softmax is drawn half as long as a run: two warps then fill the tensor core, and have time to spare.
    run, softmax, waits = 2.0, 1.0, 1.0
    period = run + softmax + waits
    end = 3 * period
    figure, axes = canvas(7.4, 2.2, (-2.2, end + 0.1), (-0.9, 4.6))
    note(axes, -2.1, -0.5, "one scheduler of 16", 8.5, weight="bold")
    for y, name, start in ((0, "warp 0", 0.0), (1.2, "warp 4", -run)):
        note(axes, -0.2, y + 0.4, name, 8.5, "right")
        while start < end:
            for kind, length in ((f"{mmas} mmas", run), ("softmax", softmax), ("waits", waits)):
                left, right = max(start, 0.0), min(start + length, end)
                if right > left:
                    fill = {"softmax": SOFTMAX, "waits": PAPER}.get(kind, TENSOR_CORES)
                    cell(axes, left, y, kind, fill, 7.5, width=right - left, height=0.8)
                start += length
    note(axes, -0.2, 2.8, "tensor core", 8.5, "right")
    for i in range(int(end / run)):
        warp = 4 * (i % 2)
        cell(axes, i * run, 2.4, f"of warp {warp}", TENSOR_CORES, 7.5, width=run, height=0.8, edge=BLUE)
    note(axes, 0, 4.0, "time; lengths are not to scale", 8, color=MUTED)
    return figure


@drawing
def rounds_21(facts: Facts) -> Figure:
    """The query tiles of each CTA of 21 at seq_len 512: 132 in each round but the last."""
    sms = int(GPU["sms"])
    tiles = 16 * 16 * 512 // facts.block_q(21)
    per_head = 512 // facts.block_q(21)
    rounds = -(-tiles // sms)
    figure, axes = canvas(7.4, 2.9, (-30, 166), (-2.1, rounds + 1.4))
    note(axes, 0, -1.4, f"CTA 0 … {sms - 1}, one on each SM", 8.5)
    for i in range(rounds):
        first = i * sms
        width = min(sms, tiles - first)
        last = first + width - 1
        text = f"query tiles {first}–{last}: heads {first // per_head}–{last // per_head}"
        cell(axes, 0, i, text, TENSOR_CORES, 7.5, width=width, height=0.85, edge=BLUE)
        if width < sms:
            cell(axes, width, i, "idle", PAPER, 7.5, width=sms - width, height=0.85, edge=MUTED)
        note(axes, -2, i + 0.42, f"round {i + 1}", 8, "right")
        note(axes, sms + 3, i + 0.42, f"CTA 0: {first}", 8)
    busy = tiles / (rounds * sms)
    note(axes, 0, rounds + 0.7, f"{tiles:,} query tiles = {busy:.0%} of {rounds} rounds × {sms} CTAs", 8.5)
    return figure


@drawing
def keys_fp8(facts: Facts) -> Figure:
    """The keys of S that each of the four lanes of a row holds, and the order in which V is stored."""
    del facts
    # Row 0 of two neighbouring accumulators D: registers 0 and 1 of lanes 0 to 3 hold it.
    held = {t: [8 * n + layouts.fragment_D(t, r)[1] for n in range(2) for r in range(2)] for t in range(4)}
    lane_of = {key: t for t, keys in held.items() for key in keys}
    fills = [FILLS[i] for i in (0, 3, 2, 6)]
    figure, axes = canvas(7.4, 2.9, (-5.6, 16.2), (-1.5, 6.6))
    note(axes, 0, -0.8, "lane t of the four lanes of a row holds:", 8.5)
    for y, name in ((0.5, "keys of S"), (4.5, "keys of V, stored")):
        note(axes, -0.3, y, name, 8.5, "right")
    for key in range(16):
        cell(axes, key, 0, f"{key}", fills[lane_of[key]], 9, height=1)
        note(axes, key + 0.5, 1.4, f"t{lane_of[key]}", 7.5, "center", color=MUTED)
    for t, keys in held.items():
        for i, key in enumerate(keys):
            place = 4 * t + i
            cell(axes, place, 4, f"{key}", fills[t], 9, height=1)
            axes.plot([key + 0.5, place + 0.5], [1.85, 3.9], color=AMBER if t % 2 else INK, linewidth=0.7)
        note(axes, 4 * t + 2, 5.6, f"places {4 * t}–{4 * t + 3}: lane {t}", 8, "center")
    return figure
