"""Installs the Python package as pip and CMake do, for its tests."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))


def install(folder: Path) -> Path:
    """Installs the package into a folder and returns it, for sys.path.

    pip installs what pyproject.toml says, and CMake the extension modules that are already in the build. pip alone
    would build those again, with the same result. FLASH_LADDER_PYTHON_INSTALLED=1 tests the package that Python finds
    by itself.
    """
    if os.environ.get("FLASH_LADDER_PYTHON_INSTALLED"):
        import flash_ladder

        return Path(flash_ladder.__file__).parents[1]
    pip = [sys.executable, "-m", "pip", "--disable-pip-version-check", "install", "--quiet", "--no-index", "--no-deps"]
    pip += ["--no-build-isolation", "--config-settings=wheel.cmake=false", "--target", str(folder)]
    cmake = ["cmake", "--install", str(BUILD), "--component", "python", "--prefix", str(folder)]
    for command in ([*pip, str(ROOT / "harness" / "python")], cmake):
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stdout + done.stderr
    return folder


def run_python(
    folder: Path, program: str, timeout: float | None = None, **environment: str
) -> subprocess.CompletedProcess[str]:
    """Runs a program in a separate Python that finds the package."""
    return subprocess.run(
        [sys.executable, "-c", program],
        env=os.environ | {"PYTHONPATH": str(folder)} | environment,
        capture_output=True,
        text=True,
        check=False,
        timeout=timeout,
    )
