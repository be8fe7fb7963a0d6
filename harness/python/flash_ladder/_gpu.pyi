"""The extension module that is linked with NVIDIA's CUDA runtime."""

from typing import Any, TypeAlias

Exported: TypeAlias = Any  # a DLPack capsule, or an object with __dlpack__ or a buffer

def kernels(gradients: bool) -> list[str]: ...
def configs(kernel: str) -> list[dict[str, Any]]: ...
def device_info(device: int) -> dict[str, Any]: ...
def empty(shape: list[int], dtype: str, device: int) -> Exported:
    """Memory for an output, as an object with __dlpack__."""

def forward(
    arrays: dict[str, Exported],
    dtypes: dict[str, str],
    kernel: str,
    config: str,
    softmax_scale: float | None,
    fields: dict[str, object],
    device: int,
    stream: int,
    wait: bool,
    timed: bool,
    only_chooses: bool,
    kind: str,
    deterministic: bool,
) -> tuple[list[str], float | None, str]:
    """Returns the findings of the virtual GPU, of a timed call milliseconds, and the name of the version.

    `kind` is "forward", "decoding" or "backward". `arrays` has q, k, v and out, and may have scales, alibi_slopes,
    sinks and lse; for decoding, k_cache and v_cache in place of k and v, also lengths and page_table; for gradients,
    also dout, dq, dk and dv. `dtypes` gives the types of their elements, because a NumPy bfloat16 array is passed as
    uint16. An empty `kernel` or `config` leaves the choice to the module. `fields` contains the fields of the problem
    that the arrays do not, by name. With `only_chooses`, nothing is launched.
    """
