"""Lists the kernels by their files, so scripts and tests find a new kernel without any registration."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

from ladder import number_of


@dataclass(frozen=True)
class KernelFile:
    """One version: its number and name come from its file, as in common/host/versions.h."""

    file: str  # path from the root: "kernels/06_swizzle.cu", "kernels/extensions/causal.cu"

    @property
    def stem(self) -> str:
        """Its name in profiles and messages: "06_swizzle", "causal"."""
        return Path(self.file).stem

    @property
    def number(self) -> int | None:
        """None: an extension of the ladder has no number."""
        return None if Path(self.file).parent.name == "extensions" else number_of(self.stem)

    @property
    def kernel(self) -> str:
        """Its name for --kernel and in JSON: "06", "causal"."""
        return self.stem if self.number is None else self.stem[:2]

    @property
    def name(self) -> str:
        return self.stem if self.number is None else self.stem[3:]

    @property
    def label(self) -> str:
        """Its name in tables and plots: "06 swizzle", "causal"."""
        return self.name if self.number is None else f"{self.kernel} {self.name}"


def kernel_files(root: Path) -> list[KernelFile]:
    """All kernels of a source tree: in order of number, followed by the extensions by name."""
    patterns = ("[0-9][0-9]_*.cu", "hopper/[0-9][0-9]_*.cu", "extensions/*.cu", "hopper/extensions/*.cu")
    found = [path for pattern in patterns for path in (root / "kernels").glob(pattern)]
    files = [KernelFile(path.relative_to(root).as_posix()) for path in found]
    return sorted(files, key=lambda one: (one.number is None, one.number or 0, one.name))
