"""A block with attention learns on the virtual GPU as it does in float64: several steps, forward and backward."""

from __future__ import annotations

from collections.abc import Callable
from types import ModuleType

import numpy as np
from float64_attention import attention_and_lse, gradients

TOKENS, HEADS, KV_HEADS, HEAD_DIM = 40, 2, 1, 128
WIDTH = 32
STEPS, RATE = 6, 2.0

# Of q, k and v, and of dout, q, k, v, out and lse.
Forward = Callable[..., tuple[np.ndarray, np.ndarray]]
Backward = Callable[..., tuple[np.ndarray, np.ndarray, np.ndarray]]


def heads_of(x: np.ndarray, heads: int) -> np.ndarray:
    """[tokens, heads · head_dim] as one batch entry, [1, tokens, heads, head_dim]."""
    return x.reshape(1, TOKENS, heads, HEAD_DIM)


def train(forward: Forward, backward: Backward) -> tuple[list[float], dict[str, np.ndarray]]:
    """The losses and the weights of x + attention(x Wq, x Wk, x Wv) Wo, which learns to reproduce what another such
    block makes of random x. All but attention is computed in float64."""
    random = np.random.default_rng(0)

    def some_weights() -> dict[str, np.ndarray]:
        shapes = {"q": (WIDTH, HEADS), "k": (WIDTH, KV_HEADS), "v": (WIDTH, KV_HEADS)}
        made = {name: random.standard_normal((rows, heads * HEAD_DIM)) for name, (rows, heads) in shapes.items()}
        made["o"] = random.standard_normal((HEADS * HEAD_DIM, WIDTH))
        return {name: weight / np.sqrt(len(weight)) for name, weight in made.items()}

    x, weights, others = random.standard_normal((TOKENS, WIDTH)), some_weights(), some_weights()

    def run(of: dict[str, np.ndarray]) -> tuple[np.ndarray, tuple[np.ndarray, ...]]:
        q, k, v = (heads_of(x @ of[name], heads) for name, heads in (("q", HEADS), ("k", KV_HEADS), ("v", KV_HEADS)))
        out, lse = forward(q, k, v)
        return x + out.reshape(TOKENS, -1).astype(np.float64) @ of["o"], (q, k, v, out, lse)

    expected, _ = run(others)
    losses = []
    for _ in range(STEPS):
        y, (q, k, v, out, lse) = run(weights)
        losses.append(float(np.mean((y - expected) ** 2)))
        dy = 2 * (y - expected) / y.size
        dout = heads_of(dy @ weights["o"].T, HEADS)
        found = [dx.reshape(TOKENS, -1).astype(np.float64) for dx in backward(dout, q, k, v, out, lse)]
        slopes = {name: x.T @ dx for name, dx in zip("qkv", found, strict=True)}
        slopes["o"] = out.reshape(TOKENS, -1).astype(np.float64).T @ dy
        for name, slope in slopes.items():
            weights[name] -= RATE * slope
    return losses, weights


def test_training_on_the_virtual_gpu_is_training_in_float64(fl: ModuleType) -> None:
    scale = 4096.0  # of the loss, since gradients are small for fp16

    def half(*arrays: np.ndarray) -> list[np.ndarray]:
        return [x.astype(np.float16) for x in arrays]

    def forward(*arrays: np.ndarray) -> tuple[np.ndarray, np.ndarray]:
        return fl.forward(*half(*arrays), causal=True, return_lse=True)

    def backward(dout: np.ndarray, *arrays: np.ndarray) -> tuple[np.ndarray, ...]:
        *halves, lse = arrays
        found = fl.backward(*half(scale * dout, *halves), lse, causal=True)
        return tuple(x.astype(np.float64) / scale for x in found)

    losses, weights = train(forward, backward)
    exact_losses, exact_weights = train(
        lambda q, k, v: attention_and_lse(q, k, v, causal=True),
        lambda dout, q, k, v, out, lse: gradients(dout, q, k, v, causal=True),
    )
    assert exact_losses[-1] < exact_losses[0] / 2, "it learns"
    np.testing.assert_allclose(losses, exact_losses, rtol=2e-3)
    for name, weight in exact_weights.items():
        assert np.abs(weights[name] - weight).max() < 2e-3 * np.abs(weight).max(), name
