"""The decoding track, kernels/decoding/: its names, its default problem and its metric, as a user sees them."""

import json
import re
from typing import Any

import pytest
from cli import Cli
from schemas import validate_results, validate_versions

K = "--kernel"
D01 = "D01_one_query"


def request(cli: Cli, *arguments: str) -> dict[str, Any]:
    """What the harness asks of its worker."""
    outcome = cli(*arguments)
    assert outcome.rc == 0, outcome.err
    return next(request for request in cli.requests() if request["kernel"] == "D01")


@pytest.mark.parametrize(
    "name", ["D01", "D1", "d1", "D01_one_query", "one_query", "D1-D1", "kernels/decoding/D01_one_query.cu"]
)
def test_it_is_called_by_its_letter_and_number(cli: Cli, name: str) -> None:
    assert request(cli, K, name)["kernel"] == "D01"


def test_the_default_problem_is_one_query_against_a_long_cache(cli: Cli) -> None:
    problem = {"batch": 16, "heads": 32, "kv_heads": 8, "seq_len": 1, "seq_len_kv": 4096, "head_dim": 128}
    assert request(cli, K, "D01")["problem"] == problem | {"dtype": "fp16"}
    flags = ["--lengths-kv", "7,100", "--heads", "4"]
    changed = {"batch": 2, "heads": 4, "seq_len_kv": 100, "lengths_kv": [7, 100]}
    outcome = cli(K, "D01", *flags)
    assert outcome.rc == 0, outcome.err
    asked = cli.requests()[-1]["problem"]
    assert asked == {k: v for k, v in (problem | changed | {"dtype": "fp16"}).items() if k != "kv_heads"}


def test_the_metric_is_bytes_of_k_and_v_per_second(cli: Cli) -> None:
    document = json.loads(cli(K, "D01", "--json", "-").out)
    validate_results(document)
    (result,) = document["results"]
    # 4 · 32 heads · 4096 keys · 128 operations per batch entry, and 2 · 8 heads · 4096 keys · 256 bytes
    assert result["kv_gb_per_s"] == pytest.approx(result["tflops"] * 1000 * (2 * 8 * 256) / (4 * 32 * 128))
    assert f"{result['kv_gb_per_s']:.0f} GB/s of K and V" in cli(K, "D01").words


def test_more_queries_are_refused_with_the_limit(cli: Cli) -> None:
    outcome = cli(K, "D01", "--seq-len", "9")
    assert outcome.rc == 2
    assert re.search(f"seq-len 9 .* {D01}.* 1 to 8", outcome.err)


def test_a_range_is_within_one_track(cli: Cli) -> None:
    outcome = cli(K, "16-D01")
    assert outcome.rc == 2 and "begins in one track and ends in another" in outcome.err
    outcome = cli(K, "D02-D01")
    assert outcome.rc == 2 and "write D01-D02" in outcome.err


def test_numbers_of_the_ladder_do_not_name_it(cli: Cli) -> None:
    kernels = [result["kernel"] for result in json.loads(cli(K, "1-2", "--json", "-").out)["results"]]
    assert kernels == ["01", "02"]


def test_the_list_names_its_problem_and_its_shapes(cli: Cli) -> None:
    outcome = cli("--list")
    assert "kernels/decoding/\n" in outcome.out and "GB/s of K and V at batch 16, heads 32, kv_heads 8" in outcome.words
    document = json.loads(cli("--list", "--json", "-").out)
    validate_versions(document)
    (version,) = [version for version in document["versions"] if version["kernel"] == "D01"]
    assert version["most_queries"] == 8 and version["name"] == "one_query" and version["extends"] is None
    decoding = document["standard_decoding"]
    assert (decoding["heads"], decoding["kv_heads"], decoding["head_dim"]) == (32, [8, 32], 128)
    shapes = [(shape["batch"], shape["seq_len"], shape["seq_len_kv"]) for shape in decoding["shapes"]]
    assert shapes == [(1, 1, 4096), (1, 1, 32768), (16, 1, 4096), (16, 1, 32768), (64, 1, 8192)]
