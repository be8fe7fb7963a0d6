"""The harness on the virtual GPU: only the findings are faked here."""

import copy
import json
import re
from pathlib import Path

import pytest
from cli import AMPERE, BUILD, H200, IN_8_BITS, KERNELS, ROOT, Cli
from kernel_files import KernelFile
from schemas import validate_results

EMULATOR = ["--device", "emulator"]
K = "--kernel"
PROFILES = ROOT / "profiles" / "emulator"
# These use wgmma, TMA or mbarriers. Versions for few queries use none of them, and do not solve the same problem.
HOPPER = [kernel for kernel in KERNELS if kernel not in AMPERE and not kernel.is_decoding]
PROFILED = [kernel for kernel in KERNELS if kernel in AMPERE or (PROFILES / f"{kernel.stem}.json").exists()]


@pytest.fixture
def emulator(cli: Cli) -> Cli:
    cli.device = None
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    return cli


def results(cli: Cli, *arguments: str) -> list[dict]:
    outcome = cli(*arguments, "--json", "-")
    assert outcome.rc == 0, outcome.err
    document = json.loads(outcome.out)
    validate_results(document)
    return document["results"]


def test_without_a_gpu_the_virtual_one_runs(emulator: Cli) -> None:
    outcome = emulator(K, "07")
    assert outcome.rc == 0
    assert "virtual GPU (sm_90), since no GPU can be used" in outcome.words
    assert "batch 1, heads 2, seq_len 256, head_dim 128, fp16" in outcome.words
    assert re.search(r"^Correct +yes", outcome.out, re.MULTILINE)
    assert "mma 16,384" in outcome.words
    assert "Speed" not in outcome.out, "it has no clock"


@pytest.mark.parametrize("kernel", ["15", "26", "multicast"])
def test_a_version_whose_ctas_stay_is_checked_with_few_sms(emulator: Cli, kernel: str) -> None:
    card = emulator(K, kernel, *EMULATOR).words
    few = "Checked normal inputs; offset-mean inputs on 2 SMs; large-logit inputs on 5 SMs; ramp inputs on 3 SMs;"
    assert few in card
    assert "the requested problem. With few SMs, a CTA takes several query tiles" in card
    (result,) = results(emulator, K, kernel, *EMULATOR)
    assert {"normal inputs", "a single tile", "tensors with gaps on 5 SMs"} <= set(result["checked"])


def test_a_version_that_divides_the_keys_is_checked_with_few_sms(emulator: Cli) -> None:
    card = emulator(K, "D02", *EMULATOR).words
    assert "one query, caches of several lengths on 3 SMs" in card
    assert "the requested problem. With few SMs, the keys are divided into fewer parts" in card


def test_the_number_of_sms_is_not_named_where_the_grid_does_not_depend_on_it(emulator: Cli) -> None:
    card = emulator(K, "14", *EMULATOR).words
    assert "Checked normal inputs; offset-mean inputs; " in card and " SMs" not in card.partition("Checked")[2]
    (result,) = results(emulator, K, "14", *EMULATOR)
    assert result["checked"][-1] == "the requested problem"


def test_a_gpu_that_runs_none_of_the_versions_is_what_is_named(emulator: Cli) -> None:
    outcome = emulator(K, "17-18", *EMULATOR, "--sm", "80")
    assert outcome.rc == 2 and "none of these versions runs on sm_80" in outcome.err, outcome
    assert "this problem" not in outcome.err
    outcome = emulator(K, "17-18", *EMULATOR, "--seq-len", "100")
    assert outcome.rc == 2 and "this problem" in outcome.err, outcome
    assert "2 skipped" in outcome.words and "--seq-len 64 or 128" in outcome.words


def test_the_card_shows_the_five_costliest_lines(emulator: Cli) -> None:
    table = emulator(K, "07", *EMULATOR).out.split("Costliest lines\n")[1].split("\n\n")[0]
    costliest, legend = table.splitlines()[:5], " ".join(table.splitlines()[5:])
    assert legend.split(":")[0].strip() == "cost" and "warp instructions, wavefronts and sectors" in legend
    shares = [float(line.split()[0]) for line in costliest]
    assert shares == sorted(shares, reverse=True)
    assert any("ldmatrix_x4(" in line and "1.00x" in line for line in costliest)


def test_a_version_of_several_kernels_has_totals_of_each(emulator: Cli) -> None:
    (result,) = results(emulator, K, "01", *EMULATOR)
    text = emulator(K, "01", *EMULATOR).words
    for kernel in ("scores", "softmax", "output"):
        lines = [line["counters"] for line in result["lines"] if line["kernel"] == kernel]
        total = sum(line.get("warp_instructions", 0) for line in lines)
        assert f"{kernel} {total:,} warp instructions, " in text
    assert "By kernel" not in emulator(K, "07", *EMULATOR).out


def test_gradients_of_designed_scores_do_not_overflow(emulator: Cli) -> None:
    problem = ["--data", "adversarial", "--seq-len", "64", "--seq-len-kv", "384", "--heads", "30"]
    (result,) = results(emulator, K, "B16", *EMULATOR, *problem)
    assert result["correct"]


def test_all_lines(emulator: Cli) -> None:
    lines = emulator(K, "05", *EMULATOR, "--lines").out.split("  Lines\n")[1].split("\n\n")[0].splitlines()
    numbers = [int(place[1]) for line in lines if (place := re.search(r" :(\d+) ", line))]
    assert len(lines) > 30 and numbers == sorted(numbers)
    # 16 queries and 8 keys at a time, in the same bank: see kernels/06_swizzle.cu.
    assert any("8.00x" in line and "K_rmem[mma_n][i] =" in line for line in lines)


def test_recorded_speed_of_a_gpu_is_shown(emulator: Cli) -> None:
    emulator.profiles = ROOT / "profiles"
    outcome = emulator(K, "07", *EMULATOR)
    assert re.search(r"TFLOP/s on NVIDIA H200 .* at batch 16, heads 16, seq_len 4096", outcome.words)


def test_json_has_all_counters(emulator: Cli) -> None:
    (result,) = results(emulator, K, "08", *EMULATOR)
    assert result["device"] == "virtual GPU (sm_90)" and result["correct"] is True
    assert result["ms"] is None and result["tflops"] is None and result["findings"] == []
    counters = result["counters"]
    # 4 CTAs × 2 heads × 4 warps × 4 tiles; S and O take 8 × 8 and 4 × 16 mma per tile.
    assert counters["mma_instructions"] == 4 * 2 * 4 * 4 * (8 * 8 + 4 * 16)
    assert counters["global_store_bytes"] == 2 * 256 * 128 * 2
    assert counters["shared_load_wavefronts"] == counters["shared_load_ideal_wavefronts"]
    # The counters of the lines add up to the totals.
    for name, total in counters.items():
        assert sum(line["counters"].get(name, 0) for line in result["lines"]) == total, name
    # Which text was counted, and which machine code was studied: these are the same in all results of a version.
    assert re.fullmatch(r"sha256:[0-9a-f]{64}", result["ptx_hash"])
    (other,) = results(emulator, K, "08", *EMULATOR, "--dtype", "bf16", "--no-check")
    assert other["ptx_hash"] == result["ptx_hash"]
    (before,) = results(emulator, K, "07", *EMULATOR, "--no-check")
    assert before["ptx_hash"] != result["ptx_hash"]
    hashes = {arch: study["sass_hash"] for arch, study in result["static"].items()}
    assert hashes["sm_80"] and hashes["sm_90"] and hashes["sm_80"] != hashes["sm_90"]
    assert hashes["sm_86"] is None and hashes["sm_89"] is None
    files = {place.rpartition(":")[0] for line in result["lines"] for place in line["position"]}
    assert "kernels/08_pipelined_kv.cu" in files and "common/ptx.h" in files
    assert not any(file.startswith("/") for file in files)
    # By the names that are shown: their order must not depend on where the project and CUDA's headers are installed.
    shown = [
        [(file, int(number)) for file, _, number in (place.rpartition(":") for place in line["position"])]
        for line in result["lines"]
    ]
    assert shown == sorted(shown)


def test_a_range(emulator: Cli) -> None:
    outcome = emulator(K, "04-06", *EMULATOR)
    assert outcome.rc == 0 and outcome.out.count("correct") == 3
    assert "TFLOP/s at batch 16" in outcome.words
    rows = {line.split()[0]: line.split() for line in outcome.out.splitlines() if line[:2].isdigit()}
    assert float(rows["05_cp_async"][4].rstrip("x")) > 4 and rows["06_swizzle"][4] == "1.00x"


def test_diff_per_source_line(emulator: Cli) -> None:
    outcome = emulator("--diff", "05", "06")
    assert outcome.rc == 0
    rows = outcome.out.split("counted per source line")[1].splitlines()
    for function, change in [
        ("load_Q_fragments", "8.00x → 1.00x"),
        ("load_K_fragments", "8.00x → 1.00x"),
        ("load_V_fragments", "4.00x → 1.00x"),
    ]:
        assert any(function in row and change in row for row in rows), function


def test_a_card_is_not_wider_than_a_screen(emulator: Cli) -> None:
    for kernel in ("07", AMPERE[-1].kernel):
        assert max(map(len, emulator(K, kernel, *EMULATOR, "--lines").out.splitlines())) <= 120


def test_limits_of_another_sm(emulator: Cli) -> None:
    (result,) = results(emulator, K, "07", *EMULATOR, "--sm", "86")
    assert result["device"] == "virtual GPU (sm_86)"


def test_a_kernel_that_does_not_end(emulator: Cli) -> None:
    outcome = emulator(K, "07", *EMULATOR, "--max-instructions", "1000")
    assert outcome.rc == 1
    assert "endless_loop" in outcome.out and "kernels/07" not in outcome.err
    assert re.search(r"^Correct +NO\b", outcome.out, re.MULTILINE)
    document = json.loads(emulator(K, "07", *EMULATOR, "--max-instructions", "1000", "--json", "-").out)
    (result,) = document["results"]
    assert result["status"] == "wrong" and result["correct"] is False


def test_without_check_it_still_counts(emulator: Cli) -> None:
    (result,) = results(emulator, K, "07", *EMULATOR, "--no-check")
    assert result["correct"] is None and result["counters"]["mma_instructions"] == 16384


def test_findings_are_shown_and_make_the_result_wrong(cli: Cli) -> None:
    cli.device = H200 | {"name": "virtual GPU (sm_90)"}
    cli.emulator_worker = cli.worker
    cli.kernels = {"07": "finding"}
    for kernels in ("07", "06-07"):
        outcome = cli(K, kernels, *EMULATOR)
        assert outcome.rc == 1
        # One cause, with its lines; findings that may follow from it are folded.
        assert "130 findings" in outcome.out and "… and 129 more that may follow from it" in outcome.out
        assert outcome.out.count("race: a read of byte 0") == 1
        looked_at = [line for line in outcome.out.splitlines() if "kernels/07_ldmatrix.cu:" in line]
        assert ":62 " in looked_at[0] and looked_at[0].startswith("Look at") and ":94 " in looked_at[1]
        assert "A barrier or a wait must order :62 before :94." in outcome.words
        everything = cli(K, kernels, *EMULATOR, "--all-findings")
        assert everything.rc == 1 and everything.out.count("race: a read of byte 0") == 12
        assert "… and 118 more\n" in everything.out
    outcome = cli(K, "07", *EMULATOR, "--json", "-")
    document = json.loads(outcome.out)
    validate_results(document)
    (result,) = document["results"]
    assert len(result["findings"]) == 12
    assert result["findings_kinds"] == 130 and result["findings_total"] == 390


def test_lines_need_the_virtual_gpu(cli: Cli) -> None:
    outcome = cli(K, "07", "--lines")
    assert outcome.rc == 2 and "--device emulator" in outcome.err


@pytest.fixture(scope="module")
def recorded(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """All versions, recorded now: both types, every configuration, even and odd numbers of K/V tiles."""
    folder = tmp_path_factory.mktemp("recorded")
    cli = Cli(folder)
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = cli(K, "all", *EMULATOR, "--record")
    assert outcome.rc == 0, outcome.out + outcome.err
    return cli.profiles / "emulator"


@pytest.fixture(scope="module")
def done_early(tmp_path_factory: pytest.TempPathFactory) -> dict[str, dict]:
    """wgmma and TMA work as late as the ISA allows when versions are recorded, and as early as it allows here."""
    cli = Cli(tmp_path_factory.mktemp("early"))
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    found = []
    for in_8_bits in (False, True):
        names = [kernel.kernel for kernel in HOPPER if (kernel.stem in IN_8_BITS) == in_8_bits]
        arguments = [K, ",".join(names), *EMULATOR, "--heads", "1", "--json", "-"]
        outcome = cli(*arguments, FLASH_LADDER_ASYNC="early")
        assert outcome.rc == 0, outcome.err
        found += json.loads(outcome.out)["results"]
    return {result["kernel"]: result for result in found}


@pytest.mark.parametrize("kernel", HOPPER, ids=lambda kernel: kernel.stem)
def test_asynchronous_work_may_be_done_early_too(done_early: dict[str, dict], kernel: KernelFile) -> None:
    result = done_early[kernel.kernel]
    assert result["correct"] is True and result["findings"] == []
    assert result["counters"]["wgmma_instructions"] > 0 and result["counters"]["wgmma_operand_wavefronts"] > 0
    if kernel.stem not in ("17_wgmma", "B10_wgmma", "B11_two_warpgroups"):  # whose copies are done by threads
        assert result["counters"]["tma_load_bytes"] > 0
    if kernel.number != 17 and not kernel.is_backward:  # of which other kernels compute D and convert dQ
        assert (result["counters"]["global_load_bytes"] > 0) == (kernel.stem == "fp8"), "its scales, and nothing else"


def leave_out_other_texts(old: dict, new: dict) -> list[str]:
    """Removes from two profiles of one source the parts that belong to different texts, and describes them."""
    notes = []
    if old["code_hash"] != new["code_hash"]:
        return notes  # the profile is stale, so the texts cannot be the same
    for results in zip(old["results"], new["results"], strict=True):
        if len({result["ptx_hash"] for result in results}) > 1:
            notes.append("counters not compared, nvcc made other PTX of the same source than was counted")
            for result in results:
                del result["ptx_hash"], result["counters"]
                result.pop("lines", None)
        for code, runs_on in (("sm_80", ("sm_80", "sm_86", "sm_89")), ("sm_90", ("sm_90",))):
            if code not in results[0]["static"]:  # for sm_80, of code for sm_90a
                continue
            if len({result["static"][code]["sass_hash"] for result in results}) > 1:
                notes.append(f"SASS of {code} not compared, it is other code of the same source than was studied")
                for result in results:
                    for sm in runs_on:
                        del result["static"][sm]
    return sorted(set(notes))


@pytest.mark.parametrize("kernel", PROFILED, ids=lambda kernel: kernel.stem)
def test_profiles_are_up_to_date(recorded: Path, kernel: KernelFile) -> None:
    name = kernel.stem
    committed = PROFILES / f"{name}.json"
    assert committed.exists(), f"record it: scripts/harness --kernel {kernel.kernel} --device emulator --record"
    old, new = (json.loads(path.read_text(encoding="utf-8")) for path in (committed, recorded / f"{name}.json"))
    if old["toolkit"] != new["toolkit"]:
        pytest.skip(f"{name}: recorded with CUDA {old['toolkit']}, and this is {new['toolkit']}")
    other_texts = leave_out_other_texts(old, new)
    # A changed comment moves lines, which is no reason to record again.
    for profile in (old, new):
        for result in profile["results"]:
            for line in result.get("lines", []):
                line["position"] = [place.rpartition(":")[0] for place in line["position"]]
    assert old == new, f"record it anew: scripts/harness --kernel {kernel.kernel} --device emulator --record"
    if other_texts:
        pytest.skip(f"{name}: {'; '.join(other_texts)}")


def made_up_profile() -> dict:
    result = {
        "config": "64x64",
        "ptx_hash": "sha256:1",
        "counters": {"warp_instructions": 100},
        "lines": [{"position": ["kernels/03_tiled.cu:7"], "counters": {"warp_instructions": 100}}],
        "static": {sm: {"registers": 32, "sass_hash": None} for sm in ("sm_86", "sm_89")}
        | {sm: {"registers": 32, "sass_hash": f"sha256:{sm}"} for sm in ("sm_80", "sm_90")},
    }
    return {"code_hash": "sha256:0", "results": [result, copy.deepcopy(result)]}


def test_counters_of_the_same_text_are_compared() -> None:
    old, new = made_up_profile(), made_up_profile()
    new["results"][1]["counters"]["warp_instructions"] += 1
    assert leave_out_other_texts(old, new) == [] and old != new


def test_counters_of_another_text_are_not_compared() -> None:
    old, new = made_up_profile(), made_up_profile()
    for result in new["results"]:
        result["counters"]["warp_instructions"] += 1
        result["ptx_hash"] = "sha256:2"
    (note,) = leave_out_other_texts(old, new)
    assert note.startswith("counters not compared") and old == new
    old["results"][0]["static"]["sm_80"]["registers"] += 1
    assert old != new, "the machine code is the same, and so is what is known of it"


def test_code_of_another_text_is_not_compared() -> None:
    old, new = made_up_profile(), made_up_profile()
    new["results"][0]["static"]["sm_80"] = {"registers": 40, "sass_hash": "sha256:other"}
    new["results"][0]["static"]["sm_86"]["registers"] = 40
    (note,) = leave_out_other_texts(old, new)
    assert note.startswith("SASS of sm_80 not compared") and old == new
    assert "sm_90" in old["results"][0]["static"], "that is compared"


def test_counters_of_a_changed_source_are_compared() -> None:
    old, new = made_up_profile(), made_up_profile()
    new["code_hash"] = "sha256:3"
    new["results"][0]["ptx_hash"] = "sha256:2"
    assert leave_out_other_texts(old, new) == [] and old != new


@pytest.mark.parametrize("kernel", AMPERE, ids=lambda kernel: kernel.stem)
def test_a_barrier_or_a_wait_is_not_charged_for_what_was_moved_there(recorded: Path, kernel: KernelFile) -> None:
    """Moved code includes address computations of the copies, which in 08 were 172 instructions at each wait."""
    source = ROOT / kernel.file
    text = source.read_text(encoding="utf-8").splitlines()
    alone = re.compile(r"\s*(__sync\w+\(\)|cp_async_(wait(<\d>)?|commit)\(\));")
    barriers = 0
    has_barriers = any(alone.match(line) for line in text)
    for result in json.loads((recorded / f"{kernel.stem}.json").read_text(encoding="utf-8"))["results"]:
        for line in result.get("lines", []):
            # The last place is that of the kernel itself, unless a lambda contains the barrier.
            places = [place.rpartition(":") for place in line["position"]]
            if any(name.endswith(source.name) and alone.match(text[int(number) - 1]) for name, _, number in places):
                barriers += 1
                counters = line["counters"]
                assert counters["warp_instructions"] == counters["barrier_instructions"], line["position"]
    assert (barriers > 0) == has_barriers


# The choice depends on the shared memory of a CTA, of which 89 has as much as 86. On 90, the versions are recorded.
@pytest.mark.parametrize("sm", ["80", "86"])
@pytest.mark.parametrize("dtype", ["fp16", "bf16"])
def test_the_chosen_configuration_runs_within_the_limits_of_its_gpu(
    cli: Cli, recorded: Path, sm: str, dtype: str
) -> None:
    """Each is checked here, or was when it was recorded: check_sets.cpp."""
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    checked = {
        (result["kernel"], result["config"], result["problem"]["dtype"])
        for kernel in AMPERE
        for result in json.loads((recorded / f"{kernel.stem}.json").read_text(encoding="utf-8"))["results"]
    }
    gpu = [*EMULATOR, "--sm", sm, "--dtype", dtype]
    for decoding, shape in ((False, ["--heads", "1"]), (True, [])):
        kernels = [kernel.kernel for kernel in AMPERE if kernel.is_decoding == decoding]
        found = results(cli, K, ",".join(kernels), *gpu, *shape, "--no-check")
        assert [result["kernel"] for result in found] == kernels
        for result in found:
            assert result["status"] == "ok" and result["findings"] == [], result["reason"]
            if (result["kernel"], result["config"], dtype) not in checked:
                (result,) = results(cli, K, result["kernel"], *gpu, *shape, "--config", result["config"])
                assert result["correct"] is True


# nvcc splits stores of O, and ptxas joins them again: every other one of 03 in two, every fourth from 14 on in four.
SPLIT_STORES = {"03": 1.5, "14": 1.75, "15": 1.75, "16": 1.75}


@pytest.mark.parametrize("name", [kernel.stem for kernel in AMPERE])
def test_counters_agree_with_nsight_compute(name: str) -> None:
    """Within 1 %: docs/virtual_gpu_internals.md has the table, and explains the exceptions."""
    counted = json.loads((PROFILES / f"{name}.json").read_text(encoding="utf-8"))["results"][0]
    measured = json.loads((ROOT / "profiles" / "h200" / "ncu.json").read_text(encoding="utf-8"))
    if name not in measured["versions"]:
        pytest.skip("Nsight Compute has not counted it yet")
    assert counted["problem"] == measured["problem"]
    for counter in (
        "shared_load_wavefronts",
        "shared_store_wavefronts",
        "global_load_sectors",
        "global_store_sectors",
    ):
        expected = measured["versions"][name][counter]
        if counter == "global_store_sectors":
            expected *= SPLIT_STORES.get(name[:2], 1)
        assert counted["counters"][counter] == pytest.approx(expected, rel=0.01), counter


@pytest.mark.parametrize("threads", ["1", "3"])
def test_the_number_of_threads_does_not_matter(emulator: Cli, recorded: Path, threads: str) -> None:
    outcome = emulator(K, "08", *EMULATOR, "--record", FLASH_LADDER_THREADS=threads)
    assert outcome.rc == 0
    again = emulator.profiles / "emulator" / "08_pipelined_kv.json"
    assert again.read_bytes() == (recorded / "08_pipelined_kv.json").read_bytes()
