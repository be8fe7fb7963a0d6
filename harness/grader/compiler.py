"""Reads a submission and compiles it, device code only, in an isolated process (harness-grader)."""

import contextlib
import dataclasses
import hashlib
import json
import os
import re
import signal
import stat
import subprocess
import tempfile
import threading
from pathlib import Path

from assignment import ROOT

SOURCE = "submission.cu"  # the name of each file while it is graded, whatever its original name
MOST_SOURCE_BYTES = 256 * 1024
COMPILE_MEMORY = 6 << 30  # limit on address space
COMPILE_SECONDS = 100  # limit on CPU time, unless the command line sets another
COMPILE_WALL_SECONDS = 900  # for a compiler that waits without computing; must not be reached on a busy machine
MOST_COMPILED_BYTES = 64 << 20  # limit on each file that the compiler writes
BUILD_IT = "build it with scripts/setup --slim harness-grader"


class Unavailable(Exception):
    """Something that is needed for grading is missing on this machine."""


class Refused(Exception):
    """The file scores no points, and the message says why."""


class NotGraded(Exception):
    """No score can be given, and the message says why."""


# ---- The machine ----


@dataclasses.dataclass(frozen=True)
class Machine:
    """What the build provides: the compiler, and the program that isolates."""

    nvcc: str
    toolkit: str
    host_compiler: str
    steady: list[str]
    seed: bool
    grader: str
    isolated: bool
    compile_seconds: int
    gpu_grader: str
    compiled: dict[bytes, str] = dataclasses.field(default_factory=dict)  # the hash of a source → its PTX

    @staticmethod
    def of_build(build: Path, isolated: bool, compile_seconds: int = COMPILE_SECONDS) -> "Machine":
        """Raises Unavailable if a program is missing or does not run, or if the machine cannot isolate processes."""
        try:
            known = json.loads((build / "grader.json").read_text(encoding="utf-8"))
            machine = Machine(known["nvcc"], known["toolkit"], known["host_compiler"], known["steady"],
                              known["seed"] >= 0, known["grader"], isolated, compile_seconds,
                              known["gpu_grader"])  # fmt: skip
        except OSError as error:
            raise Unavailable(f"{build} has no grader: {BUILD_IT}") from error
        except (ValueError, KeyError, TypeError) as error:
            raise Unavailable(f"{build / 'grader.json'} is of another version or damaged: {BUILD_IT}") from error
        for program in (machine.grader, machine.nvcc, machine.host_compiler):
            if not Path(program).is_file():
                raise Unavailable(f"{program} is missing: {BUILD_IT}")
            if not os.access(program, os.X_OK):
                raise Unavailable(f"{program} may not be executed: {BUILD_IT}")
        try:
            done = subprocess.run([machine.grader, "missing"], capture_output=True, text=True, check=True)
            missing = json.loads(done.stdout)
        except (OSError, subprocess.CalledProcessError, ValueError) as error:
            raise Unavailable(f"{machine.grader} does not run ({printable(str(error))}): {BUILD_IT}") from error
        if isolated and missing:
            raise Unavailable(
                f"this machine cannot isolate submissions: it lacks {'; and '.join(missing)}. "
                "To grade files that you trust without isolation, add --unsandboxed"
            )
        return machine

    def readable(self) -> list[str]:
        """What a compiler must be able to read: itself, the system's headers and libraries, common/."""
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
    """Runs a command; returns how it ended, or None after this many seconds. Processes that it starts end with it."""
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
            process.returncode = 0  # already waited for
        with contextlib.suppress(ProcessLookupError):
            os.killpg(process.pid, signal.SIGKILL)
        messages.seek(0)
        text = messages.read(64 * 1024).decode(errors="replace")
    if late.is_set():
        return None
    return Ended(os.waitstatus_to_exitcode(status), text, usage.ru_utime + usage.ru_stime)


# ---- Reading and compiling ----


def read_submission(path: Path) -> bytes:
    """The file's bytes. Raises Refused if they are not text of a reasonable size."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
    except OSError as error:
        if path.is_symlink():
            raise Refused("it is a symbolic link; hand in the file itself") from error
        raise NotGraded(f"it cannot be read: {error.strerror}") from error
    status = os.fstat(descriptor)
    if not stat.S_ISREG(status.st_mode):
        os.close(descriptor)
        what = "a folder, not a regular file" if stat.S_ISDIR(status.st_mode) else "not a regular file"
        raise Refused(f"it is {what}; hand in one .cu file")
    with os.fdopen(descriptor, "rb") as file:
        if status.st_size > MOST_SOURCE_BYTES:
            raise Refused(f"it has {status.st_size} bytes, more than {MOST_SOURCE_BYTES}; hand in only the source")
        data = file.read(MOST_SOURCE_BYTES + 1)
    if not data.strip():
        raise Refused("it is empty; hand in the starter with your changes")
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        line = data.count(b"\n", 0, error.start) + 1
        raise Refused(
            f"it is not text in UTF-8, as a byte in line {line} shows; save it as UTF-8, and hand in the .cu file, "
            f"not a compiled or packed file"
        ) from error
    if "\0" in text:
        raise Refused("it contains zero bytes, so it is not source text; hand in the .cu file")
    return data


def printable(text: str, most: int = 400) -> str:
    """Text for a report: one line, without control characters, not too long."""
    line = "".join(character if character.isprintable() else " " for character in text)
    line = " ".join(line.split())
    return line if len(line) <= most else line[: most - 1] + "…"


def run_compiler(machine: Machine, folder: Path, options: list[str]) -> Ended:
    """Runs nvcc in its own folder, isolated. Raises NotGraded if it takes too long."""
    limits = ["--cpu", machine.compile_seconds, "--memory", COMPILE_MEMORY, "--file", MOST_COMPILED_BYTES]
    sandbox = [machine.grader, "sandbox", *map(str, limits), *([] if machine.isolated else ["--open"])]
    for path in machine.readable():
        sandbox += ["--read", path]
    for path in (str(folder), "/dev/null"):
        sandbox += ["--write", path]
    # SOURCE_DATE_EPOCH: the values of __TIME__ and __DATE__ must not change a score.
    environment = {"PATH": "/usr/bin:/bin", "TMPDIR": str(folder), "HOME": str(folder), "LC_ALL": "C.UTF-8",
                   "SOURCE_DATE_EPOCH": "0"}  # fmt: skip
    nvcc = [machine.nvcc, "-ccbin", machine.host_compiler, *options]
    ended = run_limited([*machine.steady, *sandbox, "--", *nvcc], folder, COMPILE_WALL_SECONDS, environment)
    if ended is None:
        raise NotGraded(f"the compiler had not ended after {COMPILE_WALL_SECONDS} seconds")
    if ended.returncode != 0 and ended.cpu_seconds >= machine.compile_seconds:
        raise NotGraded(f"the compiler had not ended after {machine.compile_seconds} seconds of CPU time")
    return ended


def compile_source(machine: Machine, source: bytes) -> tuple[Ended, str | None]:
    """How the compiler ended, and the PTX if there is one."""
    with tempfile.TemporaryDirectory(prefix="flash-ladder-grade-", ignore_cleanup_errors=True) as name:
        folder = Path(name)
        (folder / SOURCE).write_bytes(source)
        seed = ["-frandom-seed=submission"] if machine.seed else []
        # -ptx: only device code is compiled, and no linker or assembler runs.
        options = ["-ptx", "-arch=compute_80", "-std=c++20", "-lineinfo", *seed, "-I", str(ROOT / "common"), SOURCE,
                   "-o", "submission.ptx"]  # fmt: skip
        ended = run_compiler(machine, folder, options)
        ptx = folder / "submission.ptx"
        if ended.returncode != 0 or not ptx.is_file() or ptx.is_symlink():
            return ended, None
        return ended, ptx.read_text(encoding="utf-8", errors="replace")


def compile_ptx(machine: Machine, source: bytes) -> str:
    """The PTX of a file. Raises Refused if it does not compile, NotGraded if the compiler could not do its work."""
    key = hashlib.sha256(source).digest()
    if key in machine.compiled:
        return machine.compiled[key]
    ended, ptx = compile_source(machine, source)
    if ptx is None and not names_a_line(ended):
        # A full disk or an incomplete toolkit is not the file's fault, and may have been temporary.
        first = without_temporary_names(ended)
        ended, ptx = compile_source(machine, source)
        if ptx is None and not names_a_line(ended):
            if compile_source(machine, b"__global__ void nothing() {}\n")[1] is None:
                raise NotGraded(f"the compiler does not work: {first_error(ended)}")
            # The rest is caused by the file if it is reproducible: more memory than there is, a line that #line has
            # renamed.
            if is_the_machines(ended) or without_temporary_names(ended) != first:
                raise NotGraded(f"the compiler failed twice, but not because of a line of the file: "
                                f"{first_error(ended)}")
    if ptx is None:
        raise Refused(f"it does not compile: {first_error(ended)}")
    machine.compiled[key] = ptx
    return ptx


def names_a_line(ended: Ended) -> bool:
    """Whether the compiler complains about a line of the file, or about a consequence of such a line."""
    source = re.escape(SOURCE)
    return bool(re.search(rf"(?<![\w.]){source}[(:]\d|\bline \d+ of \S*(?<![\w.]){source}\b", ended.messages))


def is_the_machines(ended: Ended) -> bool:
    """Whether a message that names no line is about files, processes or disks that the compiler itself needs."""
    trouble = r"IO error|Input/output error|No space left|quota exceeded|tmpxft_|Resource temporarily unavailable|"
    return bool(re.search(trouble + "Too many open files|Text file busy|Stale file handle", ended.messages))


def without_temporary_names(ended: Ended) -> tuple[int, str]:
    """How a compiler ended, in a form that does not differ from run to run."""
    return ended.returncode, re.sub(r"tmpxft_\w+|flash-ladder-grade-\w+|\b0x[0-9a-f]+|\b\d{4,}\b", "#", ended.messages)


def first_error(ended: Ended) -> str:
    """The compiler's first error, without folders of this machine."""
    text = re.sub(r"(/[\w.+-]+)+/(?=[\w.+-]+)", "", ended.messages)
    for line in text.splitlines():
        if re.search(r"\berror\b|\bfatal\b|catastrophic", line, re.IGNORECASE):
            return printable(line)
    size = MOST_COMPILED_BYTES >> 20
    return (
        f"the compiler ended with {ended.returncode} and no error message, as happens when it needs more than "
        f"{COMPILE_MEMORY >> 30} GiB of memory, or {size} MiB for a file"
    )


def ptx_hash(ptx: str) -> str:
    """A hash of what the PTX does: without comments, line and file information, and with names replaced by numbers."""
    code = re.sub(r"//[^\n]*|^[ \t]*\.(loc|file)\b[^\n]*", "", ptx.split("\n\t.section")[0], flags=re.MULTILINE)
    names: dict[str, str] = {}

    def numbered(match: re.Match[str]) -> str:
        # Names of the file contain an underscore; instructions, directives and %r1 do not.
        return names.setdefault(match[0], f"N{len(names)}") if "_" in match[0] else match[0]

    # A word is matched as a whole: a search for one with an underscore would begin anew at each letter of a long word.
    code = re.sub(r"[$%]?[A-Za-z_][\w$]*", numbered, code)
    return hashlib.sha256(" ".join(code.split()).encode()).hexdigest()
