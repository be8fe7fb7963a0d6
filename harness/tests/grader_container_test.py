"""The image that grades: built and run, where a base image can be fetched."""

import shutil
import subprocess
from pathlib import Path

import pytest
from grading import ROOT

BASE = "docker.io/library/debian:12"


def podman(*words: str | Path) -> subprocess.CompletedProcess:
    return subprocess.run(["podman", *map(str, words)], capture_output=True, text=True, check=False)


def test_the_image_grades(tmp_path: Path) -> None:
    if not shutil.which("podman"):
        pytest.skip("podman is not installed")
    if podman("image", "exists", BASE).returncode != 0 and podman("pull", "--quiet", BASE).returncode != 0:
        pytest.skip(f"{BASE} cannot be fetched")
    clone = tmp_path / "ladder"
    subprocess.run(["git", "clone", "--quiet", "--depth=1", f"file://{ROOT}", clone], check=True)
    image = f"flash-ladder-test-{tmp_path.name}"
    recipe = clone / "harness" / "grader" / "recipes" / "Containerfile"
    try:
        built = podman("build", "--tag", image, "--file", recipe, clone)
        assert built.returncode == 0, built.stderr
        run = ("run", "--rm", "--network=none", "--volume", f"{tmp_path}:/class", image)
        for what, code in (("--reference", 0), ("--starter", 1)):
            assert podman(*run, what, "puzzles", "--course", "practice", "--out", f"/class/{what}.cu").returncode == 0
            graded = podman(*run, "--grade", f"/class/{what}.cu", "--assignment", "puzzles", "--course", "practice")
            assert graded.returncode == code, graded.stdout + graded.stderr
    finally:
        podman("image", "rm", "--force", image)
