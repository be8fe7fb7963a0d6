"""--with-gpu, with a fake in place of the program that uses a GPU: the requests that it gets, and how its answers are
used."""

import csv
import json
from pathlib import Path
from typing import Any

import pytest
from grading import BUILD, Grading, compiler, why_not_isolated
from programs import write_program

pytestmark = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())

# An attention problem that compiles fast: a thread per query.
ROWS = """# rows

<!-- grader
pass_mark = 60
gpu = { version = "01_naive", problem = { seq_len = 256, seq_len_kv = 96 } }
[vary]
head_dim = 16
[starter]
source = '''
#include "attention.h"
#include "convert.h"
using namespace flash_ladder;
template <typename Element>
__global__ void attend(AttentionArgs args) {
  const int row = blockIdx.x * 32 + threadIdx.x;
  // answer
  const Element* q = args.Q.row<Element>(blockIdx.z, blockIdx.y, row);
  float o[@head_dim@] = {}, sum = 0, top = -INFINITY;
  for (int pass = 0; pass < 2; ++pass)
    for (int key = 0; key < args.seq_len_kv; ++key) {
      const Element* k = args.K.row<Element>(blockIdx.z, blockIdx.y, key);
      const Element* v = args.V.row<Element>(blockIdx.z, blockIdx.y, key);
      float score = 0;
      for (int d = 0; d < @head_dim@; ++d) score += to_float(q[d]) * to_float(k[d]) * args.softmax_scale;
      if (pass == 0) top = fmaxf(top, score);
      if (pass == 0) continue;
      sum += __expf(score - top);
      for (int d = 0; d < @head_dim@; ++d) o[d] += __expf(score - top) * to_float(v[d]);
    }
  for (int d = 0; d < @head_dim@; ++d)
    args.O.row<Element>(blockIdx.z, blockIdx.y, row)[d] = from_float<Element>(o[d] / sum);
  // starter: // TODO
  // end
}
template __global__ void attend<__half>(AttentionArgs);
'''
[launch]
kernel = "attend<__half>"
types = ["fp16"]
grid = ["seq_len // 32", "heads", "batch"]
block = 32
arguments = ["args"]
[[case]]
name = "rows"
problem = { batch = 1, heads = 2, seq_len = 32, seq_len_kv = [20, 30], head_dim = "head_dim", layout = "'bhsd'" }
[[check]]
kind = "correct"
points = 100
-->
"""

# Stores its requests, and answers as plan.json beside it says.
FAKE = """
import json, pathlib, sys
here = pathlib.Path(__file__).parent
request = json.load(sys.stdin)
plan = json.loads((here / "plan.json").read_text())
if request["command"] == "time":
    request["machine code"] = [pathlib.Path(file["cubin"]).read_bytes()[:4].hex() for file in request["files"]]
    request["texts"] = [pathlib.Path(file["ptx"]).read_text() for file in request["files"]]
with open(here / "log", "a") as log:
    log.write(json.dumps(request) + "\\n")
print(json.dumps({"event": "progress", "what": "open the GPU", "done": 0, "total": 1}))
answer = plan[request["command"]]
print(answer if isinstance(answer, str) else json.dumps(answer))
sys.exit(0 if isinstance(answer, dict) else 9)
"""
DEVICE = {"event": "device", "device": {"name": "NVIDIA H200", "compute_capability": 90}}


def timing(name: str, tflops: float) -> dict[str, Any]:
    ms = {"median": 1.0, "p10": 0.9, "p90": 1.1}
    return {"name": name, "problem": f"problem of {name}", "ms": ms, "tflops": tflops}


TIMED = {"event": "timed", "timings": [timing("this file", 90.0), timing("the reference answer", 120.0),
                                       timing("01_naive", 60.0)]}  # fmt: skip


class Fake:
    """The fake program, and its requests."""

    def __init__(self, folder: Path, time: dict[str, Any] | str = TIMED, device: dict[str, Any] | str = DEVICE) -> None:
        folder.mkdir(exist_ok=True)
        self.program, self.log = folder / "gpu-program", folder / "log"
        self.log.write_text("")
        (folder / "plan.json").write_text(json.dumps({"time": time, "device": device}))
        write_program(self.program, FAKE)
        self.flags = ("--with-gpu", "--gpu-program", str(self.program), "--assignment", "rows")

    def asked(self) -> list[dict[str, Any]]:
        requests = [json.loads(line) for line in self.log.read_text().splitlines()]
        return [request for request in requests if request["command"] == "time"]


@pytest.fixture
def grading(tmp_path: Path) -> Grading:
    grading = Grading(tmp_path)
    (grading.assignments / "01_rows.md").write_text(ROWS)
    return grading


@pytest.fixture
def answer(grading: Grading) -> str:
    return grading.run("--reference", "rows").stdout


def test_times_are_added_and_no_point_changes(grading: Grading, answer: str, tmp_path: Path) -> None:
    alone = grading.grade(answer, "--assignment", "rows")
    fake = Fake(tmp_path / "fake")
    with_gpu = grading.grade(answer, *fake.flags)
    assert alone["gpu"] is None and alone["score"] == 100
    gpu = with_gpu.pop("gpu")
    assert gpu == {"device": "NVIDIA H200", "message": "", "timings": TIMED["timings"]}
    shown = with_gpu.pop("shown")
    assert {name: alone[name] for name in with_gpu} == with_gpu, "all else is the same"
    assert "On NVIDIA H200, which does not affect the points:" in shown
    assert "90.0 TFLOP/s   1.50x  this file  (problem of this file)" in shown, "compared with the ladder's version"


def test_what_is_timed(grading: Grading, answer: str, tmp_path: Path) -> None:
    fake = Fake(tmp_path / "fake")
    grading.grade(answer + "// mine\n", *fake.flags)
    (asked,) = fake.asked()
    assert [file["name"] for file in asked["files"]] == ["this file", "the reference answer"]
    assert asked["version"] == "01_naive" and asked["repeat"] >= 20
    assert asked["machine code"] == ["7f454c46"] * 2, "an ELF file each"
    assert all(".entry" in text for text in asked["texts"])
    assert asked["problem"] | {"dtype": "fp16"} == {
        "batch": 4, "heads": 16, "seq_len": 256, "seq_len_kv": 96, "head_dim": 16, "dtype": "fp16"
    }  # fmt: skip
    assert asked["layouts"]["K"] == "bhsd" and asked["grid"] == [8, 16, 4] and asked["arguments"] == [{"tensors": True}]
    assert not list(grading.temporary.iterdir()), "nothing is left behind"


def test_only_what_is_right_is_timed(grading: Grading, answer: str, tmp_path: Path) -> None:
    fake = Fake(tmp_path / "fake")
    finding = "__shared__ int s; volatile int* p = &s; (void)*p; "  # which is uninitialised
    for wrong in (grading.run("--starter", "rows").stdout, answer.replace("o[d] / sum", "o[d] / sum * 2"),
                  answer.replace("const Element* q", finding + "const Element* q"), "no C++"):  # fmt: skip
        assert wrong != answer
        result = grading.grade(wrong, *fake.flags)
        assert not result["gpu"] or (not result["gpu"]["timings"] and "not timed" in result["gpu"]["message"])
    assert not fake.asked()


@pytest.mark.parametrize("time, said", [
    ({"event": "wrong", "name": "this file", "message": "row 7 is wrong"}, "this file is wrong: row 7 is wrong"),
    ({"event": "error", "kind": "cuda", "message": "an illegal memory access"}, "failed: an illegal memory access"),
    ("Segmentation fault", "ended with 9, without a word"),
])  # fmt: skip
def test_what_goes_wrong_on_the_gpu_costs_no_point(
    grading: Grading, answer: str, tmp_path: Path, time: dict[str, Any] | str, said: str
) -> None:
    result = grading.grade(answer, *Fake(tmp_path / "fake", time).flags)
    assert result["score"] == 100 and result["passed"]
    assert said in result["gpu"]["message"] and said in result["shown"] and not result["gpu"]["timings"]


def test_without_a_gpu_nothing_is_graded(grading: Grading, answer: str, tmp_path: Path) -> None:
    path = tmp_path / "a.cu"
    path.write_text(answer)
    no_gpu = {"event": "error", "kind": "unavailable", "message": "no NVIDIA driver was found"}
    done = grading.run("--grade", path, *Fake(tmp_path / "fake", device=no_gpu).flags)
    assert (done.returncode, done.stdout) == (3, "")
    assert done.stderr == f"harness: --with-gpu: {no_gpu['message']}\n"
    done = grading.run("--grade", path, "--assignment", "rows", "--with-gpu", "--gpu-program", tmp_path / "nowhere")
    assert done.returncode == 3 and "nowhere is missing: build it with scripts/setup" in done.stderr


def test_the_program_itself_without_a_gpu(grading: Grading, answer: str, tmp_path: Path) -> None:
    program = Path(compiler.Machine.of_build(BUILD, isolated=False).gpu_grader)
    if not program.is_file():
        pytest.skip("harness-grader-gpu is not built")
    if Path("/dev/nvidiactl").exists():
        pytest.skip("this machine has a GPU")
    path = tmp_path / "a.cu"
    path.write_text(answer)
    done = grading.run("--grade", path, "--assignment", "rows", "--with-gpu")
    assert done.returncode == 3 and len(done.stderr.splitlines()) == 1
    assert "NVIDIA driver" in done.stderr and "grade without --with-gpu" in done.stderr


def test_an_assignment_without_an_attention_problem(grading: Grading, tmp_path: Path) -> None:
    fake = Fake(tmp_path / "fake")
    result = grading.grade(grading.text("--reference"), *fake.flags[:3])
    assert result["score"] == 100 and "no attention problem" in result["gpu"]["message"] and not fake.asked()


def test_a_class(grading: Grading, answer: str, tmp_path: Path) -> None:
    handed_in, out = tmp_path / "in", tmp_path / "grades.csv"
    handed_in.mkdir()
    (handed_in / "right.cu").write_text(answer)
    (handed_in / "wrong.cu").write_text("no C++")
    assert grading.run("--grade-dir", handed_in, "--out", out, "--assignment", "rows").returncode == 0
    fake = Fake(tmp_path / "fake")
    assert grading.run("--grade-dir", handed_in, "--out", out, *fake.flags).returncode == 0
    with open(out, newline="") as file:
        assert {row["file"]: row["tflops"] for row in csv.DictReader(file)} == {"right.cu": "90.0", "wrong.cu": ""}
    assert len(fake.asked()) == 1, "what was graded without a GPU before has no time, and is graded again"
