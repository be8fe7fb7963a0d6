"""scripts/emulator_coverage: how many kernels of a folder of PTX the virtual GPU can decode."""

import os
import subprocess
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
HEADER = ".version 8.0\n.target sm_80\n.address_size 64\n"


def kernel(name: str, body: str) -> str:
    return f".visible .entry {name}()\n{{\n.reg .b32 %r<9>;\n{body}\nret;\n}}\n"


def coverage(*paths: Path) -> subprocess.CompletedProcess[str]:
    return subprocess.run(
        [ROOT / "scripts" / "emulator_coverage", *paths],
        env=os.environ | {"FLASH_LADDER_BUILD_DIR": str(BUILD)},
        capture_output=True,
        text=True,
        check=False,
    )


def test_kernels_are_counted_and_what_stops_them(tmp_path: Path) -> None:
    (tmp_path / "below").mkdir()
    (tmp_path / "a.ptx").write_text(
        HEADER
        + kernel("good", "mov.u32 %r1, 5;")
        + kernel("bad", "frobnicate.s32 %r1, %r2;")
        + kernel("worse", "frobnicate.s32 %r3, %r4;\nmov.u32 %r1, 5;")
        + kernel("textured", "tex.1d.v4.s32.s32 {%r1, %r2, %r3, %r4}, [image, {%r5}];"),
        encoding="utf-8",
    )
    (tmp_path / "below" / "b.ptx").write_text(HEADER + kernel("good", ""), encoding="utf-8")
    (tmp_path / "below" / "c.ptx").write_text("nothing\n.entry a()\n.entry b()\n", encoding="utf-8")
    (tmp_path / "not.txt").write_text(HEADER + kernel("good", ""), encoding="utf-8")
    done = coverage(tmp_path)
    assert done.returncode == 0, done.stderr
    first, *reasons = done.stdout.splitlines()
    assert first == "2 of 7 kernels in 3 files can be decoded; without textures 2 of 6, 33.3 %"
    assert any(reason.startswith("     2  ") and reason.endswith(": frobnicate.s32") for reason in reasons)
    assert any(reason.startswith("     1  tex.1d.v4.s32.s32: ") and "textures" in reason for reason in reasons)
    assert len(reasons) == 3


def test_nothing_to_count(tmp_path: Path) -> None:
    assert coverage(tmp_path).returncode == 2
    done = coverage(tmp_path / "none")
    assert done.returncode == 2 and "no file or folder" in done.stderr
