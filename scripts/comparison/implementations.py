"""What is compared: versions of the ladder and other implementations, and how to request them."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from ladder import SHAPES, number_of


class UsageError(Exception):
    """Bad arguments: exit status 2."""


class UnavailableError(Exception):
    """Something that is needed is missing or failed: exit status 3."""


@dataclass(frozen=True)
class Kernel:
    """A version of the ladder and one of its configurations: None is its own choice."""

    name: str  # "16_overlapped_softmax"; for an extension "causal"
    config: str | None = None

    @property
    def number(self) -> int | None:
        """None: an extension of the ladder has no number, nor have B01, D01 and so on."""
        return number_of(self.name)

    @property
    def kernel(self) -> str:
        """Its name in JSON: "16", "D06", "causal"."""
        matched = re.match(r"([BD]?\d\d)_", self.name)
        return matched[1] if matched else self.name

    @property
    def label(self) -> str:
        return self.name + (f":{self.config}" if self.config else "")

    @property
    def parts(self) -> tuple[str, str]:
        """("16", "overlapped_softmax"); for an extension, its name twice, as in the harness."""
        return (self.name[:2], self.name[3:]) if self.name[:2].isdigit() else (self.name, self.name)


@dataclass
class Implementation:
    """Something that computes attention."""

    name: str
    note: str
    # Creates a function that launches it once on (q, k, v, out), tensors [batch, seq_len, heads, head_dim]; a fifth
    # argument is a Problem that is not the plain one. Launching returns the output, in `out` or elsewhere. In the
    # comparison of gradients, the output and `out` are (dq, dk, dv).
    prepare: Callable[..., Callable[[], Any]]
    kernel: Kernel | None = None  # if it is a version of the ladder
    lacks: Mapping[str, str] = field(default_factory=dict)  # why it does not solve a field of a problem, by its name
    deterministic: bool = False  # of gradients: whether repeated launches agree bit for bit
    results: dict[str, list[dict[str, Any]]] = field(default_factory=dict)  # by regime

    def why_not(self, fields: Iterable[str]) -> str:
        """Why it does not solve a problem with these fields; empty if it does."""
        return next((self.lacks[name] for name in sorted(fields) if name in self.lacks), "")

    def result(self, regime: str, batch: int, seq_len: int) -> dict[str, Any] | None:
        shape = (batch, seq_len)
        return next((r for r in self.results.get(regime, []) if (r["batch"], r["seq_len"]) == shape), None)


def select_kernels(text: str, known: Sequence[str]) -> list[Kernel]:
    """7, 07, 07_ldmatrix, 05-08, D06, all, or several separated by commas; 16:NAME requests a configuration by name."""
    names = {number: name for name in known if (number := number_of(name)) is not None}
    selected: list[Kernel] = []
    for part in text.split(","):
        word, _, config = part.partition(":")
        if word == "all":
            found = list(known)
        elif matched := re.fullmatch(r"(\d+)-(\d+)", word):
            found = [name for number, name in names.items() if int(matched[1]) <= number <= int(matched[2])]
        elif re.fullmatch(r"\d+", word):
            found = [names[int(word)]] if int(word) in names else []
        else:
            found = [name for name in known if word in (name, Kernel(name).kernel)]
        if not found:
            raise UsageError(f"--kernels: '{part}' names no version; there are {', '.join(known)}")
        selected += [Kernel(name, config or None) for name in found]
    return list(dict.fromkeys(selected))


def select_shapes(text: str) -> list[tuple[int, int]]:
    if text == "all":
        return list(SHAPES)
    allowed = {str(seq_len): (batch, seq_len) for batch, seq_len in SHAPES}
    for part in text.split(","):
        if part not in allowed:
            raise UsageError(f"--shapes: '{part}' is not a standard seq_len; allowed: all, {', '.join(allowed)}")
    return [shape for seq_len, shape in allowed.items() if seq_len in text.split(",")]
