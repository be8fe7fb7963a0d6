"""The dependencies between folders are as described in CONTRIBUTING.md. In the virtual GPU every folder is above those
that it uses: docs/virtual_gpu_internals.md lists them from the top down, and CONTRIBUTING.md those of the command line.
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


APP = ROOT / "harness" / "app"
COMMAND_LINE = "main.cpp and what belongs to it"  # the files that are in no folder, above all others


def app_folders() -> dict[str, bool]:
    """From the top down; whether the folder is a command's, which a flag asks for."""
    text = (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8")
    table = text.split("\n| folder | asked for by | contents |\n")[1].split("\n\n")[0]
    rows = re.findall(r"^\| `(\w+)/` \| ([^|]*) \|", table, re.MULTILINE)
    return {COMMAND_LINE: False, **{folder: "--" in flags for folder, flags in rows}}


def wrong_in_app(folders: dict[str, bool], folder: str, included: list[str]) -> list[str]:
    order = list(folders)
    above = [name for name in included if order.index(name) < order.index(folder)]
    beside = [name for name in included if name != folder and folders[name] and folders[folder]]
    return sorted({f"{folder} includes {name}" for name in above + beside})


def test_the_table_lists_every_folder_of_the_command_line() -> None:
    assert set(app_folders()) - {COMMAND_LINE} == {path.name for path in APP.iterdir() if path.is_dir()}


def test_no_command_uses_another_and_no_arrow_points_up() -> None:
    folders, wrong = app_folders(), []
    for path in sorted([*APP.rglob("*.h"), *APP.rglob("*.cpp")]):
        included = re.findall(r'^#include "app/(\w+)/', path.read_text(encoding="utf-8"), re.MULTILINE)
        wrong += wrong_in_app(folders, COMMAND_LINE if path.parent == APP else path.parent.name, included)
    assert wrong == []


def test_a_wrong_include_of_the_command_line_is_seen() -> None:
    folders = {COMMAND_LINE: False, "study": True, "debug": True, "card": False, "run": False}
    assert wrong_in_app(folders, "study", ["study", "card", "run"]) == []
    assert wrong_in_app(folders, COMMAND_LINE, ["study", "debug", "run"]) == []
    assert wrong_in_app(folders, "study", ["debug"]) == ["study includes debug"]
    assert wrong_in_app(folders, "debug", ["study"]) == ["debug includes study"]
    assert wrong_in_app(folders, "run", ["card"]) == ["run includes card"]
