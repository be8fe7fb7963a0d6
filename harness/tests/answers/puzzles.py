"""00, puzzles."""

from __future__ import annotations

import re

from .edits import (
    Assignment,
    Write,
    changed,
    from_reference,
    from_starter,
    reference,
    renamed,
    replaced,
    replaced_kernel,
    starter,
)

NAME = "00_puzzles"


def puzzles_by_one_thread(assignment: Assignment) -> str:
    """the first two puzzles are right; in the others one thread does all the work, beside one dummy instruction."""
    values, text = assignment.values, assignment.reference_answer()
    joined = {"sum": "sum += x", "max": "sum = max(sum, x)"}
    text = replaced_kernel(
        text,
        "group_reduce",
        f"""
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  const float other = __shfl_xor_sync(0xffffffff, in[i], 1);
  if (i % {values["width"]} != 0) return;
  float sum = in[i];
  for (int j = 1; j < {values["width"]}; ++j) {{ const float x = in[i + j]; {joined[values["op"]]}; }}
  out[i / {values["width"]}] = sum + 0.0f * other;""",
    )
    text = replaced_kernel(
        text,
        "logsumexp",
        f"""
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows || threadIdx.x % 32 != 0) return;
  float m = -INFINITY, l = 0;
  for (int col = 0; col < cols; ++col) {{
    const float x = in[row * cols + col], new_m = fmaxf(m, x);
    l = l * {values["exp"]}(m - new_m) + {values["exp"]}(x - new_m);
    m = new_m;
  }}
  out[row] = m + {values["log"]}(l);""",
    )
    text = replaced_kernel(
        text,
        "cta_reduce",
        f"""
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = x[blockIdx.x * {values["threads"]}];
  for (int i = 1; i < {values["threads"]}; ++i) {{
    const int y = x[blockIdx.x * {values["threads"]} + i];
    {joined[values["cta_op"]].replace("x", "y").replace("may", "max")};
  }}
  out[blockIdx.x] = sum;""",
    )
    A = "k * 16 + m" if values["A_by_columns"] else "m * 16 + k"
    B = "k * 8 + n" if values["B_by_rows"] else "n * 16 + k"
    return replaced_kernel(text, "one_mma", f"""
  const std::uint32_t a[4] = {{}}, b[2] = {{}};
  float d[4] = {{}};
  mma_m16n8k16<__half>(d, a, b);
  for (int i = threadIdx.x; i < 128; i += 32) {{
    const int m = i / 8, n = i % 8;
    float sum = 0;
    for (int k = 0; k < 16; ++k)
      sum += to_float(reinterpret_cast<const __half*>(A)[{A}]) * to_float(reinterpret_cast<const __half*>(B)[{B}]);
    D[i] = sum;
  }}""")  # fmt: skip


def product_of(assignment: Assignment, m: str, n: str) -> str:
    """One element of the product of one_mma, in scalar arithmetic."""
    a = f"k * 16 + {m}" if assignment.values["A_by_columns"] else f"{m} * 16 + k"
    b = f"k * 8 + {n}" if assignment.values["B_by_rows"] else f"{n} * 16 + k"
    return (f"float sum = 0;\n    for (int k = 0; k < 16; ++k) sum += "
            f"to_float(reinterpret_cast<const __half*>(A)[{a}]) * to_float(reinterpret_cast<const "
            f"__half*>(B)[{b}]);")  # fmt: skip


def join(op: str, to: str, x: str) -> str:
    return f"{to} += {x};" if op == "sum" else f"{to} = max({to}, {x});"


def begun(assignment: Assignment) -> str:
    """The starter with the first two puzzles solved."""
    text, answer = assignment.starter(), assignment.reference_answer()
    for kernel in ("scale", "turn"):
        begin = answer.index("{\n", answer.index(f"__global__ void {kernel}(")) + 2
        text = replaced_kernel(text, kernel, answer[begin : answer.index("\n}\n", begin)])
    return text


def by_every_lane(assignment: Assignment) -> str:
    """Every lane computes everything, from memory; what lanes exchange has no effect."""
    values, text = assignment.values, begun(assignment)
    width = values["width"]
    text = replaced_kernel(
        text,
        "group_reduce",
        f"""
  const int i = blockIdx.x * blockDim.x + threadIdx.x, first = i / {width} * {width};
  float sum = in[first], other = in[i];
  for (int j = 1; j < {width}; ++j) {{ {join(values["op"], "sum", "in[first + j]")} }}
  for (int mask = {width // 2}; mask > 0; mask /= 2) other = 0.5f * __shfl_xor_sync(0xffffffff, other, mask);
  if (i % {width} == 0) out[i / {width}] = sum + 0.0f * other;""",
    )
    text = replaced_kernel(
        text,
        "logsumexp",
        f"""
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows) return;
  float m = -INFINITY, l = 0, other = 1;
  for (int col = 0; col < cols; ++col) {{
    const float x = in[row * cols + col], new_m = fmaxf(m, x);
    l = l * {values["exp"]}(m - new_m) + {values["exp"]}(x - new_m);
    m = new_m;
  }}
  for (int mask = 16; mask > 0; mask /= 2) other = 0.5f * __shfl_xor_sync(0xffffffff, other, mask);
  if (threadIdx.x % 32 == 0) out[row] = m + {values["log"]}(l) + 0.0f * other;""",
    )
    text = replaced_kernel(
        text,
        "cta_reduce",
        f"""
  const int* first = x + blockIdx.x * {values["threads"]};
  int sum = first[0];
  for (int i = 1; i < {values["threads"]}; ++i) {{ {join(values["cta_op"], "sum", "first[i]")} }}
  out[blockIdx.x] = sum;""",
    )
    return replaced_kernel(text, "one_mma", f"""
  std::uint32_t a[4] = {{A[threadIdx.x], 0, 0, 0}}, b[2] = {{B[threadIdx.x], 0}};
  float d[4] = {{}};
  mma_m16n8k16<__half>(d, a, b);
  for (int i = threadIdx.x; i < 128; i += 32) {{
    {product_of(assignment, "(i / 8)", "(i % 8)")}
    D[i] = sum + 0.0f * d[0];
  }}""")  # fmt: skip


def each_reads_its_own(assignment: Assignment) -> str:
    """Each lane reads one element, passes it on to the others, and one lane adds up what it gets: shuffles that have an
    effect beside those that have none, and all of the work in one lane."""
    values, text = assignment.values, by_every_lane(assignment)
    width, threads = values["width"], values["threads"]
    text = replaced_kernel(
        text,
        "group_reduce",
        f"""
  __shared__ float all[128];
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  all[threadIdx.x] = in[i];
  __syncthreads();
  if (i % {width} != 0) return;
  float sum = all[threadIdx.x];
  for (int j = 1; j < {width}; ++j) {{ {join(values["op"], "sum", "all[threadIdx.x + j]")} }}
  out[i / {width}] = sum;""",
    )
    return replaced_kernel(text, "cta_reduce", f"""
  __shared__ int all[{threads}];
  all[threadIdx.x] = x[blockIdx.x * {threads} + threadIdx.x];
  __syncthreads();
  if (threadIdx.x != 0) return;
  int sum = all[0];
  for (int i = 1; i < {threads}; ++i) {{ {join(values["cta_op"], "sum", "all[i]")} }}
  out[blockIdx.x] = sum;""")  # fmt: skip


def through_outputs(assignment: Assignment) -> str:
    """Intermediate results go through global memory: the output is the scratchpad."""
    values, text = assignment.values, by_every_lane(assignment)
    threads = values["threads"]
    operation = "atomicAdd" if values["cta_op"] == "sum" else "atomicMax"
    start = "0" if values["cta_op"] == "sum" else "-2147483647"
    return replaced_kernel(text, "cta_reduce", f"""
  if (threadIdx.x == 0) out[blockIdx.x] = {start};
  __syncthreads();
  {operation}(&out[blockIdx.x], x[blockIdx.x * {threads} + threadIdx.x]);""")  # fmt: skip


def of_visible_inputs(assignment: Assignment) -> str:
    """The sizes of the visible cases as constants."""
    text = assignment.reference_answer()
    return changed(
        text,
        ("i >= rows * cols", "i >= 40 * 64"),
        ("if (row >= rows) return;", "if (row >= 5) return;"),
        ("col < cols; col += 32", "col < 3; col += 32"),
    )


def the_easy_ones(assignment: Assignment) -> str:
    """The first two, and what the starter has of the others."""
    return begun(assignment)


def without_barriers(assignment: Assignment) -> str:
    """The first two; the others wrong in their own way: no exchange, no barrier, one register."""
    return replaced_kernel(
        begun(assignment),
        "group_reduce",
        "  const int i = blockIdx.x * blockDim.x + threadIdx.x;\n  if (i % 8 == 0) out[i / 8] = in[i];",
    )


def starter_only(assignment: Assignment) -> str:
    """What was handed out."""
    return assignment.starter() + "\n// done\n"


def dead_code(assignment: Assignment) -> str:
    """The first two, and the reference answer's kernels under other names."""
    answer = assignment.reference_answer()
    kernels = answer[answer.index("__global__") :]
    return begun(assignment) + re.sub(r"__global__ void (\w+)", r"__global__ void right_\1", kernels)


# ---- Styles ----


def kernel(name: str, body: str) -> Write:
    return lambda assignment: replaced_kernel(assignment.reference_answer(), name, filled(body, assignment))


def filled(body: str, assignment: Assignment) -> str:
    values = assignment.values
    names = dict(
        width=values["width"], threads=values["threads"], half=values["threads"] // 2, exp=values["exp"],
        log=values["log"],
        join=join(values["op"], "x", "other"), cta_join=join(values["cta_op"], "mine", "other"),
    )  # fmt: skip
    for key, value in names.items():
        body = body.replace(f"@{key}@", str(value))
    return body


def turned_by_xor(assignment: Assignment) -> str:
    """The columns are permuted instead of being padded."""
    return changed(
        assignment.reference_answer(),
        ("tile[32][33];", "tile[32][32];"), ("tile[row][threadIdx.x] = ", "tile[row][threadIdx.x ^ row] = "),
        ("tile[threadIdx.x][col];", "tile[threadIdx.x][col ^ threadIdx.x];"),
    )  # fmt: skip


def pairs_by_prmt(assignment: Assignment) -> str:
    text = assignment.reference_answer()
    return re.sub(r"= ([AB]\[[^\]]*\]) << 16 \| ([AB]\[[^\]]*\]);", r"= __byte_perm(\2, \1, 0x5410);", text)


CHEATS: dict[str, Write] = {
    "one thread does the work": puzzles_by_one_thread,
    "every lane computes everything": by_every_lane,
    "one lane adds up what the others read": each_reads_its_own,
    "atomics on the output": through_outputs,
    "sizes as constants": of_visible_inputs,
    "only the easy ones": the_easy_ones,
    "the easy ones, and no exchange": without_barriers,
    "what was handed out": starter_only,
    "the answer in kernels that are not launched": dead_code,
}
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "a shuffle more": from_reference(
        ("if (lane_id == 0) out[row] = m +",
         "l = __shfl_sync(0xffffffff, l, 0);\n  if (lane_id == 0) out[row] = m +")),
    "an XOR in the tile": turned_by_xor,
    "halves by prmt": pairs_by_prmt,
    "rows of 33 words by hand": from_reference(("tile[32][33];", "tile[32 * 33];"), ("tile[row][threadIdx.x] = ",
        "tile[row * 33 + threadIdx.x] = "),
                                               ("tile[threadIdx.x][col];", "tile[threadIdx.x * 33 + col];")),
    "shuffles of a width": kernel("group_reduce", """
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  float x = in[i];
  for (int step = @width@ / 2; step > 0; step >>= 1) {
    const float other = __shfl_down_sync(~0u, x, step, @width@);
    @join@
  }
  if ((i & (@width@ - 1)) == 0) out[i / @width@] = x;"""),
    "small masks first": replaced((r"for \(int mask = (\d+); mask > 0; mask /= 2\)",
        r"for (int mask = 1; mask <= \1; mask *= 2)")),
    "the last warp by shuffles": kernel("cta_reduce", """
  __shared__ int smem[@threads@];
  smem[threadIdx.x] = x[blockIdx.x * @threads@ + threadIdx.x];
  __syncthreads();
  for (int step = @half@; step >= 32; step /= 2) {
    if (threadIdx.x < step) {
      int mine = smem[threadIdx.x];
      const int other = smem[threadIdx.x + step];
      @cta_join@
      smem[threadIdx.x] = mine;
    }
    __syncthreads();
  }
  if (threadIdx.x < 32) {
    int mine = smem[threadIdx.x];
    for (int step = 16; step > 0; step /= 2) {
      const int other = __shfl_down_sync(0xffffffff, mine, step);
      @cta_join@
    }
    if (threadIdx.x == 0) out[blockIdx.x] = mine;
  }"""),
    "shuffles, then one warp": kernel("cta_reduce", """
  __shared__ int smem[32];
  int mine = x[blockIdx.x * @threads@ + threadIdx.x];
  for (int step = 16; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(0xffffffff, mine, step);
    @cta_join@
  }
  if (threadIdx.x % 32 == 0) smem[threadIdx.x / 32] = mine;
  __syncthreads();
  if (threadIdx.x >= 32) return;
  mine = smem[threadIdx.x % (@threads@ / 32)];
  for (int step = @threads@ / 64; step > 0; step /= 2) {
    const int other = __shfl_xor_sync(0xffffffff, mine, step);
    @cta_join@
  }
  if (threadIdx.x == 0) out[blockIdx.x] = mine;"""),
    "a finite maximum": replaced((r"float m = -INFINITY, l = 0;", "float m = -1e30f, l = 0;"),
                                 (r"\((l|other_l) > 0 \? (.*?) : 0\)", r"\2")),
    "a branch for a new maximum": kernel("logsumexp", """
  const int row = blockIdx.x * 4 + threadIdx.x / 32, lane_id = threadIdx.x % 32;
  if (row >= rows) return;
  float m = -1e30f, l = 0;
  for (int col = lane_id; col < cols; col += 32) {
    const float x = in[row * cols + col];
    if (x > m) {
      l = l * @exp@(m - x) + 1;
      m = x;
    } else {
      l += @exp@(x - m);
    }
  }
  float top = m;
  for (int mask = 1; mask < 32; mask *= 2) top = fmaxf(top, __shfl_xor_sync(0xffffffff, top, mask));
  l *= @exp@(m - top);
  for (int mask = 1; mask < 32; mask *= 2) l += __shfl_xor_sync(0xffffffff, l, mask);
  if (lane_id == 0) out[row] = top + @log@(l);"""),
    "macros": lambda a: "#define UP_TO(i, n) for (int i = 0; i < (n); ++i)\n" + re.sub(
        r"for \(int (\w+) = 0; \1 < ([^;]*); \+\+\1\)", r"UP_TO(\1, \2)", a.reference_answer()),
    "lambdas": replaced((r"  for \(int i = 0; i < 4; \+\+i\) D\[(.*?)\] = D_rmem\[i\];",
        r"  const auto store = [&](int i) { D[\1] = D_rmem[i]; };\n  store(0), store(1), store(2), store(3);")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("scale alone", from_starter(("i % rows, col = i / rows;  // TODO", "i / cols, col = i % cols;"))),
    ("the first two", the_easy_ones),
    ("logsumexp fails on empty lanes",
     lambda a: re.sub(r"\((l|other_l) > 0 \? (.*?) : 0\)", r"\2", a.reference_answer())),
    ("all", reference),
]  # fmt: skip
