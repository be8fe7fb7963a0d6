"""--with-gpu: how fast a file is on a GPU, beside the reference answer and the ladder's version, all timed in turn in
one process (harness-grader-gpu). The time does not count towards the points, which depend on no machine."""

import dataclasses
import json
import subprocess
import tempfile
import threading
from pathlib import Path
from typing import Any

from assignment import Assignment
from compiler import BUILD_IT, Machine, NotGraded, Unavailable, first_error, printable, run_compiler
from launches import make_launch

THIS_FILE, REFERENCE = "this file", "the reference answer"
PROBLEM = {"batch": 4, "heads": 16, "seq_len": 2048, "seq_len_kv": 2048}  # unless the assignment specifies another
LAUNCHES = 20  # for each of them, after a warm-up
WALL_SECONDS = 300  # for everything that a process does on the GPU
SEED = 1  # of the inputs


def ask(program: str, request: dict[str, Any]) -> dict[str, Any]:
    """The last event of harness-grader-gpu, which is its answer. An error is an answer, too."""
    try:
        done = subprocess.run([program], input=json.dumps(request), capture_output=True, text=True, errors="replace",
                              check=False, timeout=WALL_SECONDS)  # fmt: skip
    except subprocess.TimeoutExpired:
        return {"event": "error", "message": f"it had not ended after {WALL_SECONDS} seconds"}
    except OSError as error:
        return {"event": "error", "message": f"{program} cannot be started: {error.strerror}"}
    try:
        return json.loads(done.stdout.splitlines()[-1])
    except (ValueError, IndexError):
        said = printable(done.stderr) or "without a word"
        return {"event": "error", "message": f"{program} ended with {done.returncode}, {said}"}


@dataclasses.dataclass(frozen=True)
class Gpu:
    """The first GPU that CUDA lists. It times one file at a time."""

    program: str
    name: str  # "NVIDIA H200"
    compute_capability: int  # 90 for 9.0
    lock: threading.Lock = dataclasses.field(default_factory=threading.Lock)

    @staticmethod
    def of_machine(machine: Machine) -> "Gpu":
        """Raises Unavailable if there is no GPU on which the ladder's kernels run."""
        program = machine.gpu_grader
        if not Path(program).is_file():
            raise Unavailable(f"--with-gpu: {program} is missing: {BUILD_IT}-gpu")
        answer = ask(program, {"command": "device", "device": 0})
        if answer["event"] != "device":
            raise Unavailable(f"--with-gpu: {answer['message']}")
        return Gpu(program, answer["device"]["name"], answer["device"]["compute_capability"])

    def nothing(self, message: str) -> dict[str, Any]:
        return {"device": self.name, "message": message, "timings": []}

    def time(self, machine: Machine, assignment: Assignment, files: dict[str, str]) -> dict[str, Any]:
        """Times files, each given by its name and PTX. Errors on the GPU are reported in "message"; raises NotGraded if
        the compiler fails before that."""
        case = next((case for case in assignment.cases() if "problem" in case), None)
        version = assignment.data.get("gpu", {}).get("version", assignment.data["starter"].get("from"))
        if case is None or version is None:
            return self.nothing("this assignment has no attention problem, so there is no version to time it beside")
        if case["then"] or case.get("gradients"):
            return self.nothing("only assignments with a single launch, of the forward pass, are timed")
        problem = PROBLEM | assignment.data.get("gpu", {}).get("problem", {})
        case = case | {"inputs": "normal", "problem": case["problem"] | problem}
        request = make_launch(assignment, case, "timed", assignment.functions()).request
        with tempfile.TemporaryDirectory(prefix="flash-ladder-grade-") as name, self.lock:
            paths = [self._assemble(machine, Path(name), *file) for file in files.items()]
            request |= {"command": "time", "device": 0, "seed": SEED, "repeat": LAUNCHES, "version": version,
                        "files": paths}  # fmt: skip
            answer = ask(self.program, request)
        if answer["event"] == "timed":
            return {"device": self.name, "message": "", "timings": answer["timings"]}
        whose = f"{answer['name']} is wrong" if answer["event"] == "wrong" else "it failed"
        return self.nothing(f"not timed: on the GPU {whose}: {printable(answer['message'])}")

    def _assemble(self, machine: Machine, folder: Path, name: str, ptx: str) -> dict[str, str]:
        """Assembles PTX to machine code, isolated, in files of the folder."""
        stem = name.replace(" ", "_")
        (folder / f"{stem}.ptx").write_text(ptx, encoding="utf-8")
        options = ["-cubin", f"-arch=sm_{self.compute_capability}", f"{stem}.ptx", "-o", f"{stem}.cubin"]
        ended = run_compiler(machine, folder, options)
        if ended.returncode != 0 or not (folder / f"{stem}.cubin").is_file():
            raise NotGraded(f"{name} cannot be assembled for sm_{self.compute_capability}: {first_error(ended)}")
        return {"name": name, "ptx": str(folder / f"{stem}.ptx"), "cubin": str(folder / f"{stem}.cubin")}
