"""The launches of an assignment: shapes and inputs are drawn from the hidden seed, kernels run on the virtual GPU, and
their output is compared with the expected one."""

import dataclasses
import json
import math
import struct
import subprocess
import tempfile
from collections.abc import Mapping
from typing import Any

from assignment import Assignment, AssignmentError, Value, draw, evaluate
from compiler import SOURCE, Machine, NotGraded, printable

RUN_SECONDS = 120  # of CPU time, for each launch
RUN_WALL_SECONDS = 900
RUN_MEMORY = 4 << 30
# For the warps of a CTA, unless the assignment allows more; a launch has twice this budget. The references need at most
# 160,000, and 500,000 per launch. The slowest known loops, atomics of 64 bits, take half a minute for this many.
INSTRUCTIONS = 2_000_000


# ---- Values in the virtual GPU's memory ----


def to_bf16(value: float) -> int:
    """The bits of the nearest bfloat16, halves to even."""
    bits = struct.unpack("<I", struct.pack("<f", value))[0]
    return ((bits + 0x7FFF + (bits >> 16 & 1)) >> 16) & 0xFFFF


FORMATS = {"f32": "f", "f16": "e", "i32": "i", "u32": "I", "bf16": "H"}


def pack(kind: str, values: list[Any]) -> bytes:
    if kind == "bf16":
        values = [to_bf16(value) for value in values]
    elif kind in ("i32", "u32"):
        values = [int(value) for value in values]
    return struct.pack(f"<{len(values)}{FORMATS[kind]}", *values)


def unpack(kind: str, data: bytes) -> list[Any]:
    code = FORMATS[kind]
    values = list(struct.unpack(f"<{len(data) // struct.calcsize(code)}{code}", data))
    if kind == "bf16":
        values = [struct.unpack("<f", struct.pack("<I", value << 16))[0] for value in values]
    return values


def random_values(kind: str, count: int, *key: str) -> list[float]:
    """Numbers that depend only on the key: "normal", "uniform" (0 to 1) or "ints" (-100 to 100)."""
    bits = [draw(*key, str(i)) for i in range(count)]
    uniform = [(b % (1 << 40) + 0.5) / (1 << 40) for b in bits]
    if kind == "uniform":
        return uniform
    if kind == "ints":
        return [b % 201 - 100 for b in bits]
    if kind == "normal":  # the Box–Muller method
        angles = [2 * math.pi * (b >> 40) / (1 << 23) for b in bits]
        return [math.sqrt(-2 * math.log(u)) * math.cos(a) for u, a in zip(uniform, angles, strict=True)]
    raise AssignmentError(f"values '{kind}' are unknown")


# ---- Running ----


@dataclasses.dataclass
class Launch:
    """One case for one type: its launch, and the values needed to check it."""

    case: dict[str, Any]
    names: dict[str, Any]  # sizes and course values, for expressions
    request: dict[str, Any]  # for harness-grader
    buffers: dict[str, dict[str, Any]]  # the assignment's buffers, with their values


def make_launch(assignment: Assignment, case: dict[str, Any], hidden: str, functions: dict[str, Any]) -> Launch:
    """Draws the shapes and inputs of a case."""
    key = (assignment.name, assignment.course, hidden, case["name"])

    def size(name: str, value: Value, names: Mapping[str, Any]) -> Value:
        if isinstance(value, list):
            value = value[draw(*key, name) % len(value)]
        return evaluate(value, names)

    names = dict(functions)
    buffers: dict[str, dict[str, Any]] = {}
    request: dict[str, Any] = {"sm": case.get("sm", 80)}
    if "problem" in case:
        problem = dict(case["problem"])
        layout = problem.pop("layout", "'bshd'")
        each = {"Q": layout, "K": layout, "V": layout, "O": layout} if isinstance(layout, str) else layout
        layouts = {tensor: evaluate(each.get(tensor, "'bshd'"), names) for tensor in "QKVO"}
        scale = problem.pop("softmax_scale", "1 / math.sqrt(head_dim)")
        for name, value in problem.items():
            names[name] = size(name, value, names)
        problem = {name: names[name] for name in problem} | {"dtype": case["type"] or "fp16"}
        request |= {"problem": problem, "layouts": layouts, "softmax_scale": evaluate(scale, names),
                    "inputs": case.get("inputs", "normal"), "seed": draw(*key, "inputs"),
                    "gradients": case.get("gradients", []),
                    "log_sum_exp_base": float(evaluate(case.get("log_sum_exp_base", 0), names)),
                    "workspace": int(evaluate(case.get("workspace", 0), names))}  # fmt: skip
    else:
        for name, value in case.get("sizes", {}).items():
            names[name] = size(name, value, names)
        for name, buffer in case["buffers"].items():
            kind = evaluate_type(buffer, case)
            buffers[name] = buffer | {"type": kind}
            count = int(evaluate(buffer["count"], names))
            if "values" in buffer:
                if buffer["values"] in ("normal", "uniform", "ints"):
                    values = random_values(buffer["values"], count, *key, name)
                elif buffer["values"] == "zero":
                    values = [0] * count
                else:
                    values = evaluate(buffer["values"], names)
                data = pack(kind, values)
                names[name] = unpack(kind, data)  # rounded to the type
                buffers[name]["bytes"] = data.hex()
            else:
                buffers[name]["size"] = count * struct.calcsize(FORMATS[kind])
        request["buffers"] = {
            name: {"bytes": b["bytes"]} if "bytes" in b else {"size": b["size"]} for name, b in buffers.items()
        }
    request |= make_step(case, names, request, buffers)
    request["then"] = [make_step(step, names, request, buffers) for step in case["then"]]
    request["instructions"] = int(evaluate(case.get("instructions", INSTRUCTIONS), names))
    request["hidden"] = hidden != assignment.course  # then nothing says what the output should be
    return Launch(case, names, request, buffers)


def make_step(
    step: dict[str, Any], names: dict[str, Any], request: dict[str, Any], buffers: dict[str, dict[str, Any]]
) -> dict[str, Any]:
    """One of the launches of a case."""
    made: dict[str, Any] = {"kernel": step["kernel"], "shared": int(evaluate(step.get("shared", 0), names))}
    for key in ("grid", "block"):
        value = step[key] if isinstance(step[key], list) else [step[key]]
        sizes = [int(evaluate(v, names)) for v in value]
        made[key] = [*sizes, 1, 1, 1][:3]
    made["arguments"] = [make_argument(argument, names, request, buffers) for argument in step["arguments"]]
    return made


def evaluate_type(buffer: dict[str, Any], case: dict[str, Any]) -> str:
    short = {"fp16": "f16", "bf16": "bf16"}
    kind = short[case["type"]] if buffer["type"] == "@type@" else buffer["type"]
    if kind not in FORMATS:
        raise AssignmentError(f"a buffer of type '{kind}'; there are {', '.join(FORMATS)}")
    return kind


def make_argument(
    argument: Value, names: dict[str, Any], request: dict[str, Any], buffers: dict[str, Any]
) -> dict[str, Any]:
    if isinstance(argument, dict):
        ((kind, value),) = argument.items()
        return {kind: (int if kind == "int" else float)(evaluate(value, names))}
    if argument in buffers or ("problem" in request and argument in buffers_of(request)):
        return {"buffer": argument}
    if argument == "args" and "problem" in request:
        return {"tensors": True}
    if argument == "gradients" and request.get("gradients"):
        return {"gradients": True}
    if argument == "softmax_scale":
        return {"float": request["softmax_scale"]}
    if argument in names:
        return {"int": int(names[argument])}
    raise AssignmentError(f"the argument '{argument}' is unknown")


def buffers_of(request: dict[str, Any]) -> list[str]:
    """The buffers of an attention problem that can be an argument by themselves."""
    names = ["Q", "K", "V", "O"]
    if request["log_sum_exp_base"]:
        names.append("L")
    if request["problem"].get("lengths_kv"):
        names.append("lengths_kv")
    return names


def run_launches(machine: Machine, ptx: str, launches: list[Launch]) -> list[dict[str, Any]]:
    """The answers of harness-grader for each launch, with the reason in "wrong" if the output is not as expected."""
    with tempfile.NamedTemporaryFile("w", prefix="flash-ladder-grade-", suffix=".ptx", encoding="utf-8") as file:
        file.write(ptx)
        file.flush()
        request = {"ptx": file.name, "source": SOURCE, "isolated": machine.isolated, "memory_bytes": RUN_MEMORY,
                   "cpu_seconds": RUN_SECONDS, "wall_seconds": RUN_WALL_SECONDS,
                   "launches": [launch.request for launch in launches]}  # fmt: skip
        done = subprocess.run(
            [machine.grader, "run"], input=json.dumps(request), capture_output=True, text=True, check=False
        )
    if done.returncode != 0:
        raise NotGraded(f"the grader could not run it: {printable(done.stderr)}")
    answers = json.loads(done.stdout)
    if len(answers) != len(launches):
        raise NotGraded(f"the grader answered {len(answers)} of {len(launches)} launches")
    for launch, answer in zip(launches, answers, strict=True):
        if answer["status"] == "not_graded":
            raise NotGraded(f"{launch.case['label']}: {answer['message']}")
        if answer["status"] == "refused":
            empty = {"findings": [], "counters": {}, "useful": {}, "shared_bytes": 0, "lines": []}
            answer |= empty | {"wrong": answer["message"]}
        elif "problem" not in launch.request:
            answer["wrong"] = why_wrong(launch, answer["buffers"])
    return answers


def why_wrong(launch: Launch, after: dict[str, str]) -> str:
    """Why the buffers of a case differ from what is expected; empty if they do not."""
    for name, buffer in launch.buffers.items():
        got = unpack(buffer["type"], bytes.fromhex(after[name]))
        if "expected" not in buffer:
            if "bytes" in buffer and after[name] != buffer["bytes"]:
                return f"the launch has changed {name}, which is an input"
            continue
        expected = evaluate(buffer["expected"], launch.names)
        if len(expected) != len(got):
            raise AssignmentError(f"{len(expected)} values are expected of {name}, which has {len(got)}")
        tolerance = buffer.get("tolerance", 0)
        off = [
            i
            for i, (g, e) in enumerate(zip(got, expected, strict=True))
            if not (abs(g - e) <= tolerance * max(1, abs(e)))
        ]
        if off:
            i = off[0]
            unwritten = "bytes" not in buffer and set(pack_one(buffer["type"], after[name], i)) == {0xFF}
            seen = "was never written" if unwritten else f"is {got[i]:.6g}"
            should = "" if launch.request["hidden"] else f" and should be {expected[i]:.6g}"
            first = f"the first, {name}[{i}], {seen}{should}"
            return f"{len(off)} of {len(got)} elements of {name} are wrong; {first}"
    return ""


def pack_one(kind: str, data: str, index: int) -> bytes:
    width = struct.calcsize(FORMATS[kind])
    return bytes.fromhex(data)[index * width : (index + 1) * width]
