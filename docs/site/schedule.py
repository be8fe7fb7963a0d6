"""The times at which roles copy, multiply and compute exponentials in 19 to 27: a model, for the drawings of these
chapters.

It executes the protocol of the kernels, with every wait and every arrival, so that a wrong parity or count leads to a
deadlock here as well. Durations are computed from the machine code (drawings_hopper.py), and assumed for copies; waits
cost nothing. So it shows which role waits for which. It is not a measurement, and does not predict speed.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Generator, Iterable
from dataclasses import dataclass, field

COPY = 500.0  # cycles from a request to the last byte of a tile: assumed


class DeadlockError(Exception):
    """No role can continue: the message says which waits for what."""


@dataclass(frozen=True)
class Span:
    """One activity of "producer", "consumer 0" …, "tensor 0" … (for that consumer), "K 0", "V 1"."""

    who: str
    what: str
    begin: float
    end: float


@dataclass
class Barrier:
    """An mbarrier: a phase ends after this many arrivals. Phase -1, of parity 1, has ended from the start."""

    name: str
    arrivals: int
    phase: int = 0  # the current phase
    arrived: int = 0

    def arrive(self, count: int = 1) -> None:
        for _ in range(count):
            self.arrived += 1
            if self.arrived == self.arrivals:
                self.arrived = 0
                self.phase += 1

    def has_ended(self, parity: int) -> bool:
        return self.phase % 2 != parity


@dataclass
class Position:
    """As in the kernels: a stage of a ring, and the parity to wait for."""

    parity: int
    buffers: int
    buffer: int = 0

    def advance(self) -> None:
        self.buffer = (self.buffer + 1) % self.buffers
        self.parity ^= self.buffer == 0


@dataclass
class Times:
    """In cycles."""

    S: float
    PV: float
    softmax: float
    copy: float = COPY


@dataclass
class Plan:
    """A version. The last four can be changed to simulate a slip of the pen."""

    times: Times
    consumers: int = 1
    overlap: bool = False
    turns: bool = False
    steps: int = 6
    stages: int = 2
    arrivals_of_empty: int | None = None  # arrivals by computing warps
    producer_parity: int = 1
    releases_V: bool = True
    first_turn: bool = True


Command = tuple
Program = Generator[Command, None, None]


@dataclass
class _Machine:
    plan: Plan
    now: float = 0.0
    spans: list[Span] = field(default_factory=list)
    copies: list[tuple[float, Barrier, str, str, float]] = field(default_factory=list)
    queues: dict[int, deque[list]] = field(default_factory=dict)  # of wgmmas: [what, cycles left, begin, order]
    started: int = 0

    def __post_init__(self) -> None:
        plan = self.plan
        warps = 4 * plan.consumers if plan.arrivals_of_empty is None else plan.arrivals_of_empty
        self.full = {w: [Barrier(f"{w}_full[{i}]", 1) for i in range(plan.stages)] for w in "KV"}
        self.empty = {w: [Barrier(f"{w}_empty[{i}]", warps) for i in range(plan.stages)] for w in "KV"}
        self.turn = [Barrier(f"the turn of consumer {i}", 2) for i in range(plan.consumers)]
        self.queues = {consumer: deque() for consumer in range(plan.consumers)}

    # ---- the programs, as in the kernels ----

    def producer(self) -> Program:
        plan = self.plan
        next_ = {w: Position(plan.producer_parity, plan.stages) for w in "KV"}

        def copy(which: str, tile: int) -> Program:
            at = next_[which]
            yield "wait", self.empty[which][at.buffer], at.parity
            yield "copy", self.full[which][at.buffer], f"{which} {at.buffer}", f"{which}{tile}"
            at.advance()

        for tile in range(plan.steps):
            yield from copy("K", tile)
            if not plan.overlap:
                yield from copy("V", tile)
            elif tile > 0:
                yield from copy("V", tile - 1)
        if plan.overlap:
            yield from copy("V", plan.steps - 1)

    def consumer(self, me: int) -> Program:
        plan, times = self.plan, self.plan.times
        K, V = Position(0, plan.stages), Position(0, plan.stages)
        if plan.turns and me == plan.consumers - 1 and plan.first_turn:
            yield "arrive", self.turn[0], 1

        def release(which: str, at: Position) -> Program:
            if which == "K" or plan.releases_V:
                yield "arrive", self.empty[which][at.buffer], 4
            at.advance()

        if not plan.overlap:
            for step in range(plan.steps):
                yield "wait", self.full["K"][K.buffer], K.parity
                yield "wgmma", f"S{step}", times.S
                yield "wgmma_wait", 0
                yield from release("K", K)
                yield "run", f"softmax {step}", times.softmax
                yield "wait", self.full["V"][V.buffer], V.parity
                yield "wgmma", f"PV{step}", times.PV
                yield "wgmma_wait", 0
                yield from release("V", V)
            return
        yield "wait", self.full["K"][K.buffer], K.parity
        yield "wgmma", "S0", times.S
        yield "wgmma_wait", 0
        yield from release("K", K)
        yield "run", "softmax 0", times.softmax
        for step in range(plan.steps):
            is_last = step == plan.steps - 1
            if not is_last:
                yield "wait", self.full["K"][K.buffer], K.parity
            if plan.turns:
                yield "arrive", self.turn[me], 1
                yield "wait", self.turn[me], step % 2
            if not is_last:
                yield "wgmma", f"S{step + 1}", times.S
            yield "wait", self.full["V"][V.buffer], V.parity
            yield "wgmma", f"PV{step}", times.PV
            if plan.turns:
                yield "arrive", self.turn[(me + 1) % plan.consumers], 1
            if not is_last:
                yield "wgmma_wait", 1
                yield from release("K", K)
                yield "run", f"softmax {step + 1}", times.softmax
            yield "wgmma_wait", 0
            yield from release("V", V)

    # ---- time ----

    def run(self) -> list[Span]:
        programs = {"producer": self.producer()}
        programs |= {f"consumer {i}": self.consumer(i) for i in range(self.plan.consumers)}
        pending: dict[str, Command] = {who: next(program) for who, program in programs.items()}
        since = dict.fromkeys(pending, 0.0)
        while pending:
            moved = True
            while moved:
                moved = False
                for who in list(pending):
                    while who in pending and self._is_done(who, pending[who], since[who]):
                        moved = True
                        following = next(programs[who], None)
                        if following is None:
                            del pending[who]
                        else:
                            pending[who], since[who] = following, self.now
            if not pending:
                break
            self._advance(self._next_event(pending, since))
        return sorted(self.spans, key=lambda span: (span.begin, span.who))

    def _is_done(self, who: str, command: Command, since: float) -> bool:
        kind = command[0]
        if kind == "wait":
            if not command[1].has_ended(command[2]):
                return False
            if self.now > since:
                self.spans.append(Span(who, "wait", since, self.now))
        elif kind == "arrive":
            command[1].arrive(command[2])
        elif kind == "copy":
            _, barrier, where, what = command
            self.copies.append((self.now + self.plan.times.copy, barrier, where, what, self.now))
            self.spans.append(Span(who, what, self.now, self.now))
        elif kind == "wgmma":
            me = int(who.split()[1])
            self.queues[me].append([command[1], command[2], None, self.started])
            self.started += 1
        elif kind == "wgmma_wait":
            if len(self.queues[int(who.split()[1])]) > command[1]:
                return False
            if self.now > since:
                self.spans.append(Span(who, "wgmma", since, self.now))
        elif kind == "run":
            if self.now < since + command[2]:
                return False
            self.spans.append(Span(who, command[1], since, self.now))
        return True

    def _served(self) -> tuple[list[int], float]:
        """Whose wgmmas the tensor cores execute, and how fast: in the order in which they were started.

        Consumers that take turns start them one after another. Those that do not take turns start theirs at the same
        time, and the tensor cores interleave them.
        """
        waiting = [me for me, queue in self.queues.items() if queue]
        if self.plan.turns:
            waiting = sorted(waiting, key=lambda me: self.queues[me][0][3])[:1]
        return waiting, 1 / max(1, len(waiting))

    def _next_event(self, pending: dict[str, Command], since: dict[str, float]) -> float:
        served, rate = self._served()
        times = [copy[0] for copy in self.copies]
        times += [self.now + self.queues[me][0][1] / rate for me in served]
        times += [since[who] + command[2] for who, command in pending.items() if command[0] == "run"]
        if not times:
            waits = [f"{who} waits for {c[1].name}" for who, c in pending.items() if c[0] == "wait"]
            raise DeadlockError("; ".join(waits))
        return min(times)

    def _advance(self, to: float) -> None:
        served, rate = self._served()
        for me in served:
            head = self.queues[me][0]
            if head[2] is None:
                head[2] = self.now
            head[1] -= (to - self.now) * rate
            if head[1] < 1e-6:
                self.spans.append(Span(f"tensor {me}", head[0], head[2], to))
                self.queues[me].popleft()
        self.now = to
        for copy in [copy for copy in self.copies if copy[0] <= to + 1e-9]:
            self.copies.remove(copy)
            copy[1].arrive()
            self.spans.append(Span(copy[2], copy[3], copy[4], to))


def schedule(plan: Plan) -> list[Span]:
    """All activities with their times. Raises DeadlockError."""
    return _Machine(plan).run()


def tensor_share(spans: Iterable[Span], begin: float, end: float) -> float:
    """The fraction of that time in which the tensor cores have work."""
    busy, at = 0.0, begin
    for span in sorted((s for s in spans if s.who.startswith("tensor")), key=lambda s: s.begin):
        if span.end > at and span.begin < end:
            busy += min(span.end, end) - max(span.begin, at)
            at = max(at, min(span.end, end))
    return busy / (end - begin)
