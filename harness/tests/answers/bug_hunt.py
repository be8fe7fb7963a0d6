"""Bug hunt."""

from __future__ import annotations

import re

from .edits import Assignment, Write, changed, from_reference, reference, renamed, replaced, replaced_kernel, starter

NAME = "08_bug_hunt"
KERNELS = ("softmax_rows", "column_sums", "scores", "attend", "ring")


def rewritten_bug_hunt(assignment: Assignment) -> str:
    """nothing was found; each kernel is a plain loop."""
    text = assignment.starter()
    text = replaced_kernel(
        text,
        "softmax_rows",
        """
  const int row = blockIdx.x * 4 + threadIdx.x / 32;
  if (row >= rows || threadIdx.x % 32 != 0) return;
  float top = x[row * cols], sum = 0;
  for (int i = 0; i < cols; ++i) top = fmaxf(top, x[row * cols + i]);
  for (int i = 0; i < cols; ++i) sum += expf(x[row * cols + i] - top);
  for (int i = 0; i < cols; ++i) y[row * cols + i] = expf(x[row * cols + i] - top) / sum;""",
    )
    text = replaced_kernel(
        text,
        "column_sums",
        """
  const int col = threadIdx.x % 64, part = threadIdx.x / 64;
  float sum = 0;
  for (int tile = 0; tile < tiles; ++tile)
    for (int row = 0; row < 8; ++row) sum += x[(tile * 16 + part * 8 + row) * 64 + col];
  out[threadIdx.x] = sum;""",
    )
    text = replaced_kernel(
        text,
        "scores",
        """
  const __half* q = reinterpret_cast<const __half*>(Q);
  const __half* k = reinterpret_cast<const __half*>(K);
  for (int i = threadIdx.x; i < 256; i += 32) {
    float sum = 0;
    for (int d = 0; d < 64; ++d) sum += to_float(q[i / 16 * 64 + d]) * to_float(k[i % 16 * 64 + d]);
    S[i] = sum;
  }""",
    )
    text = replaced_kernel(
        text,
        "attend",
        """
  const int query = blockIdx.x * 4 + threadIdx.x / 32, d = threadIdx.x % 32;
  float top = -INFINITY, sum = 0, o = 0;
  for (int pass = 0; pass < 2; ++pass)
    for (int key = 0; key < keys; ++key) {
      float score = 0;
      for (int i = 0; i < 32; ++i) score += q[query * 32 + i] * K[key * 32 + i];
      if (pass == 0) top = fmaxf(top, score);
      if (pass == 1) sum += expf(score - top), o += expf(score - top) * V[key * 32 + d];
    }
  O[query * 32 + d] = o / sum;""",
    )
    turn = assignment.values["turn"]
    return replaced_kernel(text, "ring", f"""
  for (int tile = 0; tile < tiles; ++tile) {{
    const int at = {turn} * threadIdx.x;
    out[tile * 128 + threadIdx.x] = in[tile * 512 + at % 512] + in[tile * 512 + (at + 256) % 512];
  }}""")  # fmt: skip


def two_faults_of_bug_hunt(assignment: Assignment) -> str:
    text, answer = assignment.starter(), assignment.reference_answer()
    for kernel in ("softmax_rows", "attend"):
        begin = answer.index("{\n", answer.index(f"__global__ void {kernel}("))
        text = replaced_kernel(text, kernel, answer[begin + 2 : answer.index("\n}\n", begin)])
    return text


def body_of(text: str, kernel: str) -> str:
    begin = text.index("{\n", text.index(f"__global__ void {kernel}(")) + 2
    return text[begin : text.index("\n}\n", begin)]


def parameters_of(text: str, kernel: str) -> tuple[str, str]:
    """The parameters of a kernel, and their names."""
    parameters = re.search(rf"__global__ void {kernel}\((.*?)\)", text)[1]
    return parameters, ", ".join(re.findall(r"(\w+)(?:,|$)", parameters))


def rewritten_in(head: str, call: str) -> Write:
    """The plain loops, outside the kernels, which only call them."""

    def write(assignment: Assignment) -> str:
        rewritten, text = rewritten_bug_hunt(assignment), assignment.starter()
        functions = ""
        for kernel in KERNELS:
            parameters, names = parameters_of(text, kernel)
            plain = body_of(rewritten, kernel)
            functions += head.format(
                kernel=kernel, parameters=parameters, body=plain, flat=plain.replace("\n", " \\\n")
            )
            text = replaced_kernel(text, kernel, call.format(kernel=kernel, names=names))
        return changed(text, ("using namespace flash_ladder;\n", "using namespace flash_ladder;\n" + functions))

    return write


def rewritten_before(assignment: Assignment) -> str:
    """The plain loops, and a return before the kernel's own text, which stays as it was."""
    rewritten, text = rewritten_bug_hunt(assignment), assignment.starter()
    for kernel in KERNELS:
        text = replaced_kernel(
            text, kernel, "  {\n" + body_of(rewritten, kernel) + "\n  }\n  return;\n" + body_of(text, kernel)
        )
    return re.sub(
        r"\n  if \(row >= rows \|\| threadIdx.x % 32 != 0\) return;",
        "\n  if (row >= rows || threadIdx.x % 32 != 0) return;",
        text,
    )


def by_first_threads(assignment: Assignment) -> str:
    """The first thread of a CTA does the work of all."""
    text = rewritten_bug_hunt(assignment)
    for kernel, count in (("column_sums", "128"), ("scores", "32"), ("ring", "128")):
        body = body_of(text, kernel).replace("threadIdx.x", "thread")
        text = replaced_kernel(
            text,
            kernel,
            f"  if (threadIdx.x != 0) return;\n  for (int thread = 0; thread < {count}; ++thread) {{\n{body}\n  }}",
        )
    return text


def with_barriers_everywhere(assignment: Assignment) -> str:
    """A barrier after each statement that stores: some faults disappear, and none is found."""
    text = assignment.starter()
    return re.sub(r"(?<=;)\n(  |    )(?=\w[^\n]*;\n)", r"\n\1__syncwarp();\n\1", text)


def without_asynchrony(assignment: Assignment) -> str:
    """What is asynchronous becomes an ordinary copy, and the barriers of a ring become those of the CTA."""
    text = assignment.starter()
    text = re.sub(
        r"cp_async_16\(&(\w+)(\[[^;]*?\]), &(\w+)(\[[^;]*?\])\);", r"*(int4*)&\1\2 = *(const int4*)&\3\4;", text
    )
    return text


def right_for_one_size(assignment: Assignment) -> str:
    """Loops of a fixed length."""
    text = assignment.reference_answer()
    for old, new in (
        ("tile < tiles", "tile < 4"),
        ("key < keys", "key < 20"),
        ("col < cols", "col < 50"),
        ("mma_k < 4", "mma_k < 3"),
    ):
        text = text.replace(old, new)
    return text


def with_faults_of(*kernels: str) -> Write:
    """The reference answer, in which some faults remain."""

    def write(assignment: Assignment) -> str:
        text, begun = assignment.reference_answer(), assignment.starter()
        for kernel in kernels:
            text = replaced_kernel(text, kernel, body_of(begun, kernel))
        return text

    return write


def with_too_many_barriers(assignment: Assignment) -> str:
    """Right, with barriers that nothing needs."""
    return changed(
        assignment.reference_answer(),
        ("    cp_async_wait<1>();  // all", "    __syncthreads();\n    cp_async_wait<1>();  // all"),
        ("  out[threadIdx.x] = sum;", "  __syncthreads();\n  out[threadIdx.x] = sum;"),
    )


HEAD = "\n__device__ void plain_{kernel}({parameters}) {{\n{body}\n}}\n"
CHEATS: dict[str, Write] = {
    "five kernels written anew": rewritten_bug_hunt,
    "written anew in functions": rewritten_in(HEAD, "  plain_{kernel}({names});"),
    "written anew in macros": rewritten_in("\n#define PLAIN_{kernel} \\\n{flat}\n", "  PLAIN_{kernel}"),
    "written anew in templates": rewritten_in(
        "\ntemplate <int> __device__ void plain_{kernel}({parameters}) {{\n{body}\n}}\n",
            "  plain_{kernel}<0>({names});"),
    "written anew in structures": rewritten_in(
        "\nstruct Plain_{kernel} {{\n  __device__ void operator()({parameters}) const {{\n{body}\n  "
        "}}\n}};\n", "  Plain_{kernel}()({names});"),
    "written anew before a return": rewritten_before,
    "written anew for one thread": by_first_threads,
    "barriers of warps everywhere": with_barriers_everywhere,
    "nothing asynchronous": without_asynchrony,
    "right for one size": right_for_one_size,
}  # fmt: skip
HONEST: dict[str, Write] = {
    "other comments": renamed,
    "the quotient once": from_reference(
        ("  O[query * 32 + lane_id] = o / row_sum;",
         "  const float inverse = 1 / row_sum;\n  O[query * 32 + lane_id] = o * inverse;")),
    "the condition turned round": from_reference(("if (row >= rows) return;", "if (!(row < rows)) return;")),
    "other names": replaced((r"\brescale\b", "factor"), (r"\bat\b", "place_of_thread")),
    "unrolled": from_reference(("    for (int row = 0; row < 8; ++row) sum",
        "#pragma unroll\n    for (int row = 0; row < 8; ++row) sum"),
                               ("  for (int mma_k = 0; mma_k < 4;", "#pragma unroll\n  for (int mma_k = 0; mma_k "
                                                                    "< 4;")),
    "FMA written out": from_reference(("row_sum = row_sum * rescale + p;", "row_sum = fmaf(row_sum, rescale, p);"),
                                      ("o = o * rescale + p * V[key * 32 + lane_id];",
                                          "o = fmaf(p, V[key * 32 + lane_id], o * rescale);")),
    "the swizzle as an XOR of the offset": from_reference(
        ("return row * 64 + ((col / 8) ^ (row % 8)) * 8 + col % 8;", "return (row * 64 + col) ^ row % 8 * 8;")),
    "shifts and masks": from_reference(
        ("const int key = lane_id / 16 * 8 + lane_id % 8, col = mma_k * 16 + lane_id / 8 % 2 * 8;",
         "const int key = (lane_id >> 4 << 3) + (lane_id & 7), col = mma_k * 16 + (lane_id & 8);")),
    "a wait without a function": from_reference(("    wait(&full[tile % 2], tile / 2 % 2);",
        "    while (!mbarrier_test_wait(&full[tile % 2], tile / 2 % 2)) {}")),
    "a pointer to the buffer": replaced(
        (r"smem\[tile % (\d)\]\[at % 512\] \+ smem\[tile % \d\]\[\(at \+ 256\) % 512\];",
         r"(smem[0] + tile % \1 * 512)[at % 512] + (smem[0] + tile % \1 * 512)[(at + 256) % 512];")),
    "the comment of each fault": from_reference(("  if (row >= rows) return;",
        "  // Rows 0 to rows - 1 exist.\n  if (row >= rows) return;")),
}  # fmt: skip
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("one fault", with_faults_of("column_sums", "scores", "attend", "ring")),
    ("two faults", two_faults_of_bug_hunt),
    ("three faults", with_faults_of("scores", "ring")),
    ("four faults", with_faults_of("scores")),
    ("too many barriers", with_too_many_barriers),
    ("all", reference),
]
