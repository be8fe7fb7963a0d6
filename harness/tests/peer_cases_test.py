"""scripts/peer_cases.py: its table, its tolerance, and, with PyTorch, small cases on the virtual GPU."""

from __future__ import annotations

import itertools
import json
import re
import subprocess
import sys
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from float64_attention import attention_and_lse
from schemas import validate_peer_cases

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import peer_cases  # noqa: E402

TABLE = peer_cases.tomllib.loads(peer_cases.TABLE.read_text(encoding="utf-8"))["group"]
COMMON = {"test", "batch", "batch_above_2048", "heads", "heads_with_softcap", "q_times_softcap", "packed"}
COMMON |= {"some_without_keys", "absolute", "factor_with_softcap", "rounding", "lengths", "axes"}
AXES = {"dtype", "head_dim", "kv_heads", "causal", "local", "alibi", "softcap", "layout", "swapped"}
AXES |= {"dropout", "attention_chunk", "page", "unused_rows"}


def test_the_table_has_only_what_the_script_reads() -> None:
    assert len({group["test"] for group in TABLE}) == len(TABLE) == 9
    for group in TABLE:
        assert group.keys() <= COMMON and group["axes"].keys() <= AXES, group["test"]
        assert {"test", "batch", "heads", "lengths"} <= group.keys() and {"dtype", "head_dim"} <= group["axes"].keys()
        assert ("softcap" in group["axes"]) == ("q_times_softcap" in group), group["test"]
        for heads in (group["heads"], group.get("heads_with_softcap", group["heads"])):
            assert all(kv == "all" or heads % kv == 0 for kv in group["axes"].get("kv_heads", []))


# Lengths, times the values of each parameter; a softcap and dropout never come together.
@pytest.mark.parametrize(
    ("test", "cases"),
    [
        ("tests/test_flash_attn.py::test_flash_attn_qkvpacked", 8 * 2 * 12 * 2 * 2 * 2 * 2),
        ("tests/test_flash_attn.py::test_flash_attn_output", 10 * 2 * 11 * 3 * 2 * 2 * 2 * (2 * 2 - 1) * 2),
        ("tests/test_flash_attn.py::test_flash_attn_varlen_causal", 10 * 2 * 12 * 2 * 2 * 3),
        ("hopper/test_flash_attn.py::test_flash_attn_output", 20 * 3 * 5 * 3 * 2 * 2 * 2 * 2),
    ],
)
def test_how_many_cases_there_are(test: str, cases: int) -> None:
    [group] = [group for group in TABLE if group["test"] == test]
    found = list(peer_cases.cases_of(group))
    assert len(found) == cases == len({json.dumps(case) for case in found})
    assert not any(case.get("softcap") and case.get("dropout") for case in found)


def test_swapped_lengths() -> None:
    group = {"test": "t", "lengths": [[1, 239]], "axes": {"swapped": [False, True]}}
    assert [(case["rows"], case["keys"]) for case in peer_cases.cases_of(group)] == [(1, 239), (239, 1)]


@pytest.mark.parametrize(
    ("given", "why"),
    [
        ({}, None),
        ({"head_dim": 64, "dropout": 0.17}, "head_dim"),
        ({"dtype": "e4m3"}, "e4m3"),
        ({"dropout": 0.17}, "dropout"),
        ({"attention_chunk": True}, "attention_chunk"),
        ({"page": 256}, "page"),
        ({"page": 0, "unused_rows": True}, "unused_rows"),
    ],
)
def test_what_is_not_supported(given: dict[str, Any], why: str | None) -> None:
    assert peer_cases.why_not_supported({"head_dim": 128, "dtype": "bf16"} | given, {128}) == why


class Numbers(np.ndarray):
    """Enough of a tensor for the tolerance."""

    def abs(self) -> Numbers:
        return np.abs(self)


def numbers(*values: float) -> Numbers:
    return np.array(values, np.float16).view(Numbers)


@pytest.mark.parametrize(
    ("case", "allowed"),
    [
        ({}, 2 * 0.25),
        ({"softcap": 50.0}, 2 * 0.25),
        ({"softcap": 15.0, "factor_with_softcap": 3.0}, 3 * 0.25),
        ({"factor_with_softcap": 3.0, "absolute": 1e-5}, 2 * 0.25 + 1e-5),
        ({"rounding": True}, 2 * 0.25 + 2 * 2**-12),  # 0.5 + 0.3 - 0.3 is 0.5 - 2⁻¹² in fp16
    ],
)
def test_the_tolerance(case: dict[str, Any], allowed: float) -> None:
    runner = object.__new__(peer_cases.Runner)
    exact, own = numbers(0.5, 4.0), numbers(0.75, 4.0)
    assert runner.allowed(case, exact, own) == pytest.approx(allowed)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    command = [sys.executable, str(SCRIPTS / "peer_cases.py"), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_refusals() -> None:
    for arguments, message in (
        (["--cases", "0"], "--cases is 0; allowed: 1 and more"),
        (["--all", "--cases", "3"], "--all and --cases exclude"),
        (["--record", "--longest", "9"], "leave out --table and --longest"),
    ):
        done = run(*arguments)
        assert done.returncode == 2 and message in done.stderr
    code = "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['torch'] = None; import peer_cases;"
    command = [sys.executable, "-c", code + "sys.exit(peer_cases.main([]))", str(SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "peer_cases: " in done.stderr and "torch" in done.stderr


# ---- with PyTorch, on the virtual GPU ----

SMALL = """
[[group]]
test = "small::padded"
batch = 2
heads = 4
heads_with_softcap = 2
q_times_softcap = 1.0
absolute = 1e-5
lengths = [[5, 40], [33, 20]]
[group.axes]
dtype = ["fp16", "bf16"]
head_dim = [128, 40]
kv_heads = ["all", 2]
causal = [false, true]
local = [false, true]
alibi = [false, true]
softcap = [0.0, 50.0]
layout = ["kv in one"]

[[group]]
test = "small::packed"
batch = 6
heads = 2
packed = "own"
some_without_keys = true
rounding = true
lengths = [[30, 40]]
[group.axes]
dtype = ["fp16"]
head_dim = [128]
swapped = [false, true]
causal = [false, true]
local = [false, true]
"""


@pytest.fixture
def runner(fl: ModuleType) -> peer_cases.Runner:
    pytest.importorskip("torch", reason="PyTorch is not installed")
    del fl  # which puts the package on the path
    return peer_cases.Runner("emulator")


def small() -> list[dict[str, Any]]:
    return peer_cases.tomllib.loads(SMALL)["group"]


def test_small_cases_pass(
    runner: peer_cases.Runner, monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    table = tmp_path / "table.toml"
    table.write_text(SMALL, encoding="utf-8")
    tests: list[peer_cases.Test] = []
    inner = peer_cases.run
    monkeypatch.setattr(peer_cases, "run", lambda *given: tests.extend(inner(*given)) or tests)
    assert peer_cases.main(["--device", "emulator", "--table", str(table), "--cases", "12"]) == 0
    out = capsys.readouterr().out
    padded, packed = tests
    assert "small::padded: 12 passed, 0 failed; of 256 cases not supported: head_dim 128" in out
    assert (padded.cases, padded.passed, padded.failures, padded.padded) == (256, 12, [], 0)
    assert (packed.cases, packed.passed, packed.failures) == (8, 8, [])
    assert packed.padded in (0, 8), "8 as long as no version solves packed sequences"
    assert re.search(r"^20 passed, 0 failed, 0 [^\d]*, in \d+ s, by ", out, re.MULTILINE)

    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    hashes = {kernel: "sha256:" + "1" * 64 for kernel in ("28", "29", *runner.fl.kernels())}
    monkeypatch.setattr(peer_cases.recording, "code_hashes", lambda _: hashes)
    runner.kernels["29_power_of_two"] += 1
    packed.failures.append({"case": "1 x 1", "kernel": "28_key_order", "error": None, "allowed": 0.1})
    document = peer_cases.document(tests, runner, 1.0, 0)
    validate_peer_cases(json.loads(json.dumps(document)))
    assert document["code_hash"].keys() == {"29"} and document["tests"][0]["not_supported"] == {"head_dim": 128}


def test_what_is_wrong_fails(
    runner: peer_cases.Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    forward = runner.fl.forward
    for change in (lambda out: out + 0.05, lambda out: out * float("nan")):
        wrong = SimpleNamespace(which=runner.fl.which, configs=runner.fl.configs, kernels=runner.fl.kernels)
        wrong.forward = lambda change=change, **given: change(forward(**given))
        monkeypatch.setattr(runner, "fl", wrong)
        [test] = peer_cases.run(small()[:1], runner, 3, None, 0)
        assert test.passed == 0 and len(test.failures) == 3
        assert capsys.readouterr().out.count("  FAILED ") == 3


def test_packed_sequences_are_compared_without_padding(
    runner: peer_cases.Runner, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Whichever version solves them: here each sequence is a call of its own."""
    forward, torch = runner.fl.forward, runner.torch

    def one_by_one(cu_seqlens_q: list[int], cu_seqlens_k: list[int], **given: Any) -> object:  # noqa: ANN401
        q, k, v = (given.pop(name) for name in "qkv")
        out = []
        for rows, keys in zip(itertools.pairwise(cu_seqlens_q), itertools.pairwise(cu_seqlens_k), strict=True):
            one = q[slice(*rows)][None], k[slice(*keys)][None], v[slice(*keys)][None]
            out.append(forward(*one, **given)[0] if keys[1] > keys[0] else torch.zeros_like(one[0][0]))
        return torch.cat(out)

    calls = SimpleNamespace(which=lambda **given: "one by one", forward=one_by_one)
    monkeypatch.setattr(runner, "head_dims", lambda: {128})
    monkeypatch.setattr(runner, "fl", calls)
    [test] = peer_cases.run(small()[1:], runner, None, None, 0)
    assert (test.passed, test.failures, test.padded) == (8, [], 0)
    monkeypatch.setattr(calls, "forward", lambda **given: one_by_one(**given).flip(0))
    [test] = peer_cases.run(small()[1:], runner, None, None, 0)
    assert (test.passed, len(test.failures)) == (0, 8)


def test_what_no_version_solves_is_counted(
    runner: peer_cases.Runner, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    def which(**given: object) -> str:
        raise ValueError("no version solves it")

    monkeypatch.setattr(runner, "fl", SimpleNamespace(which=which, kernels=lambda: ["a"], configs=runner.fl.configs))
    monkeypatch.setattr(runner, "head_dims", lambda: {128})
    [test] = peer_cases.run(small()[:1], runner, 5, None, 0)
    assert (test.passed, test.failures, dict(test.refused)) == (0, [], {"no version solves it": 5})
    assert "0 passed, 0 failed, 5 not solved by any version; of 256 cases" in capsys.readouterr().out


@pytest.mark.parametrize("packed", [None, "own"])
def test_the_reference_is_attention(runner: peer_cases.Runner, packed: str | None) -> None:
    case = {"test": "t", "batch": 2, "heads": 4, "kv_heads": 2, "dtype": "fp16", "head_dim": 128, "seed": 3}
    case |= {"rows": 30, "keys": 40, "local": True, "alibi": True, "softcap": 5.0, "q_times_softcap": 0.25}
    inputs = peer_cases.Inputs(runner.torch, "cpu", case | {"packed": packed})
    given, found = inputs.padded(), inputs.attention(upcast=True).numpy()
    assert ("lengths" in given) == (packed is not None)
    q, k, v = (given[name].numpy() for name in "qkv")
    fields = {name: given[name] for name in ("causal", "window", "softcap")}
    fields["alibi_slopes"] = given["alibi_slopes"].numpy()
    for i, (rows, keys) in enumerate(zip(inputs.rows_of_q, inputs.rows_of_k, strict=True)):
        expected, _ = attention_and_lse(q[i : i + 1, :rows], k[i : i + 1, :keys], v[i : i + 1, :keys], **fields)
        assert np.abs(found[i, :rows] - expected[0]).max() <= 2**-11 * np.abs(expected).max()
        assert not found[i, rows:].any()
