"""The gradients of attention in float32, with which every result of scripts/peers --gradients is compared."""

from __future__ import annotations

import math
from types import ModuleType
from typing import Any

from comparison.problems import PLAIN, Problem
from comparison.reference import Expected, hidden, largest_error, masked, rows_at_a_time


class GradientReference:
    """dQ, dK and dV in float32, and what the forward pass leaves behind: `out`, rounded to the type, and `lse`.

    The formulas are those of common/gradients.h. As in harness/worker/gradients.h, a correct kernel may differ by twice
    the error of one that takes D from dO and the rounded O and rounds P and dS before they are multiplied, plus one
    ulp.
    """

    def __init__(
        self,
        torch: ModuleType,
        q: Any,  # noqa: ANN401 (a tensor)
        k: Any,  # noqa: ANN401
        v: Any,  # noqa: ANN401
        dout: Any,  # noqa: ANN401
        every: int = 1,
        problem: Problem = PLAIN,
    ) -> None:
        """Shapes and arguments as for Reference. Of each gradient, one in `every` rows is computed."""
        self.torch, self.every, self.problem = torch, every, problem
        self.scale = 1 / math.sqrt(q.shape[3])
        batch, seq_len, heads, _ = q.shape
        self.out = torch.empty(q.shape, dtype=q.dtype, device=q.device)
        self.lse = torch.empty((batch, heads, seq_len), dtype=torch.float32, device=q.device)
        self.gradients = [Expected(torch, like[:, ::every], like.dtype, every) for like in (q, k, v)]
        dq, dk, dv = self.gradients
        group = heads // k.shape[2]
        for b in range(batch):
            for kv_head in range(k.shape[2]):
                of_k, of_v = k[b, :, kv_head].float(), v[b, :, kv_head].float()
                of_keys = []  # for each head of Q: exact dK and dV, and both from rounded operands
                for head in range(kv_head * group, (kv_head + 1) * group):
                    of_q, of_dout = q[b, :, head].float(), dout[b, :, head].float()
                    deltas = self._forward(b, head, of_q, of_k, of_v, of_dout)
                    dq.add(b, head, *self._of_queries(of_q, of_k, of_v, of_dout, self.lse[b, head], deltas))
                    of_keys.append(self._of_keys(of_q, of_k, of_v, of_dout, self.lse[b, head], deltas))
                exact_dk, exact_dv, rounded_dk, rounded_dv = (sum(parts) for parts in zip(*of_keys, strict=True))
                dk.add(b, kv_head, exact_dk, rounded_dk)
                dv.add(b, kv_head, exact_dv, rounded_dv)

    def _forward(self, b: int, head: int, q: Any, k: Any, v: Any, dout: Any) -> tuple[Any, Any]:  # noqa: ANN401 (tensors)
        """Sets the rows of `out` and `lse`. Returns D = rowsum(dO ∘ O) from the exact O, and from the rounded one."""
        torch, rows = self.torch, rows_at_a_time(len(k))
        exact = torch.empty(q.shape, dtype=torch.float32, device=q.device)
        for first in range(0, len(q), rows):
            part = slice(first, first + rows)
            scores = (q[part] @ k.T) * self.scale
            scores = masked(torch, self.problem, scores, first + torch.arange(len(scores), device=q.device))
            most = scores.amax(dim=1, keepdim=True)
            p = torch.exp(scores - most)
            total = p.sum(dim=1, keepdim=True)
            exact[part] = (p @ v) / total
            self.lse[b, head, part] = (most + torch.log(total))[:, 0]
        self.out[b, :, head] = exact.to(self.out.dtype)
        return (dout * exact).sum(dim=1), (dout * self.out[b, :, head].float()).sum(dim=1)

    def _of_queries(
        self,
        q: Any,  # noqa: ANN401 (a tensor)
        k: Any,  # noqa: ANN401
        v: Any,  # noqa: ANN401
        dout: Any,  # noqa: ANN401
        lse: Any,  # noqa: ANN401
        deltas: tuple[Any, Any],
    ) -> tuple[Any, Any]:
        """Rows of dQ of a head: exact ones, and those from a rounded dS."""
        torch, chosen = self.torch, slice(None, None, self.every)
        rows = torch.arange(len(q), device=q.device)[chosen]
        p = torch.exp(masked(torch, self.problem, (q[chosen] @ k.T) * self.scale, rows) - lse[chosen][:, None])
        dp = dout[chosen] @ v.T
        exact, rounded = (p * (dp - delta[chosen][:, None]) for delta in deltas)
        return (exact @ k) * self.scale, (self._rounded(rounded) @ k) * self.scale

    def _of_keys(
        self,
        q: Any,  # noqa: ANN401 (a tensor)
        k: Any,  # noqa: ANN401
        v: Any,  # noqa: ANN401
        dout: Any,  # noqa: ANN401
        lse: Any,  # noqa: ANN401
        deltas: tuple[Any, Any],
    ) -> tuple[Any, Any, Any, Any]:
        """What a head of Q adds to rows of dK and dV: exactly, and from a rounded P and dS."""
        torch, chosen = self.torch, slice(None, None, self.every)
        queries = torch.arange(len(q), device=q.device)
        keys = queries[chosen]
        scores = (k[chosen] @ q.T) * self.scale  # Sᵀ: [keys, queries]
        if self.problem.causal:
            scores = torch.where(hidden(self.problem, queries[None, :], keys[:, None]), -math.inf, scores)
        p = torch.exp(scores - lse[None, :])
        dp = v[chosen] @ dout.T
        exact, rounded = (p * (dp - delta[None, :]) for delta in deltas)
        return (
            (exact @ q) * self.scale, p @ dout, (self._rounded(rounded) @ q) * self.scale, self._rounded(p) @ dout
        )  # fmt: skip

    def _rounded(self, x: Any) -> Any:  # noqa: ANN401 (a tensor)
        return x.to(self.out.dtype).float()

    def relative_error(self, output: tuple[Any, Any, Any]) -> float:
        """That of Expected, of whichever gradient is worst."""
        both = zip(self.gradients, output, strict=True)
        return largest_error(expected.relative_error(gradient) for expected, gradient in both)
