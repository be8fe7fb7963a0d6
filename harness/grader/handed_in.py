"""What a class has handed in: a folder, or a zip as Moodle and Canvas export it; whose each file is, and whether it is
late."""

import dataclasses
import datetime
import os
import re
import zipfile
from pathlib import Path, PurePosixPath

from compiler import MOST_SOURCE_BYTES

MOST_FILES = 20_000  # of a zip
# Files that a project often contains and that nobody means to be graded.
USUAL = re.compile(r"(readme|licen[cs]e|changelog|makefile|cmakelists\.txt)(\.\w+)?|.*\.md", re.IGNORECASE)
# "Ada Lovelace_1234567_assignsubmission_file/swizzle.cu"; in a zip without folders, the rest follows after "_".
MOODLE = re.compile(r"(?P<name>[^_]*)_(?P<id>\d+)_assignsubmission_file(_(?P<file>.*))?")
# "lovelaceada_LATE_12345_67890_swizzle.cu"; the second number is the file's.
CANVAS = re.compile(r"(?P<name>[^_]+)_(?P<late>LATE_)?(?P<id>\d+)_(?P<attachment>\d+)_(?P<file>.+)")


@dataclasses.dataclass(frozen=True)
class Student:
    """The person that a file belongs to, as the learning platform's name for the file says."""

    platform: str  # "Moodle" or "Canvas"
    id: str
    feedback: str  # how the name of a feedback file begins
    is_late: bool = False  # as the platform says; Moodle does not

    def feedback_name(self, of: Path) -> str:
        """The name under which the platform accepts feedback on a file."""
        return f"{self.feedback}{own_name(of.stem)}.feedback.txt"


def own_name(name: str) -> str:
    """A file's name as its owner has given it."""
    found = MOODLE.fullmatch(name) or CANVAS.fullmatch(name)
    return found["file"] or "" if found else name


def student_of(path: Path, folder: Path) -> Student | None:
    first = path.relative_to(folder).parts[0]
    if found := MOODLE.fullmatch(first):
        # With "_" at its end, the folder's name is accepted by each version of Moodle.
        return Student("Moodle", found["id"], f"{found['name']}_{found['id']}_assignsubmission_file_/")
    if found := CANVAS.fullmatch(first):
        begin = f"{found['name']}_{found['late'] or ''}{found['id']}_{found['attachment']}_"
        return Student("Canvas", found["id"], begin, bool(found["late"]))
    return None


def lateness(path: Path, student: Student | None, due: datetime.datetime | None) -> str:
    """How late a file is, by its time of modification. Empty: nothing is known."""
    if due is not None:
        late = (datetime.datetime.fromtimestamp(path.lstat().st_mtime, datetime.UTC) - due).total_seconds()
        if late > 0:
            return f"{late / 3600:.1f} h"
    if student is not None and student.is_late:
        return "yes"
    return "" if due is None else "no"


@dataclasses.dataclass
class Class:
    """The files to grade, and the names of those that are left out."""

    paths: list[Path] = dataclasses.field(default_factory=list)
    ignored: list[Path] = dataclasses.field(default_factory=list)  # a README, or what a student's folder has besides
    written_before: list[Path] = dataclasses.field(default_factory=list)  # by the grader


def is_hidden(path: Path) -> bool:
    return path.name.startswith(".") or path.name == "__MACOSX"  # ._a.cu is created by macOS


def files_below(folder: Path) -> list[Path]:
    """All files of a folder and of the folders in it. No link to a folder is followed."""
    found = []
    for entry in sorted(folder.iterdir()):
        if is_hidden(entry):
            continue
        found += files_below(entry) if entry.is_dir() and not entry.is_symlink() else [entry]
    return found


def is_cuda(path: Path) -> bool:
    return path.suffix.lower() == ".cu"


class NotAZip(Exception):
    """A zip that cannot be unpacked; the message says why."""


def unpack(zipped: Path, into: Path) -> None:
    """Unpacks a zip with its times. Of each file it writes no more than the grader would read, so a file that is small
    in the zip and huge outside takes no space."""
    try:
        with zipfile.ZipFile(zipped) as opened:
            entries = [entry for entry in opened.infolist() if not entry.is_dir()]
            if len(entries) > MOST_FILES:
                raise NotAZip(f"it contains {len(entries)} files, more than {MOST_FILES}; unpack it yourself")
            for entry in entries:
                name = PurePosixPath(entry.filename.replace("\\", "/"))
                if name.is_absolute() or ".." in name.parts:
                    raise NotAZip(f"'{entry.filename}' in it lies outside of it; unpack it yourself")
                path = into / name
                path.parent.mkdir(parents=True, exist_ok=True)
                with opened.open(entry) as file:
                    path.write_bytes(file.read(MOST_SOURCE_BYTES + 1))
                time = datetime.datetime(*entry.date_time).timestamp()  # the zip's times have no zone: local time
                os.utime(path, (time, time))
    except (zipfile.BadZipFile, RuntimeError, NotImplementedError, ValueError) as error:  # damaged, or with a password
        raise NotAZip(str(error)) from error
