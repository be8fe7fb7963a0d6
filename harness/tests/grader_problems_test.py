"""Cases of an assignment with several launches, and attention problems whose output is more than O."""

from __future__ import annotations

from pathlib import Path

import pytest
from grading import SMALL, Grading, why_not_isolated

HERE = ("--unsandboxed",) if why_not_isolated() else ()

TWO_LAUNCHES = """# two

<!-- grader
pass_mark = 60
[starter]
source = '''
__global__ void square(const float* x, float* middle, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  // answer
  if (i < n) middle[i] = x[i] * x[i];
  // end
}
__global__ void add_one(const float* middle, float* y, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) y[i] = middle[i] + 1;
}
'''
[[case]]
name = "only"
kernel = "square"
grid = 2
block = 32
arguments = ["x", "middle", "n"]
then = [{ kernel = "add_one", grid = 1, block = 64, arguments = ["middle", "y", "n"] }]
sizes = { n = 60 }
buffers.x = { type = "f32", count = "n", values = "ints" }
buffers.middle = { type = "f32", count = "n" }
buffers.y = { type = "f32", count = "n", expected = "[v * v + 1 for v in x]" }
[[check]]
kind = "correct"
points = 50
[[check]]
kind = "counter"
name = "bytes that both read, and those of one warp"
points = 50
value = "global_load_bytes + useful.most_bytes_of_a_warp"
full = 608
none = 609
lost = "{value} bytes are read"
-->
"""

PROBLEM = """# problem

<!-- grader
pass_mark = 60
[starter]
source = '''
#include "attention.h"
#include "convert.h"
#include "gradients.h"

using namespace flash_ladder;
// answer
// end
@kernel@
'''
[[case]]
name = "only"
types = ["fp16"]
kernel = "naive"
grid = ["seq_len", "heads", "batch"]
block = 32
problem = { batch = 2, heads = 2, seq_len = 20, seq_len_kv = 12, head_dim = 32 @more@ }
@keys@
[[check]]
kind = "correct"
points = 100
-->
"""

# A warp computes a row of O, and L with base 10.
FORWARD = """
__global__ void naive(AttentionArgs args, const int* lengths_kv, float* L) {
  const int row = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, col = threadIdx.x;
  float sum = 0, o = 0;
  for (int key = 0; key < lengths_kv[batch]; ++key) {
    float s = 0;
    for (int d = 0; d < 32; ++d)
      s += to_float(args.Q.row<__half>(batch, head, row)[d]) * to_float(args.K.row<__half>(batch, head, key)[d]);
    const float p = expf(s * args.softmax_scale);
    sum += p;
    o += p * to_float(args.V.row<__half>(batch, head, key)[col]);
  }
  args.O.row<__half>(batch, head, row)[col] = from_float<__half>(sum > 0 ? o / sum : 0);
  if (col == 0) L[(batch * args.heads + head) * args.seq_len + row] = log10f(sum);
}
"""
# A warp computes a row of dV. The grid has a CTA for each query, and more queries than keys.
BACKWARD = """
__global__ void naive(AttentionArgs args, Gradients gradients) {
  const int key = blockIdx.x, head = blockIdx.y, batch = blockIdx.z, col = threadIdx.x;
  if (key >= args.seq_len_kv) return;
  float sum = 0;
  for (int row = 0; row < args.seq_len; ++row) {
    float s = 0;
    for (int d = 0; d < 32; ++d)
      s += to_float(args.Q.row<__half>(batch, head, row)[d]) * to_float(args.K.row<__half>(batch, head, key)[d]);
    const float L = gradients.log_sum_exp[(batch * args.heads + head) * args.seq_len + row];
    sum += expf(s * args.softmax_scale - L) * to_float(gradients.dO.row<__half>(batch, head, row)[col]);
  }
  gradients.dV.row<__half>(batch, head, key)[col] = from_float<__half>(sum);
}
"""


def grading_of(folder: Path, page: str) -> Grading:
    grading = Grading(folder)
    (grading.assignments / "00_small.md").write_text(page)
    return grading


def problem(kernel: str, more: str, keys: str) -> str:
    return PROBLEM.replace("@kernel@", kernel).replace("@more@", more).replace("@keys@", keys)


def with_L(kernel: str) -> str:
    return problem(kernel, ', lengths_kv = "[7, 0]"',
                   'arguments = ["args", "lengths_kv", "L"]\nlog_sum_exp_base = 10')  # fmt: skip


def with_gradients(kernel: str, names: str) -> str:
    return problem(kernel, "", f'arguments = ["args", "gradients"]\ngradients = {names}')


def test_a_later_launch_sees_what_the_first_has_written(tmp_path: Path) -> None:
    grading = grading_of(tmp_path, TWO_LAUNCHES)
    answer = grading.text("--reference")
    assert grading.grade(answer, *HERE)["score"] == 100, "and the counters are those of both"
    result = grading.grade(grading.text("--starter"), *HERE)
    assert result["score"] == 0 and "The virtual GPU saw: uninitialised read" in result["checks"][0]["lost"][0]


def test_every_kernel_must_be_there_with_its_parameters(tmp_path: Path) -> None:
    grading = grading_of(tmp_path, TWO_LAUNCHES)
    answer = grading.text("--reference")
    result = grading.grade(answer.replace("void add_one", "void add_two"), *HERE)
    assert "has no kernel add_one" in result["checks"][0]["lost"][0]
    result = grading.grade(answer.replace("float* y, int n", "float* y, int n, int m"), *HERE)
    assert "add_one takes different parameters" in result["checks"][0]["lost"][0]


def test_an_endless_loop_ends_the_launches(tmp_path: Path) -> None:
    grading = grading_of(tmp_path, TWO_LAUNCHES.replace('kernel = "square"', 'kernel = "square"\ninstructions = 1000'))
    loop = grading.text("--reference").replace("if (i < n) middle", "while (middle[0] != 7) middle[0] = 1;\n middle")
    assert "endless loop" in grading.grade(loop, *HERE)["checks"][0]["lost"][0]


def test_L_is_compared_in_its_base(tmp_path: Path) -> None:
    grading = grading_of(tmp_path, with_L(FORWARD))
    assert grading.grade(grading.text("--reference"), *HERE)["score"] == 100
    answer = grading.text("--reference")
    for wrong in ("log2f(sum)", "(sum > 0 ? log10f(sum) : 0)"):
        (lost,) = grading.grade(answer.replace("log10f(sum)", wrong), *HERE)["checks"][0]["lost"]
        assert "L, converted to natural logarithms: the log-sum-exp of 40 of 80 rows" in lost and "instead of" in lost
    result = grading.grade(grading.text("--reference").replace("log10f", "log2f"), *HERE, "--hidden",
                           grading.seed("exam"))  # fmt: skip
    assert "L, converted" in result["checks"][0]["lost"][0] and "instead of" not in result["checks"][0]["lost"][0]


@pytest.mark.parametrize(
    ("change", "said"),
    [
        (("- L)", ")"), "dV: "),
        (("gradients.dV.row<__half>(batch, head, key)[col] =", "float nothing ="), "never written"),
        (("gradients.dV.row", "gradients.dO.row"), "the launch has changed dO, which is an input"),
    ],
)
def test_a_gradient_is_compared(change: tuple[str, str], said: str, tmp_path: Path) -> None:
    grading = grading_of(tmp_path, with_gradients(BACKWARD, '["dV"]'))
    answer = grading.text("--reference")
    assert grading.grade(answer, *HERE)["score"] == 100
    assert change[0] in answer
    assert said in grading.grade(answer.replace(*change), *HERE)["checks"][0]["lost"][0]


def test_only_the_named_gradients_are_compared(tmp_path: Path) -> None:
    grading = grading_of(tmp_path, with_gradients(BACKWARD, '["dV", "dQ"]'))
    lost = grading.grade(grading.text("--reference"), *HERE)["checks"][0]["lost"]
    assert lost[0].partition(": ")[2].startswith("dQ: ") and "never written" in lost[0]


def test_what_an_author_may_write(tmp_path: Path) -> None:
    for page, said in (
        (TWO_LAUNCHES.replace("grid = 1, ", ""), "a later launch of the case 'only' has no grid"),
        (with_gradients(BACKWARD, '["dW"]'), "has the gradient 'dW'; there are dQ, dK, dV"),
        (SMALL.replace('"x", "y", "n"', '"x", "y", "n", "L"'), "the argument 'L' is unknown"),
    ):
        folder = tmp_path / str(len(said))
        folder.mkdir()
        (folder / "empty.cu").touch()
        done = grading_of(folder, page).run("--grade", folder / "empty.cu", "--assignment", "small", *HERE)
        assert done.returncode == 2 and said in done.stderr, done.stderr
