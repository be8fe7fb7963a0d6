"""Resumes a comparison on several kinds of data or problems: takes the tables that an interrupted run completed.

A table contains all implementations, and takes at most about a minute. Its cells are compared with each other, so they
have to be measured in one go, with the GPU in one state. Therefore only complete tables are taken, and one that was cut
is measured anew as a whole.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparison.attempts import WRONG
from comparison.implementations import Implementation, UnavailableError
from comparison.recording import Session
from comparison.report import show
from comparison.timing import SUSTAINED


@dataclass(frozen=True)
class Table:
    member: str  # of each result, in which tables differ: "dtype" or "problem"
    kind: str  # its value: "fp16", "causal"
    batch: int
    seq_len: int
    implementations: tuple[Implementation, ...] = field(compare=False)  # those that take part

    @property
    def place(self) -> str:
        """The end of a name in `left_out`."""
        return f"seq_len {self.seq_len}, {self.kind}"

    def contains(self, result: dict[str, Any]) -> bool:
        of_table = (self.kind, self.batch, self.seq_len)
        return (result[self.member], result["batch"], result["seq_len"]) == of_table


def resume(session: Session, part: Path, empty: dict[str, Any], tables: Sequence[Table]) -> list[Table]:
    """Adopts the complete tables in the file of an interrupted run, and returns them; `empty` is a document without
    results, for what this run measures.

    Raises UnavailableError if that run had another GPU, code or software, or measured other things.
    """
    if not part.exists():
        show(f"nothing to resume: there is no {part}")
        return []
    try:
        found = json.loads(part.read_text(encoding="utf-8"))
        differing = differences(session, found, empty, tables)
        if differing:
            raise UnavailableError(
                f"--resume: {part} belongs to another {', another '.join(differing)}; measure again without --resume,"
                " which replaces it"
            )
        complete = [table for table in tables if is_complete(session, found, empty.get("data", [None]), table)]
        adopt(session, found, complete)
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(
            f"--resume: {part} cannot be used: {type(error).__name__}: {error}; measure again without --resume"
        ) from error
    show(f"resuming {part}: {'; '.join(table.place for table in complete) or 'no table in it'} is complete")
    return complete


def differences(session: Session, found: dict[str, Any], empty: dict[str, Any], tables: Sequence[Table]) -> list[str]:
    """What keeps the figures that were found from being part of this run."""
    differing = [name for name in ("schema", "device", "problem") if found[name] != empty[name]]
    differing += [name for name, value in empty["run"].items() if found["run"].get(name) != value]
    differing += [f"selection of {name}" for name in ("data", "problems") if found.get(name) != empty.get(name)]
    for entry in entries(found):
        if not any(session.is_entry_of(one, entry) for one in session.implementations):
            name = entry["name"]
            differing.append(f"code of {entry['kernel']} {name}" if "kernel" in entry else f"list of peers: {name}")
        elif not all(any(table.contains(result) for table in tables) for result in entry["results"]):
            return [*differing, f"selection of {tables[0].member}s or lengths"]
    return differing


def entries(found: dict[str, Any]) -> list[dict[str, Any]]:
    return [*found["versions"], *found["peers"]]


def results_of(session: Session, found: dict[str, Any], one: Implementation, table: Table) -> list[dict[str, Any]]:
    return [
        result
        for entry in entries(found)
        if session.is_entry_of(one, entry)
        for result in entry["results"]
        if table.contains(result)
    ]


def is_complete(session: Session, found: dict[str, Any], data: Iterable[str | None], table: Table) -> bool:
    """Whether each cell has a figure, or a reason why it has none. Without kinds of data, an implementation has one
    cell, of data None."""
    left_out = found["run"]["left_out"]
    for one in table.implementations:
        if f"{one.name}, {table.place}" in left_out:
            continue
        measured = {result.get("data") for result in results_of(session, found, one, table)}
        if not all(name in measured or f"{one.name}, {name}, {table.place}" in left_out for name in data):
            return False
    return True


def adopt(session: Session, found: dict[str, Any], complete: Sequence[Table]) -> None:
    if not complete:
        return
    session.dates[SUSTAINED] = found["run"]["date"]
    for table in complete:
        for one in session.implementations:
            one.results.setdefault(SUSTAINED, []).extend(results_of(session, found, one, table))
        for what, why in found["run"]["left_out"].items():
            if what.endswith(f", {table.place}"):
                session.leave_out([SUSTAINED], what, why)
                session.wrong += why.startswith(WRONG)
    for one in session.implementations:
        notes = [entry["note"] for entry in found["peers"] if session.is_entry_of(one, entry)]
        one.note = notes[0] if notes else one.note
