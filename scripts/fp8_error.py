#!/usr/bin/env python3
"""Measures the error of attention in 8 bits relative to float64, and compares it with the errors of attention in 16
bits and of FlashAttention-3 in e4m3, for several kinds of data.

    scripts/fp8_error.py                          on the virtual GPU, a small problem
    scripts/fp8_error.py --seq-len 4096 --gpu     on a Hopper GPU, through PyTorch; --record stores the result in
                                                  profiles/, as scripts/record does

The data are those of scripts/peers --data, except zeros, for which there is no error, and additionally `outliers`:
normal numbers, with another normal number of standard deviation 10 added to one element of Q and K in a thousand (Shah
et al., FlashAttention-3, section 4.3). `27` is version 27 on the data rounded to fp16. `fp8` is the extension fp8, and
`FlashAttention-3` is FlashAttention-3's own kernel, if it can be imported; both run on the data rounded to e4m3 with a
scale for each head.

`rotated` first multiplies Q and K by the same random orthogonal matrix (incoherent processing, section 3.3): Q Kᵀ does
not change, and an outlier is spread over all 128 columns, so that it no longer determines the scale of its head. The
matrix is a Hadamard matrix with random signs, D H / sqrt(128).

Errors are ‖O - exact‖ / ‖exact‖, where exact is computed in float64 from the numbers before any rounding. `rounding` is
the error that rounding Q, K and V to e4m3 causes by itself, with attention in float64. `kernel alone` compares the
kernel's O with attention in float64 on the rounded numbers. The script needs the ladder's Python package, NumPy, and
for --gpu PyTorch.

Exit status: 0 done, 2 bad usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import datetime
import math
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import distributions
from comparison import adapters, recording
from comparison.implementations import UnavailableError
from ladder import HARNESS, HEAD_DIM, ROOT, device_slug

try:
    import numpy as np
    from float64_attention import attention
    from numpy.typing import NDArray
except ImportError as missing:
    print(f"fp8_error: {missing}; install it for this Python: {sys.executable} -m pip install numpy", file=sys.stderr)
    raise SystemExit(3) from missing

LARGEST = 448.0  # of e4m3
NAMES = (*(name for name in distributions.DEFINITIONS if name != "zeros"), "outliers")
ROTATED = ("normal", "outliers")  # data that are also measured with a rotation
Floats = NDArray[np.float64]


def e4m3_values() -> Floats:
    """The numbers represented by the bits 0 to 126, in order: four bits of exponent, bias 7, and three of mantissa."""
    bits = np.arange(127)
    exponent, mantissa = bits >> 3, bits & 7
    return np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)


def to_e4m3(x: Floats) -> NDArray[np.uint8]:
    """The bits of the nearest e4m3 number, with ties to even; magnitudes above 448 become 448."""
    values = e4m3_values()
    magnitude = np.minimum(np.abs(x), LARGEST)
    above = np.clip(np.searchsorted(values, magnitude), 1, 126)
    to_above, to_below = values[above] - magnitude, magnitude - values[above - 1]
    up = (to_above < to_below) | ((to_above == to_below) & (above % 2 == 0))
    return (np.where(up, above, above - 1) | np.where(np.signbit(x), 128, 0)).astype(np.uint8)


def from_e4m3(bits: NDArray[np.uint8]) -> Floats:
    values = e4m3_values()[bits & 127]
    return np.where(bits > 127, -values, values)


def quantise(x: Floats) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Converts [batch, seq_len, heads, head_dim] to e4m3 and its scales, [batch, heads]."""
    scales = (np.abs(x).max(axis=(1, 3)) / LARGEST).astype(np.float32)
    return to_e4m3(x / scales[:, None, :, None]), scales


def data(name: str, batch: int, seq_len: int, heads: int, random: np.random.Generator) -> tuple[Floats, Floats, Floats]:
    """Q, K and V, [batch, seq_len, heads, head_dim]."""
    if name != "outliers":
        source = distributions.Source(np, random.standard_normal, lambda n: np.arange(n, dtype=np.float64))
        return distributions.make(name, batch, seq_len, heads, source)
    shape = (batch, seq_len, heads, HEAD_DIM)
    q, k, v = (random.standard_normal(shape) for _ in range(3))
    q, k = (x + 10 * random.standard_normal(shape) * (random.random(shape) < 0.001) for x in (q, k))
    return q, k, v


def rotation(random: np.random.Generator) -> Floats:
    """A Hadamard matrix with random signs, orthogonal: each element is ± 1 / sqrt(128)."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < HEAD_DIM:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return random.choice([-1.0, 1.0], HEAD_DIM)[:, None] * hadamard / math.sqrt(HEAD_DIM)


def error(o: Floats, exact: Floats) -> float:
    return float(np.linalg.norm(o - exact) / np.linalg.norm(exact))


def ours(arrays: Sequence[np.ndarray], scales: np.ndarray | None, kernel: str, gpu: bool) -> Floats:
    """Attention with the ladder's kernel."""
    import flash_ladder

    if not gpu:
        return flash_ladder.forward(*arrays, kernel=kernel, scales=scales).astype(np.float64)
    import torch

    moved = [torch.from_numpy(array).cuda() for array in arrays]
    on_gpu = None if scales is None else torch.from_numpy(scales).cuda()
    return flash_ladder.forward(*moved, kernel=kernel, scales=on_gpu).double().cpu().numpy()


def flash_attention_3(arrays: Sequence[np.ndarray], scales: np.ndarray) -> Floats:
    """Attention with FlashAttention-3 in e4m3. Raises any error that importing or launching it raises."""
    import torch

    q, k, v = (torch.from_numpy(array).cuda().view(torch.float8_e4m3fn) for array in arrays)
    attention = adapters.flash_attention_3()
    return attention(q, k, v, torch.from_numpy(scales).cuda()).double().cpu().numpy()


def measure(name: str, shape: tuple[int, int, int], seed: int, rotated: bool, gpu: bool) -> dict[str, Any]:
    """A result in the form of profiles/<device>/fp8_error.json, for one kind of data; shape: (batch, seq_len,
    heads)."""
    random = np.random.default_rng(seed)
    q, k, v = data(name, *shape, random)
    exact = attention(q, k, v)
    errors: list[dict[str, Any]] = []

    def add(kernel: str, dtype: str, o: Floats, of_rounded: Floats) -> None:
        found = {"name": kernel, "dtype": dtype, "error": error(o, exact), "kernel_alone": error(o, of_rounded)}
        errors.append(found)

    if not rotated:
        half = [x.astype(np.float16) for x in (q, k, v)]
        add("27", "fp16", ours(half, None, "27", gpu), attention(*(x.astype(np.float64) for x in half)))
    turn = rotation(random) if rotated else np.eye(HEAD_DIM)
    rounded = [quantise(x) for x in (q @ turn, k @ turn, v)]
    bits, scales = [bits for bits, _ in rounded], np.stack([scale for _, scale in rounded])
    of_rounded = attention(*(from_e4m3(bits) * scale[:, None, :, None] for bits, scale in rounded))
    add("fp8", "e4m3", ours(bits, scales, "fp8", gpu), of_rounded)
    why_not = "it needs a GPU; add --gpu"
    if gpu:
        try:
            add("FlashAttention-3", "e4m3", flash_attention_3(bits, scales), of_rounded)
            why_not = ""
        except (ImportError, AttributeError, OSError, RuntimeError, TypeError) as problem:
            why_not = f"{type(problem).__name__}: {' '.join(str(problem).split())[:200]}"
    left_out = {"FlashAttention-3": why_not} if why_not else {}
    found = {"data": name, "rotated": rotated, "rounding": error(of_rounded, exact), "errors": errors}
    return found | {"left_out": left_out}


def report(shape: tuple[int, int, int], names: Sequence[str], seed: int, gpu: bool) -> list[dict[str, Any]]:
    """Computes all results, and prints a line for each as it arrives."""
    batch, seq_len, heads = shape
    print(f"batch {batch}, {heads} heads, seq_len {seq_len}: relative error (of the kernel alone)")
    results = []
    for name in names:
        for rotated in (False, True) if name in ROTATED else (False,):
            found = measure(name, shape, seed, rotated, gpu)
            cells = [f"{one['name']} {one['error']:.2e} ({one['kernel_alone']:.2e})" for one in found["errors"]]
            label = f"{name}{', rotated' if rotated else ''}"
            print(f"  {label:<17} rounding {found['rounding']:.2e}  {'  '.join(cells)}", flush=True)
            results.append(found)
    for name, why in results[0]["left_out"].items():
        print(f"without {name}: {why}")
    return results


def record(results: list[dict[str, Any]], shape: tuple[int, int, int], seed: int) -> Path:
    """Writes profiles/<device>/fp8_error.json (harness/results/fp8_error.schema.json). Raises UnavailableError."""
    import torch

    device = torch.cuda.get_device_name()
    hashes = recording.code_hashes(HARNESS)
    if not {"27", "fp8"} <= hashes.keys():
        raise UnavailableError(f"{HARNESS} reports no code hashes, and a recording needs them: scripts/setup builds it")
    batch, seq_len, heads = shape
    now = datetime.datetime.now(datetime.timezone.utc)
    document = {
        "schema": recording.schema_of("fp8_error.schema.json"),
        "device": device,
        "date": now.strftime("%Y-%m-%dT%H:%M:%SZ"),
        "code_hash": {kernel: hashes[kernel] for kernel in ("27", "fp8")},
        "problem": {"batch": batch, "heads": heads, "seq_len": seq_len, "head_dim": HEAD_DIM, "seed": seed},
        "left_out": results[0]["left_out"],
        "results": [{name: value for name, value in one.items() if name != "left_out"} for one in results],
    }
    path = ROOT / "profiles" / device_slug(device) / "fp8_error.json"
    recording.write(path, recording.formatted(document) + "\n")
    return path


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8")  # for the output of --help, whatever the locale
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--heads", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--seq-len", type=int, default=384, metavar="N", help="(384)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    parser.add_argument("--data", metavar="NAME[,NAME...]", default="all", help=f"of {', '.join(NAMES)} (all)")
    parser.add_argument("--gpu", action="store_true", help="run on a Hopper GPU instead of the virtual GPU")
    parser.add_argument("--record", action="store_true", help="store all results in profiles/<device>/fp8_error.json")
    parsed = parser.parse_args(arguments)
    for name in ("batch", "heads", "seq_len"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(parsed, name)}; allowed: 1 and more")
    if parsed.seed < 0:
        parser.error(f"--seed is {parsed.seed}; allowed: 0 and more")
    names = list(NAMES) if parsed.data == "all" else parsed.data.split(",")
    for name in names:
        if name not in NAMES:
            parser.error(f"--data: '{name}' is not one of all, {', '.join(NAMES)}")
    if parsed.record and (not parsed.gpu or parsed.data != "all"):
        parser.error("--record stores what a GPU computes for all data: it needs --gpu, and no --data")
    shape = (parsed.batch, parsed.seq_len, parsed.heads)
    try:
        results = report(shape, names, parsed.seed, parsed.gpu)
        if parsed.record:
            print(f"wrote {record(results, shape, parsed.seed)}")
    except ImportError as missing:
        remedy = "install the ladder's Python package: pip install ./harness/python"
        if missing.name == "torch":
            remedy = f"install PyTorch for this Python, {sys.executable}, or leave --gpu out"
        print(f"fp8_error: {missing}; {remedy}", file=sys.stderr)
        return 3
    except UnavailableError as missing:
        print(f"fp8_error: {missing}", file=sys.stderr)
        return 3
    except ValueError as refused:  # from the package, in terms of its arguments
        print(f"fp8_error: {refused}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
