"""Attention in float32, with which every result is compared."""

from __future__ import annotations

import math
from collections.abc import Sequence
from types import ModuleType
from typing import Any

from comparison.problems import PLAIN, Problem


class Reference:
    """Attention in float32, and how far from it a correct kernel may be."""

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
        """q has shape [batch, seq_len, heads, head_dim], k and v have [batch, seq_len, kv_heads, head_dim]; scales are
        None or, for e4m3, [3, batch, heads]. Of the problem, only the mask is used. `lengths` are how many keys each
        batch entry has, at least 1; None: all. They are for problems without a mask.

        Checking only one in `every` rows is quicker and no less strict, because the allowed error is derived from these
        rows as well.
        """
        self.torch, self.every, self.problem = torch, every, problem
        q = q[:, ::every]
        out = q.dtype if scales is None else torch.float16
        scales = torch.ones((3, *q.shape[::2]), device=q.device) if scales is None else scales  # [3, batch, heads]
        batch, seq_len, heads, head_dim = q.shape
        scale = 1 / math.sqrt(head_dim)
        heads_per_kv_head = heads // k.shape[2]
        rows = max(1, (1 << 28) // (4 * k.shape[1]))  # 256 MB of scores at a time
        self.output = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        error = torch.empty((batch, heads), dtype=torch.float32, device=q.device)  # caused by rounding P and the output
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
                    rounded = self._rounded(p, values, q.dtype, first * every).to(out).float()
                    errors.append((rounded - exact).abs().amax())
                    self.output[b, part, head] = exact
                error[b, head] = torch.stack(errors).amax()
        largest = self.output.abs().amax(dim=(1, 3))
        ulp = torch.finfo(out).eps * torch.exp2(torch.floor(torch.log2(largest)))
        self.allowed = 2 * error + ulp  # [batch, heads]; as in the harness's checker

    def _masked(self, scores: Any, first: int) -> Any:  # noqa: ANN401 (tensors)
        """The scores [rows, keys] from row `first` on, with -inf for keys that a row does not see. Each row sees its
        own key, so each has a maximum."""
        if not self.problem.causal:
            return scores
        arange, device = self.torch.arange, scores.device
        row = (first + self.every * arange(scores.shape[0], device=device))[:, None]
        key = arange(scores.shape[1], device=device)[None, :]
        hidden = key > row
        if self.problem.window_left is not None:
            hidden = hidden | (key < row - self.problem.window_left)
        return self.torch.where(hidden, -math.inf, scores)

    def _rounded(self, p: Any, values: Any, dtype: Any, first: int) -> Any:  # noqa: ANN401 (tensors)
        """P V divided by the sums, with P rounded as in harness/worker/tensors.h (round_P), from row `first` on."""
        if dtype != self.torch.float8_e4m3fn:
            return (p.to(dtype).float() @ values) / p.sum(dim=1, keepdim=True)
        rows = first + self.every * self.torch.arange(len(p), device=p.device)
        p = (p * 2 ** (7 + rows[:, None] % 8 / 8)).to(dtype).float()
        return (p @ values) / p.sum(dim=1, keepdim=True)

    def relative_error(self, output: Any) -> float:  # noqa: ANN401 (a tensor)
        """The largest over (batch, head) of max|output - float32| divided by the allowed error: right if at most 1."""
        errors = []
        for mine, exact, allowed in zip(output[:, :: self.every], self.output, self.allowed, strict=True):
            error = (mine.float() - exact).abs().amax(dim=(0, 2))  # of one batch entry at a time; a NaN is kept
            errors.append(self.torch.where(error == 0, error, error / allowed))  # if all is 0, no error is allowed
        return max(
            (float(error.amax()) for error in errors), key=lambda error: math.inf if math.isnan(error) else error
        )
