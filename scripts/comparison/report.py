"""What a comparison prints."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from comparison.implementations import Implementation


def show(text: str) -> None:
    print(text, flush=True)


def report(implementations: list[Implementation], regime: str, batch: int, seq_len: int) -> Iterator[str]:
    """A line for each implementation that was measured at a shape."""
    results = {one.name: one.result(regime, batch, seq_len) for one in implementations}
    fa2 = results.get("FlashAttention-2")
    for name, result in results.items():
        if result is None:
            continue
        ms = result["ms"]
        share = f"{100 * result['tflops'] / fa2['tflops']:6.1f} % of FlashAttention-2" if fa2 else ""
        watts = f"  {result['power_watts']:.0f} W  {result['sm_clock_mhz']} MHz" if result["power_watts"] else ""
        yield (
            f"  {name:<28} {result['tflops']:7.1f} TFLOP/s  {ms['median']:.4g} ms (p10 {ms['p10']:.4g}, p90"
            f" {ms['p90']:.4g}){watts}  {share}  error {result['relative_error']:.2f} of what is allowed"
        )


def harmonic_means(implementations: list[Implementation], regime: str) -> Iterator[str]:
    """A line for each implementation that was measured at as many shapes as FlashAttention-2."""
    results = {one.name: one.results.get(regime, []) for one in implementations}
    fa2 = results.get("FlashAttention-2", [])
    if len(fa2) < 2:
        return

    def mean(of: list[dict[str, Any]]) -> float:
        return len(of) / sum(1 / result["tflops"] for result in of)

    for name, of in results.items():
        if len(of) == len(fa2):
            yield f"  {name:<28} {mean(of):7.1f} TFLOP/s  {100 * mean(of) / mean(fa2):6.1f} % of FlashAttention-2"
