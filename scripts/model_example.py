#!/usr/bin/env python3
"""Runs small language models of Hugging Face's transformers with the ladder's attention, and compares their logits with
those of transformers' own attention.

    scripts/model_example.py                      on a GPU; without one, smaller models on the virtual GPU
    scripts/model_example.py --device emulator    on the virtual GPU
    scripts/model_example.py --record             stores the result in profiles/<device>/models.json; needs a GPU

A program needs only these lines:

    flash_ladder.huggingface.register()
    model = LlamaForCausalLM.from_pretrained(…, attn_implementation="ladder")

The models are a Llama (grouped heads) and a Gemma 2 (a softcap, and a sliding window in every other layer), with random
weights and head_dim 128. Each runs with two sequences of the same length, and again with one of them padded on the
right. Padding is not compared.

The logits of the same model in float64 are taken as exact, although its softmax is in float32. An error is the largest
difference from them. The bound is the same as in the harness's check, applied to logits: twice the error of
transformers' eager attention in the same type, in a model that is otherwise the same, plus one ulp of the largest
logit. The error of sdpa is shown for the Llama; for Gemma 2, sdpa ignores the softcap.

Needs PyTorch, transformers and the ladder's Python package. Exit status: 0 all errors are within the bound, 1 one is
not, 2 bad usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import copy
import math
import sys
from collections import Counter
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from comparison import recording
from comparison.implementations import UnavailableError
from comparison.with_pytorch import about_run, chosen_device, explain, record
from ladder import HEAD_DIM

# By device: query heads, heads of K and V, layers, and the tokens of a sequence; one sequence is shorter.
SIZES = {
    "gpu": {
        "heads": 16,
        "kv_heads": 4,
        "layers": 4,
        "tokens": 2048,
        "shorter": 1500,
        "window": 512,
        "vocabulary": 4096,
    },
    "emulator": {"heads": 2, "kv_heads": 1, "layers": 2, "tokens": 72, "shorter": 45, "window": 24, "vocabulary": 128},
}
MODELS = ("Llama", "Gemma2")
DTYPES = {"fp16": "float16", "bf16": "bfloat16"}


def make_model(name: str, sizes: dict[str, int], seed: int) -> Any:  # noqa: ANN401 (a module of PyTorch)
    """A model with random weights, in float32: large enough for scores of several units, so mask and softcap matter."""
    import torch
    import transformers

    hidden = sizes["heads"] * HEAD_DIM
    fields: dict[str, Any] = {
        "vocab_size": sizes["vocabulary"],
        "hidden_size": hidden,
        "intermediate_size": 2 * hidden,
        "num_hidden_layers": sizes["layers"],
        "num_attention_heads": sizes["heads"],
        "num_key_value_heads": sizes["kv_heads"],
        "head_dim": HEAD_DIM,
        "initializer_range": 1.5 / math.sqrt(hidden),
    }
    if name == "Gemma2":
        fields |= {"sliding_window": sizes["window"], "query_pre_attn_scalar": HEAD_DIM, "attn_logit_softcapping": 5.0}
    torch.manual_seed(seed)
    return getattr(transformers, f"{name}ForCausalLM")(getattr(transformers, f"{name}Config")(**fields)).eval()


@contextmanager
def counting_kernels(counts: Counter[str]) -> Iterator[None]:
    """Counts the versions that flash_ladder.forward() runs, by name."""
    import flash_ladder

    forward = flash_ladder.forward

    def counted(*arrays: Any, **fields: Any) -> Any:  # noqa: ANN401
        counts[flash_ladder.which(*arrays, **fields)] += 1
        return forward(*arrays, **fields)

    flash_ladder.forward = counted
    try:
        yield
    finally:
        flash_ladder.forward = forward


def logits_in_float64(model: Any, tokens: Any) -> Any:  # noqa: ANN401
    """The logits for the weights as rounded in the model."""
    exact = copy.deepcopy(model).double()
    exact.set_attn_implementation("eager")
    return exact(tokens).logits


def compare(name: str, sizes: dict[str, int], dtype: str, device: str, seed: int, kernels: Counter[str]) -> list[dict]:
    """The results for a model, without padding and with it."""
    import torch

    model = make_model(name, sizes, seed).to(device, getattr(torch, DTYPES[dtype]))
    tokens = torch.randint(1, sizes["vocabulary"], (2, sizes["tokens"]), generator=torch.Generator().manual_seed(seed))
    padding = torch.ones_like(tokens)
    padding[1, sizes["shorter"] :] = 0
    tokens, padding = tokens.to(device), padding.to(device)

    def logits(implementation: str, mask: Any = None) -> Any:  # noqa: ANN401 (tensors)
        model.set_attn_implementation(implementation)
        return model(tokens, attention_mask=mask).logits.double()

    # No token sees a later one, so padding does not change the logits before it.
    whole = logits_in_float64(model, tokens)
    results = []
    for mask in (None, padding):
        rows = slice(None) if mask is None else mask.bool()
        others = ["eager"] if name == "Gemma2" else ["eager", "sdpa"]
        found = {one: logits(one, mask)[rows] for one in others}
        with counting_kernels(kernels):
            found["ladder"] = logits("ladder", mask)[rows]
        exact = whole[rows]
        errors = {one: (x - exact).abs().max().item() for one, x in found.items()}
        largest = exact.abs().max().item()
        ulp = torch.finfo(model.dtype).eps * 2.0 ** math.floor(math.log2(largest))
        bound = 2 * errors["eager"] + ulp
        results.append(
            {
                "model": name,
                "dtype": dtype,
                "padded": mask is not None,
                "largest_logit": largest,
                "errors": {one: recording.finite(error) for one, error in errors.items()},
                "bound": bound,
                "within": errors["ladder"] <= bound,  # false for NaN
            }
        )
    return results


def report(result: dict[str, Any]) -> str:
    texts = {name: "not finite" if error is None else f"{error:.3g}" for name, error in result["errors"].items()}
    errors = ", ".join(f"{name} {text}" for name, text in texts.items())
    padded = ", padded" if result["padded"] else ""
    verdict = "within" if result["within"] else "BEYOND"
    return (
        f"{result['model']} {result['dtype']}{padded}: errors of the logits (up to {result['largest_logit']:.3g}):"
        f" {errors}; {verdict} the bound of {result['bound']:.3g}"
    )


def document(results: list[dict[str, Any]], sizes: dict[str, int], kernels: Counter[str], seed: int) -> dict[str, Any]:
    """profiles/<device>/models.json (harness/results/models.schema.json). Raises UnavailableError."""
    import transformers

    return about_run("models.schema.json", kernels, seed) | {
        "transformers": transformers.__version__,
        "sizes": sizes,
        "kernels": dict(kernels.most_common()),
        "results": results,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), help="(the GPU, if PyTorch finds one)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights and tokens (0)")
    parser.add_argument("--record", action="store_true", help="store the result in profiles/<device>/models.json")
    parsed = parser.parse_args(arguments)
    try:
        import flash_ladder.huggingface
        import torch
        import transformers

        device = chosen_device(parsed.device, parsed.record, parser)
        transformers.logging.set_verbosity_error()
        flash_ladder.huggingface.register()
        results: list[dict[str, Any]] = []
        kernels: Counter[str] = Counter()
        place = "cuda" if device == "gpu" else "cpu"
        with torch.no_grad():
            for name in MODELS:
                for dtype in DTYPES:
                    found = compare(name, SIZES[device], dtype, place, parsed.seed, kernels)
                    print("\n".join(map(report, found)), flush=True)
                    results += found
        print(f"attention by {', '.join(f'{kernel} ({count} launches)' for kernel, count in kernels.most_common())}")
        if parsed.record:
            record(document(results, SIZES[device], kernels, parsed.seed), "models.json")
    except (ImportError, UnavailableError) as missing:
        return explain("model_example", missing)
    return 0 if all(result["within"] for result in results) else 1


if __name__ == "__main__":
    sys.exit(main())
