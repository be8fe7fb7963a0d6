"""Reads profiles/<device>/ for the plots and the docs: TFLOP/s of each version and of its peers."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable, Hashable, Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, TypeVar

import jsonschema
import referencing
from kernel_files import KernelFile, kernel_files
from ladder import HEAD_DIM, HEADS, REGIMES, ROOT

Key = TypeVar("Key", bound=Hashable)

# The fields of a plain problem; fields of extensions are present only if they differ from the default.
PLAIN = {"batch", "heads", "seq_len", "seq_len_kv", "head_dim", "dtype"}


class ProfileError(Exception):
    """A profile that cannot be used: the message says which one, why, and what to do."""


@dataclass(frozen=True, order=True)
class Shape:
    """One of the standard shapes; heads and head_dim are always the same."""

    seq_len: int
    batch: int


@dataclass
class Speeds:
    """What scripts/peers measured for one implementation in one regime."""

    date: str | None = None  # None if nothing was measured
    tflops: dict[Shape, float] = field(default_factory=dict)
    watts: dict[Shape, float] = field(default_factory=dict)  # measured if it ran alone; so are the others
    sm_clock_mhz: dict[Shape, int] = field(default_factory=dict)
    tflops_per_watt: dict[Shape, float] = field(default_factory=dict)


@dataclass
class Version:
    """One step of the ladder, or an extension: its fastest configuration at each shape."""

    source: KernelFile
    toolkit: str
    driver: str | None
    date: str | None
    recorded: dict[Shape, float]  # by --record
    watts_recorded: list[float]
    # From scripts/peers, for each of the device's regimes; empty if the version did not take part.
    in_regimes: list[Speeds]

    @property
    def beside_peers(self) -> Speeds:
        """In the regime that is shown."""
        return self.in_regimes[0] if self.in_regimes else Speeds()

    @property
    def tflops(self) -> dict[Shape, float]:
        """The figures that are shown."""
        return self.beside_peers.tflops or self.recorded


@dataclass
class Peer:
    name: str
    note: str
    speeds: Speeds

    @property
    def tflops(self) -> dict[Shape, float]:
        return self.speeds.tflops


@dataclass
class Regime:
    """A run of scripts/peers in one regime, and its results."""

    name: str  # one of REGIMES
    run: dict[str, Any]  # as in peers.json
    versions: dict[tuple[str, str | None], Speeds]  # by name and code hash
    earlier: list[str]  # kernels whose speeds belong to an earlier text than that of their profile
    peers: list[Peer]
    ceilings: dict[str, float]  # TFLOP/s of one kind of instruction
    ceiling_dates: dict[str, str]


@dataclass(frozen=True)
class Cell:
    """A cell of the table by data."""

    data: str
    dtype: str
    seq_len: int


@dataclass
class ByData:
    """What scripts/peers --data measured: each implementation alone, on several kinds of data, all in one run."""

    causal: bool
    run: dict[str, Any]  # as in peers_by_data.json
    definitions: dict[str, str]  # by name, in display order
    versions: dict[str, dict[Cell, float]]  # TFLOP/s by label, without those recorded since with other code
    peers: dict[str, dict[Cell, float]]
    sm_clock_mhz: dict[str, dict[Cell, int]]  # of versions and peers

    def of_fastest_peer(self, label: str, cell: Cell) -> float | None:
        """The speed relative to the fastest peer on these data."""
        mine = self.versions[label].get(cell)
        theirs = [tflops[cell] for tflops in self.peers.values() if cell in tflops]
        return mine / max(theirs) if mine and theirs else None

    def has(self, dtype: str, seq_len: int) -> bool:
        measured = (*self.versions.values(), *self.peers.values())
        return any((cell.dtype, cell.seq_len) == (dtype, seq_len) for tflops in measured for cell in tflops)


@dataclass(frozen=True)
class ProblemCell:
    """A cell of the table by problem."""

    problem: str
    seq_len: int


@dataclass
class ByProblem:
    """What scripts/peers --problem measured: each implementation alone, on several problems, all in one run."""

    run: dict[str, Any]  # as in peers_by_problem.json, with the dates of earlier runs whose problems the file kept
    dtype: str
    seq_lens: dict[str, list[int]]  # by problem, in display order
    # TFLOP/s by label, for versions that were not recorded since with other code.
    versions: dict[str, dict[ProblemCell, float]]
    peers: dict[str, dict[ProblemCell, float]]
    first_track: set[str]  # labels of versions that need no Hopper GPU
    deterministic: set[str] = field(default_factory=set)  # of gradients: labels of versions whose launches agree


@dataclass(frozen=True)
class DecodingCell:
    """A cell of the table of the decoding track."""

    problem: str
    batch: int
    seq_len_kv: int


@dataclass
class ByDecoding:
    """What scripts/peers --decoding measured: each implementation alone, on one query and a long cache, all in one
    run."""

    run: dict[str, Any]  # as in peers_decoding.json
    cells: dict[str, list[DecodingCell]]  # by problem, in display order
    # GB/s of K and V by label, for versions that were not recorded since with other code.
    versions: dict[str, dict[DecodingCell, float]]
    peers: dict[str, dict[DecodingCell, float]]


@dataclass
class Device:
    """Everything that was recorded on one device, for one element type."""

    name: str
    folder: str
    dtype: str
    versions: list[Version]  # those that have a profile
    regimes: list[Regime]  # the first is the one that is shown
    missing: list[str]  # files of versions that have no profile
    by_data: ByData | None  # for fp16 and bf16, whatever `dtype` is
    by_data_causal: ByData | None
    by_problem: ByProblem | None  # likewise
    by_decoding: ByDecoding | None  # likewise
    gradients: ByProblem | None  # likewise, by scripts/peers --gradients

    def rungs(self) -> list[Version]:
        """The versions that have a number. If an extension solves the plain problem, its curve is that of its base."""
        return [version for version in self.versions if version.source.number is not None]

    @property
    def regime(self) -> Regime | None:
        return self.regimes[0] if self.regimes else None

    @property
    def peers(self) -> list[Peer]:
        return self.regime.peers if self.regime else []

    @property
    def ceilings(self) -> dict[str, float]:
        """TFLOP/s that one kind of instruction reaches, by its name."""
        return self.regime.ceilings if self.regime else {}

    def shapes(self) -> list[Shape]:
        return sorted({shape for measured in (*self.versions, *self.peers) for shape in measured.tflops})

    def step(self, number: int, shape: Shape) -> float | None:
        """The speedup over the version before, both measured in the same way; None if they were not."""
        versions = {version.source.number: version for version in self.versions}
        if number not in versions or number - 1 not in versions:
            return None
        here, before = versions[number], versions[number - 1]
        for mine, theirs in (
            (here.beside_peers.tflops, before.beside_peers.tflops),
            (here.recorded, before.recorded),
        ):
            if shape in mine and shape in theirs:
                return mine[shape] / theirs[shape]
        return None


def devices() -> list[str]:
    """Folders of profiles/ with figures of GPUs. The first one is the one that profiles/shown_first.txt names, if that
    file exists. Raises ProfileError."""
    folders = [path for path in (ROOT / "profiles").glob("*") if path.is_dir() and path.name != "emulator"]
    named = ROOT / "profiles" / "shown_first.txt"
    try:
        first = named.read_text(encoding="utf-8").strip() if named.exists() else ""
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{named} cannot be read: {error}; write the name of a folder into it") from error
    return sorted((path.name for path in folders), key=lambda name: (name != first, name))


def load_device(device: str, dtype: str = "fp16") -> Device:
    """Reads profiles/<device>/. A version without a profile is listed in `missing`. Raises ProfileError."""
    folder = ROOT / "profiles" / device
    if not folder.is_dir():
        raise ProfileError(f"there is no folder {folder}: --device names a folder of profiles/, such as h200")

    versions, missing, names = [], [], set()
    path = folder / ("peers_e4m3.json" if dtype == "e4m3" else "peers.json")
    document = _read(path, "peers.schema.json") if path.exists() else None
    regimes: list[Regime] = []
    if document is not None:
        names.add(document["device"])
        if document["problem"]["dtype"] == dtype:
            regimes = [_regime(name, document["regimes"][name]) for name in REGIMES if name in document["regimes"]]
    documents_by_data = []
    for path in (folder / "peers_by_data.json", folder / "peers_by_data_causal.json"):
        documents_by_data.append(_read(path, "peers_by_data.schema.json") if path.exists() else None)
    names |= {document["device"] for document in documents_by_data if document is not None}
    path = folder / "peers_by_problem.json"
    document_by_problem = _read(path, "peers_by_problem.schema.json") if path.exists() else None
    if document_by_problem is not None:
        names.add(document_by_problem["device"])
    document_of_decoding, document_of_gradients = (_load(device, f"peers_{of}") for of in ("decoding", "gradients"))
    names |= {document["device"] for document in (document_of_decoding, document_of_gradients) if document is not None}
    profiles: dict[str, dict[str, Any]] = {}  # by kernel
    for kernel in kernel_files(ROOT):
        path = folder / f"{kernel.stem}.json"
        if not path.exists():
            missing.append(kernel.file)
            continue
        profile = _read(path, "profile.schema.json")
        names.add(profile["device"])
        profiles[kernel.kernel] = profile
        standard = [result for result in profile["results"] if _is_standard(result, dtype)]
        if not any(result["problem"]["dtype"] == dtype for result in profile["results"]):
            continue  # it belongs to another comparison, as fp8 does
        versions.append(
            Version(
                source=kernel,
                toolkit=profile["toolkit"],
                driver=profile["driver"],
                date=profile["date"],
                recorded=_fastest(standard),
                watts_recorded=[watts for result in standard if (watts := result.get("load", {}).get("power_watts"))],
                in_regimes=[_beside_peers(regime, kernel.kernel, profile) for regime in regimes],
            )
        )

    if len(names) > 1:
        raise ProfileError(f"the files in {folder} are of different devices: {', '.join(sorted(names))}")
    by_data, by_data_causal = (_by_data(found, profiles) if found else None for found in documents_by_data)
    by_problem = _by_problem(document_by_problem, profiles) if document_by_problem else None
    by_decoding = _by_decoding(document_of_decoding, profiles) if document_of_decoding else None
    gradients = _by_problem(document_of_gradients, profiles) if document_of_gradients else None
    name = names.pop() if names else device
    return Device(
        name, device, dtype, versions, regimes, missing, by_data, by_data_causal, by_problem, by_decoding, gradients
    )  # fmt: skip


def load_fp8_error(device: str) -> dict[str, Any] | None:
    """profiles/<device>/fp8_error.json; None if it is not recorded. Raises ProfileError."""
    return _load(device, "fp8_error")


def load_peer_cases(device: str) -> dict[str, Any] | None:
    """The same of peer_cases.json."""
    return _load(device, "peer_cases")


def load_models(device: str) -> dict[str, Any] | None:
    """The same of models.json."""
    return _load(device, "models")


def load_training(device: str) -> dict[str, Any] | None:
    """The same of training.json."""
    return _load(device, "training")


def is_of_present_code(document: dict[str, Any]) -> bool:
    """Whether these versions still have the code that a file recorded: that of the virtual GPU's profiles, which a test
    keeps up to date."""
    stems = {file.kernel: file.stem for file in kernel_files(ROOT)}
    for kernel, code_hash in document["code_hash"].items():
        path = ROOT / "profiles" / "emulator" / f"{stems.get(kernel)}.json"
        if not path.exists() or json.loads(path.read_text(encoding="utf-8")).get("code_hash") != code_hash:
            return False
    return True


def _load(device: str, name: str) -> dict[str, Any] | None:
    path = ROOT / "profiles" / device / f"{name}.json"
    return _read(path, f"{name}.schema.json") if path.exists() else None


def _by_data(document: dict[str, Any], profiles: dict[str, dict[str, Any]]) -> ByData:
    tables = _tables(document, profiles, lambda result: Cell(result["data"], result["dtype"], result["seq_len"]))
    return ByData(document["problem"]["causal"], document["run"], document["data"], *tables)


def _by_problem(document: dict[str, Any], profiles: dict[str, dict[str, Any]]) -> ByProblem:
    """Of peers_by_problem.json or peers_gradients.json."""
    versions, peers, _ = _tables(document, profiles, lambda result: ProblemCell(result["problem"], result["seq_len"]))
    measured = {cell for tflops in (*versions.values(), *peers.values()) for cell in tflops}
    seq_lens = {
        name: sorted(cell.seq_len for cell in measured if cell.problem == name) for name in document["problems"]
    }
    files = kernel_files(ROOT)
    first_track = {file.label for file in files if "hopper" not in Path(file.file).parts}
    deterministic = {file.label for file in files if file.kernel in document.get("deterministic", [])}
    dtype = document["problem"]["dtype"]
    earlier = sorted({problem["date"] for problem in document["problems"].values() if "date" in problem})
    run = document["run"] | {"earlier_dates": earlier}
    return ByProblem(
        run, dtype, seq_lens, versions, peers, first_track & versions.keys(), deterministic
    )  # fmt: skip


def _by_decoding(document: dict[str, Any], profiles: dict[str, dict[str, Any]]) -> ByDecoding:
    def cell_of(result: dict[str, Any]) -> DecodingCell:
        return DecodingCell(result["problem"], result["batch"], result["seq_len_kv"])

    versions, peers, _ = _tables(document, profiles, cell_of, "kv_gb_per_s")
    measured = [cell_of(result) for one in (*document["versions"], *document["peers"]) for result in one["results"]]
    in_order = sorted(set(measured), key=lambda cell: (cell.batch, cell.seq_len_kv))
    cells = {name: [cell for cell in in_order if cell.problem == name] for name in document["problems"]}
    return ByDecoding(document["run"], cells, versions, peers)


def _is_outdated(entry: dict[str, Any], run: dict[str, Any], profiles: dict[str, dict[str, Any]]) -> bool:
    """Whether the version was recorded later, with another text of its code. If the run is the newer one, it is the
    profile that belongs to an earlier text."""
    profile = profiles.get(entry["kernel"])
    date = entry.get("date", run["date"])
    return profile is not None and profile["code_hash"] != entry["code_hash"] and date < profile["date"]


def _tables(
    document: dict[str, Any],
    profiles: dict[str, dict[str, Any]],
    cell_of: Callable[[dict[str, Any]], Key],
    figure: str = "tflops",
) -> tuple[dict[str, dict[Key, float]], dict[str, dict[Key, float]], dict[str, dict[Key, int]]]:
    """The figures of the versions that are not outdated, and of the peers, and the clocks of both."""
    versions: dict[str, dict[Key, float]] = {}
    peers: dict[str, dict[Key, float]] = {}
    sm_clock_mhz: dict[str, dict[Key, int]] = {}
    labels = {file.kernel: file.label for file in kernel_files(ROOT)}
    rows = [
        (versions, labels.get(one["kernel"]), one)
        for one in document["versions"]
        if not _is_outdated(one, document["run"], profiles)
    ]
    rows += [(peers, peer["name"], peer) for peer in document["peers"]]
    for table, label, one in rows:
        if label is None:
            continue
        figures, clocks = table.setdefault(label, {}), sm_clock_mhz.setdefault(label, {})
        for result in one["results"]:
            cell = cell_of(result)
            if result[figure] > figures.get(cell, 0.0):  # the faster one of several configurations
                figures[cell] = result[figure]
                clocks.pop(cell, None)
                if result["sm_clock_mhz"] is not None:
                    clocks[cell] = result["sm_clock_mhz"]
    return versions, peers, sm_clock_mhz


def _regime(name: str, regime: dict[str, Any]) -> Regime:
    versions: dict[tuple[str, str | None], Speeds] = {}
    for version in regime["versions"]:
        of_version = versions.setdefault((version["kernel"], version["code_hash"]), Speeds())
        of_version.date = version.get("date", regime["run"]["date"])
        _add(of_version, version["results"])
    peers = []
    for peer in regime["peers"]:
        peers.append(Peer(peer["name"], peer["note"], Speeds(date=peer.get("date", regime["run"]["date"]))))
        _add(peers[-1].speeds, peer["results"])
    ceilings = {ceiling["name"]: ceiling["tflops"] for ceiling in regime["ceilings"]}
    dates = {ceiling["name"]: ceiling.get("date", regime["run"]["date"]) for ceiling in regime["ceilings"]}
    return Regime(name, regime["run"], versions, [], peers, ceilings, dates)


def _beside_peers(regime: Regime, kernel: str, profile: dict[str, Any]) -> Speeds:
    """The regime's results for the profile's text of the code; otherwise for its only text, marked in `earlier` unless
    they are newer than the profile."""
    versions, code_hash = regime.versions, profile["code_hash"]
    if (kernel, code_hash) in versions:
        return versions[kernel, code_hash]
    of_other_texts = [speeds for (name, _), speeds in versions.items() if name == kernel]
    if len(of_other_texts) != 1:
        return Speeds()
    if (of_other_texts[0].date or "") < profile["date"]:
        regime.earlier.append(kernel)
    return of_other_texts[0]


def _add(speeds: Speeds, results: list[dict[str, Any]]) -> None:
    """Keeps the faster one if a shape was measured in several configurations."""
    for result in results:
        shape = Shape(result["seq_len"], result["batch"])
        if result["tflops"] <= speeds.tflops.get(shape, 0.0):
            continue
        speeds.tflops[shape] = result["tflops"]
        for member, kept in (
            ("power_watts", speeds.watts),
            ("sm_clock_mhz", speeds.sm_clock_mhz),
            ("tflops_per_watt", speeds.tflops_per_watt),
        ):
            kept.pop(shape, None)
            if result[member] is not None:
                kept[shape] = result[member]


def harmonic_mean(tflops: Mapping[Shape, float], shapes: list[Shape]) -> float | None:
    """None if one of the shapes was not measured."""
    if not shapes or any(shape not in tflops for shape in shapes):
        return None
    return len(shapes) / sum(1 / tflops[shape] for shape in shapes)


def _is_standard(result: dict[str, Any], dtype: str) -> bool:
    problem = result["problem"]
    return (
        problem["dtype"] == dtype
        and problem["heads"] == HEADS
        and problem["head_dim"] == HEAD_DIM
        and problem["seq_len"] == problem["seq_len_kv"]
        and problem.keys() == PLAIN
    )


def _fastest(results: list[dict[str, Any]]) -> dict[Shape, float]:
    fastest: dict[Shape, float] = {}
    for result in results:
        if result["tflops"] is not None:
            shape = Shape(result["problem"]["seq_len"], result["problem"]["batch"])
            fastest[shape] = max(result["tflops"], fastest.get(shape, 0.0))
    return fastest


def _finite(text: str) -> int | float:
    """A number in JSON. Raises ValueError for NaN, and for numbers so large that Python would read them as infinite."""
    number = float(text)
    if not math.isfinite(number):
        raise ValueError(f"{text if len(text) <= 20 else text[:20] + '...'} is not a finite number")
    return int(text) if text.lstrip("-").isdecimal() else number


def _read(path: Path, schema_name: str) -> dict[str, Any]:
    """A file of profiles/, checked against its schema in harness/results/."""
    advice = "record it again, or restore it from the repository"
    try:
        text = path.read_text(encoding="utf-8")
    except (OSError, UnicodeDecodeError) as error:
        raise ProfileError(f"{path} cannot be read: {error}; {advice}") from error
    try:
        document = json.loads(text, parse_int=_finite, parse_float=_finite, parse_constant=_finite)
    except (ValueError, RecursionError) as error:
        raise ProfileError(f"{path} is truncated or not JSON ({error}); {advice}") from error

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
    """0.855, 20.0, 336, 1,234; "–" if nothing was measured."""
    if value is None:
        return "–"
    return f"{value:,.0f}" if abs(value) >= 999.5 else f"{value:#.3g}".rstrip(".")
