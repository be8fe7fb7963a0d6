"""The figures in the docs come from profiles/, and scripts/update_docs.py notices when they do not."""

from __future__ import annotations

import json
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import mutate
import pytest
from kernel_files import KernelFile, kernel_files
from ladder import SHAPES
from profile_data import Cell, Shape, load_device, three_digits

ROOT = Path(__file__).resolve().parents[2]
COUNTERS = ("shared_load_wavefronts", "shared_store_wavefronts", "global_load_sectors", "global_store_sectors")
ALL_DOCS = [
    "README.md",
    "docs/results.md",
    "docs/ladder_log.md",
    "docs/figures/ladder.svg",
    "docs/figures/seq_len.svg",
]


def run(root: Path, script: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, "-B", str(root / "scripts" / script), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def profile(kernel: str, name: str, tflops: float) -> dict:
    results = [
        {
            "kernel": kernel,
            "name": name,
            "config": config,
            "device": "NVIDIA H200",
            "problem": {
                "batch": batch,
                "heads": 16,
                "seq_len": seq_len,
                "seq_len_kv": seq_len,
                "head_dim": 128,
                "dtype": dtype,
            },
            "status": "ok",
            "reason": None,
            "correct": True,
            "max_abs_error": 1e-4,
            "relative_error": 0.5,
            "ms": {"median": 1.0, "p10": 0.9, "p90": 1.1},
            "tflops": tflops * factor,
            "counters": None,
            "findings": [],
            "static": None,
        }
        for batch, seq_len in SHAPES
        for config, dtype, factor in [("64x64", "fp16", 1.0), ("64x32", "fp16", 0.5), ("64x64", "bf16", 0.9)]
    ]
    return {
        "schema": 1,
        "device": "NVIDIA H200",
        "code_hash": "sha256:" + "0" * 64,
        "toolkit": "13.0.88",
        "driver": "580.159.04",
        "clocks": {"sm_max_mhz": 1980, "memory_max_mhz": 3201},
        "date": "2026-01-31T12:00:00Z",
        "results": results,
    }


def measured(tflops: float, watts: float | None) -> list[dict]:
    """Results in the form that scripts/peers writes: the same speed at every length, but half of it at 512."""
    return [
        {
            "batch": batch,
            "seq_len": seq_len,
            "tflops": (found := tflops if seq_len > 512 else tflops / 2),
            "ms": {"median": 1.0, "p10": 0.9, "p90": 1.1},
            "launches": 20,
            "power_watts": watts,
            "sm_clock_mhz": watts and 1725,
            "tflops_per_watt": watts and found / watts,
            "relative_error": 0.5,
        }
        for batch, seq_len in SHAPES
    ]


def regime(factor: float, watts: float | None) -> dict:
    """A run of scripts/peers with version 02, at twice the speed of its profile times `factor`, and two peers."""
    return {
        "run": {
            "date": "2026-02-03T12:00:00Z",
            "warm_up_seconds": 1.0,
            "timed_seconds": watts and 1.0,
            "driver": "580.159.04",
            "cuda": "13.0",
            "pytorch": "2.11.0",
            "cudnn": None,
            "triton": "3.6.0",
            "flash_ladder": "1.0",
            "python": "3.12.3",
            "clocks": {"sm_max_mhz": 1980, "memory_max_mhz": 3201},
            "power_limit_watts": 700.0,
            "left_out": {"fa3": "ModuleNotFoundError: No module named 'flash_attn_interface'", "flex": "no Triton"},
        },
        "versions": [
            {
                "kernel": "02",
                "name": "online_softmax",
                "config": None,
                "code_hash": "sha256:" + "0" * 64,
                "results": measured(8.125 * factor, watts),
            }
        ],
        "peers": [
            {"name": "FlashAttention-2", "note": "SDPA", "results": measured(325.0 * factor, watts)},
            {"name": "Another", "note": "", "results": measured(162.5 * factor, watts)[3:4]},
        ],
        "ceilings": [
            {"name": "mma.sync", "note": "", "tflops": 629.6, "ms": {"median": 1.0, "p10": 0.9, "p90": 1.1},
             "launches": 20, "power_watts": watts, "sm_clock_mhz": 1725, "tflops_per_watt": 1.0}
        ] if watts else [],
    }  # fmt: skip


def peers() -> dict:
    """All are twice as fast when they take turns."""
    return {
        "schema": 3,
        "device": "NVIDIA H200",
        "problem": {"dtype": "fp16", "heads": 16, "head_dim": 128, "causal": False},
        "regimes": {"sustained": regime(1.0, 650.0), "interleaved": regime(2.0, None)},
    }


def peers_by_data() -> dict:
    """Version 02 is slower than its fastest peer if the data are steps, and the other peer has no figure there."""

    def cells(factor: float, *names: str) -> list[dict]:
        one = measured(8.125, None)[3]
        speeds = {"normal": 8.125, "steps": 4.0625, "zeros": 16.25}
        return [{"data": name, "dtype": "fp16"} | one | {"tflops": speeds[name] * factor, "sm_clock_mhz": 1500}
                for name in names or speeds]  # fmt: skip

    of_peers = regime(1.0, 650.0)
    version = of_peers["versions"][0] | {"results": cells(1.0)}
    peers = [("Another", cells(0.5, "normal", "zeros")), ("FlashAttention-2", cells(0.9))]
    peers[1][1][1]["tflops"] = 8.125
    return {
        "schema": 1,
        "device": "NVIDIA H200",
        "problem": {"heads": 16, "head_dim": 128, "causal": False},
        "data": {"normal": "q, k, v = z", "steps": "k = z + j u", "zeros": "q, k, v = 0"},
        "run": of_peers["run"] | {"warm_up_seconds": 0.25, "timed_seconds": 0.2},
        "versions": [version, version | {"kernel": "01", "name": "naive", "code_hash": "sha256:" + "9" * 64}],
        "peers": [{"name": name, "note": "", "results": results} for name, results in peers],
    }


def peers_by_problem() -> dict:
    """Version 02 is of the first track. FlashAttention-2 has no figures for a window, and the other peer only those."""

    def cells(**speeds: float) -> list[dict]:
        one = measured(1.0, None)[4]
        return [{"problem": name.replace("_", "-")} | one | {"tflops": tflops} for name, tflops in speeds.items()]

    of_peers = regime(1.0, 650.0)
    version = of_peers["versions"][0] | {"results": cells(causal=600.0, window_512=300.0)}
    what = {"causal": True, "kv_heads": 16, "window_left": None, "scores": "seq_len^2 / 2"}
    peers = [("Another", cells(window_512=400.0)), ("FlashAttention-2", cells(causal=500.0))]
    return {
        "schema": 1,
        "device": "NVIDIA H200",
        "problem": {"dtype": "fp16", "heads": 16, "head_dim": 128},
        "problems": {"causal": what, "window-512": what | {"window_left": 512}},
        "operations": "4 * batch * heads * head_dim * scores",
        "run": of_peers["run"] | {"warm_up_seconds": 0.25, "timed_seconds": 0.2},
        "versions": [version, version | {"kernel": "01", "name": "naive", "code_hash": "sha256:" + "9" * 64}],
        "peers": [{"name": name, "note": "", "results": results} for name, results in peers],
    }


HEADER = """// {kernel} · {name}
//
// Idea        None, 9x over.
// Prediction  A 4x cheaper load leaves the rest as it is: {prediction} in
//             TFLOP/s. Costs a LOP3.

#include "convert.h"
int factor_of_9x;  // 8x
"""


@pytest.fixture(scope="session")
def finished_tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A copy of all that the scripts read and write, with two versions, made-up profiles, and docs that are up to
    date."""
    root = tmp_path_factory.mktemp("finished") / "tree"
    for folder in ("scripts", "docs"):
        shutil.copytree(ROOT / folder, root / folder)
    shutil.copy(ROOT / "README.md", root)
    (root / "kernels").mkdir()
    (root / "harness" / "results").mkdir(parents=True)
    for schema in (ROOT / "harness" / "results").glob("*.schema.json"):
        shutil.copy(schema, root / "harness" / "results")
    profiles = root / "profiles" / "h200"
    profiles.mkdir(parents=True)
    (profiles / "peers.json").write_text(json.dumps(peers()))
    for kernel, name, tflops, prediction in [
        ("01", "naive", 0.8125, "about 1 TFLOP/s, not less"),
        ("02", "online_softmax", 4.0625, "5x"),
    ]:
        header = HEADER.format(kernel=kernel, name=name, prediction=prediction)
        (root / "kernels" / f"{kernel}_{name}.cu").write_text(header)
        (profiles / f"{kernel}_{name}.json").write_text(json.dumps(profile(kernel, name, tflops)))
    emulator = root / "profiles" / "emulator"
    emulator.mkdir()
    for name, counts in (("01_naive", (0, 0, 1234567, 64)), ("02_online_softmax", (256, 0, 512, 32))):
        counted = [{"problem": {"dtype": "fp16"}, "counters": dict(zip(COUNTERS, counts, strict=True))}]
        (emulator / f"{name}.json").write_text(json.dumps({"results": counted}))
    (emulator / "mutation.json").write_text(json.dumps(mutation("another text of it")))
    on_device = {"versions": {"01_naive": dict(zip(COUNTERS, (0, 0, 1234568, 64), strict=True))}}
    (profiles / "ncu.json").write_text(json.dumps(on_device))
    page = root / "docs" / "virtual_gpu_internals.md"
    page.write_text(re.sub(r"<!-- counters [\d ]+ -->", "<!-- counters 01 02 -->", page.read_text()))
    done = run(root, "update_docs.py")
    assert done.returncode == 0, done.stderr
    return root


def mutation(code: str) -> dict:
    """In the form that scripts/mutate.py publishes: for 01, three mistakes in four were found before, and now all."""
    outcomes = ("wrong", "finding", "refusal", "timeout", "survived", "equivalent", "compile error", "same code")
    before, now = (
        dict(zip(outcomes, counts, strict=True)) for counts in ((1, 1, 0, 1, 1, 2, 3, 4), (2, 1, 0, 1, 0, 2, 3, 4))
    )
    return {"seed": 0, "places": 6, "versions": {"01_naive": {"code": code, "before": before, "now": now}}}


@pytest.fixture
def tree(finished_tree: Path, tmp_path: Path) -> Path:
    return shutil.copytree(finished_tree, tmp_path / "tree")


def edit(path: Path, change: Callable[[dict], object]) -> None:
    document = json.loads(path.read_text())
    change(document)
    path.write_text(json.dumps(document))


def outdated(tree: Path) -> list[str]:
    done = run(tree, "update_docs.py", "--check")
    names = [line.split()[0] for line in done.stdout.splitlines() if line.endswith("is out of date")]
    assert done.returncode == (1 if names else 0), done.stdout + done.stderr
    return names


def test_docs_of_this_repository_are_up_to_date() -> None:
    done = run(ROOT, "update_docs.py", "--check")
    assert done.returncode == 0, done.stdout + done.stderr


def test_the_docs_say_how_many_mistakes_the_check_finds(tree: Path) -> None:
    page = (tree / "docs" / "virtual_gpu_internals.md").read_text()
    assert "| 01 naive (its code has changed since) | 4 | 3 | 4 | 0 |" in page
    assert "| all | 4 | 3: 75.0 % | 4: 100.0 % | 0 |\n" in page and "<!-- not mutated -->`02`<!-- end -->" in page
    path = tree / "profiles" / "emulator" / "mutation.json"
    code = mutate.code_digest((tree / "kernels" / "01_naive.cu").read_text())
    path.write_text(json.dumps(mutation(code)))
    assert run(tree, "update_docs.py").returncode == 0
    assert "| 01 naive | 4 | 3 | 4 | 0 |" in (tree / "docs" / "virtual_gpu_internals.md").read_text()
    document = mutation(code)
    document["versions"]["02_online_softmax"] = document["versions"]["01_naive"] | {"before": None}
    path.write_text(json.dumps(document))
    assert run(tree, "update_docs.py").returncode == 0
    page = (tree / "docs" / "virtual_gpu_internals.md").read_text()
    assert "| 02 online_softmax | 4 | – | 4 | 0 |" in page
    assert "| all | 8 | 3: 75.0 % of 4 | 8: 100.0 % | 0 |" in page and "<!-- not mutated -->none<!-- end -->" in page
    path.unlink()
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "mutate.py --publish writes it" in done.stderr


def results_of(tree: Path, mark: str) -> list[str]:
    """The lines of docs/results.md after a mark."""
    text = (tree / "docs" / "results.md").read_text()
    return text.partition(f"<!-- {mark} -->\n")[2].partition("\n<!-- end -->")[0].splitlines()


def test_what_was_measured_stands_in_the_docs(tree: Path) -> None:
    assert outdated(tree) == []
    readme = (tree / "README.md").read_text()
    assert (
        "<!-- versions -->2<!-- end --> CUDA kernels, one idea each, from <!-- first -->0.812<!-- end --> to" in readme
    )
    assert "<!-- last -->8.12<!-- end --> TFLOP/s" in readme
    assert re.search(
        r"^\| \[01 naive\]\(.*\) \| .* \| 0.812 \| – \| \[01\]\(docs/chapters/01_naive.md\) \|$", readme, re.MULTILINE
    )
    assert re.search(r"^\| \[02 online_softmax\]\(.*\) \| .* \| 8.12 \| 5.00× \| \[02\]", readme, re.MULTILINE)
    assert results_of(tree, "sustained h200") == [
        "| TFLOP/s at seq_len | 512 | 1024 | 2048 | 4096 | 8192 | 16384 | of FA2 at 4096 | of FA2, mean |"
        " W at 4096 | MHz | TFLOP/s per W |",
        f"|---|{'---:|' * 11}",
        # The figure comes from its run beside FlashAttention-2, alone, and not from its profile.
        "| [02 online_softmax](chapters/02_online_softmax.md) | 4.06 | 8.12 | 8.12 | 8.12 | 8.12 | 8.12 |"
        " 2.50 % | 2.50 % | 650 | 1,725 | 0.0125 |",
        "| *Another* | – | – | – | 162 | – | – | 50.0 % | – | 650 | 1,725 | 0.250 |",
        "| *FlashAttention-2* | 162 | 325 | 325 | 325 | 325 | 325 | 100 % | 100 % | 650 | 1,725 | 0.500 |",
    ]
    interleaved = results_of(tree, "interleaved h200")
    assert interleaved[-1] == "| *FlashAttention-2* | 325 | 650 | 650 | 650 | 650 | 650 | 100 % | 100 % |"
    row = "| [01 naive](chapters/01_naive.md) | 0.812 | 0.812 | 0.812 | 0.812 | 0.812 | 0.812 | – |"
    assert results_of(tree, "recorded h200")[2:] == [row]
    assert results_of(tree, "sustained h100-80gb-hbm3") == ["Not recorded yet."]
    assert results_of(tree, "ceilings")[2:] == ["| `mma.sync` | NVIDIA H200 | 630 | 2026-02-03 |"]
    assert results_of(tree, "dates")[2:] == [
        "| NVIDIA H200 | sustained | 2026-02-03 | 02, Another, FlashAttention-2 |",
        "| NVIDIA H200 | interleaved | 2026-02-03 | 02, Another, FlashAttention-2 |",
        "| NVIDIA H200 | `harness --record` | 2026-01-31 | 01 |",
    ]
    runs = results_of(tree, "runs")
    assert runs[0] == "| run of `scripts/peers` | NVIDIA H200, sustained | NVIDIA H200, interleaved |"
    for row in (
        "| timed, at least | 1 s | 20 launches |",
        "| power limit | 700 W | 700 W |",
        "| PyTorch | 2.11.0 | 2.11.0 |",
        "| cuDNN | – | – |",
        "| not measured | fa3: not installed; flex: no Triton | fa3: not installed; flex: no Triton |",
    ):
        assert row in runs
    assert results_of(tree, "peers")[2:] == ["| Another | – |", "| FlashAttention-2 | SDPA |"]
    log = (tree / "docs" / "ladder_log.md").read_text()
    assert "<!-- predicted 01 -->1 TFLOP/s<!-- end -->" in log and "<!-- predicted 02 -->5×<!-- end -->" in log
    assert "<!-- tflops 01 -->0.812<!-- end -->" in log and "<!-- verdict 01 -->as predicted<!-- end -->" in log
    # 01 was not in the run with the peers, so the factor compares the two profiles.
    assert "<!-- tflops 02 -->8.12 (5.00×)<!-- end -->" in log and "<!-- verdict 02 -->as predicted<!-- end -->" in log
    assert "<!-- tflops 03 -->not recorded<!-- end -->" in log and "<!-- verdict 03 -->not recorded<!-- end -->" in log
    assert "<!-- predicted 03 -->–<!-- end -->" in log
    assert "<!-- other GPUs -->\nNot recorded yet.\n<!-- end -->" in log


def test_what_was_counted_stands_in_the_docs(tree: Path) -> None:
    page = tree / "docs" / "virtual_gpu_internals.md"
    assert "| version | shared loads, wavefronts: virtual / H200 | shared stores |" in page.read_text()
    assert "| 01 naive | – | – | 1,234,567 / 1,234,568 | 64 / 64 |" in page.read_text()
    assert "| 02 online_softmax | 256 / not recorded | 0 / not recorded | 512 / not recorded |" in page.read_text()
    page.write_text(page.read_text().replace("1,234,568", "1,234,567"))
    assert outdated(tree) == ["docs/virtual_gpu_internals.md"]
    (tree / "profiles" / "h200" / "ncu.json").unlink()
    (tree / "profiles" / "emulator" / "01_naive.json").unlink()
    assert run(tree, "update_docs.py").returncode == 0
    assert f"| 01 naive |{' not recorded / not recorded |' * 4}\n" in page.read_text()


def rows_of(page: str, heading: str) -> list[str]:
    """The text in backticks in the first cells of the table under a heading."""
    text = (ROOT / "docs" / page).read_text(encoding="utf-8")
    section = text.split(f"\n## {heading}\n")[1].split("\n## ")[0]
    return re.findall(r"^\| `(\w+)` \|", section, re.MULTILINE)


def test_every_kind_of_finding_is_explained_under_the_name_that_is_printed() -> None:
    report = (ROOT / "harness" / "emulator" / "report.cpp").read_text(encoding="utf-8")
    kinds = re.findall(r'case FindingKind::\w+:\s+return "(\w+)";', report)
    header = (ROOT / "harness" / "emulator" / "report.h").read_text(encoding="utf-8")
    enumerators = re.findall(r"^  (\w+),", header.split("enum class FindingKind")[1].split("};")[0], re.MULTILINE)
    assert len(kinds) == len(enumerators) >= 17
    assert sorted(rows_of("virtual_gpu.md", "Every kind of finding")) == sorted(kinds)


def test_every_setting_of_the_virtual_gpu_is_explained() -> None:
    device = (ROOT / "harness" / "emulator" / "runtime" / "device.cpp").read_text(encoding="utf-8")
    assert sorted(rows_of("virtual_gpu.md", "Settings")) == sorted(set(re.findall(r'"(FLASH_LADDER_\w+)"', device)))


@pytest.mark.parametrize("name", ["h200/ncu.json", "emulator/02_online_softmax.json"])
def test_counters_that_cannot_be_used_are_named(tree: Path, name: str) -> None:
    truncate(tree / "profiles" / name)
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and f"{name} cannot be used" in done.stderr and done.stderr.count("\n") == 1


def test_counters_of_a_version_that_does_not_exist(tree: Path) -> None:
    page = tree / "docs" / "virtual_gpu_internals.md"
    page.write_text(page.read_text().replace("<!-- counters 01 02 -->", "<!-- counters 01 77 -->"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "docs/virtual_gpu_internals.md: there is no version 77" in done.stderr


@pytest.mark.parametrize(
    ("tflops", "prediction", "expected"),
    [
        (4.0625, "5x", "as predicted"),
        (3.0, "5x", "as predicted"),  # a gain of 2.69, and 2.67 are two thirds of 4
        (2.9, "5x", "less than predicted"),
        (5.6, "5x", "as predicted"),
        (5.8, "5x", "more than predicted"),
        (0.8, "5x", "slower"),
        (0.8125 * 1.07, "1.1x", "as predicted"),
        (0.8125 * 1.06, "1.1x", "less than predicted"),
        (0.8125 * 1.07, "a gain: it gains 5 %", "as predicted"),
        (0.8125 * 1.08, "a gain: it gains 5 % at most", "more than predicted"),
        (0.8125 * 0.97, "0.96x", "as predicted"),
        (0.8125 * 1.02, "1.02x at 4096, and at 512, where they are an eighth of the time, 1.1x", "as predicted"),
        (0.8125 * 1.1, "0.9x", "faster"),
        (0.8125 * 0.6, "0.85x", "slower than predicted"),
        (0.8125 * 0.95, "0.85x", "faster than predicted"),
        (0.8125 * 0.995, "1.00x", "as predicted"),
        (0.8125 * 1.02, "1.00x", "faster"),
        (0.8125 * 0.98, "1.00x", "slower"),
    ],
)
def test_verdicts_follow_the_rule(tree: Path, tflops: float, prediction: str, expected: str) -> None:
    name = "02_online_softmax"
    (tree / "kernels" / f"{name}.cu").write_text(HEADER.format(kernel="02", name=name, prediction=prediction))
    (tree / "profiles" / "h200" / f"{name}.json").write_text(json.dumps(profile("02", "online_softmax", tflops)))
    assert run(tree, "update_docs.py").returncode == 0
    log = (tree / "docs" / "ladder_log.md").read_text()
    assert f"<!-- verdict 02 -->{expected}<!-- end -->" in log
    assert "<!-- rule within -->1.5<!-- end -->" in log


def test_a_prediction_and_its_result_read_differently_where_the_verdict_says_so() -> None:
    """A predicted gain of 1 % and a measured one of 0.6 % were both shown as 1.01×, "less than predicted"."""
    log = (ROOT / "docs" / "ladder_log.md").read_text()
    cells = re.findall(r"<!-- predicted \d\d -->(.*?)<!-- end -->.*?\((.*?)\)<!-- end -->.*?-->(.*?)<!--", log)
    assert len(cells) > 20
    for predicted, got, verdict in cells:
        assert predicted != got or verdict == "as predicted", (predicted, got, verdict)
    assert re.search(r"<!-- predicted 17 -->−15.0 %<.*<!-- verdict 17 -->slower than predicted<", log)


def score_of(log: str) -> dict[str, int]:
    text = log.partition("<!-- score -->\n")[2].partition("<!-- end -->")[0]
    names, _, counts = ([cell.strip() for cell in row.strip("|").split("|")] for row in text.splitlines())
    return dict(zip(names, map(int, counts), strict=True))


def test_the_log_leads_with_the_score() -> None:
    log = (ROOT / "docs" / "ladder_log.md").read_text()
    verdicts = re.findall(r"<!-- verdict \d\d -->(.*?)<!-- end -->", log)
    assert log.index("<!-- score -->") < log.index("| version |")
    counted = score_of(log)
    assert counted.pop("predictions") == len(verdicts)
    assert counted == {verdict: verdicts.count(verdict) for verdict in set(verdicts)}


@pytest.mark.parametrize("page", ["README.md", *(str(p.relative_to(ROOT)) for p in ROOT.glob("docs/*.md"))])
def test_no_line_of_text_begins_with_a_comment(page: str) -> None:
    """Markdown takes such a line for HTML, so *emphasis* and `code` in it are shown literally."""
    for line in (ROOT / page).read_text().splitlines():
        assert not re.match(r" {0,3}<!-- .*-->.*[*`[]", line), line


def test_a_header_that_predicts_nothing_is_named(tree: Path) -> None:
    header = HEADER.replace("4x", "much").format(kernel="02", name="online_softmax", prediction="faster")
    (tree / "kernels" / "02_online_softmax.cu").write_text(header)
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "kernels/02_online_softmax.cu: its Prediction names no factor" in done.stderr


def test_a_version_without_a_row_in_the_log_is_named(tree: Path) -> None:
    log = tree / "docs" / "ladder_log.md"
    log.write_text("\n".join(line for line in log.read_text().splitlines() if not line.startswith("| 02 ")))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "has no row of version 02 online_softmax" in done.stderr


def test_factors_are_of_figures_that_were_measured_in_the_same_way(tree: Path) -> None:
    def with_01(document: dict) -> None:
        for found in document["regimes"].values():
            found["versions"].append(found["versions"][0] | {"kernel": "01", "name": "naive"})

    edit(tree / "profiles" / "h200" / "peers.json", with_01)
    assert run(tree, "update_docs.py").returncode == 0
    assert "<!-- tflops 02 -->8.12 (±0.0 %)<!-- end -->" in (tree / "docs" / "ladder_log.md").read_text()


def test_where_all_took_turns_only(tree: Path) -> None:
    edit(tree / "profiles" / "h200" / "peers.json", lambda d: d["regimes"].pop("sustained"))
    assert run(tree, "update_docs.py").returncode == 0
    row = "| *FlashAttention-2* | 325 | 650 | 650 | 650 | 650 | 650 | 100 % | 100 % |"
    assert results_of(tree, "interleaved h200")[-1] == row
    assert results_of(tree, "sustained h200") == ["Not recorded yet."]


def test_what_was_not_timed_beside_the_peers_is_not_set_against_them(tree: Path) -> None:
    header = HEADER.format(kernel="04", name="mma", prediction="3x")
    (tree / "kernels" / "04_mma.cu").write_text(header)
    (tree / "profiles" / "h200" / "04_mma.json").write_text(json.dumps(profile("04", "mma", 400.0)))
    assert run(tree, "update_docs.py").returncode == 0
    assert not [line for line in results_of(tree, "sustained h200") if "04 mma" in line]
    row = "| [04 mma](chapters/04_mma.md) | 400 | 400 | 400 | 400 | 400 | 400 | – |"
    assert results_of(tree, "recorded h200")[-1] == row
    assert "| [04 mma](chapters/04_mma.md) | 400 | – | – |" in results_of(tree, "GPUs")


def test_a_figure_with_a_date_of_its_own(tree: Path) -> None:
    """scripts/peers --update keeps the figures of versions whose code has not changed."""

    def earlier(document: dict) -> None:
        document["regimes"]["sustained"]["versions"][0]["date"] = "2026-02-01T12:00:00Z"

    edit(tree / "profiles" / "h200" / "peers.json", earlier)
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0
    assert results_of(tree, "dates")[2:4] == [
        "| NVIDIA H200 | sustained | 2026-02-01 | 02 |",
        "| NVIDIA H200 | sustained | 2026-02-03 | Another, FlashAttention-2 |",
    ]


def test_a_second_gpu_stands_beside_the_first(tree: Path) -> None:
    def on_an_h100(document: dict) -> None:
        document["device"] = "NVIDIA H100"
        for result in document.get("results", []):
            result["tflops"] *= 0.5
        document.get("regimes", {}).pop("interleaved", None)

    shutil.copytree(tree / "profiles" / "h200", tree / "profiles" / "h100")
    for path in (tree / "profiles" / "h100").iterdir():
        edit(path, on_an_h100)
    (tree / "profiles" / "shown_first.txt").write_text("h200\n")
    assert outdated(tree) == ["docs/results.md", "docs/ladder_log.md"], "the first is still the H200"
    assert run(tree, "update_docs.py").returncode == 0
    step = "TFLOP/s | step | of FA2, mean"
    row = "[02 online_softmax](chapters/02_online_softmax.md)"
    assert results_of(tree, "GPUs") == [
        f"| seq_len 4096 | NVIDIA H200, {step} | NVIDIA H100, {step} |",
        f"|---|{'---:|' * 6}",
        "| [01 naive](chapters/01_naive.md) | 0.812 | – | – | 0.406 | – | – |",
        f"| {row} | 8.12 | 5.00× | 2.50 % | 8.12 | 5.00× | 2.50 % |",
        "| *Another* | 162 | – | – | 162 | – | – |",
        "| *FlashAttention-2* | 325 | – | 100 % | 325 | – | 100 % |",
    ]
    assert "| NVIDIA H100 | sustained | 2026-02-03 | 02, Another, FlashAttention-2 |" in results_of(tree, "dates")
    steps = "| NVIDIA H100 | 1 | 1 | – | 02 online_softmax | 5.00× | 5.00× |"
    assert steps in (tree / "docs" / "ladder_log.md").read_text()
    out = tree / "figures"
    assert run(tree, "plot.py", "--device", "h100", "--out", str(out)).returncode == 0
    assert "NVIDIA H100, sustained" in (out / "ladder.svg").read_text()
    (tree / "profiles" / "shown_first.txt").unlink()
    assert "docs/figures/ladder.svg" in outdated(tree), "where none is named, the first by name is"


def test_a_new_figure_makes_all_docs_out_of_date(tree: Path) -> None:
    def faster(document: dict) -> None:
        for result in document["regimes"]["sustained"]["versions"][0]["results"]:
            result["tflops"] *= 1.1

    edit(tree / "profiles" / "h200" / "peers.json", faster)
    assert outdated(tree) == ALL_DOCS
    assert outdated(tree) == ALL_DOCS  # --check does not fix anything
    assert run(tree, "update_docs.py").returncode == 0
    assert outdated(tree) == []
    assert "8.94" in (tree / "README.md").read_text() and "| 8.94 |" in (tree / "docs" / "results.md").read_text()


def test_a_run_beside_the_peers_of_an_earlier_text_is_marked(tree: Path) -> None:
    def of_other_code(date: str) -> Callable[[dict], None]:
        def change(document: dict) -> None:
            for found in document["regimes"].values():
                found["versions"][0] |= {"code_hash": "sha256:" + "1" * 64, "date": date}

        return change

    edit(tree / "profiles" / "h200" / "peers.json", of_other_code("2026-01-30T12:00:00Z"))
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0
    assert any("02_online_softmax.md) (earlier text) |" in line for line in results_of(tree, "sustained h200"))
    assert "| NVIDIA H200 | sustained (earlier text) | 2026-01-30 | 02 |" in results_of(tree, "dates")

    # If it is newer than the profile, it is the profile that belongs to an earlier text.
    edit(tree / "profiles" / "h200" / "peers.json", of_other_code("2026-02-03T12:00:00Z"))
    assert run(tree, "update_docs.py").returncode == 0
    assert not any("(earlier text)" in line for line in results_of(tree, "sustained h200"))


def record_01_later(tree: Path) -> None:
    """After the runs beside peers, and their text of it is another one."""
    edit(tree / "profiles" / "h200" / "01_naive.json", lambda profile: profile.update(date="2026-02-04T12:00:00Z"))
    assert run(tree, "update_docs.py").returncode == 0


def test_the_table_by_data(tree: Path) -> None:
    record_01_later(tree)
    figure = tree / "docs" / "figures" / "by_data.svg"
    assert results_of(tree, "by data") == ["Not recorded yet."]
    figure.unlink(missing_ok=True)  # the repository's own
    (tree / "profiles" / "h200" / "peers_by_data.json").write_text(json.dumps(peers_by_data()))
    assert outdated(tree) == ["docs/results.md", "docs/figures/by_data.svg"]
    assert run(tree, "update_docs.py").returncode == 0 and outdated(tree) == []
    assert results_of(tree, "by data") == [
        "| TFLOP/s | normal | steps | zeros |",
        "|---|---:|---:|---:|",
        "| *Another* | 4.06 | – | 8.12 |",
        "| *FlashAttention-2* | 7.31 | 8.12 | 14.6 |",
        "| 02 online_softmax | 8.12 | 4.06 | 16.2 |",  # 01 was recorded later, with other code
        "| 02 / fastest peer | 1.11× | 0.50× | 1.11× |",
    ]
    runs = results_of(tree, "runs")
    assert "| warm-up | 1 s | 0.3 s | 0.25 s |" in [re.sub(r"\| 1 s \| 1 s", "| 1 s | 0.3 s", row) for row in runs]
    drawn = figure.read_text()
    assert "TFLOP/s by data: batch 16, seq_len 4096, fp16, NVIDIA H200; each ran alone, timed for 0.2 s after" in drawn

    # If the run is newer than the profile, it is the profile that belongs to an earlier text.
    edit(tree / "profiles" / "h200" / "01_naive.json", lambda profile: profile.update(date="2026-02-02T12:00:00Z"))
    assert run(tree, "update_docs.py").returncode == 0
    assert results_of(tree, "by data")[-2] == "| 01 naive | 8.12 | 4.06 | 16.2 |"

    edit(tree / "profiles" / "h200" / "peers_by_data.json", lambda d: d["versions"][0]["results"].pop())
    assert outdated(tree) == ["docs/results.md", "docs/figures/by_data.svg"]
    edit(tree / "profiles" / "h200" / "peers_by_data.json", lambda d: d.pop("data"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "peers_by_data.json does not follow schema 1" in done.stderr


def test_the_tables_by_problem(tree: Path) -> None:
    record_01_later(tree)
    problems = ("causal", "grouped grouped-causal", "window-512 window-1024", "packed", "head-64 head-64-causal")
    marks = [f"by problem {names}" for names in problems]
    assert [results_of(tree, mark) for mark in marks] == [["Not recorded yet."]] * 5
    path = tree / "profiles" / "h200" / "peers_by_problem.json"
    path.write_text(json.dumps(peers_by_problem()))
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0 and outdated(tree) == []
    assert results_of(tree, marks[0]) == [
        "| TFLOP/s | causal, 8192 |",
        "|---|---:|",
        "| *FlashAttention-2* | 500 |",
        "| 02 online_softmax | 600 |",  # 01 was recorded later, with other code
        "| fastest version / fastest peer | 1.20× |",
        "| fastest of the first track / FlashAttention-2 | 1.20× |",
    ]
    assert results_of(tree, marks[1]) == ["Not recorded yet."]
    assert results_of(tree, marks[2]) == [
        "| TFLOP/s | window-512, 8192 |",
        "|---|---:|",
        "| *Another* | 400 |",
        "| 02 online_softmax | 300 |",
        "| fastest version / fastest peer | 0.75× |",
    ]
    assert any(row.startswith("| run of `scripts/peers`") and "by problem" in row for row in results_of(tree, "runs"))

    # A later run added a problem. What it kept has the date of its own run, before version 01 was recorded.
    def add_packed(document: dict) -> None:
        earlier = document["run"]["date"]
        document["run"]["date"] = "2031-05-06T07:08:09Z"
        document["problems"] = {name: what | {"date": earlier} for name, what in document["problems"].items()}
        document["problems"]["packed"] = {
            "causal": True, "kv_heads": 16, "window_left": None, "scores": "mean of length^2 / 2",
            "lengths": "log-normal",
        }  # fmt: skip
        (version, outdated_one), (_, fa2) = document["versions"], document["peers"]
        outdated_one["date"] = earlier
        for one, speed in ((version, 450.0), (fa2, 300.0)):
            one["results"].append(one["results"][0] | {"problem": "packed", "seq_len": 1024, "tflops": speed})

    edit(path, add_packed)
    assert run(tree, "update_docs.py").returncode == 0
    assert results_of(tree, marks[0])[3:4] == ["| 02 online_softmax | 600 |"]
    assert results_of(tree, marks[3]) == [
        "| TFLOP/s | packed, 1024 |",
        "|---|---:|",
        "| *FlashAttention-2* | 300 |",
        "| 02 online_softmax | 450 |",
        "| fastest version / fastest peer | 1.50× |",
        "| fastest of the first track / FlashAttention-2 | 1.50× |",
    ]
    assert results_of(tree, marks[4]) == ["Not recorded yet."]
    assert next(row for row in results_of(tree, "runs") if "begun" in row).endswith(", 2031-05-06 |")

    # A version without a profile cannot differ from it.
    (tree / "profiles" / "h200" / "01_naive.json").unlink()
    assert run(tree, "update_docs.py").returncode == 0
    assert [row.split("|")[1].strip() for row in results_of(tree, marks[0])[3:5]] == ["02 online_softmax", "01 naive"]
    edit(path, lambda document: document.pop("problems"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "peers_by_problem.json" in done.stderr
    assert "schema 1: at $, 'problems'" in done.stderr


def peers_decoding() -> dict:
    """Version 02 has pages, and only the other peer has them, too."""

    def cells(*figures: tuple[str, int, int, float]) -> list[dict]:
        one = {name: measured(1.0, None)[0][name] for name in ("ms", "launches", "sm_clock_mhz", "relative_error")}
        names = ("problem", "batch", "seq_len_kv", "kv_gb_per_s")
        return [dict(zip(names, figure, strict=True)) | one for figure in figures]

    of_peers = regime(1.0, 650.0)
    contiguous = ("kv-heads-8", 16, 4096), ("kv-heads-8", 1, 32768)
    version = of_peers["versions"][0] | {
        "results": cells((*contiguous[0], 3900.0), (*contiguous[1], 750.4), ("paged", 1, 4096, 1200.0))
    }
    peers = [
        ("Another", cells((*contiguous[0], 2600.0), ("paged", 1, 4096, 1000.0), ("mixed", 64, 8192, 3500.0))),
        ("FlashAttention-2", cells((*contiguous[0], 3000.0), (*contiguous[1], 500.0))),
    ]
    what = {"kv_heads": 8, "page_size": None, "lengths": None}
    return {
        "schema": 1,
        "device": "NVIDIA H200",
        "problem": {"dtype": "fp16", "queries": 1, "heads": 32, "head_dim": 128},
        "problems": {"kv-heads-8": what, "paged": what | {"page_size": 64}, "mixed": what | {"lengths": "log-normal"}},
        "bytes": "4 * batch * seq_len_kv * kv_heads * head_dim",
        "run": of_peers["run"] | {"warm_up_seconds": 0.25, "timed_seconds": 0.2},
        "versions": [version, version | {"kernel": "01", "name": "naive", "code_hash": "sha256:" + "9" * 64}],
        "peers": [{"name": name, "note": "", "results": results} for name, results in peers],
    }


def test_the_tables_of_the_decoding_track(tree: Path) -> None:
    record_01_later(tree)
    marks = [f"decoding {names}" for names in ("kv-heads-8", "kv-heads-32", "paged mixed")]
    assert [results_of(tree, mark) for mark in marks] == [["Not recorded yet."]] * 3
    path = tree / "profiles" / "h200" / "peers_decoding.json"
    path.write_text(json.dumps(peers_decoding()))
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0 and outdated(tree) == []
    assert results_of(tree, marks[0]) == [
        "| GB/s, sequences × keys | 1 × 32768 | 16 × 4096 |",
        "|---|---:|---:|",
        "| *FlashAttention-2* | 500 | 3,000 |",
        "| *Another* | – | 2,600 |",
        "| 02 online_softmax | 750 | 3,900 |",  # 01 was recorded later, with other code
        "| fastest version / fastest peer | 1.50× | 1.30× |",
    ]
    assert results_of(tree, marks[1]) == ["Not recorded yet."]
    assert results_of(tree, marks[2]) == [
        "| GB/s, sequences × keys | paged, 1 × 4096 | mixed, 64 × 8192 |",
        "|---|---:|---:|",
        "| *Another* | 1,000 | 3,500 |",
        "| 02 online_softmax | 1,200 | – |",
        "| fastest version / fastest peer | 1.20× | – |",
    ]
    assert any(row.startswith("| run of `scripts/peers`") and "decoding" in row for row in results_of(tree, "runs"))
    edit(path, lambda document: document.pop("bytes"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "peers_decoding.json" in done.stderr and "schema 1: at $, 'bytes'" in done.stderr


def test_the_tables_of_the_backward_track(tree: Path) -> None:
    marks = [f"gradients {names}" for names in ("full", "causal", "grouped-heads")]
    assert [results_of(tree, mark) for mark in marks] == [["Not recorded yet."]] * 3
    document = peers_by_problem()
    (figures,) = (result for result in document["versions"][0]["results"] if result["problem"] == "causal")
    naive = document["versions"][1] | {"results": [figures | {"tflops": 250.0}]}
    document |= {"deterministic": ["01", "Another"], "versions": [document["versions"][0], naive]}
    path = tree / "profiles" / "h200" / "peers_gradients.json"
    path.write_text(json.dumps(document))
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0 and outdated(tree) == []
    assert results_of(tree, marks[0]) == results_of(tree, marks[2]) == ["Not recorded yet."]
    assert results_of(tree, marks[1]) == [
        "| TFLOP/s | causal, 8192 |",
        "|---|---:|",
        "| *FlashAttention-2* | 500 |",
        "| 02 online_softmax | 600 |",
        "| 01 naive, deterministic | 250 |",
        "| fastest version / fastest peer | 1.20× |",
        "| fastest without Hopper's instructions / FlashAttention-2 | 1.20× |",
    ]
    assert any(row.startswith("| run of `scripts/peers`") and "gradients" in row for row in results_of(tree, "runs"))
    edit(path, lambda document: document.pop("deterministic"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "peers_gradients.json" in done.stderr
    assert "schema 1: at $, 'deterministic'" in done.stderr


def test_the_cases_of_flash_attention(tree: Path) -> None:
    assert results_of(tree, "peer cases") == ["Not recorded yet."]
    failure = {"case": "1 x 239, fp16", "kernel": "scores", "error": 0.5, "allowed": 0.25}
    counts = {"not_supported": {"head_dim": 2640, "page": 160}, "passed": 98, "failures": [failure], "padded": 40}
    document = {
        "schema": 1, "device": "NVIDIA H200", "date": "2026-02-03T12:00:00Z", "code_hash": {"01": "sha256:" + "1" * 64},
        "pytorch": "2.11.0", "flash_attention": "0251105a", "seed": 0, "seconds": 12.5, "kernels": {"01_naive": 99},
        "tests": [counts | {"test": "tests/test_flash_attn.py::test_a", "cases": 2880, "refused": {"a": 1}}],
    }  # fmt: skip
    path = tree / "profiles" / "h200" / "peer_cases.json"
    path.write_text(json.dumps(document))
    assert outdated(tree) == ["docs/results.md"]
    assert run(tree, "update_docs.py").returncode == 0
    table = results_of(tree, "peer cases")
    assert table[0] == "| test | cases | not supported | run | passed | failed | solved by no version |"
    assert table[2] == "| tests: test_a | 2,880 | 2,800 | 99 | 98 | 1 | 1 |"
    assert table[3] == "| all | 2,880 | 2,800 | 99 | 98 | 1 | 1 |"
    assert table[5] == (
        "NVIDIA H200, 2026-02-03, from an earlier text of a version, by 01 naive, with PyTorch 2.11.0, in 12.5 s; the "
        "tests are those of commit 0251105a. Not supported: head_dim 2,640, page 160. 40 cases with packed sequences "
        "ran as padded batches."
    )
    path.write_text(json.dumps(document | {"tests": []}))
    done = run(tree, "update_docs.py")
    assert done.returncode == 3 and "peer_cases.json" in done.stderr and "schema 1: at $.tests" in done.stderr


def test_the_logits_of_language_models(tree: Path) -> None:
    assert results_of(tree, "models") == ["Not recorded yet."]
    stem = "02_online_softmax"
    edit(tree / "profiles" / "emulator" / f"{stem}.json", lambda d: d.update(code_hash="sha256:" + "2" * 64))
    result = {"model": "Llama", "dtype": "fp16", "padded": True, "largest_logit": 6.0, "bound": 0.0636, "within": True}
    errors = {"eager": 0.0299, "sdpa": 0.022, "ladder": 0.023}
    other = result | {"model": "Gemma2", "padded": False, "within": False, "errors": {"eager": 0.1, "ladder": None}}
    sizes = {"heads": 16, "kv_heads": 4, "layers": 2, "tokens": 99, "shorter": 50, "window": 9, "vocabulary": 64}
    document = {
        "schema": 1, "device": "NVIDIA H200", "date": "2026-02-03T12:00:00Z", "code_hash": {"02": "sha256:" + "2" * 64},
        "pytorch": "2.11.0", "transformers": "5.17.0", "seed": 0, "sizes": sizes, "kernels": {stem: 9, "scores": 2},
        "results": [result | {"errors": errors}, other],
    }  # fmt: skip
    (tree / "profiles" / "h200" / "models.json").write_text(json.dumps(document))
    assert run(tree, "update_docs.py").returncode == 0
    table = results_of(tree, "models")
    assert table[2] == "| Llama, fp16, padded | 6.00 | 0.03 | 0.022 | 0.023 | 0.064 |"
    assert table[3] == "| Gemma2, fp16 | 6.00 | 0.1 | – | – | 0.064, exceeded |"
    assert table[5] == (
        "NVIDIA H200, 2026-02-03, by 02 online_softmax, scores, with PyTorch 2.11.0 and transformers 5.17.0: 2 layers, "
        "16 heads of Q and 4 of K and V, 99 tokens, of which a padded sequence has 50."
    )


def words_of(page: str) -> str:
    return " ".join((ROOT / page).read_text(encoding="utf-8").split())


def test_what_the_readme_claims_is_what_was_measured() -> None:
    """On random normal numbers, in the regime that is shown, and what changes with other data."""
    readme = words_of("README.md")
    assert "at every length from 512 to 16,384" in readme
    assert "0 to 18 % and −3 to 10 %" in readme
    assert "Fewer than half of these predictions" in readme
    device = load_device("h200")
    versions = {version.source.kernel: version.beside_peers.tflops for version in device.versions}
    of_peers = {peer.name: peer.tflops for peer in device.peers}
    for kernel, name in (("16", "FlashAttention-2"), ("29", "FlashAttention-3"), ("29", "cuDNN")):
        assert of_peers[name].keys() == versions[kernel].keys() == set(device.shapes())
        for shape, tflops in of_peers[name].items():
            assert versions[kernel][shape] > tflops, f"version {kernel} is not faster than {name} at {shape}"
    assert device.by_data is not None and {"FlashAttention-3", "cuDNN"} <= device.by_data.peers.keys()
    for label, range_at_4096 in (("28 key_order", "1.00 1.18"), ("29 power_of_two", "0.97 1.10")):
        factors = {
            seq_len: [
                device.by_data.of_fastest_peer(label, Cell(data, "fp16", seq_len))
                for data in device.by_data.definitions
            ]
            for seq_len in (1024, 4096)
        }
        assert f"{min(factors[4096]):.2f} {max(factors[4096]):.2f}" == range_at_4096 and min(factors[1024]) < 0.99
    score = score_of((ROOT / "docs" / "ladder_log.md").read_text(encoding="utf-8"))
    assert 2 * score["as predicted"] < score["predictions"]


def test_what_the_results_say_in_words_is_what_was_measured() -> None:
    results = words_of("docs/results.md")
    assert "except flash_attention_from_scratch, whose figures are two days older" in results
    assert "versions 26 and 29 are slower" in results
    device = load_device("h200")
    dates = {version.source.kernel: version.beside_peers.date for version in device.versions}
    assert {dates[f"{number:02}"][:10] for number in range(4, 30)} == {"2026-11-24"}
    earlier = [peer.name for peer in device.peers if peer.speeds.date[:10] == "2026-11-22"]
    assert earlier == ["flash_attention_from_scratch"]
    assert device.by_data is not None
    for version in device.rungs():
        label, alone = version.source.label, version.beside_peers
        if label not in device.by_data.versions:
            continue
        tflops, clocks = device.by_data.versions[label], device.by_data.sm_clock_mhz[label]
        is_slow = label[:2] in ("26", "29")
        cell, shape = Cell("normal", "fp16", 4096), Shape(4096, 16)
        assert (tflops[cell] < alone.tflops[shape]) is (clocks[cell] < alone.sm_clock_mhz[shape]) is is_slow
        assert tflops[Cell("normal", "fp16", 16384)] > alone.tflops[Shape(16384, 4)]


def test_without_peers(tree: Path) -> None:
    (tree / "profiles" / "h200" / "peers.json").unlink()
    assert run(tree, "update_docs.py").returncode == 0
    for mark in ("sustained h200", "interleaved h200", "ceilings", "runs", "peers"):
        assert results_of(tree, mark) == ["Not recorded yet."]
    assert [row.split(" | ")[4] for row in results_of(tree, "recorded h200")[2:]] == ["0.812", "4.06"]


def test_a_figure_at_another_seq_len_concerns_only_what_shows_it(tree: Path) -> None:
    def one_shape(document: dict) -> None:
        next(r for r in document["results"] if r["problem"]["seq_len"] == 512)["tflops"] = 9.0

    edit(tree / "profiles" / "h200" / "01_naive.json", one_shape)
    assert outdated(tree) == ["docs/results.md", "docs/figures/seq_len.svg"]


def test_a_figure_typed_by_hand_is_noticed(tree: Path) -> None:
    log = tree / "docs" / "ladder_log.md"
    log.write_text(log.read_text().replace("-->8.12", "-->9.12"))
    assert outdated(tree) == ["docs/ladder_log.md"]


def test_another_plot_script_makes_the_figures_out_of_date(tree: Path) -> None:
    with (tree / "scripts" / "plot.py").open("a") as file:
        file.write("# a change\n")
    assert outdated(tree) == ["docs/figures/ladder.svg", "docs/figures/seq_len.svg"]


def test_a_missing_figure_is_noticed(tree: Path) -> None:
    (tree / "docs" / "figures" / "ladder.svg").unlink()
    assert outdated(tree) == ["docs/figures/ladder.svg"]


def test_figures_are_the_same_when_drawn_again(tree: Path) -> None:
    before = (tree / "docs" / "figures" / "seq_len.svg").read_bytes()
    assert run(tree, "plot.py").returncode == 0
    assert (tree / "docs" / "figures" / "seq_len.svg").read_bytes() == before


LABELS = """
import sys
sys.path.insert(0, sys.argv[1])
import matplotlib
matplotlib.use("agg")
import plot
from matplotlib.text import Text
from profile_data import Shape, devices, load_device

for of in plot.plots(load_device(devices()[0]), Shape(4096, 16)):
    figure = of.draw(of.data)
    figure.draw_without_rendering()
    for axes in figure.axes:
        boxes = [(text.get_text(), Text.get_window_extent(text)) for text in axes.texts]  # without its line
        assert len(boxes) > 2 or axes.get_legend()  # which matplotlib places itself
        for i, (one, box) in enumerate(boxes):
            for other, other_box in boxes[:i]:
                assert not box.overlaps(other_box), f"{of.name}: {one} covers {other}"
"""


def test_figures_do_not_cover_each_other() -> None:
    command = [sys.executable, "-B", "-c", LABELS, str(ROOT / "scripts")]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr


def test_a_version_without_a_profile_is_left_out_and_named(tree: Path) -> None:
    (tree / "kernels" / "03_new.cu").write_text(HEADER.format(kernel="03", name="new", prediction="2x"))
    done = run(tree, "update_docs.py")
    assert done.returncode == 0
    assert "kernels/03_new.cu has no profile in profiles/h200" in done.stderr
    log = (tree / "docs" / "ladder_log.md").read_text()
    assert "<!-- predicted 03 -->2×<!-- end -->" in log and "<!-- verdict 03 -->not recorded<!-- end -->" in log


def truncate(path: Path) -> None:
    text = path.read_text()
    path.write_text(text[: len(text) // 2])


def with_tflops(value: str) -> Callable[[Path], None]:
    """Replaces all of them by another number, written as in JSON."""

    def damage(path: Path) -> None:
        path.write_text(re.sub(r'(?<="tflops": )[\d.]+', value, path.read_text()))

    return damage


@pytest.mark.parametrize("name", ["01_naive.json", "peers.json"])
@pytest.mark.parametrize(
    ("damage", "message"),
    [
        (with_tflops("NaN"), "(NaN is not a finite number)"),
        (with_tflops("-Infinity"), "(-Infinity is not a finite number)"),
        (with_tflops("1e400"), "(1e400 is not a finite number)"),
        (with_tflops("9" * 5000), "(99999999999999999999... is not a finite number)"),
        (with_tflops("0"), "tflops, 0 is less than or equal to the minimum of 0"),
        (with_tflops("-5.5"), "tflops, -5.5 is less than or equal to the minimum of 0"),
        (lambda path: path.write_text("[" * 100_000), "(maximum recursion depth exceeded"),
        (truncate, "is truncated or not JSON"),
        (lambda path: path.write_text(""), "is truncated or not JSON"),
        (lambda path: path.write_text("[]"), "has schema null, and this program reads schema"),
        (lambda path: edit(path, lambda d: d.update(schema=7)), "has schema 7, and this program reads schema"),
        (lambda path: edit(path, lambda d: d.pop("device")), ": at $, 'device' is a required"),
        (lambda path: edit(path, lambda d: d.update(device="NVIDIA A100")), "are of different devices"),
        (lambda path: path.write_bytes(b"\xff\xfe"), "cannot be read"),
    ],
)
def test_a_profile_that_cannot_be_used_is_named(
    tree: Path, name: str, damage: Callable[[Path], object], message: str
) -> None:
    damage(tree / "profiles" / "h200" / name)
    before = {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}
    done = run(tree, "update_docs.py")
    assert done.returncode == 3, done.stdout + done.stderr
    assert message in done.stderr
    assert name in done.stderr or "different devices" in message
    assert done.stderr.count("\n") == 1
    assert before == {path: path.read_bytes() for path in tree.rglob("*") if path.is_file()}  # nothing is half done


def test_a_profile_without_a_date(tree: Path) -> None:
    for name in ("01_naive", "02_online_softmax"):
        edit(tree / "profiles" / "h200" / f"{name}.json", lambda d: d.update(date=None))
    done = run(tree, "update_docs.py")
    assert done.returncode == 0, done.stderr
    assert "| NVIDIA H200 | `harness --record` | unknown | 01 |" in results_of(tree, "dates")


@pytest.mark.parametrize("script", ["update_docs.py", "plot.py"])
def test_a_first_device_that_is_no_text(tree: Path, script: str) -> None:
    (tree / "profiles" / "shown_first.txt").write_bytes(b"\xff\xfe")
    done = run(tree, script)
    assert done.returncode == 3 and "shown_first.txt cannot be read: " in done.stderr and done.stderr.count("\n") == 1


@pytest.mark.parametrize(
    ("value", "text"),
    [
        (None, "–"),
        (0.8554, "0.855"),
        (20, "20.0"),
        (999.4, "999"),
        (999.6, "1,000"),
        (1234.5, "1,234"),
        (-1234.5, "-1,234"),
    ],
)
def test_figures_have_three_digits_or_all_before_the_point(value: float | None, text: str) -> None:
    assert three_digits(value) == text


@pytest.mark.parametrize(
    ("page", "mark"),
    [
        ("README.md", "<!-- ladder -->"),
        ("README.md", "<!-- first -->"),
        ("docs/results.md", "<!-- GPUs -->"),
        ("docs/ladder_log.md", "(5.00×)<!-- end -->"),
        ("docs/virtual_gpu_internals.md", "<!-- counters 01 02 -->"),
        ("docs/virtual_gpu_internals.md", "<!-- mutation -->"),
    ],
)
def test_a_page_without_its_marks_is_named(tree: Path, page: str, mark: str) -> None:
    path = tree / page
    assert mark in path.read_text()
    path.write_text(path.read_text().replace(mark, ""))
    done = run(tree, "update_docs.py", "--check")
    assert done.returncode == 3
    assert page in done.stderr


def test_an_extension_stands_beside_what_it_extends(tree: Path) -> None:
    """Using their profiles, although 02 was measured beside the peers as well."""
    log = tree / "docs" / "ladder_log.md"
    log.write_text(log.read_text() + "\n<!-- tflops mine of 02 --><!-- end -->\n")
    assert run(tree, "update_docs.py").returncode == 0
    assert "<!-- tflops mine of 02 -->not recorded<!-- end -->" in log.read_text()
    kernel = tree / "kernels" / "hopper" / "extensions" / "mine.cu"
    kernel.parent.mkdir(parents=True)
    kernel.write_text(HEADER.format(kernel="mine", name="mine", prediction="2x"))
    (tree / "profiles" / "h200" / "mine.json").write_text(json.dumps(profile("mine", "mine", 3.25)))
    assert run(tree, "update_docs.py").returncode == 0
    assert "<!-- tflops mine of 02 -->3.25, from an earlier text<!-- end -->" in log.read_text()
    # The virtual GPU's profiles have the hashes of the present texts.
    (tree / "profiles" / "emulator").mkdir(exist_ok=True)
    for path in [tree / "profiles" / "h200" / "mine.json", *(tree / "profiles" / "h200").glob("02_*.json")]:
        there = tree / "profiles" / "emulator" / path.name
        counted = json.loads(there.read_text()) if there.exists() else {"results": []}
        there.write_text(json.dumps(counted | {"code_hash": json.loads(path.read_text())["code_hash"]}))
    assert run(tree, "update_docs.py").returncode == 0
    assert "<!-- tflops mine of 02 -->3.25 (−20.0 %)<!-- end -->" in log.read_text()


def test_plot_refuses_what_is_not_recorded(tree: Path) -> None:
    truncate(tree / "profiles" / "h200" / "01_naive.json")
    done = run(tree, "plot.py")
    assert (done.returncode, "01_naive.json is truncated" in done.stderr) == (3, True)
    (tree / "profiles" / "h200" / "01_naive.json").unlink()
    done = run(tree, "plot.py", "--out", str(tree / "README.md"))
    assert done.returncode == 3 and "ladder.svg cannot be written: Not a directory" in done.stderr
    assert len(done.stderr.splitlines()) == 1
    done = run(tree, "plot.py", "--device", "a100")
    assert (done.returncode, "a100" in done.stderr) == (3, True)
    done = run(tree, "plot.py", "--seq-len", "777")
    assert (done.returncode, "seq_len 777; there are (batch, seq_len) (16, 512)" in done.stderr) == (2, True)
    done = run(tree, "plot.py", "--seq-len", "512")
    assert (done.returncode, "--out" in done.stderr) == (2, True), "these are not the figures of the docs"


# ---- the pages written by hand ----


@pytest.mark.parametrize("kernel", kernel_files(ROOT), ids=lambda kernel: kernel.stem)
def test_every_kernel_has_its_idea_in_a_table_and_its_row_in_the_log(kernel: KernelFile) -> None:
    if kernel.number:
        table = (ROOT / "README.md").read_text().split("\n## The versions\n")[1].split("\n## ")[0]
        row = f"\n| [{kernel.label}]({kernel.file}) | "
    else:
        heading = "The decoding track" if kernel.is_decoding else "Extensions"
        heading = "The backward track" if kernel.is_backward else heading
        table = (ROOT / "docs" / "results.md").read_text().split(f"\n## {heading}\n")[1].split("\n## ")[0]
        row = f"\n| {kernel.label} | "
    assert row in table, "CONTRIBUTING.md says where a new version is entered"
    log = (ROOT / "docs" / "ladder_log.md").read_text()
    rows = [line for line in log.splitlines() if line.startswith(f"| {kernel.label} | ")]
    assert len(rows) == 1, f"docs/ladder_log.md has {len(rows)} rows of {kernel.label}; CONTRIBUTING.md shows the one"
    if kernel.number:
        marks = [f"<!-- {mark} {kernel.kernel} -->" for mark in ("predicted", "tflops", "verdict")]
    elif kernel.kernel == kernel.stem:
        marks = [f"<!-- tflops {kernel.name} of "]
    elif kernel.is_backward:
        marks = [f"<!-- tflops {kernel.kernel} -->"]
    else:
        marks = [f"<!-- kv_gb_per_s {kernel.kernel} {kv_heads} -->" for kv_heads in (8, 32)]
    for mark in marks:
        assert mark in rows[0], f"docs/ladder_log.md: the row of {kernel.label} has no {mark}, for update_docs.py"


@pytest.mark.parametrize(
    "kernel",
    [kernel for kernel in kernel_files(ROOT) if kernel.number or kernel.is_backward or kernel.is_decoding],
    ids=lambda one: one.stem,
)
def test_every_version_is_counted_on_the_virtual_gpu(kernel: KernelFile) -> None:
    file = f"profiles/emulator/{kernel.stem}.json"
    command = f"scripts/harness --kernel {kernel.kernel} --device emulator --record"
    assert (ROOT / file).is_file(), f"there is no {file}; write it with {command}"


@pytest.mark.parametrize("page", ["README.md", "CONTRIBUTING.md"])
def test_files_that_a_page_names_are_there(page: str) -> None:
    text = (ROOT / page).read_text()
    links = re.findall(r"\]\((?!https?:)([^)#]+)\)", text)
    # `harness/app/card/counters.cpp`, but neither a pattern (NN, *, <device>) nor a command.
    named = re.findall(r"`((?:common|docs|harness|kernels|profiles|scripts)/[a-z0-9_./]+)`", text)
    named = [name for name in named if "NN" not in name and "/name" not in name]
    assert links and named
    for name in {*links, *named}:
        assert (ROOT / name).exists(), f"{page} names {name}"


def test_the_readme_leads_to_the_page_for_those_who_carry_on() -> None:
    section = (ROOT / "README.md").read_text().split("\n## Contributing, citing, licence\n")[1].split("\n## ")[0]
    assert "[CONTRIBUTING.md](CONTRIBUTING.md)" in section and "[CITATION.cff](CITATION.cff)" in section
    headings = re.findall(r"^## (.*)$", (ROOT / "CONTRIBUTING.md").read_text(), flags=re.MULTILINE)
    assert headings[:2] == ["Repository layout", "Which command checks what"]
    added = ["a version", "an extension", "an assignment", "an opcode to the virtual GPU", "a metric"]
    assert headings[2:7] == [f"Add {what}" for what in added]
    changed = ["Change a version, or add a configuration", "Name a place"]
    assert headings[7:] == [*changed, "Record on a GPU", "Cut a release"]


def test_the_readme_is_short() -> None:
    """The README should show what the repository is. Anything longer belongs on a page of docs/."""
    text = (ROOT / "README.md").read_text(encoding="utf-8")
    assert len(text.split()) <= 1500
    assert text.index("docs/figures/ladder.svg") < text.index("\n## ")
