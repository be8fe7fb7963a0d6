"""What the reference answers of a course count, without the answers: a teacher gives it to the students, so that they
can grade themselves."""

import json
import os
from pathlib import Path
from typing import Any

from assignment import ANSWERS_VARIABLE, AnswersMissing, Assignment, AssignmentError

FILE = "counters.json"


def kept_counters(
    assignment: Assignment, hidden: str, cases: list[str], missing: AnswersMissing
) -> list[dict[str, Any]]:
    """What the reference answer counts in each case, as the teacher's file says. Raises `missing` if there is no such
    file, or if the hidden seed makes other cases than those of the file."""
    folder = os.environ.get(ANSWERS_VARIABLE)
    path = Path(folder or ".") / FILE
    if not folder or not path.is_file() or hidden != assignment.course:
        raise missing
    try:
        kept = json.loads(path.read_text(encoding="utf-8"))
        course, known = kept["course"], kept["assignments"].get(assignment.name)
    except (ValueError, KeyError, TypeError, AttributeError) as error:
        raise AssignmentError(f"{path} was not written by scripts/teacher_pack: {error!r}") from error
    if course != assignment.course:
        raise AssignmentError(f"{path} is for the course '{course}', and --course is '{assignment.course}'")
    if known is None or known["page"] != assignment.page or [case["name"] for case in known["cases"]] != cases:
        raise AssignmentError(f"{path} is for another revision of {assignment.name}: use the revision of this project "
                              "that your teacher names, or ask for a new file")  # fmt: skip
    return known["cases"]


def to_keep(assignment: Assignment, cases: list[str], answers: list[dict[str, Any]]) -> dict[str, Any]:
    """The same for the file, from the results of the reference answer."""
    kept = [
        {"name": name, **{key: answer[key] for key in ("counters", "useful", "shared_bytes")}}
        for name, answer in zip(cases, answers, strict=True)
    ]
    return {"page": assignment.page, "cases": kept}
