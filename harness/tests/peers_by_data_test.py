"""scripts/peers --data on a made-up GPU, and the data themselves."""

from __future__ import annotations

import json
import math
import re
from collections.abc import Callable
from pathlib import Path
from types import ModuleType

import distributions
import numpy as np
import pytest
from comparison.problems import PLAIN, PROBLEMS, Problem
from comparison.reference import Reference
from float64_attention import attention
from made_up_machine import HASH, ROOT, MadeUpMachine, write_harness
from numpy_torch import NumpyTorch, Tensor
from schemas import validate_peers_by_data

KNOWN = ["16_overlapped_softmax", "23_overlap", "25_first_guess", "26_ping_pong", "27_three_consumers", "fp8"]
SHAPES = [(16, 1024), (16, 4096), (4, 16384)]


class DataMachine(MadeUpMachine):
    """Slower for some data."""

    def __init__(self, peers: ModuleType) -> None:
        super().__init__(peers)
        self.data, self.filled, self.seconds = "normal", [], set()
        self.prepared: list[str] = []
        self.known = KNOWN
        self.asked: set[Problem] = set()  # of launchers and references
        self.wrong_on = ""

    def kernels(self, *, gradients: bool) -> list[str]:
        return self.known

    def launcher(self, implementation: object, tensors: tuple[object, ...], problem: Problem) -> object:
        self.prepared.append(implementation.name)
        self.asked.add(problem)
        return super().launcher(implementation, tensors)

    def fill(self, tensors: object, data: str, seed: int) -> None:
        self.data = data
        self.filled.append((data, seed))

    def reference(self, tensors: object, every: int, problem: Problem) -> DataMachine:
        self.asked.add(problem)
        assert every > 1 and every % 2 == 1, "else some lanes' rows are never looked at"
        return self

    def output(self, launch: object, tensors: object) -> str:
        return launch()

    def relative_error(self, output: str) -> float:
        return 7.0 if self.data == self.wrong_on and output == "cuDNN" else 0.25

    def time_alone(self, launch: object, warm_up_seconds: float, timed_seconds: float) -> object:
        self.seconds.add((warm_up_seconds, timed_seconds))
        timing = super().time_alone(launch)
        timing.milliseconds = [2 * x if self.data == "steps" else x for x in timing.milliseconds]
        timing.watts = None
        return timing


@pytest.fixture
def by_data(peers: ModuleType, machine: MadeUpMachine) -> DataMachine:
    del machine  # it has changed where files go
    write_harness(peers.HARNESS, KNOWN)
    return DataMachine(peers)


def test_the_whole_table(peers: ModuleType, by_data: DataMachine, tmp_path: Path) -> None:
    assert peers.main(["--data", "all", "--seed", "5"], lambda: by_data) == 0
    folder = tmp_path / "profiles" / "h200"
    assert [path.name for path in folder.iterdir()] == ["peers_by_data.json"]
    document = json.loads((folder / "peers_by_data.json").read_text(encoding="utf-8"))
    validate_peers_by_data(document)
    assert document["data"] == distributions.DEFINITIONS
    assert [version["kernel"] for version in document["versions"]] == ["16", "23", "26", "27"]
    assert [peer["name"] for peer in document["peers"]] == ["FlashAttention-2", "cuDNN"]
    assert (document["run"]["warm_up_seconds"], document["run"]["timed_seconds"]) == (0.25, 0.2)
    assert by_data.seconds == {(0.25, 0.2)}
    cells = {(data, dtype, *shape) for data in document["data"] for dtype in ("fp16", "bf16") for shape in SHAPES}
    for one in (*document["versions"], *document["peers"]):
        assert {(r["data"], r["dtype"], r["batch"], r["seq_len"]) for r in one["results"]} == cells
        assert len(one["results"]) == len(cells)
    assert len(by_data.prepared) == 6 * 6, "once for each type and length, since some compile or tune themselves"
    of_27 = {(r["data"], r["seq_len"]): r["ms"]["median"] for r in document["versions"][3]["results"]}
    assert of_27["steps", 4096] == 2 * of_27["normal", 4096]
    assert set(by_data.filled) == {(data, 5) for data in document["data"]}
    assert document["problem"]["causal"] is False and by_data.asked == {PLAIN}


def of_causal(name: str, extends: str, *more: str, **changes: object) -> dict[str, object]:
    """A version that solves causal problems, and `more`, as harness --list --json describes it."""
    return {
        "kernel": name, "code_hash": HASH, "extends": extends, "architecture": "sm_80", "kind": "forward",
        "solves": {field: field in ("causal", *more) for field in ("causal", "window", "lengths")},
        "configurations": [{"name": "64x64", "dtype": "fp16", "head_dim": 128}],
    } | changes  # fmt: skip


VERSIONS = [
    of_causal("16", "", solves={"causal": False}),
    of_causal("a_pairs", "hopper_causal", architecture="sm_90a"),
    of_causal("causal", "16"),
    of_causal("gradients", "16", kind="backward"),
    of_causal("hopper_causal", "28", architecture="sm_90a"),
    of_causal("longest_first", "window", "window"),  # only faster, but at problems with a window
    of_causal("window", "causal", "window"),
]


def test_the_whole_table_with_the_causal_mask(
    peers: ModuleType, by_data: DataMachine, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    by_data.known = [str(version["kernel"]) for version in VERSIONS]
    peers.HARNESS.write_text(f"#!/bin/sh\necho '{json.dumps({'versions': VERSIONS})}'\n", encoding="utf-8")
    make_peers = by_data.peers

    def with_one_that_has_no_mask(without: set[str], dtype: str) -> tuple[list, dict[str, str]]:
        found, missing = make_peers(without, dtype)
        found.append(peers.Implementation("Maskless", "", by_data._prepare("Maskless"), lacks={"causal": "no mask"}))
        return found, missing

    monkeypatch.setattr(by_data, "peers", with_one_that_has_no_mask)
    assert peers.main(["--data", "all", "--causal"], lambda: by_data) == 0
    folder = tmp_path / "profiles" / "h200"
    assert [path.name for path in folder.iterdir()] == ["peers_by_data_causal.json"]
    document = json.loads((folder / "peers_by_data_causal.json").read_text(encoding="utf-8"))
    validate_peers_by_data(document)
    assert document["problem"]["causal"] is True and by_data.asked == {PROBLEMS["causal"]}
    assert [version["kernel"] for version in document["versions"]] == ["causal", "hopper_causal", "a_pairs"]
    assert [peer["name"] for peer in document["peers"]] == ["FlashAttention-2", "cuDNN"]
    assert document["run"]["left_out"]["Maskless"] == "no mask"
    for one in (*document["versions"], *document["peers"]):
        for result in one["results"]:
            scores = result["seq_len"] ** 2 / 2
            work = 4 * result["batch"] * 16 * 128 * scores
            assert result["tflops"] == pytest.approx(work / result["ms"]["median"] / 1e9, rel=2e-3)


@pytest.mark.parametrize(
    "less", [["--data", "normal,steps"], ["--shapes", "4096"], ["--dtype", "bf16"], ["--without", "fa2"]]
)
def test_a_part_is_written_where_it_is_asked_for_alone(
    peers: ModuleType,
    by_data: DataMachine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    less: list[str],
) -> None:
    arguments = ["--data", "all", *less, "--kernels", "27"]
    assert peers.main(arguments, lambda: by_data) == 0
    out = capsys.readouterr().out
    assert out.index("this run writes nothing") < out.index("TFLOP/s"), "before the minutes that it takes"
    assert not (tmp_path / "profiles").exists()
    assert peers.main([*arguments, "--out", str(tmp_path / "part.json")], lambda: by_data) == 0
    document = json.loads((tmp_path / "part.json").read_text(encoding="utf-8"))
    validate_peers_by_data(document)
    assert [version["kernel"] for version in document["versions"]] == ["27"]
    if "--data" in less:
        assert list(document["data"]) == ["normal", "steps"]


PART = "peers_by_data.part.json"


def interrupt(peers: ModuleType, by_data: DataMachine, cells: int) -> None:
    """Starts the whole table, and interrupts it after so many cells."""
    by_data.stops_after = len(by_data.alone) + cells
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--data", "all"], lambda: by_data)
    by_data.stops_after = 10**6


def without_date(document: dict) -> dict:
    return document | {"run": document["run"] | {"date": ""}}


def test_an_interrupted_table_is_resumed_at_the_last_complete_type_and_length(
    peers: ModuleType, by_data: DataMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    folder = tmp_path / "profiles" / "h200"
    by_data.wrong_on, by_data.broken_alone = "sink", {"23_overlap"}
    assert peers.main(["--data", "all"], lambda: by_data) == 1
    at_once = json.loads((folder / "peers_by_data.json").read_text(encoding="utf-8"))
    (folder / "peers_by_data.json").unlink()

    of_a_table = len(by_data.alone) // 6
    interrupt(peers, by_data, 2 * of_a_table + 7)
    assert [path.name for path in folder.iterdir()] == [PART], "a part takes no whole table's place"
    part = json.loads((folder / PART).read_text(encoding="utf-8"))
    validate_peers_by_data(part)
    assert sum(len(one["results"]) for one in (*part["versions"], *part["peers"])) == 2 * of_a_table + 5
    part["run"]["date"] = "2026-01-02T03:04:05Z"
    (folder / PART).write_text(json.dumps(part), encoding="utf-8")

    by_data.alone.clear()
    by_data.problems.clear()
    capsys.readouterr()
    assert peers.main(["--data", "all", "--resume"], lambda: by_data) == 1, "a table that was taken has wrong results"
    assert f"{PART}: seq_len 1024, fp16; seq_len 4096, fp16 is complete" in capsys.readouterr().out
    assert [(dtype, seq_len) for _, seq_len, dtype, _ in by_data.problems] == [
        ("fp16", 16384), ("bf16", 1024), ("bf16", 4096), ("bf16", 16384)
    ]  # fmt: skip
    assert len(by_data.alone) == 4 * of_a_table, "the table that was cut is measured anew as a whole"
    assert [path.name for path in folder.iterdir()] == ["peers_by_data.json"]
    resumed = json.loads((folder / "peers_by_data.json").read_text(encoding="utf-8"))
    assert without_date(resumed) == without_date(at_once)
    assert resumed["run"]["date"] == "2026-01-02T03:04:05Z", "of the first figure"


def test_without_resume_a_part_is_replaced_with_a_warning(
    peers: ModuleType, by_data: DataMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    interrupt(peers, by_data, 100)
    folder = tmp_path / "profiles" / "h200"
    (folder / PART).rename(folder / "out.part.json")
    arguments = ["--data", "normal", "--shapes", "1024", "--out", str(folder / "out.json")]
    assert peers.main(arguments, lambda: by_data) == 0
    assert "--resume would take its complete tables" in capsys.readouterr().out
    assert [path.name for path in folder.iterdir()] == ["out.json"]
    assert peers.main([*arguments, "--resume"], lambda: by_data) == 0
    assert "nothing to resume" in capsys.readouterr().out


def test_a_table_to_which_a_peer_was_added_is_not_complete(
    peers: ModuleType, by_data: DataMachine, tmp_path: Path
) -> None:
    out = ["--data", "normal,steps", "--out", str(tmp_path / "out.json")]
    by_data.stops_after = 5 * 2 + 5
    with pytest.raises(KeyboardInterrupt):
        peers.main([*out, "--without", "cudnn"], lambda: by_data)
    by_data.stops_after = 10**6
    by_data.alone.clear()
    assert peers.main([*out, "--resume"], lambda: by_data) == 0
    assert len(by_data.alone) == 6 * 6 * 2


@pytest.mark.parametrize(
    ("change", "words"),
    [
        (lambda part: part.update(device="NVIDIA H100"), "another device;"),
        (lambda part: part["run"].update(driver="2.0", timed_seconds=9), "another timed_seconds, another driver;"),
        (lambda part: part["versions"][3].update(code_hash="sha256:0"), "another code of 27 three_consumers;"),
        (lambda part: part["peers"][0].update(name="FlashAttention-9"), "another list of peers: FlashAttention-9;"),
        (lambda part: part["data"].pop("steps"), "another selection of data;"),
        (
            lambda part: part["peers"][0]["results"][0].update(seq_len=512),
            "another selection of dtypes or lengths;",
        ),
        (lambda part: part.pop("problem"), "cannot be used: KeyError: 'problem';"),
    ],
)
def test_a_part_of_another_gpu_or_code_is_refused(
    peers: ModuleType,
    by_data: DataMachine,
    tmp_path: Path,
    capsys: pytest.CaptureFixture,
    change: Callable[[dict], object],
    words: str,
) -> None:
    interrupt(peers, by_data, 100)
    path = tmp_path / "profiles" / "h200" / PART
    part = json.loads(path.read_text(encoding="utf-8"))
    change(part)
    path.write_text(json.dumps(part), encoding="utf-8")
    by_data.alone.clear()
    assert peers.main(["--data", "all", "--resume"], lambda: by_data) == 3
    err = capsys.readouterr().err
    assert err.count("\n") == 1 and str(path) in err and f"{words} measure again without --resume" in err
    assert by_data.alone == [] and json.loads(path.read_text(encoding="utf-8")) == part


def test_what_is_wrong_on_some_data_has_no_figure_there(
    peers: ModuleType,
    by_data: DataMachine,
    tmp_path: Path,
) -> None:
    by_data.wrong_on, by_data.broken_alone = "sink", {"23_overlap"}
    assert peers.main(["--data", "all"], lambda: by_data) == 1
    document = json.loads((tmp_path / "profiles" / "h200" / "peers_by_data.json").read_text(encoding="utf-8"))
    cudnn = document["peers"][1]["results"]
    assert len(cudnn) == 6 * 12 and not any(result["data"] == "sink" for result in cudnn)
    left_out = document["run"]["left_out"]
    assert left_out["cuDNN, sink, seq_len 4096, bf16"] == "wrong: 7 times the allowed error"
    assert left_out["23_overlap, normal, seq_len 1024, fp16"] == "40 of its launches reached the GPU late"
    assert [version["kernel"] for version in document["versions"]] == ["16", "26", "27"]


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--data", "sinks"], ["'sinks' is not a distribution", "four-sinks, broad, trained"]),
        (["--data", "all", "--regime", "sustained"], ["--regime cannot be combined with --data"]),
        (["--data", "all", "--resume", "--dtype", "fp16"], ["--resume needs a file", "--out"]),
        (["--data", "all", "--repeat", "30"], ["--repeat cannot be combined with --data"]),
        (["--data", "all", "--dtype", "e4m3"], ["fp16 and bf16"]),
        (["--data", "all", "--seconds", "-1"], ["--seconds -1", "0 to 3600"]),
        (["--data", "all", "--seconds", "nan"], ["--seconds nan", "0 to 3600"]),
        (["--warm-up", "1"], ["--warm-up needs --data"]),
        (["--causal"], ["--causal needs --data", "--problem causal"]),
        (["--causal", "--gradients", "all"], ["--causal needs --data"]),
    ],
)
def test_bad_usage(
    peers: ModuleType,
    by_data: DataMachine,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    words: list[str],
) -> None:
    assert peers.main(arguments, lambda: by_data) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and by_data.problems == []


# ---- correctness ----


def in_fp16(name: str) -> list[Tensor]:
    return [x.astype(np.float16).view(Tensor) for x in made(name)]


@pytest.mark.parametrize("name", ["normal", "sink", "steps", "zeros"])
@pytest.mark.parametrize("every", [1, 61])
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # PyTorch does not warn
def test_a_row_in_so_many_is_enough_to_find_a_mistake(name: str, every: int) -> None:
    q, k, v = in_fp16(name)
    reference = Reference(NumpyTorch, q, k, v, None, every)
    out = attention(q, k, v).astype(np.float16).view(Tensor)
    assert reference.relative_error(out) <= 1
    for mistake in (0.01 + out, np.full_like(out, np.nan), np.roll(out, 1, axis=2) if name != "zeros" else 1 + out):
        assert not reference.relative_error(mistake.view(Tensor)) <= 1
    out[1, 61, 3, 5] += 0.5
    assert not reference.relative_error(out) <= 1, "row 61 is looked at"


# ---- the data ----


def made(name: str, seq_len: int = 256) -> tuple[np.ndarray, np.ndarray, np.ndarray]:
    random = np.random.default_rng(3)
    source = distributions.Source(np, random.standard_normal, lambda n: np.arange(n, dtype=np.float64))
    return distributions.make(name, 2, seq_len, 6, source)


def scores(q: np.ndarray, k: np.ndarray, head: int = 0) -> np.ndarray:
    return q[1, :, head] @ k[1, :, head].T / math.sqrt(128)


def test_names_and_definitions_are_those_of_the_harness() -> None:
    text = (ROOT / "harness" / "problem" / "distribution.cpp").read_text(encoding="utf-8")
    found = dict(re.findall(r'\{Distribution::\w+,\s*"([a-z0-9-]+)",\s*"([^"]+)"\}', text))
    assert distributions.DEFINITIONS.items() <= found.items(), "the others are data that the check alone uses"


@pytest.mark.parametrize("name", distributions.DEFINITIONS)
def test_heads_have_data_of_their_own(name: str) -> None:
    for x in made(name):
        assert x.shape == (2, 256, 6, 128)
        if name == "zeros":
            assert not x.any()
        else:
            assert not np.allclose(x[0, :, 0], x[0, :, 3]) and not np.allclose(x[0], x[1])


def test_the_data_are_what_their_definitions_say() -> None:
    normal_q, normal_k, normal_v = made("normal")
    assert np.allclose(made("q-times-3")[0], 3 * normal_q) and np.allclose(made("q-times-6")[0], 6 * normal_q)
    assert np.allclose(made("broad")[0], normal_q / 4) and np.allclose(made("broad")[2], normal_v)
    k = made("equal-keys")[1]
    assert (k == k[:, :1]).all()

    q, k, _ = made("sink")
    w = (q - normal_q)[:, :1]
    assert np.allclose(q - normal_q, w) and np.allclose(k[:, :1], 4 * w)
    assert np.allclose((k - normal_k)[:, 1:], -w / 2)

    q, k, _ = made("rising")
    u = (q - normal_q)[:, :1] / 8
    assert np.allclose((u * u).sum(-1), 1)
    at = np.linspace(0, 16, 256)[None, :, None, None]
    assert np.allclose(k - normal_k, at * u)
    assert np.allclose(made("falling")[1] - normal_k, (16 - at) * u)
    q, k, _ = made("steps")
    assert np.allclose(q - normal_q, 16 * u) and np.allclose(
        k - normal_k, np.arange(256)[None, :, None, None] // 64 * u
    )

    q, k, _ = made("four-sinks")
    assert np.allclose(q - normal_q, 10 * u) and np.allclose((k - normal_k)[:, :4], 10 * u)
    assert (k[:, 4:] == normal_k[:, 4:]).all()

    q, k, _ = made("diagonal")
    assert (scores(q, k).argmax(axis=1) == np.arange(256)).mean() > 0.5, "each query finds its own place"
    q, k, _ = made("trained")
    for head, name in enumerate(("diagonal", "four-sinks", "broad") * 2):
        assert np.allclose((q - normal_q)[0, :, head], (made(name)[0] - normal_q)[0, :, head])


def test_a_single_key_has_no_way_to_rise() -> None:
    for name in ("rising", "falling"):
        assert np.isfinite(made(name, 1)[1]).all()


def test_an_unknown_name_is_refused() -> None:
    with pytest.raises(ValueError, match="'even' is not a distribution; allowed: normal, "):
        made("even")
