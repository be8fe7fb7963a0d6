"""The check of a backward version that solves more than the plain problem: a correct one passes, mistakes are found.

The kernels are those of planted_gradients.cu.
"""

import json
import subprocess

import pytest
from emulator_worker import BUILD, run_worker

PROBLEM = {"batch": 1, "heads": 2, "head_dim": 128, "dtype": "fp16"}
SMALL = PROBLEM | {"seq_len": 32, "seq_len_kv": 32}


def test_right_gradients_pass_every_check() -> None:
    result = run_worker("harness-worker-faults", kernel="backward_right", problem=SMALL)
    assert result["status"] == "ok" and result["correct"] is True, result["reason"]
    assert result["findings"] == []
    assert "several lengths of queries and of keys, and gaps" in result["checked"]
    assert "dropout, and packed sequences, causal" in result["checked"]


@pytest.mark.parametrize(
    "fields",
    [
        {"batch": 2, "lengths": [40, 3], "lengths_kv": [17, 40], "dtype": "bf16"},
        {"batch": 4, "lengths": [3, 40, 0, 17], "lengths_kv": [40, 5, 9, 0], "packed": True},
        {"batch": 3, "heads": 4, "kv_heads": 2, "lengths": [3, 40, 17], "lengths_kv": [3, 40, 17], "packed": True},
        {"softcap": 2.0, "alibi": True, "sinks": True, "causal": True, "dtype": "bf16"},
        {"dropout_p": 0.5, "dropout_seed": 1 << 40, "dropout_offset": 4_000_000_000, "heads": 4, "kv_heads": 1},
        {"sinks": True, "alibi": True, "batch": 2, "packed": True, "lengths": [9, 40], "lengths_kv": [40, 7]},
        {"head_dim": 96, "head_dim_v": 32, "kv_heads": 1, "causal": True, "softcap": 2.0},
        {"head_dim": 32, "head_dim_v": 96, "dtype": "bf16", "batch": 2, "packed": True, "lengths": [9, 40],
         "lengths_kv": [40, 7], "dropout_p": 0.3},
    ],
)
def test_right_gradients_of_each_field(fields: dict[str, object]) -> None:
    problem = PROBLEM | {"seq_len": 40, "seq_len_kv": 40} | fields
    result = run_worker("harness-worker-faults", kernel="backward_right", problem=problem, only_requested_problem=True)
    assert result["status"] == "ok" and result["correct"] is True, result["reason"]
    assert result["problem"] == problem and result["findings"] == []


@pytest.mark.parametrize(
    ("kernel", "fields", "suggests"),
    [
        ("slopes_upwards", {"alibi": True, "seq_len": 16}, "alibi_not_aligned"),
        ("unscaled_dp", {"dropout_p": 0.3}, "dropout_not_scaled_in_dP"),
        ("same_mask", {"dropout_p": 0.3, "batch": 2}, "mask_of_head"),
        ("reads_padding", {"batch": 2, "lengths": [7, 32], "lengths_kv": [20, 32]}, "keys_of_padding"),
        ("skips_padding", {"batch": 2, "lengths": [7, 32], "lengths_kv": [20, 32]}, None),
        ("short_dp", {"head_dim": 32, "head_dim_v": 96}, "dP_sums_head_dim"),
    ],
)
def test_a_mistake_is_found_and_named(kernel: str, fields: dict[str, object], suggests: str | None) -> None:
    result = run_worker(
        "harness-worker-faults", kernel="backward_" + kernel, problem=SMALL | fields, only_requested_problem=True
    )
    assert result["status"] == "wrong"
    assert suggests is None or suggests in result["diagnosis"]["suggests"]
    assert ("elements were never written" in result["reason"]) == (kernel == "skips_padding")


@pytest.mark.parametrize(
    ("kernel", "found_by", "not_by", "suggests"),
    [
        ("no_derivative", ["a cap of the scores", "a cap of large scores"], "ALiBi (", "softcap_derivative_left_out"),
        ("keeps_dp", ["dropout (", "dropout of few weights"], "packed Q, K, V", "dropout_not_in_dP"),
        ("skips_unseen", ["sequences of several lengths"], "packed Q, K, V", None),
        ("reads_neighbour", ["packed sequences, other numbers of keys", "40 packed"], "packed Q, K, V", None),
    ],
)
def test_a_wrong_one_is_found_where_nobody_asked_for_it(
    kernel: str, found_by: list[str], not_by: str, suggests: str | None
) -> None:
    result = run_worker("harness-worker-faults", kernel="backward_" + kernel, problem=SMALL)
    assert result["status"] == "wrong"
    for check_set in found_by:
        assert check_set in result["reason"]
    assert not_by not in result["reason"] and "the requested problem" not in result["reason"]
    if suggests is not None:
        assert suggests in result["diagnosis"]["suggests"]
    if kernel == "skips_unseen":
        assert "elements were never written" in result["reason"]
    if kernel == "reads_neighbour":
        assert "a packed sequence changes when its neighbours become NaN: dV" in result["reason"]


@pytest.mark.parametrize(
    ("fields", "flag"),
    [
        ({"batch": 2, "lengths": [7, 32]}, "--lengths"),
        ({"batch": 2, "lengths_kv": [7, 32]}, "--lengths-kv"),
        ({"batch": 2, "lengths": [7, 32], "lengths_kv": [7, 32], "packed": True}, "--packed"),
        ({"softcap": 2.0}, "--softcap"),
        ({"alibi": True}, "--alibi"),
        ({"sinks": True}, "--sinks"),
        ({"dropout_p": 0.5}, "--dropout-p"),
        ({"head_dim": 96, "head_dim_v": 32}, "--head-dim-v"),
    ],
)
def test_debug_says_which_field_it_cannot_show(fields: dict[str, object], flag: str) -> None:
    request = {"command": "debug", "kernel": "backward_right", "problem": SMALL | fields}
    done = subprocess.run(
        ["bash", "-c", 'exec "$0" "$1" 3>&1 1>&2', BUILD / "harness-worker-faults", json.dumps(request)],
        capture_output=True,
        text=True,
        check=False,
    )
    last = json.loads(done.stdout.splitlines()[-1])
    assert last["event"] == "error"
    assert last["message"] == f"--debug does not show gradients of problems with {flag}; leave {flag} out"
