"""Data other than random normal numbers, for NumPy and PyTorch.

The names and definitions are those of harness/problem/distribution.h, which also gives the sources for the data that
resemble a trained model's heads; the random numbers themselves differ.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from ladder import HEAD_DIM

# z is a standard normal number, a new one for each element.
DEFINITIONS = {
    "normal": "q, k, v = z, standard normal numbers",
    "q-times-3": "q = 3 z",
    "q-times-6": "q = 6 z",
    "sink": "q = z + w, key 0 = 4 w, every other k = z - w/2, w a normal vector per head",
    "rising": "q = z + 8 u, k = z + t u, t from 0 to 16 over the keys, u a unit vector per head",
    "falling": "q = z + 8 u, k = z + t u, t from 16 to 0 over the keys, u a unit vector per head",
    "steps": "q = z + 16 u, k = z + floor(key / 64) u, u a unit vector per head",
    "zeros": "q, k, v = 0",
    "equal-keys": "every k = w, w a normal vector per head",
    "diagonal": "q, k = z + 5 r(place), r a rotary embedding's 16 highest frequencies",
    "four-sinks": "q = z + 10 u, keys 0 to 3 = z + 10 u, u a unit vector per head",
    "broad": "q = z/4",
    "trained": "heads that are diagonal, four-sinks and broad in turn",
}
KINDS_OF_TRAINED = ("diagonal", "four-sinks", "broad")


@dataclass(frozen=True)
class Source:
    """NumPy's random numbers, or PyTorch's."""

    library: ModuleType  # provides cos and sin
    normal: Callable[[tuple[int, ...]], Any]  # standard normal numbers of a given shape
    count: Callable[[int], Any]  # the numbers 0, 1, … in floating point, as many as requested


def make(name: str, batch: int, seq_len: int, heads: int, source: Source) -> tuple[Any, Any, Any]:
    """q, k and v, [batch, seq_len, heads, head_dim], not yet rounded to 16 bits."""
    q, k, v = (source.normal((batch, seq_len, heads, HEAD_DIM)) for _ in range(3))
    w = source.normal((batch, 1, heads, HEAD_DIM))
    u = w / ((w * w).sum(-1) ** 0.5)[..., None]
    key = source.count(seq_len)[None, :, None, None]
    if name == "trained":
        for i, kind in enumerate(KINDS_OF_TRAINED):
            _change(kind, *(x[:, :, i::3] for x in (q, k, v, w, u)), key, source.library)
    else:
        _change(name, q, k, v, w, u, key, source.library)
    return q, k, v


def _change(name: str, q: Any, k: Any, v: Any, w: Any, u: Any, key: Any, library: ModuleType) -> None:  # noqa: ANN401
    """Turns normal numbers into the named data, in place."""
    last = max(key.shape[1] - 1, 1)
    if name == "q-times-3":
        q *= 3
    elif name == "q-times-6":
        q *= 6
    elif name == "sink":
        q += w
        k -= w / 2
        k[:, :1] = 4 * w
    elif name == "rising":
        q += 8 * u
        k += 16 * key / last * u
    elif name == "falling":
        q += 8 * u
        k += 16 * (1 - key / last) * u
    elif name == "steps":
        q += 16 * u
        k += key // 64 * u
    elif name == "zeros":
        q[...] = k[...] = v[...] = 0
    elif name == "equal-keys":
        k[...] = w
    elif name == "diagonal":
        for i in range(16):
            angle = key[..., 0] * 10000 ** (-2 * i / HEAD_DIM)
            for x in (q, k):
                x[..., 2 * i] += 5 * library.cos(angle)
                x[..., 2 * i + 1] += 5 * library.sin(angle)
    elif name == "four-sinks":
        q += 10 * u
        k[:, :4] += 10 * u
    elif name == "broad":
        q /= 4
    elif name != "normal":
        raise ValueError(f"'{name}' is not a distribution; allowed: {', '.join(DEFINITIONS)}")
