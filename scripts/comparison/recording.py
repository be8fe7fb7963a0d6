"""The files of profiles/<device>/ that a comparison writes."""

from __future__ import annotations

import datetime
import json
import math
import subprocess
from collections.abc import Iterable
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from kernel_files import kernel_files
from ladder import HEAD_DIM, HEADS, ROOT, SHAPES, write_whole

from comparison.implementations import Implementation, UnavailableError
from comparison.timing import INTERLEAVED, SUSTAINED, TIMED_SECONDS, WARM_UP_SECONDS


def schema_of(file: str) -> int:
    """The schema version in a file of harness/results/."""
    text = (ROOT / "harness" / "results" / file).read_text(encoding="utf-8")
    return json.loads(text)["properties"]["schema"]["const"]


SCHEMA = schema_of("peers.schema.json")


def read_regimes(path: Path, device: str, dtype: str) -> dict[str, Any]:
    """The regimes that a file contains, by name; empty if there is no file. Raises UnavailableError for a broken
    file."""
    if not path.exists():
        return {}
    try:
        document = json.loads(path.read_text(encoding="utf-8"))
        if document["schema"] != SCHEMA:
            raise ValueError(f"it has schema {document['schema']}, and this program writes schema {SCHEMA}")
        if document["problem"]["dtype"] != dtype:
            raise ValueError(f"its figures are for {document['problem']['dtype']}, not for {dtype}")
        if document["device"] != device:
            raise ValueError(f"its figures are for {document['device']}, not for {device}")
        for regime in document["regimes"].values():
            regime["run"], regime["versions"], regime["peers"], regime["ceilings"]  # the members used below
        return document["regimes"]
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(
            f"{path} cannot be used: {type(error).__name__}: {error}; figures in it would be lost. Restore it from "
            f"the repository, delete it, or write elsewhere with --out"
        ) from error


def part_of(path: Path) -> Path:
    """The file beside it that contains the results of a run that is not complete."""
    return path.with_name(f"{path.stem}.part.json")


def listed_versions(harness: Path) -> dict[str, dict[str, Any]]:
    """The versions that the harness has, by their names for --kernel. Raises OSError, ValueError or KeyError if it does
    not list them."""
    done = subprocess.run([harness, "--list", "--json", "-"], capture_output=True, text=True, check=False)
    return {version["kernel"]: version for version in json.loads(done.stdout)["versions"]}


def code_hashes(harness: Path) -> dict[str, str]:
    """Hashes of the versions' sources: {"16": "sha256:…"}; empty if the harness is not built."""
    try:
        return {kernel: version["code_hash"] for kernel, version in listed_versions(harness).items()}
    except (OSError, ValueError, KeyError):
        return {}


def hashes_of(names: Iterable[str], harness: Path) -> dict[str, str]:
    """The same of these versions only, which are named as by the Python package: "16_overlapped_softmax".

    Raises UnavailableError if the harness is not built.
    """
    hashes, of_name = code_hashes(harness), {file.stem: file.kernel for file in kernel_files(ROOT)}
    kernels = sorted(of_name[name] for name in names)
    if not hashes.keys() >= set(kernels):
        raise UnavailableError(f"{harness} reports no code hashes, and a recording needs them: scripts/setup builds it")
    return {kernel: hashes[kernel] for kernel in kernels}


def finite(number: float) -> float | None:
    """The number for a file in JSON, which has no NaN and no infinity."""
    return number if math.isfinite(number) else None


def brought_up_to_date(earlier: dict[str, Any], regime: dict[str, Any]) -> dict[str, Any]:
    """The regime, supplemented by what only the earlier one contains: versions, peers and ceilings, each with the date
    of its run."""
    made, left_out = dict(regime), regime["run"]["left_out"]
    for kind, name in (("versions", "kernel"), ("peers", "name"), ("ceilings", "name")):
        measured = {entry[name] for entry in regime[kind]}
        kept = [
            {"date": earlier["run"]["date"]} | entry for entry in earlier[kind] if entry[name] not in measured
        ]  # fmt: skip
        made[kind] = [*regime[kind], *kept]
        names = [f"{'the ceiling of ' if kind == 'ceilings' else ''}{entry[name]}" for entry in kept]
        left_out = {what: why for what, why in left_out.items() if what.split(",")[0] not in names}
    made["versions"].sort(key=lambda entry: entry["kernel"])
    made["run"] = regime["run"] | {"left_out": left_out}
    return made


@dataclass
class Session:
    """A run: what it measures, its software, and its results so far."""

    device: str
    dtype: str
    regimes: list[str]
    implementations: list[Implementation]
    environment: dict[str, Any]  # versions of everything
    hashes: dict[str, str]
    missing: dict[str, str]  # peers that are missing, and why
    dates: dict[str, str] = field(default_factory=dict)  # by regime: when its first figure was measured
    failed: dict[str, dict[str, str]] = field(default_factory=dict)  # by regime: what did not run, and why
    ceilings: dict[str, list[dict[str, Any]]] = field(default_factory=dict)
    earlier: dict[str, Any] | None = None  # the sustained regime that is being updated
    wrong: int = 0  # results
    warm_up_seconds: dict[str, float] = field(default_factory=lambda: WARM_UP_SECONDS)  # by regime
    timed_seconds: float = TIMED_SECONDS  # in which each runs alone

    def add(self, one: Implementation, regime: str, result: dict[str, Any]) -> None:
        self.begin(regime)
        one.results.setdefault(regime, []).append(result)

    def begin(self, regime: str) -> None:
        now = datetime.datetime.now(datetime.timezone.utc)
        self.dates.setdefault(regime, now.strftime("%Y-%m-%dT%H:%M:%SZ"))

    def leave_out(self, regimes: Iterable[str], what: str, why: str) -> None:
        for regime in regimes:
            self.failed.setdefault(regime, {})[what] = why

    def to_do(self, one: Implementation, batch: int, seq_len: int) -> list[str]:
        """Its regimes that have not been measured yet. An interleaved run includes all implementations, so it is
        repeated as a whole."""
        missing = [regime for regime in self.regimes if not one.result(regime, batch, seq_len)]
        others = [other for other in self.implementations if not other.result(INTERLEAVED, batch, seq_len)]
        if INTERLEAVED in self.regimes and INTERLEAVED not in missing and others:
            missing.append(INTERLEAVED)
        return missing

    def resume(self, regimes: dict[str, Any]) -> None:
        """Adopts the results of an interrupted run, if the code and the conditions are the same."""
        for regime in self.regimes:
            if regime not in regimes:
                continue
            found = regimes[regime]
            self.refuse_other_conditions("--resume", regime, found)
            self.dates[regime] = found["run"]["date"]
            self.ceilings[regime] = found["ceilings"]
            for one in self.implementations:
                for entry in found["versions"] if one.kernel else found["peers"]:
                    if self.is_entry_of(one, entry):
                        one.results[regime] = entry["results"]
                        one.note = entry.get("note", one.note)

    def update(self, regimes: dict[str, Any]) -> None:
        """Leaves out of this run the versions whose code is the same as that of their sustained figures.

        Raises UnavailableError if those were measured under other conditions.
        """
        if SUSTAINED not in regimes:
            raise UnavailableError("--update: the file has no sustained figures; measure all without --update")
        self.earlier = regimes[SUSTAINED]
        self.refuse_other_conditions("--update", SUSTAINED, self.earlier)
        for entry in self.earlier["versions"]:
            same = [one for one in self.implementations if one.kernel and self.describe(one).items() <= entry.items()]
            if same and len(entry["results"]) == len(SHAPES) and entry["code_hash"]:
                self.implementations = [one for one in self.implementations if one is not same[0]]

    def refuse_other_conditions(self, flag: str, regime: str, found: dict[str, Any]) -> None:
        differing = [name for name, value in self.environment.items() if found["run"].get(name) != value]
        if differing:
            raise UnavailableError(
                f"{flag}: its figures of the {regime} regime are for another {', '.join(differing)};"
                f" measure again without {flag}"
            )

    def is_entry_of(self, one: Implementation, entry: dict[str, Any]) -> bool:
        """Whether an entry of a file belongs to the implementation, with the same code and configuration."""
        known = one.kernel is None or one.kernel.kernel in self.hashes
        return known and self.describe(one).items() <= entry.items()

    def describe(self, one: Implementation) -> dict[str, Any]:
        if one.kernel is None:
            return {"name": one.name}
        kernel, name = one.kernel.kernel, one.kernel.name
        version = {"kernel": kernel, "name": name.removeprefix(f"{kernel}_"), "config": one.kernel.config}
        return version | {"code_hash": self.hashes.get(kernel)}

    def conditions(self, name: str) -> dict[str, Any]:
        """What the run of a regime has in common with any other whose figures may be added to it."""
        seconds = {
            "warm_up_seconds": self.warm_up_seconds[name],
            "timed_seconds": self.timed_seconds if name == SUSTAINED else None,
        }
        return seconds | self.environment

    def regime(self, name: str) -> dict[str, Any]:
        """A regime in the form of peers.json."""
        measured = [(one, one.results[name]) for one in self.implementations if one.results.get(name)]
        left_out = self.missing | self.failed.get(name, {})
        made = {
            "run": {"date": self.dates[name]} | self.conditions(name) | {"left_out": left_out},
            "versions": [self.describe(one) | {"results": results} for one, results in measured if one.kernel],
            "peers": [
                self.describe(one) | {"note": one.note, "results": results}
                for one, results in measured
                if not one.kernel
            ],
            "ceilings": self.ceilings.get(name, []),
        }
        return made if self.earlier is None else brought_up_to_date(self.earlier, made)

    def document(self, others: dict[str, Any]) -> dict[str, Any]:
        """profiles/<device>/peers.json (harness/results/peers.schema.json); `others` are regimes of another run."""
        mine = {name: self.regime(name) for name in self.regimes if name in self.dates}
        return {
            "schema": SCHEMA,
            "device": self.device,
            "problem": {"dtype": self.dtype, "heads": HEADS, "head_dim": HEAD_DIM, "causal": False},
            "regimes": others | mine,
        }


def write(path: Path, text: str) -> None:
    try:
        write_whole(path, text)
    except OSError as error:
        raise UnavailableError(
            f"writing {path} failed: {error}; free some space, or choose another place with --out"
        ) from error


def formatted(value: Any, indent: str = "") -> str:  # noqa: ANN401 (any JSON)
    """JSON with one result per line, so that a diff shows which figures have changed."""
    deeper = indent + "  "
    flat = json.dumps(value, ensure_ascii=False)
    if len(indent + flat) <= 300 or not isinstance(value, dict | list):
        return flat
    if isinstance(value, dict):
        lines = [f"{deeper}{json.dumps(name)}: {formatted(member, deeper)}" for name, member in value.items()]
        return "{\n" + ",\n".join(lines) + f"\n{indent}}}"
    return "[\n" + ",\n".join(deeper + formatted(element, deeper) for element in value) + f"\n{indent}]"
