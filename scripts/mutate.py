#!/usr/bin/env python3
"""Measures how many mistakes the check finds: it changes each version in many places, one at a time, and checks the
result.

A mutant is a version with one token or one line changed: a wait deleted, a bound off by one, K read in place of V,
another operator or constant. Which places are changed depends only on the text of the version and on --seed. A mutant
is compiled for the virtual GPU only, in its first configuration, and linked with the objects of the build's worker. It
is then checked as by `scripts/harness --kernel NN --device emulator`, until the first inputs that reveal a mistake. The
outcome is one of these:

  killed       wrong: the output differs from the reference        finding: the virtual GPU reports a mistake
               refusal: CUDA or the worker returns an error        timeout: longer than --limit seconds
  survived     the check misses it: a gap, unless scripts/equivalent_mutants.toml says why the mutant is right
  no mutant    it does not compile within 20 s of CPU time, or the compiler generates the same code

The score is the fraction of killed mutants among those that compile and are not equivalent to the version. Results are
kept in --output, and a run resumes where the previous run ended.

  scripts/mutate.py --versions 01,08,16 --jobs 2                three versions, and the survivors
  scripts/mutate.py --jobs 16 --before OLD/build --publish      all, with this check and an older one, for the docs

Needs a build of harness-worker-emulator made with ninja (cmake --build BUILD --target harness-worker-emulator), the
nvcc of that build, objcopy, and no Python packages. A mutant takes 2 to 3 s of CPU time. Exit status: 0 done, 2 bad
usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import hashlib
import json
import os
import random
import re
import shlex
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import tomllib
from kernel_files import KernelFile, kernel_files
from ladder import BUILD, HEAD_DIM, ROOT
from worker_request import ask_worker

EQUIVALENT = ROOT / "scripts" / "equivalent_mutants.toml"
PUBLISHED = ROOT / "profiles" / "emulator" / "mutation.json"
KILLED = ("wrong", "finding", "refusal", "timeout")
NO_MUTANT = ("compile error", "same code")
COLUMNS = (*KILLED, "survived", "equivalent", *NO_MUTANT)
MOST_INSTRUCTIONS = 2_000_000  # of a CTA, beyond which it counts as endless
# The harness's default problems without a GPU.
PROBLEM = {"batch": 1, "heads": 2, "seq_len": 256, "seq_len_kv": 256, "head_dim": HEAD_DIM}
DECODING_PROBLEM = {"batch": 2, "heads": 8, "kv_heads": 2, "seq_len": 1, "seq_len_kv": 1024, "head_dim": HEAD_DIM}


class Missing(Exception):
    """Something that is needed to make a mutant is missing."""


# ---- Mutants ----

# Binary operators are surrounded by spaces, which distinguishes them from pointers, references and templates.
OPERATORS = {
    "<": "<=", "<=": "<", ">": ">=", ">=": ">", "==": "!=", "!=": "==", "&&": "||", "||": "&&", "+": "-", "-": "+",
    "*": "+", "/": "*", "%": "/", "^": "|", "&": "|", "|": "&", "<<": ">>", ">>": "<<", "=": "+=", "+=": "=",
    "-=": "+=", "*=": "=", "^=": "|=",
}  # fmt: skip
# Names that are easily confused.
ALIKE = (
    "Q K V", "Q_smem K_smem V_smem", "Q_gmem K_gmem V_gmem", "Q_rmem K_rmem V_rmem", "Q_map K_map V_map O_map",
    "Q_full K_full V_full", "Q_empty K_empty V_empty", "Q_next K_next V_next", "K_lane V_lane", "K_step V_step",
    "load_K_fragments load_V_fragments", "copy_K copy_V", "full empty", "stage next_stage", "row col",
    "row_of head_of batch_of", "head batch", "heads batch", "mma_m mma_n mma_k", "row_max row_sum new_sum",
    "new_max row_max S_max", "warp_id lane_id", "seq_len seq_len_kv", "kBlockQ kBlockKV kHeadDim", "kMmaM kStages",
    "row_stride head_stride batch_stride", "q_tile next_q_tile", "kv_tile ring_tile",
    "is_last is_last_tile ends_q_tile", "turn next_turn", "blockIdx.x blockIdx.y blockIdx.z", "stage parity",
    "fmaxf fminf", "max min", "chunk.x chunk.y", "chunk.z chunk.w", "O_rmem S_rmem", "half i", "piece next", "x y",
)  # fmt: skip
SIBLINGS = {name: [other for other in group.split() if other != name] for group in ALIKE for name in group.split()}
# A call or an assignment that occupies a whole line.
STATEMENT = re.compile(
    r"(?!return\b|const|static|using\b|float\b|int\b|bool\b|auto\b|extern\b|cudaError_t|if\b|for\b|while\b|else\b|case\b|do\b|break\b|"
    r"continue\b|template\b|typename\b|Element\b|PipelineState<|std::uint|uint|struct\b|public|private|dim3\b|CUtensorMap\b|void\b|Traits\b)"
    r"[\w*+(].*;$"
)


@dataclass(frozen=True)
class Mutant:
    """One change of one line."""

    line: int  # from 1
    place: int  # the number of this line among the lines of code, which comments do not change
    column: int  # where the change begins
    kind: str  # "delete", "condition", "operator", "constant", "name"
    old: str  # the line without its comment and indentation
    new: str

    @property
    def key(self) -> str:
        return f"{self.place}:{self.column}:{self.kind}:{self.new}"


def without_comment(line: str) -> str:
    return re.sub(r"\s*//.*", "", line).rstrip()


def lines_of_code(text: str) -> Iterator[tuple[int, str]]:
    """The lines that can be changed: those of the kernels, of the functions that they call, and of the launcher,
    without declarations.

    Traits are left out because different traits are a different configuration, which may be right; error handlers are
    left out because no check reaches them.
    """
    skipping_until = ""
    for number, line in enumerate(text.splitlines(), 1):
        code = without_comment(line)
        words = code.strip()
        if words.startswith("const Registration registration"):
            return
        if words.startswith("struct Traits"):
            skipping_until = r"^};"
        if skipping_until:
            if re.search(skipping_until, code):
                skipping_until = ""
        elif re.match(
            r"(template|__device__|__global__|__host__|constexpr|inline|cudaError_t \w+\(|static_assert)", words
        ):
            # Skip to its body, or to its end.
            if not re.search(r"[{;]$", words):
                skipping_until = r"[{;]$"
        elif words and not re.match(r"#|namespace|using|extern|}|static_assert|struct", words) and "error" not in words:
            yield number, code


def code_digest(text: str) -> str:
    """A digest of a version without its comments."""
    return hashlib.sha256("\n".join(filter(None, map(without_comment, text.splitlines()))).encode()).hexdigest()


def balanced(code: str) -> bool:
    return all(code.count(a) == code.count(b) for a, b in ("()", "[]", "{}"))


def conditions(code: str) -> Iterator[tuple[int, str]]:
    """`if (…)` on one line with another condition."""
    for match in re.finditer(r"\bif \(", code):
        depth, end = 1, match.end()
        while end < len(code) and depth:
            depth += {"(": 1, ")": -1}.get(code[end], 0)
            end += 1
        if depth:
            continue
        inside = code[match.end() : end - 1]
        for new in ("true", "false", f"!({inside})"):
            yield match.end(), code[: match.end()] + new + code[end - 1 :]


def changes_of(code: str, names: set[str]) -> Iterator[tuple[str, int, str]]:
    """Kind, column and new text of the possible changes to a line of a file that contains these names."""
    words = code.strip()
    indent = len(code) - len(words)
    if STATEMENT.match(words) and balanced(words):
        yield "delete", indent, code[:indent] + ";"
    for column, new in conditions(code):
        yield "condition", column, new
    # Changing the size in a declaration does not change how the array is used.
    declares = re.match(r"(const )?(float|std::uint32_t|uint4|bool|int|Element) [\w, \[\]/*+-]*\[", words)
    begin = code.find("=") if declares else 0
    if begin < 0:
        return
    for match in re.finditer(r"(?<= )([<>=!&|+\-*/%^]+)(?= )", code):
        if match.start() >= begin and (new := OPERATORS.get(match[1])):
            is_initialiser = match[1] == "=" and (
                declares or re.match(r"(const|constexpr|float|int|bool|auto|for|Element|std::)", words)
            )
            if not is_initialiser:
                yield "operator", match.start(), code[: match.start()] + new + code[match.end() :]
    for match in re.finditer(r"\+\+|--|!(?=[\w(])", code):
        new = {"++": "--", "--": "++", "!": ""}[match[0]]
        yield "operator", match.start(), code[: match.start()] + new + code[match.end() :]
    for match in re.finditer(r" \* (?=(\w*scale\w*|inverse_sum)\b)(\w+(\[\w+\])*)", code):  # omits a factor
        yield "operator", match.start(), code[: match.start()] + code[match.end() :]
    for match in re.finditer(r"(?<![\w.])(0x[0-9a-f]+|\d+\.\d+f?|\d+f?)(?![\w.])", code):
        if match.start() < begin:
            continue
        for new in other_numbers(match[0]):
            yield "constant", match.start(), code[: match.start()] + new + code[match.end() :]
    for match in re.finditer(NAME, code):
        if match.start() < begin:
            continue
        for new in sorted(names.intersection(SIBLINGS.get(match[0], ()))):
            yield "name", match.start(), code[: match.start()] + new + code[match.end() :]


def other_numbers(number: str) -> list[str]:
    if number.startswith("0x"):
        return [hex(int(number, 16) >> 1)]
    if "." in number or number.endswith("f"):
        return [f"{float(number.rstrip('f')) * 1.25:.9g}".replace("e", "e") + ("f" if number.endswith("f") else "")]
    value = int(number)
    return [str(value + 1)] + ([str(value - 1)] if value > 0 else [])


NAME = r"(?<![\w.])[A-Za-z_]\w*(?:\.[xyz]\b)?|(?<=\.)\w+"


def names_of(lines: list[tuple[int, str]]) -> set[str]:
    return {name for _, code in lines for name in re.findall(NAME, code)}


def mutants_of(version: KernelFile, text: str, seed: int) -> list[Mutant]:
    """All mutants, one for each place, in the order in which they are tried: alternating between all kinds."""
    return alternating(list(lines_of_code(text)), f"{seed}:{version.stem}")


def alternating(lines: list[tuple[int, str]], seed: str, again: bool = False) -> list[Mutant]:
    """The mutants of these lines, one for each place, alternating between all kinds; `again`: then the other changes of
    the same places."""
    by_kind: dict[str, list[Mutant]] = {}
    names = names_of(lines)
    for place, (number, code) in enumerate(lines):
        for kind, column, new in changes_of(code, names):
            by_kind.setdefault(kind, []).append(Mutant(number, place, column, kind, code.strip(), new.strip()))
    # Python guarantees the sequence of random() across versions, but not that of other functions.
    generator = random.Random(seed)
    for found in by_kind.values():
        found.sort(key=lambda mutant: (generator.random(), mutant.key))
    chosen: list[Mutant] = []
    taken: set[tuple[int, int]] = set()
    kinds = [by_kind[kind] for kind in sorted(by_kind)]
    later: list[Mutant] = []
    while any(kinds):
        for found in kinds:
            while found:
                mutant = found.pop()
                if (mutant.line, mutant.column) not in taken:
                    taken.add((mutant.line, mutant.column))
                    chosen.append(mutant)
                    break
                later.append(mutant)
    return chosen + later if again else chosen


def mutated(text: str, mutant: Mutant) -> str:
    lines = text.splitlines()
    line = lines[mutant.line - 1]
    lines[mutant.line - 1] = line[: len(line) - len(line.lstrip())] + mutant.new
    return "\n".join(lines) + "\n"


# ---- Building and checking ----


@dataclass(frozen=True)
class Toolchain:
    """How a build compiles a version and links a worker."""

    build: Path
    compile: dict[str, list[str]]  # of each kernel file, by its path in kernels/
    link: list[str]  # of the worker without any version, to run in the build folder

    @staticmethod
    def of_build(build: Path) -> Toolchain:
        try:
            commands = json.loads((build / "compile_commands.json").read_text(encoding="utf-8"))
            ninja = ninja_of(build)
            done = subprocess.run([ninja, "-C", str(build), "-t", "commands", "harness-worker-emulator"],
                                  capture_output=True, text=True, check=True)  # fmt: skip
        except (OSError, ValueError, subprocess.CalledProcessError) as error:
            raise Missing(
                f"{build} is not a ninja build ({error}): scripts/setup --slim harness-worker-emulator"
            ) from error
        link = shlex.split(done.stdout.splitlines()[-1].removeprefix(": && ").removesuffix(" && :"))
        if not (build / "harness-worker-emulator").exists():
            raise Missing(
                f"{build} has no harness-worker-emulator: cmake --build {build} --target harness-worker-emulator"
            )
        link = [word for word in link if not word.startswith("kernels/")]
        output = link.index("-o")
        del link[output : output + 2]
        compile_ = {}
        for entry in commands:
            file = Path(entry["file"])
            if file.suffix == ".cu" and "kernels" in file.parts and "harness" not in file.parts[-4:]:
                compile_[file.as_posix().rpartition("/kernels/")[2]] = compile_command(shlex.split(entry["command"]))
        return Toolchain(build, compile_, link)


def ninja_of(build: Path) -> str:
    cache = (build / "CMakeCache.txt").read_text(encoding="utf-8")
    match = re.search(r"^CMAKE_MAKE_PROGRAM:\w+=(.*ninja\S*)$", cache, re.MULTILINE)
    return match[1] if match and os.access(match[1], os.X_OK) else "ninja"


def compile_command(words: list[str]) -> list[str]:
    """The build's own command, for one architecture, without line numbers and without warnings."""
    words = words[next(i for i, word in enumerate(words) if word.endswith("nvcc")) : words.index("-c")]
    architecture = "compute_90a" if any("90a" in word for word in words) else "compute_80"
    dropped = ("--generate-code", "-lineinfo", "--Werror", "-Xcompiler=-W", "-frandom-seed", "-x", "cu")
    kept = [word for word in words if not (word.startswith(dropped[:-2]) or word in dropped)]
    return [*kept, f"--generate-code=arch={architecture},code={architecture}", "-w", "-frandom-seed=mutant"]


# As in harness/cmake/steady_nvcc.cmake, so that the same code gives the same PTX. If it does not, such a mutant
# survives. The compiler gets 20 s of CPU time, because some mutants have a loop that it would unroll without end.
STEADY = ["env", "LC_ALL=C", "MALLOC_CONF=narenas:1,dirty_decay_ms:-1,muzzy_decay_ms:-1", "sh", "-c",
          'ulimit -S -t 20; if setarch -R -L true 2>/dev/null; then exec setarch -R -L "$@"; else exec "$@"; fi',
          "sh"]  # fmt: skip


def with_one_configuration(text: str) -> str:
    """The first one is enough, and compiles in a fraction of the time."""
    return re.sub(r"(\.configurations =\s*\{configuration<.*?\)),.*?\},\n\}\);", r"\1},\n});", text, flags=re.DOTALL)


class Workshop:
    """Makes and checks the mutants of a version."""

    def __init__(
        self, version: KernelFile, text: str, toolchains: dict[str, Toolchain], limit: float, references: str
    ) -> None:
        """`toolchains`: those whose check is tried, by name; the first one compiles."""
        self.version, self.text, self.toolchains, self.limit, self.references = (
            version,
            text,
            toolchains,
            limit,
            references,
        )
        self.command = next(iter(toolchains.values())).compile[version.file.removeprefix("kernels/")]
        self.launcher = next(
            number for number, line in enumerate(text.splitlines(), 1) if line.startswith("cudaError_t launch(")
        )
        self.folder = tempfile.TemporaryDirectory(prefix="mutants-")
        self.ptx = self._compile(text, Path(self.folder.name), "-ptx", "device.ptx")
        if self.ptx is None or self._compile(text, Path(self.folder.name), "-c", "original.o") is None:
            raise Missing(f"{version.label} does not compile unchanged")
        for name, toolchain in toolchains.items():
            right = self._check(Path(self.folder.name) / "original.o", toolchain, Path(self.folder.name))
            if right["outcome"] != "survived":
                raise Missing(f"{version.label} is not right unchanged ({name}): {right}")

    def _compile(self, text: str, folder: Path, how: str, output: str) -> str | None:
        """The PTX, or with -c the object's name; None if the text does not compile."""
        source = folder / self.version.file
        source.parent.mkdir(parents=True, exist_ok=True)
        source.write_text(with_one_configuration(text), encoding="utf-8")
        command = [*STEADY, *self.command, how, self.version.file, "-o", output]
        done = subprocess.run(
            command, cwd=folder, env=os.environ | {"TMPDIR": str(folder)}, capture_output=True, text=True, check=False
        )
        if done.returncode == 0:
            return (folder / output).read_text(encoding="utf-8") if how == "-ptx" else output
        said = done.stdout + done.stderr
        if "error" not in said and "CPU time limit exceeded" not in said:
            raise Missing(f"the compiler does not work: {said.strip()[-300:]}")
        return None

    def _with_device_code(self, ptx: Path, folder: Path) -> Path:
        """The version's own object with other device code, because half of a compilation is spent on host code."""
        architecture = next(word for word in self.command if "arch=" in word).rpartition("compute_")[2]
        fatbinary = Path(self.command[0]).with_name("fatbinary")
        image = f"--image3=kind=ptx,sm={architecture},file={ptx}"
        subprocess.run([fatbinary, "-64", "-compress=false", image, f"--create={folder / 'fatbin'}"], check=True)
        original = Path(self.folder.name) / "original.o"
        subprocess.run(
            ["objcopy", "--update-section", f".nv_fatbin={folder / 'fatbin'}", original, folder / "mutant.o"],
            check=True,
        )
        return folder / "mutant.o"

    def run(self, mutant: Mutant, names: list[str]) -> dict[str, dict[str, Any]]:
        """The outcomes of the checks of these toolchains."""
        with tempfile.TemporaryDirectory(prefix="mutant-") as name:
            folder = Path(name)
            text = mutated(self.text, mutant)
            in_launcher = mutant.line >= self.launcher
            compiled = self._compile(
                text, folder, "-c" if in_launcher else "-ptx", "mutant.o" if in_launcher else "device.ptx"
            )
            if compiled is None or compiled == self.ptx:
                outcome = "compile error" if compiled is None else "same code"
                return {name: {"outcome": outcome} for name in names}
            object_file = folder / "mutant.o" if in_launcher else self._with_device_code(folder / "device.ptx", folder)
            return {name: self._check(object_file, self.toolchains[name], folder) for name in names}

    def _check(self, object_file: Path, toolchain: Toolchain, folder: Path) -> dict[str, Any]:
        """Links the object and runs the worker: the outcome, and the check that revealed it."""
        worker = folder / "worker"
        command = [
            toolchain.link[0],
            object_file,
            *toolchain.link[1:],
            "-o",
            worker,
        ]  # objects that use a library must precede it
        done = subprocess.run(command, cwd=toolchain.build, capture_output=True, text=True, check=False)
        if done.returncode != 0:
            raise Missing(f"the worker cannot be linked: {done.stderr.strip()[-500:]}")
        dtype = "e4m3" if self.version.stem == "fp8" else "fp16"
        request = {
            "command": "run",
            "kernel": self.version.kernel,
            "problem": (DECODING_PROBLEM if self.version.is_decoding else PROBLEM) | {"dtype": dtype},
            "benchmark": False,
            "stop_when_wrong": True,
            "max_instructions": MOST_INSTRUCTIONS,
            "reference_cache": self.references,
        }
        return outcome_of(ask_worker(worker, request, self.limit))


def outcome_of(answer: dict[str, Any]) -> dict[str, Any]:
    """The outcome for a mutant, from the last event of its worker."""
    if answer["event"] == "error":
        message = " ".join(answer["message"].split())
        return {"outcome": "timeout" if message.startswith("no end within") else "refusal", "by": message[:200]}
    result = answer["result"]
    if result["status"] == "ok":
        return {"outcome": "survived"}
    shown = {"set": result["checked"][-1]} if result.get("checked") else {}
    if result["findings"]:
        return {"outcome": "finding", "by": result["findings"][0]["kind"], **shown}
    return {
        "outcome": "wrong" if result["status"] == "wrong" else "refusal",
        "by": " ".join((result["reason"] or "").split())[:200],
        **shown,
    }


# ---- A campaign ----


class Record:
    """The results so far, kept in a file."""

    def __init__(self, path: Path, seed: int, places: int) -> None:
        self.path = path
        self.lock = threading.Lock()
        self.written = time.monotonic()
        self.data: dict[str, Any] = {"seed": seed, "places": places, "versions": {}}
        if path.exists():
            try:
                known = json.loads(path.read_text(encoding="utf-8"))
                same = (known["seed"], known["places"]) == (seed, places)
            except (OSError, ValueError, KeyError, TypeError) as error:
                raise Missing(
                    f"{path} was not written by this script ({error!r}); remove it, or name another --output"
                ) from error
            if not same:
                raise Missing(
                    f"{path} has --seed {known['seed']} and --places {known['places']}; use these, or name another "
                    f"--output"
                )
            self.data = known

    def of(self, version: KernelFile, text: str, mutants: list[Mutant]) -> dict[str, Any]:
        """The results for the version's present code; those for other code are discarded."""
        digest = code_digest(text)
        known = self.data["versions"].get(version.stem)
        if known is None or known["code"] != digest:
            known = self.data["versions"][version.stem] = {"code": digest, "mutants": {}}
        for mutant in mutants:
            if mutant.key in known["mutants"]:
                known["mutants"][mutant.key]["line"] = mutant.line  # comments may have moved it
        return known["mutants"]

    def keep(self, mutants: dict[str, Any], mutant: Mutant, outcomes: dict[str, Any]) -> None:
        with self.lock:
            entry = {"line": mutant.line, "kind": mutant.kind, "old": mutant.old, "new": mutant.new}
            mutants.setdefault(mutant.key, entry).update(outcomes)
            if time.monotonic() > self.written + 5:
                self.write()

    def write(self) -> None:
        temporary = self.path.with_name(self.path.name + ".new")
        temporary.write_text(json.dumps(self.data, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
        temporary.replace(self.path)
        self.written = time.monotonic()


def run_version(
    version: KernelFile,
    toolchains: dict[str, Toolchain],
    record: Record,
    arguments: argparse.Namespace,
    references: str,
) -> None:
    text = (ROOT / version.file).read_text(encoding="utf-8")
    mutants = mutants_of(version, text, arguments.seed)
    known = record.of(version, text, mutants)

    if arguments.survivors:
        for outcomes in known.values():
            if outcomes.get("now", {}).get("outcome") == "survived":
                del outcomes["now"]

    def untried(mutant: Mutant) -> list[str]:
        return [name for name in toolchains if name not in known.get(mutant.key, {})]

    def todo() -> list[Mutant]:
        """Those of the first mutants that have not been tried, not counting those that turned out not to be mutants."""
        first = [mutant for mutant in mutants if not is_none(known.get(mutant.key, {}))][: arguments.places]
        return [mutant for mutant in first if untried(mutant)]

    if not todo():
        return
    workshop = Workshop(version, text, toolchains, arguments.limit, references)

    def run(mutant: Mutant) -> None:
        started = time.monotonic()
        outcomes = workshop.run(mutant, untried(mutant))
        record.keep(known, mutant, outcomes)
        if not arguments.quiet:
            said = "; ".join(f"{name}: {one['outcome']} {one.get('by', '')}".strip() for name, one in outcomes.items())
            print(
                f"{described(version.stem, mutant.__dict__)}\n    {said} ({time.monotonic() - started:.1f} s)",
                flush=True,
            )

    try:
        with ThreadPoolExecutor(arguments.jobs) as pool:
            while batch := todo():
                for _ in pool.map(run, batch):
                    pass
    finally:
        record.write()


# ---- Reports ----


def is_none(mutant: dict[str, Any]) -> bool:
    """Whether it is not a mutant: it does not compile, or the compiled code is the same."""
    return any(mutant[name]["outcome"] in NO_MUTANT for name in ("now", "before") if name in mutant)


def described(stem: str, mutant: dict[str, Any]) -> str:
    return f"{stem}:{mutant['line']} {mutant['kind']}: {mutant['old']}  →  {mutant['new']}"


def equivalent(path: Path = EQUIVALENT) -> list[dict[str, Any]]:
    return tomllib.loads(path.read_text(encoding="utf-8")).get("mutant", []) if path.exists() else []


def changes_to(entry: dict[str, Any], default: str) -> list[str]:
    """The new lines of an entry of equivalent_mutants.toml; `default` if it stands for any."""
    new = entry.get("new", default)
    return [new] if isinstance(new, str) else new


def reason_of(stem: str, mutant: dict[str, Any], known: list[dict[str, Any]]) -> str | None:
    """Why a mutant is not a mistake, if the reason is known."""
    for entry in known:
        if (
            mutant["old"] == entry["old"]
            and mutant["new"] in changes_to(entry, mutant["new"])
            and stem in entry.get("versions", [stem])
        ):
            return entry["reason"]
    return None


def tally(stem: str, mutants: list[dict[str, Any]], name: str, known: list[dict[str, Any]]) -> dict[str, Any]:
    """The number of mutants with each outcome."""
    counts = dict.fromkeys(COLUMNS, 0)
    for mutant in mutants:
        if name in mutant:
            outcome = mutant[name]["outcome"]
            counts["equivalent" if outcome == "survived" and reason_of(stem, mutant, known) else outcome] += 1
    return counts


def score(counts: dict[str, int]) -> float | None:
    """The fraction found; None if there are no mutants."""
    killed = sum(counts[outcome] for outcome in KILLED)
    return killed / (killed + counts["survived"]) if killed + counts["survived"] else None


def table(data: dict[str, Any]) -> str:
    known = equivalent()
    lines = []
    for name in ("before", "now"):
        rows = {
            stem: tally(stem, [*version["mutants"].values()], name, known)
            for stem, version in sorted(data["versions"].items())
        }
        rows = {stem: counts for stem, counts in rows.items() if any(counts.values())}
        rows["all"] = {column: sum(counts[column] for counts in rows.values()) for column in COLUMNS}
        if not any(rows["all"].values()):
            continue
        lines.append(f"{name:<24}" + "".join(f"{column:>15}" for column in COLUMNS) + f"{'score':>9}")
        for stem, counts in rows.items():
            share = score(counts)
            cells = "".join(f"{counts[column]:>15}" for column in COLUMNS)
            lines.append(f"{stem:<24}{cells}{'-' if share is None else f'{100 * share:.1f} %':>9}")
    return "\n".join(lines)


def survivors(data: dict[str, Any]) -> Iterator[str]:
    known = equivalent()
    for stem, version in sorted(data["versions"].items()):
        for mutant in sorted(version["mutants"].values(), key=lambda one: one["line"]):
            if mutant.get("now", {}).get("outcome") == "survived":
                why = reason_of(stem, mutant, known)
                yield described(stem, mutant) + (f"  (equivalent: {why})" if why else "")


def published(data: dict[str, Any], earlier: dict[str, Any]) -> dict[str, Any]:
    """What the docs show for complete versions: the counts of both checks, what only this one finds, and what this one
    misses. `before` and `found_since` are None if the older check has not tried all mutants. What was published
    `earlier` stays for versions that are not complete, if it is of the same mutants."""
    known = equivalent()
    same = all(earlier.get(name) == data[name] for name in ("seed", "places"))
    versions = dict(earlier["versions"]) if same else {}
    for stem, version in sorted(data["versions"].items()):
        mutants = [mutant for mutant in version["mutants"].values() if "now" in mutant]

        def tried(name: str, of: list[dict[str, Any]] = mutants) -> bool:
            return sum(name in mutant and not is_none(mutant) for mutant in of) >= data["places"]

        def shown(of: list[dict[str, Any]]) -> list[dict[str, Any]]:
            ordered = sorted(of, key=lambda mutant: mutant["line"])
            return [{name: mutant[name] for name in ("line", "kind", "old", "new", "now")} for mutant in ordered]

        if not tried("now"):
            print(f"{stem}: not published, because not all of its mutants have been tried", file=sys.stderr)
            continue
        survivors = [mutant for mutant in mutants if mutant["now"]["outcome"] == "survived"]
        versions[stem] = {"code": version["code"], "before": None, "found_since": None} | {
            "now": tally(stem, mutants, "now", known),
            "survivors": shown([mutant for mutant in survivors if not reason_of(stem, mutant, known)]),
        }
        if tried("before"):
            versions[stem]["before"] = tally(stem, mutants, "before", known)
            versions[stem]["found_since"] = shown(
                [
                    mutant
                    for mutant in mutants
                    if mutant.get("before", {}).get("outcome") == "survived" and mutant["now"]["outcome"] in KILLED
                ]
            )
    return {"seed": data["seed"], "places": data["places"], "versions": dict(sorted(versions.items()))}


def selected(names: str) -> list[KernelFile]:
    versions = kernel_files(ROOT)
    if names == "all":
        return versions
    chosen = []
    for name in names.split(","):
        first, _, last = name.partition("-")
        found = [
            one
            for one in versions
            if first in (one.kernel, one.stem, one.name)
            or (last and one.number and first.isdigit() and int(first) <= one.number <= int(last))
        ]
        if not found:
            message = f"--versions {name}: there is no such version; name some, such as 01,05-08,fp8, or all"
            print(message, file=sys.stderr)
            raise SystemExit(2)
        chosen += found
    return chosen


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--versions", default="all", help="01,05-08,fp8 or all (%(default)s)")
    parser.add_argument(
        "--places", type=int, default=60, metavar="N", help="number of mutants of each version (%(default)s)"
    )
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="seed that selects them (%(default)s)")
    parser.add_argument(
        "--jobs", type=int, default=1, metavar="N", help="number of mutants checked at a time (%(default)s)"
    )
    parser.add_argument(
        "--limit", type=float, default=120, metavar="SECONDS", help="time limit of a mutant's check (%(default)g)"
    )
    parser.add_argument("--build", type=Path, default=BUILD, help="build folder whose check is tested (build/)")
    parser.add_argument(
        "--before", type=Path, metavar="BUILD", help="build folder of an older checkout, whose check is tested as well"
    )
    parser.add_argument(
        "--output", type=Path, default=Path("mutation.json"), metavar="FILE", help="results (%(default)s)"
    )
    parser.add_argument(
        "--publish",
        action="store_true",
        help=f"write {PUBLISHED.relative_to(ROOT)} of the versions tried completely",
    )
    parser.add_argument("--survivors", action="store_true", help="try the survivors again, after a change to the check")
    parser.add_argument("--quiet", action="store_true", help="no line for each mutant")
    parser.add_argument("--list", action="store_true", help="print the mutants and run none")
    arguments = parser.parse_args()
    for name in ("places", "jobs"):
        if getattr(arguments, name) < 1:
            parser.error(f"--{name} {getattr(arguments, name)} is out of range; give 1 or more")
    try:
        versions = selected(arguments.versions)
        if arguments.list:
            for version in versions:
                text = (ROOT / version.file).read_text(encoding="utf-8")
                for mutant in mutants_of(version, text, arguments.seed)[: arguments.places]:
                    print(described(version.stem, mutant.__dict__))
            return 0
        builds = {"now": arguments.build} | ({"before": arguments.before} if arguments.before else {})
        toolchains = {name: Toolchain.of_build(build.resolve()) for name, build in builds.items()}
        record = Record(arguments.output, arguments.seed, arguments.places)
        os.environ["FLASH_LADDER_THREADS"] = str(max(1, (os.cpu_count() or 1) // arguments.jobs))
        with tempfile.TemporaryDirectory(prefix="references-") as references:
            for version in versions:
                run_version(version, toolchains, record, arguments, references)
        print("\n".join(["", *survivors(record.data), "", table(record.data)]))
        if arguments.publish:
            earlier = json.loads(PUBLISHED.read_text(encoding="utf-8")) if PUBLISHED.exists() else {}
            document = published(record.data, earlier)
            PUBLISHED.write_text(json.dumps(document, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
            print(f"wrote {PUBLISHED.relative_to(ROOT)}")
    except Missing as error:
        print(f"mutate.py: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
