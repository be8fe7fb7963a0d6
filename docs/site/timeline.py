#!/usr/bin/env python3
"""When roles copy, multiply and compute exponentials: the order of a trace of the virtual GPU, with lengths in cycles.

A trace (roles.py) says which role waits for which barrier or wgmmas, what it starts and when it arrives, but counts
instructions, not time. Here the same steps of the same roles get lengths: for the products and the softmax they are
computed from the machine code (facts.py), and for copies assumed; everything else takes no time. A wait ends when what
it waited for in the trace has happened. So the drawings show who waits for whom. They are not measurements, and predict
no speed.

  scripts/harness --kernel 19 --device emulator --no-check --seq-len-kv 1024 --trace 19.json
  docs/site/timeline.py 19.json --product 512 --softmax 630
"""

from __future__ import annotations

import argparse
import sys
from collections import Counter, deque
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path

from roles import WARPS, RoleTrace, Step, Wgmmas

ROOT = Path(__file__).resolve().parents[2]
COPY = 500.0  # cycles from a request to the last byte of a tile: assumed
Key = tuple[str, int | None]  # a barrier and a phase of it
# Cycles, and how many arrivals of others in the same cycle came before: as starting a wgmma takes no time, only this
# says who started first.
Moment = tuple[float, int]


class TimelineError(Exception):
    """The trace does not say how a wait ends."""


@dataclass(frozen=True)
class Lengths:
    """In cycles. A product is S, or P V, of one consumer and one tile of keys; a softmax is also that of one tile."""

    product: float
    softmax: float
    copy: float = COPY


@dataclass(frozen=True)
class Span:
    """One activity of "producer", "consumer 0" …, "tensor 0" … (for that consumer), "K 0", "V 1"."""

    who: str
    what: str
    begin: float
    end: float


@dataclass(frozen=True)
class Action:
    """A step of a role: what it does, and what that needs."""

    kind: str  # "wait", "arrive", "copy", "start" and "finish" (of wgmmas), "compute"
    key: Key = ("", None)
    text: str = ""
    products: tuple[str, ...] = ()  # that a "finish" waits for
    cycles: float = 0.0


def actions_of(trace: RoleTrace, warp: int, lengths: Lengths) -> list[Action]:
    """All actions of a warp, which stands for its warpgroup, in the order of the trace.

    The length of a softmax is divided among its parts by their instructions: from 23 on, P is rounded and O rescaled
    after the wait for P V.
    """
    groups = trace.wgmmas(warp)
    events: list[Step | Wgmmas] = sorted([*trace.steps(warp), *groups], key=lambda event: event.begin)
    arithmetic = trace.arithmetic(warp)
    per_instruction = lengths.softmax / _instructions_of_a_softmax(groups, arithmetic) if groups else 0.0

    found: list[Action] = []
    names: dict[Wgmmas, str] = {}
    counts, copies, operand, at, work = Counter[str](), Counter[str](), "", None, ""
    for event in events:
        begin, end = event.begin, event.end
        if at is not None:  # before the first wgmma there is no softmax
            if instructions := _instructions_between(arithmetic, at, begin):
                found.append(Action("compute", text=work, cycles=instructions * per_instruction))
            at = begin
        if isinstance(event, Wgmmas):
            product = "S" if operand == "K" else "PV"
            names[event] = f"{product}{counts[product]}"
            counts[product] += 1
            found.append(Action("start", text=names[event], cycles=lengths.product))
            at = begin
        elif event.what == "wgmma_wait":
            finished = tuple(name for group, name in names.items() if group.end == end)
            found.append(Action("finish", products=finished))
            work = "output" if work.replace("softmax ", "PV") in finished else work
            work = next((f"softmax {name[1:]}" for name in finished if name[0] == "S"), work)
        elif event.what == "copy":
            which, _, buffer = event.barrier.partition("_full")
            text = f"{which}{copies[which]}" if buffer else which
            copies[which] += 1
            row = f"{which} {buffer.strip('[]')}".strip()
            found.append(Action("copy", (event.barrier, event.phase), text, products=(row,)))
        else:
            if event.what == "wait" and "_full" in event.barrier:
                operand = event.barrier[0]
            found.append(Action(event.what, (event.barrier, event.phase)))
    return found


def _instructions_of_a_softmax(groups: list[Wgmmas], arithmetic: list[tuple[int, int]]) -> float:
    """The mean over all tiles but the first, which has no earlier sums and no O to rescale."""
    starts = [group.begin for group in groups if group.line == groups[0].line]
    if len(starts) < 3:
        raise TimelineError(f"the trace has {len(starts)} tiles of keys, and 3 are needed: use a longer seq_len_kv")
    return _instructions_between(arithmetic, starts[1], starts[-1]) / (len(starts) - 2)


def _instructions_between(arithmetic: list[tuple[int, int]], begin: int, end: int) -> int:
    return sum(min(last, end) - max(first, begin) for first, last in arithmetic if last > begin and first < end)


@dataclass
class _Replay:
    lengths: Lengths
    actions: dict[str, list[Action]]  # by role
    needed: dict[Key, Counter[str]]  # how often each role arrives until a phase ends
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)
    arrived: dict[Key, dict[str, list[Moment]]] = field(default_factory=dict)
    moments: dict[str, Moment] = field(default_factory=dict)  # by role: its latest
    copies: list[tuple[float, Key, Action, float]] = field(default_factory=list)  # (end, phase, copy, begin)
    queues: dict[str, deque[list]] = field(default_factory=dict)  # by consumer: [what, cycles left, begin, Moment]

    def run(self) -> list[Span]:
        since = dict.fromkeys(self.actions, 0.0)
        at = dict.fromkeys(self.actions, 0)
        self.moments = dict.fromkeys(self.actions, (0.0, 0))
        self.queues = {who: deque() for who in self.actions}
        while True:
            moved = True
            while moved:
                moved = False
                for who, actions in self.actions.items():
                    while at[who] < len(actions) and self._is_done(who, actions[at[who]], since[who]):
                        at[who], since[who], moved = at[who] + 1, self.now, True
            pending = {who: actions[at[who]] for who, actions in self.actions.items() if at[who] < len(actions)}
            if not pending:
                return sorted(self.spans, key=lambda span: (span.begin, span.who))
            self._advance(pending, since)

    def _is_done(self, who: str, action: Action, since: float) -> bool:
        kind, key = action.kind, action.key
        if kind == "wait" and not self._has_ended(key):
            return False
        if kind == "finish" and any(queued[0] in action.products for queued in self.queues[who]):
            return False
        if kind == "compute" and self.now < since + action.cycles:
            return False
        moment = self.moments[who] = max(self.moments[who], (self.now, 0))
        if kind == "arrive":
            self.arrived.setdefault(key, {}).setdefault(who, []).append(moment)
        elif kind == "copy":
            self.copies.append((self.now + self.lengths.copy, key, action, self.now))
        elif kind == "start":
            self.queues[who].append([action.text, action.cycles, None, moment])
        elif kind == "wait":
            of_others = [moments for other, moments in self.arrived.get(key, {}).items() if other != who]
            later = [(cycles, before + 1) for moments in of_others for cycles, before in moments]
            self.moments[who] = max([moment, *later])
        if kind in ("wait", "finish", "compute") and self.now > since:
            what = {"wait": "wait", "finish": "wgmma", "compute": action.text}[kind]
            self.spans.append(Span(who, what, since, self.now))
        return True

    def _has_ended(self, key: Key) -> bool:
        arrived = self.arrived.get(key, {})
        copying = any(phase == key for _, phase, _, _ in self.copies)
        return not copying and all(len(arrived.get(who, ())) >= n for who, n in self.needed.get(key, {}).items())

    def _served(self) -> list[str]:
        """Whose wgmmas the tensor cores execute: the ones that were started first, or several that started together,
        which then share the tensor cores."""
        first = min((queue[0][3] for queue in self.queues.values() if queue), default=(0.0, 0))
        return [who for who, queue in self.queues.items() if queue and queue[0][3] <= first]

    def _advance(self, pending: dict[str, Action], since: dict[str, float]) -> None:
        """To the next event: a copy, a product or a softmax ends."""
        served = self._served()
        times = [copy[0] for copy in self.copies]
        times += [self.now + self.queues[who][0][1] * len(served) for who in served]
        times += [since[who] + action.cycles for who, action in pending.items() if action.kind == "compute"]
        if not times:
            waits = "; ".join(f"{who}: {action.kind} {action.key}" for who, action in pending.items())
            raise TimelineError(f"the trace does not show what ends these waits: {waits}")
        to = min(times)
        for who in served:
            head = self.queues[who][0]
            if head[2] is None:
                head[2] = self.now
            head[1] -= (to - self.now) / len(served)
            if head[1] < 1e-6:
                self.spans.append(Span(who.replace("consumer", "tensor"), head[0], head[2], to))
                self.queues[who].popleft()
        self.now = to
        for copy in [copy for copy in self.copies if copy[0] <= to + 1e-9]:
            self.copies.remove(copy)
            end, _, action, begin = copy
            self.spans.append(Span(action.products[0], action.text, begin, end))


def timeline(trace: RoleTrace, lengths: Lengths) -> list[Span]:
    """All activities of one CTA with their times. Raises TimelineError for a trace that is too short or incomplete."""
    consumers = trace.warps(multiply=True)
    roles = {trace.warps(multiply=False)[0]: "producer"} | {warp: f"consumer {i}" for i, warp in enumerate(consumers)}
    actions = {who: actions_of(trace, warp, lengths) for warp, who in roles.items()}
    needed: dict[Key, Counter[str]] = {}
    for who, of_role in actions.items():
        for action in of_role:
            if action.kind == "arrive":
                needed.setdefault(action.key, Counter())[who] += 1
    others = {
        (roles.get(warp // WARPS * WARPS), key) for key, warps in trace.arrivals().items() for warp in warps
    }  # fmt: skip
    for who, key in others:
        if who is not None and key in needed and who not in needed[key]:
            raise TimelineError(f"{who} arrives at {key} with another warp than its first, which stands for all of it")
    return _Replay(lengths, actions, needed).run()


def tensor_share(spans: Iterable[Span], begin: float, end: float) -> float:
    """The fraction of that time in which the tensor cores have work."""
    busy, at = 0.0, begin
    for span in sorted((s for s in spans if s.who.startswith("tensor")), key=lambda s: s.begin):
        if span.end > at and span.begin < end:
            busy += min(span.end, end) - max(span.begin, at)
            at = max(at, min(span.end, end))
    return busy / (end - begin)


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("trace", type=Path, help="written by scripts/harness --trace, of a version from 19 on")
    parser.add_argument("--product", type=float, required=True, metavar="CYCLES", help="of S or P V for one tile")
    parser.add_argument("--softmax", type=float, required=True, metavar="CYCLES", help="for one tile")
    parser.add_argument("--copy", type=float, default=COPY, metavar="CYCLES", help="of a tile (%(default)g)")
    arguments = parser.parse_args()
    try:
        lengths = Lengths(arguments.product, arguments.softmax, arguments.copy)
        spans = timeline(RoleTrace.read_with_source(arguments.trace, ROOT), lengths)
    except (OSError, ValueError, KeyError, IndexError, TimelineError) as error:
        print(f"timeline.py: {arguments.trace} cannot be used: {error}", file=sys.stderr)
        return 3
    for span in spans:
        print(f"{span.begin:8,.0f} {span.end:8,.0f}  {span.who:<11} {span.what}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
