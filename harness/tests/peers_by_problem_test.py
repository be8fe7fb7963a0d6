"""scripts/peers --problem on a made-up GPU, and the problems themselves."""

from __future__ import annotations

import contextlib
import itertools
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from comparison import by_problem
from comparison.adapters import ALL_FIELDS, Adapters
from comparison.problems import PLAIN, PROBLEMS, Problem
from comparison.reference import PackedReference, Reference
from comparison.updating import merged
from float64_attention import attention_and_lse
from ladder import HARNESS, ROOT, SHAPES
from made_up_machine import HASH, MadeUpMachine
from numpy_torch import NumpyTorch, Tensor
from schemas import validate_peers_by_problem

LENGTHS = {
    "causal": [512, 1024, 2048, 4096, 8192, 16384],
    "grouped": [1024, 4096, 16384],
    "grouped-causal": [1024, 4096, 16384],
    "window-512": [8192, 16384],
    "window-1024": [8192, 16384],
    "packed": [1024],
    **{name: [4096, 16384] for name in ("head-64", "head-64-causal", "head-256", "head-256-causal")},
}


def version(name: str, extends: str | None, *solves: str, hopper: bool = False, **changes: Any) -> dict[str, Any]:  # noqa: ANN401
    """As harness --list --json describes it."""
    fields = ("causal", "any_length", "kv_heads", "window", "lengths", "packed", "scores", "log_sum_exp")
    kernel = name.split("_")[0] if name[0].isdigit() or name.startswith("D0") else name
    return {
        "kernel": kernel,
        "code_hash": HASH,
        "extends": extends,
        "architecture": "sm_90a" if hopper else "sm_80",
        "kind": "forward",
        "solves": {field: field in solves for field in fields},
        "configurations": [{"name": "64x64", "dtype": "fp16", "head_dim": 128}],
    } | changes


VERSIONS = {
    "16_overlapped_softmax": version("16_overlapped_softmax", None),
    "28_key_order": version("28_key_order", None, "any_length", hopper=True),
    "D01_one_query": version("D01_one_query", None, "kv_heads", kind="decoding"),
    "causal": version("causal", "16", "causal"),
    "fp8": version(
        "fp8", "28", "causal", hopper=True, configurations=[{"name": "x", "dtype": "e4m3", "head_dim": 128}]
    ),
    "grouped": version("grouped", "window", "causal", "window", "kv_heads"),
    "hopper_causal": version("hopper_causal", "28", "causal", hopper=True),
    "hopper_grouped": version("hopper_grouped", "hopper_pairs", "causal", "kv_heads", hopper=True),
    "hopper_pairs": version("hopper_pairs", "hopper_causal", "causal", hopper=True),
    "hopper_window": version("hopper_window", "hopper_grouped", "causal", "kv_heads", "window", hopper=True),
    "last": version("last", "middle", "causal", "window", "kv_heads", "lengths", "scores"),
    "middle": version("middle", "grouped", "causal", "window", "kv_heads", "lengths"),
    "packed": version("packed", "last", "causal", "window", "kv_heads", "lengths", "scores", "packed"),
    "sizes": version(
        "sizes", "packed", "causal", "window", "kv_heads", "lengths", "scores", "packed", "log_sum_exp",
        configurations=[{"name": "64x64", "dtype": "fp16", "head_dim": head_dim} for head_dim in (64, 128, 256)],
    ),
    "window": version("window", "causal", "causal", "window"),
}  # fmt: skip
OF_CAUSAL = ["causal", "sizes", "hopper_causal", "hopper_pairs", "hopper_window"]
OF_ALL = [
    "causal", "window", "grouped", "packed", "sizes", "hopper_causal", "hopper_pairs", "hopper_grouped", "hopper_window"
]  # fmt: skip


class ProblemMachine(MadeUpMachine):
    """Two peers of PyTorch, and FlashAttention-3, which solves everything."""

    def __init__(self, peers: ModuleType) -> None:
        super().__init__(peers)
        self.seconds: set[tuple[float, float]] = set()
        self.launched: list[tuple[str, str, int]] = []
        self.seq_len, self.made_for = 0, PLAIN
        self.problem: Problem | None = None
        self.wrong_on: tuple[str, str] = ("", "")

    def kernels(self, *, gradients: bool) -> list[str]:
        return list(VERSIONS)

    def peers(self, without: set[str], dtype: str) -> tuple[list[Any], dict[str, str]]:
        found, missing = super().peers(without, dtype)
        for one in found:
            one.lacks = {"window": "scaled_dot_product_attention takes no window"}
            if one.name == "cuDNN":
                one.lacks["packed"] = "takes no packed sequences"
        more = {"FlashAttention-3": {}, "FlexAttention": dict.fromkeys(ALL_FIELDS, "left out")}
        found += [
            self.peers_module.Implementation(name, "a note", self._prepare(name), lacks=lacks)
            for name, lacks in more.items()
        ]
        return found, {name: why for name, why in missing.items() if name != "fa3"}

    def tensors(self, batch: int, seq_len: int, dtype: str, seed: int, problem: Problem) -> tuple[int, int, int, int]:
        self.seq_len, self.made_for = seq_len, problem
        return super().tensors(batch, seq_len, dtype, seed)

    def reference(self, tensors: object, every: int, problem: Problem) -> ProblemMachine:
        assert every > 1 and every % 2 == 1, "else some lanes' rows are never looked at"
        assert self.made_for is problem
        self.problem = problem
        return self

    def launcher(self, implementation: Any, tensors: tuple[Any, ...], problem: Problem) -> Callable[[], str]:  # noqa: ANN401
        assert problem is self.problem
        self.launched.append((implementation.name, problem.name, self.seq_len))
        return super().launcher(implementation, (*tensors, problem))

    def output(self, launch: Callable[[], str], tensors: object) -> str:
        return launch()

    def relative_error(self, output: str) -> float:
        return 7.0 if (output, self.problem.name) == self.wrong_on else 0.25

    def time_alone(self, launch: Callable[[], str], warm_up_seconds: float, timed_seconds: float) -> Any:  # noqa: ANN401
        self.seconds.add((warm_up_seconds, timed_seconds))
        return super().time_alone(launch)


@pytest.fixture
def by_problem_machine(peers: ModuleType, machine: MadeUpMachine) -> ProblemMachine:
    del machine  # it has changed where files go
    listed = json.dumps({"versions": list(VERSIONS.values())})
    peers.HARNESS.write_text(f"#!/bin/sh\necho '{listed}'\n", encoding="utf-8")
    return ProblemMachine(peers)


def written(tmp_path: Path, name: str = "peers_by_problem.json") -> dict[str, Any]:
    document = json.loads((tmp_path / "profiles" / "h200" / name).read_text(encoding="utf-8"))
    validate_peers_by_problem(document)
    return document


def test_the_whole_table(peers: ModuleType, by_problem_machine: ProblemMachine, tmp_path: Path) -> None:
    assert peers.main(["--problem", "all", "--seed", "5"], lambda: by_problem_machine) == 0
    assert [path.name for path in (tmp_path / "profiles" / "h200").iterdir()] == ["peers_by_problem.json"]
    document = written(tmp_path)
    assert document["problem"] == {"dtype": "fp16", "heads": 16, "head_dim": 128}
    assert list(document["problems"]) == list(PROBLEMS) == list(LENGTHS)
    assert document["problems"]["window-512"] == {
        "causal": True, "kv_heads": 16, "window_left": 512, "scores": "513 * (seq_len - 256)"
    }  # fmt: skip
    assert [one["kernel"] for one in document["versions"]] == OF_ALL
    assert [one["name"] for one in document["peers"]] == ["FlashAttention-2", "cuDNN", "FlashAttention-3"]
    assert (document["run"]["warm_up_seconds"], document["run"]["timed_seconds"]) == (0.25, 0.2)
    assert by_problem_machine.seconds == {(0.25, 0.2)}
    assert {seed for *_, seed in by_problem_machine.problems} == {5}

    solves = {one["kernel"]: by_problem.solved_fields(one, "fp16") for one in VERSIONS.values()}
    for one in document["versions"]:
        able = [name for name, problem in PROBLEMS.items() if problem.fields <= solves[one["kernel"]]]
        cells = [
            (name, batch, seq_len)
            for name in able
            for batch, seq_len in ([(64, 1024)] if name == "packed" else SHAPES)
            if seq_len in LENGTHS[name]
        ]
        assert [(r["problem"], r["batch"], r["seq_len"]) for r in one["results"]] == cells
    fa2, _, fa3 = document["peers"]
    assert len(fa2["results"]) == 6 + 3 + 3 + 1 + 4 * 2 and len(fa3["results"]) == 6 + 3 + 3 + 2 + 2 + 1 + 4 * 2
    assert document["run"]["left_out"] == {
        "FlexAttention": "left out",
        "FlashAttention-2, window-512": "scaled_dot_product_attention takes no window",
        "FlashAttention-2, window-1024": "scaled_dot_product_attention takes no window",
        "cuDNN, window-512": "scaled_dot_product_attention takes no window",
        "cuDNN, window-1024": "scaled_dot_product_attention takes no window",
        "cuDNN, packed": "takes no packed sequences",
    }

    of_fa3 = {(r["problem"], r["seq_len"]): r for r in fa3["results"]}
    for (name, seq_len), result in of_fa3.items():
        head_dim = document["problems"][name].get("head_dim", 128)
        operations = 4 * result["batch"] * 16 * head_dim * PROBLEMS[name].scores(seq_len)
        assert result["tflops"] == pytest.approx(operations / result["ms"]["median"] / 1e9, abs=0.01)
    assert of_fa3["causal", 4096]["tflops"] == pytest.approx(of_fa3["grouped", 4096]["tflops"] / 2, abs=0.01)


@pytest.mark.parametrize(
    ("problem", "names"),
    [
        ("causal", OF_CAUSAL),
        ("grouped", ["grouped", "sizes", "hopper_grouped", "hopper_window"]),
        ("grouped-causal", ["grouped", "sizes", "hopper_grouped", "hopper_window"]),
        ("window-512", ["window", "sizes", "hopper_window"]),
        ("packed", ["packed", "sizes"]),
        ("head-64", ["sizes"]),
        ("head-256-causal", ["sizes"]),
    ],
)
def test_the_first_and_the_last_of_a_track_and_those_that_change_the_speed_are_chosen(
    peers: ModuleType, by_problem_machine: ProblemMachine, problem: str, names: list[str], tmp_path: Path
) -> None:
    out = tmp_path / "out.json"
    assert peers.main(["--problem", problem, "--out", str(out)], lambda: by_problem_machine) == 0
    document = json.loads(out.read_text(encoding="utf-8"))
    validate_peers_by_problem(document)
    assert [one["kernel"] for one in document["versions"]] == names and list(document["problems"]) == [problem]


def test_the_fields_are_those_that_the_harness_lists() -> None:
    versions = by_problem.listed(HARNESS)
    known = ["16_overlapped_softmax", *versions]
    for problem in PROBLEMS.values():
        head_dims = {f"head_dim {problem.head_dim}"}
        assert problem.fields - head_dims <= versions["16"]["solves"].keys()
        chosen = by_problem.best(versions, [problem], "fp16", known).split(",")
        assert {"sm_80", "sm_90a"} == {versions[name]["architecture"] for name in chosen}
        assert all(versions[name]["extends"] for name in chosen)


def test_versions_can_be_chosen(
    peers: ModuleType, by_problem_machine: ProblemMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--problem", "causal,window-512", "--shapes", "512,8192", "--kernels", "28,window"]
    assert peers.main(arguments, lambda: by_problem_machine) == 0
    out = capsys.readouterr().out
    assert out.index("this run writes nothing") < out.index("TFLOP/s"), "before the minutes that it takes"
    assert "without 28_key_order: it does not solve causal, window-512" in out
    assert not (tmp_path / "profiles").exists()
    mine = [cell for cell in by_problem_machine.launched if cell[0] == "window"]
    assert mine == [("window", "causal", 512), ("window", "causal", 8192), ("window", "window-512", 8192)]


@pytest.mark.parametrize("less", [["--shapes", "1024,4096,8192"], ["--dtype", "bf16"], ["--without", "fa2"]])
def test_a_part_takes_no_file_s_place(
    peers: ModuleType, by_problem_machine: ProblemMachine, tmp_path: Path, less: list[str]
) -> None:
    arguments = ["--problem", "all", *less, "--kernels", "last"]
    assert peers.main(arguments, lambda: by_problem_machine) == 0
    assert not (tmp_path / "profiles").exists()


def test_some_problems_are_added_to_a_file(
    peers: ModuleType, by_problem_machine: ProblemMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine, some, added = by_problem_machine, "causal,grouped,window-512", "packed,head-64"
    assert peers.main(["--problem", added, "--update"], lambda: machine) == 3
    assert "--update" in capsys.readouterr().err and machine.launched == [], "there is nothing to update"
    path = tmp_path / "profiles" / "h200" / "peers_by_problem.json"
    machine.wrong_on = ("cuDNN", "grouped")
    assert peers.main(["--problem", some, "--out", str(path)], lambda: machine) == 1
    before = written(tmp_path)
    before["run"]["date"] = "2026-01-02T03:04:05Z"
    before["versions"][0]["code_hash"] = "sha256:" + "3" * 64  # of `causal`
    path.write_text(json.dumps(before), encoding="utf-8")

    machine.milliseconds["sizes"] = 2.0
    assert peers.main(["--problem", f"grouped,{added}", "--update"], lambda: machine) == 1
    machine.wrong_on = ("", "")
    assert peers.main(["--problem", f"grouped,{added}", "--update"], lambda: machine) == 0
    after = written(tmp_path)
    assert [path.name for path in path.parent.iterdir()] == [path.name], "no part is left"
    dates = {name: problem.get("date") for name, problem in after["problems"].items()}
    today = after["run"]["date"]
    old = {"causal": "2026-01-02T03:04:05Z", "window-512": "2026-01-02T03:04:05Z"}
    assert dates == old | {"grouped": None, "packed": None, "head-64": None} and today not in old.values()
    assert after["problems"]["causal"] == before["problems"]["causal"] | {"date": old["causal"]}

    def cells(document: dict[str, Any], name: str, *problems: str) -> list[dict[str, Any]]:
        entries = (*document["versions"], *document["peers"])
        return [r for one in entries if one["name"] == name for r in one["results"] if r["problem"] in problems]

    for name in (*OF_ALL, "FlashAttention-2", "cuDNN", "FlashAttention-3"):
        assert cells(after, name, *old) == cells(before, name, *old), "these are kept"
    assert {result["ms"]["median"] for result in cells(after, "sizes", "grouped", *added.split(","))} == {4.0}
    assert len(cells(after, "cuDNN", "grouped")) == 3 and cells(before, "cuDNN", "grouped") == []
    assert {one["kernel"]: one.get("date") for one in after["versions"]} == {
        "causal": old["causal"], **dict.fromkeys(("window", "hopper_causal", "hopper_pairs"), old["causal"]),
        **dict.fromkeys(("grouped", "packed", "sizes", "hopper_grouped", "hopper_window"), None),
    }  # fmt: skip
    assert after["run"]["left_out"] == {
        "FlexAttention": "left out",
        "FlashAttention-2, window-512": "scaled_dot_product_attention takes no window",
        "cuDNN, window-512": "scaled_dot_product_attention takes no window",
        "cuDNN, packed": "takes no packed sequences",
    }


def test_a_peer_without_any_of_the_added_problems_keeps_its_figures() -> None:
    run = {"date": "2026-01-02T03:04:05Z"}
    earlier = {"run": run | {"left_out": {"flex": "left out", "Old": "gone"}}, "problems": {"causal": {}}, "peers": []}
    made = {"run": run | {"left_out": {"flex": "left out", "cuDNN": "takes none"}}, "problems": {"packed": {}}}
    empty = {"versions": [], "peers": []}
    found = merged(earlier | empty, made | empty)["run"]["left_out"]
    assert found == {"flex": "left out", "Old, causal": "gone", "cuDNN, packed": "takes none"}


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda found: found["run"].update(pytorch="0.9"), "another pytorch"),
        (lambda found: found["run"].update(timed_seconds=9), "another timed_seconds"),
        (lambda found: found["problem"].update(dtype="bf16"), "another problem"),
        (lambda found: found.pop("peers"), "cannot be used: KeyError"),
    ],
)
def test_a_file_of_other_conditions_is_not_updated(
    peers: ModuleType,
    by_problem_machine: ProblemMachine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    change: Callable[[dict[str, Any]], object],
    words: str,
) -> None:
    path = tmp_path / "profiles" / "h200" / "peers_by_problem.json"
    assert peers.main(["--problem", "grouped", "--out", str(path)], lambda: by_problem_machine) == 0
    document = written(tmp_path)
    change(document)
    path.write_text(json.dumps(document), encoding="utf-8")
    by_problem_machine.launched.clear()
    assert peers.main(["--problem", "packed", "--update"], lambda: by_problem_machine) == 3
    assert words in capsys.readouterr().err and by_problem_machine.launched == []
    assert json.loads(path.read_text(encoding="utf-8")) == document


def without_date(document: dict[str, Any]) -> dict[str, Any]:
    return document | {"run": document["run"] | {"date": ""}}


def test_an_interrupted_table_is_resumed(
    peers: ModuleType, by_problem_machine: ProblemMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine, part = by_problem_machine, tmp_path / "profiles" / "h200" / "peers_by_problem.part.json"
    machine.wrong_on, machine.broken_alone = ("cuDNN", "causal"), {"causal"}
    assert peers.main(["--problem", "all"], lambda: machine) == 1
    at_once = written(tmp_path)
    part.with_name("peers_by_problem.json").unlink()
    left_out = at_once["run"]["left_out"]
    assert left_out["cuDNN, seq_len 4096, causal"] == "wrong: 7 times the allowed error"
    assert left_out["causal, seq_len 512, causal"] == "40 of its launches reached the GPU late"
    assert {result["problem"] for result in at_once["peers"][1]["results"]} == set(PROBLEMS) - {
        "causal", "window-512", "window-1024", "packed"
    }  # fmt: skip

    machine.alone.clear()
    of_causal = len(OF_ALL) - 1 + 2  # cells at one length: `causal` and cuDNN have none
    machine.stops_after = 6 * of_causal + 3
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--problem", "all"], lambda: machine)
    assert [path.name for path in part.parent.iterdir()] == [part.name], "a part takes no whole table's place"
    written(tmp_path, part.name)

    machine.stops_after = 10**6
    machine.launched.clear()
    capsys.readouterr()
    assert peers.main(["--problem", "all", "--resume"], lambda: machine) == 1, "a table that was taken is wrong"
    assert "seq_len 8192, causal; seq_len 16384, causal is complete" in capsys.readouterr().out
    assert {name for _, name, _ in machine.launched} == set(PROBLEMS) - {"causal"}
    assert without_date(written(tmp_path)) == without_date(at_once)
    assert not part.exists()


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda part: part["problems"].pop("grouped"), "another selection of problems;"),
        (lambda part: part["problem"].update(dtype="bf16"), "another problem;"),
        (lambda part: part["versions"][0].update(code_hash="sha256:0"), "another code of causal causal;"),
        (
            lambda part: part["peers"][0]["results"][0].update(seq_len=777),
            "another selection of problems or lengths;",
        ),
    ],
)
def test_a_part_of_another_run_is_refused(
    peers: ModuleType,
    by_problem_machine: ProblemMachine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    change: Callable[[dict[str, Any]], object],
    words: str,
) -> None:
    by_problem_machine.stops_after = 40
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--problem", "all"], lambda: by_problem_machine)
    path = tmp_path / "profiles" / "h200" / "peers_by_problem.part.json"
    part = json.loads(path.read_text(encoding="utf-8"))
    change(part)
    path.write_text(json.dumps(part), encoding="utf-8")
    by_problem_machine.launched.clear()
    assert peers.main(["--problem", "all", "--resume"], lambda: by_problem_machine) == 3
    assert f"{words} measure again without --resume" in capsys.readouterr().err
    assert by_problem_machine.launched == []


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--problem", "local"], ["'local' is not a problem", "causal, grouped, grouped-causal, window-512"]),
        (["--problem", "all", "--data", "all"], ["--problem cannot be combined with --data"]),
        (["--problem", "all", "--regime", "sustained"], ["--regime cannot be combined with --problem"]),
        (["--problem", "all", "--dtype", "e4m3"], ["fp16 and bf16"]),
        (["--problem", "causal", "--resume"], ["--resume needs a file", "--out"]),
        (["--problem", "causal", "--update", "--shapes", "512"], ["--update needs", "all of their lengths"]),
        (["--data", "all", "--update"], ["--update cannot be combined with --data"]),
        (["--problem", "window-512", "--shapes", "512,1024"], ["--shapes", "window-512: 8192, 16384"]),
        (["--problem", "causal", "--kernels", "16,28"], ["none of these versions solves causal"]),
    ],
)
def test_bad_usage(
    peers: ModuleType,
    by_problem_machine: ProblemMachine,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    words: list[str],
) -> None:
    assert peers.main(arguments, lambda: by_problem_machine) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and by_problem_machine.problems == []


def test_what_is_missing(
    peers: ModuleType,
    by_problem_machine: ProblemMachine,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    all_but_one = [name for name in VERSIONS if name != "hopper_pairs"]
    monkeypatch.setattr(by_problem_machine, "kernels", lambda **_: all_but_one)
    assert peers.main(["--problem", "all"], lambda: by_problem_machine) == 3
    err = capsys.readouterr().err
    assert "older than the harness, it has no hopper_pairs; install it again" in err
    peers.HARNESS.unlink()
    assert peers.main(["--problem", "all"], lambda: by_problem_machine) == 3
    assert "scripts/setup builds it" in capsys.readouterr().err


# ---- the problems ----


def seen(problem: Problem, query: int) -> range:
    """The keys that a query sees, if there are as many as queries."""
    return range(max(0, query - problem.window_left) if problem.window_left is not None else 0, query + 1)


def test_the_scores_that_count_as_work() -> None:
    """test_floating_point_operations of problem_test.cpp has the same rule."""
    assert PLAIN.scores(100) == PROBLEMS["grouped"].scores(100) == 10000
    assert PROBLEMS["causal"].scores(100) == PROBLEMS["grouped-causal"].scores(100) == 5000, "half, by convention"
    for name in ("window-512", "window-1024"):
        problem = PROBLEMS[name]
        assert problem.scores(8192) == sum(len(seen(problem, query)) for query in range(8192))
        formula = problem.describe()["scores"]
        assert eval(formula, {"seq_len": 8192}) == problem.scores(8192)
    narrow = Problem("narrow", (), causal=True, window_left=3)
    assert narrow.scores(5) == 1 + 2 + 3 + 4 + 4 and narrow.scores(4) == 8, "a window that hides nothing is none"
    with pytest.raises(ValueError, match="open to the right"):
        Problem("open", (), window_left=3)


def test_the_packed_sequences_are_those_that_the_harness_records() -> None:
    problem = PROBLEMS["packed"]
    path = ROOT / "profiles" / "h200" / "dropout.json"
    recorded = [one for one in json.loads(path.read_text(encoding="utf-8"))["results"] if one["problem"].get("packed")]
    assert recorded
    for one in recorded:
        assert one["problem"]["lengths"] == one["problem"]["lengths_kv"] == problem.lengths
        assert one["problem"]["causal"] and problem.causal and problem.first_rows[-1] == 64 * 1024
        operations = 4 * 64 * 16 * 128 * problem.scores(1024)
        assert one["tflops"] == pytest.approx(operations / one["ms"]["median"] / 1e9, rel=1e-6)
    assert Problem("full", (), packed=True).scores(1024) == 2 * problem.scores(1024)
    assert problem.describe()["scores"] == "mean of length^2 / 2" and "mean seq_len" in problem.describe()["lengths"]
    with pytest.raises(ValueError, match="packed sequences with a window"):
        Problem("narrow", (), causal=True, window_left=3, packed=True)


SMALL = {
    "causal": Problem("causal", (), causal=True),
    "grouped": Problem("grouped", (), kv_heads=2),
    "grouped-causal": Problem("grouped-causal", (), kv_heads=2, causal=True),
    "window": Problem("window", (), causal=True, window_left=40),
}


@pytest.mark.parametrize("name", SMALL)
@pytest.mark.parametrize("every", [1, 61])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # PyTorch does not warn
def test_a_wrong_mask_or_head_is_found(name: str, every: int) -> None:
    problem, random = SMALL[name], np.random.default_rng(3)
    kv_heads = 2 if "kv_heads" in problem.fields else 6

    def normal(heads: int) -> Tensor:
        return random.standard_normal((2, 256, heads, 32)).astype(np.float16).view(Tensor)

    def output(causal: bool, left: int, v: Tensor) -> Tensor:
        window = (left, 0) if left >= 0 else (-1, -1)
        return attention_and_lse(q, k, v, causal=causal, window=window)[0].astype(np.float16).view(Tensor)

    q, k, v = normal(6), normal(kv_heads), normal(kv_heads)
    left = -1 if problem.window_left is None else problem.window_left
    reference = Reference(NumpyTorch, q, k, v, None, every, problem)
    assert reference.relative_error(output(problem.causal, left, v)) <= 1
    mistakes = [output(not problem.causal, -1, v), np.roll(output(problem.causal, left, v), 1, axis=2).view(Tensor)]
    if problem.window_left is not None:
        mistakes += [output(True, problem.window_left + 1, v), output(True, problem.window_left - 1, v)]
    if "kv_heads" in problem.fields:  # head h reads head h % kv_heads
        k, v = (x[:, :, [0, 1, 0, 1, 0, 1]] for x in (k, v))
        mistakes.append(output(problem.causal, left, v))
    for mistake in mistakes:
        assert not reference.relative_error(mistake) <= 1


class ThreeSequences(Problem):
    first_rows = (0, 1, 70, 200)


@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # PyTorch does not warn
def test_a_mistake_in_packed_sequences_is_found() -> None:
    problem, random = ThreeSequences("packed", (), causal=True, packed=True), np.random.default_rng(3)
    q, k, v = (random.standard_normal((200, 3, 32)).astype(np.float16).view(Tensor) for _ in range(3))

    def output(*ends: int, causal: bool = True) -> Tensor:
        rows = [slice(first, end) for first, end in itertools.pairwise((0, *ends))]
        parts = [attention_and_lse(q[one][None], k[one][None], v[one][None], causal=causal)[0][0] for one in rows]
        return np.concatenate(parts).astype(np.float16).view(Tensor)

    reference = PackedReference(NumpyTorch, q, k, v, 61, problem)
    assert reference.relative_error(output(1, 70, 200)) <= 1
    for mistake in (output(1, 200), output(1, 9, 200), output(70, 200), output(1, 70, 200, causal=False)):
        assert not reference.relative_error(mistake) <= 1
    part = output(1, 70, 200)
    part[0] = np.nan
    assert not reference.relative_error(part) <= 1, "the shortest sequence counts, too"


# ---- how the implementations are called ----


class FakeTensor(str):
    def transpose(self, a: int, b: int) -> str:
        assert (a, b) == (1, 2)
        return self


@pytest.mark.parametrize(
    ("name", "sdpa", "flash"),
    [
        ("causal", {"is_causal": True}, {"causal": True}),
        ("grouped", {"enable_gqa": True}, {}),
        ("grouped-causal", {"is_causal": True, "enable_gqa": True}, {"causal": True}),
        ("window-512", None, {"causal": True, "window_size": (512, 0)}),
        ("head-64", {}, {}),
        ("head-256-causal", {"is_causal": True}, {"causal": True}),
        ("plain", {}, {}),
    ],
)
def test_the_arguments_of_the_peers(
    monkeypatch: pytest.MonkeyPatch, name: str, sdpa: dict[str, bool] | None, flash: dict[str, Any]
) -> None:
    def function(q: str, k: str, v: str, **options: Any) -> FakeTensor:  # noqa: ANN401
        asked.append(((q, k, v), options))
        return FakeTensor("out")

    asked: list[Any] = []
    backends = SimpleNamespace(FLASH_ATTENTION="flash", CUDNN_ATTENTION="cudnn")

    @contextlib.contextmanager
    def sdpa_kernel(backend: str) -> Iterator[None]:
        asked.append(backend)
        yield

    attention = SimpleNamespace(SDPBackend=backends, sdpa_kernel=sdpa_kernel)
    for module in ("torch", "torch.nn"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    monkeypatch.setitem(sys.modules, "torch.nn.attention", attention)
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=function))
    adapters = Adapters()
    functional = SimpleNamespace(scaled_dot_product_attention=function)
    adapters.torch = SimpleNamespace(nn=SimpleNamespace(functional=functional))
    adapters.properties, adapters.scales = SimpleNamespace(major=9), None
    problem, tensors = PROBLEMS.get(name, PLAIN), [FakeTensor(x) for x in ("q", "k", "v", "out")]

    for one, backend in (
        (adapters._sdpa("FlashAttention-2", "FLASH_ATTENTION", ""), "flash"),
        (adapters._sdpa("cuDNN", "CUDNN_ATTENTION", ""), "cudnn"),
    ):
        assert bool(one.why_not(problem.fields)) == (sdpa is None)
        if sdpa is not None:
            asked.clear()
            one.prepare(*tensors, problem)()
            assert asked == [backend, (("q", "k", "v"), sdpa)]
    asked.clear()
    adapters._flash_attention_3().prepare(*tensors, problem)()
    assert asked == [(("q", "k", "v"), flash)]


@pytest.mark.parametrize("first_release", [True, False])
def test_the_arguments_for_packed_sequences(monkeypatch: pytest.MonkeyPatch, first_release: bool) -> None:
    asked: list[Any] = []

    def varlen_func(*tensors: object, causal: bool) -> tuple[str, str]:
        asked.append((*tensors, {"causal": causal}))
        return "out", "lse"

    def of_first_release(*tensors: object, is_causal: bool) -> str:
        asked.append((*tensors, {"is_causal": is_causal}))
        return "out"

    def of_later_releases(*tensors: object, window_size: tuple[int, int]) -> str:
        asked.append((*tensors, {"window_size": window_size}))
        return "out"

    @contextlib.contextmanager
    def sdpa_kernel(backend: str) -> Iterator[None]:
        asked.append(backend)
        yield

    backends = SimpleNamespace(FLASH_ATTENTION="flash")
    flash = SimpleNamespace(flash_attn_func=None, flash_attn_varlen_func=varlen_func)
    for name, module in {
        "torch": SimpleNamespace(),
        "torch.nn": SimpleNamespace(),
        "torch.nn.attention": SimpleNamespace(SDPBackend=backends, sdpa_kernel=sdpa_kernel),
        "torch.nn.attention.varlen": SimpleNamespace(
            varlen_attn=of_first_release if first_release else of_later_releases
        ),
        "flash_attn": flash,
        "flash_attn_interface": flash,
    }.items():
        monkeypatch.setitem(sys.modules, name, module)
    monkeypatch.setattr("importlib.metadata.version", lambda _: "2.8")
    adapters, problem = Adapters(), PROBLEMS["packed"]
    functional = SimpleNamespace(scaled_dot_product_attention=None)
    adapters.torch = SimpleNamespace(
        nn=SimpleNamespace(functional=functional), int32="int32", tensor=lambda numbers, dtype, device: tuple(numbers)
    )
    adapters.properties, adapters.scales = SimpleNamespace(major=9), None
    sums = tuple(problem.first_rows)
    given = ("q", "k", "v", sums, sums, 5196, 5196)

    fa2 = adapters._flash_attention_2()
    assert fa2.why_not(problem.fields) == "" and fa2.why_not(["window"])
    assert fa2.prepare("q", "k", "v", "out", problem)() == "out"
    assert asked == ["flash", (*given, {"is_causal": True} if first_release else {"window_size": (-1, 0)})]
    for one in (adapters._flash_attn(), adapters._flash_attention_3()):
        asked.clear()
        assert one.prepare("q", "k", "v", "out", problem)() == "out"
        assert asked == [(*given, {"causal": True})]

    monkeypatch.setitem(sys.modules, "torch.nn.attention.varlen", None)
    assert adapters._flash_attention_2().why_not(problem.fields) == "this PyTorch has no varlen_attn"


def test_the_arguments_of_our_versions(peers: ModuleType) -> None:
    asked: list[Any] = []
    machine = object.__new__(peers.Machine)
    machine.scales = None
    machine.ladder = SimpleNamespace(forward=lambda q, k, v, **options: asked.append(options))
    ours = machine.ours(peers.select_kernels("causal", ["causal"])[0])
    same = {"kernel": "causal", "config": None, "scales": None, "out": "out"}
    ours.prepare("q", "k", "v", "out")()
    ours.prepare("q", "k", "v", "out", PROBLEMS["grouped-causal"])()
    ours.prepare("q", "k", "v", "out", PROBLEMS["window-1024"])()
    ours.prepare("q", "k", "v", "out", PROBLEMS["packed"])()
    assert asked == [
        same,
        same | {"causal": True},
        same | {"causal": True, "window": (1024, 0)},
        same | {"causal": True, "cu_seqlens_q": PROBLEMS["packed"].first_rows},
    ]
