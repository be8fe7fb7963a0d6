"""How many bits change when one random number replaces another, which pages need when they discuss power."""

from __future__ import annotations

import itertools
import struct
from functools import cache
from math import erf, sqrt


@cache
def flipped_bits(dtype: str) -> float:
    """Out of 16, on average, between two independent standard normal numbers, rounded to "fp16" or "bf16"."""
    probabilities = _probabilities(dtype)
    ones = [sum(p for bits, p in enumerate(probabilities) if bits >> bit & 1) for bit in range(15)]
    return 0.5 + sum(2 * p * (1 - p) for p in ones)  # the sign bit, and the others


def _value(bits: int, dtype: str) -> float:
    """The value of non-negative bits; for the bits of infinity, the value that would come next."""
    if dtype == "bf16":
        return struct.unpack("<f", struct.pack("<I", bits << 16))[0]
    exponent, mantissa = bits >> 10, bits & 1023
    return (1024 + mantissa) * 2.0 ** (exponent - 25) if exponent else mantissa * 2.0**-24


def _probabilities(dtype: str) -> list[float]:
    """The probability of each bit pattern for |z| rounded."""
    values = [_value(bits, dtype) for bits in range({"fp16": 31 << 10, "bf16": 255 << 7}[dtype])]
    borders = [0.0, *((low + high) / 2 for low, high in itertools.pairwise(values)), float("inf")]
    below = [erf(border / sqrt(2)) for border in borders]
    return [high - low for low, high in itertools.pairwise(below)]
