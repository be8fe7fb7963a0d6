"""The comparison on problems other than the plain one: profiles/<device>/peers_by_problem.json.

A table is one problem at one length, with all implementations that solve it.
"""

from __future__ import annotations

import argparse
import sys
from collections.abc import Callable, Iterable, Sequence
from pathlib import Path
from typing import Any

from ladder import HEAD_DIM, HEADS, ROOT

from comparison import tables
from comparison.decoding_problems import DecodingProblem
from comparison.implementations import Implementation, Kernel, UnavailableError, UsageError, select_kernels
from comparison.machine import Machine
from comparison.problems import PROBLEMS, Problem
from comparison.recording import Session, listed_versions, schema_of
from comparison.report import show
from comparison.resuming import Table
from comparison.timing import SUSTAINED
from comparison.updating import merged, read_earlier

DTYPE = "fp16"
FILE = "peers_by_problem.json"
OPERATIONS = "4 * batch * heads * head_dim * scores"


def listed(harness: Path) -> dict[str, dict[str, Any]]:
    """The versions that the harness has, by the name for --kernel. Raises UnavailableError."""
    try:
        return listed_versions(harness)
    except (OSError, ValueError, KeyError) as error:
        raise UnavailableError(
            f"{harness} has to list which problems each version solves, and does not"
            f" ({type(error).__name__}); scripts/setup builds it"
        ) from error


def best(versions: dict[str, dict[str, Any]], problems: Sequence[Problem], dtype: str, known: Sequence[str]) -> str:
    """On each track, the version that was the first to solve a problem, the last one, and those between them that
    changed only the speed. The others add a field that the problem does not have. In the order of the tracks.

    Raises UnavailableError if the Python package, whose versions are `known`, is without one of them.
    """
    chosen: dict[str, None] = {}
    for problem in problems:
        able = {name: one for name, one in versions.items() if is_able(one, problem.fields, dtype)}
        bases = {one["extends"] for one in able.values()}
        for name, one in able.items():
            base = able.get(one["extends"])
            if base is None or name not in bases or base["solves"] == one["solves"]:
                chosen[name] = None
    refuse_absent(chosen, known)
    return ",".join(sorted(chosen, key=lambda name: (versions[name]["architecture"], depth(versions, name))))


def refuse_absent(chosen: Iterable[str], known: Sequence[str]) -> None:
    """Raises UnavailableError if the Python package, whose versions are `known`, is without one of these."""
    absent = [name for name in chosen if name not in {Kernel(other).kernel for other in known}]
    if absent:
        raise UnavailableError(
            f"the ladder's Python package is older than the harness, it has no {', '.join(absent)}; install it again:"
            f" {sys.executable} -m pip install {ROOT / 'harness' / 'python'}"
        )


def depth(versions: dict[str, dict[str, Any]], name: str) -> int:
    """How many extensions lie between a version and the ladder."""
    base = versions.get(name, {"extends": None})["extends"]
    return 0 if base is None else 1 + depth(versions, base)


def is_able(version: dict[str, Any], fields: frozenset[str], dtype: str, kind: str = "forward") -> bool:
    """Whether a version of a kind solves a problem with these fields, of any length. It has to have the standard
    head_dim as well."""
    wanted = {f"head_dim {HEAD_DIM}", *fields}
    return version["kind"] == kind and wanted <= solved_fields(version, dtype)


def solved_fields(version: dict[str, Any], dtype: str) -> set[str]:
    """The fields of problems that a version solves, named as in Problem.fields."""
    head_dims = {f"head_dim {one['head_dim']}" for one in version["configurations"] if one["dtype"] == dtype}
    return {name for name, is_solved in version["solves"].items() if is_solved} | head_dims


def those_that_solve(
    ours: Sequence[Implementation],
    versions: dict[str, dict[str, Any]],
    problems: Sequence[Problem | DecodingProblem],
    dtype: str,
) -> list[Implementation]:
    """The versions that solve one of the problems, each with the fields that it lacks. Raises UsageError if none
    does."""
    names = ", ".join(problem.name for problem in problems)
    fields = {name for problem in problems for name in problem.fields}
    found = []
    for one in ours:
        assert one.kernel is not None
        version = versions.get(one.kernel.kernel)
        solves = set() if version is None else solved_fields(version, dtype)
        one.lacks = {name: "the version does not solve it" for name in fields - solves}
        if all(one.why_not(problem.fields) for problem in problems):
            show(f"without {one.name}: it does not solve {names}")
        else:
            found.append(one)
    if not found:
        raise UsageError(f"--kernels: none of these versions solves {names}")
    return found


def missing(peers: Sequence[Implementation], problems: Sequence[Problem | DecodingProblem]) -> dict[str, str]:
    """Why peers take no part, or not in a problem."""
    found: dict[str, str] = {}
    for one in peers:
        reasons = {problem.name: why for problem in problems if (why := one.why_not(problem.fields))}
        if len(reasons) == len(problems) and len(set(reasons.values())) == 1:
            found[one.name] = next(iter(reasons.values()))
        else:
            found |= {f"{one.name}, {name}": why for name, why in reasons.items()}
    return found


def tables_of(
    session: Session,
    problems: Sequence[Problem | DecodingProblem],
    shapes: Sequence[tuple[int, int]],
    make: Callable[..., Table] = Table,
) -> list[Table]:
    """A table for each problem at each of its shapes that are among these, with the implementations that solve it. The
    session learns which peers do not. Raises UsageError if there is no table."""
    session.missing |= missing([one for one in session.implementations if one.kernel is None], problems)
    found = []
    for problem in problems:
        able = tuple(one for one in session.implementations if not one.why_not(problem.fields))
        found += [make("problem", problem.name, *shape, able) for shape in problem.shapes if shape in shapes]
    if not found:
        raise UsageError(
            "--shapes: none of the selected problems is measured at these; "
            + "; ".join(f"{problem.name}: {', '.join(problem.names_of_shapes)}" for problem in problems)
        )
    return found


def is_whole(
    arguments: argparse.Namespace,
    session: Session,
    problems: Sequence[Problem | DecodingProblem],
    all_of_them: Sequence[Problem | DecodingProblem],
    found: Sequence[Table],
) -> bool:
    """Whether these tables are all that a recording has."""
    return (
        problems == all_of_them
        and len(found) == sum(len(problem.shapes) for problem in problems)
        and session.dtype == DTYPE
        and "fa2" not in arguments.without
    )


def versions_of_kind(
    arguments: argparse.Namespace,
    versions: dict[str, dict[str, Any]],
    known: Sequence[str],
    kind: str,
    chosen: Sequence[str],
    make: Callable[[Kernel], Implementation],
    problems: Sequence[Problem | DecodingProblem],
) -> list[Implementation]:
    """Those of a track other than the forward pass that --kernels names, by default the `chosen` ones; `versions` are
    those that the harness lists, and `known` those of the Python package.

    Raises UnavailableError if the package is without one that was chosen, and UsageError for versions of another track.
    """
    if not arguments.kernels:
        refuse_absent(chosen, known)
    of_kind = [name for name in known if versions.get(Kernel(name).kernel, {}).get("kind") == kind]
    kernels = select_kernels(arguments.kernels or ",".join(chosen) or "all", of_kind)
    return those_that_solve([make(kernel) for kernel in kernels], versions, problems, arguments.dtype)


def empty_document(session: Session, problems: Sequence[Problem]) -> dict[str, Any]:
    """harness/results/peers_by_problem.schema.json without results."""
    return {
        "schema": schema_of("peers_by_problem.schema.json"),
        "device": session.device,
        "problem": {"dtype": session.dtype, "heads": HEADS, "head_dim": HEAD_DIM},
        "problems": {problem.name: problem.describe() for problem in problems},
        "operations": OPERATIONS,
        "run": session.conditions(SUSTAINED),
    }


def measure(
    machine: Machine, session: Session, arguments: argparse.Namespace, table: Table, keep: Callable[[], None]
) -> None:
    """Adds the results of a table, and calls `keep` at its end."""
    problem, shape = PROBLEMS[table.kind], (table.batch, table.seq_len)
    show(
        f"{table.place}: batch {table.batch}, {HEADS} heads, {problem.kv_heads} of K and V, head_dim"
        f" {problem.head_dim}, {session.dtype}: TFLOP/s"
    )
    tensors = machine.tensors(*shape, session.dtype, arguments.seed, problem)
    reference = machine.reference(tensors, tables.EVERY, problem)
    work = problem.scores(table.seq_len) * problem.head_dim / HEAD_DIM
    cells = tables.time_table(machine, session, arguments, table, tensors, problem, reference, work)
    keep()
    show(f"  {'  '.join(cells)}")


def run(arguments: argparse.Namespace, session: Session, machine: Machine, folder: Path) -> None:
    """Writes the file if all problems are measured at all lengths and FlashAttention-2 takes part, or if --out is
    given. With --update, the file keeps the problems that were not selected."""
    problems: list[Problem] = arguments.problem
    seq_lens = {seq_len for _, seq_len in arguments.shapes}
    shapes = [shape for problem in problems for shape in problem.shapes if shape[1] in seq_lens]
    found = tables_of(session, problems, shapes)
    of_file = problems if arguments.update else list(PROBLEMS.values())
    whole = is_whole(arguments, session, problems, of_file, found)
    path = arguments.out or (folder / FILE if whole else None)
    empty, merge = empty_document(session, problems), None
    if arguments.update:
        if path is None or not whole:
            raise UsageError("--update needs the selected problems at all of their lengths, fp16 and FlashAttention-2")
        earlier = read_earlier(path, empty)
        merge = lambda document: merged(earlier, document)  # noqa: E731
    tables.record(
        session,
        found,
        empty,
        path,
        "all problems and lengths in fp16 with FlashAttention-2",
        arguments.resume,
        lambda table, keep: measure(machine, session, arguments, table, keep),
        merge,
    )
