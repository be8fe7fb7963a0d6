"""The tables that a teacher fills in or uploads: Moodle's grading worksheet and Canvas's gradebook, as they are
exported, and the marks of the written question."""

import csv
import io
from pathlib import Path
from typing import Any


class TableError(Exception):
    """A table that is not as it should be; the message says where."""


def read_table(path: Path, option: str) -> list[list[str]]:
    try:
        rows = list(csv.reader(io.StringIO(path.read_text(encoding="utf-8-sig"), newline="")))
    except OSError as error:
        raise TableError(f"{option} {path} cannot be read: {error.strerror}") from error
    except (UnicodeDecodeError, csv.Error) as error:
        raise TableError(f"{option} {path} is no CSV in UTF-8: {error}") from error
    if not rows:
        raise TableError(f"{option} {path} is empty")
    return rows


def to_text(rows: list[list[str]]) -> str:
    out = io.StringIO()
    csv.writer(out, lineterminator="\n").writerows(rows)
    return out.getvalue()


def as_number(text: str) -> float | None:
    try:
        return float(text)
    except ValueError:
        return None


class Gradebook:
    """An exported table. Only the grades of students who are entered change; all else stays as it was exported."""

    def __init__(self, path: Path, column: str | None) -> None:
        self.rows = read_table(path, "--gradebook")
        head = self.rows[0]
        self.most: dict[int, float | None] = {}  # the best grade, by row
        self.row_of: dict[str, int] = {}
        if "Identifier" in head and "Grade" in head:
            best = next((i for i, name in enumerate(head) if name.lower() == "maximum grade"), None)
            self.column = head.index("Grade")
            for number, row in enumerate(self.rows[1:], 1):
                self.row_of[row[head.index("Identifier")].rpartition(" ")[2]] = number  # "Participant 1234567"
                self.most[number] = as_number(row[best]) if best is not None else None
        elif "Student" in head and "ID" in head:
            named = [i for i, name in enumerate(head) if column and name.startswith(column)]
            if len(named) != 1:
                raise TableError(f"--gradebook {path} has {len(named)} columns that begin with '{column or ''}'; give "
                                 "the assignment's name in Canvas: --column 'Swizzle (12345)'")  # fmt: skip
            self.column = named[0]
            points = next((row for row in self.rows[1:] if row[0].strip() == "Points Possible"), None)
            for number, row in enumerate(self.rows[1:], 1):
                if identifier := row[head.index("ID")]:
                    self.row_of[identifier] = number
                    self.most[number] = as_number(points[self.column]) if points else None
        else:
            raise TableError(f"--gradebook {path} has neither the columns Identifier and Grade of Moodle's grading "
                             "worksheet nor Student and ID of Canvas's gradebook; export it in English")  # fmt: skip
        self.grades: dict[str, tuple[str, float]] = {}  # by the student's number
        self.several: dict[str, list[str]] = {}
        self.unknown: list[str] = []

    def enter(self, student: str, file: str, share: float) -> None:
        """Enters a share of the best grade. If a student has several files, no grade is entered."""
        if student not in self.row_of:
            self.unknown.append(file)
        elif student in self.several:
            self.several[student].append(file)
        elif student in self.grades:
            self.several[student] = [self.grades.pop(student)[0], file]
        else:
            self.grades[student] = (file, share)

    def filled_in(self) -> str:
        rows = [list(row) for row in self.rows]
        for student, (_, share) in self.grades.items():
            number = self.row_of[student]
            best = self.most[number]
            rows[number][self.column] = f"{round(share * (100 if best is None else best), 2):g}"
        return to_text(rows)

    def notes(self) -> list[str]:
        notes = [f"Not entered, since there are several files of one student: {', '.join(files)}"
                 for files in self.several.values()]  # fmt: skip
        if self.unknown:
            notes.append(f"Not entered, since the gradebook does not list the student: {', '.join(self.unknown)}")
        return notes


def empty_sheet(files: list[str], rubric: list[dict[str, Any]]) -> str:
    head = ["file", *(f"{entry['text']} (0 to {entry['points']})" for entry in rubric)]
    return to_text([head, *([file, *[""] * len(rubric)] for file in files)])


def read_written(path: Path, rubric: list[dict[str, Any]]) -> dict[str, float]:
    """The sum of the marks of each file whose row is filled in."""
    head, *rows = read_table(path, "--written")
    if head[:1] != ["file"] or len(head) != 1 + len(rubric):
        raise TableError(f"--written {path} is no sheet for this assignment; name a new file, and it becomes one")
    sums = {}
    for row in rows:
        marks = row[1:]
        for entry, mark in zip(rubric, marks, strict=False):
            value = as_number(mark)
            if mark.strip() and (value is None or not 0 <= value <= entry["points"]):
                raise TableError(f"--written {path}: {row[0]} has '{mark}' for '{entry['text']}'; it takes a number "
                                 f"from 0 to {entry['points']}, or nothing")  # fmt: skip
        if len(marks) == len(rubric) and all(mark.strip() for mark in marks):
            sums[row[0]] = sum(float(mark) for mark in marks)
    return sums
