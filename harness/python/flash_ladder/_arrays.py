"""The supported array libraries: where their arrays are, how to hand them over, and on which stream they are used.

Nothing is imported here, because a caller who has an array of a library has already imported it.
"""

from __future__ import annotations

import abc
import sys
from collections.abc import Callable
from typing import Any, TypeAlias

AnyArray: TypeAlias = Any  # of one of the libraries

# DLPack's device types.
_HOST = {1, 3}  # CPU, and pinned by CUDA
_GPU = {2, 13}  # CUDA, and managed memory

LEGACY_DEFAULT_STREAM = 1  # the DLPack protocol's number for stream 0


class Library(abc.ABC):
    """One array library."""

    name: str
    waits = False  # whether a call returns only when the output is complete

    def dtype(self, array: AnyArray) -> str:
        """The type of the elements in the library's terms: "float16"."""
        return str(array.dtype)

    def check(self, name: str, array: AnyArray, writable: bool) -> None:  # noqa: B027, most libraries have nothing to check
        """Raises ValueError or TypeError for an array that cannot be handed over."""

    @abc.abstractmethod
    def hand_over(self, array: AnyArray, on_gpu: bool) -> object:
        """The array in the form that the extension modules take."""

    @abc.abstractmethod
    def stream(self, device: int) -> int:
        """The handle of the stream that receives work on the GPU with this ordinal."""

    @abc.abstractmethod
    def output(self, like: AnyArray, shape: tuple[int, ...], dtype: str, allocate: Callable[[], object]) -> AnyArray:
        """Contiguous memory for an output, where `like` is: the library's own, or the result of allocate()."""

    def result(self, output: AnyArray) -> AnyArray:
        """The output as an array of the library."""
        return output


class NumPy(Library):
    name = "NumPy"

    def check(self, name: str, array: AnyArray, writable: bool) -> None:
        if isinstance(array, sys.modules["numpy"].ma.MaskedArray):
            raise TypeError(
                f"{name} is a masked array, whose mask would be ignored; pass {name}.filled(0), for example"
            )
        if writable and not array.flags.writeable:
            raise ValueError(f"{name} is read-only; it must be writable")
        for axis, stride in enumerate(array.strides):
            if stride % array.itemsize != 0:
                raise ValueError(
                    f"{name} has a stride of {stride} bytes in dimension {axis}; "
                    f"allowed: multiples of {array.itemsize}, the size of an element"
                )

    def hand_over(self, array: AnyArray, on_gpu: bool) -> object:
        # NumPy's DLPack supports neither bfloat16 nor 8-bit floats, and a view of the same bits needs no copy.
        if array.itemsize <= 2:
            return array.view({1: "uint8", 2: "uint16"}[array.itemsize])
        if str(array.dtype) in ("float32", "int32"):
            return array
        # For a type that is refused by name. DLPack does not support all of them, so pass something else of the same
        # shape.
        numpy = sys.modules["numpy"]
        return numpy.broadcast_to(numpy.uint8(0), array.shape)

    def stream(self, device: int) -> int:
        return 0

    def output(self, like: AnyArray, shape: tuple[int, ...], dtype: str, allocate: Callable[[], object]) -> AnyArray:
        return sys.modules["numpy"].empty(shape, like.dtype if str(like.dtype) == dtype else dtype)


class PyTorch(Library):
    name = "PyTorch"

    def dtype(self, array: AnyArray) -> str:
        return str(array.dtype).removeprefix("torch.")

    def check(self, name: str, array: AnyArray, writable: bool) -> None:
        if array.is_nested or array.layout != sys.modules["torch"].strided:
            kind = "nested" if array.is_nested else f"of layout {array.layout}"
            raise TypeError(f"{name} is {kind}; allowed: dense tensors, of layout torch.strided")
        if array.is_neg():
            raise TypeError(
                f"{name} has PyTorch's negative bit set, so its memory does not hold its values; "
                f"pass {name}.resolve_neg()"
            )
        if array.numel() > 0 and not self._has_memory(array):
            raise TypeError(f"{name} has no memory, like a fake tensor; pass a tensor whose elements exist")
        if array.requires_grad and sys.modules["torch"].is_grad_enabled():
            raise ValueError(
                f"{name} requires a gradient, which this function does not record; use "
                f"flash_ladder.pytorch.attention(), or pass {name}.detach(), or call within torch.no_grad()"
            )

    def _has_memory(self, array: AnyArray) -> bool:
        try:
            return bool(array.untyped_storage().data_ptr())
        except RuntimeError:  # some kinds of tensors without memory raise this, and others return 0
            return False

    def hand_over(self, array: AnyArray, on_gpu: bool) -> object:
        array = array.detach()
        if array.element_size() == 1:  # PyTorch's DLPack does not support 8-bit floats
            array = array.view(sys.modules["torch"].uint8)
        # -1: nothing to wait for, because the kernel runs on PyTorch's own current stream.
        return array.__dlpack__(stream=-1) if on_gpu else array.__dlpack__()

    def stream(self, device: int) -> int:
        return int(sys.modules["torch"].cuda.current_stream(device).cuda_stream)

    def output(self, like: AnyArray, shape: tuple[int, ...], dtype: str, allocate: Callable[[], object]) -> AnyArray:
        torch = sys.modules["torch"]
        return torch.empty(shape, dtype=getattr(torch, dtype), device=like.device)


class CuPy(Library):
    name = "CuPy"

    def hand_over(self, array: AnyArray, on_gpu: bool) -> object:
        return array.__dlpack__(stream=-1)  # as with PyTorch

    def stream(self, device: int) -> int:
        return int(sys.modules["cupy"].cuda.get_current_stream(device).ptr)

    def output(self, like: AnyArray, shape: tuple[int, ...], dtype: str, allocate: Callable[[], object]) -> AnyArray:
        with like.device:
            return sys.modules["cupy"].empty(shape, like.dtype if str(like.dtype) == dtype else dtype)


class Jax(Library):
    """JAX has its own streams, which it does not expose. So the kernel runs on the default stream once the inputs are
    ready, and JAX receives the output when it is complete."""

    name = "JAX"
    waits = True

    def check(self, name: str, array: AnyArray, writable: bool) -> None:
        if writable:
            raise TypeError(f"{name} is a JAX array, which cannot be written to; leave {name} out")
        if not isinstance(array, sys.modules["jax"].core.Tracer) and array.is_deleted():
            raise ValueError(f"{name} was deleted, or donated to a JAX function; pass an array that still exists")

    def hand_over(self, array: AnyArray, on_gpu: bool) -> object:
        if not isinstance(array, sys.modules["jax"].Array):  # an output, which is not a JAX array yet
            return array
        array.block_until_ready()
        return array.__dlpack__(stream=LEGACY_DEFAULT_STREAM) if on_gpu else array.__dlpack__()

    def stream(self, device: int) -> int:
        return 0

    def output(self, like: AnyArray, shape: tuple[int, ...], dtype: str, allocate: Callable[[], object]) -> AnyArray:
        return allocate()

    def result(self, output: AnyArray) -> AnyArray:
        return sys.modules["jax"].dlpack.from_dlpack(output)


_LIBRARIES: dict[str, Library] = {"numpy": NumPy(), "torch": PyTorch(), "cupy": CuPy(), "jax": Jax(), "jaxlib": Jax()}


def library_of(name: str, array: object) -> Library:
    """The library of an argument. Raises TypeError if it is not an array of a supported library."""
    kind = type(array)  # a nested tensor itself has no shape to query
    if hasattr(kind, "__dlpack__") and hasattr(kind, "shape"):
        for base in kind.__mro__:
            library = _LIBRARIES.get(base.__module__.partition(".")[0])
            if library is not None:
                return library
    raise TypeError(f"{name} is of type {kind.__name__}; allowed: arrays of NumPy, PyTorch, CuPy and JAX")


def device_of(name: str, array: AnyArray) -> tuple[bool, int]:
    """Whether the array is on a GPU, and on which one. Raises TypeError if it is neither there nor in host memory."""
    try:
        kind, ordinal = array.__dlpack_device__()
    except Exception as error:
        raise TypeError(f"{name} cannot be handed over by DLPack: {error}") from error
    if kind in _HOST:
        return False, 0
    if kind in _GPU:
        return True, ordinal
    raise TypeError(f"{name} is on a device of DLPack's type {int(kind)}; allowed: NVIDIA GPUs and host memory")


def hand_over(library: Library, name: str, array: AnyArray, on_gpu: bool) -> object:
    """Calls library.hand_over(). Raises TypeError if the array cannot be handed over."""
    try:
        return library.hand_over(array, on_gpu)
    except Exception as error:
        raise TypeError(f"{name} cannot be handed over by DLPack: {error}") from error
