"""The part of PyTorch that scripts/comparison/reference.py uses, implemented with NumPy."""

from __future__ import annotations

import numpy as np


class Tensor(np.ndarray):
    """The operations of PyTorch's tensors that Reference uses, implemented with NumPy."""

    device = "cpu"

    def float(self) -> Tensor:
        return self.astype(np.float32)

    def to(self, dtype: type) -> Tensor:
        return self.astype(dtype)

    def abs(self) -> Tensor:
        return np.abs(self)

    def amax(self, dim: int | tuple[int, ...] | None = None, keepdim: bool = False) -> Tensor:
        return np.max(self, axis=dim, keepdims=keepdim)

    def expand(self, *shape: int) -> Tensor:
        return np.broadcast_to(self, shape).view(Tensor)

    def sum(self, dim: int, keepdim: bool = False) -> Tensor:
        return np.sum(np.asarray(self), axis=dim, keepdims=keepdim).view(Tensor)


class NumpyTorch:
    float16, float32, float8_e4m3fn = np.float16, np.float32, "e4m3"
    exp, exp2, floor, log, log2 = np.exp, np.exp2, np.floor, np.log, np.log2

    @staticmethod
    def ones(shape: tuple[int, ...], device: str) -> Tensor:
        return np.ones(shape, np.float32).view(Tensor)

    @staticmethod
    def empty(shape: tuple[int, ...], dtype: type, device: str) -> Tensor:
        return np.full(shape, np.nan, dtype).view(Tensor)

    @staticmethod
    def arange(n: int, device: str) -> Tensor:
        return np.arange(n).view(Tensor)

    @staticmethod
    def stack(tensors: list[np.float32]) -> Tensor:
        return np.stack(tensors).view(Tensor)

    @staticmethod
    def where(condition: Tensor, here: Tensor | float, there: Tensor) -> Tensor:
        return np.where(condition, here, there).view(Tensor)

    @staticmethod
    def finfo(dtype: type) -> np.finfo:
        return np.finfo(dtype)
