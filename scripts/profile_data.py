"""What profiles/<device>/ holds, for the plots and the docs: TFLOP/s of each version and of its peers."""

from __future__ import annotations

import json
import re
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import jsonschema
import referencing
from kernel_files import KernelFile, kernel_files

ROOT = Path(__file__).resolve().parent.parent
HEADS = 16
HEAD_DIM = 128


class ProfileError(Exception):
    """A profile that cannot be used: says which, why, and what to do."""


@dataclass(frozen=True, order=True)
class Shape:
    """One of the standard shapes; heads and head_dim are always the same."""

    seq_len: int
    batch: int


@dataclass
class Version:
    """One rung of the ladder, or an extension, as it was recorded: its fastest configuration at each shape."""

    source: KernelFile
    tflops: dict[Shape, float]
    toolkit: str
    driver: str | None
    date: str
    # By scripts/peers, timed in turn with the peers; empty where it was not, or where the code was another.
    beside_peers: dict[Shape, float]


@dataclass
class Peer:
    name: str
    note: str
    tflops: dict[Shape, float]
    external: bool  # taken over from elsewhere; no program of this project measured it


@dataclass
class Device:
    """Everything that is recorded of one device, for one element type."""

    name: str
    dtype: str
    versions: list[Version]  # those that have a profile
    peers: list[Peer]
    peers_run: dict[str, Any] | None  # what scripts/peers says of its run
    mma_sync_ceiling: float | None
    source_of_external: str  # empty: nothing is external
    missing: list[str]  # files of versions that have no profile

    def rungs(self) -> list[Version]:
        """Those with a number. Where an extension solves the plain problem, its curve lies on that of its base."""
        return [version for version in self.versions if version.source.number is not None]

    def shapes(self) -> list[Shape]:
        return sorted({shape for measured in (*self.versions, *self.peers) for shape in measured.tflops})


def load_device(device: str, dtype: str = "fp16") -> Device:
    """Reads profiles/<device>/. A version without a profile is listed in `missing`. Raises ProfileError."""
    folder = ROOT / "profiles" / device
    if not folder.is_dir():
        raise ProfileError(f"there is no folder {folder}: --device names a folder of profiles/, such as h200")

    versions, missing, names = [], [], set()
    document = _read_peers(folder)
    beside_peers = _beside_peers(document, dtype)
    for kernel in kernel_files(ROOT):
        path = folder / f"{kernel.stem}.json"
        if not path.exists():
            missing.append(kernel.file)
            continue
        profile = _read(path, "profile.schema.json")
        names.add(profile["device"])
        tflops = _fastest(profile["results"], dtype)
        beside = beside_peers.get((kernel.kernel, profile["code_hash"]), {})
        versions.append(Version(kernel, tflops, profile["toolkit"], profile["driver"], profile["date"], beside))

    peers: list[Peer] = []
    ceiling, run, source = None, None, ""
    if document is not None:
        names.add(document["device"])
        external = document["external"] or {"source": "", "ceilings": [], "peers": []}
        ceiling = next((c["value"] for c in external["ceilings"] if c["name"] == "mma.sync"), None)
        source = external["source"]
        if document["problem"]["dtype"] == dtype:
            run = document["run"]
            for is_external, found in ((False, document["peers"]), (True, external["peers"])):
                peers += [Peer(peer["name"], peer["note"], _tflops(peer), is_external) for peer in found]

    if len(names) > 1:
        raise ProfileError(f"the files in {folder} are of different devices: {', '.join(sorted(names))}")
    return Device(names.pop() if names else device, dtype, versions, peers, run, ceiling, source, missing)


def _read_peers(folder: Path) -> dict[str, Any] | None:
    path = folder / "peers.json"
    return _read(path, "peers.schema.json") if path.exists() else None


def _tflops(measured: dict[str, Any]) -> dict[Shape, float]:
    return {Shape(result["seq_len"], result["batch"]): result["tflops"] for result in measured["results"]}


def _beside_peers(document: dict[str, Any] | None, dtype: str) -> dict[tuple[str, str | None], dict[Shape, float]]:
    """(kernel, code hash) of a version → its fastest configuration at each shape in the run with the peers."""
    fastest: dict[tuple[str, str | None], dict[Shape, float]] = {}
    if document is None or document["problem"]["dtype"] != dtype:
        return fastest
    for version in document["versions"]:
        of_version = fastest.setdefault((version["kernel"], version["code_hash"]), {})
        for shape, tflops in _tflops(version).items():
            of_version[shape] = max(tflops, of_version.get(shape, 0.0))
    return fastest


def harmonic_mean(tflops: Mapping[Shape, float], shapes: list[Shape]) -> float | None:
    """None where one of the shapes was not measured."""
    if not shapes or any(shape not in tflops for shape in shapes):
        return None
    return len(shapes) / sum(1 / tflops[shape] for shape in shapes)


def _fastest(results: list[dict[str, Any]], dtype: str) -> dict[Shape, float]:
    fastest: dict[Shape, float] = {}
    for result in results:
        problem = result["problem"]
        standard = (
            problem["dtype"] == dtype
            and problem["heads"] == HEADS
            and problem["head_dim"] == HEAD_DIM
            and problem["seq_len"] == problem["seq_len_kv"]
            and not problem.get("causal", False)
        )
        if standard and result["tflops"] is not None:
            shape = Shape(problem["seq_len"], problem["batch"])
            fastest[shape] = max(result["tflops"], fastest.get(shape, 0.0))
    return fastest


def _read(path: Path, schema_name: str) -> dict[str, Any]:
    """A file of profiles/, checked against its schema in harness/results/."""
    advice = "record it again, or take it anew from the repository"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}; {advice}") from error
    try:
        document = json.loads(text)
    except json.JSONDecodeError as error:
        where = f"line {error.lineno}, column {error.colno}"
        raise ProfileError(f"{path} is truncated or not JSON ({error.msg} at {where}); {advice}") from error

    schemas = ROOT / "harness" / "results"
    schema = json.loads((schemas / schema_name).read_text(encoding="utf-8"))
    wanted = schema["properties"]["schema"]["const"]
    found = document.get("schema") if isinstance(document, dict) else None
    if found != wanted:
        raise ProfileError(f"{path} has schema {json.dumps(found)}, and this program reads schema {wanted}; {advice}")
    registry: referencing.Registry[Any] = referencing.Registry()
    for other in schemas.glob("*.schema.json"):
        resource = referencing.Resource.from_contents(json.loads(other.read_text(encoding="utf-8")))
        registry = registry.with_resource(other.name, resource)
    validator = jsonschema.Draft202012Validator(schema, registry=registry)
    error = jsonschema.exceptions.best_match(validator.iter_errors(document))
    if error is not None:
        message = re.sub(r"\s+", " ", error.message)
        message = message if len(message) <= 160 else message[:157] + "..."
        raise ProfileError(f"{path} does not follow schema {wanted}: at {error.json_path}, {message}; {advice}")
    return document


def three_digits(value: float | None) -> str:
    """0.855, 20.0, 336; – where nothing was measured."""
    return "–" if value is None else f"{value:#.3g}".rstrip(".")
