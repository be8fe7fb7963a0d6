"""`harness --debug` for versions that compute gradients, on the virtual GPU: correct versions, and planted faults that
it must locate.
"""

import json
import re
from math import exp, isclose
from typing import Any

import numpy as np
import pytest
from cli import BUILD, KERNELS, Cli
from cli_debug_test import emulator, nearest, planted, planted_lines  # noqa: F401 (fixtures)
from cli_terminal_test import lines_on_a_terminal
from planted_faults import FAULTS, Fault
from schemas import validate_debug_gradients

SMALL = ["--heads", "1"]
VIEWS = [("P", "dV"), ("P", "dK"), ("P", "dQ"), ("dP", "dK"), ("dP", "dQ"), ("dS", "dK"), ("dS", "dQ")]
OUTPUTS = [("dV", "dV"), ("dK", "dK"), ("dQ", "dQ")]


def debug(cli: Cli, *arguments: str, rc: int = 0, **environment: str) -> dict[str, Any]:
    outcome = cli("--debug", *arguments, "--json", "-", **environment)
    assert outcome.rc == rc, outcome.err
    document = json.loads(outcome.out)
    validate_debug_gradients(document)
    assert document["right"] == (rc == 0)
    return document


# ---- Correct versions ----


@pytest.mark.parametrize("kernel", [kernel.kernel for kernel in KERNELS if kernel.is_backward])
def test_every_version_is_right_at_every_step(emulator: Cli, kernel: str) -> None:  # noqa: F811
    seen = debug(emulator, kernel, *SMALL)
    assert [(cut["of"], cut["tiles"]) for cut in seen["cuts"]] == [
        *(("queries", tiles) for tiles in (1, 2, 3, 4)),
        *(("keys", tiles) for tiles in (1, 2)),
    ]
    for cut in seen["cuts"]:
        assert [one["name"] for one in cut["gradients"]] == (["dV", "dK"] if cut["of"] == "queries" else ["dQ"])
        for one in cut["gradients"]:
            assert one["values"]["wrong"] == 0 and one["values"]["of_bound"] <= 1
            assert np.allclose(one["got"], one["expected"], atol=2e-2) and len(one["got"]) == 128
    assert [(one["matrix"], one["through"]) for one in seen["matrices"]] == [*VIEWS, *OUTPUTS]
    for one in seen["matrices"]:
        rows = seen["block_q"] if one["matrix"] == "dQ" else seen["block_kv"]
        size = seen["block_q"] * seen["block_kv"] if one["matrix"] != one["through"] else rows * 128
        assert one["values"]["wrong"] == 0 and one["values"]["compared"] == size, one
    assert seen["also_right"] == ["ramp", "large-logit", "offset-mean"]
    assert seen["first_step"] is None and seen["diagnosis"] is None and seen["look_at"] == []


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize("kernel", ["B03", "B16"])
def test_a_query_obeys_the_formulas(emulator: Cli, kernel: str, dtype: str) -> None:  # noqa: F811
    """P = exp(S - L) and dS = P (dP - D): for the reference exactly, and for the kernel up to rounding."""
    seen = debug(emulator, kernel, "--row", "77", "--head", "1", "--dtype", dtype, "--seed", "4")
    tile = seen["tile"]
    assert (tile["query"], tile["head"], tile["query_tile"]) == (77, 1, 1)
    assert [pair["key"] for pair in seen["keys"]] == list(range(seen["block_kv"]))
    eps = 2**-9 if dtype == "fp16" else 2**-6
    for pair in seen["keys"]:
        assert isclose(pair["P_expected"], exp(pair["S_expected"] - tile["L"]), rel_tol=1e-6)
        assert isclose(pair["dS_expected"], pair["P_expected"] * (pair["dP_expected"] - tile["D"]), rel_tol=1e-6)
        assert isclose(pair["P"], exp(pair["S"] - tile["L"]), rel_tol=1e-6)
        assert isclose(pair["S"], pair["S_expected"], abs_tol=4 * eps)
        for matrix, size in (("P", 0.001), ("dP", 4), ("dS", 0.02)):
            assert isclose(pair[matrix], pair[f"{matrix}_expected"], rel_tol=2 * eps, abs_tol=eps * size), (
                matrix,
                pair,
            )


@pytest.mark.parametrize(
    ("kernel", "problem"),
    [
        ("backward_causal", ["--causal"]),
        ("backward_any_length", ["--causal", "--seq-len", "150", "--seq-len-kv", "100"]),
        ("backward_grouped_heads", ["--heads", "4", "--kv-heads", "2"]),
        ("backward_window", ["--window-left", "40", "--window-right", "10"]),
        ("backward_hopper_causal", ["--causal"]),
    ],
)
def test_masks_lengths_and_shared_heads(emulator: Cli, kernel: str, problem: list[str]) -> None:  # noqa: F811
    seen = debug(emulator, kernel, *problem)
    assert all(one["values"]["compared"] > 0 for one in seen["matrices"])


def test_the_lesson_of_a_tile(emulator: Cli) -> None:  # noqa: F811
    outcome = emulator("--debug", "B03", "--row", "9", "--head", "1")
    assert outcome.rc == 0
    assert "dV and dK are right after each of 4 tiles of queries, and dQ after each of 2 tiles of keys" in outcome.words
    assert "queries 0–63 and keys 0–63 of head 1; query 9, key 0" in outcome.words
    assert "Look at" not in outcome.out and "First step" not in outcome.out
    assert len(outcome.out.splitlines()) <= 45, "short"


@pytest.mark.parametrize("columns", [80, 200])
def test_lines_fit(emulator: Cli, columns: int) -> None:  # noqa: F811
    lines = lines_on_a_terminal(emulator, columns, "--debug", "B05")
    assert max(map(len, lines)) <= columns, [line for line in lines if len(line) > columns]
    assert any(line.lstrip().startswith("step") for line in lines)


# ---- Planted faults ----

# Those that make a gradient wrong for the problem that --debug examines.
WRONG = [
    fault
    for fault in FAULTS
    if fault.kernel in ("B02_fused", "B03_mma", "B08_coalesced_dq", "B09_dq_apart", "B14_overlap", "B16_stmatrix")
    and fault.finding is None
    and fault.name != "dQ's loop has the strides of V for K"
]
# Where each of them begins, in the order of the computation.
FIRST_STEPS = {
    "dQ is stored instead of added": "dQ",
    "D is subtracted from P instead of dP": "dS",
    "dK takes the tile of dO": "dK",
    "the last tile of queries is left out": "P",
    "the diagonal of O dOᵀ is taken from the wrong column": "dS",
    "two registers of the fragments of Pᵀ and dSᵀ are swapped": "P",
    "the two keys of a register are swapped": "dV",
    "every iteration takes the first tile's D": "dS",
    "dK is a product with P": "dK",
    "dK is not scaled": "dK",
}


def environment_of(fault: Fault) -> dict[str, str]:
    return {"FLASH_LADDER_FAULT": fault.version, "FLASH_LADDER_BUILD_DIR": str(BUILD)}


def fault_of(kernel: str, name: str) -> Fault:
    (fault,) = [fault for fault in FAULTS if fault.kernel == kernel and fault.name == name]
    return fault


@pytest.mark.parametrize("fault", WRONG, ids=lambda fault: f"{fault.kernel[:3]}: {fault.name}")
def test_a_fault_is_seen_and_led_to(planted: Cli, fault: Fault) -> None:  # noqa: F811
    seen = debug(planted, fault.kernel[:3], rc=1, **environment_of(fault))
    assert seen["first_step"] == FIRST_STEPS.get(fault.name, "dQ")
    wrong = [one for one in seen["matrices"] if one["values"]["wrong"]]
    assert wrong and all(one["shown"] == one["values"]["first"] for one in wrong)
    for one in wrong:
        first = one["shown"]
        assert not abs(first["got"] - first["expected"]) <= first["bound"]
    assert nearest(fault, seen["look_at"]) <= 21, (planted_lines(fault), seen["look_at"], seen["diagnosis"])


def views_of(seen: dict[str, Any]) -> set[str]:
    """Where matrices are wrong."""
    return {f"{one['matrix']} in {one['through']}" for one in seen["matrices"] if one["values"]["wrong"]}


def test_a_wrong_product_hides_what_is_right(planted: Cli) -> None:  # noqa: F811
    """dQ shows nothing, and dV and dK show that P, dP and dS are right."""
    fault = fault_of("B03_mma", "dQ is a product with the keys of another warp's mma_k")
    seen = debug(planted, "B03", rc=1, **environment_of(fault))
    assert views_of(seen) == {"P in dQ", "dP in dQ", "dS in dQ", "dQ in dQ"}
    (sentence,) = [text for text in seen["diagnosis"]["sentences"] if text.startswith("P and dP are right")]
    assert sentence.startswith("P and dP are right, but dQ does not show them. Suggests the product dQ = scale · dS K")


def test_P_is_distinguished_from_dP_and_from_D(planted: Cli) -> None:  # noqa: F811
    fault = fault_of("B03_mma", "every iteration takes the first tile's D")
    seen = debug(planted, "B03", rc=1, **environment_of(fault))
    assert {"dS in dK", "dS in dQ"} <= views_of(seen)
    assert views_of(seen).isdisjoint({"P in dV", "P in dK", "P in dQ", "dP in dK", "dP in dQ"})
    assert seen["diagnosis"]["suggests"] == ["D_of_first_tile"]
    (queries,) = [text for text in seen["diagnosis"]["sentences"] if text.startswith("Queries truncated")]
    assert re.search(r" 1 tile of queries, .* 2 \(dK\)\.$", queries)
    assert seen["tile"]["query_tile"] == 1, "the first wrong one"


def test_each_gradient_may_have_a_P_of_its_own(planted: Cli) -> None:  # noqa: F811
    """B09 computes P twice."""
    fault = fault_of("B09_dq_apart", "dQ's rows have the L of other rows")
    seen = debug(planted, "B09", rc=1, **environment_of(fault))
    assert "P in dQ" in views_of(seen) and "dP in dQ" not in views_of(seen)
    assert any("Suggests the P of dQ alone" in text for text in seen["diagnosis"]["sentences"])


def test_a_wrong_L_is_told_from_a_wrong_S(planted: Cli) -> None:  # noqa: F811
    fault = fault_of("B04_cp_async", "every iteration takes the first tile's L")
    seen = debug(planted, "B04", rc=1, **environment_of(fault))
    assert seen["first_step"] == "P" and seen["diagnosis"]["suggests"] == ["L_of_first_tile"]
    assert any("even where S is 0" in text for text in seen["diagnosis"]["sentences"])
    fault = fault_of("backward_grouped_heads", "K of the first head for all groups")
    seen = debug(planted, "backward_grouped_heads", rc=1, **environment_of(fault))
    assert seen["first_step"] == "S"


def test_what_is_found_is_shown_first(planted: Cli) -> None:  # noqa: F811
    fault = fault_of("B03_mma", "dS is read before other warps have written it")
    seen = debug(planted, "B03", rc=1, **environment_of(fault))
    assert seen["findings"][0]["kind"] == "race"
    out = planted("--debug", "B03", **environment_of(fault)).out
    assert out.index("Look at") < out.index("Tile") < out.index("step seen in")


def test_the_page_names_the_step(planted: Cli) -> None:  # noqa: F811
    fault = fault_of("B03_mma", "dK is a product with P")
    outcome = planted("--debug", "B03", **environment_of(fault))
    assert outcome.rc == 1
    assert "tile 0 of the queries: dK[0][0] of head 0 " in outcome.words
    assert "First step dK is the first that is wrong." in outcome.words
    assert "dK is a product with P, not with dS" in outcome.words
    assert "// dV += Pᵀ dO, and dK += dSᵀ Q" in outcome.out


# ---- Usage ----


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        (["--debug", "B03", "--row", "256"], "--row 256 .* 0 to 255"),
        (["--debug", "B03", "--seq-len", "100"], "seq-len 100 "),
        (["--debug", "B03", "--causal"], "--causal .* B03_mma"),
    ],
)
def test_bad_usage(emulator: Cli, arguments: list[str], message: str) -> None:  # noqa: F811
    outcome = emulator(*arguments)
    assert outcome.rc == 2 and re.search(message, " ".join(outcome.err.split())), outcome.err
