"""Submissions that are meant to harm or to deceive. Each one ends in a score, or in "not graded", and a message."""

import os
import re
import shutil
from pathlib import Path

import pytest
from grading import Grading, nothing_else_changes, why_not_isolated

pytestmark = pytest.mark.skipif(bool(why_not_isolated()), reason=why_not_isolated())

SECRET = "answer_of_somebody_else"  # a name, which a compiler repeats in its message


@pytest.fixture
def grading(tmp_path: Path) -> Grading:
    return Grading(tmp_path)


@pytest.fixture
def secret(tmp_path: Path) -> Path:
    """A file of another user that the grader's user can read."""
    path = tmp_path / "secret.txt"
    path.write_text(SECRET + "\n")
    return path


def kernel(body: str, before: str = "") -> str:
    return f"{before}\n__global__ void scaled(const float* x, float* y, int n) {{\n{body}\n}}\n"


def right(grading: Grading, before: str = "", after: str = "") -> str:
    """The reference answer with additional text in the same file."""
    return before + "\n" + grading.text("--reference") + after


def words(result: dict) -> str:
    return result["message"] + " ".join(sentence for check in result["checks"] for sentence in check["lost"])


INDEX = "const int i = blockIdx.x * blockDim.x + threadIdx.x;\n"

# Code in the kernel, and the expected message. None of them scores a point.
IN_THE_KERNEL = {
    "an endless loop": ("volatile int go = 1; while (go) {} y[0] = 1;", "endless loop"),
    "an endless loop over atomics": (
        "auto* p = (unsigned long long*)y; while (true) { atomicAdd(&p[threadIdx.x], 1ull); if (p[7] == 77) break; }",
        "endless loop in line",
    ),
    "far too much work in every block": (
        "volatile int k = 0; while (k < 2500) k = k + 1; y[0] = 1;",
        "endless loop in line 3: all blocks together have executed 200000 warp instructions, and not all of them have "
        "ended: an endless loop, or far too much work",
    ),
    "a barrier that some miss": ("if (threadIdx.x < 40) __syncthreads(); y[0] = 1;", "barrier"),
    "an enormous shared array": (
        "__shared__ float big[1 << 22]; big[threadIdx.x] = x[0]; __syncthreads(); y[0] = big[n];",
        "shared memory",
    ),
    "an enormous local array": ("volatile float big[1 << 26]; big[n] = x[0]; y[0] = big[n / 2];", "local memory"),
    "writes out of bounds": ("y[n + 100000 + threadIdx.x] = 1;", "out of bounds"),
    "reads around in memory for the expected output": (
        INDEX + "const float* p = y + (1 << 20); if (i < n) y[i] = p[i] + x[-5000 + i];",
        "out of bounds",
    ),
    "reads all of memory": (
        "for (unsigned long long a = n * 4ull; a < (1ull << 49); a += 1ull << 44) y[0] += *(const float*)a;",
        "which is in no allocation",
    ),
    "copies what was in the output before": (
        INDEX + "volatile float* v = y; if (i < n) v[i] = v[i];",
        "uninitialised",
    ),
    "changes its input": (INDEX + "if (i < n) { const_cast<float*>(x)[i] = 0; y[i] = 0; }", "has changed x"),
    "does nothing": ("", "was never written"),
    "inline PTX outside the subset": ('asm volatile("tcgen05.fence::before_thread_sync;"); y[0] = 1;', "cannot run it"),
    "inline PTX that is none": ('asm volatile("score 100;"); y[0] = 1;', "cannot run it"),
    "a directive that includes a file": ('asm volatile(".include \\"/etc/passwd\\""); y[0] = 1;', "cannot run it"),
    "a directive that embeds a file": ('asm volatile(".incbin \\"/etc/passwd\\""); y[0] = 1;', "cannot run it"),
    "a kernel inside the kernel": ('asm volatile("ret; } .visible .entry scaled() { ret;"); y[0] = 1;', ""),
    "a trap": ("asm volatile(\"trap;\");", ""),
    "a jump to an address": (
        "using F = void (*)(); F f = reinterpret_cast<F>(0x1234ull + n); f(); y[0] = 1;",
        "",
    ),
    "recursion without end": ("y[0] = deep(n);", ""),
}  # fmt: skip


@pytest.mark.parametrize("name", IN_THE_KERNEL)
def test_a_hostile_kernel_gets_no_points(grading: Grading, name: str) -> None:
    body, message = IN_THE_KERNEL[name]
    deep = "__device__ __noinline__ float deep(int n) { return n < -5 ? 0 : deep(n + 1) + deep(n + 2); }"
    with nothing_else_changes(grading):
        result = grading.grade(kernel(body, deep if "deep" in body else ""))
    assert result["status"] == "graded" and result["score"] == 0
    assert words(result) and message in words(result)


# Files that do not compile, or not within the limits.
DO_NOT_COMPILE = {
    "endless template recursion": (
        "template <int N> struct A { static constexpr int v = A<N + 1>::v; }; int v = A<0>::v;"
    ),
    "a constant expression without end": (
        "constexpr int f() { int i = 0; while (true) ++i; return i; } __device__ int v[f()];"
    ),
    "text that doubles again and again": "#define A0 int a; int b; int c; int d;\n"
    + "".join(f"#define A{i + 1} A{i} A{i}\n" for i in range(40))
    + "namespace bomb { A40 }",
    "an #error with a score": '#error "100.0 of 100 passed"',
    "no kernel": "int main() { return 0; }",
    "another kernel": "__global__ void other() {}",
    "another signature": "__global__ void scaled(float* y) {}",
    "an open comment": "/* ",
    "an open #if": "#if 1\n",
}


@pytest.mark.parametrize("name", DO_NOT_COMPILE)
def test_what_does_not_compile_gets_no_points(grading: Grading, name: str) -> None:
    with nothing_else_changes(grading):
        result = grading.grade(DO_NOT_COMPILE[name])
    assert result["status"] == "graded" and result["score"] == 0 and words(result)
    assert str(grading.folder) not in result["shown"], "no folder of the grader's machine"


# Code that keeps a compiler busy for ever: no score, because it would depend on the machine's speed.
ENDLESS = {
    "templates by the million": (
        "template <int D, long I> struct T { static constexpr long v = T<D - 1, 2 * I>::v + T<D - 1, 2 * I + 1>::v; };"
        "template <long I> struct T<0, I> { static constexpr long v = I; }; __device__ long v = T<60, 0>::v;"
    ),
    "a file that includes itself twice": "#include __FILE__\n#include __FILE__\n",
}


@pytest.mark.parametrize("name", ENDLESS)
def test_a_compile_bomb_is_not_graded_or_gets_no_points(grading: Grading, name: str) -> None:
    with nothing_else_changes(grading):
        result = grading.grade(ENDLESS[name], "--compile-seconds", "1")
    if result["status"] == "graded":
        assert result["score"] == 0 and "does not compile" in result["message"]
    else:
        assert result["score"] is None and "1 seconds of CPU time" in result["message"]


# Ways to a file outside the allowed folders; FILE stands for its path.
WAYS_TO_A_FILE = {
    "include": '#include "FILE"',
    "include in brackets": "#include <FILE>",
    "a computed name": '#define NAME "FILE"\n#include NAME',
    "a name made of pieces": "#define TEXT(x) #x\n#define NAME(x) TEXT(x)\n#include NAME(FILE)",
    "a relative path": '#include "../../../../../../../../FILE"',
    "include_next": '#include_next "FILE"',
    "import": '#import "FILE"',
    "embed": 'const unsigned char data[] = {\n#embed "FILE"\n};',
    "has_include": '#if __has_include("FILE")\n#error it is there\n#endif',
    "incbin": 'asm(".incbin \\"FILE\\"");',
    "incbin in a kernel": '__global__ void k() { asm volatile(".incbin \\"FILE\\""); }',
    "a line of that file beside an error": '#line 1 "FILE"\nthis is no C++;',
    "a dependency": '#pragma GCC dependency "FILE"',
    "a precompiled header": '#pragma GCC pch_preprocess "FILE"',
    "a linker's option": '#pragma comment(linker, "/include:FILE")\n#pragma comment(lib, "FILE")',
    "an option of the compiler": '#pragma GCC optimize("-include FILE")\n#pragma nv_diag_default 1',
}


@pytest.mark.parametrize("name", WAYS_TO_A_FILE)
def test_no_file_outside_the_allowed_folders_is_read(grading: Grading, secret: Path, name: str) -> None:
    way = WAYS_TO_A_FILE[name].replace("FILE", str(secret))
    with nothing_else_changes(grading):
        result = grading.grade(right(grading, before=way))
    assert result["status"] == "graded" and result["score"] in (0, 100)
    assert SECRET not in str(result) and "it is there" not in str(result)


def test_without_isolation_such_a_file_would_be_read(grading: Grading, secret: Path) -> None:
    """Shows that the test above can fail."""
    compiled = "this declaration has no storage class"
    for name, seen in (("include", compiled), ("a computed name", compiled), ("has_include", "it is there")):
        way = WAYS_TO_A_FILE[name].replace("FILE", str(secret))
        assert seen in str(grading.grade(way, "--unsandboxed"))


def test_other_submissions_and_the_ladder_are_not_in_reach(grading: Grading) -> None:
    other = grading.temporary / "flash-ladder-grade-other"
    other.mkdir()
    (other / "submission.cu").write_text(right(grading))
    for path in (other / "submission.cu", Path(__file__).resolve().parents[2] / "kernels" / "01_naive.cu"):
        result = grading.grade(f'#include "{path}"\n')
        assert result["score"] == 0 and "does not compile" in result["message"]
    shutil.rmtree(other)


HOST_CODE = {
    "a static initialiser": "struct S { S() { RUN } } s;",
    "an initialiser by a lambda": "static int v = [] { RUN return 1; }();",
    "a constructor": "__attribute__((constructor)) void f() { RUN }",
    "a destructor": "__attribute__((destructor)) void f() { RUN }",
    "init_array": 'void f() { RUN }\n__attribute__((section(".init_array"), used)) void (*p)() = f;',
    "main": "int main() { RUN return 0; }",
    "an ifunc": 'extern "C" void* resolve() { RUN return nullptr; }\nvoid g() __attribute__((ifunc("resolve")));',
    "file-scope assembly": 'asm(".section .init_array\\n.quad evil\\n.text\\nevil: ret");',
}


@pytest.mark.parametrize("name", HOST_CODE)
def test_no_host_code_runs(grading: Grading, tmp_path: Path, name: str) -> None:
    trace = tmp_path / "it_ran"
    run = f'if (FILE* f = fopen("{trace}", "w")) fclose(f); if (system("touch {trace}")) fork(); exit(0);'
    code = "#include <cstdio>\n#include <cstdlib>\n#include <unistd.h>\n" + HOST_CODE[name].replace("RUN", run)
    with nothing_else_changes(grading):
        result = grading.grade(right(grading, after=code))
    assert result["status"] == "graded"
    assert result["score"] == 100, "the kernel beside it is right, and nothing else counts"
    assert not trace.exists()


def test_a_score_that_is_printed_is_none(grading: Grading) -> None:
    printing = kernel(
        'if (threadIdx.x == 0) printf("\\n  100.0 of 100  passed: the pass mark is 60\\n\\x1b[2J{\\"score\\": 100}");',
        '#include <cstdio>\n#pragma message("100.0 of 100 passed")\n#warning "score 100"',
    )
    with nothing_else_changes(grading):
        result = grading.grade(printing)
    assert result["score"] == 0 and not result["passed"]
    assert "\x1b" not in result["shown"] and "\n  100.0 of 100" not in result["shown"]
    assert "The kernels printed: 100.0 of 100" in result["shown"], "said to be the kernel's own words"


def test_a_kernel_that_prints_without_end(grading: Grading) -> None:
    with nothing_else_changes(grading):
        result = grading.grade(kernel('while (n >= 0) printf("%d again and again\\n", n);', "#include <cstdio>"))
    assert result["score"] == 0 and len(result["printed"]) < 1000


def test_a_kernel_that_knows_the_shapes(grading: Grading) -> None:
    """It is right for the problem that it has seen, and other draws reveal it."""
    factor = re.search(r"(\d+) \* x", grading.text("--reference"))[1]
    telling = kernel(INDEX + 'if (i == 0) printf("%d ", n);', "#include <cstdio>")
    seen = ("--hidden", grading.seed("seen"))
    sizes = grading.grade(telling, *seen)["printed"].split()
    assert len(set(sizes)) == 2
    for n in sizes:
        part = grading.grade(kernel(INDEX + f"if (i < n && n == {n}) y[i] = {factor} * x[i];"), *seen)
        assert part["checks"][0]["points"] > 0 and part["score"] < 100, "it is right for one of the two"
    known = " || ".join(f"n == {n}" for n in sizes)
    cheat = kernel(INDEX + f"if (i < n && ({known})) y[i] = {factor} * x[i];")
    assert grading.grade(cheat, *seen)["score"] == 100
    scores = [grading.grade(cheat, "--hidden", grading.seed(f"not seen {i}"))["score"] for i in range(3)]
    assert min(scores) < 60


def test_what_is_no_source(grading: Grading) -> None:
    for data, message in (
        (b"", "it is empty"),
        (b" \n\t\n", "it is empty"),
        (b"\x7fELF\x02\x01\x01\0\0\0", "contains zero bytes"),
        (bytes(range(128, 256)) * 20, "not text in UTF-8"),
        ("// für\n".encode() + "// für\n".encode("latin-1"), "not text in UTF-8, as a byte in line 2 shows"),
        (b"// " + b"x" * (50 << 20), "52428803 bytes"),
    ):
        with nothing_else_changes(grading):
            result = grading.grade(data)
        assert result["status"] == "graded" and result["score"] == 0 and message in result["message"]


def test_what_is_no_regular_file(grading: Grading, secret: Path, tmp_path: Path) -> None:
    link = tmp_path / "link.cu"
    for target in (Path("/etc/passwd"), secret, tmp_path / "nowhere", tmp_path):
        link.unlink(missing_ok=True)
        link.symlink_to(target)
        result = grading.grade(link)
        assert result["score"] == 0 and "symbolic link" in result["message"]
        assert "root" not in result["shown"]
    fifo = tmp_path / "fifo.cu"
    os.mkfifo(fifo)
    assert "not a regular file" in grading.grade(fifo)["message"], "and the grader does not wait for a writer"
    folder = tmp_path / "folder.cu"
    folder.mkdir()
    assert "not a regular file" in grading.grade(folder)["message"]


@pytest.mark.parametrize("name", ["a\nb $(touch it_ran) `touch it_ran`; 'x' \"y\" & | > it_ran.cu", "-rf *.cu",
                                  "--assignment=other.cu", "=cmd|' -C calc'!A0.cu", "\x1b[2J\u202e.cu"])  # fmt: skip
def test_names_that_a_shell_or_a_terminal_would_take_for_more(grading: Grading, tmp_path: Path, name: str) -> None:
    handed_in = tmp_path / "in"
    handed_in.mkdir()
    (handed_in / name).write_text(right(grading))
    result = grading.grade(handed_in / name)
    assert result["score"] == 100 and "\n" not in result["file"] and "\x1b" not in result["shown"]
    assert (
        grading.run("--grade-dir", handed_in, "--assignment", "small", "--out", tmp_path / "grades.csv").returncode == 0
    )
    rows = (tmp_path / "grades.csv").read_text().splitlines()
    assert len(rows) == 2 and ",100,yes,graded," in rows[1] and not rows[1].startswith(("=", "-"))
    assert not list(tmp_path.rglob("it_ran*")) and not (Path.cwd() / "it_ran").exists()


def test_a_name_that_is_no_text(grading: Grading, tmp_path: Path) -> None:
    path = Path(os.fsdecode(os.fsencode(tmp_path) + b"/\xff\xfe.cu"))
    path.write_text(right(grading))
    assert grading.grade(path)["score"] == 100


def test_the_time_of_day_is_no_way_to_another_score(grading: Grading) -> None:
    clock = "__device__ const char when[] = __DATE__ __TIME__ __TIMESTAMP__;\n#define STRING(x) #x\n"
    check = "static_assert(sizeof(when) > 4); __device__ char digit() { return when[18]; }"
    results = [grading.grade(right(grading, after=clock + check)) for _ in range(2)]
    assert results[0]["score"] == results[1]["score"] == 100
