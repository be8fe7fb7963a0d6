"""Ordinary CUDA programs on the virtual GPU, through scripts/emulate. The programs are in emulated/."""

import json
import os
import re
import signal
import subprocess
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
EMULATE = ROOT / "scripts" / "emulate"
PROGRAMS = Path(__file__).parent / "emulated" / "programs.cu"
RING = PROGRAMS.with_name("ring.cu")
EVERYDAY = PROGRAMS.with_name("everyday.cu")
DECOUPLED_RING = PROGRAMS.with_name("decoupled_ring.cu")
HALF_WARPS = PROGRAMS.with_name("half_warps.cu")
ORDERING = PROGRAMS.with_name("ordering.cu")
STREAMS = PROGRAMS.with_name("streams.cu")
HOPPER = PROGRAMS.with_name("hopper.cu")
DEPENDENT = PROGRAMS.with_name("dependent.cu")


def emulate(*arguments: str | Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [EMULATE, *arguments],
        env=os.environ | {"FLASH_LADDER_BUILD_DIR": str(BUILD)},
        capture_output=True,
        text=True,
        check=False,
    )


def built(source: Path, folder: Path, *options: str) -> Path:
    program = folder / source.stem
    done = emulate("--output", program, *options, source)
    assert done.returncode == 0, done.stderr
    return program


@pytest.fixture(scope="module")
def programs(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(PROGRAMS, tmp_path_factory.mktemp("emulate"))


@pytest.fixture(scope="module")
def everyday(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(EVERYDAY, tmp_path_factory.mktemp("emulate"))


@pytest.fixture(scope="module")
def ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(RING, tmp_path_factory.mktemp("emulate"))


@pytest.fixture(scope="module")
def ordering(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(ORDERING, tmp_path_factory.mktemp("emulate"))


@pytest.fixture(scope="module")
def streams(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(STREAMS, tmp_path_factory.mktemp("emulate"), "-std=c++20")


@pytest.fixture(scope="module")
def decoupled_ring(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(DECOUPLED_RING, tmp_path_factory.mktemp("emulate"))


@pytest.fixture(scope="module")
def hopper(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(HOPPER, tmp_path_factory.mktemp("emulate"), "-arch=sm_90a", "-lcuda")


def run(program: Path, *arguments: str, **environment: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [program, *arguments], env=os.environ | environment, capture_output=True, text=True, check=False
    )


def line_of(source: Path, fault: str) -> int:
    """The number of the line that ends in a comment with the name of the fault, perhaps among others."""
    lines = source.read_text(encoding="utf-8").splitlines()
    return next(number for number, line in enumerate(lines, 1) if fault in line.partition("// fault: ")[2].split())


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("correct", "sum 1524, expected 1524, 1 launch\n"),
        ("tiles", "192 of 192 are right\n"),
        ("local_arrays", "31 32\n"),
        ("managed", "3 189\n"),
        ("device_printf", "thread 0 of 3\nthread 1 of 3\nthread 2 of 3\n"),
        ("properties", "virtual GPU (sm_90), 9.0, 232448 bytes of shared memory, 8 blocks per SM\n"),
    ],
)
def test_correct_programs(programs: Path, name: str, output: str) -> None:
    done = run(programs, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


@pytest.mark.parametrize("sm", ["80", "86", "89", "90"])
def test_registers_are_known(programs: Path, sm: str) -> None:
    assert run(programs, "registers", FLASH_LADDER_SM=sm).stdout == "known\n"


@pytest.mark.parametrize("name", ["device_functions", "function_pointers"])
def test_device_functions(programs: Path, name: str) -> None:
    done = run(programs, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, "0 wrong\n", "")


def test_a_call_through_a_null_pointer(programs: Path) -> None:
    done = run(programs, "call_of_nothing")
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "cudaErrorIllegalInstruction")
    assert "invalid_operation: a call of 0x0, the null pointer\n" in done.stderr
    assert f"programs.cu:{line_of(PROGRAMS, 'call_of_nothing')}\n" in done.stderr


def test_a_debug_build(tmp_path: Path) -> None:
    program = tmp_path / "programs"
    done = emulate("--output", program, "-G", PROGRAMS)
    assert done.returncode == 0, done.stderr
    for name, output in [
        ("correct", "sum 1524, expected 1524, 1 launch\n"),
        ("device_printf", "thread 0 of 3\nthread 1 of 3\nthread 2 of 3\n"),
        ("device_functions", "0 wrong\n"),
        ("local_arrays", "31 32\n"),
    ]:
        done = run(program, name)
        assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    done = run(program, "into_the_next_local_array")
    assert "at most 32 bytes: byte 0 of the local" in done.stderr
    assert f"programs.cu:{line_of(PROGRAMS, 'into_the_next_local_array')}" in done.stderr


def test_the_program_of_the_readme(tmp_path: Path) -> None:
    """The output is the one in the README, except for the PTX, which depends on nvcc, and the suggested fix works."""
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    section = readme[readme.index("## Find a race without a GPU") :]
    source = re.search(r"```cpp\n(.*?)```", section, re.DOTALL)
    shown = re.search(r"```\n\$ [^\n]*\n(.*?)```", section, re.DOTALL)
    assert source and shown
    (tmp_path / "sum.cu").write_text(source[1], encoding="utf-8")
    done = emulate(tmp_path / "sum.cu")
    assert done.returncode == 1
    printed, wanted = (re.sub(r"PTX line .*", "PTX line", text) for text in (done.stdout + done.stderr, shown[1]))
    assert [line for line in printed.splitlines() if line] == [line for line in wanted.splitlines() if line]
    loop = "    if (i < half) partial[i] += partial[i + half];"
    assert source[1].count(loop) == 1
    (tmp_path / "sum.cu").write_text(source[1].replace(loop, f"{loop} __syncthreads();"), encoding="utf-8")
    mended = emulate(tmp_path / "sum.cu")
    assert (mended.returncode, mended.stdout, mended.stderr) == (0, "256, and 256 is right\n", "")


@pytest.mark.parametrize(
    ("name", "output", "kind"),
    [
        ("product", "0 wrong\n", "in_flight"),
        ("not_met", "1000 1060 1124\n", "race"),
        ("left_early", "1000 1060 1124\n", "in_flight"),
        ("histogram", "4 4 0\n", "race"),
    ],
)
@pytest.mark.parametrize("when", ["late", "early"])
def test_programs_for_hopper(hopper: Path, name: str, output: str, kind: str, when: str) -> None:
    """With TMA, wgmma and clusters: built with -arch=sm_90a, as for a GPU."""
    done = run(hopper, name, "right", FLASH_LADDER_ASYNC=when)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")
    done = run(hopper, name, "wrong", FLASH_LADDER_ASYNC=when)
    assert done.returncode == 1
    assert re.search(rf"^{kind}: ", done.stderr, re.MULTILINE), done.stderr
    assert f"hopper.cu:{line_of(HOPPER, name)}" in done.stderr


def test_large_clusters(tmp_path: Path) -> None:
    """More than 8 blocks are available on request, as on a GPU."""
    source = tmp_path / "clusters.cu"
    source.write_text(
        r"""
#include <cstdio>
__global__ void f() {}
__global__ void __cluster_dims__(4) g() {}
int main() {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeClusterDimension;
  cudaLaunchConfig_t config{};
  config.gridDim = 32;
  config.blockDim = 1024;
  config.attrs = &attribute;
  config.numAttrs = 1;
  const auto launch = [&](unsigned blocks) {
    attribute.val.clusterDim = {blocks, 1, 1};
    std::printf("%s ", cudaGetErrorName(cudaLaunchKernelEx(&config, f)));
  };
  const auto most = [&](auto* kernel) {
    int size = 0, clusters = 0;
    cudaOccupancyMaxPotentialClusterSize(&size, kernel, &config);
    attribute.val.clusterDim.x = size;
    cudaOccupancyMaxActiveClusters(&clusters, kernel, &config);
    std::printf("%d: %d\n", size, clusters);
  };
  launch(16);
  most(f);
  cudaFuncSetAttribute(f, cudaFuncAttributeNonPortableClusterSizeAllowed, 1);
  launch(16);
  most(f);
  launch(32);
  most(g);
}
""",
        encoding="utf-8",
    )
    done = emulate("-arch=sm_90", "--sm-count", "32", source)
    assert done.stdout == (
        "cudaErrorInvalidClusterSize 8: 8\ncudaSuccess 16: 4\ncudaErrorInvalidClusterSize 4: 16\n"
    ), done.stderr
    message = "^launch_limits: clusters of 16 blocks: .*NonPortableClusterSizeAllowed, 1"
    assert re.search(message, done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize(
    ("options", "architecture"),
    [
        (["-arch", "sm_90a"], 900),
        (["--gpu-architecture=sm_90"], 900),
        (["-gencode=arch=compute_75,code=sm_75"], 800),
    ],
)
def test_the_architecture_that_is_asked_for(tmp_path: Path, options: list[str], architecture: int) -> None:
    source = tmp_path / "program.cu"
    source.write_text(
        "#include <cstdio>\n__global__ void f() {\n#ifdef __CUDA_ARCH__\n"
        "  printf(\"%d\\n\", __CUDA_ARCH__);\n#endif\n}\n"
        "int main() { f<<<1, 1>>>(); cudaDeviceSynchronize(); }\n",
        encoding="utf-8",
    )
    assert emulate(*options, source).stdout == f"{architecture}\n"


def test_a_mistake_in_a_called_function_names_the_call(programs: Path) -> None:
    done = run(programs, "callee_out_of_bounds")
    assert done.returncode == 1
    callee, call = (line_of(PROGRAMS, f"callee_out_of_bounds{name}") for name in ["", "_call"])
    assert f"at programs.cu:{callee}, called from programs.cu:{call}\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "kernel", "why", "output"),
    [
        ("recursion", "call_recursively(int*)", "recursive functions; .*fibonacci", "cudaErrorInvalidPtx\n"),
        ("recursion_in_c", "f", "recursive functions; .*fibonacci", ""),
    ],
)
def test_kernels_that_cannot_be_run(programs: Path, name: str, kernel: str, why: str, output: str) -> None:
    done = run(programs, name)
    assert (done.returncode, done.stdout) == (1, output)
    (line,) = done.stderr.splitlines()
    assert re.search(rf"kernel {re.escape(kernel)} .*: PTX line \d+ \(programs.cu:\d+.*\): .*{why}", line)


def test_the_programs_own_exit_code(programs: Path) -> None:
    assert run(programs, "own_code").returncode == 7


@pytest.mark.parametrize(
    ("name", "kind", "output"),
    [
        ("out_of_bounds", "out_of_bounds", "cudaErrorIllegalAddress: an illegal memory access was encountered\n"),
        ("missing_syncthreads", "race", ""),
        ("uninitialised_shared", "uninitialised_read", ""),
        ("uninitialised_global", "uninitialised_read", ""),
        ("divergent_barrier", "divergent_barrier", ""),
        ("misaligned", "misaligned", "cudaErrorMisalignedAddress: misaligned address\n"),
        (
            "into_the_next_local_array",
            "out_of_bounds",
            "cudaErrorIllegalAddress: an illegal memory access was encountered\n",
        ),
        ("endless_loop", "endless_loop", "cudaErrorLaunchTimeout: the launch timed out and was terminated\n"),
    ],
)
def test_mistakes_of_kernels(programs: Path, name: str, kind: str, output: str) -> None:
    done = run(programs, name, FLASH_LADDER_MAX_INSTRUCTIONS="100000")
    assert done.returncode == 1
    assert done.stdout == output
    assert re.search(rf"^{kind}: ", done.stderr, re.MULTILINE), done.stderr
    assert f"programs.cu:{line_of(PROGRAMS, name)}" in done.stderr
    assert re.search(r"^  kernel \w+, block \(0, 0, 0\)", done.stderr, re.MULTILINE)


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("too_much_shared_memory", "cudaFuncAttributeMaxDynamicSharedMemorySize, 60000"),
        ("copy_too_long", "cudaMemcpy: a copy of 256 bytes"),
        ("copy_the_wrong_way", "destination, source, size, kind"),
        ("freed_twice", "freed before"),
    ],
)
def test_mistakes_of_the_host(programs: Path, name: str, message: str) -> None:
    done = run(programs, name)
    assert done.returncode == 1
    assert "1 kind of mistake found" in done.stderr and message in done.stderr
    assert "block (" not in done.stderr
    assert ("kernel write_one_too_far\n" in done.stderr) == (name == "too_much_shared_memory")


def test_an_error_in_a_kernel_sticks(programs: Path) -> None:
    done = run(programs, "sticky_error")
    assert done.stdout == ", ".join(["cudaErrorIllegalAddress"] * 3) + "\n"


def test_ten_findings_are_printed_and_the_rest_counted(programs: Path) -> None:
    done = run(programs, "twelve_mistakes")
    assert "12 kinds of mistake found" in done.stderr
    assert done.stderr.count("out_of_bounds: ") == 10
    assert done.stderr.endswith("… and 2 more\n")


def test_mistakes_are_counted_that_are_too_many_to_keep(tmp_path: Path) -> None:
    source = tmp_path / "many.cu"
    reads = "\n".join(f"  x[{i}] = shared[threadIdx.x + {i} * step];" for i in range(150))
    source.write_text(
        f"""
__global__ void many(int* x, int step) {{
  __shared__ int shared[512];
{reads}
}}
int main() {{
  int* x;
  cudaMalloc(&x, 1024);
  for (int launch = 0; launch < 2; ++launch) many<<<1, 32>>>(x, 1);
  cudaDeviceSynchronize();
}}
""",
        encoding="utf-8",
    )
    done = run(built(source, tmp_path))
    assert " 150 kinds " in done.stderr
    assert done.stderr.count("uninitialised_read: ") == 10 and done.stderr.count("64 times") == 10
    assert done.stderr.endswith("… and 140 more\n")


@pytest.mark.parametrize(
    ("name", "output"),
    [
        ("cooperative", "0 wrong\n"),
        ("tiles_of_warps", "0 wrong\n"),
        ("later_blocks", "40\n"),
        ("lock_of_every_lane", "192\n"),
        ("sleepers", "2\n"),
        ("graph_of_kernels", "0 24\n"),
        ("virtual_functions", "area 8385, expected 8385\n"),
        ("heap", "280\n"),
    ],
)
def test_everyday_programs(everyday: Path, name: str, output: str) -> None:
    done = run(everyday, name)
    assert (done.returncode, done.stdout, done.stderr) == (0, output, "")


def test_warps_of_a_tile_that_do_not_wait(everyday: Path) -> None:
    done = run(everyday, "tiles_that_do_not_wait")
    assert done.returncode == 1
    assert re.search("^race: ", done.stderr, re.MULTILINE), done.stderr
    assert f"everyday.cu:{line_of(EVERYDAY, 'tiles_that_do_not_wait')}" in done.stderr


def test_times_are_the_hosts_and_say_so_once(everyday: Path) -> None:
    done = run(everyday, "elapsed_time")
    assert (done.returncode, done.stdout) == (0, "some time\nsome time\n")
    (line,) = done.stderr.splitlines()
    assert "nothing about the time on a GPU" in line


def test_an_assertion_that_fails(everyday: Path) -> None:
    done = run(everyday, "assertion")
    assert (done.returncode, done.stdout) == (1, "cudaErrorAssert: device-side assert triggered\n")
    line = line_of(EVERYDAY, "assertion")
    assert re.search(
        rf"^assertion: .*everyday.cu:{line}: .* `threadIdx.x < limit` .* \(40, 0, 0\)$",
        done.stderr,
        re.MULTILINE,
    )
    assert "1 kind of mistake" in done.stderr


@pytest.mark.parametrize(
    ("name", "message"),
    [
        ("nobody_writes", "waits for at byte 0 of .*; 1 other block"),
        ("waits_for_the_host", "; 1 other block .* the host waits"),
        ("lock_never_released", "no thread releases it"),
        ("blocks_too_many", "no more fit on the GPU"),
    ],
)
def test_waiting_in_vain(everyday: Path, name: str, message: str) -> None:
    done = run(everyday, name)
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "cudaErrorLaunchTimeout")
    assert re.search(rf"^endless_loop: .*{message}", done.stderr, re.MULTILINE), done.stderr
    assert "1 kind of mistake" in done.stderr
    assert f"everyday.cu:{line_of(EVERYDAY, name)}\n" in done.stderr


@pytest.mark.parametrize(
    ("name", "kind", "message"),
    [
        ("heap_overflow", "out_of_bounds", "0 bytes after .* of 64 bytes by malloc"),
        ("uninitialised_heap", "uninitialised_read", "of 64 bytes by malloc in a kernel"),
        ("use_after_free", "use_after_free", "byte 12 of the freed allocation of 64 bytes"),
        ("freed_twice", "use_after_free", "which was freed before"),
        ("freed_not_its_own", "invalid_operation", "it is byte 0 of the allocation"),
        ("full_heap", "out_of_bounds", "the null pointer. .* the 8388608 bytes"),
        ("groups_in_groups", "invalid_operation", r"Group::area\(\) const: .* is being called already"),
    ],
)
def test_mistakes_with_the_heap_of_kernels(everyday: Path, name: str, kind: str, message: str) -> None:
    done = run(everyday, name)
    assert done.returncode == 1
    assert re.search(rf"^{kind}: .*{message}", done.stderr, re.MULTILINE), done.stderr
    assert "1 kind of mistake" in done.stderr
    assert f"everyday.cu:{line_of(EVERYDAY, name)}" in done.stderr


def test_the_host_has_no_access_to_the_heap_of_kernels(everyday: Path) -> None:
    done = run(everyday, "heap_of_the_host")
    assert (done.returncode, done.stdout) == (1, "1048576\ncudaErrorInvalidValue: invalid argument\n")
    assert "the host has no access" in done.stderr


def test_a_cooperative_launch_that_does_not_fit(everyday: Path) -> None:
    done = run(everyday, "cooperative_too_large")
    assert (done.returncode, done.stdout) == (1, "cudaErrorCooperativeLaunchTooLarge\n")
    assert re.search(r"100000 blocks: .* room for \d+ of", done.stderr)


def test_arguments_that_are_null(everyday: Path) -> None:
    done = run(everyday, "null_argument")
    assert (done.returncode, done.stdout) == (1, "cudaErrorInvalidValue\n" * 2)
    assert "argument 0 of 1 is null" in done.stderr


def test_a_block_has_a_budget(programs: Path) -> None:
    done = run(programs, "correct", FLASH_LADDER_MAX_INSTRUCTIONS="10")
    assert done.returncode != 0
    message = "the block has executed 10 warp instructions .*not endless but long.*FLASH_LADDER_MAX_INSTRUCTIONS=N"
    assert re.search(f"^endless_loop: {message}", done.stderr, re.MULTILINE), done.stderr


def test_a_launch_has_a_budget(everyday: Path) -> None:
    done = run(everyday, "large_grid", FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS="20000")
    assert (done.returncode, done.stdout.split(":")[0]) == (1, "cudaErrorLaunchTimeout")
    assert "launch_limits: the launch has executed 20000 warp instructions" in done.stderr
    assert "FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS=N" in done.stderr


def test_an_interruption_prints_what_was_found(everyday: Path) -> None:
    done = run(everyday, "interrupted", FLASH_LADDER_MAX_INSTRUCTIONS="1000000000000")
    assert done.returncode == -signal.SIGINT
    assert "virtual GPU: interrupted" in done.stderr and " 1 kind " in done.stderr
    assert f"everyday.cu:{line_of(EVERYDAY, 'interrupted')}\n" in done.stderr


# As for a job that a time limit ends.
def test_a_signal_to_the_script_ends_the_program(tmp_path: Path) -> None:
    program = tmp_path / "waits.cu"
    program.write_text(
        """
#include <unistd.h>
int main() {
  write(STDOUT_FILENO, "here\\n", 5);
  for (;;) pause();
}
""",
        encoding="utf-8",
    )
    environment = os.environ | {"FLASH_LADDER_BUILD_DIR": str(BUILD)}
    script = subprocess.Popen(
        [EMULATE, program], env=environment, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True
    )
    assert script.stdout is not None and script.stdout.readline() == "here\n"
    script.terminate()
    _, errors = script.communicate()  # which waits for every process that could still write
    assert script.returncode == -signal.SIGTERM and "virtual GPU: interrupted" in errors


def test_a_source_file_whose_name_is_not_ascii(tmp_path: Path) -> None:
    folder = tmp_path / "für uns"
    folder.mkdir()
    program = folder / "größe.cu"
    program.write_text(
        """
__global__ void beyond(int* x) { x[threadIdx.x] = 1; }
int main() {
  int* x;
  cudaMalloc(&x, 64);
  beyond<<<1, 32>>>(x);
  return cudaDeviceSynchronize();
}
""",
        encoding="utf-8",
    )
    assert "  at größe.cu:2\n" in emulate(program).stderr
    file = tmp_path / "counts.json"
    emulate("--count-json", file, program)
    (kernel,) = json.loads(file.read_text(encoding="utf-8"))["kernels"]
    assert [f"{program}:2"] in [line["position"] for line in kernel["lines"]]


def test_a_program_of_several_files(tmp_path: Path) -> None:
    main, more, host = tmp_path / "main.cu", tmp_path / "more.cu", tmp_path / "host.cpp"
    main.write_text(
        "#include <cstdio>\n#include <cstring>\nint on_device(); int on_host();\n"
        "int main(int argc, char** argv) {\n"
        '  std::printf("%d %d %ld %s\\n", on_device(), on_host(), __cplusplus, argc > 1 ? argv[1] : "-");\n}\n',
        encoding="utf-8",
    )
    more.write_text(
        "__global__ void write(int* x) { *x = 5; }\n"
        "int on_device() { int* x; int y; cudaMalloc(&x, 4); write<<<1, 1>>>(x);\n"
        "  cudaMemcpy(&y, x, 4, cudaMemcpyDeviceToHost); return y; }\n",
        encoding="utf-8",
    )
    host.write_text(
        '#include <dlfcn.h>\nint on_host() { return dlopen("no such library", RTLD_NOW) == nullptr ? 6 : 0; }\n',
        encoding="utf-8",
    )
    done = emulate("-std", "c++20", "-arch=sm_70", "-lcudart", "-l", "dl", main, more, host, "argument")
    assert (done.returncode, done.stdout) == (0, "5 6 202002 argument\n"), done.stderr
    done = emulate(main, more, host, "--", more)
    assert (done.returncode, done.stdout) == (0, f"5 6 201703 {more}\n"), done.stderr


@pytest.mark.parametrize(
    ("source", "message"),
    [
        ('extern "C" int cublasCreate_v2(void*);\nint main() { return cublasCreate_v2(nullptr); }', "needs cublas"),
        ("#include <nccl_that_is_not_here.h>\nint main() {}", "needs nccl"),
        ('extern "C" int cuInit(unsigned);\nint main() { return cuInit(0); }', "driver API"),
        ("__global__ void f() {}\n__global__ void g() { f<<<1, 1>>>(); }\nint main() {}", "dynamic parallelism"),
        ("__device__ int f(int);\n__global__ void g(int* x) { *x = f(1); }\nint main() {}", "does not link device"),
    ],
)
def test_what_cannot_be_built_says_why(tmp_path: Path, source: str, message: str) -> None:
    program = tmp_path / "program.cu"
    program.write_text(source + "\n", encoding="utf-8")
    done = emulate(program)
    assert done.returncode == 2
    assert re.search(rf"^emulate: .*{message}", done.stderr, re.MULTILINE), done.stderr


@pytest.mark.parametrize("option", ["-rdc=true", "--relocatable-device-code=true", "-rdc true"])
def test_relocatable_code_that_needs_no_linking(tmp_path: Path, option: str) -> None:
    program = tmp_path / "program.cu"
    program.write_text("int main() {}\n", encoding="utf-8")
    done = emulate(*option.split(), program)
    assert (done.returncode, done.stderr) == (0, "")


def test_relocatable_code_is_refused(tmp_path: Path) -> None:
    program = tmp_path / "program.cu"
    program.write_text(
        "extern __device__ int elsewhere();\n__global__ void kernel(int* x) { *x = elsewhere(); }\nint main() {}\n",
        encoding="utf-8",
    )
    for options in (["-rdc=true"], ["-dc"]):
        done = emulate(*options, program)
        assert done.returncode == 2 and "does not link device code" in done.stderr


@pytest.mark.parametrize("option", ["-Xcompiler -fopenmp", "-Xcompiler=-fopenmp,-O1", "--compiler-options -fopenmp"])
def test_options_for_the_host_compiler(tmp_path: Path, option: str) -> None:
    program = tmp_path / "parallel.cu"
    program.write_text(
        """
int main() {
  int sum = 0;
#pragma omp parallel for reduction(+ : sum)
  for (int i = 0; i < 10; ++i) sum += i;
  return sum;
}
""",
        encoding="utf-8",
    )
    assert emulate(*option.split(), program).returncode == 45


# C++20 has its own lerp.
def test_the_standard_is_the_one_of_nvcc(tmp_path: Path) -> None:
    program = tmp_path / "lerp.cu"
    program.write_text(
        """
#include <cmath>
__host__ __device__ inline float lerp(float a, float b, float t) { return a + t * (b - a); }
__global__ void kernel(float* x) { *x = lerp(1.0f, 3.0f, 0.5f); }
int main() {
  float* x;
  cudaMallocManaged(&x, sizeof *x);
  kernel<<<1, 1>>>(x);
  return cudaDeviceSynchronize() == cudaSuccess ? static_cast<int>(*x) : -1;
}
""",
        encoding="utf-8",
    )
    done = emulate(program)
    assert (done.returncode, done.stderr) == (2, ""), "the value of x"
    assert "overloaded function" in emulate("-std=c++20", program).stderr


def test_what_is_not_there_says_so(programs: Path) -> None:
    done = run(programs, "graph")
    assert done.returncode == 3
    assert done.stdout == "cudaErrorNotSupported: operation not supported\n"
    assert "cudaGraphAddEmptyNode" in done.stderr


def test_the_host_touches_device_memory(programs: Path) -> None:
    done = run(programs, "host_touches_device_memory")
    assert done.returncode < 0
    assert "copy it with cudaMemcpy" in done.stderr


def test_arguments_and_options_of_the_script(tmp_path: Path) -> None:
    program = tmp_path / "arguments.cu"
    program.write_text(
        r"""
#include <cstdio>
int main(int argc, char** argv) {
  cudaDeviceProp device;
  cudaGetDeviceProperties(&device, 0);
  for (int i = 1; i < argc; ++i) std::printf("%s ", argv[i]);
  std::printf("%d %s %d\n", VALUE, device.name, device.multiProcessorCount);
  return 5;
}
""",
        encoding="utf-8",
    )
    done = emulate("--sm", "sm_90", "--sm-count", "3", "-DVALUE=42", program, "--sm", "two words")
    assert (done.returncode, done.stdout) == (5, "--sm two words 42 virtual GPU (sm_90) 3\n"), done.stderr


@pytest.mark.parametrize(
    "options",
    [
        "-maxrregcount 64 -O 3 -x cu -t 2 -rdc false",
        "--default-stream legacy --define-macro OTHER=1 --ftz true",
        "-lineinfo -l cublas -Xlinker --as-needed",
    ],
)
def test_options_whose_value_is_a_word_of_its_own(tmp_path: Path, options: str) -> None:
    program = tmp_path / "options.cu"
    program.write_text("int main(int argc, char**) { return argc; }\n", encoding="utf-8")
    done = emulate(*options.split(), program, "of", "the", "program")
    assert (done.returncode, done.stderr) == (4, "")


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ([], "scripts/emulate prog.cu"),
        (["no-such.cu"], "there is no file 'no-such.cu'"),
        (["--sm"], "scripts/emulate prog.cu"),
        (["-o", "/no-such-folder/program", "prog.cu"], "cannot write to '/no-such-folder/program'"),
        (["--count-json", "/", "prog.cu"], "cannot write to '/'"),
    ],
)
def test_bad_usage(arguments: list[str], message: str) -> None:
    done = emulate(*arguments)
    assert done.returncode == 2 and message in done.stderr


def test_help() -> None:
    done = emulate("--help")
    assert done.returncode == 0 and "scripts/emulate --output PROG" in done.stdout and done.stderr == ""
    assert done.stdout.rstrip().endswith("the program's own status."), "and not in a line of the script"


def test_a_program_that_does_not_compile(tmp_path: Path) -> None:
    program = tmp_path / "broken.cu"
    program.write_text("int main() { return x; }\n", encoding="utf-8")
    done = emulate(program)
    assert done.returncode == 2 and '"x" is undefined' in done.stderr


def test_a_setting_that_is_no_number(programs: Path) -> None:
    done = run(programs, "own_code", FLASH_LADDER_SM="eighty")
    assert done.returncode == 2 and "FLASH_LADDER_SM=eighty" in done.stderr
    done = run(programs, "own_code", FLASH_LADDER_SM="75")
    assert done.returncode == 2 and "75" in done.stderr
    for count in ("0", "-1", "two", "2.5", "3 "):
        done = run(programs, "own_code", FLASH_LADDER_SM_COUNT=count)
        assert done.returncode == 2 and f"FLASH_LADDER_SM_COUNT={count} is not a number above 0" in done.stderr


@pytest.mark.parametrize("tiles", [1, 3, 6, 7, 100])
def test_a_ring_on_mbarriers(ring: Path, tiles: int) -> None:
    done = run(ring, "0", str(tiles))
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("1", "race"),  # a stage is filled again before it was read
        ("2", "race"),  # a stage is declared full while its copies are still in flight
        ("3", "uninitialised_read"),  # a stage is read before it is full
        ("4", "deadlock"),  # a stage is never declared empty
    ],
)
def test_faults_in_a_ring_on_mbarriers(ring: Path, fault: str, kind: str) -> None:
    done = run(ring, fault)
    assert done.returncode == 1
    assert re.search(rf"^{kind}: ", done.stderr, re.MULTILINE), done.stderr
    assert f"ring.cu:{line_of(RING, fault)}" in done.stderr


def test_halves_of_a_warp_that_poll_each_others_mbarriers_make_progress(tmp_path: Path) -> None:
    program = built(HALF_WARPS, tmp_path)
    done = run(program, "0")
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")

    done = run(program, "1")
    assert done.returncode == 1
    assert re.search(r"^deadlock: .*waits for phase 0 .*half_warps", done.stderr, re.MULTILINE | re.DOTALL), done.stderr


@pytest.fixture(scope="module")
def dependent(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return built(DEPENDENT, tmp_path_factory.mktemp("emulate"), "-arch=sm_90a")


@pytest.mark.parametrize("case", ["waits", "ordinary", "memset", "graph_memset"])
def test_a_dependent_launch_that_is_ordered(dependent: Path, case: str) -> None:
    done = run(dependent, case)
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.parametrize(("case", "fault"), [("reads", "reads"), ("overwrites", "overwrites"), ("graph", "reads")])
def test_a_dependent_launch_that_does_not_wait(dependent: Path, case: str, fault: str) -> None:
    done = run(dependent, case)
    assert done.returncode == 1
    assert re.search(r"^race: .*griddepcontrol\.wait", done.stderr, re.MULTILINE), done.stderr
    assert f"dependent.cu:{line_of(DEPENDENT, fault)}" in done.stderr


@pytest.mark.parametrize("tiles", [0, 1, 2, 3, 8, 101])
def test_warps_decoupled_by_a_ring(decoupled_ring: Path, tiles: int) -> None:
    done = run(decoupled_ring, "0", str(tiles))
    assert (done.returncode, done.stdout, done.stderr) == (0, "right\n", "")


@pytest.mark.parametrize(
    ("fault", "kind"),
    [
        ("1", "race"),  # a stage is filled again before all warps have read it
        ("2", "race"),  # threads arrive without waiting for their copies
        ("3", "race"),  # a stage is read before it is full
        ("4", "deadlock"),  # one warp never declares a stage empty
        ("5", "race"),  # the lane that arrives for its warp has not waited for the others
        ("6", "race"),  # a stage counts as full one arrival too early
        ("7", "deadlock"),  # the wait is for the same phase each time round
    ],
)
def test_faults_in_warps_decoupled_by_a_ring(decoupled_ring: Path, fault: str, kind: str) -> None:
    done = run(decoupled_ring, fault)
    assert done.returncode == 1
    assert re.search(rf"^{kind}: ", done.stderr, re.MULTILINE), done.stderr
    assert f"decoupled_ring.cu:{line_of(DECOUPLED_RING, fault)}" in done.stderr


def faults_of(source: Path) -> list[str]:
    return sorted(set(re.findall(r"// fault: (\w+)$", source.read_text(encoding="utf-8"), re.MULTILINE)))


@pytest.mark.parametrize("name", faults_of(ORDERING))
def test_what_orders_threads(ordering: Path, name: str) -> None:
    done = run(ordering, name, "right")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(ordering, name, "wrong")
    assert done.returncode == 1
    assert re.search("^race: ", done.stderr, re.MULTILINE), done.stderr
    assert f"ordering.cu:{line_of(ORDERING, name)}" in done.stderr


def test_what_is_found_does_not_depend_on_the_number_of_threads(ordering: Path) -> None:
    for name in ("block_counter", "shift_of_blocks", "same_output"):
        found = {run(ordering, name, "wrong", FLASH_LADDER_THREADS=threads).stderr for threads in ("1", "2", "5")}
        assert len(found) == 1
        # With three blocks either the read and the write, or 64 writes: regardless of what another one has written
        # meanwhile.
        times = {"block_counter": "  6 times\n", "same_output": "  192 times\n"}
        assert times.get(name, "") in found.pop()


@pytest.mark.parametrize("name", faults_of(STREAMS))
def test_what_orders_streams(streams: Path, name: str) -> None:
    done = run(streams, name, "right")
    assert (done.returncode, done.stderr) == (0, "")
    done = run(streams, name, "wrong")
    assert done.returncode == 1
    assert re.search("^race: ", done.stderr, re.MULTILINE), done.stderr
    assert f"  at streams.cu:{line_of(STREAMS, name)}\n" in done.stderr


def test_counters_of_any_program(tmp_path: Path) -> None:
    source = tmp_path / "columns.cu"
    source.write_text(
        """
__global__ void columns(const float* x, float* y) {
  __shared__ float tile[32][32];
  tile[threadIdx.x][0] = x[32 * threadIdx.x];
  __syncwarp();
  if (threadIdx.x < 16) y[threadIdx.x] = tile[0][0];
}
int main() {
  float *x, *y;
  cudaMalloc(&x, 4096);
  cudaMalloc(&y, 4096);
  cudaMemset(x, 0, 4096);
  for (int i = 0; i < 2; ++i) columns<<<1, 32>>>(x, y);
  return cudaDeviceSynchronize();
}
""",
        encoding="utf-8",
    )
    done = emulate("--count", source)
    assert done.returncode == 0, done.stderr
    assert re.search(r"^virtual GPU: columns\(float const\*, float\*\), 2 launches$", done.stderr, re.MULTILINE)
    # A word per lane, 128 bytes apart: as many sectors and wavefronts as there are lanes, when 4 and 1 would be enough.
    assert "read 256 bytes in 64 sectors, 8.00x the ideal" in done.stderr
    assert "written 256 bytes in 64 wavefronts, 32.00x the ideal" in done.stderr
    assert re.search(r"64  32.00x +64   8.00x  columns.cu:4  tile\[threadIdx.x\]\[0\]", done.stderr), done.stderr
    full = ["bash", "-c", 'exec "$@" 2>/dev/full', "bash", str(EMULATE), "--count", str(source)]
    assert subprocess.run(full, capture_output=True).returncode == 0  # it was not aborted
    file = tmp_path / "counts.json"
    done = emulate("--count-json", file, source)
    assert (done.returncode, done.stderr) == (0, "")
    (kernel,) = json.loads(file.read_text(encoding="utf-8"))["kernels"]
    assert kernel["kernel"] == "columns(float const*, float*)" and kernel["launches"] == 2
    assert kernel["counters"]["global_load_sectors"] == 64 and kernel["counters"]["global_load_ideal_sectors"] == 8
    lines = {line["position"][0]: line["counters"] for line in kernel["lines"] if line["position"]}
    assert lines[f"{source}:4"]["shared_store_wavefronts"] == 64


@pytest.mark.parametrize("writes", ["table[0]", "elsewhere"])
def test_a_write_to_constant_memory(tmp_path: Path, writes: str) -> None:
    source = tmp_path / "constant.cu"
    source.write_text(
        f"""
__constant__ int table[4];
__device__ int* where;
__global__ void find() {{ where = const_cast<int*>(&table[0]); }}
__global__ void write() {{
  int& elsewhere = *where;
  const_cast<int&>({writes}) = 5;
}}
int main() {{
  find<<<1, 1>>>();
  write<<<1, 1>>>();
  cudaDeviceSynchronize();
}}
""",
        encoding="utf-8",
    )
    done = emulate(source)
    assert done.returncode == 1
    assert "__constant__" in done.stderr.partition("kind of mistake")[2]
    assert "constant.cu:7" in done.stderr or writes == "table[0]"  # nvcc leaves only a trap there


def test_every_function_of_cuda_has_an_answer() -> None:
    """Whether implemented or not, everything that the toolkit's header declares can be linked."""
    settings = (BUILD / "emulate.sh").read_text(encoding="utf-8")
    library = re.search(r"'([^']*libflash_ladder_virtual_runtime.a)'", settings)[1]
    nvcc = Path(re.search(r"nvcc='([^']*)'", settings)[1]).resolve()
    symbols = subprocess.run(
        ["nm", "--defined-only", "--extern-only", library], capture_output=True, text=True, check=True
    ).stdout
    defined = {line.split()[-1] for line in symbols.splitlines() if " T " in line}
    header = next(nvcc.parents[1].glob("**/include/cuda_runtime_api.h"))
    declared = set(re.findall(r"CUDARTAPI\s+(cuda\w+)\s*\(", header.read_text(encoding="utf-8")))
    assert len(declared) > 200 and declared - defined == set()
