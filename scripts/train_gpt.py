#!/usr/bin/env python3
"""Trains a small language model on this repository's own text, with the ladder's attention and with PyTorch's, and lets
it write.

    scripts/train_gpt.py                      on a GPU; without one, a tiny model for a few steps on the virtual GPU
    scripts/train_gpt.py --device emulator    on the virtual GPU
    scripts/train_gpt.py --record             stores the result in profiles/<device>/training.json; needs a GPU

The model is a GPT that predicts the next character: causal attention with head_dim 128, in bf16 under autocast, with
weights in fp32. Every run begins with the same weights and sees the same characters, so the loss curves should
coincide, except that differences in rounding grow from step to step:

    ladder      flash_ladder.pytorch.attention(), forward and backward
    sdpa        PyTorch's scaled_dot_product_attention, with the backend that it prefers
    standard    the same with its backend "math", which stores all scores and weights; for few steps

Then the ladder's model continues a text that it has not seen, one character after another, each time the most likely
one: once with flash_ladder.decode() and once with PyTorch's attention, both with a cache of K and V.

The script prints the loss of every block of steps, and at the end the loss on text that was not trained on and, on a
GPU, tokens per second and the most memory that the run had allocated.

Needs PyTorch and the ladder's Python package. Exit status: 0 the losses on other text are within 2 % of each other, and
both ways of writing agree, or differ first where two characters are equally likely up to rounding; 1 otherwise, 2 bad
usage, 3 something is missing.
"""

from __future__ import annotations

import argparse
import dataclasses
import statistics
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from comparison.implementations import UnavailableError
from comparison.with_pytorch import about_run, chosen_device, explain, record
from ladder import HEAD_DIM, ROOT

MOST_DIFFERENCE = 0.02  # of the losses on other text, as a part of sdpa's


@dataclasses.dataclass(frozen=True)
class Sizes:
    layers: int
    heads: int
    context: int  # tokens of a sequence
    batch: int
    steps: int
    standard_steps: int  # of the run that stores all scores
    block: int  # steps whose losses are averaged
    prompt: int  # characters that are given to write on
    written: int  # characters that are written


SIZES = {
    "gpu": Sizes(layers=6, heads=6, context=2048, batch=8, steps=1000, standard_steps=50, block=10,
                 prompt=512, written=512),
    "emulator": Sizes(layers=1, heads=2, context=72, batch=2, steps=6, standard_steps=2, block=2,
                      prompt=40, written=12),
}  # fmt: skip
PEAK_RATE, WARM_UP_STEPS = 6e-4, 50

Attention = Callable[[Any, Any, Any], Any]  # of q, k and v, [batch, tokens, heads, head_dim]


@dataclasses.dataclass
class Run:
    name: str
    losses: list[float]  # one for each block of steps
    validation: float
    tokens_per_s: float  # the median of all blocks but the first
    memory_bytes: int  # 0 on the CPU


def repository_text() -> str:
    """The chapters and the kernels, in the order of their names."""
    files = sorted([*(ROOT / "docs" / "source").rglob("*.md"), *(ROOT / "kernels").rglob("*.cu")])
    return "\n".join(path.read_text(encoding="utf-8") for path in files)


class Text:
    """Characters as numbers: nine tenths to train with, and the rest to compare with."""

    def __init__(self, text: str) -> None:
        import torch

        self.vocabulary = sorted(set(text))
        number_of = {character: number for number, character in enumerate(self.vocabulary)}
        self.tokens = torch.tensor([number_of[character] for character in text])
        self.training = self.tokens[: len(text) * 9 // 10]
        self.other = self.tokens[len(self.training) :]

    def batches(self, part: Any, sizes: Sizes, seed: int, device: str) -> Iterator[tuple[Any, Any]]:  # noqa: ANN401
        """Sequences from random places, and the same one character further on. The seed decides which."""
        import torch

        generator = torch.Generator().manual_seed(seed)
        while True:
            starts = torch.randint(len(part) - sizes.context, (sizes.batch, 1), generator=generator)
            places = starts + torch.arange(sizes.context + 1)
            chosen = part[places].to(device)
            yield chosen[:, :-1], chosen[:, 1:]


def make_model(vocabulary: int, sizes: Sizes, attend: Attention, seed: int) -> Any:  # noqa: ANN401 (a module of PyTorch)
    """Blocks as in GPT-2, with learned positions. The weights depend on the seed alone. `attend` can be replaced."""
    import torch
    from torch import nn

    width = sizes.heads * HEAD_DIM

    class Block(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.attend = attend
            self.norms = nn.ModuleList(nn.LayerNorm(width) for _ in range(2))
            self.to_qkv, self.from_heads = nn.Linear(width, 3 * width, bias=False), nn.Linear(width, width, bias=False)
            self.perceptron = nn.Sequential(nn.Linear(width, 4 * width), nn.GELU(), nn.Linear(4 * width, width))

        def forward(self, x: torch.Tensor) -> torch.Tensor:
            batch, tokens, _ = x.shape
            qkv = self.to_qkv(self.norms[0](x)).view(batch, tokens, 3, sizes.heads, HEAD_DIM)
            attended = self.attend(*qkv.unbind(2))
            x = x + self.from_heads(attended.reshape(batch, tokens, width))
            return x + self.perceptron(self.norms[1](x))

    class Model(nn.Module):
        def __init__(self) -> None:
            super().__init__()
            self.of_character, self.of_position = nn.Embedding(vocabulary, width), nn.Embedding(sizes.context, width)
            self.blocks = nn.Sequential(*(Block() for _ in range(sizes.layers)))
            self.norm, self.to_logits = nn.LayerNorm(width), nn.Linear(width, vocabulary, bias=False)
            for parameter in self.parameters():
                if parameter.dim() > 1:
                    nn.init.normal_(parameter, std=0.02)

        def forward(self, tokens: torch.Tensor, first: int = 0) -> torch.Tensor:
            """`first` is the position of the first of these tokens."""
            positions = self.of_position(torch.arange(first, first + tokens.shape[1], device=tokens.device))
            return self.to_logits(self.norm(self.blocks(self.of_character(tokens) + positions)))

    torch.manual_seed(seed)
    return Model()


def attention_of(name: str, kernels: list[str]) -> Attention:
    """The attention of a run. That of the ladder adds the versions that it runs, by name."""
    import torch
    from torch.nn.attention import SDPBackend, sdpa_kernel

    def of_pytorch(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        heads_first = (x.transpose(1, 2) for x in (q, k, v))
        return torch.nn.functional.scaled_dot_product_attention(*heads_first, is_causal=True).transpose(1, 2)

    def standard(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        with sdpa_kernel(SDPBackend.MATH):
            return of_pytorch(q, k, v)

    def of_ladder(q: torch.Tensor, k: torch.Tensor, v: torch.Tensor) -> torch.Tensor:
        import flash_ladder
        from flash_ladder.pytorch import attention

        if not kernels:
            given = [x.detach() for x in (q, k, v)]
            out, lse = flash_ladder.forward(*given, causal=True, return_lse=True)
            kernels.append(flash_ladder.which(*given, causal=True, return_lse=True))
            kernels.append(flash_ladder.which_backward(out, *given, out, lse, causal=True))
        return attention(q, k, v, causal=True)

    return {"ladder": of_ladder, "sdpa": of_pytorch, "standard": standard}[name]


def train(name: str, text: Text, sizes: Sizes, device: str, seed: int, kernels: list[str]) -> tuple[Run, Any]:
    """The run, and the trained model."""
    import torch
    from torch.nn import functional

    is_gpu = device == "cuda"
    if is_gpu:
        torch.cuda.empty_cache()
        torch.cuda.reset_peak_memory_stats()
    model = make_model(len(text.vocabulary), sizes, attention_of(name, kernels), seed).to(device)
    optimizer = torch.optim.AdamW(model.parameters(), lr=PEAK_RATE, betas=(0.9, 0.95), weight_decay=0.1)
    # It falls to 0, because with a constant rate the loss at the end depends mostly on the last few batches.
    rate = torch.optim.lr_scheduler.LambdaLR(
        optimizer, lambda step: min((step + 1) / WARM_UP_STEPS, 1 - step / sizes.steps)
    )

    def loss_of(batch: tuple[torch.Tensor, torch.Tensor]) -> torch.Tensor:
        given, expected = batch
        with torch.autocast(device, torch.bfloat16):
            logits = model(given)
        return functional.cross_entropy(logits.float().flatten(0, 1), expected.flatten())

    batches = text.batches(text.training, sizes, seed, device)
    losses, seconds = [], []
    for _ in range((sizes.standard_steps if name == "standard" else sizes.steps) // sizes.block):
        begun, total = time.perf_counter(), torch.zeros((), device=device)
        for _ in range(sizes.block):
            loss = loss_of(next(batches))
            optimizer.zero_grad(set_to_none=True)
            loss.backward()
            torch.nn.utils.clip_grad_norm_(model.parameters(), 1.0)
            optimizer.step()
            rate.step()
            total += loss.detach()
        losses.append(total.item() / sizes.block)  # waits for the GPU
        seconds.append(time.perf_counter() - begun)
        print(f"{name}: step {len(losses) * sizes.block}, loss {losses[-1]:.4f}", flush=True)

    memory = torch.cuda.max_memory_allocated() if is_gpu else 0
    others = text.batches(text.other, sizes, seed, device)
    with torch.no_grad():
        validation = statistics.fmean(loss_of(next(others)).item() for _ in range(sizes.block))
    tokens = sizes.batch * sizes.context * sizes.block
    return Run(name, losses, validation, tokens / statistics.median(seconds[1:] or seconds), memory), model


class Cache:
    """The attention of one layer while text is written: it keeps K and V of all tokens."""

    def __init__(self, room: int, uses_ladder: bool) -> None:
        self.room, self.uses_ladder = room, uses_ladder
        self.used = 0
        self.k: Any = None  # [batch, room, heads, head_dim]; None before the first call
        self.v: Any = None

    def __call__(self, q: Any, k: Any, v: Any) -> Any:  # noqa: ANN401 (tensors)
        """The first call has the whole prompt, and each later one the next token."""
        import flash_ladder
        import torch

        if self.k is None:
            batch, _, heads, head_dim = k.shape
            self.k, self.v = (k.new_empty(batch, self.room, heads, head_dim) for _ in range(2))
            self.lengths = torch.zeros(batch, dtype=torch.int32, device=k.device)
        first, self.used = self.used, self.used + q.shape[1]
        self.k[:, first : self.used], self.v[:, first : self.used] = k, v
        self.lengths += q.shape[1]
        if first > 0 and self.uses_ladder:
            return flash_ladder.decode(q, self.k, self.v, self.lengths)
        heads_first = (x.transpose(1, 2) for x in (q, self.k[:, : self.used], self.v[:, : self.used]))
        attend = torch.nn.functional.scaled_dot_product_attention
        return attend(*heads_first, is_causal=first == 0).transpose(1, 2)


@dataclasses.dataclass
class Written:
    """A text that the model has written, and how fast."""

    name: str
    tokens: list[int]
    tokens_per_s: float
    logits: Any  # [tokens, vocabulary]


def write(name: str, model: Any, prompt: Any, sizes: Sizes) -> Written:  # noqa: ANN401 (a module and a tensor)
    """Continues the prompt [1, tokens]. The prompt itself is not timed."""
    import torch

    for block in model.blocks:
        block.attend = Cache(sizes.prompt + sizes.written, uses_ladder=name == "ladder")

    def logits_of(tokens: torch.Tensor, first: int) -> torch.Tensor:
        with torch.no_grad(), torch.autocast(prompt.device.type, torch.bfloat16):
            return model(tokens, first)[0, -1].float()

    logits = [logits_of(prompt, 0)]
    tokens = [logits[0].argmax()]
    begun = time.perf_counter()
    for i in range(sizes.written - 1):
        logits.append(logits_of(tokens[-1].view(1, 1), sizes.prompt + i))
        tokens.append(logits[-1].argmax())
    chosen = torch.stack(tokens).tolist()  # waits for the GPU
    return Written(name, chosen, (sizes.written - 1) / (time.perf_counter() - begun), torch.stack(logits))


def first_difference(written: Sequence[Written]) -> tuple[int, float] | None:
    """Where two texts differ first, and by how much the two characters' logits differ there, divided by the largest
    logit; None if they do not differ."""
    one, other = written
    for i, (a, b) in enumerate(zip(one.tokens, other.tokens, strict=True)):
        if a != b:
            logits = other.logits[i]
            return i, abs(logits[a] - logits[b]).item() / logits.abs().max().item()
    return None


def report(run: Run) -> str:
    text = f"{run.name}: loss {run.losses[-1]:.4f}, on other text {run.validation:.4f}"
    if not run.memory_bytes:  # the virtual GPU has no clock
        return text
    return f"{text}; {run.tokens_per_s:,.0f} tokens per second, {run.memory_bytes / 2**30:.1f} GiB"


def document(
    runs: list[Run], written: list[Written], text: Text, sizes: Sizes, kernels: list[str], seed: int
) -> dict[str, Any]:
    """profiles/<device>/training.json (harness/results/training.schema.json). Raises UnavailableError."""
    model = make_model(len(text.vocabulary), sizes, lambda q, k, v: q, seed)
    found = first_difference(written)
    difference = None if found is None else {"at": found[0], "relative": found[1]}
    return about_run("training.schema.json", kernels, seed) | {
        "model": {
            "layers": sizes.layers,
            "heads": sizes.heads,
            "context": sizes.context,
            "vocabulary": len(text.vocabulary),
            "parameters": sum(parameter.numel() for parameter in model.parameters()),
        },
        "batch": sizes.batch,
        "characters": len(text.tokens),
        "steps_per_loss": sizes.block,
        "kernels": kernels,
        "written": {"prompt": sizes.prompt, "characters": sizes.written, "first_difference": difference}
        | {"tokens_per_s": {text.name: text.tokens_per_s for text in written}},
        "runs": [dataclasses.asdict(run) | {"losses": [round(loss, 5) for loss in run.losses]} for run in runs],
    }


def main(arguments: Sequence[str] | None = None) -> int:
    sys.stdout.reconfigure(encoding="utf-8")
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--device", choices=list(SIZES), help="(the GPU, if PyTorch finds one)")
    parser.add_argument("--seed", type=int, default=0, metavar="N", help="of the weights and of the batches (0)")
    parser.add_argument("--record", action="store_true", help="store the result in profiles/<device>/training.json")
    parsed = parser.parse_args(arguments)
    try:
        import flash_ladder.pytorch  # noqa: F401 (says that it is missing before anything is trained)

        device = chosen_device(parsed.device, parsed.record, parser)
        text, kernels, sizes = Text(repository_text()), list[str](), SIZES[device]
        place = "cuda" if device == "gpu" else "cpu"
        runs, model = [], None
        for name in ("sdpa", "standard", "ladder"):
            model = None  # so that the memory of the next run is its own
            run, model = train(name, text, sizes, place, parsed.seed, kernels)
            runs.append(run)
        print("\n".join(map(report, runs)))
        prompt = text.other[None, : sizes.prompt].to(place)
        written = [write(name, model, prompt, sizes) for name in ("ladder", "sdpa")]
        print("".join(text.vocabulary[token] for token in written[0].tokens))
        print(report_of_writing(written, has_clock=device == "gpu"))
        print(f"the ladder's attention by {' and '.join(kernels)}")
        if parsed.record:
            made = document(runs, written, text, sizes, kernels, parsed.seed)
            record(made, "training.json")
    except (ImportError, UnavailableError) as missing:
        return explain("train_gpt", missing)
    return 0 if coincide(runs) and is_rounding(first_difference(written)) else 1


def report_of_writing(written: Sequence[Written], has_clock: bool) -> str:
    found = first_difference(written)
    text = f"{len(written[0].tokens)} characters, written with a cache: "
    if found is None:
        text += "the same with the ladder's attention and with PyTorch's"
    else:
        text += f"the first {found[0]} are the same; then logits differ by {found[1]:.2g} of the largest"
    if not has_clock:
        return text
    speeds = (f"{one.name} {one.tokens_per_s:,.0f}" for one in written)
    return f"{text}; characters per second: {', '.join(speeds)}"


def is_rounding(difference: tuple[int, float] | None) -> bool:
    """Whether bf16, with its 8 bits, explains that another character was chosen."""
    return difference is None or difference[1] <= 8 * 2.0**-8


def coincide(runs: Sequence[Run]) -> bool:
    """Whether the runs of full length end with nearly the same loss on other text; not if one is not a number."""
    of = {run.name: run.validation for run in runs}
    return abs(of["ladder"] - of["sdpa"]) <= MOST_DIFFERENCE * of["sdpa"]


if __name__ == "__main__":
    sys.exit(main())
