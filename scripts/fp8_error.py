#!/usr/bin/env python3
"""How far attention in 8 bits is from float64, beside 16: with and without outliers in Q and K, and with a rotation.

    scripts/fp8_error.py                          on the virtual GPU, small
    scripts/fp8_error.py --seq-len 4096 --gpu     on a Hopper GPU, through PyTorch

Q, K and V are normal numbers. With outliers, one element of Q and K in a thousand has another normal number added, of
standard deviation 10 (Shah et al., FlashAttention-3, section 4.3). `fp16` is version 27 on all of them rounded to fp16,
`fp8` the extension fp8 on all of them rounded to e4m3 with a scale for each head. `rotated` first multiplies Q and K by
the same random orthogonal matrix (incoherent processing, section 3.3): Q Kᵀ stays what it is, and an outlier spreads
over all 128 columns, so that it no longer makes the scale of its head. The matrix is a Hadamard one with random signs,
D H / sqrt(128). `arithmetic` is what the rounding of Q, K and V alone costs, in float64.

Errors are ‖O - exact‖ / ‖exact‖, with exact in float64 from the numbers before any rounding. Needs the Python package
of the ladder, NumPy, and for --gpu PyTorch.

Exit status: 0 done, 2 bad usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import math
import sys
from collections.abc import Sequence

try:
    import numpy as np
    from numpy.typing import NDArray
except ImportError as missing:
    print(f"fp8_error: {missing}; install it for this Python: {sys.executable} -m pip install numpy", file=sys.stderr)
    raise SystemExit(3) from missing

HEAD_DIM = 128
LARGEST = 448.0  # of e4m3
Floats = NDArray[np.float64]


def e4m3_values() -> Floats:
    """What the bits 0 to 126 stand for, in order: four bits of exponent, bias 7, and three of mantissa."""
    bits = np.arange(127)
    exponent, mantissa = bits >> 3, bits & 7
    return np.where(exponent > 0, (8 + mantissa) * 2.0 ** (exponent - 10), mantissa * 2.0**-9)


def to_e4m3(x: Floats) -> NDArray[np.uint8]:
    """The bits of the nearest e4m3 number, of two the even one; what is beyond 448 becomes 448."""
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
    """[batch, seq_len, heads, head_dim] as e4m3, and its scales [batch, heads]."""
    scales = (np.abs(x).max(axis=(1, 3)) / LARGEST).astype(np.float32)
    return to_e4m3(x / scales[:, None, :, None]), scales


def rotation(random: np.random.Generator) -> Floats:
    """A Hadamard matrix with random signs, orthogonal: each element is ± 1 / sqrt(128)."""
    hadamard = np.ones((1, 1))
    while len(hadamard) < HEAD_DIM:
        hadamard = np.block([[hadamard, hadamard], [hadamard, -hadamard]])
    return random.choice([-1.0, 1.0], HEAD_DIM)[:, None] * hadamard / math.sqrt(HEAD_DIM)


def attention(q: Floats, k: Floats, v: Floats) -> Floats:
    """In float64."""
    o = np.empty_like(q)
    for b in range(q.shape[0]):
        for head in range(q.shape[2]):
            s = q[b, :, head] @ k[b, :, head].T / math.sqrt(HEAD_DIM)
            p = np.exp(s - s.max(axis=1, keepdims=True))
            o[b, :, head] = p @ v[b, :, head] / p.sum(axis=1, keepdims=True)
    return o


def error(o: Floats, exact: Floats) -> float:
    return float(np.linalg.norm(o - exact) / np.linalg.norm(exact))


def forward(arrays: Sequence[np.ndarray], scales: np.ndarray | None, kernel: str, gpu: bool) -> Floats:
    """By the ladder's kernel."""
    import flash_ladder

    if not gpu:
        return flash_ladder.forward(*arrays, kernel=kernel, scales=scales).astype(np.float64)
    import torch

    moved = [torch.from_numpy(array).cuda() for array in arrays]
    on_gpu = None if scales is None else torch.from_numpy(scales).cuda()
    return flash_ladder.forward(*moved, kernel=kernel, scales=on_gpu).double().cpu().numpy()


def in_8_bits(q: Floats, k: Floats, v: Floats, gpu: bool) -> tuple[Floats, Floats]:
    """What the kernel makes of them, and what float64 makes of the same rounded numbers."""
    rounded = [quantise(x) for x in (q, k, v)]
    scales = np.stack([scale for _, scale in rounded])
    exact = [from_e4m3(bits) * scale[:, None, :, None] for bits, scale in rounded]
    return forward([bits for bits, _ in rounded], scales, "fp8", gpu), attention(*exact)


def report(batch: int, heads: int, seq_len: int, seed: int, gpu: bool) -> None:
    random = np.random.default_rng(seed)
    shape = (batch, seq_len, heads, HEAD_DIM)
    print(f"batch {batch}, {heads} heads, seq_len {seq_len}: relative error      kernel  arithmetic")
    for outliers in (False, True):
        q, k, v = (random.standard_normal(shape) for _ in range(3))
        if outliers:
            q, k = (x + 10 * random.standard_normal(shape) * (random.random(shape) < 0.001) for x in (q, k))
        exact = attention(q, k, v)
        half = [x.astype(np.float16) for x in (q, k, v)]
        name = "with outliers" if outliers else "normal"
        print(f"  {name:<14} fp16            {error(forward(half, None, '27', gpu), exact):18.2e}"
              f"  {error(attention(*(x.astype(np.float64) for x in half)), exact):10.2e}", flush=True)  # fmt: skip
        turn = rotation(random)
        for which, pair in (("fp8", (q, k)), ("fp8, rotated", (q @ turn, k @ turn))):
            o, arithmetic = in_8_bits(*pair, v, gpu)
            print(f"  {name:<14} {which:<15} {error(o, exact):18.2e}  {error(arithmetic, exact):10.2e}", flush=True)


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8")  # of --help, whatever the locale is
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--batch", type=int, default=1, metavar="N", help="(1)")
    parser.add_argument("--heads", type=int, default=2, metavar="N", help="(2)")
    parser.add_argument("--seq-len", type=int, default=384, metavar="N", help="(384)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="(0)")
    parser.add_argument("--gpu", action="store_true", help="on a Hopper GPU; else on the virtual GPU")
    parsed = parser.parse_args(arguments)
    for name in ("batch", "heads", "seq_len"):
        if getattr(parsed, name) < 1:
            parser.error(f"--{name.replace('_', '-')} is {getattr(parsed, name)}; allowed: 1 and more")
    if parsed.seed < 0:
        parser.error(f"--seed is {parsed.seed}; allowed: 0 and more")
    try:
        report(parsed.batch, parsed.heads, parsed.seq_len, parsed.seed, parsed.gpu)
    except ImportError as missing:
        remedy = "install the ladder's Python package: pip install ./harness/python"
        if missing.name == "torch":
            remedy = f"install PyTorch for this Python, {sys.executable}, or leave --gpu out"
        print(f"fp8_error: {missing}; {remedy}", file=sys.stderr)
        return 3
    except ValueError as refused:  # by the package, in the words of its arguments
        print(f"fp8_error: {refused}", file=sys.stderr)
        return 2
    return 0


if __name__ == "__main__":
    sys.exit(main())
