"""The dependencies between folders are as described in CONTRIBUTING.md. In the virtual GPU every folder is above those
that it uses: docs/virtual_gpu_internals.md lists them from the top down.
"""

import re
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
EMULATOR = ROOT / "harness" / "emulator"
INTERFACE = "interface"  # the headers that are in no folder, and the files that belong to them


def layers() -> list[str]:
    """From the bottom up; the table of docs/virtual_gpu_internals.md has the opposite order."""
    text = (ROOT / "docs" / "virtual_gpu_internals.md").read_text(encoding="utf-8")
    names = re.findall(r"^\| `(\w+)/` \|", text, re.MULTILINE)
    return [INTERFACE, *reversed(names)]


def includes(path: Path) -> list[str]:
    return re.findall(r'^#include "emulator/([^"]+)"', path.read_text(encoding="utf-8"), re.MULTILINE)


def layer_of(path: str) -> str:
    folder, slash, _ = path.rpartition("/")
    return folder if slash else INTERFACE


def upward(order: list[str], file: str, included: list[str]) -> list[str]:
    """What a file includes although it is above the file."""
    return [f"{file} includes {name}" for name in included if order.index(layer_of(name)) > order.index(layer_of(file))]


def test_the_page_lists_every_folder() -> None:
    folders = {path.name for path in EMULATOR.iterdir() if path.is_dir()}
    assert set(layers()) - {INTERFACE} == folders
    assert len(layers()) == len(folders) + 1


def test_no_arrow_points_up() -> None:
    order = layers()
    wrong = []
    for path in sorted([*EMULATOR.rglob("*.h"), *EMULATOR.rglob("*.cpp")]):
        wrong += upward(order, str(path.relative_to(EMULATOR)), includes(path))
    assert wrong == []


def test_an_arrow_that_points_up_is_seen() -> None:
    order = layers()
    assert upward(order, "decode/decoder.cpp", ["exec/warp.h"]) == ["decode/decoder.cpp includes exec/warp.h"]
    assert upward(order, "report.h", ["lanes/lane_table.h"]) == ["report.h includes lanes/lane_table.h"]
    assert upward(order, "exec/launch.cpp", ["decode/decoder.h", "exec/warp.h", "report.h"]) == []


def test_the_folders_of_the_harness_use_what_the_table_says() -> None:
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    rows = re.findall(r"^\| `harness/(\w+)/` \|.*\| ([^|]*) \|$", text, re.MULTILINE)
    stated = {folder: set(re.findall(r"`(\w+)/`", uses)) - {"common"} for folder, uses in rows if folder != "tests"}
    harness = ROOT / "harness"
    used: dict[str, set[str]] = {}
    for folder in {path.name for path in harness.iterdir() if path.is_dir()} - {"cmake", "tests"}:
        files = [path for path in (harness / folder).rglob("*") if path.suffix in (".h", ".cpp", ".cu")]
        texts = "\n".join(path.read_text(encoding="utf-8") for path in files)
        names = re.findall(r'^#include "(\w+)/', texts, re.MULTILINE)
        used[folder] = {name for name in names if (harness / name).is_dir()} - {folder}
    assert used == stated
    assert "worker" not in used["app"], "the command line starts workers, and has none of their code"
