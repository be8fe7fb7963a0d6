"""scripts/model_example.py: the models' logits on the virtual GPU, an attention that is wrong, and what it records."""

from __future__ import annotations

import json
import subprocess
import sys
from pathlib import Path
from types import ModuleType

import pytest
from schemas import validate_models

pytest.importorskip("torch", reason="PyTorch is not installed")
pytest.importorskip("transformers", reason="transformers is not installed")

SCRIPTS = Path(__file__).resolve().parents[2] / "scripts"
sys.path.insert(0, str(SCRIPTS))
import model_example  # noqa: E402
from kernel_files import kernel_files  # noqa: E402


def test_the_logits_are_within_the_bound(
    fl: ModuleType, tmp_path: Path, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture
) -> None:
    """On the virtual GPU; what a GPU's run would record is recorded under a made-up name."""
    forward = fl.forward
    documents = []
    hashes = {file.kernel: "sha256:" + "1" * 64 for file in kernel_files(model_example.recording.ROOT)}
    monkeypatch.setattr(model_example.recording, "code_hashes", lambda _: hashes)
    monkeypatch.setattr("torch.cuda.get_device_name", lambda: "NVIDIA H200")

    compare = model_example.compare

    def watched(*arguments: object) -> list[dict]:
        found = compare(*arguments)
        documents.append(model_example.document(found, model_example.SIZES["emulator"], arguments[-1], 0))
        return found

    monkeypatch.setattr(model_example, "compare", watched)
    assert model_example.main(["--device", "emulator"]) == 0
    out = capsys.readouterr().out
    assert out.count("; within the bound of ") == 8 and "BEYOND" not in out
    assert "Llama bf16, padded: errors of the logits (up to " in out and "attention by " in out
    assert fl.forward is forward
    assert len(documents) == 4
    for document in documents:
        validate_models(json.loads(json.dumps(document)))
    of_gemma = documents[-1]["results"][0]
    assert of_gemma["model"] == "Gemma2" and list(of_gemma["errors"]) == ["eager", "ladder"]


@pytest.mark.parametrize("lost", ["window", "softcap"])
def test_an_attention_that_loses_a_field_is_beyond_the_bound(
    fl: ModuleType, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture, lost: str
) -> None:
    forward = fl.forward
    monkeypatch.setattr(fl, "forward", lambda *arrays, **fields: forward(*arrays, **fields | {lost: None}))
    monkeypatch.setattr(model_example, "MODELS", ("Gemma2",))
    assert model_example.main(["--device", "emulator"]) == 1
    assert capsys.readouterr().out.count("BEYOND") == 4


def test_what_is_refused_or_missing(fl: ModuleType) -> None:
    del fl
    command = [sys.executable, str(SCRIPTS / "model_example.py"), "--device", "emulator", "--record"]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode in (2, 3), "3 if this Python does not find the package"
    code = "import sys; sys.path.insert(0, sys.argv[1]); sys.modules['transformers'] = None; import model_example;"
    command = [sys.executable, "-c", code + "sys.exit(model_example.main([]))", str(SCRIPTS)]
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    assert done.returncode == 3 and "model_example: " in done.stderr
