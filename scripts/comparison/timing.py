"""Times launches, alone and in turn, and derives the figures."""

from __future__ import annotations

import contextlib
import statistics
import threading
import time
from collections import deque
from collections.abc import Callable, Iterator, Sequence
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ladder import HEAD_DIM, HEADS, REGIMES

from comparison.implementations import UnavailableError
from comparison.private_pytorch import queue_sleep

LAUNCHES = 20  # of each implementation, at least: for the median, p10 and p90
SUSTAINED, INTERLEAVED = REGIMES
WARM_UP_SECONDS = {SUSTAINED: 1.0, INTERLEAVED: 0.3}
WARM_UP_LAUNCHES = 3
TIMED_SECONDS = 1.0  # in the sustained regime
WATTS_SECONDS = 1.0  # over which NVML averages watts: after a shorter warm-up they would include earlier work
SAMPLE_SECONDS = 0.05  # between two readings of the power and the clock


@dataclass
class Timing:
    """Times of single launches, and NVML's readings meanwhile; None if NVML is not available."""

    milliseconds: list[float]
    watts: float | None = None
    sm_clock_mhz: int | None = None


def summary(milliseconds: Sequence[float]) -> dict[str, float]:
    """Quantiles interpolated between the two nearest values, as in the harness."""
    tenths = statistics.quantiles(milliseconds, n=10, method="inclusive")
    return {"median": round(tenths[4], 6), "p10": round(tenths[0], 6), "p90": round(tenths[8], 6)}


def speed(operations: float, timing: Timing) -> dict[str, Any]:
    """The members of peers.json for any timing. If all take turns, watts belong to no implementation and are null."""
    ms = summary(timing.milliseconds)
    tflops = operations / ms["median"] / 1e9
    return {
        "tflops": round(tflops, 2),
        "ms": ms,
        "launches": len(timing.milliseconds),
        "power_watts": timing.watts and round(timing.watts, 1),
        "sm_clock_mhz": timing.sm_clock_mhz,
        "tflops_per_watt": round(tflops / timing.watts, 4) if timing.watts else None,
    }


def figures(
    batch: int, seq_len: int, timing: Timing, relative_error: float, scores: float | None = None
) -> dict[str, Any]:
    """One result in the form of peers.json; `scores` are those of a head that count as work, by default all."""
    work = 4.0 * batch * HEADS * (seq_len * seq_len if scores is None else scores) * HEAD_DIM
    shape = {"batch": batch, "seq_len": seq_len}
    return shape | speed(work, timing) | {"relative_error": round(relative_error, 4)}


class Timer:
    """Times launches on the GPU. It has `torch`, and `properties` of the GPU."""

    torch: ModuleType
    properties: Any

    def time_in_turn(self, launches: list[Callable[[], Any]], rounds: int) -> list[list[float]]:
        """Milliseconds of single launches, one list per launcher. Raises RuntimeError for CUDA errors."""
        torch = self.torch
        flushed = self._flushed()
        start = time.monotonic()
        warm = 0
        while warm < WARM_UP_LAUNCHES or time.monotonic() - start < WARM_UP_SECONDS[INTERLEAVED]:
            for launch in launches:
                launch()
            torch.cuda.synchronize()
            warm += 1

        # A launch from Python may take longer than a short kernel. The GPU first sleeps while launches are queued, so
        # it never waits for a launch between the two events around it; afterwards this is verified.
        seconds_of_sleep = 0.02
        for _ in range(3):
            base = torch.cuda.Event(enable_timing=True)
            base.record()
            base.synchronize()
            base_time = time.perf_counter()
            queue_sleep(torch, int(seconds_of_sleep * 1.5e9))
            events: list[list[tuple[Any, Any]]] = [[] for _ in launches]
            launched: list[list[float]] = [[] for _ in launches]
            for round_ in range(rounds):
                for turn in range(len(launches)):
                    i = (turn + round_) % len(launches)  # each round begins with a different one
                    flushed.fill_(255)
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    launches[i]()
                    end.record()
                    events[i].append((begin, end))
                    launched[i].append(1000 * (time.perf_counter() - base_time))
            torch.cuda.synchronize()
            late = sum(
                done > base.elapsed_time(begin)
                for pairs, times in zip(events, launched, strict=True)
                for (begin, _), done in zip(pairs, times, strict=True)
            )
            if not late:
                return [[begin.elapsed_time(end) for begin, end in pairs] for pairs in events]
            seconds_of_sleep *= 4
        raise UnavailableError(
            f"{late} of {rounds * len(launches)} launches reached the GPU late, so that it waited while it was timed:"
            " this host is too slow or too busy; stop other work, or time fewer versions with --kernels"
        )

    def _flushed(self) -> Any:  # noqa: ANN401 (a tensor)
        """Memory to overwrite between launches, so that none of their tensors' data are left in the L2."""
        size = 2 * self.properties.L2_cache_size or 64 << 20
        return self.torch.empty(size, dtype=self.torch.uint8, device="cuda")

    def time_alone(
        self,
        launch: Callable[[], Any],
        warm_up_seconds: float = WARM_UP_SECONDS[SUSTAINED],
        timed_seconds: float = TIMED_SECONDS,
    ) -> Timing:
        """Times a launch at steady power. Raises RuntimeError for CUDA errors, and if the GPU cannot be kept busy."""
        flushed = self._flushed()

        def step() -> None:
            flushed.fill_(255)
            launch()

        for _ in range(WARM_UP_LAUNCHES):
            step()
        self.torch.cuda.synchronize()
        start = time.perf_counter()
        for _ in range(WARM_UP_LAUNCHES):
            step()
        self.torch.cuda.synchronize()
        seconds = (time.perf_counter() - start) / WARM_UP_LAUNCHES
        count = min(max(int(0.02 / seconds), 1), 100)  # two chunks of this many launches fit into the GPU's queue

        seconds = (warm_up_seconds, timed_seconds)
        timing, late = self._at_steady_power(launch, flushed, count, lambda: None, *seconds)
        if not late:
            return timing
        # The kernel is shorter than its launch from Python. A graph of the same steps, which is launched as a whole and
        # not timed, keeps the GPU busy for as long while the host runs ahead.
        graph = self.torch.cuda.CUDAGraph()
        with self.torch.cuda.graph(graph):
            for _ in range(2 * count):
                step()
        timing, late = self._at_steady_power(launch, flushed, count, graph.replay, *seconds)
        if late:
            raise RuntimeError(
                f"{late} of its launches reached the GPU late, so that it waited while it was timed: this host is too"
                " slow or too busy"
            )
        return timing

    def _at_steady_power(
        self,
        launch: Callable[[], Any],
        flushed: Any,  # noqa: ANN401 (a tensor)
        count: int,
        fill: Callable[[], None],
        warm_up_seconds: float,
        timed_seconds: float,
    ) -> tuple[Timing, int]:
        """Launches in chunks of `count`, each preceded by `fill`, and queues the next chunk before the last is done.

        Also returns how many launches were late; a few late ones are left out, and then this is 0.
        """
        torch = self.torch
        base = torch.cuda.Event(enable_timing=True)
        base.record()
        base.synchronize()
        base_time = time.perf_counter()
        queued: deque[list[tuple[Any, Any, float]]] = deque()

        def run_for(seconds: float, least: int) -> list[tuple[Any, Any, float]]:
            done: list[tuple[Any, Any, float]] = []
            start = time.monotonic()
            while len(done) < least or time.monotonic() - start < seconds:
                fill()
                chunk = []
                for _ in range(count):
                    flushed.fill_(255)
                    begin, end = torch.cuda.Event(enable_timing=True), torch.cuda.Event(enable_timing=True)
                    begin.record()
                    launch()
                    end.record()
                    chunk.append((begin, end, 1000 * (time.perf_counter() - base_time)))
                queued.append(chunk)
                if len(queued) > 1:
                    queued[0][-1][1].synchronize()
                    done += queued.popleft()
            return done

        run_for(warm_up_seconds, 1)
        with self._sampled_load() as load:
            timed = run_for(timed_seconds, LAUNCHES)
        torch.cuda.synchronize()
        in_time = [begin.elapsed_time(end) for begin, end, at in timed if base.elapsed_time(begin) >= at]
        late = len(timed) - len(in_time)
        if len(in_time) >= LAUNCHES and late <= len(timed) // 10:
            late = 0
        watts = statistics.median(w for w, _ in load) if load and warm_up_seconds >= WATTS_SECONDS else None
        clock = round(statistics.median(mhz for _, mhz in load)) if load else None
        return Timing(in_time, watts, clock), late

    @contextlib.contextmanager
    def _sampled_load(self) -> Iterator[list[tuple[float, int]]]:
        """Fills a list of (watts, MHz of the SMs) until the block ends; it stays empty if NVML is not available."""
        samples: list[tuple[float, int]] = []
        over = threading.Event()

        def sample() -> None:
            with contextlib.suppress(Exception):  # no NVML, no permission: many kinds of errors, and none matters here
                while not over.wait(SAMPLE_SECONDS):
                    samples.append((self.torch.cuda.power_draw() / 1000, self.torch.cuda.clock_rate()))

        thread = threading.Thread(target=sample)
        thread.start()
        try:
            yield samples
        finally:
            over.set()
            thread.join()

    def why_no_load(self) -> str:
        """Why the power and the clocks cannot be read; empty if they can."""
        try:
            self.torch.cuda.power_draw()
        except Exception as error:  # NVML raises many types
            return f"{type(error).__name__}: {error}"
        return ""
