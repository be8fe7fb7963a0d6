"""Grades one file: reads it, compiles it for the device alone, runs its kernels on the virtual GPU, and gives points.
Both happen in isolated processes (harness-grader), and no host code of the file ever runs. A score depends on the file,
the seeds and the toolkit alone; what depends on the machine's speed ends without a score, as "not graded"."""

import contextlib
import dataclasses
import hashlib
import json
import math
import os
import re
import shutil
import signal
import stat
import struct
import subprocess
import tempfile
import threading
import types
from collections.abc import Mapping
from pathlib import Path
from typing import Any

from assignment import ROOT, Assignment, AssignmentError, Value, draw, evaluate

SOURCE = "submission.cu"  # what each file is called while it is graded, whatever its name was
MOST_SOURCE_BYTES = 256 * 1024
COMPILE_MEMORY = 6 << 30  # of address space
COMPILE_SECONDS = 100  # of CPU time, unless the command line says otherwise
COMPILE_WALL_SECONDS = 400  # so that a machine with several of them at a time still gets to the CPU time
MOST_COMPILED_BYTES = 64 << 20  # of each file that the compiler writes
RUN_SECONDS = 60  # of CPU time, of each launch
RUN_WALL_SECONDS = 300
RUN_MEMORY = 4 << 30
INSTRUCTIONS = 5_000_000  # of the warps of a CTA, unless the assignment says more
TRAFFIC = {"shared_load": "wavefronts", "shared_store": "wavefronts", "shared_copy": "wavefronts",
           "global_load": "sectors", "global_store": "sectors"}  # fmt: skip


class Unavailable(Exception):
    """Something that grading needs is missing on this machine."""


class Refused(Exception):
    """The file is worth no points, and why."""


class NotGraded(Exception):
    """No score can be given, and why."""


# ---- Values in the virtual GPU's memory ----


def to_bf16(value: float) -> int:
    """The bits of the nearest bfloat16, halves to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


FORMATS = {"f32": "f", "f16": "e", "i32": "i", "u32": "I", "bf16": "H"}


def pack(kind: str, values: list[Any]) -> bytes:
    if kind == "bf16":
        values = [to_bf16(value) for value in values]
    elif kind in ("i32", "u32"):
        values = [int(value) for value in values]
    return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)


def unpack(kind: str, data: bytes) -> list[Any]:
    code = FORMATS[kind]
    values = list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    if kind == "bf16":
        values = [struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values]
    return values


def random_values(kind: str, count: int, *key: str) -> list[float]:
    """Numbers that depend on the key alone: "normal", "uniform" (0 to 1) or "ints" (-100 to 100)."""
    bits = [draw(*key, str(i)) for i in range(count)]
    uniform = [(b % (1 << 40) + 0.5) / (1 << 40) for b in bits]
    if kind == "uniform":
        return uniform
    if kind == "ints":
        return [b % 201 - 100 for b in bits]
    if kind == "normal":  # Box and Muller
        angles = [2 * math.pi * (b >> 40) / (1 << 23) for b in bits]
        return [math.sqrt(-2 * math.log(u)) * math.cos(a) for u, a in zip(uniform, angles, strict=True)]
    raise AssignmentError(f"values '{kind}' are unknown")


# ---- The machine ----


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the build knows: compiler, and the program that isolates."""

    nvcc: str
    toolkit: str
    host_compiler: str
    steady: list[str]
    seed: bool
    grader: str
    isolated: bool
    compile_seconds: int

    @staticmethod
    def of_build(build: Path, isolated: bool, compile_seconds: int = COMPILE_SECONDS) -> "Machine":
        try:
            known = json.loads((build / "grader.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise Unavailable(f"{build} has no grader: build it by scripts/setup --slim harness-grader") from error
        machine = Machine(known["nvcc"], known["toolkit"], known["host_compiler"], known["steady"], known["seed"] >= 0,
                          known["grader"], isolated, compile_seconds)  # fmt: skip
        if not Path(machine.grader).is_file():
            raise Unavailable(f"{machine.grader} is not there: build it by scripts/setup --slim harness-grader")
        if isolated:
            done = subprocess.run([machine.grader, "missing"], capture_output=True, text=True, check=True)
            if missing := json.loads(done.stdout):
                raise Unavailable(
                    f"this machine cannot isolate what students hand in: it lacks {'; and '.join(missing)}. "
                    "To grade all the same, files that you trust, add --unsandboxed"
                )
        return machine

    def readable(self) -> list[str]:
        """What a compiler has to read: itself, the system's headers and libraries, common/."""
        toolkit = Path(self.nvcc).resolve().parent.parent
        compiler = Path(self.host_compiler).resolve().parent.parent
        system = ["/usr", "/lib", "/lib64", "/bin", "/etc/ld.so.cache", "/etc/alternatives", "/dev/urandom"]
        return [*system, str(toolkit), str(Path(self.nvcc).parent.parent), str(compiler), str(ROOT / "common")]


@dataclasses.dataclass
class Ended:
    returncode: int
    messages: str
    cpu_seconds: float


def run_limited(command: list[str], folder: Path, wall_seconds: float, environment: dict[str, str]) -> Ended | None:
    """The command's end, or None after so many seconds. What it starts ends with it."""
    with open(folder / "messages", "wb+") as messages:
        process = subprocess.Popen(command, cwd=folder, env=environment, stdin=subprocess.DEVNULL, stdout=messages,
                                   stderr=messages, start_new_session=True)  # fmt: skip
        late = threading.Event()

        def end() -> None:
            late.set()
            os.killpg(process.pid, signal.SIGKILL)

        timer = threading.Timer(wall_seconds, end)
        timer.start()
        try:
            _, status, usage = os.wait4(process.pid, 0)
        finally:
            timer.cancel()
            process.returncode = 0  # waited for already
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        messages.seek(0)
        text = messages.read(64 * 1024).decode(errors="replace")
    if late.is_set():
        return None
    return Ended(os.waitstatus_to_exitcode(status), text, usage.ru_utime + usage.ru_stime)


# ---- Reading and compiling ----


def read_submission(path: Path) -> bytes:
    """The file's bytes. Refused for what is no text of a reasonable size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Refused("it is a symbolic link; hand in the file itself") from error
        raise NotGraded(f"it cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        raise Refused("it is no regular file; hand in one .cu file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > MOST_SOURCE_BYTES:
            raise Refused(f"it has {status.st_size} bytes, more than {MOST_SOURCE_BYTES}; hand in the source alone")
        data = file.read(MOST_SOURCE_BYTES + 1)
    if not data.strip():
        raise Refused("it is empty; hand in the starter with your changes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise Refused("it is no text in UTF-8; hand in the .cu file, nothing compiled or packed") from error
    if "\0" in text:
        raise Refused("it holds bytes that are 0, so it is no source; hand in the .cu file")
    return data


def printable(text: str, most: int = 400) -> str:
    """For a report: one line, without control characters, not too long."""
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def compile_ptx(machine: Machine, source: bytes, folder: Path) -> str:
    """The PTX of a file, device code alone, and its compiler in isolation."""
    (folder / SOURCE).write_bytes(source)
    limits = [
        "--cpu",
        str(machine.compile_seconds),
        "--memory",
        str(COMPILE_MEMORY),
        "--file",
        str(MOST_COMPILED_BYTES),
    ]
    sandbox = [machine.grader, "sandbox", *limits, *([] if machine.isolated else ["--open"])]
    for path in machine.readable():
        sandbox += ["--read", path]
    for path in (str(folder), "/dev/null"):
        sandbox += ["--write", path]
    seed = ["-frandom-seed=submission"] if machine.seed else []
    # -ptx: only device code is compiled, and no linker or assembler runs.
    nvcc = [machine.nvcc, "-ptx", "-arch=compute_80", "-std=c++20", "-lineinfo", "-ccbin", machine.host_compiler, *seed,
            "-I", str(ROOT / "common"), SOURCE, "-o", "submission.ptx"]  # fmt: skip
    # SOURCE_DATE_EPOCH: what __TIME__ and __DATE__ say must not change a score.
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "HOME": str(folder), "LC_ALL": "C.UTF-8",
                   "SOURCE_DATE_EPOCH": "0"}  # fmt: skip
    ended = run_limited([*machine.steady, *sandbox, "--", *nvcc], folder, COMPILE_WALL_SECONDS, environment)
    if ended is None:
        raise NotGraded(f"the compiler had not ended after {COMPILE_WALL_SECONDS} seconds")
    if ended.returncode != 0 and ended.cpu_seconds >= machine.compile_seconds:
        raise NotGraded(f"the compiler had not ended after {machine.compile_seconds} seconds of CPU time")
    ptx = folder / "submission.ptx"
    if ended.returncode != 0 or not ptx.is_file() or ptx.is_symlink():
        raise Refused(f"it does not compile: {first_error(ended)}")
    return ptx.read_text(encoding="utf-8", errors="replace")


def first_error(ended: Ended) -> str:
    """What the compiler says first, without folders of this machine."""
    text = re.sub(r"(/[\w.+-]+)+/(?=[\w.+-]+)", "", ended.messages)
    for line in text.splitlines():
        if re.search(r"\berror\b|\bfatal\b|catastrophic", line):
            return printable(line)
    size = MOST_COMPILED_BYTES >> 20
    return (
        f"the compiler ended with {ended.returncode} and no error message, as it does where it needs more than "
        f"{COMPILE_MEMORY >> 30} GiB of memory, or {size} MiB for a file"
    )


def ptx_hash(ptx: str) -> str:
    """Of what the PTX does: without comments, lines and files of the source, and with names replaced by their order."""
    code = re.sub(r"//[^\n]*|^\s*\.(loc|file)\b[^\n]*", "", ptx.split("\n\t.section")[0], flags=re.MULTILINE)
    names: dict[str, str] = {}
    name = r"[$%]?[A-Za-z_][\w$]*_[\w$]*|_Z[\w$]+"
    code = re.sub(name, lambda match: names.setdefault(match[0], f"N{len(names)}"), code)
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()


# ---- Running ----


@dataclasses.dataclass
class Launch:
    """One case for one type: what is launched, and what is known of it."""

    case: dict[str, Any]
    names: dict[str, Any]  # sizes and course values, for expressions
    request: dict[str, Any]  # for harness-grader
    buffers: dict[str, dict[str, Any]]  # those of the assignment, with their values


def make_launch(assignment: Assignment, case: dict[str, Any], hidden: str, functions: dict[str, Any]) -> Launch:
    """Draws the shapes and inputs of a case."""
    key = (assignment.name, assignment.course, hidden, case["name"])

    def size(name: str, value: Value, names: Mapping[str, Any]) -> Value:
        if isinstance(value, list):
            value = value[draw(*key, name) % len(value)]
        return evaluate(value, names)

    names = dict(functions)
    buffers: dict[str, dict[str, Any]] = {}
    request: dict[str, Any] = {"kernel": case["kernel"], "sm": case.get("sm", 80)}
    if "problem" in case:
        problem = dict(case["problem"])
        layout = problem.pop("layout", "'bshd'")
        each = {"Q": layout, "K": layout, "V": layout, "O": layout} if isinstance(layout, str) else layout
        layouts = {tensor: evaluate(each.get(tensor, "'bshd'"), names) for tensor in "QKVO"}
        scale = problem.pop("softmax_scale", "1 / math.sqrt(head_dim)")
        for name, value in problem.items():
            names[name] = size(name, value, names)
        problem = {name: names[name] for name in problem} | {"dtype": case["type"] or "fp16"}
        request |= {"problem": problem, "layouts": layouts, "softmax_scale": evaluate(scale, names),
                    "inputs": case.get("inputs", "normal"), "seed": draw(*key, "inputs")}  # fmt: skip
    else:
        for name, value in case.get("sizes", {}).items():
            names[name] = size(name, value, names)
        for name, buffer in case["buffers"].items():
            kind = evaluate_type(buffer, case)
            buffers[name] = buffer | {"type": kind}
            if "values" in buffer:
                if buffer["values"] in ("normal", "uniform", "ints"):
                    values = random_values(buffer["values"], evaluate(buffer["count"], names), *key, name)
                elif buffer["values"] == "zero":
                    values = [0] * evaluate(buffer["count"], names)
                else:
                    values = evaluate(buffer["values"], names)
                data = pack(kind, values)
                names[name] = unpack(kind, data)  # as the type rounds them
                buffers[name]["bytes"] = data.hex()
            else:
                buffers[name]["size"] = evaluate(buffer["count"], names) * struct.calcsize(FORMATS[kind])
        request["buffers"] = {
            name: {"bytes": b["bytes"]} if "bytes" in b else {"size": b["size"]} for name, b in buffers.items()
        }
    for key_of, count in (("grid", 3), ("block", 3)):
        value = case[key_of] if isinstance(case[key_of], list) else [case[key_of]]
        sizes = [int(evaluate(v, names)) for v in value]
        request[key_of] = (sizes + [1] * count)[:count]
    request["shared"] = int(evaluate(case.get("shared", 0), names))
    request["instructions"] = int(evaluate(case.get("instructions", INSTRUCTIONS), names))
    request["arguments"] = [make_argument(argument, names, request, buffers) for argument in case["arguments"]]
    return Launch(case, names, request, buffers)


def evaluate_type(buffer: dict[str, Any], case: dict[str, Any]) -> str:
    short = {"fp16": "f16", "bf16": "bf16"}
    kind = short[case["type"]] if buffer["type"] == "@type@" else buffer["type"]
    if kind not in FORMATS:
        raise AssignmentError(f"a buffer of type '{kind}'; there are {', '.join(FORMATS)}")
    return kind


def make_argument(
    argument: Value, names: dict[str, Any], request: dict[str, Any], buffers: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(argument, dict):
        ((kind, value),) = argument.items()
        return {kind: (int if kind == "int" else float)(evaluate(value, names))}
    if argument in buffers or (argument in ("Q", "K", "V", "O") and "problem" in request):
        return {"buffer": argument}
    if argument == "args" and "problem" in request:
        return {"tensors": True}
    if argument == "softmax_scale":
        return {"float": request["softmax_scale"]}
    if argument in names:
        return {"int": int(names[argument])}
    raise AssignmentError(f"the argument '{argument}' is unknown")


def run_launches(machine: Machine, folder: Path, launches: list[Launch]) -> list[dict[str, Any]]:
    request = {"ptx": str(folder / "submission.ptx"), "source": SOURCE, "isolated": machine.isolated,
               "memory_bytes": RUN_MEMORY, "cpu_seconds": RUN_SECONDS, "wall_seconds": RUN_WALL_SECONDS,
               "launches": [launch.request for launch in launches]}  # fmt: skip
    done = subprocess.run(
        [machine.grader, "run"], input=json.dumps(request), capture_output=True, text=True, check=False
    )
    if done.returncode != 0:
        raise NotGraded(f"the grader could not run it: {printable(done.stderr)}")
    answers = json.loads(done.stdout)
    if len(answers) != len(launches):
        raise NotGraded(f"the grader answered {len(answers)} of {len(launches)} launches")
    for launch, answer in zip(launches, answers, strict=True):
        if answer["status"] == "not_graded":
            raise NotGraded(f"{launch.case['label']}: {answer['message']}")
        if answer["status"] == "refused":
            answer |= {"wrong": answer["message"], "findings": [], "counters": {}, "lines": []}
        elif "problem" not in launch.request:
            answer["wrong"] = why_wrong(launch, answer["buffers"])
    return answers


def why_wrong(launch: Launch, after: dict[str, str]) -> str:
    """Why the buffers of a case are not what they should be; empty when they are."""
    for name, buffer in launch.buffers.items():
        got = unpack(buffer["type"], bytes.fromhex(after[name]))
        if "expected" not in buffer:
            if "bytes" in buffer and after[name] != buffer["bytes"]:
                return f"the launch has changed {name}, which is an input"
            continue
        expected = evaluate(buffer["expected"], launch.names)
        if len(expected) != len(got):
            raise AssignmentError(f"{len(expected)} values are expected of {name}, which has {len(got)}")
        tolerance = buffer.get("tolerance", 0)
        off = [
            i
            for i, (g, e) in enumerate(zip(got, expected, strict=True))
            if not (abs(g - e) <= tolerance * max(1, abs(e)))
        ]
        if off:
            i = off[0]
            unwritten = "bytes" not in buffer and set(pack_one(buffer["type"], after[name], i)) == {0xFF}
            seen = "was never written" if unwritten else f"is {got[i]:.6g}"
            first = f"the first, {name}[{i}], {seen} and should be {expected[i]:.6g}"
            return f"{len(off)} of {len(got)} elements of {name} are wrong; {first}"
    return ""


def pack_one(kind: str, data: str, index: int) -> bytes:
    width = struct.calcsize(FORMATS[kind])
    return bytes.fromhex(data)[index * width : (index + 1) * width]


# ---- Points ----


def first_finding(answer: dict[str, Any]) -> str:
    if not answer["findings"]:
        return ""
    finding = answer["findings"][0]
    line = f" in line {finding['line']}" if finding["line"] else ""
    return f"{finding['kind'].replace('_', ' ')}{line}: {printable(finding['message'])}"


def costliest_lines(answer: dict[str, Any], kind: str) -> str:
    """The lines of the file in which the most traffic beyond the ideal arises."""
    unit = TRAFFIC[kind]
    lines: dict[int, list[int]] = {}
    for line in answer["lines"]:
        if line["line"] is not None:
            counters = line["counters"]
            total = lines.setdefault(line["line"], [0, 0])
            total[0] += counters.get(f"{kind}_{unit}", 0)
            total[1] += counters.get(f"{kind}_ideal_{unit}", 0)
    beyond = [(got - ideal, number, got, ideal) for number, (got, ideal) in lines.items() if got > ideal]
    worst = sorted(beyond, key=lambda line: (-line[0], line[1]))[:2]
    return "; ".join(f"line {number}: {got} {unit} where {ideal} would do" for _, number, got, ideal in worst)


def grade_check(check: dict[str, Any], launches: list[Launch], ptx: str, answers: list[dict[str, Any]],
                reference: list[dict[str, Any]] | None) -> dict[str, Any]:  # fmt: skip
    """The points of one check, and a sentence for what is missing."""
    named = check.get("cases")
    chosen = [i for i, launch in enumerate(launches) if named is None or launch.case["name"] in named]
    shares, sentences = [], []
    for i in chosen:
        launch, answer = launches[i], answers[i]
        label = launch.case["label"]
        is_right = not answer["wrong"]
        share, sentence = 0.0, ""
        if check["kind"] == "correct":
            share = float(is_right)
            cause = first_finding(answer)
            sentence = f"{label}: {printable(answer['wrong'])}" + (f". The virtual GPU saw: {cause}" if cause else "")
        elif check["kind"] == "findings":
            share = float(is_right and not answer["findings"])
            sentence = f"{label}: {first_finding(answer) or 'not looked at, since the output is wrong'}"
        elif not is_right:
            sentence = f"{label}: not counted, since the output is wrong"
        else:
            share, sentence = grade_counter(check, launch, ptx, answer, reference[i] if reference else None)
            sentence = f"{label}: {sentence}"
        shares.append(share)
        if share < 1:
            sentences.append((share, sentence))
    share = sum(shares) / len(shares) if shares else 0.0
    # The same said of several cases is said once; the worst comes first.
    said: dict[str, str] = {}
    for _, sentence in sorted(sentences, key=lambda pair: pair[0]):
        label, _, words = sentence.partition(": ")
        said.setdefault(re.sub(r"[\d.]+", "#", words), sentence)
    points = round(check["points"] * share, 1)
    return {"name": check.get("name", check["kind"]), "kind": check["kind"], "points": points, "of": check["points"],
            "lost": list(said.values())}  # fmt: skip


def grade_counter(
    check: dict[str, Any], launch: Launch, ptx: str, answer: dict[str, Any], reference: dict[str, Any] | None
) -> tuple[float, str]:
    names = launch.names | answer["counters"] | {"ptx": ptx}
    if reference:
        names["reference"] = types.SimpleNamespace(**reference["counters"])
    if "needs" in check and not evaluate(check["needs"], names):
        return 0.0, check["needs_lost"]
    try:
        value = float(evaluate(check["value"], names))
    except AssignmentError as error:
        if isinstance(error.__cause__, ZeroDivisionError):
            return 0.0, check.get("needs_lost", "what is counted here does not happen at all")
        raise
    full, none = float(evaluate(check["full"], names)), float(evaluate(check["none"], names))
    share = min(1.0, max(0.0, (value - none) / (full - none)))
    if check.get("steps") and share < 1:
        share = 0.0
    sentence = check["lost"].format(value=value, full=full, none=none)
    if "where" in check and (lines := costliest_lines(answer, check["where"])):
        sentence += f" ({lines})"
    return share, sentence


class Grader:
    """Grades files for one assignment of one course."""

    def __init__(self, machine: Machine, assignment: Assignment, hidden: str) -> None:
        self.machine = machine
        self.assignment = assignment
        self.hidden = hidden
        functions = assignment.functions()
        self.launches = [make_launch(assignment, case, hidden, functions) for case in assignment.cases()]
        self._reference: list[dict[str, Any]] | None = None
        self._lock = threading.Lock()

    def reference(self) -> list[dict[str, Any]] | None:
        """What the reference answer does, where a check compares with it."""
        if not any("reference." in str(check.get(key, "")) for check in self.assignment.data["check"]
                   for key in ("value", "needs", "full", "none")):  # fmt: skip
            return None
        with self._lock:
            if self._reference is None:
                try:
                    _, answers = self._run(self.assignment.reference_answer().encode())
                except Refused as error:
                    raise AssignmentError(f"{self.assignment.name}: the reference answer: {error}") from error
                self._reference = answers
        return self._reference

    def _run(self, source: bytes) -> tuple[str, list[dict[str, Any]]]:
        folder = Path(tempfile.mkdtemp(prefix="flash-ladder-grade-"))
        try:
            ptx = compile_ptx(self.machine, source, folder)
            return ptx, run_launches(self.machine, folder, self.launches)
        finally:
            shutil.rmtree(folder, ignore_errors=True)

    def _empty_result(self, path: Path) -> dict[str, Any]:
        return {
            "file": printable(os.fsdecode(path.name).encode(errors="replace").decode(), 200),
            "sha256": "", "assignment": self.assignment.name, "assignment_sha256": self.assignment.digest,
            "course": self.assignment.course, "toolkit": self.machine.toolkit, "isolated": self.machine.isolated,
            "status": "graded", "message": "", "score": 0.0, "pass_mark": self.assignment.pass_mark, "passed": False,
            "ptx_sha256": "", "checks": [], "printed": "", "hints": [],
        }  # fmt: skip

    def failed(self, path: Path, error: Exception) -> dict[str, Any]:
        """The result where grading itself has failed."""
        message = f"not graded: the grader failed: {printable(repr(error))}"
        return self._empty_result(path) | {"status": "not graded", "score": None, "message": message}

    def grade(self, path: Path) -> dict[str, Any]:
        """The result of a file, as harness/results/grade.schema.json says. It never raises for what is in the file."""
        result = self._empty_result(path)
        try:
            source = read_submission(path)
            result["sha256"] = hashlib.sha256(source).hexdigest()
            reference = self.reference()
            ptx, answers = self._run(source)
            result["ptx_sha256"] = ptx_hash(ptx)
        except Refused as error:
            result["message"] = f"0 points: {error}"
            result["checks"] = [
                {"name": check.get("name", check["kind"]), "kind": check["kind"], "points": 0.0, "of": check["points"],
                 "lost": [str(error)]} for check in self.assignment.data["check"]
            ]  # fmt: skip
            return result
        except NotGraded as error:
            return result | {"status": "not graded", "score": None, "message": f"not graded: {error}"}
        checks = self.assignment.data["check"]
        result["checks"] = [grade_check(check, self.launches, ptx, answers, reference) for check in checks]
        result["printed"] = printable(" ".join(answer.get("printed", "") for answer in answers))
        result["score"] = round(sum(check["points"] for check in result["checks"]), 1)
        result["passed"] = result["score"] >= self.assignment.pass_mark
        if not result["passed"]:
            result["hints"] = self.assignment.data.get("hints", [])
        return result
