"""Adds some problems to a file that has others: scripts/peers --problem NAME --update.

A table is one problem at one length, and its figures are compared with each other only. So a problem that was not
selected is kept as a whole, with the date of its run.
"""

from __future__ import annotations

import json
from collections.abc import Container
from pathlib import Path
from typing import Any

from comparison.implementations import UnavailableError


def read_earlier(path: Path, empty: dict[str, Any]) -> dict[str, Any]:
    """The document that is to be updated; `empty` is one without results, for what this run measures.

    Raises UnavailableError if there is none, or if it was measured under other conditions.
    """
    try:
        found = json.loads(path.read_text(encoding="utf-8"))
        differing = [name for name in ("schema", "device", "problem", "operations") if found[name] != empty[name]]
        differing += [name for name, value in empty["run"].items() if found["run"].get(name) != value]
        found["problems"], found["versions"], found["peers"], found["run"]["left_out"]  # the members used below
    except (OSError, ValueError, KeyError, TypeError, AttributeError) as error:
        raise UnavailableError(
            f"--update: {path} cannot be used: {type(error).__name__}: {error}; measure all problems without --update"
        ) from error
    if differing:
        raise UnavailableError(
            f"--update: the figures in {path} are for another {', another '.join(differing)}; measure all problems"
            " without --update"
        )
    return found


def merged(earlier: dict[str, Any], made: dict[str, Any]) -> dict[str, Any]:
    """The document that was made, with the problems that only the earlier one has. These come first, and have the date
    of their run, as has a version whose code has changed since."""
    date = earlier["run"]["date"]
    kept = {name: {"date": date} | problem for name, problem in earlier["problems"].items()}
    kept = {name: problem for name, problem in kept.items() if name not in made["problems"]}
    left_out = of_problems(earlier, made, kept) | of_problems(made, earlier, made["problems"])
    return made | {
        "problems": kept | made["problems"],
        "run": made["run"] | {"left_out": left_out},
        "versions": merged_entries(date, earlier["versions"], made["versions"], kept),
        "peers": merged_entries(None, earlier["peers"], made["peers"], kept),
    }


def of_problems(document: dict[str, Any], other: dict[str, Any], problems: Container[str]) -> dict[str, str]:
    """What the document leaves out of these problems, and why. A peer that only it leaves out altogether is left out of
    each of its problems."""
    found: dict[str, str] = {}
    for what, why in document["run"]["left_out"].items():
        if "," in what:
            found |= {what: why} if what.rsplit(", ", 1)[1] in problems else {}
        elif what in other["run"]["left_out"]:
            found[what] = why
        else:
            found |= {f"{what}, {name}": why for name in document["problems"] if name in problems}
    return found


def identity(entry: dict[str, Any]) -> tuple[Any, ...]:
    return tuple(entry.get(name) for name in ("kernel", "name", "config", "code_hash"))


def merged_entries(
    date: str | None, earlier: list[dict[str, Any]], made: list[dict[str, Any]], kept: Container[str]
) -> list[dict[str, Any]]:
    """The versions or peers of both documents, in the order of the earlier one. Those that only the earlier one has get
    its date, unless it is None."""
    found = {identity(entry): entry for entry in made}
    entries = []
    for entry in earlier:
        results = [result for result in entry["results"] if result["problem"] in kept]
        new = found.pop(identity(entry), None)
        if new is not None:
            entries.append(new | {"results": [*results, *new["results"]]})
        elif results:
            entries.append(({} if date is None else {"date": date}) | entry | {"results": results})
    return [*entries, *found.values()]
