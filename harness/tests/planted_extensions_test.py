"""The check of a version that solves more than the plain problem: a correct one passes, every likely mistake is found.

The kernels are those of planted_extensions.cu.
"""

import pytest
from emulator_worker import run_worker

PROBLEM = {"batch": 1, "heads": 2, "head_dim": 128, "dtype": "fp16"}


@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
@pytest.mark.parametrize(
    ("seq_len", "seq_len_kv", "causal"),
    [(32, 32, True), (5, 33, True), (33, 5, True), (1, 1, True), (17, 31, False)],
)
def test_a_right_extension(seq_len: int, seq_len_kv: int, causal: bool, dtype: str) -> None:
    problem = PROBLEM | {"seq_len": seq_len, "seq_len_kv": seq_len_kv, "dtype": dtype}
    problem |= {"causal": True} if causal else {}
    alone = (seq_len, dtype) != (5, "fp16")  # the small problems are the same every time
    result = run_worker("harness-worker-faults", kernel="right", problem=problem, only_requested_problem=alone)
    assert result["status"] == "ok" and result["correct"] is True, result["reason"]
    assert result["problem"] == problem and result["findings"] == []


@pytest.mark.parametrize(
    "fields",
    [
        {"heads": 4, "kv_heads": 2},
        {"heads": 4, "kv_heads": 1, "causal": True},
        {"window_left": 0, "causal": True},
        {"window_left": 7, "causal": True},
        {"window_left": 7},
        {"window_right": 7},
        {"window_left": 3, "window_right": 20},
        {"batch": 2, "lengths": [40, 3], "lengths_kv": [17, 40]},
        {"batch": 4, "lengths": [3, 40, 0, 17], "lengths_kv": [40, 5, 9, 0], "packed": True},
        {"batch": 3, "lengths": [3, 40, 17], "lengths_kv": [3, 40, 17], "packed": True, "causal": True},
        {"softcap": 4.5},
        {"heads": 4, "kv_heads": 2, "alibi": True, "causal": True},
        {"sinks": True, "window_left": 3, "window_right": 2},
        {"softcap": 2.0, "alibi": True, "sinks": True},
        {"dropout_p": 0.5, "dropout_seed": 1 << 40, "dropout_offset": 4_000_000_000, "heads": 3, "batch": 2},
        {"dropout_p": 0.1, "causal": True, "batch": 3, "packed": True, "lengths": [9, 0, 40], "lengths_kv": [40, 3, 7]},
        {"sinks": True, "alibi": True, "batch": 2, "packed": True, "lengths": [9, 40], "lengths_kv": [40, 7]},
        {
            "batch": 2,
            "heads": 4,
            "kv_heads": 2,
            "window_left": 5,
            "causal": True,
            "lengths": [1, 39],
            "lengths_kv": [0, 40],
        },
    ],
)
def test_a_right_extension_of_each_field(fields: dict[str, object]) -> None:
    problem = PROBLEM | {"seq_len": 40, "seq_len_kv": 40} | fields
    result = run_worker("harness-worker-faults", kernel="right", problem=problem, only_requested_problem=True)
    assert result["status"] == "ok" and result["correct"] is True, result["reason"]
    assert result["problem"] == problem and result["findings"] == []


@pytest.mark.parametrize(
    ("kernel", "found_by", "not_by"),
    [
        ("upper_left", ["causal, more keys than queries", "causal, rows that see no key"], "as many keys as queries"),
        ("divides_by_0", ["causal, rows that see no key", "causal, the first row sees no key"], "more keys than"),
        ("counts_a_tail", ["one row and one key too many", "a single row and a single key"], "packed Q, K, V"),
        ("ignores_mask", ["causal, as many keys as queries"], "one row and one key"),
        ("heads_in_turn", ["three heads of Q for each of K and V"], "one head of K and V"),
        ("window_too_wide", ["a window of 0", "a window of 16, causal"], "packed Q, K, V"),
        ("sides_exchanged", ["a window on the right", "a narrow window on the left"], "a window of 16"),
        ("reads_padding", ["sequences of several lengths"], "packed Q, K, V"),
        ("skips_padding", ["sequences of several lengths"], "packed Q, K, V"),
        ("reads_neighbour", ["packed sequences, other numbers of keys", "40 packed sequences"], "packed Q, K, V"),
        ("caps_product", ["a cap of large scores", "all changes"], "packed Q, K, V"),
        ("slopes_upwards", ["ALiBi (", "ALiBi, more queries than keys"], "a cap"),
        ("sink_without_log", ["sinks (", "all changes of the scores"], "a cap"),
        ("sums_kept", ["dropout (", "dropout of nearly all weights"], "packed Q, K, V"),
        ("same_mask", ["dropout ("], "packed Q, K, V"),
        ("no_log_of_blind", ["causal, rows that see no key"], "packed Q, K, V"),
    ],
)
def test_a_wrong_one_is_found_where_nobody_asked_for_it(kernel: str, found_by: list[str], not_by: str) -> None:
    problem = PROBLEM | {"seq_len": 32, "seq_len_kv": 32}
    result = run_worker("harness-worker-faults", kernel=kernel, problem=problem)
    assert result["status"] == "wrong"
    for check_set in found_by:
        assert check_set in result["reason"]
    assert not_by not in result["reason"] and "the requested problem" not in result["reason"]
    if kernel == "divides_by_0":
        assert "NaN" in result["reason"]
        assert result["mismatches"][0]["got"] == "nan" and result["mismatches"][0]["expected"] == 0
    if kernel == "skips_padding":
        assert "elements were never written" in result["reason"]
    if kernel == "reads_neighbour":
        assert "a packed sequence changes when its neighbours become NaN" in result["reason"]
    if kernel == "no_log_of_blind":
        assert "were never written" in result["reason"] and "instead of -inf" in result["reason"]


def test_a_wrong_log_sum_exp_is_found_although_the_output_is_right() -> None:
    problem = PROBLEM | {"seq_len": 32, "seq_len_kv": 32}
    result = run_worker("harness-worker-faults", kernel="log_in_base_2", problem=problem)
    assert (result["status"], result["correct"]) == ("wrong", False) and "mismatches" not in result
    assert "log-sum-exp of 192 of 192 rows" in result["reason"] and "is allowed" in result["reason"]
