"""scripts/fp8_error.py: its rounding against ml_dtypes, its rotation, and what it says where something is missing."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import ml_dtypes
import numpy as np
import pytest

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import fp8_error  # noqa: E402

COMMAND = [sys.executable, str(SCRIPTS / "fp8_error.py")]


def test_rounding_is_that_of_the_format() -> None:
    random = np.random.default_rng(0)
    x = np.concatenate([random.standard_normal(20000) * 2.0 ** random.integers(-12, 8, 20000), fp8_error.e4m3_values()])
    x = np.clip(np.concatenate([x, -x, (x[1:] + x[:-1]) / 2]), -448, 448)
    assert (fp8_error.to_e4m3(x) == x.astype(ml_dtypes.float8_e4m3fn).view(np.uint8)).all()
    assert (fp8_error.from_e4m3(fp8_error.to_e4m3(x)) == x.astype(ml_dtypes.float8_e4m3fn).astype(np.float64)).all()
    assert fp8_error.from_e4m3(fp8_error.to_e4m3(np.array([500.0, -1e9]))).tolist() == [448, -448]


def test_a_rotation_changes_no_score_and_spreads_an_outlier() -> None:
    random = np.random.default_rng(1)
    turn = fp8_error.rotation(random)
    q, k = random.standard_normal((2, 64, 128))
    assert np.allclose((q @ turn) @ (k @ turn).T, q @ k.T)
    outlier = np.zeros((1, 128))
    outlier[0, 5] = 30
    assert np.allclose(np.abs(outlier @ turn), 30 / 128**0.5)


def test_with_outliers_a_rotation_makes_the_error_less() -> None:
    random = np.random.default_rng(2)
    q, k, v = random.standard_normal((3, 1, 256, 1, 128))
    q[0, 3, 0, 7], k[0, 9, 0, 11] = 60, -60
    exact, turn = fp8_error.attention(q, k, v), fp8_error.rotation(random)

    def error(*arrays: np.ndarray) -> float:
        rounded = [fp8_error.quantise(x) for x in arrays]
        o = fp8_error.attention(*(fp8_error.from_e4m3(bits) * s[:, None, :, None] for bits, s in rounded))
        return fp8_error.error(o, exact)

    assert error(q @ turn, k @ turn, v) < 0.9 * error(q, k, v)


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """Where that module cannot be imported, and the ladder's package is there but for that."""
    code = "import sys, types; sys.path.insert(0, sys.argv[1]); sys.modules['flash_ladder'] = types.ModuleType('');"
    code += f"sys.modules['{module}'] = None; import fp8_error; sys.exit(fp8_error.main(sys.argv[2:]))"
    command = [sys.executable, "-I", "-c", code, str(SCRIPTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_refusals() -> None:
    done = run("--seq-len", "0")
    assert done.returncode == 2 and "--seq-len is 0; allowed: 1 and more" in done.stderr
    done = run("--seed", "-1")
    assert done.returncode == 2 and "--seed is -1; allowed: 0 and more" in done.stderr
    done = run_without("flash_ladder", "--seq-len", "64")
    assert done.returncode == 3 and "install the ladder's Python package" in done.stderr
    done = run_without("torch", "--seq-len", "64", "--gpu")
    assert done.returncode == 3 and "install PyTorch for this Python, " in done.stderr
    assert "the ladder's Python package" not in done.stderr


def test_what_the_package_refuses_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def refuse(*_arrays: np.ndarray, **_more: object) -> None:
        raise ValueError("q.shape[0] (batch) 70000 is more than the 65535")

    monkeypatch.setitem(sys.modules, "flash_ladder", SimpleNamespace(forward=refuse))
    assert fp8_error.main(["--seq-len", "1"]) == 2
    assert capsys.readouterr().err == "fp8_error: q.shape[0] (batch) 70000 is more than the 65535\n"


def test_help_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # as where the locale is not UTF-8
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, check=False)
    assert done.returncode == 0 and "‖O - exact‖" in done.stdout.decode(), done.stderr
