#!/usr/bin/env python3
"""Counts how many different PTX texts nvcc generates from one source, by compiling versions 01 to 16 repeatedly.

Each trial runs the build's own command (so the build must be configured) in a copy of the sources, in a folder with a
random name and depth, with an environment of random size, a random folder for temporary files and a random stack limit,
and without a compiler cache. Two texts count as the same if they differ only in lines that name files.

Exit status: 0 one text of each version, 1 several of some, 2 bad usage, 3 the build or a compiler is missing.
"""

from __future__ import annotations

import argparse
import collections
import hashlib
import os
import random
import re
import resource
import shlex
import shutil
import string
import subprocess
import sys
import tempfile
from pathlib import Path

ROOT = Path(__file__).resolve().parents[1]


def ptx_commands(build: Path) -> dict[str, str]:
    """For each of 01 to 16, a command that generates its PTX for sm_80, run in `build`: part of its object's
    command."""
    command = ["ninja", "-C", str(build), "-t", "commands", "all_kernels"]
    listed = subprocess.run(command, capture_output=True, text=True, check=False)
    commands = {}
    for line in listed.stdout.splitlines():
        if source := re.search(r" -c \S+/kernels/(?:extensions/|backward/|decoding/)?(\w+)\.cu ", line):
            line = re.sub(r"^\S+/compile_kernel\.sh \S+ ", "", line)
            line = re.sub(r"--generate-code=\S+ ", "", line).replace(" -c ", " -ptx -arch=compute_80 ")
            commands[source[1]] = line
    if not commands:
        print(f"{build} has no commands that generate PTX: run scripts/setup first", file=sys.stderr)
        raise SystemExit(3)
    return commands


def random_name(chance: random.Random, longest: int) -> str:
    return "".join(chance.choices(string.ascii_lowercase, k=chance.randint(1, longest)))


def one_text(command: str, chance: random.Random, everywhere: Path) -> str:
    """The hash of the text from one trial."""
    top = everywhere / random_name(chance, 8)
    tree = top.joinpath(*(random_name(chance, 20) for _ in range(chance.randint(0, 8))))
    temporary = top / random_name(chance, 30)
    temporary.mkdir(parents=True)
    for folder in ("kernels", "common"):
        shutil.copytree(ROOT / folder, tree / folder)
    command = command.replace(str(ROOT) + "/", f"{tree}/")
    words = shlex.split(command)
    output = tree / "build" / words[words.index("-o") + 1]
    output.parent.mkdir(parents=True)
    # PATH is kept. The rest of the environment has a random size.
    environment = {"PATH": os.environ["PATH"], "CCACHE_DISABLE": "1", "TMPDIR": str(temporary)}
    environment |= {f"VARIABLE_{i}": "x" * chance.randint(0, 500) for i in range(chance.randint(0, 20))}
    hard = resource.getrlimit(resource.RLIMIT_STACK)[1]
    stacks = [mib << 20 for mib in (8, 64, 500) if hard == resource.RLIM_INFINITY or mib << 20 <= hard]
    stack = chance.choice([*stacks, hard])
    done = subprocess.run(
        words,
        cwd=tree / "build",
        env=environment,
        preexec_fn=lambda: resource.setrlimit(resource.RLIMIT_STACK, (stack, hard)),
        capture_output=True,
        text=True,
        check=False,
    )
    if done.returncode != 0:
        print(f"{command}\n{done.stdout}{done.stderr}", file=sys.stderr)
        raise SystemExit(3)
    # The debugging sections, at the end, have internal names, which contain a hash of the file's path.
    code = output.read_text().split("\t.section\t.debug")[0]
    text = "\n".join(line for line in code.splitlines() if not line.lstrip().startswith(".file"))
    shutil.rmtree(top)
    return hashlib.sha256(text.encode()).hexdigest()[:8]


def main() -> int:
    parser = argparse.ArgumentParser(description="Counts the different PTX texts that nvcc generates for each version.")
    parser.add_argument("--trials", type=int, default=40, metavar="N", help="compilations of each version (40)")
    parser.add_argument("--kernel", action="append", metavar="NN", help="test only this version; may be repeated")
    parser.add_argument("--seed", type=int, default=1, help="seed of the random names and sizes (1)")
    parser.add_argument("--build", type=Path, default=ROOT / "build", help="configured build directory (build/)")
    options = parser.parse_args()
    if options.trials < 1:
        parser.error(f"--trials is {options.trials}; allowed: 1 and more")
    commands = sorted(ptx_commands(options.build).items())
    known = [name[:2] for name, _ in commands]
    for kernel in options.kernel or []:
        if kernel not in known:
            parser.error(f"--kernel is {kernel}; allowed: {', '.join(known)}")
    steady = True
    for name, command in commands:
        if options.kernel and name[:2] not in options.kernel:
            continue
        chance = random.Random(f"{options.seed} {name}")
        with tempfile.TemporaryDirectory() as folder:
            texts = collections.Counter(one_text(command, chance, Path(folder)) for _ in range(options.trials))
        counts = ", ".join(f"{text} {count} x" for text, count in texts.most_common())
        print(f"{name}: {len(texts)} of {options.trials}: {counts}", flush=True)
        steady = steady and len(texts) == 1
    return 0 if steady else 1


if __name__ == "__main__":
    sys.exit(main())
