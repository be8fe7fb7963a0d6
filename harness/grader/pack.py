"""Everything that a course needs: for students, starters and what the reference answers count; for the teacher, the
reference answers and the keys to the written questions. The answers themselves are in the project only encrypted. See
docs/teaching.md, "The answers".

  scripts/teacher_pack spring26 OUT    writes OUT/students and OUT/teacher for the course spring26
  scripts/teacher_pack --open FOLDER   decrypts the answers into a folder
  scripts/teacher_pack --seal FOLDER   encrypts the answers in a folder, which replaces those in the project

The first needs FLASH_LADDER_ANSWERS, the name of the folder of the answers; the others need FLASH_LADDER_PASSWORD.
"""

import argparse
import io
import json
import os
import subprocess
import sys
import tarfile
from pathlib import Path

from assignment import (
    ANSWERS_VARIABLE,
    FOLDER,
    ROOT,
    Assignment,
    AssignmentError,
    is_practice,
    names_of_assignments,
    read_assignment,
)
from compiler import COMPILE_SECONDS, Machine, Unavailable
from counters import FILE, to_keep
from engine import Grader
from ladder import write_whole

PASSWORD_VARIABLE = "FLASH_LADDER_PASSWORD"
CIPHER = ["-aes-256-cbc", "-pbkdf2", "-iter", "600000", "-salt", "-a", "-pass", f"env:{PASSWORD_VARIABLE}"]


class PackError(Exception):
    """The request cannot be carried out."""


def openssl(arguments: list[str], text: bytes) -> bytes | None:
    """What `openssl enc` writes; None if it fails. It reads the password from the environment, which other users of the
    machine cannot list."""
    if not os.environ.get(PASSWORD_VARIABLE):
        raise PackError(f"set {PASSWORD_VARIABLE} to the password of the answers; teachers get it from the maintainers")
    try:
        done = subprocess.run(["openssl", "enc", *arguments, *CIPHER], input=text, capture_output=True, check=False)
    except FileNotFoundError as error:
        raise PackError("openssl is missing; install the package openssl") from error
    return done.stdout if done.returncode == 0 else None


def seal(folder: Path, sealed: Path) -> int:
    files = sorted(folder.glob("*.answers.toml"))
    if not files:
        raise PackError(f"{folder} contains no file of answers, NN_name.answers.toml")
    plain = io.BytesIO()
    with tarfile.open(fileobj=plain, mode="w:xz") as archive:
        for file in files:
            entry = tarfile.TarInfo(file.name)
            entry.size = file.stat().st_size
            archive.addfile(entry, io.BytesIO(file.read_bytes()))
    encrypted = openssl([], plain.getvalue())
    if encrypted is None:
        raise PackError("openssl cannot encrypt: it has to be version 1.1.1 or later")
    write_whole(sealed, encrypted.decode())
    return len(files)


def unseal(sealed: Path, folder: Path) -> int:
    plain = openssl(["-d"], sealed.read_bytes())
    try:
        with tarfile.open(fileobj=io.BytesIO(plain or b""), mode="r:xz") as archive:
            texts = {entry.name: archive.extractfile(entry).read().decode() for entry in archive}
    except tarfile.TarError as error:
        raise PackError(f"{sealed} cannot be opened with this password ({PASSWORD_VARIABLE})") from error
    folder.mkdir(parents=True, exist_ok=True)
    for name, text in texts.items():
        write_whole(folder / Path(name).name, text)
    return len(texts)


def write_course(assignments: list[Assignment], machine: Machine, out: Path) -> None:
    """Writes the folders for students and for the teacher."""
    if out.exists() and any(out.iterdir()):
        raise PackError(f"{out} is not empty; name another folder")
    students, teacher = out / "students", out / "teacher"
    for folder in (students, teacher):
        folder.mkdir(parents=True, exist_ok=True)
    kept = {}
    for assignment in assignments:
        print(assignment.name, flush=True)
        grader = Grader(machine, assignment, assignment.course)
        if grader.reference_source is None:
            raise PackError(f"{assignment.name}: {ANSWERS_VARIABLE} has only {FILE}; name the folder of the answers")
        cases = [launch.case["label"] for launch in grader.launches]
        kept[assignment.name] = to_keep(assignment, cases, grader.reference())
        write_whole(students / f"{assignment.name}.cu", assignment.starter())
        write_whole(teacher / f"{assignment.name}.cu", grader.reference_source)
        if assignment.data["key"]:
            write_whole(teacher / f"{assignment.name}.key.txt", assignment.data["key"].lstrip())
    document = {"course": assignments[0].course, "toolkit": machine.toolkit, "assignments": kept}
    write_whole(students / FILE, json.dumps(document, indent=1) + "\n")
    print(f"{students}: for the students. {teacher}: only for you.")


def carry_out(args: argparse.Namespace) -> None:
    if args.open:
        print(f"{args.open}: answers to {unseal(args.sealed, args.open)} assignments. "
              f"Keep this folder from students, and set {ANSWERS_VARIABLE} to it.")  # fmt: skip
    elif args.seal:
        print(f"{args.sealed}: answers to {seal(args.seal, args.sealed)} assignments")
    elif args.course is None or args.out is None:
        raise PackError("name a course and a folder: scripts/teacher_pack spring26 OUT; or --open FOLDER")
    elif is_practice(args.course):
        raise PackError(
            f"the answers of '{args.course}', a course for practice, are in the project: students need no pack"
        )
    else:
        names = names_of_assignments(args.assignments)
        assignments = [read_assignment(name, args.course, args.assignments) for name in names]
        write_course(assignments, Machine.of_build(args.build, not args.unsandboxed, COMPILE_SECONDS), args.out)


def main() -> int:
    parser = argparse.ArgumentParser(
        prog="scripts/teacher_pack", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("course", nargs="?", help="the course's name")
    parser.add_argument("out", nargs="?", type=Path, help="the folder to write")
    parser.add_argument("--open", metavar="FOLDER", type=Path, help="decrypt the answers into this folder")
    parser.add_argument("--seal", metavar="FOLDER", type=Path, help="encrypt the answers in this folder")
    parser.add_argument("--unsandboxed", action="store_true", help="on a machine that cannot isolate the answers")
    build = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
    parser.add_argument("--build", type=Path, default=build, help=argparse.SUPPRESS)
    parser.add_argument("--assignments", type=Path, default=FOLDER, help=argparse.SUPPRESS)
    parser.add_argument("--sealed", type=Path, default=FOLDER / "answers.sealed", help=argparse.SUPPRESS)
    args = parser.parse_args()
    try:
        carry_out(args)
    except (PackError, AssignmentError) as error:
        print(f"scripts/teacher_pack: {error}", file=sys.stderr)
        return 2
    except (Unavailable, OSError) as error:
        print(f"scripts/teacher_pack: {error}", file=sys.stderr)
        return 3
    return 0


if __name__ == "__main__":
    sys.exit(main())
