"""Kernels are compiled when they are asked for. The harness runs in the build of a small tree of its own."""

import json
import os
import shutil
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
PROJECT = """
cmake_minimum_required(VERSION 3.25)
set(CMAKE_CUDA_ARCHITECTURES 80-virtual)
project(small LANGUAGES CXX CUDA)
find_package(CUDAToolkit REQUIRED)
set(CMAKE_CXX_STANDARD 20)
set(CMAKE_CUDA20_STANDARD_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA20_EXTENSION_COMPILE_OPTION -std=c++20)
set(CMAKE_CUDA_STANDARD 20)
set(CMAKE_POSITION_INDEPENDENT_CODE ON)
add_library(flash_ladder_options INTERFACE)
include(harness/cmake/steady_nvcc.cmake)
add_subdirectory(common)
add_subdirectory(kernels)
"""
NAIVE, BROKEN = "01_naive", "03_broken"


def tool(name: str) -> str:
    """The path of a tool of the build."""
    return (BUILD / "emulate.sh").read_text(encoding="utf-8").split(f"{name}='")[1].split("'")[0]


class Tree:
    """Versions 01 and 02, and 03, which does not compile."""

    def __init__(self, folder: Path) -> None:
        self.folder, self.build = folder, folder / "build"
        (folder / "kernels").mkdir(parents=True)
        self.build.mkdir()
        for name in ("common", "harness", "profiles"):
            (folder / name).symlink_to(ROOT / name)
        (folder / "scripts").mkdir()
        (folder / "scripts/setup").touch()  # the lock
        for name in ("CMakeLists.txt", "01_naive.cu", "02_online_softmax.cu"):
            shutil.copy(ROOT / "kernels" / name, folder / "kernels")
        text = self.kernel("01_naive").read_text(encoding="utf-8").replace("v01", "v03")
        self.kernel(BROKEN).write_text(f"{text}\nint this_is_no_expression = ;\n", encoding="utf-8")
        (folder / "CMakeLists.txt").write_text(PROJECT, encoding="utf-8")
        for program in ("harness", "harness-worker-emulator"):
            shutil.copy(BUILD / program, self.build)
        done = self.configure()
        assert done.returncode == 0, done.stderr

    def configure(self) -> subprocess.CompletedProcess[str]:
        cache = (BUILD / "CMakeCache.txt").read_text(encoding="utf-8")
        cmake = cache.split("CMAKE_COMMAND:INTERNAL=")[1].splitlines()[0]
        ninja = cache.split("CMAKE_MAKE_PROGRAM:FILEPATH=")[1].splitlines()[0]
        options = [f"-DCMAKE_CUDA_COMPILER={tool('nvcc')}", f"-DCMAKE_CXX_COMPILER={tool('host_compiler')}"]
        command = [cmake, "-S", self.folder, "-B", self.build, "-G", "Ninja", f"-DCMAKE_MAKE_PROGRAM={ninja}", *options]
        return subprocess.run(command, capture_output=True, text=True, check=False)

    def kernel(self, name: str) -> Path:
        return self.folder / f"kernels/{name}.cu"

    def module(self, name: str) -> Path:
        return self.build / f"kernels/{name}.so"

    def command(self, *arguments: str) -> list[str]:
        return [str(self.build / "harness"), "--source", str(self.folder), *arguments]

    def __call__(self, *arguments: str) -> subprocess.CompletedProcess[str]:
        return subprocess.run(self.command(*arguments), capture_output=True, text=True, check=False)

    def card(self, kernel: str) -> subprocess.CompletedProcess[str]:
        return self("--kernel", kernel, "--device", "emulator", "--seq-len", "64", "--heads", "1")

    def edit(self, name: str, old: str, new: str) -> None:
        text = self.kernel(name).read_text(encoding="utf-8")
        assert old in text
        self.kernel(name).write_text(text.replace(old, new), encoding="utf-8")


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Tree:
    return Tree(tmp_path_factory.mktemp("tree"))


@pytest.fixture
def kept(tree: Tree) -> Iterator[Tree]:
    """The tree, whose first kernel becomes what it was after the test."""
    text = tree.kernel(NAIVE).read_text(encoding="utf-8")
    yield tree
    tree.kernel(NAIVE).write_text(text, encoding="utf-8")


# These tests run in this order: each leaves the modules that it has built.


def test_a_list_needs_no_compiled_kernel(tree: Tree) -> None:
    outcome = tree("--list")
    assert (outcome.returncode, outcome.stderr) == (0, "")
    rows = [line.split() for line in outcome.stdout.splitlines()]
    assert any(row[:1] == [NAIVE] and "16x16" in row for row in rows)
    assert not list(tree.build.rglob("*.so"))


def test_what_is_not_built_is_said_by_the_worker(tree: Tree) -> None:
    request = {"command": "run", "kernel": "02", "problem": {"batch": 1, "heads": 1, "seq_len": 64, "seq_len_kv": 64,
               "head_dim": 128, "dtype": "fp16"}}  # fmt: skip
    done = subprocess.run(["sh", "-c", 'exec "$0" "$1" 3>&1 1>&2', tree.build / "harness-worker-emulator",
                           json.dumps(request)], capture_output=True, text=True, check=False)  # fmt: skip
    event = json.loads(done.stdout.splitlines()[-1])
    assert event["event"] == "error" and event["kind"] == "unavailable"
    assert "kernels/02_online_softmax.cu is not built" in event["message"]


def test_a_kernel_is_compiled_once_and_alone(tree: Tree) -> None:
    first = tree.card("01")
    assert first.returncode == 0 and "compiling 01_naive" in first.stderr, first.stderr
    assert [file.stem for file in tree.build.rglob("*.so")] == [NAIVE]
    again = tree.card("01")
    assert (again.returncode, again.stderr, again.stdout) == (0, "", first.stdout)


def test_a_kernel_that_does_not_compile_concerns_nobody_else(tree: Tree) -> None:
    outcome = tree.card("03")
    assert outcome.returncode == 3 and outcome.stdout == ""
    assert "kernels/03_broken.cu does not compile" in outcome.stderr and "expected an expression" in outcome.stderr
    assert not tree.module(BROKEN).exists()
    assert tree.card("01").returncode == 0

    outcome = tree("--kernel", "all", "--device", "emulator", "--seq-len", "64", "--heads", "1", "--no-check")
    assert outcome.returncode == 3 and "03_broken is left out" in outcome.stderr
    rows = [line.split() for line in outcome.stdout.splitlines()]
    assert {row[0] for row in rows if row and row[0][:1] == "0"} == {NAIVE, "02_online_softmax"}

    outcome = tree("--list", "--json", "-")
    assert outcome.returncode == 3
    assert [version["kernel"] for version in json.loads(outcome.stdout)["versions"]] == ["01", "02"]


def test_what_is_built_needs_no_build(tree: Tree) -> None:
    hidden = [tree.build / name for name in ("build.ninja", "CMakeCache.txt")]
    for file in hidden:
        file.rename(file.with_suffix(".hidden"))
    outcome = tree.card("01")
    for file in hidden:
        file.with_suffix(".hidden").rename(file)
    assert (outcome.returncode, outcome.stderr) == (0, "")


def test_an_edited_kernel_is_compiled_before_it_runs(kept: Tree) -> None:
    assert kept.card("01").returncode == 0
    kept.edit(NAIVE, "const Registration registration", "// a comment\nconst Registration registration")
    outcome = kept.card("01")
    assert outcome.returncode == 0 and "compiling 01_naive" in outcome.stderr
    kept.edit(NAIVE, "kBlockQ = 16", "kBlockQ = 32")
    outcome = kept.card("01")
    assert "compiling 01_naive" in outcome.stderr and "seq_len" not in outcome.stderr
    kept.edit(NAIVE, "// a comment", "no expression;")
    outcome = kept.card("01")
    assert outcome.returncode == 3 and outcome.stdout == "", "older code does not run in its place"


def test_a_damaged_module_is_built_anew(tree: Tree) -> None:
    assert tree.card("01").returncode == 0
    tree.module(NAIVE).write_bytes(b"not a library")
    outcome = tree.card("01")
    assert outcome.returncode == 0, outcome.stderr


def test_a_kernel_in_the_namespace_of_another(kept: Tree) -> None:
    kept.edit(NAIVE, "v01", "v02")
    outcome = kept.card("01")
    assert outcome.returncode == 3 and "kernels/01_naive.cu" in outcome.stderr
    assert "is not in namespace flash_ladder::v01" in " ".join(outcome.stderr.split())
    assert kept.card("01").returncode == 3, "although nothing has to be compiled"


def test_two_processes_build_at_once(tree: Tree) -> None:
    for name in (NAIVE, "02_online_softmax"):
        tree.module(name).unlink(missing_ok=True)
    both = [subprocess.Popen(tree.command("--kernel", "02", "--sass", "--sm", "80"), stdout=subprocess.DEVNULL,
                             stderr=subprocess.PIPE, text=True) for _ in range(2)]  # fmt: skip
    messages = [one.communicate()[1] for one in both]
    assert [one.returncode for one in both] == [0, 0], messages
    assert sum("compiling" in message for message in messages) == 1


def test_an_interrupted_build_is_taken_up_again(tree: Tree) -> None:
    os.utime(tree.kernel(NAIVE))
    tree.module(NAIVE).unlink(missing_ok=True)
    one = subprocess.Popen(tree.command("--kernel", "01", "--sass"), stdout=subprocess.DEVNULL, stderr=subprocess.PIPE,
                           text=True)  # fmt: skip
    while not list(tree.build.rglob("*.kept")):
        assert one.poll() is None
        time.sleep(0.01)
    one.terminate()
    assert one.wait() == 130
    assert not tree.module(NAIVE).exists()
    outcome = tree.card("01")
    assert outcome.returncode == 0, outcome.stderr


def test_one_number_twice(tree: Tree) -> None:
    shutil.copy(tree.kernel(NAIVE), tree.kernel("01_again"))
    done = tree.configure()
    tree.kernel("01_again").unlink()
    assert done.returncode != 0 and "are both version 01" in " ".join(done.stderr.split())


TRAITS = """
#include "host/registration.h"
struct Traits {
  using Element = __half;
  static constexpr int kBlockQ = %(q)d, kBlockKV = %(kv)d, kHeadDim = 128, kNumWarps = 4;
  static constexpr int kSmemBytes = (kBlockQ + 2 * kBlockKV) * kHeadDim * 2;
};
int main() { flash_ladder::configuration<Traits>("tile", {}); }
"""


@pytest.mark.parametrize(
    ("q", "kv", "words"),
    [
        (64, 64, []),
        (64, 256, []),
        (64, 512, ["kSmemBytes is more shared memory", "278528", "232448", "accumulators of S and O alone", "320"]),
        (64, 384, ["accumulators of S and O alone", "256"]),
        (256, 64, ["accumulators of S and O alone", "384"]),
    ],
)
def test_a_tile_that_no_sm_can_hold(tmp_path: Path, q: int, kv: int, words: list[str]) -> None:
    """The compiler's front end refuses it, with the figures."""
    source = tmp_path / "traits.cpp"
    source.write_text(TRAITS % {"q": q, "kv": kv}, encoding="utf-8")
    nvcc, compiler = tool("nvcc"), tool("host_compiler")
    includes = [f"-I{ROOT / 'common'}", f"-I{Path(nvcc).resolve().parents[1] / 'include'}"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *includes, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(words), done.stderr
    for word in words:
        assert word in done.stderr
