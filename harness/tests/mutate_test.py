"""scripts/mutate.py: the set of mutants, the outcomes of a few, and the report on all of them."""

import json
import os
import subprocess
import sys
from pathlib import Path
from typing import Any

import mutate
import pytest
from kernel_files import kernel_files
from ladder import ROOT

BUILD = Path(os.environ.get("FLASH_LADDER_BUILD_DIR", ROOT / "build"))
VERSIONS = {version.stem: version for version in kernel_files(ROOT)}
NAIVE = """// 01 · naive
struct Traits {
  static constexpr int kBlockQ = 64;
};
template <typename Traits>
__global__ void kernel(AttentionArgs args,
                       int rows) {
  float sums[4] = {};
  // if (row >= rows) return;
  if (row >= rows) return;
  const int row = blockIdx.x * 16 + threadIdx.x;
  __syncthreads();  // all is there
  for (int key = 0; key < args.seq_len_kv; ++key) total += args.scale * sums[key];
}
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  if (error != cudaSuccess) return error;
  kernel<<<16, 32>>>(args, 4);
}
const Registration registration({
    .source = __FILE__,
});
"""


def text_of(stem: str) -> str:
    return (ROOT / VERSIONS[stem].file).read_text(encoding="utf-8")


@pytest.mark.parametrize("stem", VERSIONS)
def test_there_are_sixty_places_in_each_version(stem: str) -> None:
    text = text_of(stem)
    mutants = mutate.mutants_of(VERSIONS[stem], text, 0)
    assert len({(mutant.line, mutant.column) for mutant in mutants}) == len(mutants) >= 60
    kinds = {mutant.kind for mutant in mutants[:60]}
    assert kinds - {"condition"} == {"constant", "delete", "name", "operator"}, "02 has no conditions"
    assert mutants == mutate.mutants_of(VERSIONS[stem], text, 0), "the seed alone decides"
    assert mutants != mutate.mutants_of(VERSIONS[stem], text, 1)
    for mutant in mutants[:60]:
        before, after = text.splitlines(), mutate.mutated(text, mutant).splitlines()
        changed = [number for number, (a, b) in enumerate(zip(before, after, strict=True), 1) if a != b]
        assert changed == [mutant.line], mutant
        assert not mutant.old.startswith(("//", "struct", "static_assert", "#")), mutant


def test_what_is_no_code_of_the_kernel_is_left_alone() -> None:
    lines = [line for _, line in mutate.lines_of_code(NAIVE)]
    assert [line.strip().partition(" ")[0] for line in lines] == [
        "float", "if", "const", "__syncthreads();", "for", "kernel<<<16,",
    ]  # fmt: skip
    found = mutate.mutants_of(VERSIONS["01_naive"], NAIVE, 0)
    changes = {(mutant.old, mutant.new) for mutant in found}
    assert ("__syncthreads();", ";") in changes
    assert any(old == "if (row >= rows) return;" and new.startswith("if (") for old, new in changes)
    assert not any("float sums" in old for old, _ in changes), "its size says nothing of its use"


def test_each_kind_of_change() -> None:
    names = {"K_smem", "V_smem", "x", "next", "wait"}
    found = [(kind, new) for kind, _, new in mutate.changes_of("  if (x < 2) wait(K_smem, x / 3 % 2);", names)]
    for expected in (
        ("condition", "  if (true) wait(K_smem, x / 3 % 2);"),
        ("condition", "  if (!(x < 2)) wait(K_smem, x / 3 % 2);"),
        ("operator", "  if (x <= 2) wait(K_smem, x / 3 % 2);"),
        ("constant", "  if (x < 2) wait(K_smem, x / 4 % 2);"),
        ("name", "  if (x < 2) wait(V_smem, x / 3 % 2);"),
    ):
        assert expected in found
    assert ("delete", "  ;") in [(kind, new) for kind, _, new in mutate.changes_of("  tma_store_commit();", set())]
    assert ("operator", "  S *= 1;") not in found
    dropped = [new for _, _, new in mutate.changes_of("  const float s = args.x * softmax_scale;", set())]
    assert "  const float s = args.x;" in dropped


@pytest.mark.parametrize(
    ("answer", "outcome"),
    [
        ({"event": "error", "kind": "cuda", "message": "no end within 60 s"}, "timeout"),
        ({"event": "error", "kind": "usage", "message": "too much shared memory"}, "refusal"),
        ({"event": "result", "result": {"status": "ok", "findings": [], "reason": None}}, "survived"),
        ({"event": "result", "result": {"status": "wrong", "findings": [], "reason": "normal inputs: off"}}, "wrong"),
        ({"event": "result", "result": {"status": "wrong", "findings": [{"kind": "race"}], "reason": ""}}, "finding"),
    ],
)
def test_what_a_worker_answers_is_an_outcome(answer: dict[str, Any], outcome: str) -> None:
    assert mutate.outcome_of(answer)["outcome"] == outcome


def test_equivalent_mutants_are_some_that_can_be_made() -> None:
    """An entry that no longer fits any version must be removed."""
    every = {
        (stem, code.strip(), new.strip())
        for stem in VERSIONS
        for lines in [list(mutate.lines_of_code(text_of(stem)))]
        for names in [mutate.names_of(lines)]
        for _, code in lines
        for _, _, new in mutate.changes_of(code, names)
    }
    for entry in mutate.equivalent():
        assert entry["reason"].endswith("."), entry
        for stem in entry.get("versions", [""]):
            fits = [new for where, old, new in every if entry["old"] == old and stem in ("", where)]
            assert fits and set(mutate.changes_to(entry, fits[0])) <= set(fits), entry


def test_the_score_leaves_out_what_is_no_mistake() -> None:
    def mutant(before: str, now: str, new: str) -> dict[str, Any]:
        return {"line": 1, "kind": "delete", "old": "wait();", "new": new,
                "before": {"outcome": before}, "now": {"outcome": now}}  # fmt: skip

    mutants = [mutant("survived", "wrong", ";"), mutant("finding", "finding", ""), mutant("survived", "survived", "b"),
               mutant("compile error", "compile error", "c")]  # fmt: skip
    known = [{"old": "wait();", "new": ["a", "b"], "reason": "Nothing waits."}]
    before, now = (mutate.tally("01_naive", mutants, name, known) for name in ("before", "now"))
    assert (before["survived"], before["equivalent"], before["compile error"]) == (1, 1, 1)
    assert mutate.score(before) == 0.5 and mutate.score(now) == 1
    assert mutate.score(dict.fromkeys(mutate.COLUMNS, 0)) is None


def test_what_is_published_is_of_versions_that_were_tried_completely(capsys: pytest.CaptureFixture[str]) -> None:
    def mutant(before: str | None, now: str | None, new: str) -> dict[str, Any]:
        outcomes = ({"before": {"outcome": before}} if before else {}) | (
            {"now": {"outcome": now, "by": "race"}} if now else {}
        )
        return {"line": 1, "kind": "delete", "old": "wait();", "new": new} | outcomes

    whole = [
        mutant("survived", "finding", "a"),
        mutant("survived", "survived", "b"),
        mutant("same code", "same code", "c"),
    ]
    half = [mutant("survived", "finding", "a"), mutant("survived", None, "b")]
    only_now = [mutant("survived", "finding", "a"), mutant(None, "survived", "b"), mutant(None, "same code", "c")]
    known = {stem: {"code": "0", "mutants": {one["new"]: one for one in mutants}} for stem, mutants in
             (("01_naive", whole), ("02_online_softmax", half), ("03_tiled", only_now))}  # fmt: skip
    earlier = {"seed": 0, "places": 2, "versions": {"01_naive": {"code": "1"}, "27_three_consumers": {"code": "2"}}}
    document = mutate.published({"seed": 0, "places": 2, "versions": known}, earlier)
    assert [*document["versions"]] == ["01_naive", "03_tiled", "27_three_consumers"]
    assert document["versions"]["27_three_consumers"] == {"code": "2"}, "what was published before stays"
    assert "02_online_softmax: not published" in capsys.readouterr().err
    others = mutate.published({"seed": 1, "places": 2, "versions": known}, earlier)
    assert [*others["versions"]] == ["01_naive", "03_tiled"], "unless it is of other mutants"
    version = document["versions"]["01_naive"]
    assert [one["new"] for one in version["found_since"]] == ["a"] and version["found_since"][0]["now"]["by"] == "race"
    assert [one["new"] for one in version["survivors"]] == ["b"]
    assert (version["before"]["survived"], version["now"]["survived"], version["now"]["same code"]) == (2, 1, 1)
    version = document["versions"]["03_tiled"]
    assert version["before"] is None and version["found_since"] is None, "half a comparison is none"
    assert (version["now"]["finding"], version["now"]["survived"], version["now"]["same code"]) == (1, 1, 1)


@pytest.fixture
def record(tmp_path: Path) -> mutate.Record:
    return mutate.Record(tmp_path / "mutation.json", 0, 1)


def test_results_belong_to_the_code_and_not_to_its_comments(record: mutate.Record) -> None:
    def found(text: str) -> list[mutate.Mutant]:
        return mutate.mutants_of(VERSIONS["01_naive"], text, 0)

    mutants = found(NAIVE)
    known = record.of(VERSIONS["01_naive"], NAIVE, mutants)
    record.keep(known, mutants[0], {"now": {"outcome": "wrong"}})
    longer = NAIVE.replace("template", "// A new comment\ntemplate").replace(
        "// all is there", "// K and V have arrived"
    )
    kept = record.of(VERSIONS["01_naive"], longer, found(longer))
    assert [(one["line"], one["now"]["outcome"]) for one in kept.values()] == [(mutants[0].line + 1, "wrong")]
    changed = NAIVE.replace("* 16", "* 32")
    assert record.of(VERSIONS["01_naive"], changed, found(changed)) == {}


def test_a_few_mutants_are_made_and_kept(tmp_path: Path) -> None:
    """Mutants with a known outcome are not created again, either."""
    output = tmp_path / "mutation.json"
    command = [sys.executable, ROOT / "scripts" / "mutate.py", "--versions", "02", "--places", "3", "--output", output]
    first = subprocess.run([*command, "--build", BUILD], capture_output=True, text=True, check=False)
    assert first.returncode == 0, first.stderr
    kept = output.read_text(encoding="utf-8")
    mutants = json.loads(kept)["versions"]["02_online_softmax"]["mutants"].values()
    outcomes = [mutant["now"]["outcome"] for mutant in mutants]
    assert sum(outcome in (*mutate.KILLED, "survived") for outcome in outcomes) == 3, first.stdout
    assert all(mutant["now"].get("by") for mutant in mutants if mutant["now"]["outcome"] in mutate.KILLED)
    again = subprocess.run(
        [*command, "--build", BUILD, "--before", BUILD / "missing"], capture_output=True, text=True, check=False
    )
    assert again.returncode == 3 and "not a ninja build" in again.stderr
    again = subprocess.run([*command, "--build", BUILD], capture_output=True, text=True, check=False)
    assert again.returncode == 0 and " s)" not in again.stdout and output.read_text(encoding="utf-8") == kept
    document = json.loads(kept)
    one = next(one for one in document["versions"]["02_online_softmax"]["mutants"].values() if "by" in one["now"])
    one["now"] = {"outcome": "survived"}
    output.write_text(json.dumps(document), encoding="utf-8")
    again = subprocess.run([*command, "--build", BUILD, "--survivors"], capture_output=True, text=True, check=False)
    assert again.stdout.count(" s)") == outcomes.count("survived") + 1
    assert json.loads(output.read_text(encoding="utf-8")) == json.loads(kept), "the check finds it again"
    other = subprocess.run([*command, "--seed", "1"], capture_output=True, text=True, check=False)
    assert other.returncode == 3 and "has --seed 0 and --places 3" in other.stderr


@pytest.mark.parametrize("version", ["26", "D01"])
def test_versions_of_other_tracks_have_mutants_too(version: str, tmp_path: Path) -> None:
    """A version for decoding refuses the problem of the others."""
    command = [sys.executable, ROOT / "scripts" / "mutate.py", "--build", BUILD, "--versions", version, "--places", "1"]
    done = subprocess.run(
        [*command, "--output", tmp_path / "mutation.json"], capture_output=True, text=True, check=False
    )
    assert done.returncode == 0 and " s)" in done.stdout, done.stderr


def test_bad_usage_is_one_message() -> None:
    for arguments, said in ((["--versions", "99"], "no such version"), (["--jobs", "0"], "--jobs 0 is out of range")):
        done = subprocess.run(
            [sys.executable, ROOT / "scripts" / "mutate.py", *arguments], capture_output=True, text=True, check=False
        )
        assert done.returncode == 2 and said in done.stderr
