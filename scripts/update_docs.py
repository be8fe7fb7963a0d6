#!/usr/bin/env python3
"""Writes measurements from profiles/ into the docs, so that no figure is typed by hand:

  README.md             between the following and <!-- end -->:
                          <!-- versions -->        how many versions there are
                          <!-- first -->           TFLOP/s of the first version
                          <!-- last -->            TFLOP/s of the last version
                          <!-- ladder -->          the table of versions; only names and ideas are typed
  docs/results.md       between the following, each on a separate line, and <!-- end -->:
                          <!-- sustained h200 -->  TFLOP/s beside the peers, for a regime and a folder of profiles/
                          <!-- recorded h200 -->   TFLOP/s by harness --record of what scripts/peers has not timed
                          <!-- ceilings -->        the ceilings of single instructions
                          <!-- GPUs -->            all GPUs, side by side
                          <!-- by data -->         TFLOP/s on other data than random normal numbers
                          <!-- by problem causal -->    TFLOP/s on one or several of the problems of scripts/peers
                                                        --problem
                          <!-- decoding paged -->  GB/s of K and V on one or several of the problems of scripts/peers
                                                   --decoding
                          <!-- gradients causal -->    TFLOP/s of the backward pass on one or several of the problems
                                                       of scripts/peers --gradients
                          <!-- peer cases -->      how many cases of flash-attention's own tests pass
                          <!-- models -->          the logits of language models with the ladder's attention
                          <!-- dates -->           when each figure was measured
                          <!-- runs -->            how, and with which programs
                          <!-- peers -->           what each peer is
  docs/ladder_log.md    between the following and <!-- end -->:
                          <!-- predicted 06 -->     the gain over the version before, as predicted by the header of 06
                          <!-- tflops 06 -->        the speed that it reached, and its gain over the version before
                          <!-- verdict 06 -->       the verdict on the prediction
                          <!-- step 06 512 -->      its gain over the version before at seq_len 512
                          <!-- verdict rule -->     how predictions are judged
                          <!-- other GPUs -->       which steps gain or lose on other devices as on the first
  docs/virtual_gpu_internals.md
                        between <!-- counters 03 04 … --> and <!-- end -->, each on a separate line: what the virtual
                        GPU and Nsight Compute count for these versions, side by side; between <!-- mutation --> and
                        <!-- end --> how many of scripts/mutate.py's mistakes the check finds; in a line, between
                        <!-- not mutated --> and <!-- end -->, the versions in which it has not made any
  docs/figures/*.svg    by scripts/plot.py

The figures are for the first device of profiles/ (profiles/shown_first.txt names it); docs/results.md compares other
devices with it.

A version's prediction is the last factor in the Prediction of its header: "1.05x", or "gains 5 %", or, for the first
version, "1 TFLOP/s". If it predicts factors for several lengths, the factor "at 4096", as in "1.02x at 4096", counts.

With --check, the script writes nothing, lists the files that are out of date, and exits with status 1 if there are any.
It exits with status 3 if a profile, a page or a header cannot be used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections import Counter
from collections.abc import Callable, Container
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutate
import plot
from kernel_files import KernelFile, kernel_files
from ladder import HEAD_DIM, HEADS, ROOT, write_whole
from profile_data import (
    ByData,
    ByProblem,
    Cell,
    Device,
    Key,
    Peer,
    ProblemCell,
    ProfileError,
    Shape,
    Speeds,
    devices,
    harmonic_mean,
    is_of_present_code,
    load_device,
    load_models,
    load_peer_cases,
    three_digits,
)

SHAPE = Shape(seq_len=4096, batch=16)  # the shape at which versions are compared

README = Path("README.md")
RESULTS = Path("docs/results.md")
LADDER_LOG = Path("docs/ladder_log.md")
VIRTUAL_GPU = Path("docs/virtual_gpu_internals.md")
FIGURES = Path("docs/figures")

WITHIN = 1.5  # a gain is as predicted if it is at most this factor larger or smaller
NOT_RECORDED = "Not recorded yet."
EARLIER = " (earlier text)"  # the code of the version has changed since
UNCHANGED = 0.01  # a gain or loss up to this is as predicted if no change was predicted


class PageError(Exception):
    """A page lacks the marks that this script fills in, or a header lacks the information that goes there."""


def table(rows: list[list[str]]) -> str:
    """Markdown; the first row is the heading, and all columns except the first are aligned at the right."""
    header, *others = rows
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    return "\n".join([*lines, *(f"| {' | '.join(row)} |" for row in others)])


def words_table(rows: list[list[str]]) -> str:
    """The same, with all columns aligned at the left."""
    return table(rows).replace("---:|", "---|", len(rows[0]))


def shares(tflops: dict[Shape, float], reference: Peer | None) -> list[str]:
    """The fraction of the reference's speed at SHAPE, and its harmonic mean over all of the reference's shapes."""
    if reference is None:
        return ["–", "–"]
    shapes = sorted(reference.tflops)
    pairs = [
        (tflops.get(SHAPE), reference.tflops.get(SHAPE)),
        (harmonic_mean(tflops, shapes), harmonic_mean(reference.tflops, shapes)),
    ]
    return [f"{three_digits(100 * here / there)} %" if here and there else "–" for here, there in pairs]


def reference_of(peers: list[Peer]) -> Peer | None:
    return next((peer for peer in peers if peer.name == plot.REFERENCE), None)


def load_cells(speeds: Speeds) -> list[str]:
    """Watts, clock, and TFLOP/s per watt, at SHAPE."""
    watts, clock, per_watt = (of.get(SHAPE) for of in (speeds.watts, speeds.sm_clock_mhz, speeds.tflops_per_watt))
    return [f"{watts:.0f}" if watts else "–", f"{clock:,}" if clock else "–", three_digits(per_watt)]


def linked(source: KernelFile) -> str:
    """The label, with a link to the chapter if there is one."""
    page = f"chapters/{source.stem}.md"
    return f"[{source.label}]({page})" if (ROOT / "docs" / "source" / page).is_file() else source.label


def slowest_first(peers: list[Peer]) -> list[Peer]:
    return sorted(peers, key=lambda peer: peer.tflops.get(SHAPE, 0.0))


def regime_table(device: Device, name: str) -> str:
    """A row per version that took part in a regime, followed by the peers."""
    at = next((i for i, regime in enumerate(device.regimes) if regime.name == name), None)
    if at is None:
        return NOT_RECORDED
    regime = device.regimes[at]
    peers = slowest_first(regime.peers)
    measured = [
        (linked(version.source) + (EARLIER if version.source.kernel in regime.earlier else ""), version.in_regimes[at])
        for version in device.versions
    ]
    measured += [(f"*{peer.name}*", peer.speeds) for peer in peers]
    shapes, reference = device.shapes(), reference_of(peers)
    with_load = any(speeds.watts for _, speeds in measured)
    header = ["TFLOP/s at seq_len", *(str(shape.seq_len) for shape in shapes)]
    header += [f"of {plot.SHORT_REFERENCE} at {SHAPE.seq_len}", f"of {plot.SHORT_REFERENCE}, mean"]
    header += [f"W at {SHAPE.seq_len}", "MHz", "TFLOP/s per W"] if with_load else []
    rows = [header]
    for label, speeds in measured:
        if speeds.tflops:
            cells = [label, *(three_digits(speeds.tflops.get(shape)) for shape in shapes)]
            cells += shares(speeds.tflops, reference)
            rows.append(cells + (load_cells(speeds) if with_load else []))
    return table(rows)


def recorded_table(device: Device) -> str:
    """A row per version that scripts/peers has not timed in the regime that is shown."""
    versions = [version for version in device.versions if version.recorded and not version.beside_peers.tflops]
    if not versions:
        return NOT_RECORDED
    shapes = device.shapes()
    rows = [["TFLOP/s at seq_len", *(str(shape.seq_len) for shape in shapes), "at most, W"]]
    for version in versions:
        watts = max(version.watts_recorded, default=None)
        rows.append(
            [
                linked(version.source),
                *(three_digits(version.recorded.get(shape)) for shape in shapes),
                f"{watts:.0f}" if watts else "–",
            ]
        )
    return table(rows)


def ceilings_table(shown: list[Device]) -> str:
    rows = [["instruction", "GPU", "TFLOP/s", "measured"]]
    for device in shown:
        if device.regime:
            dates = device.regime.ceiling_dates
            rows += [
                [f"`{name}`", device.name, three_digits(tflops), day(dates[name])]
                for name, tflops in device.ceilings.items()
            ]
    return table(rows) if len(rows) > 1 else NOT_RECORDED


def gpus_table(shown: list[Device]) -> str:
    """All devices at SHAPE: TFLOP/s, the gain of each step, and shares of the reference."""
    header = [f"seq_len {SHAPE.seq_len}"]
    for device in shown:
        header += [f"{device.name}, TFLOP/s", "step", f"of {plot.SHORT_REFERENCE}, mean"]
    rows = [header]
    for source in dict.fromkeys(version.source for device in shown for version in device.rungs()):
        cells = [linked(source)]
        for device in shown:
            version = next((one for one in device.rungs() if one.source == source), None)
            step = device.step(source.number, SHAPE) if source.number else None
            cells += [three_digits(version.tflops.get(SHAPE) if version else None), f"{step:.2f}×" if step else "–"]
            cells.append(shares(version.beside_peers.tflops if version else {}, reference_of(device.peers))[1])
        rows.append(cells)
    for name in dict.fromkeys(peer.name for device in shown for peer in slowest_first(device.peers)):
        cells = [f"*{name}*"]
        for device in shown:
            tflops = next((peer.tflops for peer in device.peers if peer.name == name), {})
            cells += [three_digits(tflops.get(SHAPE)), "–", shares(tflops, reference_of(device.peers))[1]]
        rows.append(cells)
    return table(rows)


def day(date: str | None) -> str:
    return date[:10] if date else "unknown"


def dates_table(shown: list[Device]) -> str:
    """Which versions and peers were measured together, and when."""
    rows = [["GPU", "figures", "measured", "versions and peers"]]
    for device in shown:
        groups: dict[tuple[str, str], list[KernelFile]] = {}
        peers: dict[tuple[str, str], list[str]] = {}
        for version in device.versions:
            for regime, speeds in zip(device.regimes, version.in_regimes, strict=True):
                if speeds.tflops:
                    earlier = EARLIER if version.source.kernel in regime.earlier else ""
                    groups.setdefault((regime.name + earlier, day(speeds.date)), []).append(version.source)
            if version.recorded and not version.beside_peers.tflops:
                groups.setdefault(("`harness --record`", day(version.date)), []).append(version.source)
        for regime in device.regimes:
            for peer in slowest_first(regime.peers):
                key = (regime.name, day(peer.speeds.date))
                groups.setdefault(key, [])
                peers.setdefault(key, []).append(peer.name)
        order = [regime.name for regime in device.regimes]
        for key in sorted(groups, key=lambda key: (next((i for i, n in enumerate(order) if n in key[0]), 9), key[1])):
            figures, date = key
            measured = [ranges(groups[key])] if groups[key] else []
            rows.append([device.name, figures, date, ", ".join(measured + peers.get(key, []))])
    return words_table(rows)


PROGRAMS = {"PyTorch": "pytorch", "CUDA of PyTorch": "cuda", "cuDNN": "cudnn", "Triton": "triton", "driver": "driver"}


def runs_table(shown: list[Device]) -> str:
    """A column per run of scripts/peers, with all that is known of how it measured."""
    runs = [(f"{device.name}, {regime.name}", regime.run) for device in shown for regime in device.regimes]
    runs += [(f"{device.name}, by data", device.by_data.run) for device in shown if device.by_data]
    causal = [(device, device.by_data_causal) for device in shown]
    runs += [(f"{device.name}, by data, causal", recorded.run) for device, recorded in causal if recorded]
    runs += [(f"{device.name}, by problem", device.by_problem.run) for device in shown if device.by_problem]
    runs += [(f"{device.name}, decoding", device.by_decoding.run) for device in shown if device.by_decoding]
    runs += [(f"{device.name}, gradients", device.gradients.run) for device in shown if device.gradients]
    if not runs:
        return NOT_RECORDED

    def seconds(value: float | None) -> str:
        return f"{value:g} s" if value else "–"

    def watts(value: float | None) -> str:
        return f"{value:.0f} W" if value else "–"

    rows = [["run of `scripts/peers`", *(name for name, _ in runs)]]
    dates = [[*run.get("earlier_dates", []), run["date"]] for _, run in runs]
    rows.append(["begun", *(", ".join(dict.fromkeys(day(date) for date in of_run)) for of_run in dates)])
    rows.append(["warm-up", *(seconds(run["warm_up_seconds"]) for _, run in runs)])
    timed = [f"{run['timed_seconds']:g} s" if run["timed_seconds"] else "20 launches" for _, run in runs]
    rows.append(["timed, at least", *timed])
    rows.append(["power limit", *(watts(run.get("power_limit_watts")) for _, run in runs)])
    for name, member in PROGRAMS.items():
        rows.append([name, *(str(run[member]) if run[member] is not None else "–" for _, run in runs)])
    rows.append(["not measured", *("; ".join(not_measured(run)) or "–" for _, run in runs)])
    return words_table(rows)


def peers_table(device: Device) -> str:
    rows = [["peer", "what it is"], *([peer.name, peer.note or "–"] for peer in slowest_first(device.peers))]
    return words_table(rows) if len(rows) > 1 else NOT_RECORDED


def steps_elsewhere(shown: list[Device]) -> str:
    """Which steps gain or lose on the other devices as on the first: a row for each."""
    first, *others = shown
    rows = [["GPU", "steps", "in the same direction", "in the other direction", "differs most", first.name, "there"]]
    for other in others:
        both = []
        for version in first.rungs():
            here, there = (device.step(version.source.number, SHAPE) for device in (first, other))
            if here and there:
                both.append((version.source.label, here, there))
        if not both:
            continue
        apart = [label for label, here, there in both if (here < 1) != (there < 1)]
        label, here, there = max(both, key=lambda step: max(step[1] / step[2], step[2] / step[1]))
        counts = [str(len(both)), str(len(both) - len(apart))]
        factors = [f"{three_digits(factor)}×" for factor in (here, there)]
        rows.append([other.name, *counts, ", ".join(apart) or "–", label, *factors])
    return words_table(rows) if len(rows) > 1 else NOT_RECORDED


def data_table(by_data: ByData, dtype: str, seq_len: int) -> list[list[str]]:
    """TFLOP/s: a heading and one row per implementation, slowest first on normal numbers; then the last version's
    speed as a multiple of the fastest peer's."""
    cells = [Cell(data, dtype, seq_len) for data in by_data.definitions]
    rows = [["TFLOP/s", *by_data.definitions]]
    for table, shown in ((by_data.peers, "*{}*"), (by_data.versions, "{}")):
        measured = [(label, tflops) for label, tflops in table.items() if any(cell in tflops for cell in cells)]
        if table is by_data.peers:
            measured.sort(key=lambda one: one[1].get(cells[0], 0.0))
        rows += [
            [shown.format(label), *(three_digits(tflops.get(cell)) for cell in cells)] for label, tflops in measured
        ]
    if by_data.versions and by_data.peers:
        newest = next((label for label in reversed(by_data.versions) if label[:2].isdigit()), [*by_data.versions][-1])
        factors = [by_data.of_fastest_peer(newest, cell) for cell in cells]
        rows.append(
            [f"{newest.split()[0]} / fastest peer", *(f"{factor:.2f}×" if factor else "–" for factor in factors)]
        )
    return rows


def problem_table(device: Device, problems: list[str]) -> str:
    """TFLOP/s on these problems, and the speed of the first track as a multiple of that of FlashAttention-2, which uses
    the same instructions."""
    found = device.by_problem
    if found is None:
        return NOT_RECORDED
    return table_beside_peers("TFLOP/s", problem_cells(found, problems), found.versions, found.peers, found.first_track)


def problem_cells(found: ByProblem, problems: list[str]) -> dict[ProblemCell, str]:
    return {ProblemCell(name, n): f"{name}, {n}" for name in problems for n in found.seq_lens.get(name, [])}


def gradients_table(device: Device, problems: list[str]) -> str:
    """The same of the backward pass. Deterministic versions are marked; peers have it in their names."""
    found = device.gradients
    if found is None:
        return NOT_RECORDED
    shown = {label: f"{label}, deterministic" if label in found.deterministic else label for label in found.versions}
    return table_beside_peers(
        "TFLOP/s",
        problem_cells(found, problems),
        {shown[label]: tflops for label, tflops in found.versions.items()},
        found.peers,
        {shown[label] for label in found.first_track},
        "without Hopper's instructions",
    )


def decoding_table(device: Device, problems: list[str]) -> str:
    """GB/s of K and V on these problems of the decoding track."""
    found = device.by_decoding
    if found is None:
        return NOT_RECORDED
    cells = {
        cell: (f"{name}, " if len(problems) > 1 else "") + f"{cell.batch} × {cell.seq_len_kv}"
        for name in problems
        for cell in found.cells.get(name, [])
    }
    return table_beside_peers("GB/s, sequences × keys", cells, found.versions, found.peers)


def table_beside_peers(
    figure: str,
    cells: dict[Key, str],
    all_versions: dict[str, dict[Key, float]],
    all_peers: dict[str, dict[Key, float]],
    first_track: Container[str] = (),
    name_of_first: str = "of the first track",
) -> str:
    """A heading and one row per implementation, the peers slowest first; then the speed of the fastest version as a
    multiple of the fastest peer's, and the same for the first track and FlashAttention-2. `cells` have their
    headings."""

    def fastest(of: list[dict[Key, float]], cell: Key) -> float | None:
        return max((figures[cell] for figures in of if cell in figures), default=None)

    def factors(label: str, mine: list[dict[Key, float]], theirs: list[dict[Key, float]]) -> list[str]:
        both = [(fastest(mine, cell), fastest(theirs, cell)) for cell in cells]
        return [label, *(f"{one / other:.2f}×" if one and other else "–" for one, other in both)]

    def first_figure(figures: dict[Key, float]) -> float:
        return next(figures[cell] for cell in cells if cell in figures)

    def rows_of(measured: dict[str, dict[Key, float]], shown: str) -> list[list[str]]:
        return [
            [shown.format(label), *(three_digits(of.get(cell)) for cell in cells)] for label, of in measured.items()
        ]

    if not cells:
        return NOT_RECORDED
    peers, versions = (
        {label: of for label, of in all_of_them.items() if any(cell in of for cell in cells)}
        for all_of_them in (all_peers, all_versions)
    )
    peers = dict(sorted(peers.items(), key=lambda one: first_figure(one[1])))
    rows = [[figure, *cells.values()], *rows_of(peers, "*{}*"), *rows_of(versions, "{}")]
    of_first_track = [of for label, of in versions.items() if label in first_track]
    fa2 = [peers[name] for name in ("FlashAttention-2",) if name in peers]
    compared = [
        factors("fastest version / fastest peer", [*versions.values()], [*peers.values()]),
        factors(f"fastest {name_of_first} / FlashAttention-2", of_first_track, fa2),
    ]
    return table([*rows, *(row for row in compared if any(cell != "–" for cell in row[1:]))])


def about_data_run(device: Device, by_data: ByData) -> str:
    """How the figures in a table by data were measured."""
    run, mask = by_data.run, "causal" if by_data.causal else "non-causal"
    seconds = f"{run['warm_up_seconds']:g} s to warm up, at least {run['timed_seconds']:g} s timed"
    text = f"{device.name}, {HEADS} heads, head_dim {HEAD_DIM}, {mask}; each ran alone, {seconds}."
    return f"{text} Measured {run['date'][:10]} by `scripts/peers --data all{' --causal' if by_data.causal else ''}`."


def not_measured(run: dict[str, Any]) -> list[str]:
    """What a run could not measure, and why, in our words: other programs' messages say little to a reader."""

    def reason(why: str) -> str:
        if re.match(r"(ModuleNotFound|Import)Error\b", why):
            return "not installed"
        if why.startswith("left out"):
            return "left out"
        return "failed" if re.match(r"\w*(Error|Exception)\b", why) else why

    return [f"{what}: {reason(why)}" for what, why in run["left_out"].items()]


def results_by_data(device: Device) -> str:
    return table(data_table(device.by_data, "fp16", SHAPE.seq_len)) if device.by_data else NOT_RECORDED


def peer_cases_table(device: Device) -> str:
    """A row for each of flash-attention's tests, and the sum of them."""
    recorded = load_peer_cases(device.folder)
    if recorded is None:
        return NOT_RECORDED
    rows = [["test", "cases", "not supported", "run", "passed", "failed", "solved by no version"]]
    sums = [0] * (len(rows[0]) - 1)
    for test in recorded["tests"]:
        failed, refused = len(test["failures"]), sum(test["refused"].values())
        run, left_out = test["passed"] + failed, sum(test["not_supported"].values())
        counts = [test["cases"], left_out, run, test["passed"], failed, refused]
        file, _, name = test["test"].partition("::")
        rows.append([f"{file.partition('/')[0]}: {name}", *(f"{count:,}" for count in counts)])
        sums = [sum(pair) for pair in zip(sums, counts, strict=True)]
    rows.append(["all", *(f"{count:,}" for count in sums)])
    reasons: Counter[str] = Counter()
    for test in recorded["tests"]:
        reasons.update(test["not_supported"])
    padded = sum(test["padded"] for test in recorded["tests"])
    return (
        f"{table(rows)}\n\n{about_recording(recorded)}, in {recorded['seconds']:g} s; the tests are those of commit"
        f" {recorded['flash_attention']}. Not supported: "
        f"{', '.join(f'{why} {count:,}' for why, count in reasons.most_common())}. "
        f"{padded:,} cases with packed sequences ran as padded batches."
    )


def models_table(device: Device) -> str:
    recorded = load_models(device.folder)
    if recorded is None:
        return NOT_RECORDED
    rows = [["model", "largest logit", "error of eager", "of sdpa", "of the ladder", "bound"]]
    for result in recorded["results"]:
        padded = ", padded" if result["padded"] else ""
        errors = [result["errors"].get(name) for name in ("eager", "sdpa", "ladder")]
        cells = [f"{result['model']}, {result['dtype']}{padded}", three_digits(result["largest_logit"])]
        cells += ["–" if error is None else f"{error:.2g}" for error in errors]
        rows.append([*cells, f"{result['bound']:.2g}" + ("" if result["within"] else ", exceeded")])
    sizes = recorded["sizes"]
    return (
        f"{table(rows)}\n\n{about_recording(recorded)} and transformers {recorded['transformers']}: {sizes['layers']}"
        f" layers, {sizes['heads']} heads of Q and {sizes['kv_heads']} of K and V, {sizes['tokens']} tokens, of which a"
        f" padded sequence has {sizes['shorter']}."
    )


def about_recording(recorded: dict[str, Any]) -> str:
    """Where and when it was made, and by which versions, most used first."""
    earlier = "" if is_of_present_code(recorded) else ", from an earlier text of a version"
    versions = ", ".join(name.replace("_", " ", 1) if name[0].isdigit() else name for name in recorded["kernels"])
    return f"{recorded['device']}, {day(recorded['date'])}{earlier}, by {versions}, with PyTorch {recorded['pytorch']}"


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


def kernel_file(number: int) -> Path | None:
    return next((ROOT / kernel.file for kernel in kernel_files(ROOT) if kernel.number == number), None)


@dataclass(frozen=True)
class Prediction:
    """The prediction in a version's header: a factor over the version before, or TFLOP/s."""

    value: float
    is_factor: bool

    def __str__(self) -> str:
        return f"{self.value:g}×" if self.is_factor else f"{self.value:g} TFLOP/s"


def prediction(kernel: Path) -> Prediction:
    """The last factor in the Prediction of its header, or the one "at 4096". Raises PageError if there is none."""
    header = kernel.read_text(encoding="utf-8").split("\n\n")[0:2]
    lines = [line.removeprefix("//").strip() for line in "\n".join(header).splitlines() if line.startswith("//")]
    text = " ".join(lines).partition("Prediction ")[2]
    found = list(re.finditer(r"(?<![\w.])(\d+(?:\.\d+)?)x\b|gains? (\d+) %|(?<![\w.])(\d+(?:\.\d+)?) TFLOP/s", text))
    if not found:
        raise PageError(f'{kernel.relative_to(ROOT)}: its Prediction names no factor, such as "1.1x in TFLOP/s"')
    at_shape = [one for one in found if text.startswith(f" at {SHAPE.seq_len}", one.end())]
    factor, percent, tflops = (at_shape or found)[-1].groups()
    if tflops:
        return Prediction(float(tflops), is_factor=False)
    value = float(factor) if factor else 1 + int(percent) / 100
    return Prediction(value, is_factor=True)


VERDICTS = (
    "as predicted",
    "less than predicted",
    "more than predicted",
    "slower",
    "slower than predicted",
    "faster",
    "faster than predicted",
)


def verdict(predicted: Prediction, got: float) -> str:
    """Judges a factor, or TFLOP/s: returns one of VERDICTS. A factor is judged by its gain, the factor minus 1."""
    if predicted.is_factor and predicted.value == 1:
        return "as predicted" if abs(got - 1) <= UNCHANGED else "faster" if got > 1 else "slower"
    share = (got - 1) / (predicted.value - 1) if predicted.is_factor else got / predicted.value
    if 1 / WITHIN <= share <= WITHIN:
        return "as predicted"
    if predicted.is_factor and (got < 1) != (predicted.value < 1):
        return "slower" if got < 1 else "faster"
    if predicted.is_factor and predicted.value < 1:
        return "slower than predicted" if got < predicted.value else "faster than predicted"
    return "less than predicted" if got < predicted.value else "more than predicted"


def score(device: Device) -> str:
    """How many versions received each verdict."""
    found = [verdict_cell(device, one.source.number) for one in device.rungs() if one.source.number is not None]
    counts = {name: found.count(name) for name in VERDICTS if name in found}
    return table([["predictions", *counts], [str(sum(counts.values())), *map(str, counts.values())]])


def gain(factor: float) -> str:
    """5.4 % for 1.054×; factors of 2 and above stay factors."""
    if factor >= 2:
        return f"{three_digits(factor)}×"
    percent = round(100 * (factor - 1), 1)
    sign = "−" if percent < 0 else "+" if percent > 0 else "±"
    return f"{sign}{abs(percent):.1f} %"


def predicted_cell(number: int) -> str:
    kernel = kernel_file(number)
    return str(prediction(kernel)) if kernel else "–"


def predicted_gain(number: int) -> str:
    kernel = kernel_file(number)
    predicted = prediction(kernel) if kernel else None
    if predicted is None:
        return "–"
    return gain(predicted.value) if predicted.is_factor and predicted.value < 2 else str(predicted)


def verdict_cell(device: Device, number: int) -> str:
    kernel = kernel_file(number)
    predicted = prediction(kernel) if kernel else None
    if predicted and predicted.is_factor:
        got = device.step(number, SHAPE)
    else:
        got = next((version.tflops.get(SHAPE) for version in device.rungs() if version.source.number == number), None)
    return verdict(predicted, got) if predicted and got else "not recorded"


def ladder_log_cell(device: Device, number: int) -> str:
    """TFLOP/s, and the gain over the version before, which is what the predictions are about."""
    here = next((version.tflops.get(SHAPE) for version in device.rungs() if version.source.number == number), None)
    if here is None:
        return "not recorded"
    step = device.step(number, SHAPE)
    return three_digits(here) + (f" ({gain(step)})" if step else "")


def extension_cell(device: Device, name: str, base: str) -> str:
    """TFLOP/s of an extension, and its gain over the version that it extends, both from `harness --record`.

    An extension that computes only e4m3 is shown with its e4m3 figures.
    """

    def recorded(of: Device, kernel: str) -> float | None:
        return next((version.recorded.get(SHAPE) for version in of.versions if version.source.kernel == kernel), None)

    here, there = recorded(device, name), recorded(device, base)
    if here is None:
        here = recorded(load_device(device.folder, "e4m3"), name)
    if here is None or there is None:
        return "not recorded"
    files = {file.kernel: ROOT / "profiles" / device.folder / f"{file.stem}.json" for file in kernel_files(ROOT)}
    hashes = {kernel: json.loads(files[kernel].read_text(encoding="utf-8"))["code_hash"] for kernel in (name, base)}
    if not is_of_present_code({"code_hash": hashes}):
        return f"{three_digits(here)}, from an earlier text"  # of it or of its base: not compared
    return f"{three_digits(here)} ({gain(here / there)})"


def decoding_cell(device: Device, kernel: str, kv_heads: int) -> str:
    """GB/s of K and V of a version of the decoding track, with 32 heads, at batch 16 and 32,768 keys."""
    stem = next((one.stem for one in kernel_files(ROOT) if one.kernel == kernel), kernel)
    path = ROOT / "profiles" / device.folder / f"{stem}.json"
    if not path.exists():
        return "not recorded"
    wanted = {"batch": 16, "heads": 32, "seq_len": 1, "seq_len_kv": 32768, "head_dim": 128, "dtype": "fp16"}
    if kv_heads != wanted["heads"]:
        wanted["kv_heads"] = kv_heads
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = [one["kv_gb_per_s"] for one in results if one["problem"] == wanted]
    return f"{max(found):,.0f}" if found else "not recorded"


def backward_cell(device: Device, kernel: str) -> str:
    """TFLOP/s of a version of the backward track, in fp16, by `harness --record`."""
    stem = next((one.stem for one in kernel_files(ROOT) if one.kernel == kernel), kernel)
    path = ROOT / "profiles" / device.folder / f"{stem}.json"
    if not path.exists():
        return "not recorded"
    results = json.loads(path.read_text(encoding="utf-8"))["results"]
    found = [
        one["tflops"]
        for one in results
        if (one["problem"]["seq_len"], one["problem"]["seq_len_kv"]) == (SHAPE.seq_len, SHAPE.seq_len)
        and one["problem"]["dtype"] == "fp16"
        and not one["problem"].get("causal")
    ]
    return three_digits(max(found)) if found else "not recorded"


def step_cell(device: Device, number: int, seq_len: int) -> str:
    """The gain over the version before."""
    shape = next((shape for shape in device.shapes() if shape.seq_len == seq_len), None)
    step = device.step(number, shape) if shape else None
    return gain(step) if step else "not recorded"


def ladder_row(found: re.Match[str], device: Device) -> str:
    """A row of the README's table. Its name and its idea are typed, and the rest comes from the recordings."""
    label, file, idea = found.groups()
    number, stem = label[:2], label.replace(" ", "_", 1)
    version = next((one for one in device.rungs() if one.source.kernel == number), None)
    step = device.step(int(number), SHAPE) if version else None
    chapter = f"chapters/{stem}.md"
    cells = [f"[{label}]({file})", idea, three_digits(version.tflops.get(SHAPE) if version else None)]
    cells.append(f"{step:.2f}×" if step else "–")
    cells.append(f"[{number}](docs/{chapter})" if (ROOT / "docs" / "source" / chapter).is_file() else "–")
    return f"| {' | '.join(cells)} |"


def fill_readme(text: str, device: Device) -> str:
    rungs = device.rungs()
    ends = [three_digits(version.tflops.get(SHAPE)) for version in (rungs[0], rungs[-1])] if rungs else ["–", "–"]
    count = sum(kernel.number is not None for kernel in kernel_files(ROOT))
    for mark, figure in (("versions", str(count)), ("first", ends[0]), ("last", ends[1])):
        text, found = re.subn(rf"(?<=<!-- {mark} -->)[^\n<]*(?=<!-- end -->)", lambda _, f=figure: f, text)
        if not found:
            raise PageError(f"{README} has no mark <!-- {mark} --> with <!-- end --> on the same line")
    (rows,) = sections(README, text, "ladder")
    row = re.compile(r"^\| \[(\d\d \w+)\]\(([^)]*)\) \| ([^|]*?) \|.*\|$", re.MULTILINE)
    return text.replace(rows, row.sub(lambda found: ladder_row(found, device), rows))


def sections(page: Path, text: str, mark: str) -> list[str]:
    """What is between marks that are on lines of their own. Raises PageError unless there is one of them."""
    found = re.findall(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)", text, re.DOTALL)
    if len(found) != 1:
        raise PageError(f"{page} needs the marks <!-- {mark} --> and <!-- end --> once, each on a line of its own")
    return found


def fill_results(text: str, device: Device, others: list[Device]) -> str:
    shown = [device, *others]
    by_folder = {one.folder: one for one in shown}

    def of(folder: str, make: Callable[[Device], str]) -> str:
        return make(by_folder[folder]) if folder in by_folder else NOT_RECORDED

    fillers: dict[str, Callable[..., str]] = {
        r"(sustained|interleaved) (\S+)": lambda name, folder: of(folder, lambda one: regime_table(one, name)),
        r"recorded (\S+)": lambda folder: of(folder, recorded_table),
        r"ceilings": lambda: ceilings_table(shown),
        r"GPUs": lambda: gpus_table(shown),
        r"by data": lambda: results_by_data(device),
        r"by problem ([\w -]+?)": lambda names: problem_table(device, names.split()),
        r"decoding ([\w -]+?)": lambda names: decoding_table(device, names.split()),
        r"gradients ([\w -]+?)": lambda names: gradients_table(device, names.split()),
        r"peer cases": lambda: peer_cases_table(device),
        r"models": lambda: models_table(device),
        r"dates": lambda: dates_table(shown),
        r"runs": lambda: runs_table(shown),
        r"peers": lambda: peers_table(device),
    }
    for mark, fill in fillers.items():
        marked = re.compile(rf"^<!-- ({mark}) -->\n.*?^<!-- end -->$", re.DOTALL | re.MULTILINE)
        text, count = marked.subn(lambda m, fill=fill: f"<!-- {m[1]} -->\n{fill(*m.groups()[1:])}\n<!-- end -->", text)
        if count == 0:
            raise PageError(f"{RESULTS} needs the marks <!-- {mark} --> and <!-- end -->, each on a line of its own")
    return text


def fill_ladder_log(text: str, device: Device, others: list[Device]) -> str:
    fillers: dict[str, Callable[..., str]] = {
        r"predicted (\d\d)": lambda number: predicted_gain(int(number)),
        r"tflops (\d\d)": lambda number: ladder_log_cell(device, int(number)),
        r"verdict (\d\d)": lambda number: verdict_cell(device, int(number)),
        r"tflops ([a-z]\w*) of (\w+)": lambda name, base: extension_cell(device, name, base),
        r"tflops (B\d\d)": lambda kernel: backward_cell(device, kernel),
        r"kv_gb_per_s (D\d\d) (\d+)": lambda kernel, kv_heads: decoding_cell(device, kernel, int(kv_heads)),
        r"step (\d\d) (\d+)": lambda number, seq_len: step_cell(device, int(number), int(seq_len)),
        r"rule seq_len": lambda: str(SHAPE.seq_len),
        r"rule within": lambda: f"{WITHIN:g}",
        r"rule unchanged": lambda: f"{100 * UNCHANGED:g} %",
    }
    found = 0
    for mark, fill in fillers.items():
        text, count = re.subn(
            rf"<!-- ({mark}) -->[^\n|]*?<!-- end -->",
            lambda m, fill=fill: f"<!-- {m[1]} -->{fill(*m.groups()[1:])}<!-- end -->",
            text,
        )
        found += count
    for mark, rows in (("score", score(device)), ("other GPUs", steps_elsewhere([device, *others]))):
        (before,) = sections(LADDER_LOG, text, mark)
        text = text.replace(f"<!-- {mark} -->\n{before}", f"<!-- {mark} -->\n{rows}\n")
        found += 1
    if found != text.count("<!-- ") - text.count("<!-- end -->") or found != text.count("<!-- end -->"):
        marks = (
            "score, predicted NN, tflops NN, tflops NAME of NN, verdict NN, step NN SEQ_LEN, rule seq_len, rule within,"
            " rule unchanged, other GPUs"
        )
        raise PageError(f"{LADDER_LOG}: some of its marks are not among {marks}, or have no <!-- end -->")
    for version in device.rungs():
        number, label = version.source.kernel, version.source.label
        if not re.search(rf"^\| {re.escape(label)} \|.*<!-- verdict {number} -->", text, re.MULTILINE):
            start, mark = f"| {label} |", f"<!-- verdict {number} -->"
            raise PageError(f"{LADDER_LOG} has no row of version {label}: none begins {start} and has {mark}")
    return text


COUNTERS = (
    ("shared loads, wavefronts: virtual / {device}", "shared_load_wavefronts"),
    ("shared stores", "shared_store_wavefronts"),
    ("global loads, sectors", "global_load_sectors"),
    ("global stores", "global_store_sectors"),
)


def counters_table(device: Device, numbers: list[int]) -> str:
    """For each version, the counts of the virtual GPU, and of Nsight Compute on the device for the same problem."""
    path = ROOT / "profiles" / device.folder / "ncu.json"
    counted: dict[str, dict[str, int]] = {}
    if path.exists():
        try:
            counted = json.loads(path.read_text(encoding="utf-8"))["versions"]
        except (OSError, ValueError, RecursionError, KeyError, TypeError) as error:
            advice = "measure it again with scripts/ncu_counters.py"
            raise ProfileError(f"{path} cannot be used: {error!r}; {advice}") from error
    short = device.name.removeprefix("NVIDIA ")
    headings = ["version", *(heading.format(device=short) for heading, _ in COUNTERS)]
    lines = [f"| {' | '.join(headings)} |", f"|{'---|' * len(headings)}"]
    for number in numbers:
        kernel = next((kernel for kernel in kernel_files(ROOT) if kernel.number == number), None)
        if kernel is None:
            raise PageError(f"{VIRTUAL_GPU}: there is no version {number:02}")
        virtual = virtual_counters(kernel)
        on_device = counted.get(kernel.stem)
        cells = []
        for _, counter in COUNTERS:
            both = [found and found[counter] for found in (virtual, on_device)]
            figures = ["not recorded" if figure is None else f"{figure:,d}" for figure in both]
            cells.append("–" if both == [0, 0] else " / ".join(figures))
        lines.append(f"| {kernel.label} | {' | '.join(cells)} |")
    return "\n".join(lines)


def virtual_counters(kernel: KernelFile) -> dict[str, int] | None:
    """Counters of the version's first configuration and fp16; None if it is not recorded."""
    path = ROOT / "profiles" / "emulator" / f"{kernel.stem}.json"
    if not path.is_file():
        return None
    try:
        results = json.loads(path.read_text(encoding="utf-8"))["results"]
        return next(result["counters"] for result in results if result["problem"]["dtype"] == "fp16")
    except (OSError, ValueError, RecursionError, KeyError, TypeError, StopIteration) as error:
        raise ProfileError(f"{path} cannot be used: {error!r}; record it again") from error


def fill_virtual_gpu(text: str, device: Device) -> str:
    marked = re.compile(r"(?<=<!-- counters )([\d ]+)( -->\n)(.*?)(?=<!-- end -->)", re.DOTALL)
    if len(marked.findall(text)) != 1:
        raise PageError(
            f"{VIRTUAL_GPU} needs the marks <!-- counters 03 04 … --> and <!-- end --> once, each on a line of its own"
        )
    text = marked.sub(lambda m: f"{m[1]}{m[2]}{counters_table(device, [int(n) for n in m[1].split()])}\n", text)
    mutation = re.compile(r"(?<=<!-- mutation -->\n).*?(?=<!-- end -->)", re.DOTALL)
    if len(mutation.findall(text)) != 1:
        raise PageError(
            f"{VIRTUAL_GPU} needs the marks <!-- mutation --> and <!-- end --> once, each on a line of its own"
        )
    rows, untried = mutation_table()
    text, found = re.subn(r"(?<=<!-- not mutated -->)[^<]*(?=<!-- end -->)", lambda _: untried, text)
    if found != 1:
        raise PageError(f"{VIRTUAL_GPU} needs the marks <!-- not mutated --> and <!-- end --> once, on one line")
    return mutation.sub(lambda _: f"{rows}\n", text)


def mutation_table() -> tuple[str, str]:
    """How many mistakes scripts/mutate.py made in each version, and how many the check found, then and now; and the
    versions that it has not tried."""
    try:
        versions = json.loads(mutate.PUBLISHED.read_text(encoding="utf-8"))["versions"]
        lines = ["| version | mistakes | found before | found now | not found |", "|---|---|---|---|---|"]
        total = {"now": [0, 0], "before": [0, 0]}  # of the versions that this check has tried: found, mistakes
        kernels = kernel_files(ROOT)
        for kernel in kernels:
            if kernel.stem not in versions:
                continue
            version = versions[kernel.stem]
            counts = {name: version[name] for name in total if version[name] is not None}
            found = {name: sum(of[outcome] for outcome in mutate.KILLED) for name, of in counts.items()}
            mistakes = found["now"] + version["now"]["survived"]
            for name in counts:
                total[name] = [total[name][0] + found[name], total[name][1] + mistakes]
            text = (ROOT / kernel.file).read_text(encoding="utf-8")
            older = "" if version["code"] == mutate.code_digest(text) else " (its code has changed since)"
            lines.append(
                f"| {kernel.label}{older} | {mistakes} | {found.get('before', '–')} | {found['now']} "
                f"| {mistakes - found['now']} |"
            )
        # Rounded down: one mistake that is missed must not read as 100 %.
        share = {name: f"{found}: {1000 * found // of / 10} %" if of else "–" for name, (found, of) in total.items()}
        if 0 < total["before"][1] < total["now"][1]:
            share["before"] += f" of {total['before'][1]}"
        found_now, mistakes = total["now"]
        lines.append(f"| all | {mistakes} | {share['before']} | {share['now']} | {mistakes - found_now} |")
        untried = [f"`{kernel.kernel}`" for kernel in kernels if kernel.stem not in versions]
        return "\n".join(lines), ", ".join(untried) or "none"
    except (OSError, ValueError, RecursionError, KeyError, TypeError, ZeroDivisionError) as error:
        path = mutate.PUBLISHED
        raise ProfileError(f"{path} cannot be used: {error!r}; scripts/mutate.py --publish writes it") from error


def update(check: bool) -> list[str]:
    """The files that were out of date; they are updated unless `check`."""
    folders = devices()
    if not folders:
        raise ProfileError(f"{ROOT / 'profiles'} contains no device: harness --record measures one")
    device, *others = (load_device(folder) for folder in folders)
    for file in device.missing:
        folder = f"profiles/{device.folder}"
        print(f"update_docs.py: {file} has no profile in {folder}, so the docs show no figures of it", file=sys.stderr)

    outdated = []
    fill_page: Callable[[str], str]
    for page, fill_page in (
        (README, lambda text: fill_readme(text, device)),
        (RESULTS, lambda text: fill_results(text, device, others)),
        (LADDER_LOG, lambda text: fill_ladder_log(text, device, others)),
        (VIRTUAL_GPU, lambda text: fill_virtual_gpu(text, device)),
    ):
        path = ROOT / page
        if not path.is_file():
            raise PageError(f"there is no {page}")
        text = path.read_text(encoding="utf-8")
        filled = fill_page(text)
        if filled != text:
            outdated.append(str(page))
            if not check:
                write_whole(path, filled)
    for figure in plot.plots(device, SHAPE):
        if not figure.is_current(ROOT / FIGURES):
            outdated.append(str(FIGURES / figure.file))
            if not check:
                figure.write(ROOT / FIGURES)
    return outdated


def main() -> int:
    parser = argparse.ArgumentParser(description="Writes the measurements in profiles/ into the docs.")
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
