#!/usr/bin/env python3
"""Writes measurements from profiles/ into the docs, so that no figure is ever typed:

  README.md             the results, between <!-- results --> and <!-- end -->, and those for other data than random
                        normal numbers, between <!-- by data --> and <!-- end -->
  docs/ladder_log.md    between the following and <!-- end -->:
                          <!-- score -->            how many predictions came true, and how the others failed
                          <!-- predicted 06 -->     the gain over the version before, as predicted by the header of 06
                          <!-- tflops 06 -->        what it reached, and its gain over the version before
                          <!-- verdict 06 -->       the verdict on the prediction
                          <!-- step 06 512 -->      its gain over the version before at seq_len 512
                          <!-- verdict rule -->     how predictions are judged
                          <!-- other GPUs -->       which steps gain or lose there as on the first device
  docs/virtual_gpu_internals.md
                        between <!-- counters 03 04 … --> and <!-- end -->, each on a separate line: what the virtual
                        GPU and Nsight Compute count for these versions, side by side; between <!-- mutation --> and
                        <!-- end --> how many of scripts/mutate.py's mistakes the check finds
  docs/figures/*.svg    by scripts/plot.py

The device is the first of profiles/ (profiles/shown_first.txt names it); the README compares others with it.

What a version predicts is the last factor in the Prediction of its header: "1.05x", or "gains 5 %", or, for the first
version, "1 TFLOP/s". If it predicts for several lengths, "1.02x at 4096" is the one that counts.

With --check it writes nothing, lists what is out of date, and exits with status 1 if anything is. Exits with status 3
if a profile, a page or a header cannot be used.
"""

from __future__ import annotations

import argparse
import json
import re
import sys
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import mutate
import plot
from kernel_files import KernelFile, kernel_files
from ladder import HEAD_DIM, HEADS, ROOT, is_fast, write_whole
from profile_data import (
    ByData,
    Cell,
    Device,
    Peer,
    ProfileError,
    Regime,
    Shape,
    Speeds,
    Version,
    devices,
    harmonic_mean,
    load_device,
    three_digits,
)

SHAPE = Shape(seq_len=4096, batch=16)  # the shape at which versions are compared

README = Path("README.md")
LADDER_LOG = Path("docs/ladder_log.md")
VIRTUAL_GPU = Path("docs/virtual_gpu_internals.md")
FIGURES = Path("docs/figures")

WITHIN = 1.5  # a gain is as predicted if it is at most this factor larger or smaller
UNCHANGED = 0.01  # a gain or loss up to this is as predicted if no change was predicted


class PageError(Exception):
    """A page lacks the marks that this script fills in, or a header lacks the information that goes there."""


def shares(tflops: dict[Shape, float], reference: Peer | None) -> list[str]:
    """The fraction of the reference's speed at SHAPE, and in harmonic mean over all of the reference's shapes."""
    if reference is None:
        return ["–", "–"]
    shapes = sorted(reference.tflops)
    pairs = [
        (tflops.get(SHAPE), reference.tflops.get(SHAPE)),
        (harmonic_mean(tflops, shapes), harmonic_mean(reference.tflops, shapes)),
    ]
    return [f"{three_digits(100 * here / there)} %" if here and there else "–" for here, there in pairs]


def reference_of(device: Device) -> Peer | None:
    return next((peer for peer in device.peers if peer.name == plot.REFERENCE), None)


def not_beside_peers(device: Device) -> list[Version]:
    """Versions that scripts/peers times, but has not timed yet: their figures must not be compared with a peer's."""
    if device.regime is None:
        return []
    return [one for one in device.versions if is_fast(one.source.stem) and not one.beside_peers.tflops]


def load_cells(speeds: Speeds) -> list[str]:
    """Watts, clock, and TFLOP/s per watt, at SHAPE."""
    watts, clock, per_watt = (of.get(SHAPE) for of in (speeds.watts, speeds.sm_clock_mhz, speeds.tflops_per_watt))
    return [f"{watts:.0f} W, {clock} MHz" if watts and clock else "–", three_digits(per_watt)]


def results_table(device: Device, others: list[Device]) -> str:
    """README's table: one row per version, followed by the peers, slowest first."""
    shapes = device.shapes()
    reference = reference_of(device)
    peers = sorted(device.peers, key=lambda peer: peer.tflops.get(SHAPE, 0.0))
    unmeasured = not_beside_peers(device)
    rows = [
        (
            f"[{one.source.label}]({one.source.file})",
            one.tflops,
            one.beside_peers,
            None if one in unmeasured else reference,
        )
        for one in device.versions
    ]
    rows += [(f"*{peer.name}*", peer.tflops, peer.speeds, reference) for peer in peers]
    with_load = any(speeds.watts for _, _, speeds, _ in rows)

    header = ["TFLOP/s at seq_len", *(str(shape.seq_len) for shape in shapes)]
    header += [f"of {plot.SHORT_REFERENCE} at {SHAPE.seq_len}", f"of {plot.SHORT_REFERENCE}, mean"]
    header += [f"at {SHAPE.seq_len}", "TFLOP/s per W"] if with_load else []
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    for name, tflops, speeds, compared_with in rows:
        cells = [name, *(three_digits(tflops.get(shape)) for shape in shapes), *shares(tflops, compared_with)]
        lines.append(f"| {' | '.join(cells + (load_cells(speeds) if with_load else []))} |")

    batches = {shape.batch: [str(s.seq_len) for s in shapes if s.batch == shape.batch] for shape in shapes}
    batch = "; ".join(f"{size} at {', '.join(seq_lens)}" for size, seq_lens in batches.items())
    text = (
        f"{device.name}, {device.dtype}, {HEADS} heads, head_dim {HEAD_DIM}, non-causal, random normal inputs; batch"
        f" {batch}."
        f" {recorded_with(device.versions)}"
    )
    for name, tflops in device.ceilings.items():
        text += f" The ceiling of `{name}`: {three_digits(tflops)} TFLOP/s."
    paragraphs = [text]
    if device.regime:
        paragraphs.append(about_regimes(device))
        paragraphs.append(about_peers(device.regime, peers))
    if others:
        paragraphs.append(carried_over([device, *others]))
    return "\n".join([*lines, "", "\n\n".join(paragraphs)])


def about_regimes(device: Device) -> str:
    """How the figures in the table were timed, and what the other regime gives."""
    shown, *others = device.regimes
    text = ""
    if shown.name == "sustained":
        limit = shown.run["power_limit_watts"]
        at_limit = f" of {limit:.0f} W" if limit else ""
        text = (
            f"*Sustained*: each ran alone, {shown.run['warm_up_seconds']:g} s to warm up and then at least"
            f" {shown.run['timed_seconds']:g} s timed, at the clock that the power limit{at_limit} leaves it."
        )
        if others:
            text += (
                " *Interleaved* figures differ: there all take turns, launch by launch, and kernels that draw much"
                " power profit from the rests that slower ones give the power budget."
            )
            text += differences(device)
            text += " Figures are compared inside one regime only, but for what did not take part."
    else:
        text = "*Interleaved*: all took turns, launch by launch."
    if reference_of(device):
        text += (
            f" {plot.SHORT_REFERENCE} is {plot.REFERENCE}; the mean is the harmonic one, over the lengths that"
            f" {plot.SHORT_REFERENCE} was measured at."
        )
    earlier = [version.source for version in device.versions if version.source.kernel in shown.earlier]
    if earlier:
        text += f" {ranges(earlier)}: recorded from an earlier text of these versions, {shown.run['date'][:10]}."
    unmeasured = not_beside_peers(device)
    apart = [one for one in device.versions if not one.beside_peers.tflops and one not in unmeasured]
    if unmeasured:
        text += (
            f" {ranges([version.source for version in unmeasured])} were not part of this run: their figures are those"
            " of `harness --record`, alone and for a shorter time, in which the power limit holds them back less. So no"
            f" share of {plot.SHORT_REFERENCE} is given before they have been measured beside it."
        )
    if apart:
        watts = max((watts for version in apart for watts in version.watts_recorded), default=None)
        text += (
            f" {ranges([version.source for version in apart])} did not take part: they are too slow for it. Their"
            f" figures are those of `harness --record`, alone and for a shorter time"
            f"{f', at no more than {watts:.0f} W' if watts else ''}, and so are their factors and shares."
        )
    return text


def differences(device: Device) -> str:
    """The other regime's figures at SHAPE, for the fastest version and the peers."""
    other = device.regimes[1]
    pairs = [(peer.name, peer.tflops, next((p.tflops for p in other.peers if p.name == peer.name), {}))
             for peer in device.peers]  # fmt: skip
    newest = device.rungs()[-1]
    for (kernel, _), speeds in other.versions.items():
        if kernel == newest.source.kernel:
            pairs.append((f"version {kernel}", newest.beside_peers.tflops, speeds.tflops))
    both = sorted((here[SHAPE], there[SHAPE], name) for name, here, there in pairs if SHAPE in here and SHAPE in there)
    if not both:
        return ""
    figures = ", ".join(f"{name} {three_digits(there)} instead of {three_digits(here)}" for here, there, name in both)
    return f" At {SHAPE.seq_len}, in TFLOP/s: {figures}."


def carried_over(shown: list[Device]) -> str:
    """A short table of all devices: which of the ladder's gains hold on another GPU."""
    header = [f"TFLOP/s at seq_len {SHAPE.seq_len}"]
    for device in shown:
        header += [device.name, f"of {plot.SHORT_REFERENCE}, mean"]
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    tables = [{version.source.label: version.tflops for version in device.versions} for device in shown]
    tables_of_peers = [{f"*{peer.name}*": peer.tflops for peer in device.peers} for device in shown]
    unmeasured = [{version.source.label for version in not_beside_peers(device)} for device in shown]
    for of_devices in (tables, tables_of_peers):
        names = list(dict.fromkeys(name for table in of_devices for name in table))
        if of_devices is tables_of_peers:
            names.sort(key=lambda name: of_devices[0].get(name, {}).get(SHAPE, 0.0))
        for name in names:
            cells = [name]
            for device, table, without in zip(shown, of_devices, unmeasured, strict=True):
                tflops = table.get(name, {})
                compared_with = None if name in without else reference_of(device)
                cells += [three_digits(tflops.get(SHAPE)), shares(tflops, compared_with)[1]]
            lines.append(f"| {' | '.join(cells)} |")
    texts = [f"{device.name}: {device.regime.name if device.regime else 'no peers'}. {recorded_with(device.versions)}"
             for device in shown[1:]]  # fmt: skip
    return "\n".join(["What carries over to another GPU:", "", *lines, "", " ".join(texts), "", steps_elsewhere(shown)])


def steps_elsewhere(shown: list[Device]) -> str:
    """Which steps gain or lose on the other devices as on the first: a sentence or two for each."""
    first, *others = shown
    sentences = []
    for other in others:
        both = []
        for version in first.rungs():
            here, there = (device.step(version.source.number, SHAPE) for device in (first, other))
            if here and there:
                both.append((version.source.label, here, there))
        if not both:
            continue
        apart = [step for step in both if (step[1] < 1) != (step[2] < 1)]
        text = f"{other.name}: of {len(both)} steps, {len(both) - len(apart)} go the same way as on {first.name},"
        text += " up or down"
        text += "".join(f"; {label} does not ({three_digits(a)}× and {three_digits(b)}×)" for label, a, b in apart)
        label, here, there = max(both, key=lambda step: max(step[1] / step[2], step[2] / step[1]))
        text += f". The factors differ most at {label}: {three_digits(here)}× and {three_digits(there)}×."
        sentences.append(text)
    return " ".join(sentences) or "No other GPU is recorded."


def data_table(by_data: ByData, dtype: str, seq_len: int) -> list[list[str]]:
    """TFLOP/s: a heading and one row per implementation, slowest first on normal numbers; then the newest version's
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
        newest = list(by_data.versions)[-1]
        factors = [by_data.of_fastest_peer(newest, cell) for cell in cells]
        rows.append(
            [f"{newest.split()[0]} / fastest peer", *(f"{factor:.2f}×" if factor else "–" for factor in factors)]
        )
    return rows


def about_data_run(device: Device) -> str:
    """How the figures in the table by data were measured."""
    assert device.by_data is not None
    run = device.by_data.run
    seconds = f"{run['warm_up_seconds']:g} s to warm up, at least {run['timed_seconds']:g} s timed"
    text = f"{device.name}, {HEADS} heads, head_dim {HEAD_DIM}, non-causal; each ran alone, {seconds}."
    return f"{text} Measured {run['date'][:10]} by `scripts/peers --data`."


def left_out(run: dict[str, Any]) -> str:
    """What a run could not measure, as a sentence; empty if there is nothing."""
    found = "; ".join(f"{what} ({why})" for what, why in run["left_out"].items())
    return f" Left out: {found}." if found else ""


def results_by_data(device: Device) -> str:
    """README's second table."""
    if device.by_data is None:
        return "Not recorded yet: `scripts/peers --data all` measures it on a GPU."
    header, *rows = data_table(device.by_data, "fp16", SHAPE.seq_len)
    lines = [f"| {' | '.join(header)} |", f"|---|{'---:|' * (len(header) - 1)}"]
    lines += [f"| {' | '.join(row)} |" for row in rows]
    note = f"At seq_len {SHAPE.seq_len}, batch {SHAPE.batch}, in fp16. {about_data_run(device)}"
    note += left_out(device.by_data.run)
    plotted = "![TFLOP/s of the newest version and its peers on each kind of data](docs/figures/by_data.svg)"
    return "\n\n".join(["\n".join(lines), note, plotted])


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


def about_peers(regime: Regime, peers: list[Peer]) -> str:
    named = [f"{peer.name} ({peer.note})" if peer.note else peer.name for peer in peers]
    run = regime.run
    programs = {"PyTorch": "pytorch", "its CUDA": "cuda", "cuDNN": "cudnn", "Triton": "triton", "driver": "driver"}
    used = ", ".join(f"{name} {run[member]}" for name, member in programs.items() if run[member] is not None)
    text = f"The peers: {'; '.join(named) or 'none'}. Measured {run['date'][:10]} by `scripts/peers`, with {used}."
    return text + left_out(run)


def recorded_with(versions: list[Version]) -> str:
    if not versions:
        return "No version is recorded yet."

    def unique(values: Iterable[str | None]) -> str:
        return ", ".join(sorted({value or "unknown" for value in values}))

    return (
        f"Recorded {unique(version.date and version.date[:10] for version in versions)} with CUDA"
        f" {unique(version.toolkit for version in versions)}, driver {unique(version.driver for version in versions)}."
    )


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


def verdict_rule() -> str:
    return (
        f"A step comes out *as predicted* if its gain at seq_len {SHAPE.seq_len} is at most {WITHIN:g} times the"
        f" predicted gain and at least 1/{WITHIN:g} of it; otherwise it gained *less* or *more than predicted*. A step"
        f" is *slower* if a gain was predicted and it lost speed (*faster* in the opposite case), and *slower than"
        f" predicted* or *faster than predicted* if a loss was predicted and it came out larger or smaller. If no"
        f" change was predicted, up to {100 * UNCHANGED:g} % either way is as predicted. Figures are"
        f" judged before rounding. For the first version, TFLOP/s are judged in the same way."
    )


def score(device: Device) -> str:
    """How many versions have each verdict."""
    found = [verdict_cell(device, one.source.number) for one in device.rungs() if one.source.number is not None]
    counts = [(name, found.count(name)) for name in VERDICTS if name in found]
    return f"of {sum(count for _, count in counts)} predictions, " + ", ".join(f"{n} {name}" for name, n in counts)


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
    return f"{three_digits(here)} ({gain(here / there)})"


def step_cell(device: Device, number: int, seq_len: int) -> str:
    """The gain over the version before."""
    shape = next((shape for shape in device.shapes() if shape.seq_len == seq_len), None)
    step = device.step(number, shape) if shape else None
    return gain(step) if step else "not recorded"


def fill_readme(text: str, device: Device, others: list[Device]) -> str:
    for mark, filling in (("results", results_table(device, others)), ("by data", results_by_data(device))):
        marked = re.compile(rf"(?<=<!-- {mark} -->\n).*?(?=<!-- end -->)", re.DOTALL)
        if len(marked.findall(text)) != 1:
            raise PageError(
                f"{README} needs the marks <!-- {mark} --> and <!-- end --> once, each on a line of its own"
            )
        text = marked.sub(lambda _, filling=filling: filling + "\n", text)
    return text


def fill_ladder_log(text: str, device: Device, others: list[Device]) -> str:
    fillers: dict[str, Callable[..., str]] = {
        r"score": lambda: score(device),
        r"predicted (\d\d)": lambda number: predicted_gain(int(number)),
        r"tflops (\d\d)": lambda number: ladder_log_cell(device, int(number)),
        r"verdict (\d\d)": lambda number: verdict_cell(device, int(number)),
        r"tflops ([a-z]\w*) of (\d\d)": lambda name, base: extension_cell(device, name, base),
        r"step (\d\d) (\d+)": lambda number, seq_len: step_cell(device, int(number), int(seq_len)),
        r"verdict rule": verdict_rule,
        r"other GPUs": lambda: steps_elsewhere([device, *others]),
    }
    found = 0
    for mark, fill in fillers.items():
        text, count = re.subn(
            rf"<!-- ({mark}) -->[^\n|]*?<!-- end -->",
            lambda m, fill=fill: f"<!-- {m[1]} -->{fill(*m.groups()[1:])}<!-- end -->",
            text,
        )
        found += count
    if found != text.count("<!-- ") - text.count("<!-- end -->") or found != text.count("<!-- end -->"):
        marks = (
            "score, predicted NN, tflops NN, tflops NAME of NN, verdict NN, step NN SEQ_LEN, verdict rule, other GPUs"
        )
        raise PageError(f"{LADDER_LOG}: of its marks, some are none of {marks}, or have no <!-- end -->")
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
            advice = "measure it anew with scripts/ncu_counters.py"
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
    return mutation.sub(lambda _: f"{mutation_table()}\n", text)


def mutation_table() -> str:
    """How many mistakes scripts/mutate.py made in each version, and how many the check found, then and now."""
    try:
        versions = json.loads(mutate.PUBLISHED.read_text(encoding="utf-8"))["versions"]
        lines = ["| version | mistakes | found before | found now | not found |", "|---|---|---|---|---|"]
        total = [0, 0, 0]
        for kernel in kernel_files(ROOT):
            if kernel.stem not in versions:
                continue
            version = versions[kernel.stem]
            found = [sum(version[name][outcome] for outcome in mutate.KILLED) for name in ("before", "now")]
            mistakes = found[1] + version["now"]["survived"]
            total = [sum(pair) for pair in zip(total, (mistakes, *found), strict=True)]
            text = (ROOT / kernel.file).read_text(encoding="utf-8")
            older = "" if version["code"] == mutate.code_digest(text) else " (its code has changed since)"
            lines.append(f"| {kernel.label}{older} | {mistakes} | {found[0]} | {found[1]} | {mistakes - found[1]} |")
        mistakes, before, now = total
        shares = [f"{100 * found / mistakes:.1f} %" for found in (before, now)]
        lines.append(f"| all | {mistakes} | {before}: {shares[0]} | {now}: {shares[1]} | {mistakes - now} |")
        return "\n".join(lines)
    except (OSError, ValueError, RecursionError, KeyError, TypeError, ZeroDivisionError) as error:
        path = mutate.PUBLISHED
        raise ProfileError(f"{path} cannot be used: {error!r}; scripts/mutate.py --publish writes it") from error


def update(check: bool) -> list[str]:
    """The files that were out of date; they are updated unless `check`."""
    folders = devices()
    if not folders:
        raise ProfileError(f"{ROOT / 'profiles'} holds no device: harness --record measures one")
    device, *others = (load_device(folder) for folder in folders)
    for file in device.missing:
        folder = f"profiles/{device.folder}"
        print(f"update_docs.py: {file} has no profile in {folder}, so the docs show no figures of it", file=sys.stderr)

    outdated = []
    fill_page: Callable[[str], str]
    for page, fill_page in (
        (README, lambda text: fill_readme(text, device, others)),
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
