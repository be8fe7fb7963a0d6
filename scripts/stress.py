#!/usr/bin/env python3
"""Checks every version, in all configurations and types, on problems that the harness's own check does not reach.

  first     on a GPU, the whole check (harness/worker/check_sets.cpp): its inputs, one and many K/V tiles, strides of
            all kinds; on the virtual GPU, that is what harness --record does
  then      heads 1, 3 and 40; batch 1 and 5; one, two and an odd number of K/V tiles; keys fewer and more than queries
            100 launches that must agree bit for bit (3 on the virtual GPU, which executes in the same order every
            time); on a GPU also a problem that fills it, and one of 1,080 query tiles, several of which go to every
            CTA of a persistent version, with one K/V tile and with five
            of a version that solves any length: 1 row or key, and numbers of them next to multiples of the tiles; if it
            solves causal problems, the same with the mask, and with the data below and several query tiles
            of a version that solves grouped heads: 1, 2 and 3 heads of K and V for 6 of Q, also causal
            of a version for few queries: caches of all lengths around whole tiles, also in pages, in 8 bits, with new
            tokens, and 1 to 8 queries
            of a version that solves windows: widths next to multiples of the tiles, on one side and on both
            of an extension: problems with all the fields that it solves, drawn from a seed
            batch 70,000 and heads 70,000: right, or refused with the limit
            the data of harness --data, only a few of which are in the first part
            30 heads of adversarial scores, drawn from seed 0: docs/numerics.md
            the virtual GPU has 3 SMs (FLASH_LADDER_SM_COUNT): persistent CTAs process several query tiles there, too
  --fuzz N  instead of these: adversarial scores drawn from seeds 0 to N - 1
  --random N  instead of these: N problems of each extension, drawn from seeds 0 to N - 1
  --large   instead of these: Q and O, then K and V, of more than 4 GiB (GPU; fp16, the preferred configurations). K and
            V have many heads rather than a million keys, over which fp32 sums lose more accuracy than the check allows
            in every version

Needs a GPU, or --device emulator. For compute-sanitizer's tools, see scripts/sanitize.py. Exit status: 0 all right, 1
something is wrong, 2 bad usage, 3 a device or program is missing.
"""

from __future__ import annotations

import argparse
import os
import random
import sys
import tempfile
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field, replace
from math import lcm
from pathlib import Path
from typing import Any

from ladder import HEAD_DIM
from worker_request import Configuration, add_arguments, ask_worker, configurations

DTYPES = ("fp16", "bf16", "e4m3")
# The data of harness/problem/distribution.h that no check uses. The three heads of "trained" are of its three kinds.
DATA = ("q-times-3", "q-times-6", "sink", "rising", "falling", "steps", "zeros", "equal-keys", "trained")
# What a version has to solve for a field, where the two have different names.
SOLVED_AS = {"page_size": "paged", "window_left": "window", "window_right": "window", "lengths_kv": "lengths"}
SOLVED_AS |= {"softcap": "scores", "alibi": "scores", "sinks": "scores"}
SOLVED_AS |= {"rotary_dim": "rotary", "rotary_interleaved": "rotary"}
SOLVED_AS |= {"dropout_p": "dropout", "dropout_seed": "dropout", "dropout_offset": "dropout"}
RANDOM_ON_GPU, RANDOM = 40, 6
BEYOND_A_GRID = 70_000  # CUDA's limit is 65,535 in y and z
# SMs of the virtual GPU: few enough that a CTA of 15 and 16 takes several query tiles, and that CTAs take different
# numbers of them.
VIRTUAL_SM_COUNT = "3"
# Those that are tried there, because a problem takes seconds. 96 has a swizzle of its own.
VIRTUAL_HEAD_DIMS = ((96, 96), (128, 128), (192, 128))
TIMEOUT_SECONDS = 600.0
# More rows of 16 heads than fit in 4 GiB, in whole tiles of every size so far.
ROWS_OF_4_GIB = (1 << 32) // (16 * HEAD_DIM * 2) + 256
# More heads than fit in 4 GiB with this many keys, so that the last tile of every head is entirely beyond.
KEYS_OF_MANY_HEADS = 4096
HEADS_OF_4_GIB = (1 << 32) // (KEYS_OF_MANY_HEADS * HEAD_DIM * 2) + 256


@dataclass(frozen=True)
class Case:
    """A problem for one configuration."""

    name: str
    configuration: Configuration
    problem: dict[str, Any]
    request: dict[str, Any] = field(default_factory=dict)
    may_be_refused: bool = False

    def __str__(self) -> str:
        sizes = ", ".join(f"{size} {self.problem[size]}" for size in ("batch", "heads", "seq_len", "seq_len_kv"))
        return f"{self.configuration}: {self.name} ({sizes})"


def case(
    name: str, c: Configuration, sizes: tuple[int, int, int, int], may_be_refused: bool = False, **request: object
) -> Case:
    """`sizes` are batch, heads, seq_len and seq_len_kv. Only this problem is checked, unless requested otherwise."""
    problem = dict(zip(("batch", "heads", "seq_len", "seq_len_kv"), sizes, strict=True))
    problem |= {"head_dim": c.head_dim, "dtype": c.dtype}
    if c.head_dim_v != c.head_dim:
        problem["head_dim_v"] = c.head_dim_v
    if c.most_queries:
        problem["seq_len"] = min(problem["seq_len"], c.most_queries)
    return Case(name, c, problem, {"only_requested_problem": True} | request, may_be_refused)


def with_fields(one: Case, **fields: object) -> Case:
    named = ", ".join(f"{name} {value}" for name, value in fields.items())
    return replace(one, name=f"{one.name}, {named}", problem=one.problem | fields)


def cases(c: Configuration, on_gpu: bool) -> list[Case]:
    q, kv = c.block_q, c.block_kv
    launches, whole = (100, "the whole check, ") if on_gpu else (3, "")
    found = [
        case(f"{whole}two tiles", c, (5, 3, 2 * q, 2 * kv), only_requested_problem=not on_gpu),
        case("one tile", c, (1, 1, q, kv)),
        case("an odd number of tiles, 40 heads", c, (1, 40, q, 3 * kv)),
        case("more queries than keys", c, (5, 1, 3 * q, kv)),
        case(f"{launches} launches", c, (2, 3, 2 * q, 5 * kv), launches=launches),
        *(case(f"{data} data", c, (1, 3, q, 5 * kv), data=data) for data in DATA),
        fuzz_case(c, seed=0),
        case("batch beyond a grid", c, (BEYOND_A_GRID, 1, q, kv), may_be_refused=True),
        case("heads beyond a grid", c, (1, BEYOND_A_GRID, q, kv), may_be_refused=True),
    ]
    if "any_length" in c.solves:
        found += any_length_cases(c)
    if {"any_length", "causal"} <= c.solves:
        found += [
            replace(one, name=f"{one.name}, causal", problem=one.problem | {"causal": True})
            for one in any_length_cases(c) + causal_cases(c)
        ]
    if "kv_heads" in c.solves:
        for kv_heads in (1, 2, 3):
            grouped = case(f"6 heads of Q and {kv_heads} of K and V", c, (2, 6, 2 * q, 2 * q))
            found.append(replace(grouped, problem=grouped.problem | {"kv_heads": kv_heads}))
            if "causal" in c.solves:
                problem = found[-1].problem | {"causal": True}
                found.append(replace(grouped, name=f"{grouped.name}, causal", problem=problem))
    if "window" in c.solves:
        found += window_cases(c)
    if c.most_queries:
        found += decoding_cases(c)
    found += [random_case(c, seed) for seed in range(RANDOM_ON_GPU if on_gpu else RANDOM) if c.solves]
    if on_gpu:  # on all SMs, so that CTAs run at the same time; 01 to 03 would take too long for more
        found.append(case(f"{launches} launches that fill the GPU", c, (2, 16, 1024, 1024), launches=launches))
        # Several query tiles for every CTA of a persistent version: four if an H200 runs two CTAs on each of its 132
        # SMs. With five K/V tiles, each query tile starts at a different stage of a ring of two or three than the one
        # before.
        for name, sizes in (("one K/V tile each", (27, 40, q, kv)), ("five K/V tiles each", (9, 40, 3 * q, 5 * kv))):
            found.append(case(f"{launches} launches of 1,080 query tiles, {name}", c, sizes, launches=launches))
    return found


def any_length_cases(c: Configuration) -> list[Case]:
    """Several batch entries, more queries than keys and fewer; each number of keys of a last step occurs."""
    q, kv = c.block_q, c.block_kv
    lengths = [(1, 1), (1, 3 * kv + 1), (3 * q + 1, 1), (q - 1, kv - 1), (q + 1, kv + 1), (2 * q - 1, 4 * kv + 1)]
    lengths += [(17 * i + 1, kv + i) for i in range(2, 17)]
    return [case("any length", c, (2, 3, max(rows, 1), max(keys, 1))) for rows, keys in lengths]


def causal_cases(c: Configuration) -> list[Case]:
    """Several query tiles of an odd number of heads, whose rows see all kinds of numbers of keys, and all data."""
    rows = 3 * c.block_q
    return [
        case("query tiles of several lengths", c, (1, 5, rows, rows)),
        case("query tiles of several lengths, rows that see no key", c, (1, 3, rows + 65, rows - 1)),
        *(case(f"{data} data", c, (1, 3, rows, rows), data=data) for data in DATA),
        case("adversarial scores", c, (1, 30, c.block_q, 3 * max(c.block_kv, 32)), data="adversarial", seed=0),
    ]


def window_cases(c: Configuration) -> list[Case]:
    """Several query tiles, with windows that begin and end next to the ends of tiles."""
    q, kv = c.block_q, c.block_kv
    rows = max(3 * q // lcm(q, kv), 1) * lcm(q, kv)
    sides = [(kv, -1), (kv + 1, -1), (2 * kv, q), (-1, 1), (-1, kv - 1), (kv - 1, kv + 1), (1, 3), (q, q - 1)]
    one = case("a window", c, (2, 3, rows, rows))
    found = [with_fields(one, window_left=left, window_right=right) for left, right in sides]
    if "causal" in c.solves:
        found += [with_fields(one, causal=True, window_left=left) for left in (0, 1, kv, rows // 2)]
    return found


def decoding_cases(c: Configuration) -> list[Case]:
    """Caches of all lengths around whole tiles, and long ones that many CTAs share, next to short ones."""
    kv = c.block_kv
    lengths = sorted({max(tiles * kv + more, 0) for tiles in (0, 1, 2, 7) for more in (-1, 0, 1)})
    one = case("caches of all lengths", c, (len(lengths), 8, 1, 8 * kv))
    long = case("a long cache beside short ones", c, (4, 8, 1, 5000))
    found = [with_fields(one, kv_heads=kv_heads, lengths_kv=lengths) for kv_heads in (1, 2, 8)]
    found += [with_fields(long, kv_heads=2, lengths_kv=[5000, 1, 0, 4097])]
    if "paged" in c.solves:  # pages of one tile and of several, and one that is larger than the cache
        found += [with_fields(one, page_size=size) for one in tuple(found) for size in (16, 64, 8192)]
    if "append" in c.solves:  # the first key of a sequence, of a tile and of a page, and the last one
        appended = with_fields(one, kv_heads=2, lengths_kv=[max(length, 1) for length in lengths], append=True)
        found += [appended, with_fields(long, kv_heads=2, lengths_kv=[5000, 1, 2, 4097], append=True)]
        found += [with_fields(appended, page_size=size) for size in (16, 64)]
    if "rotary" in c.solves:
        turned = [{"rotary_dim": dim} for dim in range(16, c.head_dim + 1, 16)]
        turned += [fields | {"rotary_interleaved": True} for fields in turned]
        found += [with_fields(appended, **fields) for fields in turned]
    if "fp8_cache" in c.solves:
        found += [with_fields(one, fp8_cache=True) for one in tuple(found) if "append" not in one.problem]
    found += [
        with_fields(case(f"{queries} queries", c, (2, 6, queries, 3 * kv + 1)), kv_heads=2)
        for queries in range(1, c.most_queries + 1)
    ]
    if "causal" in c.solves:
        found += [with_fields(one, causal=True) for one in tuple(found[-c.most_queries :])]
    return found


def random_case(c: Configuration, seed: int) -> Case:
    """A problem with the fields that the version solves. Each field is left out in some of them."""
    # The same problems for every configuration with the same tiles; random.Random takes text, too.
    draw = random.Random(f"{seed} of {c.block_q}x{c.block_kv}")

    def length(tile: int) -> int:
        whole = tile * draw.randint(1, 4)
        if "any_length" not in c.solves:
            return whole
        return max(1, whole + draw.choice([-tile + 1, -1, 0, 1, draw.randint(1 - tile, tile)]))

    heads = draw.choice([1, 2, 3, 4, 6])
    batch, queries, keys = draw.randint(1, 3), length(c.block_q), length(c.block_kv)
    if c.most_queries:
        queries = draw.randint(1, c.most_queries)
    queries = min(queries, c.most_queries or queries)
    if draw.random() < 0.3 and (queries % c.block_kv == 0 or "any_length" in c.solves):
        keys = queries
    fields: dict[str, Any] = {"causal": True} if draw.random() < 0.4 else {}
    if draw.random() < 0.5:
        fields["kv_heads"] = draw.choice([n for n in range(1, heads + 1) if heads % n == 0])
    for side in ("window_left", "window_right"):
        if draw.random() < 0.5:
            fields[side] = draw.choice([draw.randint(1, 2 * c.block_kv), draw.randint(1, keys), 1])
    for name, size in (("lengths", queries), ("lengths_kv", keys)):
        if draw.random() < 0.5:
            fields[name] = [
                draw.choice([0, 1, size, draw.randint(0, size), draw.randint(0, size)]) for _ in range(batch)
            ]
    if draw.random() < 0.3:
        fields["softcap"] = draw.choice([0.5, 5.0, 50.0])
    for name in ("alibi", "sinks"):
        if draw.random() < 0.3:
            fields[name] = True
    if "dropout" in c.solves and draw.random() < 0.5:  # only these versions, so that the others' problems remain
        fields["dropout_p"] = draw.choice([0.1, 0.5, draw.random() * 0.99])
        fields["dropout_seed"], fields["dropout_offset"] = draw.randrange(1 << 63), draw.randrange(1 << 32)
    if "paged" in c.solves and draw.random() < 0.7:
        fields["page_size"] = draw.choice([16, 32, 64, 256])
    if "append" in c.solves and draw.random() < 0.5:
        fields |= {"append": True, "lengths": [], "causal": False}
        fields["lengths_kv"] = [draw.choice([1, keys, draw.randint(1, keys)]) for _ in range(batch)]
        if draw.random() < 0.7:
            fields["rotary_dim"] = 16 * draw.randint(1, c.head_dim // 16)
            fields["rotary_interleaved"] = draw.random() < 0.5
    if "fp8_cache" in c.solves and "append" not in fields and draw.random() < 0.5:
        fields["fp8_cache"] = True
    if draw.random() < 0.5 and "packed" in c.solves:
        entries = draw.randint(1, 9)
        for name, size in (("lengths", queries), ("lengths_kv", keys)):
            drawn = [draw.choice([0, 1, size, draw.randint(0, size), draw.randint(0, size)]) for _ in range(entries)]
            fields[name] = [size, *drawn]  # so that there is a row
        solved = {name: value for name, value in fields.items() if SOLVED_AS.get(name, name) in c.solves}
        solved |= {"packed": True, "lengths": fields["lengths"], "lengths_kv": fields["lengths_kv"]}
        return with_fields(case(f"random, seed {seed}", c, (entries + 1, heads, queries, keys)), **solved)
    solved = {name: value for name, value in fields.items() if SOLVED_AS.get(name, name) in c.solves}
    return with_fields(case(f"random, seed {seed}", c, (batch, heads, queries, keys)), **solved)


def fuzz_case(c: Configuration, seed: int) -> Case:
    """The individually designed heads, and enough drawn ones to make 30. Odd seeds use more tiles."""
    tiles = 5 if seed % 2 else 3
    sizes = (1, 30, c.block_q, tiles * max(c.block_kv, 32))
    return case(f"adversarial scores, seed {seed}", c, sizes, data="adversarial", seed=seed)


def large_cases(c: Configuration) -> list[Case]:
    def whole(rows: int, tile: int) -> int:
        return -(-rows // tile) * tile

    return [
        case("Q and O beyond 4 GiB", c, (1, 16, whole(ROWS_OF_4_GIB, c.block_q), whole(128, c.block_kv))),
        case(
            "K and V beyond 4 GiB",
            c,
            (1, HEADS_OF_4_GIB, whole(128, c.block_q), whole(KEYS_OF_MANY_HEADS, c.block_kv)),
        ),
    ]


def run(worker: Path, case: Case, references: str) -> str:
    """What is wrong; empty if nothing is."""
    request = {"command": "run", "benchmark": False, "kernel": case.configuration.kernel}
    request |= {"config": case.configuration.config, "problem": case.problem, "reference_cache": references}
    answer = ask_worker(worker, request | case.request, TIMEOUT_SECONDS)
    if answer["event"] == "error":
        limit_named = answer["kind"] == "usage" and "65535" in answer["message"]
        return "" if case.may_be_refused and limit_named else answer["message"]
    result = answer["result"]
    if result["status"] == "ok" and result["correct"] is True:
        return ""
    return result["reason"] or f"status {result['status']}, correct {result['correct']}"


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    add_arguments(parser)
    parser.add_argument("--device", choices=("gpu", "emulator"), default="gpu", help="(%(default)s)")
    parser.add_argument("--large", action="store_true", help="tensors of more than 4 GiB; takes 30 GB of memory a job")
    parser.add_argument("--fuzz", type=int, metavar="N", help="only adversarial scores, drawn from N seeds")
    parser.add_argument("--random", type=int, metavar="N", help="only problems of extensions, drawn from N seeds")
    parser.add_argument("--dtype", choices=DTYPES, action="append", help="check only this type; may be repeated (all)")
    parser.add_argument(
        "--jobs",
        type=int,
        metavar="N",
        help="number of problems checked at a time (8; 2 for --large and the virtual GPU)",
    )
    parser.add_argument("--worker", help="worker program in the build folder (the device's)")
    arguments = parser.parse_args()
    on_gpu = arguments.device == "gpu"
    if arguments.large and not on_gpu:
        parser.error("--large cannot be combined with --device emulator, which would take hours; leave one out")
    if arguments.large and arguments.dtype:
        parser.error("--large cannot be combined with --dtype, because it checks only fp16; leave one out")
    for flag in ("fuzz", "random"):
        number = getattr(arguments, flag)
        if number is not None and number < 1:
            parser.error(f"--{flag} {number} is out of range; give 1 or more")
    replacing = [flag for flag in ("fuzz", "random", "large") if getattr(arguments, flag) not in (None, False)]
    if len(replacing) > 1:
        parser.error(
            f"--{replacing[0]} cannot be combined with --{replacing[1]}, because each replaces the other problems; "
            "leave one out"
        )
    if arguments.jobs is not None and arguments.jobs < 1:
        parser.error(f"--jobs {arguments.jobs} is out of range; give 1 or more")
    jobs = arguments.jobs or min(os.cpu_count() or 1, 8 if on_gpu and not arguments.large else 2)
    worker = arguments.worker or f"harness-worker-{arguments.device}"
    os.environ.setdefault("FLASH_LADDER_SM_COUNT", VIRTUAL_SM_COUNT)

    dtypes = ("fp16",) if arguments.large else tuple(arguments.dtype or DTYPES)
    found = configurations(arguments.build, arguments.kernel, dtypes, worker, every=not arguments.large)
    if not on_gpu:
        found = [one for one in found if (one.head_dim, one.head_dim_v) in VIRTUAL_HEAD_DIMS]

    def cases_of(c: Configuration) -> list[Case]:
        if arguments.fuzz is not None:
            return [fuzz_case(c, seed) for seed in range(arguments.fuzz)]
        if arguments.random is not None:
            return [random_case(c, seed) for seed in range(arguments.random) if c.solves]
        return large_cases(c) if arguments.large else cases(c, on_gpu)

    todo = [case for c in found for case in cases_of(c)]
    failures = 0
    with tempfile.TemporaryDirectory() as references, ThreadPoolExecutor(jobs) as pool:
        outcomes = pool.map(lambda case: run(arguments.build / worker, case, references), todo)
        for one, wrong in zip(todo, outcomes, strict=True):
            print(f"{one}: {'WRONG: ' + wrong if wrong else 'right'}", flush=True)
            failures += bool(wrong)
    print(f"{failures} of {len(todo)} wrong" if failures else f"{len(todo)} problems, all correct")
    return 1 if failures else 0


if __name__ == "__main__":
    sys.exit(main())
