"""Profiles: recording them, showing them, and noticing when they no longer match the code."""

import json
import re
import shutil
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
from cli import BUILD, H200, KERNELS, NAMES, ROOT, RTX_4080, Cli
from jsonschema import ValidationError
from recordings import as_if_of_these_sources
from schemas import (
    validate_fp8_error,
    validate_models,
    validate_peer_cases,
    validate_peers,
    validate_peers_by_data,
    validate_peers_by_problem,
    validate_peers_decoding,
    validate_peers_gradients,
    validate_profile,
    validate_tuning,
)
from stale_recordings import stale_recordings

K = "--kernel"


def row(text: str, start: str) -> str:
    (line,) = [line for line in text.splitlines() if line.startswith(start)]
    return " ".join(line.split())


@pytest.fixture
def tree(cli: Cli, tmp_path: Path) -> Path:
    """A copy of the sources, to edit."""
    copy = tmp_path / "tree"
    for folder in ("kernels", "common"):
        shutil.copytree(ROOT / folder, copy / folder)  # keeps the modification times
    cli.source = copy
    return copy


def record(cli: Cli, kernel: str) -> dict[str, Any]:
    outcome = cli(K, kernel, "--record")
    assert outcome.rc == 0, outcome
    (name,) = [one.stem for one in KERNELS if one.kernel == kernel]
    return json.loads((cli.profiles / "h200" / f"{name}.json").read_text(encoding="utf-8"))


def test_record(cli: Cli) -> None:
    outcome = cli(K, "07", "--record", "--seed", "3", "--repeat", "25")
    assert outcome.rc == 0 and "07_ldmatrix.json" in outcome.out
    assert [path.name for path in (cli.profiles / "h200").iterdir()] == ["07_ldmatrix.json"]
    profile = json.loads((cli.profiles / "h200/07_ldmatrix.json").read_text(encoding="utf-8"))
    validate_profile(profile)
    assert profile["schema"] == 1 and profile["device"] == "NVIDIA H200" and profile["driver"] == "580.159.04"
    assert profile["clocks"] == {"sm_max_mhz": 1980, "memory_max_mhz": 3201}
    shapes = [(16, 512), (16, 1024), (16, 2048), (16, 4096), (8, 8192), (4, 16384)]
    problems = [result["problem"] for result in profile["results"]]
    assert [(p["batch"], p["seq_len"]) for p in problems if p["dtype"] == "fp16"] == shapes
    assert [(p["batch"], p["seq_len"]) for p in problems if p["dtype"] == "bf16"] == [(16, 4096)]
    assert all(p["heads"] == 16 and p["head_dim"] == 128 and p["seq_len_kv"] == p["seq_len"] for p in problems)
    for sm in ("sm_80", "sm_90"):
        (studied,) = {result["static"][sm]["sass_hash"] for result in profile["results"]}
        assert studied.startswith("sha256:"), "of the whole version, so the same in all"
    for request in cli.requests():
        assert request["check"] and request["benchmark"] and request["seed"] == 3 and request["repeat"] == 25


@pytest.mark.parametrize("arguments", [(K, "07", "--record"), ("--tune", "07")], ids=" ".join)
def test_a_place_that_cannot_be_written_to_is_refused_before_the_work(cli: Cli, arguments: tuple[str, ...]) -> None:
    cli.profiles.rmdir()
    cli.profiles.write_text("a file", encoding="utf-8")
    outcome = cli(*arguments)
    assert outcome.rc == 2 and cli.requests() == [], outcome
    message = " ".join(outcome.err.split())
    assert "cannot create the directory" in message and "choose another place with --profiles" in message
    cli.profiles.unlink()
    cli.profiles.mkdir()
    (cli.profiles / "h200").mkdir()
    (cli.profiles / "h200" / "07_ldmatrix.json").mkdir()
    (cli.profiles / "h200" / "tuning.json").mkdir()
    outcome = cli(*arguments)
    assert outcome.rc in (2, 3) and cli.requests() == [], outcome


def test_the_slow_versions_stop_early(cli: Cli) -> None:
    for number, longest in (("01", 4096), ("03", 4096), ("04", 16384)):
        assert max(result["problem"]["seq_len"] for result in record(cli, number)["results"]) == longest


def test_profiles_are_written_only_when_all_is_right(cli: Cli) -> None:
    cli.kernels = {"06": "wrong", "07": "crash"}
    outcome = cli(K, "06-08", "--record")
    assert outcome.rc == 1
    assert [path.name for path in (cli.profiles / "h200").iterdir()] == ["08_pipelined_kv.json"]
    for name in ("06_swizzle", "07_ldmatrix"):
        assert f"{name}: no profile was written" in outcome.err


def test_an_old_profile_stays_when_a_recording_fails(cli: Cli) -> None:
    profile = record(cli, "07")
    cli.kernels = {"07": "wrong"}
    assert cli(K, "07", "--record").rc == 1
    assert json.loads((cli.profiles / "h200/07_ldmatrix.json").read_text(encoding="utf-8")) == profile


def test_what_does_not_fit_the_device_is_left_out(cli: Cli) -> None:
    cli.device = RTX_4080
    outcome = cli(K, "01", "--record")
    assert outcome.rc == 0 and "01_naive needs" in outcome.words
    profile = json.loads((cli.profiles / "geforce-rtx-4080/01_naive.json").read_text(encoding="utf-8"))
    validate_profile(profile)
    assert {result["problem"]["seq_len"] for result in profile["results"]} == {512, 1024, 2048}


@pytest.mark.parametrize(
    ("device", "folder"), [("NVIDIA H200", "h200"), ("NVIDIA A100-SXM4-80GB", "a100-sxm4-80gb"), ("NVIDIA L4", "l4")]
)
def test_folder_of_a_device(cli: Cli, device: str, folder: str) -> None:
    cli.device = H200 | {"name": device}
    assert cli(K, "08", "--record").rc == 0
    assert (cli.profiles / folder / "08_pipelined_kv.json").exists()


def test_driver_and_clocks_that_are_not_known(cli: Cli) -> None:
    cli.device = H200 | {"driver": "", "sm_clock_max_mhz": 0, "memory_clock_max_mhz": 0}
    profile = record(cli, "07")
    validate_profile(profile)
    assert profile["driver"] is None and profile["clocks"] == {"sm_max_mhz": None, "memory_max_mhz": None}


def test_stale_when_the_code_changes_but_not_when_a_comment_does(cli: Cli, tree: Path) -> None:
    record(cli, "06")
    record(cli, "07")
    listed = cli("--list").out.splitlines()
    assert sorted(line.split()[0] for line in listed if line.split(" ")[0] in NAMES) == sorted(NAMES)
    assert row(cli("--list").out, "07_ldmatrix").startswith("07_ldmatrix 70.0 ")
    assert "stale" not in cli("--list").out

    kernel = tree / "kernels/07_ldmatrix.cu"
    text = kernel.read_text(encoding="utf-8")
    kernel.write_text(text.replace("\n\n", "\n// a better comment\n\n", 5) + "\n/* and another */\n", encoding="utf-8")
    assert kernel.read_text(encoding="utf-8") != text
    assert "stale" not in cli("--list").out

    changed = text.replace("kBlockQ = 64", "kBlockQ = 32")
    assert changed != text
    kernel.write_text(changed, encoding="utf-8")
    listed = cli("--list")
    assert listed.rc == 0
    assert row(listed.out, "07_ldmatrix").startswith("07_ldmatrix 70.0 stale ")
    assert row(listed.out, "06_swizzle").startswith("06_swizzle 60.0 ") and "stale" not in row(listed.out, "06_swizzle")
    cli.device = None
    assert "stale: the code has changed since" in cli(K, "07").words
    assert "70.0 stale" in cli(K, "06-07").words
    kernel.write_text(text, encoding="utf-8")

    header = tree / "common/ptx.h"
    header.write_text(header.read_text(encoding="utf-8") + "\ninline int one() { return 1; }\n", encoding="utf-8")
    listed = cli("--list")
    assert "stale" in row(listed.out, "06_swizzle") and "stale" in row(listed.out, "07_ldmatrix")


def test_a_stale_step_is_measured_anew_where_there_is_a_gpu(cli: Cli, tree: Path) -> None:
    cli.tflops = {"06": 50.0}
    record(cli, "06")
    cli.tflops = {"06": 40.0, "07": 80.0}
    assert "1.60x of version 06_swizzle (50.0 TFLOP/s by --record on NVIDIA H200)" in cli(K, "07").words
    kernel = tree / "kernels/06_swizzle.cu"
    kernel.write_text(kernel.read_text(encoding="utf-8") + "\nint one;\n", encoding="utf-8")
    assert "2.00x of version 06_swizzle (40.0 TFLOP/s measured now)" in cli(K, "07").words
    cli.device = None
    assert "06_swizzle has no figure" not in cli(K, "07").words
    assert "this version has no figure to compare with that of version 06" in cli(K, "07").words


def test_a_card_shows_the_fastest_recorded_configuration_as_the_readme_does(cli: Cli) -> None:
    cli.profiles = ROOT / "profiles"
    cli.device = None
    path = ROOT / "profiles/h200" / f"{NAMES[15]}.json"
    recorded = {
        result["config"]: result["tflops"]
        for result in json.loads(path.read_text(encoding="utf-8"))["results"]
        if result["problem"]["seq_len"] == 4096 and result["problem"]["dtype"] == "fp16"
    }
    chosen = next(iter(recorded))  # by the version, and therefore also beside the peers
    recorded[chosen] = sustained("16")
    words = cli(K, "16").words
    assert words.index(f"{recorded[chosen]:.1f} TFLOP/s on NVIDIA H200 ({chosen}") < words.index("Step")
    (known,) = [v for v in json.loads(cli("--list", "--json", "-").out)["versions"] if v["kernel"] == "16"]
    for config in {configuration["name"] for configuration in known["configurations"]} & set(recorded):
        card = cli(K, "16", "--config", config).words
        assert f"Recorded {recorded[config]:.1f} TFLOP/s on NVIDIA H200 ({config}" in card
    for table in (cli(K, "15-16").out, cli("--list").out):
        assert f" {recorded[chosen]:.1f} " in row(table, NAMES[15])


def sustained(kernel: str, seq_len: int = 4096) -> float:
    """The figure of a version in profiles/h200/peers.json, measured beside the peers."""
    regime = json.loads((ROOT / "profiles/h200/peers.json").read_text(encoding="utf-8"))["regimes"]["sustained"]
    (version,) = [version for version in regime["versions"] if version["kernel"] == kernel]
    return next(result["tflops"] for result in version["results"] if result["seq_len"] == seq_len)


def by_record(name: str) -> float:
    results = json.loads((ROOT / f"profiles/h200/{name}.json").read_text(encoding="utf-8"))["results"]
    return max(r["tflops"] for r in results if r["problem"]["seq_len"] == 4096 and r["problem"]["dtype"] == "fp16")


def test_one_regime_is_shown_everywhere(cli: Cli) -> None:
    """The figures are those of the run beside the peers, as on the site; figures of --record are marked."""
    cli.profiles = ROOT / "profiles"
    cli.device = None
    before, now = sustained("05"), sustained("06")
    assert f"{now:.1f}" != f"{by_record(NAMES[5]):.1f}", "otherwise this test shows nothing"
    factor = f"{now / before:.2f}x"
    card = cli(K, "06").words
    assert f"Recorded {now:.1f} TFLOP/s on NVIDIA H200 (64x64, sustained, " in card
    assert f"Step {factor} of version 05_cp_async ({before:.1f} TFLOP/s sustained on NVIDIA H200)" in card
    listed = cli("--list")
    assert "Measured sustained: each version alone, at steady power; * by --record: " in listed.words
    assert row(listed.out, NAMES[5]).startswith(f"06_swizzle {now:.1f} ")
    assert row(listed.out, NAMES[2]).startswith(f"03_tiled {by_record(NAMES[2]):.1f}* ")
    assert f" {now:.1f} " in row(cli(K, "05-06").out, NAMES[5])
    diff = cli("--diff", "05", "06")
    assert (
        f" {before:.1f} {now:.1f} {factor} " in diff.words + " "
        and "TFLOP/s, sustained" in diff.words
    )


def test_a_step_is_of_figures_that_were_measured_in_the_same_way(cli: Cli) -> None:
    """03 is too slow to be measured beside the peers, so the step of 04 compares two figures of --record."""
    cli.profiles = ROOT / "profiles"
    cli.device = None
    before, now = by_record(NAMES[2]), by_record(NAMES[3])
    card = cli(K, "04").words
    assert f"Recorded {sustained('04'):.1f} TFLOP/s on NVIDIA H200 (64x64, sustained, " in card
    assert f"Step {now / before:.2f}x of version 03_tiled ({before:.1f} TFLOP/s by --record on NVIDIA H200)" in card
    document = json.loads(cli("--diff", "03", "04", "--json", "-").out)
    (pair,) = [
        speed
        for speed in document["tflops"]
        if speed["device"] == "NVIDIA H200"
        and (speed["problem"]["seq_len"], speed["problem"]["dtype"]) == (4096, "fp16")
    ]
    assert (pair["from"], pair["to"]) == (before, now) and pair["ratio"] == now / before
    assert pair["measured_from"] == pair["measured_to"] == "record"


def test_peers_are_shown(cli: Cli) -> None:
    cli.tflops = {"07": 168.15}
    shutil.copytree(ROOT / "profiles/h200", cli.profiles / "h200", dirs_exist_ok=True)
    as_if_of_these_sources(cli.profiles)
    peers = json.loads((cli.profiles / "h200/peers.json").read_text(encoding="utf-8"))
    listed = json.loads(cli("--list", "--json", "-").out)["versions"]
    code_hash = next(version["code_hash"] for version in listed if version["kernel"] == "07")

    def results(tflops: float) -> list[dict[str, Any]]:
        return [{"batch": 16, "seq_len": 4096, "tflops": tflops}]

    def regime(factor: float) -> dict[str, Any]:
        names = {"Fast": 672.6, "FlashAttention-2": 336.3}
        version = {"kernel": "07", "name": "ldmatrix", "config": None, "code_hash": code_hash}
        return {
            "versions": [version | {"results": results(168.15 * factor)}],
            "peers": [{"name": name, "results": results(tflops * factor)} for name, tflops in names.items()],
        }

    def shown(*arguments: str) -> str:
        (cli.profiles / "h200/peers.json").write_text(json.dumps(peers), encoding="utf-8")
        words = cli(K, "07", *arguments).words
        return re.split(" Busy | Resources ", words.split(" Peers ")[1])[0] if " Peers " in words else ""

    cli.tflops = {"07": 1.0}  # measured now, in a different way: the peers are not compared with it
    peers["regimes"] = {"interleaved": regime(2.0), "sustained": regime(1.0)}
    words = "sustained, this version 168: 50 % of FlashAttention-2 (336), 25 % of Fast (673)"
    assert shown() == words
    assert shown("--dtype", "bf16") == "", "they were measured in fp16"
    assert shown("--batch", "15") == ""
    assert shown("--config", "64x64") == "sustained: FlashAttention-2 336, Fast 673", "it ran in the one it chose"
    del peers["regimes"]["sustained"]
    assert shown() == "interleaved, this version 336: 50 % of FlashAttention-2 (673), 25 % of Fast (1345)"
    peers["regimes"]["interleaved"]["versions"][0]["code_hash"] = "sha256:" + "0" * 64
    assert shown() == "interleaved: FlashAttention-2 673, Fast 1345", "other code"


def test_the_device_that_is_shown_first(cli: Cli) -> None:
    cli.tflops = {"07": 60.0}
    record(cli, "07")
    shutil.copytree(cli.profiles / "h200", cli.profiles / "h100")
    profile = cli.profiles / "h100/07_ldmatrix.json"
    text = profile.read_text(encoding="utf-8").replace("NVIDIA H200", "NVIDIA H100").replace("60.0", "50.0")
    profile.write_text(text, encoding="utf-8")
    cli.device = None
    assert "h100 h200 config" in cli("--list").words
    (cli.profiles / "shown_first.txt").write_text("h200\n", encoding="utf-8")
    assert "h200 h100 config" in cli("--list").words
    card = cli(K, "07").words
    assert card.index("TFLOP/s on NVIDIA H200") < card.index("TFLOP/s on NVIDIA H100")
    (cli.profiles / "h100").rename(cli.profiles / "h100-80gb-hbm3")
    assert "h200 h100-80gb-hbm3 config" in cli("--list").words, "a long name ends before the next column"


def test_without_profiles(cli: Cli) -> None:
    listed = cli("--list")
    assert listed.rc == 0 and "nothing is recorded" in listed.out
    for name in NAMES:
        assert name in listed.out
    assert "nothing for this problem" in cli(K, "07").words


def truncated(profile: str) -> str:
    return profile[: len(profile) // 2]


def of_another_schema(profile: str) -> str:
    return json.dumps(json.loads(profile) | {"schema": 2})


def without_a_schema(profile: str) -> str:
    document = json.loads(profile)
    del document["schema"]
    return json.dumps(document)


def of_another_form(profile: str) -> str:
    return json.dumps(json.loads(profile) | {"results": [{"kernel": "07"}]})


def with_tflops(number: str) -> Callable[[str], str]:
    return lambda profile: re.sub(r'"tflops":[0-9.]+', f'"tflops":{number}', profile, count=1)


BROKEN = [
    (truncated, "truncated or not JSON"),
    (lambda _: "", "it is empty"),
    (lambda _: "[]", 'no "schema"'),
    (of_another_schema, "it has schema 2, and this program reads schema 1"),
    (without_a_schema, 'no "schema"'),
    (of_another_form, "does not conform"),
    (with_tflops("1e400"), "a number that is too large"),
    (with_tflops("-5"), "-5 where a number above 0 is expected"),
    (with_tflops('"inf"'), "inf where .* above 0"),
    (lambda _: '{"schema":' + 100_000 * "[" + 100_000 * "]" + "}", "it has schema of another type"),
]


def test_a_profile_that_cannot_be_read(cli: Cli) -> None:
    record(cli, "06")
    path = cli.profiles / "h200/07_ldmatrix.json"
    path.symlink_to(path.name)
    listed = cli("--list")
    words = " ".join(listed.err.split())
    assert listed.rc == 3 and f"'{path}' cannot be used: Too many levels of symbolic links" in words
    assert "60.0" in listed.out


@pytest.mark.parametrize(("damage", "words"), BROKEN, ids=[words for _, words in BROKEN])
def test_broken_profiles(cli: Cli, damage: Callable[[str], str], words: str) -> None:
    record(cli, "06")
    record(cli, "07")
    path = cli.profiles / "h200/07_ldmatrix.json"
    path.write_text(damage(path.read_text(encoding="utf-8")), encoding="utf-8")
    # A listing and a comparison depend on profiles, a study does not.
    for arguments, rc in ((["--list"], 3), (["--diff", "06", "07"], 3), ([K, "07"], 0), ([K, "06-07"], 0)):
        outcome = cli(*arguments)
        assert outcome.rc == rc, outcome
        assert str(path) in outcome.err and re.search(words, outcome.err) and "--record" in outcome.err
        assert "60.0" in outcome.out, "the other profile is shown all the same"
    record(cli, "07")
    assert cli("--list").err == ""


def test_broken_peers(cli: Cli) -> None:
    record(cli, "07")
    good = json.loads((ROOT / "profiles/h200/peers.json").read_text(encoding="utf-8"))
    for broken, words in (
        ("{", "truncated or not JSON"),
        ("[]", 'no "schema"'),
        ('{"schema": 2}', "has schema 2, .* schema 3"),
        ('{"schema": 3}', "does not conform"),
        (json.dumps(good | {"problem": good["problem"] | {"dtype": "fp4"}}), "its dtype is unknown"),
    ):
        (cli.profiles / "h200/peers.json").write_text(broken, encoding="utf-8")
        outcome = cli(K, "07")
        assert outcome.rc == 0 and "peers.json" in outcome.err and re.search(words, outcome.err)


def test_schema_refuses_what_was_not_right(cli: Cli) -> None:
    profile = record(cli, "07")
    for change in ({"status": "wrong"}, {"correct": None}, {"tflops": None}, {"tflops": "fast"}, {"more": 1}):
        broken = json.loads(json.dumps(profile))
        broken["results"][0] |= change
        with pytest.raises(ValidationError):
            validate_profile(broken)


def test_diff(cli: Cli) -> None:
    cli.tflops = {"06": 150.0, "07": 225.0}
    record(cli, "06")
    record(cli, "07")
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = cli("--diff", "06", "07")
    assert outcome.rc == 0 and outcome.err == ""
    assert "--- kernels/06_swizzle.cu" in outcome.out and "+++ kernels/07_ldmatrix.cu" in outcome.out
    diff = [line for line in outcome.out.splitlines() if line.startswith(("-", "+"))]
    assert any("ldmatrix_x4" in line for line in diff)
    for noise in ("namespace", ".number", ".name", "Idea"):
        assert not any(noise in line for line in diff)
    assert re.search(r"\d+ .* added, \d+ removed", outcome.out)
    assert row(outcome.out, "h200: 16 x 4096, fp16") == "h200: 16 x 4096, fp16 150.0 225.0 1.50x"
    for name in ("registers per thread", "shared memory per CTA", "CTAs per SM (sm_90)"):
        assert name in outcome.out
    loop = outcome.words.split("hot loop, per iteration (sm_90)")[1].split("whole kernel")[0]
    assert re.search(r"LDSM 0 (\d+) \+\1 ", loop), loop
    assert "(sm_80)" in cli("--diff", "06", "07", "--sm", "80").out
    backwards = cli("--diff", "07_ldmatrix", "6")
    assert "0.67x" in backwards.out


def test_diff_of_a_configuration(cli: Cli) -> None:
    slower = "256x128"
    for kernel, name in (("15", NAMES[14]), ("16", NAMES[15])):
        profile = record(cli, kernel)
        for result in profile["results"]:
            result["tflops"] = 400.0 if result["config"] == slower else 500.0
        (cli.profiles / f"h200/{name}.json").write_text(json.dumps(profile), encoding="utf-8")

    def compared(*arguments: str) -> list[Any]:
        speeds = json.loads(cli("--diff", "15", "16", "--json", "-", *arguments).out)["tflops"]
        return [(speed["from"], speed["config_from"], speed["to"], speed["config_to"]) for speed in speeds]

    assert set(compared("--config", slower)) == {(400.0, slower, 400.0, slower)}
    assert set(compared("--config", "256x64")) == {(500.0, "256x64", 500.0, "256x64")}
    assert {(before, after) for before, _, after, _ in compared()} == {(500.0, 500.0)}, "of the fastest"
    # The other values shown belong to 256x64 in 15 and to 256x128 in 16.
    shown = row(cli("--diff", "15", "16").out, "h200: 16 x 4096, fp16")
    assert shown == "h200: 16 x 4096, fp16 500.0 256x64: 500.0 1.00x"


def test_diff_of_a_version_with_itself(cli: Cli) -> None:
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = cli("--diff", "06", "06")
    assert outcome.rc == 0 and "0 lines of code added, 0 removed" in outcome.out


def test_diff_without_the_program_diff(cli: Cli, tmp_path: Path) -> None:
    cli.emulator_worker = BUILD / "harness-worker-emulator"
    outcome = cli("--diff", "06", "07", PATH=str(tmp_path))
    assert outcome.rc == 3 and "`diff` cannot be started" in outcome.err and "install diffutils" in outcome.err


# The virtual GPU's folder is left out, because it has no speeds.
PROFILES = sorted(path for path in ROOT.glob("profiles/*/[0-9][0-9]_*.json") if path.parent.name != "emulator")


@pytest.mark.parametrize("path", PROFILES, ids=lambda path: f"{path.parent.name}/{path.stem}")
def test_profiles_of_the_repository(path: Path) -> None:
    profile = json.loads(path.read_text(encoding="utf-8"))
    validate_profile(profile)
    assert {(result["kernel"], result["name"]) for result in profile["results"]} == {(path.stem[:2], path.stem[3:])}


def test_profiles_are_of_these_sources(cli: Cli) -> None:
    """Lists the stale recordings that a change of a kernel leaves behind. Only a release must not have any.

    The virtual GPU's recordings, which need no GPU, have a separate test.
    """
    stale = stale_recordings(ROOT / "profiles", json.loads(cli("--list", "--json", "-").out)["versions"])
    if stale:
        pytest.skip(f"{len(stale)} recordings are of an earlier text of their version: {', '.join(stale)}")


def test_stale_recordings_are_named(tmp_path: Path) -> None:
    versions = [
        {"kernel": "06", "file": "kernels/06_swizzle.cu", "code_hash": "new"},
        {"kernel": "fp8", "file": "kernels/hopper/extensions/fp8.cu", "code_hash": "same"},
    ]
    entries = [{"kernel": "06", "code_hash": "old"}, {"kernel": "fp8", "code_hash": "same"}]
    files = {
        "emulator/06_swizzle.json": {"code_hash": "old"},
        "h200/06_swizzle.json": {"code_hash": "old"},
        "h200/fp8.json": {"code_hash": "same"},
        "h200/gone.json": {"code_hash": "same"},
        "h200/ncu.json": {"code_hash": {"06_swizzle": "old", "fp8": "same"}},
        "h200/peers.json": {"regimes": {"sustained": {"versions": entries}}},
        "h200/peers_by_data.json": {"versions": entries},
        "h200/peers_by_problem.json": {"versions": entries},
        "h200/tuning.json": {"entries": entries},
    }
    for name, document in files.items():
        (tmp_path / name).parent.mkdir(exist_ok=True)
        (tmp_path / name).write_text(json.dumps(document), encoding="utf-8")
    assert stale_recordings(tmp_path, versions) == [
        "h200/06_swizzle.json",
        "h200/gone.json",
        "h200/ncu.json: 06_swizzle",
        "h200/peers.json: 06",
        "h200/peers_by_data.json: 06",
        "h200/peers_by_problem.json: 06",
        "h200/tuning.json: 06",
    ]


def paragraph(card: str, label: str) -> str:
    """The text on a card under a label, without its line breaks."""
    (text,) = re.findall(rf"^{label} (.*(?:\n +.*)*)", card, re.MULTILINE)
    return " ".join(text.split())


@pytest.mark.parametrize(
    ("page", "labels"),
    [
        ("README.md", ["Prediction", "Step"]),
        ("docs/commands.md", ["Idea", "Changed", "Prediction", "Recorded", "Step", "Peers", "Busy", "Read on"]),
    ],
)
def test_the_cards_in_the_docs(cli: Cli, page: str, labels: list[str]) -> None:
    text = (ROOT / page).read_text(encoding="utf-8")
    shown = text[text.index("07 · ldmatrix   64x64") :].split("```")[0]
    cli.profiles = ROOT / "profiles"
    cli.tflops = {"07": float(paragraph(shown, "Speed").split()[0])}
    card = cli(K, "07").out
    for label in labels:
        assert paragraph(shown, label) == paragraph(card, label), f"put a card of a new run into {page}"


def test_other_files_of_the_repository() -> None:
    validate = {
        "fp8_error": validate_fp8_error,
        "models": validate_models,
        "peer_cases": validate_peer_cases,
        "peers": validate_peers,
        "peers_by_data": validate_peers_by_data,
        "peers_by_data_causal": validate_peers_by_data,
        "peers_by_problem": validate_peers_by_problem,
        "peers_decoding": validate_peers_decoding,
        "peers_gradients": validate_peers_gradients,
        "tuning": validate_tuning,
    }
    paths = [path for name in validate for path in ROOT.glob(f"profiles/*/{name}.json")]
    assert paths
    for path in paths:
        validate[path.stem](json.loads(path.read_text(encoding="utf-8")))
