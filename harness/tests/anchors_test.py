"""Everything that refers to a place of a kernel finds it, and a renamed variable moves no place."""

import re
import shutil
import sys
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

import pytest
from planted_faults import FAULTS, PROBES, Fault, unplaced

ROOT = Path(__file__).resolve().parents[2]
sys.path += [str(ROOT / folder) for folder in ("scripts", "docs/site", "harness/grader")]

import assignment  # noqa: E402
import sources  # noqa: E402
from kernel_files import kernel_files  # noqa: E402
from kernel_places import PlaceError, Places  # noqa: E402

QUOTE = re.compile(r"^ *```\{quote\} (?P<file>\S+)\n(?P<options>(?: *:[\w-]+: .*\n)+)", re.MULTILINE)
COUNTED = re.compile(r"\bat\((?P<number>\d+|'D\d\d'), '(?P<place>[^']+)'")
DEBUG = re.compile(r"inline const Place (?P<what>\w+)\{(?P<names>[^}]*)\};")
# What --debug needs in every version from 02 on, because each has an online softmax.
SOFTMAX = ("m", "l", "rescale_O", "divide", "store", "use_K", "use_V", "loop", "scale")
# The same for versions that compute gradients.
STEPS = ("S", "P", "dP", "dS", "D", "dV", "dK", "dQ", "convert_dQ", "store_dK_and_dV", "loop", "copy_queries")


@dataclass(frozen=True)
class Tree:
    """The repository, or a copy of its kernels."""

    kernels: Path  # the folder that contains kernels/

    def text(self, file: str) -> str:
        inside = self.kernels / file
        return (inside if file.startswith("kernels/") else ROOT / file).read_text(encoding="utf-8")

    def places(self, file: str) -> Places:
        return Places(self.text(file), file)


REPOSITORY = Tree(ROOT)


def missing_in_pages(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(sources, "ROOT", tree.kernels)
    files = {kernel.kernel: kernel.file for kernel in kernel_files(ROOT)}
    for page in sorted((ROOT / "docs" / "source").rglob("*.md")):
        text, name = page.read_text(encoding="utf-8"), page.relative_to(ROOT).as_posix()
        for quoted in QUOTE.finditer(text):
            options = dict(re.findall(r":([\w-]+): (.*)", quoted["options"]))
            start, end = options["start"], options.get("end")
            wanted = [(quoted["file"], start, end)]
            if against := options.get("against"):
                wanted += [(against, options.get("start-against", start), options.get("end-against", end))]
            for file, first, last in wanted:
                try:
                    sources.quote(file, first, last)
                except sources.QuoteError as error:
                    yield f"{name}: {error}"
        for counted in COUNTED.finditer(text):
            try:
                tree.places(files[counted["number"].strip("'").zfill(2)]).part(counted["place"])
            except PlaceError as error:
                yield f"{name}: {error}"


def missing_in_faults(tree: Tree, faults: list[Fault]) -> Iterator[str]:
    for fault in faults:
        file = f"kernels/{fault.file}.cu"
        yield from unplaced(fault, tree.text(file), file)


def missing_in_assignments(tree: Tree, monkeypatch: pytest.MonkeyPatch) -> Iterator[str]:
    monkeypatch.setattr(assignment, "ROOT", tree.kernels)
    for name in assignment.names_of_assignments():
        try:
            one = assignment.read_assignment(name, "practice")
            one.starter()
            one.reference_answer()
        except assignment.AssignmentError as error:
            yield f"docs/source/assignments/{error}"


def missing_in_debug(tree: Tree) -> Iterator[str]:
    files = kernel_files(ROOT)
    forward = [file.file for file in files if not file.is_backward and file.file != "kernels/01_naive.cu"]
    backward = [file.file for file in files if file.is_backward and file.name != "naive"]
    yield from missing_in_places(tree, "debug_places.h", [*forward, "kernels/01_naive.cu"], forward, SOFTMAX)
    yield from missing_in_places(
        tree, "gradient_places.h", [*backward, "kernels/backward/B01_naive.cu"], backward, STEPS
    )


def missing_in_places(
    tree: Tree, name: str, files: list[str], all_of: list[str], needed: tuple[str, ...]
) -> Iterator[str]:
    """Names that are in none of the files, and those of the needed places that one of `all_of` lacks."""
    header = f"harness/app/card/{name}"
    places = {
        found["what"]: re.findall(r'"([^"]+)"', found["names"])
        for found in DEBUG.finditer((ROOT / header).read_text(encoding="utf-8"))
    }
    assert len(places) > 15 and set(needed) <= places.keys()
    comments = {file: tree.places(file).comments for file in files}
    for what, names in places.items():
        found = {file for name in names for file in files if any(one.begins_with(name) for one in comments[file])}
        for name in names:
            if not any(comment.begins_with(name) for file in files for comment in comments[file]):
                yield f"{header}: no kernel has a comment that begins with '{name}'"
        for file in sorted(set(all_of) - found) if what in needed else ():
            yield f"{header}: {file} has no comment that begins with {names}, for {what}"


def missing(tree: Tree, monkeypatch: pytest.MonkeyPatch, faults: list[Fault]) -> list[str]:
    return [
        *missing_in_pages(tree, monkeypatch),
        *missing_in_faults(tree, faults),
        *missing_in_assignments(tree, monkeypatch),
        *missing_in_debug(tree),
    ]


def test_all_places_are_there(monkeypatch: pytest.MonkeyPatch) -> None:
    found = missing(REPOSITORY, monkeypatch, [*FAULTS, *PROBES])
    assert not found, "Adapt these, or the comments of the kernels:\n  " + "\n  ".join(found)


# ---- A renamed variable ----


def renamed(text: str) -> str:
    return re.sub(r"\brow_sum\b", "denominator", text)


@pytest.fixture
def copy(tmp_path: Path) -> Path:
    for folder in ("kernels", "common"):
        shutil.copytree(ROOT / folder, tmp_path / folder)
    return tmp_path


def test_a_renamed_variable_moves_no_place(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Apart from the kernels, only the faults that edit this very variable have to be renamed."""
    for kernel in [one for one in kernel_files(copy) if not one.is_backward]:  # without the renamed variable
        path = copy / kernel.file
        text = path.read_text(encoding="utf-8")
        path.write_text(renamed(text), encoding="utf-8")
        assert path.read_text(encoding="utf-8") != text
    unaffected = [fault for fault in (*FAULTS, *PROBES) if "row_sum" not in fault.old]
    assert len(unaffected) > 140
    assert missing(Tree(copy), monkeypatch, unaffected) == []


def test_a_renamed_comment_is_missed_wherever_it_is_used(copy: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    kernel = copy / "kernels" / "07_ldmatrix.cu"
    text = kernel.read_text(encoding="utf-8")
    kernel.write_text(text.replace("// B = V", "// V as B").replace("// l\n", "\n"), encoding="utf-8")
    found = "\n".join(missing(Tree(copy), monkeypatch, [*FAULTS, *PROBES]))
    assert (
        "docs/source/chapters/07_ldmatrix.md: kernels/07_ldmatrix.cu has no comment that begins with 'B = V'" in found
    )
    assert "the fault 'a swizzle of V is forgotten by its loads': kernels/07_ldmatrix.cu has no comment" in found
    assert "docs/source/assignments/07_ldmatrix: " in found
    assert re.search(r"/debug_places.h: kernels/07_ldmatrix.cu .*\['l'\], for l$", found, re.MULTILINE)


def test_debug_knows_no_variable_of_the_kernels() -> None:
    names = re.compile(r"\b\w+_(?:rmem|smem|gmem|max|sum|fragments)\b")
    variables = {
        name
        for kernel in kernel_files(ROOT)
        for line in (ROOT / kernel.file).read_text(encoding="utf-8").splitlines()
        for name in names.findall(line.partition("//")[0])
    }
    assert {"O_rmem", "row_sum", "load_K_fragments"} <= variables
    for file in (
        "debug/debug.cpp",
        "debug/gradients.cpp",
        "card/hints.cpp",
        "card/debug_places.h",
        "card/gradient_hints.cpp",
        "card/gradient_places.h",
    ):
        source = (ROOT / "harness" / "app" / file).read_text(encoding="utf-8")
        quoted = " ".join(re.findall(r'"((?:[^"\\]|\\.)*)"', source))
        assert variables.isdisjoint(names.findall(quoted)), file
