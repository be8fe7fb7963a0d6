"""scripts/blockwise_attention.py: the recurrences are attention, and the script prints what it computes."""

import json
import random
import subprocess
import sys
from math import exp, isclose
from pathlib import Path

import numpy as np
import pytest

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = ROOT / "scripts" / "blockwise_attention.py"
sys.path.append(str(SCRIPT.parent))
from blockwise_attention import attend, definition, elements  # noqa: E402
from float64_attention import attention  # noqa: E402


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([sys.executable, str(SCRIPT), *arguments], capture_output=True, text=True, check=False)


def matrix(generator: random.Random, rows: int, columns: int, size: float = 1) -> list[list[float]]:
    return [[generator.gauss(0, size) for _ in range(columns)] for _ in range(rows)]


@pytest.mark.parametrize("block_kv", [1, 3, 4, 10, 64])
@pytest.mark.parametrize("size", [1.0, 30.0])
def test_blocks_of_any_size_give_attention(block_kv: int, size: float) -> None:
    """After every tile, and with scores for which all but a few weights underflow."""
    generator = random.Random(7)
    (q,), K, V = matrix(generator, 1, 5, size), matrix(generator, 10, 5), matrix(generator, 10, 5)
    steps = attend(q, K, V, block_kv)
    assert [step.first_key for step in steps] == list(range(0, 10, block_kv))
    for step in steps:
        keys = step.first_key + len(step.S)
        exact = definition(q, K[:keys], V[:keys])
        assert all(isclose(a, b, rel_tol=1e-12, abs_tol=1e-14) for a, b in zip(step.output, exact, strict=True))
        scores = [sum(a * b for a, b in zip(q, k, strict=True)) / 5**0.5 for k in K[:keys]]
        assert isclose(step.m, max(scores)) and isclose(step.l, sum(exp(s - step.m) for s in scores))


def test_a_maximum_that_moves_rescales_what_was_there() -> None:
    first, second = attend([1.0], [[0.0], [2.0]], [[1.0], [3.0]], 1, scale=1.0)
    assert (first.m, first.r, first.l, first.O) == (0.0, 0.0, 1.0, [1.0])
    assert (second.m, second.r, second.l, second.O) == (2.0, exp(-2), exp(-2) + 1, [exp(-2) + 3])


def test_elements_of_both_types() -> None:
    assert elements("3c00c0003555", "fp16") == [1.0, -2.0, 0.333251953125]
    assert elements("3f80c0003eab", "bf16") == [1.0, -2.0, 0.333984375]


def test_every_m_l_and_o_is_printed() -> None:
    done = run("--seq-len", "2", "--seq-len-kv", "6", "--head-dim", "3", "--block-kv", "2", "--seed", "5")
    assert done.returncode == 0, done.stderr
    generator = random.Random(5)
    Q, K, V = (matrix(generator, rows, 3) for rows in (2, 6, 6))
    for q in Q:
        for step in attend(q, K, V, 2):
            for value in (step.m, step.l, *step.O, *step.P, *step.S):
                assert f"{value:.5f}" in done.stdout
    assert done.stdout.count("tile 2, keys 4–5") == 2


BROKEN = json.dumps({"problem": {"dtype": "fp16"}, "row": {"Q": "xyz"}})


@pytest.mark.parametrize("text", ["", "[]", '{"problem": {}}', BROKEN])
def test_a_file_that_is_something_else_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "file.json"
    file.write_text(text, encoding="utf-8")
    done = run("--from", str(file))
    assert done.returncode == 3 and "is not what harness --debug --json writes" in done.stderr
    assert run("--from", str(tmp_path / "missing")).returncode == 3


def test_bad_usage() -> None:
    assert run("--block-kv", "0").returncode == 2


def test_what_it_prints_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # as with a locale that is not UTF-8
    done = subprocess.run([sys.executable, SCRIPT], capture_output=True, check=False)
    assert done.returncode == 0 and "softmax(Q Kᵀ) V" in done.stdout.decode(), done.stderr


def test_the_definition_is_that_of_numpy() -> None:
    """One reference for rows in plain Python, and one for arrays."""
    generator = random.Random(3)
    Q, K, V = matrix(generator, 3, 8), matrix(generator, 20, 8), matrix(generator, 20, 8)
    arrays = [np.array(rows)[None, :, None] for rows in (Q, K, V)]
    for scale in (None, 0.3):
        exact = [definition(q, K, V, scale) for q in Q]
        assert np.allclose(attention(*arrays, scale)[0, :, 0], exact, rtol=1e-13, atol=0)
