"""What scripts that run the ladder's versions in PyTorch have in common."""

from __future__ import annotations

import argparse
import datetime
import sys
from collections.abc import Iterable
from typing import Any

from ladder import HARNESS, ROOT, device_slug

from comparison import recording
from comparison.implementations import UnavailableError


def chosen_device(asked: str | None, record: bool, parser: argparse.ArgumentParser) -> str:
    """"gpu" or "emulator". Raises UnavailableError if there is no GPU, and ends the program if --record needs one."""
    import torch

    device = asked or ("gpu" if torch.cuda.is_available() else "emulator")
    if device == "gpu" and not torch.cuda.is_available():
        raise UnavailableError("PyTorch finds no GPU; leave out --device, or use --device emulator")
    if record and device != "gpu":
        parser.error("--record stores results of a GPU; it needs --device gpu")
    return device


def about_run(schema: str, kernels: Iterable[str], seed: int) -> dict[str, Any]:
    """The members with which every recording of theirs begins. Raises UnavailableError if the harness is not built."""
    import torch

    now = datetime.datetime.now(datetime.timezone.utc)
    return {
        "schema": recording.schema_of(schema),
        "device": torch.cuda.get_device_name(),
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "code_hash": recording.hashes_of(kernels, HARNESS),
        "pytorch": torch.__version__,
        "seed": seed,
    }


def record(document: dict[str, Any], file: str) -> None:
    """Writes a file of profiles/<device>/, and says so. Raises UnavailableError."""
    path = ROOT / "profiles" / device_slug(document["device"]) / file
    recording.write(path, recording.formatted(document) + "\n")
    print(f"wrote {path}")


def explain(program: str, missing: ImportError | UnavailableError) -> int:
    """Says on stderr what is missing, and how to get it. Returns the exit status, 3."""
    remedy = ""
    if isinstance(missing, ImportError):
        package = "./harness/python" if missing.name == "flash_ladder" else missing.name
        python = "" if missing.name == "flash_ladder" else f"{sys.executable} -m "
        remedy = f"; {python}pip install {package}"
    print(f"{program}: {missing}{remedy}", file=sys.stderr)
    return 3
