"""What the roles of one CTA do, and which barrier each waits for: a trace of the virtual GPU, with names from the
source.

`scripts/harness --kernel 19 --device emulator --trace FILE` writes what this reads. Time is counted in instructions.
"""

from __future__ import annotations

import json
import re
from collections import Counter
from dataclasses import dataclass
from pathlib import Path
from typing import Any

WARPS = 4  # of a warpgroup


@dataclass(frozen=True)
class Step:
    """A wait (for a barrier, or for wgmmas), an arrival, or a copy request, by one warp."""

    what: str  # "wait", "wgmma_wait", "arrive", "copy"
    barrier: str  # "K_full[0]", "barrier 4"; for a copy, the barrier that it signals; "" for a wait for wgmmas
    begin: int
    end: int
    phase: int | None = None
    shared: int | None = None  # for a copy: its address in shared memory

    def __str__(self) -> str:
        return f"{self.what} {self.barrier}".strip()


@dataclass(frozen=True)
class Wgmmas:
    """In flight from the issue of the first until a warp has waited for them."""

    first_warp: int
    begin: int
    end: int
    line: int


class RoleTrace:
    def __init__(self, document: dict[str, Any], source: list[str]) -> None:
        """`source`: the lines of the kernel's file."""
        self._events = document["traceEvents"]
        self._source = source
        self.roles: list[dict[str, Any]] = document["otherData"]["roles"]
        initialised = [(self._name(one["line"]), one["mbarrier"]) for one in document["otherData"]["mbarriers"]]
        several, index = Counter(name for name, _ in initialised), Counter[str]()
        self._names: dict[int, str] = {}
        for name, byte in initialised:
            self._names[byte] = f"{name}[{index[name]}]" if several[name] > 1 else name
            index[name] += 1

    @classmethod
    def read(cls, file: Path, source: list[str]) -> RoleTrace:
        return cls(json.loads(file.read_text(encoding="utf-8")), source)

    @classmethod
    def read_with_source(cls, file: Path, root: Path) -> RoleTrace:
        """The same for a file of which only the kernel's name is known. Raises ValueError if it has no roles."""
        document = json.loads(file.read_text(encoding="utf-8"))
        about = document["otherData"]
        found = sorted(root.glob(f"kernels/**/{about['kernel']}_{about['name']}.cu"))
        if not found or not about["roles"]:
            raise ValueError(f"it is a trace of {about['kernel']}, which has no roles of its own; 19 and later have")
        return cls(document, found[0].read_text(encoding="utf-8").splitlines())

    def _name(self, line: str) -> str:
        text = self._source[int(line.rpartition(":")[2]) - 1]
        found = re.search(r"mbarrier_init\(&?(\w+)", text)
        return found[1] if found else line

    def _barrier(self, arguments: dict[str, Any]) -> str:
        if "mbarrier" in arguments:
            return self._names[arguments["mbarrier"]]
        return f"barrier {arguments['barrier']}"

    def steps(self, warp: int) -> list[Step]:
        """The warp's steps in order of time."""
        steps = []
        for event in self._events:
            if event.get("tid") != warp or event["ph"] not in "Xi":
                continue
            arguments, at = event["args"], event["ts"]
            if event["name"] == "wait: wgmma":
                steps.append(Step("wgmma_wait", "", at, at + event["dur"]))
            elif event["ph"] == "X" and ("mbarrier" in arguments or "barrier" in arguments):
                steps.append(Step("wait", self._barrier(arguments), at, at + event["dur"], arguments["phase"]))
            elif event["name"] == "arrive":
                steps.append(Step("arrive", self._barrier(arguments), at - 1, at, arguments["phase"]))
            elif event["name"] == "TMA load":
                steps.append(
                    Step("copy", self._barrier(arguments), at - 1, at, arguments["phase"], arguments["shared"])
                )
        return sorted(steps, key=lambda step: (step.begin, step.what != "arrive"))  # bar.sync arrives before it waits

    def arithmetic(self, warp: int) -> list[tuple[int, int]]:
        """When a warp computes in floating point: (begin, end)."""
        return [
            (event["ts"], event["ts"] + event["dur"])
            for event in self._events
            if event["ph"] == "X" and event["tid"] == warp and event["name"] == "arithmetic"
        ]

    def warps(self, *, multiply: bool) -> list[int]:
        """The first warp of each warpgroup that has this role."""
        return [warp for role in self.roles if role["multiplies"] == multiply for warp in role["warps"][::WARPS]]

    def wgmmas(self, first_warp: int) -> list[Wgmmas]:
        begun, found = [], []
        for event in self._events:
            if event.get("cat") != "wgmma" or event["id"] != first_warp:
                continue
            if event["ph"] == "b":
                begun.append(event)
            else:
                first = begun.pop()
                line = int(first["args"]["line"].rpartition(":")[2])
                found.append(Wgmmas(first_warp, first["ts"], event["ts"], line))
        return found

    def arrivals(self) -> dict[tuple[str, int | None], set[int]]:
        """Which warps arrive, by barrier and phase."""
        warps: dict[tuple[str, int | None], set[int]] = {}
        for event in self._events:
            if event["name"] == "arrive":
                warps.setdefault((self._barrier(event["args"]), event["args"]["phase"]), set()).add(event["tid"])
        return warps

    def ends_of_phases(self) -> dict[tuple[str, int], int]:
        """When the last warp arrived, by barrier and phase."""
        ends: dict[tuple[str, int], int] = {}
        for event in self._events:
            if event["name"] == "arrive":
                key = (self._barrier(event["args"]), event["args"]["phase"])
                ends[key] = max(ends.get(key, 0), event["ts"])
        return ends
