"""The check of the kernel files at the start of the build."""

import os
import shutil
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
CHECK = ROOT / "harness/cmake/check_kernels.py"


def check(folder: Path) -> subprocess.CompletedProcess[str]:
    files = sorted(map(str, folder.rglob("*.cu")))
    return subprocess.run([sys.executable, CHECK, *files], capture_output=True, text=True, check=False)


@pytest.fixture
def kernels(tmp_path: Path) -> Path:
    """The ladder alone, 01 to 16, for tests to put files into."""
    without = shutil.ignore_patterns("hopper", "extensions")
    return Path(shutil.copytree(ROOT / "kernels", tmp_path / "kernels", ignore=without))


def line_of(file: Path, text: str) -> int:
    return next(n for n, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1) if text in line)


def test_all_tracks_are_right() -> None:
    done = check(ROOT / "kernels")
    assert (done.returncode, done.stderr) == (0, "")


def test_a_copy_with_the_old_namespace(kernels: Path) -> None:
    mine = kernels / "17_mine.cu"
    shutil.copy(kernels / "06_swizzle.cu", mine)
    done = check(kernels)
    assert done.returncode == 1
    line = line_of(mine, "namespace flash_ladder::v06")
    assert f"{mine}:{line}: the code is in namespace flash_ladder::v06" in done.stderr
    assert "write flash_ladder::v17 here" in done.stderr

    text = mine.read_text(encoding="utf-8").replace("flash_ladder::v06", "flash_ladder::v17")
    mine.write_text(text, encoding="utf-8")
    assert check(kernels).returncode == 0


@pytest.mark.parametrize("namespace", ["flash_ladder", "v06", "flash_ladder::v18", "flash_ladder::mine"])
def test_other_namespaces_that_are_not_the_files_own(kernels: Path, namespace: str) -> None:
    text = (kernels / "06_swizzle.cu").read_text(encoding="utf-8")
    (kernels / "17_mine.cu").write_text(text.replace("flash_ladder::v06", namespace), encoding="utf-8")
    done = check(kernels)
    assert done.returncode == 1 and f"namespace {namespace}," in done.stderr and "flash_ladder::v17" in done.stderr


def test_no_namespace_at_all(kernels: Path) -> None:
    (kernels / "17_mine.cu").write_text("__global__ void kernel() {}\n", encoding="utf-8")
    done = check(kernels)
    assert done.returncode == 1 and "17_mine.cu:1: the code is not in a namespace of its own" in done.stderr


def test_a_namespace_inside_the_versions_own(kernels: Path) -> None:
    mine = kernels / "17_mine.cu"
    mine.write_text("namespace flash_ladder::v17 {\nnamespace detail {\n}\nnamespace {\n}\n}\n", encoding="utf-8")
    assert check(kernels).returncode == 0


def test_one_number_twice(kernels: Path) -> None:
    text = (kernels / "06_swizzle.cu").read_text(encoding="utf-8").replace("v06", "v17")
    for name in ("17_mine.cu", "17_yours.cu"):
        (kernels / name).write_text(text, encoding="utf-8")
    done = check(kernels)
    assert done.returncode == 1 and "17_yours.cu:1: 17_mine.cu is version 17 already" in done.stderr


def test_other_tracks(kernels: Path) -> None:
    for file, namespace in (("hopper/17_wgmma.cu", "v17"), ("extensions/causal.cu", "causal")):
        path = kernels / file
        path.parent.mkdir()
        path.write_text(f"namespace flash_ladder::{namespace} {{\n}}\n", encoding="utf-8")
    assert check(kernels).returncode == 0
    (kernels / "extensions/causal.cu").write_text("namespace flash_ladder::v16 {\n}\n", encoding="utf-8")
    done = check(kernels)
    assert done.returncode == 1 and "write flash_ladder::causal" in done.stderr


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
    tools = (BUILD / "emulate.sh").read_text(encoding="utf-8")
    nvcc, compiler = (tools.split(f"{name}='")[1].split("'")[0] for name in ("nvcc", "host_compiler"))
    includes = [f"-I{ROOT / 'common'}", f"-I{Path(nvcc).resolve().parents[1] / 'include'}"]
    command = [compiler, "-std=c++20", "-fsyntax-only", *includes, source]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert (done.returncode != 0) == bool(words), done.stderr
    for word in words:
        assert word in done.stderr
