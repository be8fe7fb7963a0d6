"""The extension module that is linked with NVIDIA's CUDA runtime."""

from typing import Any, TypeAlias

Exported: TypeAlias = Any  # a DLPack capsule, or an object with __dlpack__ or a buffer

def kernels() -> list[str]: ...
def configs(kernel: str) -> list[dict[str, Any]]: ...
def device_info(device: int) -> dict[str, Any]: ...
def empty(batch: int, seq_len: int, heads: int, head_dim: int, dtype: str, device: int) -> Exported:
    """Memory for an output, as an object with __dlpack__."""

def forward(
    q: Exported,
    k: Exported,
    v: Exported,
    out: Exported,
    scales: Exported | None,
    dtypes: list[str],
    kernel: str,
    config: str,
    softmax_scale: float | None,
    fields: dict[str, object],
    device: int,
    stream: int,
    wait: bool,
    timed: bool,
) -> tuple[list[str], float | None]:
    """Returns the findings of the virtual GPU and, of a timed call, milliseconds.

    `dtypes` gives the types of their elements, because a NumPy bfloat16 array is passed as uint16. An empty `kernel` or
    `config` leaves the choice to the module. `fields` contains the fields of the problem that the
    arrays do not, by name.
    """
