"""Whether the results of instructions matter. The kernel runs again with the results of one kind of instruction
changed, and the output should move. The virtual GPU follows which values reach the output, but not with which weight:
a result that is multiplied by 0, or compared with itself, reaches it and does not matter."""

import math
import re
from typing import Any

from compiler import Machine, NotGraded
from launches import Launch, run_launches, unpack

MOVED = 0.05  # an element has moved if it differs by this share of the output's root mean square
ENOUGH = 0.7  # of the elements; some hardly move, because their changes cancel
MOST_ELEMENTS = 4096  # that are compared

GUARD = r"(?P<guard>@!?%?\w+\s+)?"
# By kind: the instruction, with its first result or results. Registers are followed by what changes them.
INSTRUCTIONS = {
    "mma": rf"{GUARD}\bw?mma\.(?:mma\.)?sync[\w.:]*\s+(?P<results>\{{[^}}]*\}})[^;]*;",
    "ldmatrix": rf"{GUARD}\bldmatrix\.sync[\w.:]*\s+(?P<results>\{{[^}}]*\}}|%\w+)[^;]*;",
    "shuffles": rf"{GUARD}\b(?:shfl|redux)\.sync[\w.:]*\s+(?P<results>%\w+)[^;]*;",
    "shared_loads": rf"{GUARD}\bld(?:\.\w+)*\.shared[\w.:]*\s+(?P<results>\{{[^}}]*\}}|%\w+)[^;]*;",
}
COPY = rf"{GUARD}(?P<opcode>\bcp\.async\.c[ag][\w.:]*)\s+(?P<to>\[[^]]*\]),\s*"
COPY += r"\[(?P<from>%\w+)(?:\+(?P<offset>-?\d+))?\](?P<rest>[^;]*);"
KINDS = (*INSTRUCTIONS, "copies")


def changed_copy(copy: re.Match) -> str:
    """A copy from the neighbouring 16 bytes: rows consist of whole pairs of them."""
    return (
        f"{{ .reg .b64 %from_beside; add.s64 %from_beside, {copy['from']}, {copy['offset'] or 0}; "
        f"xor.b64 %from_beside, %from_beside, 16; "
        f"{copy['guard'] or ''}{copy['opcode']} {copy['to']}, [%from_beside]{copy['rest']}; }}"
    )


def changed_results(instruction: re.Match) -> str:
    """The instruction, and one for each of its results: floats of an mma shrink, so that what is added up over several
    of them vanishes rather than grows; of anything else, bits that matter in every type are flipped."""
    text, guard = instruction[0], instruction["guard"] or ""
    opcode = re.search(r"[a-z]+(?:\.[\w:]+)+", text.removeprefix(guard))[0]
    types = re.findall(r"\.([fbsu]\d+(?:x2)?|bf16x?2?)(?=\.|$)", opcode)
    width = re.search(r"\d+", types[-1])[0] if types and not types[-1].endswith("x2") else "32"
    for register in re.findall(r"%\w+", instruction["results"]):
        if "mma" in opcode and types[0] == "f32":
            text += f"\n{guard}mul.f32 {register}, {register}, 0f3F400000;"
        elif "ldmatrix" in opcode or "mma" in opcode or width == "32":
            text += f"\n{guard}xor.b32 {register}, {register}, 0x01000100;"
        elif width in ("16", "64"):
            text += f"\n{guard}xor.b{width} {register}, {register}, 0x0100;"
    return text


def disturbed(ptx: str, kind: str) -> str:
    """The PTX with the results of all instructions of a kind changed."""
    if kind == "copies":
        return re.sub(COPY, changed_copy, ptx)
    return re.sub(INSTRUCTIONS[kind], changed_results, ptx)


def outputs(launch: Launch, answer: dict[str, Any]) -> list[float]:
    """The elements that the launch has written."""
    if "problem" in launch.request:
        kind = {"fp16": "f16", "bf16": "bf16"}[launch.request["problem"]["dtype"]]
        kinds = dict.fromkeys(launch.request["gradients"] or ["O"], kind)
    else:
        kinds = {name: buffer["type"] for name, buffer in launch.buffers.items() if "bytes" not in buffer}
    return [value for name, kind in kinds.items() for value in unpack(kind, bytes.fromhex(answer["buffers"][name]))]


def share_moved(before: list[float], after: list[float]) -> float:
    step = max(1, len(before) // MOST_ELEMENTS) | 1  # odd, for elements of all columns
    before, after = before[::step], after[::step]
    size = math.sqrt(sum(x * x for x in before) / len(before))
    moved = sum(not abs(x - y) <= MOVED * size for x, y in zip(before, after, strict=True))
    return moved / len(before)


def influence(
    machine: Machine, ptx: str, launches: list[Launch], answers: list[dict[str, Any]], kinds: list[str]
) -> list[dict[str, float]]:
    """For each launch and kind: 1 if the output depends on the results of such instructions, 0 if it does not. Only for
    launches whose output is right; for others it is 1."""
    shares = [dict.fromkeys(kinds, 1.0) for _ in launches]
    right = [i for i, answer in enumerate(answers) if not answer["wrong"]]
    if not right:
        return shares
    for kind in kinds:
        changed = disturbed(ptx, kind)
        try:
            again = run_launches(machine, changed, [launches[i] for i in right])
        except NotGraded:
            continue  # the changed kernel waits for a value that never comes
        for i, answer in zip(right, again, strict=True):
            if answer["status"] == "ran":
                moved = share_moved(outputs(launches[i], answers[i]), outputs(launches[i], answer))
                shares[i][kind] = min(1.0, moved / ENOUGH)
    return shares
