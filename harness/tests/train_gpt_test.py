"""scripts/train_gpt.py: a tiny model on the virtual GPU, kernels that are wrong, and what it records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from schemas import validate_training

pytest.importorskip("torch", reason="PyTorch is not installed")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import train_gpt  # noqa: E402

TEXT = "One idea a step. " * 300


@pytest.fixture(autouse=True)
def short(monkeypatch: pytest.MonkeyPatch) -> None:
    """A text of few characters, which a tiny model learns in few steps."""
    monkeypatch.setattr(train_gpt, "repository_text", lambda: TEXT)
    monkeypatch.setattr(train_gpt, "WARM_UP_STEPS", 1)


def test_the_losses_coincide(fl: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture) -> None:
    """On the virtual GPU; what a GPU's run would record is recorded under a made-up name."""
    del fl
    trained: list[train_gpt.Run] = []
    texts: list[train_gpt.Written] = []
    train, write = train_gpt.train, train_gpt.write

    def watched_train(*arguments: object) -> tuple[train_gpt.Run, object]:
        run, model = train(*arguments)
        trained.append(run)
        return run, model

    def watched_write(*arguments: object) -> train_gpt.Written:
        texts.append(write(*arguments))
        return texts[-1]

    monkeypatch.setattr(train_gpt, "train", watched_train)
    monkeypatch.setattr(train_gpt, "write", watched_write)
    assert train_gpt.main(["--device", "emulator"]) == 0
    out = capsys.readouterr().out
    assert "12 characters, written with a cache: the same with the ladder's attention and with PyTorch's" in out
    assert "the ladder's attention by " in out and " and backward_hopper_any_length" in out and "per second" not in out
    of = {run.name: run for run in trained}
    for run in trained:
        assert abs(run.losses[0] - of["sdpa"].losses[0]) < 0.01, "all begin with the same weights and characters"
    assert of["ladder"].losses[-1] < of["ladder"].losses[0] * 2 / 3, "it learns, at a rate that falls to 0 in six steps"
    assert len(of["standard"].losses) < len(of["ladder"].losses) == len(of["sdpa"].losses)

    hashes = {kernel: "sha256:" + "1" * 64 for kernel in ("log_sum_exp", "backward_any_length")}
    monkeypatch.setattr("comparison.recording.code_hashes", lambda _: hashes)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")
    text, sizes = train_gpt.Text(TEXT), train_gpt.SIZES["emulator"]
    document = train_gpt.document(trained, texts, text, sizes, ["log_sum_exp", "backward_any_length"], 0)
    validate_training(json.loads(json.dumps(document)))
    assert document["model"]["vocabulary"] == len(set(TEXT))


def test_wrong_gradients_are_noticed(fl: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    backward = fl.backward
    monkeypatch.setattr(fl, "backward", lambda *arrays, **fields: tuple(-30 * x for x in backward(*arrays, **fields)))
    assert train_gpt.main(["--device", "emulator"]) == 1


def test_a_wrong_decode_is_noticed(
    fl: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    decode = fl.decode
    monkeypatch.setattr(fl, "decode", lambda q, k, v, lengths: -8 * decode(q, k, v, lengths))
    assert train_gpt.main(["--device", "emulator"]) == 1
    assert " are the same; then logits differ by " in capsys.readouterr().out


@pytest.mark.parametrize("validation", [1.021, float("nan")])
def test_losses_that_do_not_coincide(validation: float) -> None:
    runs = [train_gpt.Run("sdpa", [1.0], 1.0, 1, 0), train_gpt.Run("ladder", [1.0], validation, 1, 0)]
    assert not train_gpt.coincide(runs)


def test_what_is_refused_or_missing() -> None:
    command = [sys.executable, str(SCRIPTS / "train_gpt.py"), "--device", "emulator", "--record"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3), "3 if this Python does not find the package"
    code = "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['torch'] = None; import train_gpt;"
    command = [sys.executable, "-c", code + "sys.exit(train_gpt.main([]))", str(SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "train_gpt: " in done.stderr
