"""Adapters for implementations of the backward pass: gradients of attention with respect to Q, K and V."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from types import ModuleType
from typing import Any

from comparison.adapters import Adapters
from comparison.gradient_reference import GradientReference
from comparison.implementations import Implementation, Kernel
from comparison.private_pytorch import cudnn_gradients, flash_gradients
from comparison.problems import Problem

Gradients = tuple[Any, Any, Any]  # of q, k and v, with their shapes


@dataclass(frozen=True)
class ForwardPass:
    """What an implementation receives with q, k, v and the gradients to write, as the fifth argument of
    Implementation.prepare: dO, and what the forward pass has left behind."""

    dout: Any  # as q
    out: Any  # as q
    lse: Any  # float32 [batch, heads, seq_len], natural logarithms
    causal: bool


class GradientAdapters(Adapters):
    """The ladder's versions, its peers, and their inputs. It has `ladder`, the Python package, and `tensors`,
    which makes q, k and v of random normal numbers and an empty tensor like q."""

    ladder: ModuleType
    tensors: Callable[..., tuple[Any, Any, Any, Any]]

    def gradient_version(self, kernel: Kernel) -> Implementation:
        """Launches return gradients in memory from PyTorch's allocator."""

        def prepare(q: Any, k: Any, v: Any, gradients: Gradients, forward: ForwardPass) -> Callable[[], Gradients]:  # noqa: ANN401
            options = {"kernel": kernel.name, "config": kernel.config, "causal": forward.causal}
            return lambda: self.ladder.backward(forward.dout, q, k, v, forward.out, forward.lse, **options)

        return Implementation(kernel.label, "", prepare, kernel)

    def gradient_peers(self, without: set[str]) -> tuple[list[Implementation], dict[str, str]]:
        """The peers that can be imported, and the reasons why others cannot."""
        note = "PyTorch's operator for the backward pass of SDPA, {} backend"
        makers = {
            "fa2": lambda: self._of_pytorch("FlashAttention-2", note.format("flash"), flash_gradients),
            "cudnn": lambda: self._of_pytorch("cuDNN", note.format("cuDNN") + self._hopper(), cudnn_gradients),
            "fa3": lambda: self._gradients_of_flash_attention_3(deterministic=False),
            "fa3 deterministic": lambda: self._gradients_of_flash_attention_3(deterministic=True),
        }
        without = without | {name for name in makers if name.split()[0] in without}
        return self.found_peers(makers, without, set(makers))

    def _of_pytorch(self, name: str, note: str, operator: Callable[..., Callable[[], Gradients]]) -> Implementation:
        """`operator` is of private_pytorch.py. It takes O and the log-sum-exp from its own forward pass, which is not
        timed."""

        def prepare(q: Any, k: Any, v: Any, gradients: Gradients, forward: ForwardPass) -> Callable[[], Gradients]:  # noqa: ANN401
            views = (x.transpose(1, 2) for x in (q, k, v, forward.dout))  # it wants heads before seq_len
            launch = operator(self.torch, *views, forward.causal)
            return lambda: tuple(gradient.transpose(1, 2) for gradient in launch())

        return Implementation(name, note, prepare)

    def _gradients_of_flash_attention_3(self, deterministic: bool) -> Implementation:
        from flash_attn_interface import _flash_attn_backward

        def prepare(q: Any, k: Any, v: Any, gradients: Gradients, forward: ForwardPass) -> Callable[[], Gradients]:  # noqa: ANN401
            given = (forward.dout, q, k, v, forward.out, forward.lse)
            no_lengths = (None,) * 6
            scale = q.shape[-1] ** -0.5

            def launch() -> Gradients:
                # By position, because the names of arguments differ from release to release.
                _flash_attn_backward(
                    *given, *no_lengths, *gradients, scale, forward.causal, deterministic=deterministic
                )
                return gradients

            return launch

        kind = " deterministic" if deterministic else ""
        note = "Hopper instructions" + (", which adds to dQ in a fixed order" if deterministic else "")
        return Implementation(f"FlashAttention-3{kind}", note, prepare, deterministic=deterministic)

    def backward_problem(
        self, problem: Problem, batch: int, seq_len: int, dtype: str, seed: int, every: int
    ) -> tuple[tuple[Any, Any, Any, Gradients], ForwardPass, GradientReference]:
        """q, k, v and dO of random normal numbers, and the gradients to write; O and the log-sum-exp; and the right
        gradients. O is computed in float32 and rounded."""
        q, k, v, dout = self.tensors(batch, seq_len, dtype, seed, problem)
        dout.normal_(generator=self.torch.Generator("cuda").manual_seed(seed + 1))
        reference = GradientReference(self.torch, q, k, v, dout, every, problem)
        gradients = tuple(self.torch.empty_like(x) for x in (q, k, v))
        return (q, k, v, gradients), ForwardPass(dout, reference.out, reference.lse, problem.causal), reference
