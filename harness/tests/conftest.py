"""What the tests of the command line share."""

from pathlib import Path

import pytest
from cli import Cli


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)
