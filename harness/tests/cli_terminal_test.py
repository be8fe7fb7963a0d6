"""Output on a terminal: nothing is wider than the terminal, except for the code of a diff."""

import fcntl
import os
import pty
import re
import struct
import termios
from pathlib import Path

import pytest
from cli import BUILD, ROOT, Cli

K = "--kernel"


def lines_on_a_terminal(cli: Cli, columns: int, *arguments: str) -> list[str]:
    """Both streams on a terminal of that width: the lines that remain when the progress lines are gone."""
    environment = cli.environment(NO_COLOR="1")
    process, terminal = pty.fork()
    if process == 0:
        # The size of the terminal is set before anything queries it.
        fcntl.ioctl(0, termios.TIOCSWINSZ, struct.pack("HHHH", 50, columns, 0, 0))
        os.execve(cli.harness, cli.command(*arguments), environment)
    text = b""
    while True:
        try:
            chunk = os.read(terminal, 65536)
        except OSError:  # the other end is closed
            break
        if not chunk:
            break
        text += chunk
    os.close(terminal)
    os.waitpid(process, 0)
    lines = text.decode().replace("\r\n", "\n").replace("\x1b[K", "").split("\n")
    return [line.split("\r")[-1].rstrip() for line in lines]


@pytest.fixture
def everything(cli: Cli) -> Cli:
    """With profiles, and the virtual GPU."""
    cli.device = None
    cli.profiles = ROOT / "profiles"
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    return cli


@pytest.mark.parametrize("columns", [80, 120, 200])
@pytest.mark.parametrize(
    "arguments",
    [
        ["--list"],
        ["--help"],
        [K, "15"],
        [K, "03-04"],
        [K, "06", "--lines"],
        [K, "06", "--sass"],
        ["--tune", "16"],
        [K, "07", "--seq-len", "100"],
    ],
    ids=" ".join,
)
def test_lines_fit(everything: Cli, columns: int, arguments: list[str]) -> None:
    lines = lines_on_a_terminal(everything, columns, *arguments)
    assert max(map(len, lines)) <= columns, [line for line in lines if len(line) > columns]
    assert any(line.strip() for line in lines)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_diff_fits_but_for_its_code(everything: Cli, columns: int) -> None:
    lines = lines_on_a_terminal(everything, columns, "--diff", "09", "10")
    start = next(i for i, line in enumerate(lines) if line.startswith("--- "))
    end = next(i for i, line in enumerate(lines) if "lines of code added" in line)
    assert max(map(len, lines[:start] + lines[end:])) <= columns


def test_a_narrow_table_says_what_it_leaves_out(everything: Cli) -> None:
    narrow = lines_on_a_terminal(everything, 80, K, "03-04")
    text = " ".join(narrow)
    assert re.search(r"No room for +.*spill.*\(--json has all\)", text)
    header = next(line for line in narrow if line.startswith("version"))
    assert "instr" in header and "recorded" in header and "spill" not in header
    wide = lines_on_a_terminal(everything, 200, K, "03-04")
    assert not any("No room" in line for line in wide) and any("spill" in line for line in wide)


@pytest.mark.parametrize("columns", [80, 200])
def test_a_list_shows_whole_ideas(everything: Cli, columns: int) -> None:
    """In a narrow terminal ideas are on separate lines; figures are right-aligned, and each track has a heading."""
    lines = lines_on_a_terminal(everything, columns, "--list")
    words = " ".join(" ".join(lines).split())
    assert "Read K and V once per tile of 64 queries instead of once per query, and keep them in shared memory" in words
    headings = [line for line in lines if line.startswith("kernels")]
    assert headings[:2] == ["kernels/", "kernels/hopper/"] and all(not lines[lines.index(h) - 1] for h in headings)
    points = [line.index(".", line.index("_")) for line in lines if re.match(r"\d\d_\w+ +\d", line)]
    assert len(points) > 20 and len(set(points)) == 1, "the points stand below each other"


def test_the_room_of_a_wide_terminal_is_used(everything: Cli) -> None:
    ideas = [max(map(len, lines_on_a_terminal(everything, columns, "--list"))) for columns in (80, 120, 200)]
    assert ideas[0] < ideas[1] < ideas[2]


def test_a_pipe_has_no_width(everything: Cli, tmp_path: Path) -> None:
    assert "spill" in everything(K, "03-04").out and "No room" not in everything(K, "03-04").out
