"""Implementations that do not run, or are wrong, are left out with the reason, and the comparison continues."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Sequence

from comparison.implementations import Implementation
from comparison.recording import Session
from comparison.report import show

WRONG = "wrong: "  # how the reason begins when a result is left out because it is wrong


@contextlib.contextmanager
def attempt(session: Session, regimes: Sequence[str], one: Implementation, where: str, failed: str) -> Iterator[None]:
    """Leaves out an implementation that fails in the block; `failed` describes the failure, as in "did not run"."""
    try:
        yield
    except (RuntimeError, ValueError, MemoryError) as problem:
        reason = " ".join(str(problem).split())[:200]
        show(f"  {one.name:<28} {failed}: {reason}")
        session.leave_out(regimes, f"{one.name}, {where}", reason)


def is_right(session: Session, regimes: Sequence[str], one: Implementation, where: str, error: float) -> bool:
    """Judges an error, given as a multiple of the allowed one. A wrong result is left out, and counted."""
    if error <= 1:  # a NaN is not
        return True
    show(f"  {one.name:<28} WRONG: {error:.3g} times the allowed error, so it is not timed")
    session.leave_out(regimes, f"{one.name}, {where}", f"{WRONG}{error:.3g} times the allowed error")
    session.wrong += 1
    return False
