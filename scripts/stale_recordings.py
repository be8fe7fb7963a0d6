#!/usr/bin/env python3
"""Names the recordings in profiles/ that were made before their version's code was changed.

Such a recording is shown as stale, and no test fails because of it, so a kernel can be changed without a GPU. A release
must not contain stale recordings, so scripts/docs --strict runs this script. Exit status: 0 if there are none, 1 if
there are some, 3 if the harness is not built.
"""

from __future__ import annotations

import json
import subprocess
import sys
from collections.abc import Iterable, Iterator
from pathlib import Path
from typing import Any

from ladder import HARNESS, ROOT


def present_hashes(versions: Iterable[dict[str, Any]]) -> dict[str, str]:
    """The hash of each version's code, by its id and by the stem of its file: "07" and "07_ldmatrix"."""
    hashes: dict[str, str] = {}
    for version in versions:
        hashes[version["kernel"]] = hashes[Path(version["file"]).stem] = version["code_hash"]
    return hashes


def stale_recordings(profiles: Path, versions: Iterable[dict[str, Any]]) -> list[str]:
    """Each as "h200/07_ldmatrix.json", or "h200/peers.json: 07" for a part of a file that several versions share.

    `versions` are those of `harness --list --json`. The virtual GPU's recordings need no GPU, and a test keeps them up
    to date; a recording of a version that no longer exists is stale, too.
    """
    hashes = present_hashes(versions)
    found = set()
    for path in sorted(profiles.glob("*/*.json")):
        if path.parent.name == "emulator":
            continue
        place = f"{path.parent.name}/{path.name}"
        document = json.loads(path.read_text(encoding="utf-8"))
        for version, code_hash in _recorded(path.stem, document):
            if hashes.get(version) != code_hash:
                found.add(place if version == path.stem else f"{place}: {version}")
    return sorted(found)


def _recorded(stem: str, document: dict[str, Any]) -> Iterator[tuple[str, str]]:
    """The versions that a file has figures of, each with the hash of its code."""
    if isinstance(document.get("code_hash"), dict):  # ncu.json, fp8_error.json
        yield from document["code_hash"].items()
        return
    if "code_hash" in document:
        yield stem, document["code_hash"]
    regimes = document.get("regimes", {}).values()  # peers.json
    for part in (*regimes, document):  # peers_by_data.json, peers_by_problem.json and tuning.json
        for entry in (*part.get("versions", []), *part.get("entries", [])):
            yield entry["kernel"], entry["code_hash"]


def main() -> int:
    try:
        listed = subprocess.run([HARNESS, "--list", "--json", "-"], capture_output=True, text=True, check=True)
    except (OSError, subprocess.CalledProcessError) as error:
        print(f"stale_recordings.py: {HARNESS} --list failed: {error}; scripts/setup builds it", file=sys.stderr)
        return 3
    stale = stale_recordings(ROOT / "profiles", json.loads(listed.stdout)["versions"])
    for name in stale:
        print(f"profiles/{name}: recorded from an earlier text of the version")
    return 1 if stale else 0


if __name__ == "__main__":
    sys.exit(main())
