"""scripts/peers --decoding on a made-up GPU, its problems, and how the implementations are called."""

from __future__ import annotations

import contextlib
import json
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from types import ModuleType, SimpleNamespace
from typing import Any

import numpy as np
import pytest
from comparison.decoding_adapters import DecodingAdapters
from comparison.decoding_problems import DECODING, Cache, DecodingProblem
from comparison.reference import Reference
from float64_attention import attention
from jsonschema import Draft202012Validator
from made_up_machine import HASH, ROOT, MadeUpMachine
from numpy_torch import NumpyTorch, Tensor
from referencing import Registry, Resource

SHAPES = [(1, 4096), (1, 32768), (16, 4096), (16, 32768), (64, 8192), (1, 131072)]
SOLVES = {
    "16_overlapped_softmax": (),
    "D01_one_query": ("kv_heads", "lengths"),
    "D05_four_warps": ("kv_heads", "lengths"),
    "D06_paged": ("kv_heads", "lengths", "paged"),
}
SDPA_LACKS = {"lengths": "no lengths", "paged": "no page table"}


class DecodingMachine(MadeUpMachine):
    """Two peers of PyTorch, and FlashAttention-3, which solves everything."""

    def __init__(self, peers: ModuleType) -> None:
        super().__init__(peers)
        self.launched: list[tuple[str, str, int, int]] = []
        self.caches: list[tuple[str, int, int, str, int]] = []
        self.wrong_on = ("", "")

    def kernels(self, *, gradients: bool) -> list[str]:
        return list(SOLVES)

    def decoding_version(self, kernel: Any) -> Any:  # noqa: ANN401 (peers.Kernel, peers.Implementation)
        return self.ours(kernel)

    def decoding_peers(self, without: set[str]) -> tuple[list[Any], dict[str, str]]:
        found, missing = super().peers(without, "fp16")
        for one in found:
            one.lacks = SDPA_LACKS
        found.append(self.peers_module.Implementation("FlashAttention-3", "a note", self._prepare("FlashAttention-3")))
        return found, {name: why for name, why in missing.items() if name != "fa3"}

    def cache(self, problem: DecodingProblem, *of: Any) -> tuple[tuple[int, ...], str, DecodingMachine]:  # noqa: ANN401
        self.caches.append((problem.name, *of))
        return (0, 0, 0, 0), problem.name, self

    def launcher(self, implementation: Any, tensors: tuple[Any, ...], cache: str) -> Callable[[], str]:  # noqa: ANN401
        assert cache == self.caches[-1][0]
        self.launched.append((implementation.name, *self.caches[-1][:3]))
        return super().launcher(implementation, (*tensors, cache))

    def output(self, launch: Callable[[], str], tensors: object) -> str:
        return launch()

    def relative_error(self, output: str) -> float:
        return 7.0 if (output, self.caches[-1][0]) == self.wrong_on else 0.25

    def time_alone(self, launch: Callable[[], str], warm_up_seconds: float, timed_seconds: float) -> Any:  # noqa: ANN401
        assert (warm_up_seconds, timed_seconds) == (0.25, 0.2)
        return super().time_alone(launch)


@pytest.fixture
def decoding_machine(peers: ModuleType, machine: MadeUpMachine) -> DecodingMachine:
    del machine  # it has changed where files go
    fields = ("kv_heads", "lengths", "paged")
    versions = [
        {
            "kernel": name.split("_")[0],
            "code_hash": HASH,
            "kind": "decoding" if name[0] == "D" else "forward",
            "solves": {field: field in solves for field in fields},
            "configurations": [{"name": "64x64", "dtype": "fp16", "head_dim": 128}],
        }
        for name, solves in SOLVES.items()
    ]
    peers.HARNESS.write_text(f"#!/bin/sh\necho '{json.dumps({'versions': versions})}'\n", encoding="utf-8")
    return DecodingMachine(peers)


def validated(path: Path) -> dict[str, Any]:
    document = json.loads(path.read_text(encoding="utf-8"))
    files = (ROOT / "harness" / "results").glob("*.schema.json")
    schemas = {file.name: json.loads(file.read_text(encoding="utf-8")) for file in files}
    registry = Registry().with_resources((name, Resource.from_contents(schema)) for name, schema in schemas.items())
    schema = schemas["peers_decoding.schema.json"]
    Draft202012Validator.check_schema(schema)
    Draft202012Validator(schema, registry=registry).validate(document)
    return document


def written(tmp_path: Path, name: str = "peers_decoding.json") -> dict[str, Any]:
    return validated(tmp_path / "profiles" / "h200" / name)


def test_the_whole_table(peers: ModuleType, decoding_machine: DecodingMachine, tmp_path: Path) -> None:
    assert peers.main(["--decoding", "all", "--seed", "5"], lambda: decoding_machine) == 0
    assert [path.name for path in (tmp_path / "profiles" / "h200").iterdir()] == ["peers_decoding.json"]
    document = written(tmp_path)
    assert document["problem"] == {"dtype": "fp16", "queries": 1, "heads": 32, "head_dim": 128}
    assert document["problems"] == {
        "kv-heads-8": {"kv_heads": 8, "page_size": None, "lengths": None},
        "kv-heads-32": {"kv_heads": 32, "page_size": None, "lengths": None},
        "paged": {"kv_heads": 8, "page_size": 64, "lengths": None},
        "mixed": {
            "kv_heads": 8, "page_size": None, "lengths": "log-normal, deviation 0.8 of the logarithm, mean seq_len_kv"
        },
    }  # fmt: skip
    at = [(name, *shape) for name in ("kv-heads-8", "kv-heads-32", "paged") for shape in SHAPES] + [("mixed", 64, 8192)]
    assert decoding_machine.caches == [(*cell, "fp16", 5) for cell in at]
    assert [one["kernel"] for one in document["versions"]] == ["D01", "D05", "D06"]
    assert {(one["name"], one["code_hash"]) for one in document["versions"]} >= {("paged", HASH)}
    assert [one["name"] for one in document["peers"]] == ["FlashAttention-2", "cuDNN", "FlashAttention-3"]

    cells = {
        one["name"]: [(r["problem"], r["batch"], r["seq_len_kv"]) for r in one["results"]]
        for one in (*document["versions"], *document["peers"])
    }
    contiguous = [cell for cell in at if cell[0].startswith("kv-heads")]
    assert cells["paged"] == cells["FlashAttention-3"] == at
    assert cells["one_query"] == cells["four_warps"] == [*contiguous, ("mixed", 64, 8192)]
    assert cells["FlashAttention-2"] == cells["cuDNN"] == contiguous
    left_out = {f"{name}, {problem}" for name in ("FlashAttention-2", "cuDNN") for problem in ("paged", "mixed")}
    assert document["run"]["left_out"] == dict.fromkeys(sorted(left_out), "no lengths")

    of_fa3 = {(r["problem"], r["batch"], r["seq_len_kv"]): r for r in document["peers"][2]["results"]}
    for (name, batch, keys), result in of_fa3.items():
        of_k = batch * keys * document["problems"][name]["kv_heads"] * 128 * 2
        assert result["ms"]["median"] == 8.0
        assert result["kv_gb_per_s"] == pytest.approx(2 * of_k / 8e-3 / 1e9, abs=0.06)


def test_a_part_takes_no_file_s_place(
    peers: ModuleType, decoding_machine: DecodingMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    arguments = ["--decoding", "paged,kv-heads-8", "--shapes", "1x32768,64x8192", "--kernels", "D05,D06_paged"]
    assert peers.main(arguments, lambda: decoding_machine) == 0
    out = capsys.readouterr().out
    assert out.index("this run writes nothing") < out.index("GB/s"), "before the minutes that it takes"
    assert not (tmp_path / "profiles").exists()
    ours = [cell for cell in decoding_machine.launched if cell[0].startswith("D")]
    both = [("kv-heads-8", 1, 32768), ("kv-heads-8", 64, 8192)]
    assert ours == [
        *((name, *cell) for cell in both for name in ("D05_four_warps", "D06_paged")),
        ("D06_paged", "paged", 1, 32768),
        ("D06_paged", "paged", 64, 8192),
    ]
    for less in (["--shapes", "16x4096"], ["--dtype", "bf16"], ["--without", "fa2"]):
        assert peers.main(["--decoding", "all", *less], lambda: decoding_machine) == 0
    assert not (tmp_path / "profiles").exists()


def test_an_interrupted_table_is_resumed(
    peers: ModuleType, decoding_machine: DecodingMachine, tmp_path: Path, capsys: pytest.CaptureFixture
) -> None:
    machine, part = decoding_machine, tmp_path / "profiles" / "h200" / "peers_decoding.part.json"
    machine.wrong_on = ("cuDNN", "kv-heads-8")
    assert peers.main(["--decoding", "all"], lambda: machine) == 1
    at_once = written(tmp_path)
    assert at_once["run"]["left_out"]["cuDNN, batch 16, 4096 keys, kv-heads-8"] == "wrong: 7 times the allowed error"
    part.with_name("peers_decoding.json").unlink()

    machine.stops_after, machine.alone = 2 * 5 + 3, []  # in the third table, of 16 sequences
    with pytest.raises(KeyboardInterrupt):
        peers.main(["--decoding", "all"], lambda: machine)
    assert [path.name for path in part.parent.iterdir()] == [part.name], "a part takes no whole table's place"
    written(tmp_path, part.name)

    machine.stops_after, machine.launched = 10**6, []
    assert peers.main(["--decoding", "all", "--resume"], lambda: machine) == 1, "a table that was taken is wrong"
    complete = "batch 1, 4096 keys, kv-heads-8; batch 1, 32768 keys, kv-heads-8 is complete"
    assert complete in capsys.readouterr().out
    assert machine.launched[0][1:] == ("kv-heads-8", 16, 4096)
    again = written(tmp_path)
    assert again | {"run": at_once["run"]} == at_once and again["run"]["left_out"] == at_once["run"]["left_out"]
    assert not part.exists()


@pytest.mark.parametrize(
    ("arguments", "words"),
    [
        (["--decoding", "long"], ["'long' is not a problem", "kv-heads-8, kv-heads-32, paged, mixed"]),
        (["--decoding", "all", "--problem", "all"], ["--decoding cannot be combined with --problem"]),
        (["--decoding", "all", "--regime", "both"], ["--regime cannot be combined with --decoding"]),
        (["--decoding", "all", "--dtype", "e4m3"], ["fp16 and bf16"]),
        (["--decoding", "all", "--shapes", "4096"], ["'4096'", "1x4096, 1x32768"]),
        (["--decoding", "mixed", "--shapes", "1x4096"], ["--shapes", "mixed: 64x8192"]),
        (["--decoding", "all", "--kernels", "16,D06"], ["'16' names no version; there are D01_one_query"]),
        (["--decoding", "paged", "--kernels", "D05"], ["none of these versions solves paged"]),
        (["--decoding", "paged", "--resume"], ["--resume needs a file", "--out"]),
    ],
)
def test_bad_usage(
    peers: ModuleType,
    decoding_machine: DecodingMachine,
    capsys: pytest.CaptureFixture,
    arguments: list[str],
    words: list[str],
) -> None:
    assert peers.main(arguments, lambda: decoding_machine) == 2
    err = capsys.readouterr().err
    assert all(word in err for word in words) and decoding_machine.caches == []


def test_a_package_without_the_newest_version_is_refused(
    peers: ModuleType,
    decoding_machine: DecodingMachine,
    capsys: pytest.CaptureFixture,
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    monkeypatch.setattr(decoding_machine, "kernels", lambda **_: ["D01_one_query", "D05_four_warps"])
    assert peers.main(["--decoding", "all"], lambda: decoding_machine) == 3
    assert "older than the harness, it has no D06; install it again" in capsys.readouterr().err
    assert peers.main(["--decoding", "mixed", "--kernels", "all"], lambda: decoding_machine) == 0


# ---- the problems ----


def test_mixed_lengths_are_log_normal() -> None:
    lengths = DECODING["mixed"].lengths(64, 8192)
    assert len(lengths) == 64 and sum(lengths) == 64 * 8192 and min(lengths) > 0
    logarithms = np.log(lengths)
    assert np.std(logarithms) == pytest.approx(0.8, abs=0.03)
    assert np.mean(logarithms) == pytest.approx(np.median(logarithms), abs=0.01)
    assert lengths != sorted(lengths)
    assert DECODING["mixed"].kv_bytes(64, 8192) == DECODING["kv-heads-8"].kv_bytes(64, 8192) == 2 * 64 * 8192 * 2048
    assert DECODING["paged"].lengths(2, 128) == [128, 128]


class CacheTorch(NumpyTorch):
    """What DecodingAdapters.cache() uses beyond the reference."""

    bfloat16, int32 = "bf16", np.int32

    class Generator:
        def __init__(self, device: str) -> None:
            assert device == "cuda"

        def manual_seed(self, seed: int) -> np.random.Generator:
            return np.random.default_rng(seed)

    @staticmethod
    def randn(shape: tuple[int, ...], generator: np.random.Generator, device: str, dtype: type) -> Tensor:
        return generator.standard_normal(shape).astype(dtype).view(Tensor)

    @staticmethod
    def randperm(n: int, generator: np.random.Generator, device: str) -> Tensor:
        return generator.permutation(n).view(Tensor)

    @staticmethod
    def tensor(numbers: list[int], dtype: type, device: str) -> Tensor:
        return np.array(numbers, dtype).view(Tensor)


def decoded(q: Tensor, k: Tensor, v: Tensor, cache: Cache) -> Tensor:
    """As a kernel would find its keys, in float64."""
    found = []
    for b in range(len(q)):
        of_k, of_v = (x[b] if cache.page_table is None else np.concatenate(x[cache.page_table[b]]) for x in (k, v))
        used = slice(None if cache.lengths is None else cache.lengths[b])
        found.append(attention(q[b : b + 1], of_k[None, used], of_v[None, used]))
    return np.concatenate(found).astype(np.float16).view(Tensor)


@pytest.mark.parametrize("name", DECODING)
@pytest.mark.filterwarnings("ignore:divide by zero", "ignore:invalid value")  # PyTorch does not warn
def test_a_wrong_key_is_found(name: str) -> None:
    adapters = DecodingAdapters()
    adapters.torch = CacheTorch
    problem = DECODING[name]
    (q, k, v, out), cache, reference = adapters.cache(problem, 4, 128, "fp16", 3)
    assert q.shape == out.shape == (4, 1, 32, 128) and cache.fields == problem.fields
    assert k.shape == ((8, 64, 8, 128) if name == "paged" else (4, max(problem.lengths(4, 128)), problem.kv_heads, 128))
    assert isinstance(reference, Reference) and reference.relative_error(decoded(q, k, v, cache)) <= 1
    mistakes = [np.roll(decoded(q, k, v, cache), 1, axis=2).view(Tensor)]
    if cache.lengths is not None:
        assert cache.lengths.dtype == np.int32
        mistakes.append(decoded(q, k, v, Cache(cache.fields, cache.lengths - 1, cache.page_table)))
    if cache.page_table is not None:
        assert cache.page_table.dtype == np.int32 and sorted(cache.page_table.flatten()) == list(range(8))
        in_order = np.arange(8).reshape(4, 2).view(Tensor)
        mistakes.append(decoded(q, k, v, Cache(cache.fields, cache.lengths, in_order)))
    for mistake in mistakes:
        assert not reference.relative_error(mistake) <= 1


# ---- how the implementations are called ----


class FakeTensor(str):
    def transpose(self, a: int, b: int) -> str:
        assert (a, b) == (1, 2)
        return self


def test_the_arguments(peers: ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    asked: list[Any] = []

    def function(*arrays: str, **options: Any) -> FakeTensor:  # noqa: ANN401
        asked.append((arrays, options))
        return FakeTensor("out")

    @contextlib.contextmanager
    def sdpa_kernel(backend: str) -> Iterator[None]:
        asked.append(backend)
        yield

    backends = SimpleNamespace(FLASH_ATTENTION="flash", CUDNN_ATTENTION="cudnn")
    for module in ("torch", "torch.nn"):
        monkeypatch.setitem(sys.modules, module, SimpleNamespace())
    monkeypatch.setitem(
        sys.modules, "torch.nn.attention", SimpleNamespace(SDPBackend=backends, sdpa_kernel=sdpa_kernel)
    )
    monkeypatch.setitem(sys.modules, "flash_attn_interface", SimpleNamespace(flash_attn_with_kvcache=function))
    machine = object.__new__(peers.Machine)
    machine.torch = SimpleNamespace(nn=SimpleNamespace(functional=SimpleNamespace(
        scaled_dot_product_attention=function)))  # fmt: skip
    machine.properties, machine.ladder = SimpleNamespace(major=9), SimpleNamespace(decode=function)
    (fa2, cudnn, fa3), missing = machine.decoding_peers(set())
    assert missing == {} and cudnn.note == "PyTorch SDPA cuDNN backend, Hopper instructions"
    assert fa2.why_not({"lengths"}) and fa2.why_not({"paged"}) and not fa2.why_not({"kv_heads"})
    assert not fa3.lacks
    ours = machine.decoding_version(peers.select_kernels("D06", ["D06_paged"])[0])

    tensors = [FakeTensor(x) for x in ("q", "k", "v", "out")]
    plain = Cache(DECODING["kv-heads-32"].fields)
    grouped = Cache(DECODING["kv-heads-8"].fields)
    paged = Cache(DECODING["paged"].fields, "lengths", "pages")
    for one, cache in ((fa2, plain), (cudnn, grouped), (fa3, plain), (fa3, paged), (ours, plain), (ours, paged)):
        assert one.prepare(*tensors, cache)() == "out"
    options = {"kernel": "D06_paged", "config": None, "out": "out"}
    assert asked == [
        "flash", (("q", "k", "v"), {}),
        "cudnn", (("q", "k", "v"), {"enable_gqa": True}),
        (("q", "k", "v"), {}),
        (("q", "k", "v"), {"cache_seqlens": "lengths", "page_table": "pages"}),
        (("q", "k", "v", None, None), options),
        (("q", "k", "v", "lengths", "pages"), options),
    ]  # fmt: skip

    monkeypatch.setitem(sys.modules, "flash_attn_interface", None)
    found, missing = machine.decoding_peers({"cudnn"})
    assert [one.name for one in found] == ["FlashAttention-2"]
    assert missing["cudnn"] == "left out by --without" and missing["fa3"].startswith("ModuleNotFoundError")
