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
        """Its place on the ladder and the Hopper track. None: an extension, or a version of another track."""
        is_other = self.is_backward or self.is_decoding or Path(self.file).parent.name == "extensions"
        return None if is_other else number_of(self.stem)

    @property
    def is_backward(self) -> bool:
        return self.file.startswith("kernels/backward/")

    @property
    def is_decoding(self) -> bool:
        return self.file.startswith("kernels/decoding/")

    @property
    def kernel(self) -> str:
        """Its name for --kernel and in JSON: "06", "B01", "D01", "causal"."""
        is_numbered = Path(self.file).parent.name != "extensions"
        return self.stem.split("_")[0] if is_numbered else self.stem

    @property
    def name(self) -> str:
        return self.stem if self.kernel == self.stem else self.stem.split("_", 1)[1]

    @property
    def label(self) -> str:
        """Its name in tables and plots: "06 swizzle", "D01 one_query", "causal"."""
        return self.name if self.kernel == self.stem else f"{self.kernel} {self.name}"


def kernel_files(root: Path) -> list[KernelFile]:
    """All kernels of a source tree: in order of number, then gradients, decoding, and the extensions by name."""
    patterns = ("[0-9][0-9]_*.cu", "hopper/[0-9][0-9]_*.cu", "backward/B[0-9][0-9]_*.cu")
    patterns += ("backward/hopper/B[0-9][0-9]_*.cu", "decoding/D[0-9][0-9]_*.cu", "decoding/hopper/D[0-9][0-9]_*.cu")
    patterns += ("extensions/*.cu", "hopper/extensions/*.cu")
    patterns += ("backward/extensions/*.cu", "backward/hopper/extensions/*.cu")
    found = [path for pattern in patterns for path in (root / "kernels").glob(pattern)]
    files = [KernelFile(path.relative_to(root).as_posix()) for path in found]
    return sorted(files, key=lambda one: (one.number is None, one.number or 0, one.kernel == one.stem, one.stem))
