"""scripts/fp8_error.py: its rounding compared with ml_dtypes, its rotation, and its messages if a part is missing."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import SimpleNamespace

import distributions
import ml_dtypes
import numpy as np
import pytest
from schemas import validate_fp8_error

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


class Kernels:
    """Exact kernels in place of the ladder's and FlashAttention-3's: only the error of rounding Q, K and V is left."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
        self.calls: list[str] = []
        monkeypatch.setattr(fp8_error, "ours", self.ours)
        monkeypatch.setattr(fp8_error, "flash_attention_3", lambda bits, scales: self.of_bits(bits, scales))
        monkeypatch.setattr(fp8_error, "ROOT", tmp_path)
        torch = SimpleNamespace(cuda=SimpleNamespace(get_device_name=lambda: "NVIDIA H200"))
        monkeypatch.setitem(sys.modules, "torch", torch)
        hashes = {"27": "sha256:" + "2" * 64, "fp8": "sha256:" + "8" * 64, "16": "sha256:" + "1" * 64}
        monkeypatch.setattr(fp8_error.recording, "code_hashes", lambda harness: hashes)

    def ours(self, arrays: list[np.ndarray], scales: np.ndarray | None, kernel: str, gpu: bool) -> np.ndarray:
        del gpu
        self.calls.append(kernel)
        if kernel == "27":
            return 1.01 * fp8_error.attention(*(x.astype(np.float64) for x in arrays))
        return self.of_bits(arrays, scales)

    def of_bits(self, bits: list[np.ndarray], scales: np.ndarray) -> np.ndarray:
        pairs = zip(bits, scales, strict=True)
        return fp8_error.attention(*(fp8_error.from_e4m3(b) * scale[:, None, :, None] for b, scale in pairs))


@pytest.fixture
def kernels(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Kernels:
    return Kernels(monkeypatch, tmp_path)


def test_all_data_are_recorded(kernels: Kernels, tmp_path: Path) -> None:
    assert fp8_error.main(["--seq-len", "96", "--heads", "3", "--gpu", "--record"]) == 0
    path = tmp_path / "profiles" / "h200" / "fp8_error.json"
    document = json.loads(path.read_text(encoding="utf-8"))
    validate_fp8_error(document)
    assert document["problem"] == {"batch": 1, "heads": 3, "seq_len": 96, "head_dim": 128, "seed": 0}
    assert document["code_hash"] == {"27": "sha256:" + "2" * 64, "fp8": "sha256:" + "8" * 64}
    assert document["left_out"] == {}
    found = {(one["data"], one["rotated"]): one for one in document["results"]}
    assert {data for data, _ in found} == {*distributions.DEFINITIONS, "outliers"} - {"zeros"}
    assert {data for data, rotated in found if rotated} == {"normal", "outliers"}
    of_normal = {one["name"]: one for one in found["normal", False]["errors"]}
    assert list(of_normal) == ["27", "fp8", "FlashAttention-3"]
    assert of_normal["27"]["kernel_alone"] == pytest.approx(0.01)
    for one in document["results"]:
        assert 0.01 < one["rounding"] < 0.5, "three bits of mantissa"
        for kernel in one["errors"][-2:]:
            assert kernel["error"] == pytest.approx(one["rounding"]) and kernel["kernel_alone"] < 1e-12
    assert found["outliers", True]["rounding"] < found["outliers", False]["rounding"]


def test_without_a_gpu_or_the_peer(
    kernels: Kernels, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    assert fp8_error.main(["--seq-len", "32", "--data", "steps,outliers"]) == 0
    out = capsys.readouterr().out
    assert "steps " in out and "outliers, rotated " in out and "normal" not in out
    assert "without FlashAttention-3: it needs a GPU; add --gpu" in out and kernels.calls == ["27", "fp8"] * 2 + ["fp8"]

    def missing(_bits: list[np.ndarray], _scales: np.ndarray) -> np.ndarray:
        raise ImportError("No module named 'flash_attn_interface'")

    monkeypatch.setattr(fp8_error, "flash_attention_3", missing)
    assert fp8_error.main(["--seq-len", "32", "--gpu", "--data", "steps"]) == 0
    assert "without FlashAttention-3: ImportError: No module named" in capsys.readouterr().out


@pytest.mark.parametrize("output", ["out", ("out", "lse")])
def test_flash_attention_3_may_return_the_log_of_the_sums_as_well(
    monkeypatch: pytest.MonkeyPatch, output: object
) -> None:
    asked = []

    def flash_attn_func(q: str, k: str, v: str, **descales: str) -> object:
        asked.append((q, k, v, descales))
        return output

    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_func=flash_attn_func))
    attention = fp8_error.adapters.flash_attention_3()
    assert attention("q", "k", "v", None) == "out" and attention("q", "k", "v", ["a", "b", "c"]) == "out"
    assert asked == [("q", "k", "v", {}), ("q", "k", "v", {"q_descale": "a", "k_descale": "b", "v_descale": "c"})]


def run(*arguments: str) -> subprocess.CompletedProcess[str]:
    return subprocess.run([*COMMAND, *arguments], capture_output=True, text=True, check=False)


def run_without(module: str, *arguments: str) -> subprocess.CompletedProcess[str]:
    """As if that module could not be imported, although the ladder's package is there."""
    code = "import sys, types; sys.path.insert(0, sys.argv[1]); sys.modules['flash_ladder'] = types.ModuleType('');"
    code += f"sys.modules['{module}'] = None; import fp8_error; sys.exit(fp8_error.main(sys.argv[2:]))"
    command = [sys.executable, "-I", "-c", code, str(SCRIPTS), *arguments]
    return subprocess.run(command, capture_output=True, text=True, check=False)


def test_refusals() -> None:
    done = run("--seq-len", "0")
    assert done.returncode == 2 and "--seq-len is 0; allowed: 1 and more" in done.stderr
    done = run("--seed", "-1")
    assert done.returncode == 2 and "--seed is -1; " in done.stderr
    done = run("--data", "normal,sinks")
    assert done.returncode == 2 and "--data: 'sinks' is not one of all, normal, " in done.stderr
    for arguments in (["--record"], ["--record", "--gpu", "--data", "normal"]):
        done = run(*arguments)
        assert done.returncode == 2 and "it needs --gpu, and no --data" in done.stderr
    done = run_without("flash_ladder", "--seq-len", "64")
    assert done.returncode == 3 and "install the ladder's Python package" in done.stderr
    done = run_without("torch", "--seq-len", "64", "--gpu")
    assert done.returncode == 3 and "install PyTorch for this Python, " in done.stderr
    assert "the ladder's Python package" not in done.stderr


def test_what_the_package_refuses_is_a_message(monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    def refuse(*_arrays: np.ndarray, **_more: object) -> None:
        raise ValueError("q.shape[0] is 70000")

    monkeypatch.setitem(sys.modules, "flash_ladder", SimpleNamespace(forward=refuse))
    assert fp8_error.main(["--seq-len", "1"]) == 2
    assert capsys.readouterr().err == "fp8_error: q.shape[0] is 70000\n"


def test_help_is_utf_8(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("PYTHONIOENCODING", "ascii")  # as with a locale that is not UTF-8
    done = subprocess.run([*COMMAND, "--help"], capture_output=True, check=False)
    assert done.returncode == 0 and "‖O - exact‖" in done.stdout.decode(), done.stderr
