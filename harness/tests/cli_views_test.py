"""Views of a version beside another, beside itself and from the inside: busy units, --diff as JSON and as a page,
--listing, --ptx, --profiles A B and --quiz."""

import json
import re
import shutil
import subprocess
from collections.abc import Callable
from html.parser import HTMLParser
from pathlib import Path
from typing import Any

import pytest
from browser import needs_chromium, visit
from cli import BUILD, ROOT, Cli, Outcome
from cli_profiles_test import sustained
from cli_terminal_test import lines_on_a_terminal
from recordings import as_if_of_these_sources
from schemas import validate_comparison, validate_ncu, validate_recordings, validate_results

K = "--kernel"
OTHER_HASH = "sha256:" + "0" * 64
NCU = json.loads((ROOT / "profiles/h200/ncu.json").read_text(encoding="utf-8"))


@pytest.fixture
def recorded(cli: Cli) -> Cli:
    """Without a GPU, with a copy of the H200's profiles to edit, and the virtual GPU."""
    cli.device = None
    cli.profiles.rmdir()
    for folder in ("h200", "emulator"):
        shutil.copytree(ROOT / "profiles" / folder, cli.profiles / folder)
    as_if_of_these_sources(cli.profiles)
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    return cli


def edit(path: Path, change: Callable[[dict[str, Any]], object]) -> None:
    document = json.loads(path.read_text(encoding="utf-8"))
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")


def percent(version: str, metric: str) -> str:
    return f"{NCU['busy']['versions'][version][metric]:.0f} %"


# ---- which unit is busy ----


def test_the_files_of_counters() -> None:
    paths = [*ROOT.glob("profiles/*/ncu.json")]
    assert paths
    for path in paths:
        validate_ncu(json.loads(path.read_text(encoding="utf-8")))


def test_a_card_says_which_unit_is_busy(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    words = recorded(K, "07").words
    assert f"Busy issue slots {percent('07_ldmatrix', 'issue_slots_percent')}, shared-memory pipe" in words
    tensor, l2 = (percent("07_ldmatrix", metric) for metric in ("tensor_pipe_percent", "l2_percent"))
    assert f"tensor cores {tensor}, L2 {l2} of the cycles" in words
    assert "GB through L2" in words and "(NVIDIA H200, " in words and "seq_len 2048" in words
    assert "Busy" not in recorded(K, "01").out, "01 has three launches, and was not counted"


def test_busy_units_as_json(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    document = json.loads(recorded(K, "01,07", "--json", "-").out)
    validate_results(document)
    (busy,) = document["busy"]
    assert (busy["kernel"], busy["name"], busy["device"], busy["stale"]) == ("07", "ldmatrix", "NVIDIA H200", False)
    counted = NCU["busy"]["versions"]["07_ldmatrix"]
    assert busy["shared_memory_percent"] == counted["lsu_data_pipe_percent"]
    assert busy["memory_bytes"] == counted["dram_bytes"] and busy["problem"]["seq_len"] == 2048
    assert "busy" not in json.loads(recorded(K, "07", "--sass", "--json", "-").out)


def test_busy_units_are_those_of_the_configuration_that_was_counted(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    assert "Busy" in recorded(K, "27").out and "Busy" in recorded(K, "27", "--config", "192x64").out
    assert "Busy" in recorded(K, "27", "--config", "192x64", "--dtype", "bf16").out, "and the line says fp16"
    assert "Busy" not in recorded(K, "27", "--config", "128x128").out
    for arguments in ((K, "27"), ("--diff", "26", "27")):
        document = json.loads(recorded(*arguments, "--config", "128x128", "--json", "-").out)
        assert [busy["kernel"] for busy in document["busy"]] == (["26"] if arguments[0] == "--diff" else [])
    outcome = recorded("--diff", "26", "27", "--config", "128x128")
    assert "tensor cores, %" in outcome.out, "of 26, which has this one first"


def test_counters_of_other_code_are_called_stale(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    edit(recorded.profiles / "h200/ncu.json", lambda ncu: ncu["code_hash"].update({"07_ldmatrix": OTHER_HASH}))
    assert re.search(r"Busy issue slots .*\) stale: ", recorded(K, "07").words)
    document = json.loads(recorded(K, "06-07", "--json", "-").out)
    assert [busy["stale"] for busy in document["busy"]] == [False, True]
    outcome = recorded("--diff", "06", "07")
    table = outcome.out.split("What is busy")[1].split("Counters")[0]
    assert len(re.findall(r" \d+\.?\d* +\d+\.?\d* stale", table)) == 8 and "counts it again" in table


@pytest.mark.parametrize(
    ("change", "why"),
    [
        (lambda ncu: ncu.pop("schema"), 'no "schema"'),
        (lambda ncu: ncu.update(schema=7), "schema 7"),
        (lambda ncu: ncu.pop("busy"), "busy"),
        (lambda ncu: ncu["busy"]["versions"]["06_swizzle"].pop("cycles"), "cycles"),
        (lambda ncu: ncu["busy"]["versions"]["06_swizzle"].update(cycles="many"), "form"),
    ],
)
def test_a_broken_file_of_counters_is_no_end_of_a_study(
    recorded: Cli, change: Callable[[dict[str, Any]], object], why: str
) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    edit(recorded.profiles / "h200/ncu.json", change)
    outcome = recorded(K, "07")
    assert "07 · ldmatrix" in outcome.out and "Busy" not in outcome.out
    assert "ncu.json' cannot be used" in outcome.err and why in outcome.err and "ncu_counters.py" in outcome.err


# ---- --diff ----


def test_diff_has_the_busy_table(recorded: Cli) -> None:
    outcome = recorded("--diff", "05", "06")
    assert outcome.rc == 0, outcome
    before, after = (NCU["busy"]["versions"][name] for name in ("05_cp_async", "06_swizzle"))
    rows = [" ".join(line.split()) for line in outcome.out.splitlines()]
    was, now = before["lsu_data_pipe_percent"], after["lsu_data_pipe_percent"]
    assert f"shared-memory pipe, % {was:.1f} {now:.1f} {now - was:+.1f}" in rows
    was, now = before["cycles"], after["cycles"]
    assert f"cycles, millions {was / 1e6:.2f} {now / 1e6:.2f} {now / was:.2f}x" in rows
    words = recorded("--diff", "01", "02").words
    assert f"issue slots, % - {NCU['busy']['versions']['02_online_softmax']['issue_slots_percent']:.1f}" in words


def test_a_diff_begins_with_a_verdict(recorded: Cli) -> None:
    outcome = recorded("--diff", "06", "07")
    lines = [line for line in outcome.out.splitlines() if line.strip()]
    assert lines[0] == "06_swizzle → 07_ldmatrix"
    speed, fell, rose = (re.search(rf"{one} (.*?)(?= {other} )", outcome.words)[1]
                         for one, other in (("Speed", "Fell"), ("Fell", "Rose"), ("Rose", "Idea")))  # fmt: skip
    before, now = sustained("06"), sustained("07")
    assert speed.startswith(f"{now / before:.2f}x: {before:.1f} → {now:.1f} TFLOP/s on NVIDIA H200, sustained")
    assert "warp instructions 194,720 → 119,904; wavefronts of shared memory 64,512 → 48,128" in fell
    assert "hot loop: LDS 416 → 0, PRMT 128 → 0" in fell and "LDSM 0 → 72" in rose and "tensor cores busy" in rose
    assert "194,720" not in rose and "LDSM" not in fell


def test_a_diff_without_figures_has_a_verdict(cli: Cli) -> None:
    words = cli("--diff", "06", "07").words
    assert "Speed no figures of both are recorded for batch 16" in words and "Fell registers" in words


def test_a_diff_shows_what_changed_in_words(recorded: Cli) -> None:
    words = recorded("--diff", "05", "06").words
    assert "shared loads: wavefronts 295,936 54,272 0.18x" in words and "shared_load" not in words.split("Counted")[1]
    opcodes = words.split("SASS of the hot loop")[1].split("SASS of the whole")[0]
    assert "LOP3 0 43 +43" in opcodes and " HMMA " not in opcodes
    unchanged = re.search(r"(\d+) unchanged opcodes (\d+) (\d+) ", opcodes)
    assert unchanged and int(unchanged[1]) > 10 and unchanged[2] == unchanged[3] and "total 1117 1201 +84" in opcodes


def test_diff_as_json(recorded: Cli) -> None:
    file = recorded.folder / "diff.json"
    outcome = recorded("--diff", "05", "06", "--json", str(file))
    assert outcome.rc == 0 and "05_cp_async → 06_swizzle" in outcome.out
    document = json.loads(file.read_text(encoding="utf-8"))
    validate_comparison(document)
    assert document["from"] == {"kernel": "05", "name": "cp_async", "file": "kernels/05_cp_async.cu", "config": "64x64"}
    assert [busy["kernel"] for busy in document["busy"]] == ["05", "06"]
    assert document["source"]["diff"].startswith("--- kernels/05_cp_async.cu\n+++ kernels/06_swizzle.cu\n")
    assert f"{document['source']['added']} lines of code added" in outcome.out
    (loads,) = [line for line in document["counted"]["lines"] if "load_K_fragments" in line["code"]]
    costs = [loads[side] for side in ("from", "to")]
    assert [cost["shared_load_wavefronts"] / cost["shared_load_ideal_wavefronts"] for cost in costs] == [8, 1]
    assert document["why_not_counted"] is None
    speeds = [speed for speed in document["tflops"] if speed["problem"]["seq_len"] == 4096]
    assert all(speed["ratio"] == speed["to"] / speed["from"] for speed in speeds)
    outcome = recorded("--diff", "05", "06", "--json", "-")
    assert json.loads(outcome.out) == document and outcome.err == ""


def test_a_diff_that_cannot_be_counted_is_json_nevertheless(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    outcome = recorded("--diff", "05", "06", "--json", "-")
    document = json.loads(outcome.out)
    validate_comparison(document)
    assert outcome.rc == 3 and document["counted"] is None and "none" in document["why_not_counted"]
    assert document["why_not_counted"] in " ".join(outcome.err.split())


class Page(HTMLParser):
    """Checks that every element is closed, and collects what a browser would load and what it shows."""

    VOID = frozenset({"meta", "link", "img", "br", "input", "line", "circle", "polyline"})

    def __init__(self, text: str) -> None:
        super().__init__()
        self.open: list[str] = []
        self.loads: list[str] = []
        self.ids: set[str] = set()
        self.links: list[str] = []
        self.text = ""
        self.rows: list[list[list[str | None]]] = []
        self.feed(text)
        self.close()
        assert self.open == []

    def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        given = dict(attrs)
        self.loads += [str(given[name]) for name in ("src", "data", "poster") if name in given]
        if tag == "link":
            self.loads.append(tag)
        if "id" in given:
            self.ids.add(str(given["id"]))
        if tag == "a":
            self.links.append(str(given["href"]))
        if tag == "tr":
            self.rows.append([])
        if tag in ("td", "th") and self.rows:
            self.rows[-1].append([given.get("class"), ""])
        if tag not in self.VOID:
            self.open.append(tag)

    def handle_startendtag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
        pass

    def handle_endtag(self, tag: str) -> None:
        assert self.open and self.open.pop() == tag, tag

    def handle_data(self, data: str) -> None:
        if "style" in self.open or "script" in self.open:
            assert "url(" not in data and "import" not in data
            return
        self.text += data
        if self.rows and ("td" in self.open or "th" in self.open):
            cell = self.rows[-1][-1]
            cell[1] = str(cell[1]) + data


@pytest.fixture
def page(recorded: Cli) -> Path:
    file = recorded.folder / "site" / "diff.html"
    file.parent.mkdir()
    outcome = recorded("--diff", "06", "07", "--html", str(file))
    assert outcome.rc == 0 and outcome.out == f"wrote {file}\n", outcome
    assert [*file.parent.iterdir()] == [file], "nothing temporary is left"
    return file


def test_a_page_is_whole_and_has_everything(recorded: Cli, page: Path) -> None:
    parsed = Page(page.read_text(encoding="utf-8"))
    assert parsed.loads == [], "no network, and no other file"
    assert {link.removeprefix("#") for link in parsed.links} <= parsed.ids
    words = " ".join(parsed.text.split())
    assert "06_swizzle → 07_ldmatrix" in words and "+++ kernels/07_ldmatrix.cu" in words
    document = json.loads(recorded("--diff", "06", "07", "--json", "-").out)
    cells = [[str(cell[1]).strip() for cell in row] for row in parsed.rows]
    busy = [entry["tensor_cores_percent"] for entry in document["busy"]]
    assert ["tensor cores, %", f"{busy[0]:.1f}", f"{busy[1]:.1f}", f"{busy[1] - busy[0]:+.1f}"] in cells
    for speed in document["tflops"]:
        star = "*" if speed["measured_to"] == "record" else ""
        assert any(row[1:3] == [f"{speed[side]:.1f}{star}" for side in ("from", "to")] for row in cells), speed
    counted = document["counted"]
    assert ["warp instructions", *(f"{counted[side]['warp_instructions']:,}" for side in ("from", "to"))] in [
        row[:3] for row in cells
    ]
    for line in counted["lines"]:
        assert any(" ".join(line["code"].split()) in " ".join(row[0].split()) for row in cells), line


def test_machine_code_side_by_side(recorded: Cli, page: Path) -> None:
    """Each side's instructions are the counted ones, and rows with two different opcodes are marked."""
    rows = [row for row in Page(page.read_text(encoding="utf-8")).rows if len(row) == 2]
    static = json.loads(recorded("--diff", "06", "07", "--json", "-").out)["static"]
    for side, key in ((0, "code_from"), (1, "code_to")):
        shown = [str(row[side][1]).split() for row in rows if str(row[side][1]).strip()]
        opcodes = [next(word for word in words if not word.startswith("@")) for words in shown]
        found = [opcode.split(".")[0] for opcode in opcodes if opcode not in ("06_swizzle", "07_ldmatrix")]
        assert {"LDSM": found.count("LDSM"), "HMMA": found.count("HMMA")} == {
            opcode: static[key]["sass"].get(opcode, 0) for opcode in ("LDSM", "HMMA")
        }
    for left, right in rows:
        if "LDSM" in str(right[1]):
            assert right[0] == "only-to" and "LDSM" not in str(left[1])


def test_equal_machine_code_is_folded(page: Path) -> None:
    text = page.read_text(encoding="utf-8")
    folded = re.findall(
        r"<summary>(\d+) rows with equal opcodes</summary>\n<table class=\"sass\">(.*?)</table>", text, re.S
    )
    assert folded
    for count, rows in folded:
        assert rows.count("<tr>") == int(count) > 1 and "only-" not in rows
    rows = re.findall(r"<tr( data-difference)?><td( class=\"only-from\")?>(.*?)</td><td( class=\"only-to\")?>", text)
    begins = 0
    for before, row in zip([None, *rows], rows, strict=False):
        differs, did = (any(one[i] for i in (1, 3)) if one else False for one in (row, before))
        begins += bool(row[0])
        assert bool(row[0]) <= differs and (did or bool(row[0]) == differs)
    assert begins > 3


@needs_chromium
def test_keys_go_from_difference_to_difference(page: Path, tmp_path: Path) -> None:
    found = visit(tmp_path, page.parent, [("page", page.name, "differences")])["page"]
    assert found["keys"] == [0, 1, 2, 1, 0, found["all"] - 1] and found["all"] > 3
    assert found["visible"] == [True] * 7 and found["by_button"] == 0


@needs_chromium
@pytest.mark.parametrize("scheme", ["light", "dark"])
def test_a_page_is_sound_at_400_pixels(page: Path, tmp_path: Path, scheme: str) -> None:
    flag = f"--blink-settings=preferredColorScheme={int(scheme == 'light')}"
    found = visit(tmp_path, page.parent, [("page", page.name, "look")], flag)
    assert found == {"page": {"wide": [], "empty": [], "faint": {"light": [], "dark": []}}}


def test_what_is_no_html_is_escaped(recorded: Cli) -> None:
    tree = recorded.folder / "tree"
    for folder in ("kernels", "common"):
        shutil.copytree(ROOT / folder, tree / folder)
    source = tree / "kernels/07_ldmatrix.cu"
    text = source.read_text(encoding="utf-8")
    text = text.replace("// Idea        ", '// Idea        <script>alert("&")</script> ', 1)
    source.write_text(text, encoding="utf-8")
    recorded.source = tree
    file = recorded.folder / "page.html"
    recorded("--diff", "06", "07", "--html", str(file))
    assert '<script>alert("&")</script>' in Page(file.read_text(encoding="utf-8")).text


def test_a_page_without_profiles_and_without_a_virtual_gpu(cli: Cli) -> None:
    file = cli.folder / "page.html"
    outcome = cli("--diff", "06", "07", "--html", str(file))
    assert outcome.rc == 3
    text = Page(file.read_text(encoding="utf-8")).text
    assert "Nothing is recorded." in text and "Nothing was counted on a GPU." in text and "Not counted: " in text


# ---- --listing ----


def listing(cli: Cli, kernel: str, *arguments: str) -> str:
    outcome = cli(K, kernel, "--sass", "--listing", *arguments)
    assert outcome.rc == 0 and outcome.err == "", outcome
    return outcome.out


def instructions(text: str) -> list[str]:
    return [line.split("//")[0].strip() for line in text.splitlines() if line.startswith("    ")]


def test_a_listing_has_no_addresses(cli: Cli) -> None:
    text = listing(cli, "07")
    assert "/*" not in text.split("//", 1)[0] and not re.search(r"/\*[0-9a-f]{4}\*/", text)
    assert not re.search(r"\b(R|UR|P|UP)\d", "".join(instructions(text))), "and no registers"
    assert ".L_x" not in text and str(ROOT) not in text and "v07" not in text
    lines = [line for line in text.splitlines() if "LDSM" in line]
    assert any("ldmatrix_x4(A[0], A[1], A[2], A[3], &Q_smem" in line for line in lines), "the line of the source"
    sass = json.loads(cli(K, "07", "--sass", "--json", "-").out)["results"][0]["static"]["sm_90"]["sass"]
    assert len(instructions(text)) == sum(sass.values())
    assert listing(cli, "07") == text, "the same each time"


def test_a_listing_with_registers(cli: Cli) -> None:
    text = listing(cli, "07", "--registers")
    assert len(instructions(text)) == len(instructions(listing(cli, "07")))
    assert re.search(r"    LDSM\.16\.M88\.4 R\d+, \[R\d+(\+0x[0-9a-f]+)?\] +// :82 ← :\d+  ldmatrix_x4\(A", text)


def test_listings_of_a_version_and_itself_and_another(cli: Cli, tmp_path: Path) -> None:
    """The purpose of listings: `diff` finds the differences, and nothing else."""
    files = []
    for number, kernel in enumerate(["08", "08", "09"]):
        files.append(tmp_path / str(number))
        files[-1].write_text("\n".join(instructions(listing(cli, kernel))), encoding="utf-8")
    assert subprocess.run(["diff", *files[:2]], capture_output=True).returncode == 0
    changed = subprocess.run(["diff", *files[1:]], capture_output=True, text=True).stdout
    lines = [line for line in changed.splitlines() if line.startswith("<")]
    assert 0 < len(lines) < len(files[1].read_text().splitlines()), "some lines are in both"


def test_a_listing_says_where_the_hot_loop_is(cli: Cli) -> None:
    for kernel, opcode in (("03", "FFMA"), ("16", "HMMA")):
        text = listing(cli, kernel)
        loop = "".join(part.split("// no longer the hot loop")[0] for part in text.split("// the hot loop")[1:])
        static = json.loads(cli(K, kernel, "--sass", "--json", "-").out)["results"][0]["static"]["sm_90"]
        counted = static["hot_loop_sass"].get(opcode, 0) + static["hot_loop_cold_sass"].get(opcode, 0)
        assert counted > 0 and len(re.findall(rf"^    (@!?U?P )?{opcode}\b", loop, re.MULTILINE)) == counted


def test_a_listing_of_other_code(cli: Cli) -> None:
    assert "sm_80" in listing(cli, "07", "--sm", "80") and "sm_80" in listing(cli, "07", "--sm", "86")
    assert "bf16" in listing(cli, "07", "--dtype", "bf16")
    assert listing(cli, "01").count("\n\n") == 3, "01 has three functions"


# ---- --ptx ----


def test_what_became_of_an_instruction(cli: Cli) -> None:
    outcome = cli(K, "07", "--ptx", "ldmatrix")
    assert outcome.rc == 0 and "SASS 72 LDSM (72 in the hot loop)" in outcome.words
    assert len(re.findall(r"^ +→ LDSM", outcome.out, re.MULTILINE)) == 72


def test_what_became_of_a_line_of_the_source(cli: Cli) -> None:
    source = (ROOT / "kernels/07_ldmatrix.cu").read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(source, 1) if "ldmatrix_x4(B[0], B[1], next_B[0]" in line]
    outcome = cli(K, "07", "--ptx", str(number))
    assert outcome.rc == 0 and f"kernels/07_ldmatrix.cu:{number} ldmatrix_x4(B[0]" in outcome.words
    assert "PTX 32 ldmatrix.sync.aligned.m8n8.x4.shared.b16" in outcome.words and "SASS 32 LDSM" in outcome.words
    assert cli(K, "07", "--ptx", f"kernels/07_ldmatrix.cu:{number}").out == outcome.out
    header = (ROOT / "common/ptx.h").read_text(encoding="utf-8").splitlines()
    (number,) = [i for i, line in enumerate(header, 1) if "ldmatrix.sync.aligned.m8n8.x4.shared" in line]
    # An asm statement of several lines belongs to one of them.
    found = [cli(K, "07", "--ptx", f"common/ptx.h:{line}") for line in range(number, number + 4)]
    assert any("40 ldmatrix.sync" in one.words for one in found)


def test_what_became_of_a_line_of_the_ptx(cli: Cli) -> None:
    line = re.search(r"^ +(\d+)  (ldmatrix\S+)", cli(K, "07", "--ptx", "ldmatrix").out, re.MULTILINE)
    assert line
    text = (BUILD / "study/07_ldmatrix.compute_90.ptx").read_text(encoding="utf-8").splitlines()
    assert line[2] in text[int(line[1]) - 1], "lines are those of the file that the build leaves"
    outcome = cli(K, "07", "--ptx", f"ptx:{line[1]}")
    assert outcome.rc == 0 and f"PTX 1 {line[2]}" in outcome.words and "SASS 1 LDSM" in outcome.words


def test_what_became_of_one_of_several_instructions_in_a_line(cli: Cli) -> None:
    """wgmma.mma_async comes after the setp of its predicate. ptxas gives HGMMA the line of a neighbour."""
    outcome = cli(K, "26", "--ptx", "wgmma.mma_async")
    assert outcome.rc == 0 and re.search(r"PTX \d+ wgmma\.mma_async\.sync", outcome.words)
    assert "wgmma.mma_async" in outcome.words.split("without SASS of their own:")[1].split("have a neighbour's line")[0]


def test_ptx_that_is_folded_away(cli: Cli) -> None:
    outcome = cli(K, "07", "--ptx", "mul")
    assert outcome.rc == 0 and re.search(r"without SASS of their own: \d+ mul", outcome.words)


# ---- --profiles A B ----


def compare(cli: Cli, *arguments: str | Path) -> Outcome:
    """Without the fixture's own --profiles."""
    command = [str(cli.harness), "--worker", str(cli.worker), *map(str, arguments)]
    done = subprocess.run(command, env=cli.environment(), capture_output=True, text=True, check=False)
    return Outcome(done.returncode, done.stdout, done.stderr)


@pytest.fixture
def pair(tmp_path: Path) -> tuple[Path, Path]:
    """A recording, and a copy of it to edit."""
    copy = tmp_path / "other" / "07_ldmatrix.json"
    copy.parent.mkdir()
    shutil.copy(ROOT / "profiles/h200/07_ldmatrix.json", copy)
    return ROOT / "profiles/h200/07_ldmatrix.json", copy


def test_two_recordings(cli: Cli, pair: tuple[Path, Path]) -> None:
    def change(profile: dict[str, Any]) -> None:
        profile.update(device="NVIDIA A100", toolkit="12.4.1", driver=None)
        for result in profile["results"]:
            result["tflops"] /= 2
            result["static"]["sm_90"]["registers"] += 3
            result["static"]["sm_90"]["hot_loop_sass"]["LDSM"] += 5
            result["static"]["sm_90"]["sass_hash"] = OTHER_HASH
        del profile["results"][0]

    edit(pair[1], change)
    outcome = compare(cli, "--profiles", *pair)
    assert outcome.rc == 0 and outcome.err == "", outcome
    old = json.loads(pair[0].read_text(encoding="utf-8"))
    for words in (
        "07_ldmatrix",
        "device NVIDIA H200 NVIDIA A100",
        f"CUDA {old['toolkit']} 12.4.1",
        f"driver {old['driver']} -",
        "the same",
        "1 results are left out",
    ):
        assert words in outcome.words
    speeds = re.findall(r"^64x64 fp16: \d+ x \d+ +([\d.]+) +([\d.]+) +([\d.]+)x$", outcome.out, re.MULTILINE)
    assert len(speeds) == 5 and {ratio for _, _, ratio in speeds} == {"0.500"}
    registers = old["results"][0]["static"]["sm_90"]["registers"]
    assert f"registers {registers} {registers + 3} +3" in outcome.words and "hot loop, LDSM 72 77 +5" in outcome.words
    document = json.loads(compare(cli, "--profiles", *pair, "--json", "-").out)
    validate_recordings(document)
    assert document["same_code"] is True and len(document["results"]) == len(old["results"]) - 1
    by_folder = compare(cli, "--profiles", pair[0].parent, pair[1].parent, K, "07")
    assert by_folder.out == outcome.out


def test_recordings_of_other_code_say_so(cli: Cli, pair: tuple[Path, Path]) -> None:
    edit(pair[1], lambda profile: profile.update(code_hash=OTHER_HASH))
    assert "The code differs" in compare(cli, "--profiles", *pair).out


def test_two_counts(cli: Cli, tmp_path: Path) -> None:
    old = ROOT / "profiles/emulator/07_ldmatrix.json"
    new = tmp_path / "07_ldmatrix.json"
    shutil.copy(old, new)
    assert compare(cli, "--profiles", old, new).out.count("all counters are the same") == 4
    edit(new, lambda profile: profile["results"][0]["counters"].update(barriers=7))
    outcome = compare(cli, "--profiles", old, new)
    assert outcome.rc == 0 and re.search(r"barriers \d+ 7 ", outcome.words) and "TFLOP/s" not in outcome.out
    validate_recordings(json.loads(compare(cli, "--profiles", old, new, "--json", "-").out))


def test_recordings_that_cannot_be_compared(cli: Cli, pair: tuple[Path, Path], tmp_path: Path) -> None:
    timed, copy = pair
    counted, other = ROOT / "profiles/emulator/07_ldmatrix.json", ROOT / "profiles/h200/06_swizzle.json"
    truncated = tmp_path / "truncated.json"
    truncated.write_text('{"schema": 1, "dev', encoding="utf-8")
    foreign = tmp_path / "foreign.json"
    foreign.write_text('{"schema": 1}', encoding="utf-8")
    empty = tmp_path / "empty"
    empty.mkdir()
    bf16, fp16 = (tmp_path / f"{dtype}.json" for dtype in ("bf16", "fp16"))
    for part in (bf16, fp16):
        document = json.loads(copy.read_text(encoding="utf-8"))
        document["results"] = [one for one in document["results"] if one["problem"]["dtype"] == part.stem]
        part.write_text(json.dumps(document), encoding="utf-8")
    for arguments, rc, words in (
        ([timed, other], 2, ["07_ldmatrix", "06_swizzle", "--diff 07 06"]),
        ([timed, counted], 2, ["was timed", "was counted", "cannot be compared"]),
        ([timed, timed], 2, ["are the same file"]),
        ([bf16, fp16], 2, ["no configuration and problem in common"]),
        ([timed, tmp_path / "nowhere.json"], 3, ["nowhere.json", "--record"]),
        ([timed, truncated], 3, ["truncated"]),
        ([timed, foreign], 3, ["foreign.json", "schema 1"]),
        ([timed, empty], 2, ["is a directory", "--kernel"]),
        ([timed.parent, empty, K, "07"], 3, ["no profile", "07_ldmatrix.json"]),
        ([timed.parent, empty, K, "06-07"], 2, ["one version", "names 2"]),
        ([timed.parent, empty, K, "42"], 2, ["'42'"]),
        ([timed, ""], 2, ["empty name"]),
        ([timed, copy, "--list"], 2, ["--list", "two names after --profiles"]),
        ([timed, copy, "--dtype", "bf16"], 2, ["--dtype", "two names after --profiles"]),
        ([timed, copy, "--config", "64x64"], 2, ["--config", "two names after --profiles"]),
        ([timed, copy, "--json", empty], 2, ["cannot write"]),
        ([timed, copy, empty], 2, ["--profiles"]),
    ):
        outcome = compare(cli, "--profiles", *arguments)
        assert outcome.rc == rc and outcome.out == "", (arguments, outcome)
        message = " ".join(outcome.err.split())
        assert message.startswith("harness: ") and all(word in message for word in words), (arguments, outcome)


# ---- --quiz ----


def ask(cli: Cli, *arguments: str, answer: str) -> Outcome:
    done = subprocess.run(
        cli.command(*arguments), env=cli.environment(), input=answer, capture_output=True, text=True, check=False
    )
    return Outcome(done.returncode, done.stdout, done.stderr)


def test_a_quiz(recorded: Cli) -> None:
    recorded.emulator_worker = recorded.folder / "none"
    outcome = ask(recorded, K, "07", "--quiz", answer="2\n")
    assert outcome.rc == 0 and outcome.err == "" and recorded.requests() == [], "it runs nothing"
    question, answer = outcome.out.split(": 2\n")
    assert "06_swizzle → 07_ldmatrix" in question and "06_swizzle reaches" in question
    assert question.endswith("Your factor, such as 2 or 0.8")
    for spoiler in ("Prediction", "1.3", "LDSM"):
        assert spoiler not in question, "no answer before the guess"
    speeds = [sustained("06"), sustained("07")]
    factor = speeds[1] / speeds[0]
    words = " ".join(answer.split())
    for text in (
        "Idea ldmatrix reads",
        "Prediction One LDSM",
        "Counted warp instructions 194720 → 119904",
        "LDSM 0 → 72",
        "Busy now issue slots",
        "You 2.00x",
        f"Measured {factor:.2f}x: {speeds[0]:.1f} → {speeds[1]:.1f} TFLOP/s on NVIDIA H200, sustained",
        f"too much by a factor of {2 / factor:.2f}",
    ):
        assert text in words, text


def test_a_quiz_asks_again(recorded: Cli) -> None:
    outcome = ask(recorded, K, "07", "--quiz", answer="\nfaster\n-3\n1,3x\n")
    assert outcome.rc == 0 and outcome.out.count("Your factor") == 4 and "You 1.30x" in outcome.words
    assert "'faster' is not a factor" in outcome.err and "'-3' is not a factor" in outcome.err


@pytest.mark.parametrize("answer", ["", "no\n", "a\nb\nc\nd\ne\nf\n1.3\n"])
def test_a_quiz_without_an_answer_shows_nothing(recorded: Cli, answer: str) -> None:
    outcome = ask(recorded, K, "07", "--quiz", answer=answer)
    assert outcome.rc == 2 and "1.3" in outcome.err and "Measured" not in outcome.out


def test_a_quiz_needs_no_newline(recorded: Cli) -> None:
    assert ask(recorded, K, "07", "--quiz", answer="1.3").rc == 0


def test_a_quiz_of_what_is_not_recorded(cli: Cli) -> None:
    cli.device = None
    outcome = ask(cli, K, "07", "--quiz", answer="1.3\n")
    assert outcome.rc == 3 and "no figures" in outcome.words and "LDSM 0 → 72" in outcome.words


def test_a_stale_recording_in_a_quiz(recorded: Cli) -> None:
    edit(recorded.profiles / "h200/06_swizzle.json", lambda p: p.update(code_hash=OTHER_HASH))
    outcome = ask(recorded, K, "07", "--quiz", answer="1.3\n")
    assert re.search(r"Measured .* stale: ", outcome.words)


# ---- what is refused ----

BAD_USAGE = [
    (["--html", "x.html"], ["--html", "--diff"]),
    ([K, "07", "--html", "x.html"], ["--html", "--diff"]),
    (["--diff", "05", "06", "--html", ""], ["--html needs the name of a file"]),
    (["--diff", "05", "06", "--html", "/no/such/place/x.html"], ["cannot write to '/no/such/place/x.html'"]),
    (["--diff", "05", "06", "--html", "/"], ["cannot write to '/'", "directory"]),
    (["--diff", "05", "06", "--json", "/"], ["cannot write to '/'"]),
    (["--diff", "05", "06", "--json", "-", "--html", "-"], ["--json -", "--html -"]),
    (["--diff", "05", "42", "--html", "x.html"], ["'42'"]),
    ([K, "07", "--listing"], ["--listing", "--sass"]),
    ([K, "07", "--sass", "--registers"], ["--registers", "--listing"]),
    ([K, "06-07", "--sass", "--listing"], ["--listing shows one version", "names 2"]),
    ([K, "07", "--sass", "--listing", "--json", "-"], ["--listing", "--json"]),
    ([K, "42", "--sass", "--listing"], ["'42'"]),
    ([K, "07", "--ptx", ""], ["--ptx"]),
    ([K, "07", "--ptx", "0"], ["--ptx 0"]),
    ([K, "07", "--ptx", "99999999999"], ["--ptx 99999999999"]),
    ([K, "07", "--ptx", "999999"], ["kernels/07_ldmatrix.cu:999999", "nearest"]),
    ([K, "07", "--ptx", "nowhere.cu:7"], ["comes from nowhere.cu"]),
    ([K, "07", "--ptx", "ptx:1"], ["line 1 of the PTX", "compute_90.ptx"]),
    ([K, "07", "--ptx", "wgmma"], ["begins with 'wgmma'", "ldmatrix"]),
    ([K, "07", "--ptx", "-7"], ["--ptx"]),
    ([K, "07", "--ptx", "a:b"], ["neither a line nor an instruction"]),
    ([K, "06-07", "--ptx", "1"], ["--ptx shows one version"]),
    (["--ptx", "171"], ["--kernel"]),
    ([K, "07", "--ptx", "171", "--json", "-"], ["--ptx", "--json"]),
    ([K, "07", "--ptx", "171", "--sass"], ["--ptx", "--sass"]),
    ([K, "07", "--quiz", "--json", "-"], ["--quiz", "--json"]),
    ([K, "01", "--quiz"], ["01_naive is the first", "--kernel 02"]),
    ([K, "06-07", "--quiz"], ["--quiz asks about one version"]),
    ([K, "42", "--quiz"], ["'42'"]),
    (["--quiz"], ["--kernel"]),
]


@pytest.mark.parametrize(("arguments", "words"), BAD_USAGE, ids=lambda value: " ".join(value))
def test_bad_usage(cli: Cli, arguments: list[str], words: list[str]) -> None:
    outcome = cli(*arguments)
    assert outcome.rc == 2 and outcome.out == "" and outcome.err.startswith("harness: "), outcome
    message = " ".join(outcome.err.split())
    assert all(word in message for word in words), outcome
    assert cli.requests() == []


def test_output_that_cannot_be_written(recorded: Cli) -> None:
    for arguments in (
        [K, "07", "--sass", "--listing"],
        [K, "07", "--ptx", "ldmatrix"],
        ["--diff", "05", "06", "--html", "-"],
        ["--diff", "05", "06", "--html", "/dev/full"],
    ):
        with Path("/dev/full").open("w") as full:
            done = subprocess.run(
                recorded.command(*arguments), env=recorded.environment(), stdout=full, stderr=subprocess.PIPE, text=True
            )
        assert done.returncode == 3 and "No space left on device" in done.stderr, done


@pytest.mark.parametrize("columns", [80, 200])
@pytest.mark.parametrize(
    "arguments",
    [[K, "07", "--sass", "--listing"], [K, "07", "--ptx", "ldmatrix"], [K, "07", "--sass", "--listing", "--registers"]],
    ids=" ".join,
)
def test_lines_fit(recorded: Cli, columns: int, arguments: list[str]) -> None:
    lines = lines_on_a_terminal(recorded, columns, *arguments)
    assert len(lines) > 50 and max(map(len, lines)) <= columns
