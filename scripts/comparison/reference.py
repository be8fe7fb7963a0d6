"""Attention in float32, with which every result is compared."""

from __future__ import annotations

import itertools
import math
from collections.abc import Iterable, Sequence
from types import ModuleType
from typing import Any

from comparison.problems import PLAIN, Problem


class Expected:
    """One in `every` rows of an output [batch, rows, heads, head_dim] in float32, and how far from it a correct
    kernel may be."""

    def __init__(self, torch: ModuleType, like: Any, dtype: Any, every: int) -> None:  # noqa: ANN401 (a tensor, a dtype)
        """`like` are the selected rows of a tensor of the output's shape, and the output is of type `dtype`."""
        self.torch, self.dtype, self.every = torch, dtype, every
        batch, _, heads, _ = like.shape
        self.output = torch.empty(like.shape, dtype=torch.float32, device=like.device)
        self.error = torch.empty((batch, heads), dtype=torch.float32, device=like.device)  # caused by rounding

    def add(self, batch: int, head: int, exact: Any, rounded: Any) -> None:  # noqa: ANN401 (tensors)
        """`rounded` is the same as `exact`, but computed from operands that are rounded where a kernel rounds them."""
        self.output[batch, :, head] = exact
        self.error[batch, head] = (rounded.to(self.dtype).float() - exact).abs().amax()

    @property
    def allowed(self) -> Any:  # noqa: ANN401 (a tensor)
        """[batch, heads]; as in the harness's checker."""
        torch, largest = self.torch, self.output.abs().amax(dim=(1, 3))
        ulp = torch.finfo(self.dtype).eps * torch.exp2(torch.floor(torch.log2(largest)))
        return 2 * self.error + ulp

    def relative_error(self, output: Any) -> float:  # noqa: ANN401 (a tensor)
        """The largest over (batch, head) of max|output - float32| divided by the allowed error: right if at most 1."""
        errors = []
        for mine, exact, allowed in zip(output[:, :: self.every], self.output, self.allowed, strict=True):
            error = (mine.float() - exact).abs().amax(dim=(0, 2))  # of one batch entry at a time; a NaN is kept
            errors.append(self.torch.where(error == 0, error, error / allowed))  # if all is 0, no error is allowed
        return largest_error(float(error.amax()) for error in errors)


def largest_error(errors: Iterable[float]) -> float:
    """A NaN is the largest."""
    return max(errors, key=lambda error: math.inf if math.isnan(error) else error)


def hidden(problem: Problem, row: Any, key: Any) -> Any:  # noqa: ANN401 (tensors)
    """Whether a causal problem's mask hides a key from a row."""
    after = key > row
    return after if problem.window_left is None else after | (key < row - problem.window_left)


def masked(torch: ModuleType, problem: Problem, scores: Any, rows: Any) -> Any:  # noqa: ANN401 (tensors)
    """The scores [rows, keys] of these rows, with -inf for keys that a row does not see. Each row sees its own key, so
    each has a maximum."""
    if not problem.causal:
        return scores
    keys = torch.arange(scores.shape[1], device=scores.device)
    return torch.where(hidden(problem, rows[:, None], keys[None, :]), -math.inf, scores)


def rows_at_a_time(keys: int) -> int:
    """So that their scores take 256 MB."""
    return max(1, (1 << 28) // (4 * keys))


class Reference(Expected):
    """Attention in float32."""

    def __init__(
        self,
        torch: ModuleType,
        q: Any,  # noqa: ANN401 (a tensor)
        k: Any,  # noqa: ANN401
        v: Any,  # noqa: ANN401
        scales: Any,  # noqa: ANN401
        every: int = 1,
        problem: Problem = PLAIN,
        lengths: Sequence[int] | None = None,
    ) -> None:
        """q has shape [batch, seq_len, heads, head_dim], k and v have [batch, seq_len, kv_heads, head_dim], v perhaps
        with another head_dim; scales are
        None or, for e4m3, [3, batch, heads]. Of the problem, only the mask is used. `lengths` are how many keys each
        batch entry has, at least 1; None: all. They are for problems without a mask.

        Checking only one in `every` rows is quicker and no less strict, because the allowed error is derived from these
        rows as well.
        """
        self.problem = problem
        q = q[:, ::every]
        like = q[..., :1].expand(*q.shape[:3], v.shape[3])
        super().__init__(torch, like, q.dtype if scales is None else torch.float16, every)
        scales = torch.ones((3, *q.shape[::2]), device=q.device) if scales is None else scales  # [3, batch, heads]
        batch, seq_len, heads, head_dim = q.shape
        scale = 1 / math.sqrt(head_dim)
        heads_per_kv_head = heads // k.shape[2]
        rows = rows_at_a_time(k.shape[1])
        for b in range(batch):
            for head in range(heads):
                of_q, of_k, of_v = scales[:, b, head]
                kv_head = head // heads_per_kv_head
                used = slice(None if lengths is None else lengths[b])
                keys, values = k[b, used, kv_head].float() * of_k, v[b, used, kv_head].float() * of_v
                errors = []
                for first in range(0, seq_len, rows):
                    part = slice(first, first + rows)
                    scores = self._masked((q[b, part, head].float() * of_q @ keys.T) * scale, first * every)
                    p = torch.exp(scores - scores.amax(dim=1, keepdim=True))
                    exact = (p @ values) / p.sum(dim=1, keepdim=True)
                    rounded = self._rounded(p, values, q.dtype, first * every).to(self.dtype).float()
                    errors.append((rounded - exact).abs().amax())
                    self.output[b, part, head] = exact
                self.error[b, head] = torch.stack(errors).amax()

    def _masked(self, scores: Any, first: int) -> Any:  # noqa: ANN401 (tensors)
        """The same as masked(), for scores from row `first` on."""
        rows = first + self.every * self.torch.arange(scores.shape[0], device=scores.device)
        return masked(self.torch, self.problem, scores, rows)

    def _rounded(self, p: Any, values: Any, dtype: Any, first: int) -> Any:  # noqa: ANN401 (tensors)
        """P V divided by the sums, with P rounded as in harness/worker/tensors.h (round_P), from row `first` on."""
        if dtype != self.torch.float8_e4m3fn:
            return (p.to(dtype).float() @ values) / p.sum(dim=1, keepdim=True)
        rows = first + self.every * self.torch.arange(len(p), device=p.device)
        p = (p * 2 ** (7 + rows[:, None] % 8 / 8)).to(dtype).float()
        return (p @ values) / p.sum(dim=1, keepdim=True)


class PackedReference:
    """Attention in float32 of each of a problem's packed sequences: q, k, v and the output are [rows, heads, head_dim].
    """

    def __init__(
        self,
        torch: ModuleType,
        q: Any,  # noqa: ANN401 (a tensor)
        k: Any,  # noqa: ANN401
        v: Any,  # noqa: ANN401
        every: int,
        problem: Problem,
    ) -> None:
        rows = [slice(first, end) for first, end in itertools.pairwise(problem.first_rows)]
        self.of_sequence = [
            (one, Reference(torch, q[one][None], k[one][None], v[one][None], None, every, problem)) for one in rows
        ]

    def relative_error(self, output: Any) -> float:  # noqa: ANN401 (a tensor)
        """The largest of any sequence, as in Expected."""
        return largest_error(reference.relative_error(output[rows][None]) for rows, reference in self.of_sequence)
