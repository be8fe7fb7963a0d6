#!/usr/bin/env python3
"""Runs the cases of flash-attention's own tests of the forward pass with the ladder's kernels.

    scripts/peer_cases.py                       200 cases of each test, chosen at random
    scripts/peer_cases.py --all                 all of them
    scripts/peer_cases.py --record              stores the counts in profiles/<device>/peer_cases.json
    scripts/peer_cases.py --device emulator     a few small cases on the virtual GPU

scripts/peer_cases.toml lists the tests, with the values of each parameter; a case is one combination of them. A case
passes if it meets the tolerance of its test: the error is at most `factor` (2) times the error of PyTorch's own
attention in the same type, plus `absolute` (0); both are errors against attention in float32, rounded to that type.
`rounding` also allows twice the error that comes from adding 0.3 to the result and subtracting it again.

The keys of the table: `lengths` are the lengths of q and k. With a softcap, heads_with_softcap replaces heads, and q is
multiplied by softcap · q_times_softcap. The sequences of `packed` tests have different lengths, up to 20 rows less than
`lengths`; "same" gives q and k the same lengths. If no version of the ladder solves such a case with packed
sequences, it runs as a padded batch with lengths. `local` is a window whose sides are random numbers below the number
of keys. ALiBi slopes are the same for all batch entries, because the ladder's kernels take one slope for each head.

Cases that need a feature that the ladder lacks, such as dropout, are counted as not supported and are not run. Needs
PyTorch and the ladder's Python package.

Exit status: 0 all cases passed, 1 some failed, 2 bad usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import itertools
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from comparison import recording
from comparison.implementations import UnavailableError
from comparison.with_pytorch import about_run, chosen_device, record

try:
    import tomllib
except ImportError:  # Python 3.10
    import tomli as tomllib

TABLE = Path(__file__).with_name("peer_cases.toml")
COMMIT = "0251105a"  # of flash-attention, the source of the table
DEFAULT_CASES = {"gpu": 200, "emulator": 2}  # of each test
LONGEST = {"gpu": None, "emulator": 128}  # rows of q or k

Case = dict[str, Any]


@dataclass
class Test:
    """One of flash-attention's tests, and the outcomes of its cases."""

    name: str
    cases: int = 0  # all combinations of its parameters
    not_supported: Counter[str] = field(default_factory=Counter)  # of all cases, by reason
    passed: int = 0
    refused: Counter[str] = field(default_factory=Counter)  # cases that no version solves, by the package's message
    failures: list[dict[str, Any]] = field(default_factory=list)
    padded: int = 0  # passed or failed as padded batches, although the test packs them

    def line(self) -> str:
        refused = sum(self.refused.values())
        ran = f"{self.passed} passed, {len(self.failures)} failed"
        if self.padded:
            ran += f" ({self.padded} of them as padded batches)"
        parts = [ran, *([f"{refused} not solved by any version"] if refused else [])]
        left_out = ", ".join(f"{why} {count}" for why, count in self.not_supported.items())
        return f"{self.name}: {', '.join(parts)}; of {self.cases} cases not supported: {left_out or 'none'}"


def cases_of(group: dict[str, Any]) -> Iterator[Case]:
    """All combinations of a test's parameters, each with the values that the whole test has in common."""
    common = {name: value for name, value in group.items() if name not in ("axes", "lengths")}
    names = list(group["axes"])
    for (rows, keys), *values in itertools.product(group["lengths"], *group["axes"].values()):
        case = common | dict(zip(names, values, strict=True))
        if case.get("softcap") and case.get("dropout"):  # flash-attention's tests skip this combination
            continue
        case["rows"], case["keys"] = (keys, rows) if case.get("swapped") else (rows, keys)
        yield case


def why_not_supported(case: Case, head_dims: set[int]) -> str | None:
    """The feature that the ladder lacks, regardless of the other parameters."""
    if case["head_dim"] not in head_dims:
        return "head_dim"
    if case["dtype"] == "e4m3":
        return "e4m3"
    needed = ("dropout", "attention_chunk", "page", "unused_rows")
    return next((name for name in needed if case.get(name)), None)


def describe(case: Case) -> str:
    """The parameters of a case, without those that its whole test has in common."""
    shown = ("dtype", "head_dim", "kv_heads", "causal", "local", "alibi", "softcap", "layout", "window")
    settings = [f"{name} {case[name]}" for name in shown if case.get(name) not in (None, False, 0.0)]
    return f"{case['rows']} x {case['keys']}, {', '.join(settings)}"


class Runner:
    """Runs cases on one device."""

    def __init__(self, device: str) -> None:
        import flash_ladder
        import torch

        self.torch, self.fl = torch, flash_ladder
        self.device = "cuda" if device == "gpu" else "cpu"
        self.kernels: Counter[str] = Counter()  # that ran, with the number of cases

    def head_dims(self) -> set[int]:
        return {config.head_dim for kernel in self.fl.kernels() for config in self.fl.configs(kernel)}

    def run(self, case: Case, test: Test) -> None:
        """Adds the case to the test's counts."""
        inputs = Inputs(self.torch, self.device, case)
        forms = [inputs.packed(), inputs.padded()] if case.get("packed") else [inputs.padded()]
        for form in forms:
            try:
                kernel = self.fl.which(**form)
                break
            except ValueError as refusal:
                message = str(refusal)
        else:
            test.refused[message] += 1
            return
        out = self.fl.forward(**form)
        exact, own = inputs.attention(upcast=True), inputs.attention(upcast=False)
        if "cu_seqlens_q" in form:
            exact, own = (inputs.pack(x, inputs.rows_of_q) for x in (exact, own))
        else:
            test.padded += 1 if case.get("packed") else 0
        self.kernels[kernel] += 1
        error, allowed = self.largest(out, exact), self.allowed(case, exact, own)
        if error <= allowed:  # false for NaN
            test.passed += 1
        else:
            sizes = {"error": recording.finite(error), "allowed": recording.finite(allowed)}
            test.failures.append({"case": describe(case), "kernel": kernel} | sizes)

    def largest(self, x: Any, y: Any) -> float:  # noqa: ANN401 (tensors, of a PyTorch that may be missing)
        return (x - y).abs().max().item()

    def allowed(self, case: Case, exact: Any, own: Any) -> float:  # noqa: ANN401
        factor = case.get("factor_with_softcap", 2.0) if case.get("softcap") else 2.0
        rounding = self.largest(exact + 0.3 - 0.3, exact) if case.get("rounding") else 0.0
        return factor * self.largest(own, exact) + case.get("absolute", 0.0) + 2 * rounding


class Inputs:
    """The tensors of a case, and PyTorch's attention on them."""

    def __init__(self, torch: Any, device: str, case: Case) -> None:  # noqa: ANN401
        self.torch, self.device, self.case = torch, device, case
        generator = torch.Generator(device).manual_seed(case["seed"])
        dtype = {"fp16": torch.float16, "bf16": torch.bfloat16}[case["dtype"]]
        rows, keys = case["rows"], case["keys"]
        batch = case["batch_above_2048"] if keys > 2048 and "batch_above_2048" in case else case["batch"]
        softcap = case.get("softcap", 0.0)
        heads = case.get("heads_with_softcap", case["heads"]) if softcap else case["heads"]
        kv_heads = heads if case.get("kv_heads", "all") == "all" else case["kv_heads"]
        parts = {"qkv in one": [3], "kv in one": [1, 2]}.get(case.get("layout", ""), [1, 1, 1])

        def normal(length: int, number: int, heads: int) -> Any:  # noqa: ANN401
            shape = (batch, length, number, heads, case["head_dim"])
            return torch.randn(shape, generator=generator, device=device, dtype=dtype)

        # [batch, length, number of arrays in one, heads, head_dim]
        self.stacks = [normal(rows, parts[0], heads), *(normal(keys, number, kv_heads) for number in parts[1:])]
        if softcap:
            self.stacks[0] = self.stacks[0] * (softcap * case["q_times_softcap"])

        # In host memory, so that a launch does not wait for the GPU.
        draw = random.Random(case["seed"])
        self.rows_of_q, self.rows_of_k = [rows] * batch, [keys] * batch
        if case.get("packed"):
            without_keys = case.get("some_without_keys", False)
            self.rows_of_q = [draw.randint(max(1, rows - 20), rows) for _ in range(batch)]
            self.rows_of_k = [draw.randint(max(0 if without_keys else 1, keys - 20), keys) for _ in range(batch)]
            if without_keys:
                self.rows_of_k = [0 if i % 5 == 0 or i == batch - 1 else n for i, n in enumerate(self.rows_of_k)]
            if case["packed"] == "same":
                self.rows_of_k = self.rows_of_q
        self.fields: dict[str, Any] = {"causal": case.get("causal", False)}
        if case.get("local"):
            self.fields["window"] = case["window"] = (draw.randrange(keys), draw.randrange(keys))
        if softcap:
            self.fields["softcap"] = softcap
        if case.get("alibi"):
            slopes = torch.rand(heads, generator=generator, device=device, dtype=torch.float32)
            self.fields["alibi_slopes"] = 0.3 * slopes

    def unstacked(self, stacks: Sequence[Any]) -> dict[str, Any]:
        return dict(zip("qkv", (x for stack in stacks for x in stack.unbind(-3)), strict=True))

    def padded(self) -> dict[str, Any]:
        """The arguments of forward()."""
        lengths = {"lengths": self.rows_of_q, "lengths_kv": self.rows_of_k} if self.case.get("packed") else {}
        return self.unstacked(self.stacks) | self.fields | lengths

    def packed(self) -> dict[str, Any]:
        lengths = [self.rows_of_q, *[self.rows_of_k] * (len(self.stacks) - 1)]
        stacks = [self.pack(stack, rows) for stack, rows in zip(self.stacks, lengths, strict=True)]
        sums = [list(itertools.accumulate(rows, initial=0)) for rows in (self.rows_of_q, self.rows_of_k)]
        return self.unstacked(stacks) | self.fields | {"cu_seqlens_q": sums[0], "cu_seqlens_k": sums[1]}

    def pack(self, x: Any, lengths: Sequence[int]) -> Any:  # noqa: ANN401
        return self.torch.cat([one[:length] for one, length in zip(x, lengths, strict=True)])

    def attention(self, upcast: bool) -> Any:  # noqa: ANN401
        """The formula with PyTorch's operators, in float32 or in the type of the inputs, and 0 in rows of padding."""
        torch, (q, k, v) = self.torch, self.unstacked(self.stacks).values()
        dtype, scale = q.dtype, q.shape[-1] ** -0.5
        if upcast:
            q, k, v = q.float() * scale, k.float(), v.float()
        else:
            k = k * scale  # a different order of operations from float32, as in flash-attention's tests
        k, v = (x.repeat_interleave(q.shape[2] // k.shape[2], 2) for x in (k, v))
        scores = torch.einsum("bqhd,bkhd->bhqk", q, k)
        if "softcap" in self.fields:
            scores = (scores / self.fields["softcap"]).tanh() * self.fields["softcap"]

        def column(numbers: Sequence[int]) -> Any:  # noqa: ANN401
            return torch.tensor(numbers, device=self.device)[:, None, None, None]

        in_q, in_k = column(self.rows_of_q), column(self.rows_of_k)
        row = torch.arange(scores.shape[2], device=self.device)[:, None]
        key = torch.arange(scores.shape[3], device=self.device)
        distance = key - (row + in_k - in_q)
        if "alibi_slopes" in self.fields:
            scores = scores - self.fields["alibi_slopes"][:, None, None] * distance.abs()
        left, right = self.fields.get("window", (-1, -1))
        seen = (row < in_q) & (key < in_k)
        if left >= 0:
            seen = seen & (distance >= -left)
        if self.fields["causal"] or right >= 0:
            seen = seen & (distance <= (0 if self.fields["causal"] else right))
        weights = scores.masked_fill(~seen, -torch.inf).softmax(-1).masked_fill(~seen, 0).to(v.dtype)
        return torch.einsum("bhqk,bkhd->bqhd", weights, v).to(dtype)


def run(
    table: Sequence[dict[str, Any]], runner: Runner, number: int | None, longest: int | None, seed: int
) -> list[Test]:
    """Runs `number` cases of each test, or all, and prints a line for each test."""
    tests, head_dims = [], runner.head_dims()
    for group in table:
        test, supported = Test(group["test"]), []
        for case in cases_of(group):
            test.cases += 1
            why = why_not_supported(case, head_dims)
            if why is not None:
                test.not_supported[why] += 1
            elif longest is None or max(case["rows"], case["keys"]) <= longest:
                supported.append(case)
        draw = random.Random(f"{seed} {test.name}")
        chosen = supported if number is None else draw.sample(supported, min(number, len(supported)))
        for case in chosen:
            runner.run(case | {"seed": draw.getrandbits(32)}, test)
        print(test.line(), flush=True)
        for failure in test.failures:
            print(f"  FAILED {failure['case']}: error {failure['error']}, allowed {failure['allowed']}, "
                  f"by {failure['kernel']}")  # fmt: skip
        for message, count in test.refused.items():
            print(f"  {count} not solved by any version: {message}")
        tests.append(test)
    return tests


def document(tests: Sequence[Test], runner: Runner, seconds: float, seed: int) -> dict[str, Any]:
    """profiles/<device>/peer_cases.json (harness/results/peer_cases.schema.json). Raises UnavailableError."""
    return about_run("peer_cases.schema.json", runner.kernels, seed) | {
        "flash_attention": COMMIT,
        "seconds": round(seconds, 1),
        "kernels": dict(runner.kernels.most_common()),
        "tests": [
            {
                "test": test.name,
                "cases": test.cases,
                "not_supported": dict(test.not_supported),
                "passed": test.passed,
                "failures": test.failures,
                "refused": dict(test.refused),
                "padded": test.padded,
            }
            for test in tests
        ],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=["gpu", "emulator"], help="(the GPU, if PyTorch finds one)")
    parser.add_argument("--cases", type=int, metavar="N", help="cases of each test (200; on the virtual GPU 2)")
    parser.add_argument("--all", action="store_true", help="all cases of each test")
    parser.add_argument("--longest", type=int, metavar="N", help="most rows of q and k (any; on the virtual GPU 128)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the choice and of the inputs (0)")
    parser.add_argument("--table", type=Path, default=TABLE, help="another table (scripts/peer_cases.toml)")
    parser.add_argument("--record", action="store_true", help="store the counts in profiles/<device>/peer_cases.json")
    parsed = parser.parse_args(arguments)
    for name in ("cases", "longest"):
        if getattr(parsed, name) is not None and getattr(parsed, name) < 1:
            parser.error(f"--{name} is {getattr(parsed, name)}; allowed: 1 and more")
    if parsed.all and parsed.cases is not None:
        parser.error("--all and --cases exclude each other")
    if parsed.record and (parsed.table != TABLE or parsed.longest is not None):
        parser.error("--record stores the counts of the whole table; leave out --table and --longest")
    start = time.monotonic()
    try:
        device = chosen_device(parsed.device, parsed.record, parser)
        runner = Runner(device)
        table = tomllib.loads(parsed.table.read_text(encoding="utf-8"))["group"]
        number = None if parsed.all else parsed.cases or DEFAULT_CASES[device]
        tests = run(table, runner, number, parsed.longest or LONGEST[device], parsed.seed)
        seconds = time.monotonic() - start
        failed = sum(len(test.failures) for test in tests)
        print(
            f"{sum(test.passed for test in tests)} passed, {failed} failed,"
            f" {sum(test.refused.total() for test in tests)} not solved by any version, in {seconds:.0f} s, by"
            f" {', '.join(f'{kernel} ({count})' for kernel, count in runner.kernels.most_common())}"
        )
        if parsed.record:
            record(document(tests, runner, seconds, parsed.seed), "peer_cases.json")
    except ImportError as missing:
        remedy = "pip install ./harness/python" if missing.name == "flash_ladder" else "install it for this Python"
        print(f"peer_cases: {missing}; {remedy}: {sys.executable}", file=sys.stderr)
        return 3
    except (UnavailableError, OSError) as missing:
        print(f"peer_cases: {missing}", file=sys.stderr)
        return 3
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
