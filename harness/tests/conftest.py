"""Shared by the tests: the command line, and the Python package."""

import sys
from pathlib import Path
from types import ModuleType

import pytest
from cli import Cli
from made_up_machine import machine, peers  # noqa: F401 (fixtures)
from python_package import install


@pytest.fixture
def cli(tmp_path: Path) -> Cli:
    return Cli(tmp_path)


@pytest.fixture(scope="session")
def package_folder(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Where the Python package is installed."""
    return install(tmp_path_factory.mktemp("package"))


@pytest.fixture(scope="session")
def fl(package_folder: Path) -> ModuleType:
    """The Python package."""
    if str(package_folder) not in sys.path:
        sys.path.insert(0, str(package_folder))
    import flash_ladder

    assert Path(flash_ladder.__file__).parents[1] == package_folder
    return flash_ladder
