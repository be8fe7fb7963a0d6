"""Copies of profiles/ for tests, whose outcome must not depend on which of the recordings are stale at the moment."""

import json
import subprocess
from pathlib import Path
from typing import Any

from cli import BUILD
from stale_recordings import present_hashes


def as_if_of_these_sources(profiles: Path) -> None:
    """Gives all recordings in a copy of profiles/ the hashes of the present kernels, so that none of them is stale."""
    listed = subprocess.run([BUILD / "harness", "--list", "--json", "-"], stdout=subprocess.PIPE, check=True).stdout
    hashes = present_hashes(json.loads(listed)["versions"])

    def renew(value: Any, name: str) -> None:  # noqa: ANN401 (any JSON)
        if isinstance(value, list):
            for element in value:
                renew(element, name)
        elif isinstance(value, dict):
            name = value.get("kernel", name)
            found = value.get("code_hash")
            if isinstance(found, dict):
                value["code_hash"] = {one: hashes.get(one, old) for one, old in found.items()}
            elif found is not None:
                value["code_hash"] = hashes.get(name, found)
            for member in value.values():
                renew(member, name)

    for path in profiles.glob("*/*.json"):
        document = json.loads(path.read_text(encoding="utf-8"))
        renew(document, path.stem)
        path.write_text(json.dumps(document), encoding="utf-8")
