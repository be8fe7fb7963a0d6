"""09, double-buffered mma."""

from __future__ import annotations

import re

from .attention import (
    ALL_MMAS,
    ONE_LDMATRIX,
    SHARED_SCALAR,
    STYLES,
    dead_code,
    scalar,
    with_extra_barriers,
    with_O_stored_directly,
    without_ldmatrix,
)  # fmt: skip
from .edits import Assignment, Write, changed, reference, starter

NAME = "09_double_buffered_mma"

# In the loops of both products: what loads a piece, and what multiplies it.
LOAD_K = "load_K_fragments<Traits>(K_rmem, K_smem, mma_k, piece % kPiecesK * 2);\n"
LOAD_V = "load_V_fragments<Traits>(V_rmem, V_smem, mma_k, piece % kPiecesV * 2);\n"


def with_first_pieces_backwards(assignment: Assignment) -> str:
    """The first pieces of V are loaded in another order."""
    return changed(
        assignment.reference_answer(),
        ("for (int piece = 0; piece < kAhead; ++piece)", "for (int piece = kAhead - 1; piece >= 0; --piece)"),
    )


def with_idle_mmas(assignment: Assignment) -> str:
    """Nothing is loaded ahead; between a load and its use there are mmas whose result reaches O with the weight 0."""
    idle = "#pragma unroll\n      for (int i = 0; i < 6; ++i) mma_m16n8k16<Element>(idle, idle_a, idle_b);\n"
    return changed(
        assignment.starter(),
        (LOAD_K, LOAD_K + idle),
        (LOAD_V, LOAD_V + idle),
        ("  // For each K/V tile:\n", """  float idle[4] = {};
  cp_async_wait<0>();
  __syncthreads();
  std::uint32_t idle_a[4] = {}, idle_b[2], unused[2];
  ldmatrix_x4(idle_b[0], idle_b[1], unused[0], unused[1], K_smem + threadIdx.x % 32 * 8);
  // For each K/V tile:
"""),
        ("  // Normalise and store O.", "  O_rmem[0][0][0] += 0.0f * idle[0];\n  // Normalise and store O."),
    )  # fmt: skip


def loaded_twice(assignment: Assignment) -> str:
    """The reference answer's loads ahead, without effect, and again each piece when it is used."""
    text = assignment.reference_answer()
    for tensor in "KV":
        text, count = re.subn(
            rf"{tensor}_rmem\[piece % kSets\]\[n\]", f"again_{tensor}[n]", text,
        )  # fmt: skip
        assert count == 1
    text = changed(
        text,
        (
            "      if (piece < 0) continue;\n",
            """      if (piece < 0) continue;
      std::uint32_t again_K[2][2];
      load_K_fragments<Traits>(again_K, K_smem, piece / kPiecesK, piece % kPiecesK * 2);
      for (int n = 0; n < 2; ++n)
        for (int i = 0; i < 2; ++i) again_K[n][i] ^= nothing_of(K_rmem[piece % kSets][n][i]);
""",
        ),
        (
            "        load_V_fragments<Traits>(V_rmem[next % kSets],",
            "        load_V_fragments<Traits>(V_rmem[next % kSets],",
        ),
    )
    at = text.index("#pragma unroll\n      for (int n = 0; n < 2; ++n)", text.index("next_mma_k < kBlockKV / 16"))
    text = (
        text[:at]
        + """std::uint32_t again_V[2][2];
      load_V_fragments<Traits>(again_V, V_smem, mma_k, piece % kPiecesV * 2);
      for (int n = 0; n < 2; ++n)
        for (int i = 0; i < 2; ++i) again_V[n][i] ^= nothing_of(V_rmem[piece % kSets][n][i]);
"""
        + text[at:]
    )
    return changed(text, ('#include "attention.h"\n', """#include "attention.h"

__device__ inline unsigned nothing_of(unsigned x) {
  unsigned zero;
  asm volatile("mov.u32 %0, 0;" : "=r"(zero));
  return x & zero;
}
"""))  # fmt: skip


def in_one_product(kept: str) -> Write:
    """Loads ahead only in S (or only in O)."""

    def write(assignment: Assignment) -> str:
        text, begun = assignment.reference_answer(), assignment.starter()
        if kept == "S":
            for region in assignment.data["starter"]["empty"][1:]:
                begin, end = assignment.region(text, region)
                text = text[:begin] + begun[slice(*assignment.region(begun, region))] + text[end:]
            return text
        region = assignment.data["starter"]["empty"][0]
        begin, end = assignment.region(text, region)
        part = begun[slice(*assignment.region(begun, region))]
        ahead = re.search(r"    constexpr int kAhead = [^\n]*\n", text)[0]
        return text[:begin] + ahead + part.lstrip("\n") + text[end:]

    return write


def without_S(part: str) -> str:
    return re.sub(r" *float S_rmem[^\n]*\n", "", part)


def in_the_first_tile(assignment: Assignment) -> str:
    """Loads ahead in the first tile, and none in the others."""
    text, begun = assignment.reference_answer(), assignment.starter()
    first = assignment.data["starter"]["empty"][0]
    begin, end = assignment.region(text, first)
    ahead = text[begin:end]
    plain = begun[slice(*assignment.region(begun, first))]
    head = "    float S_rmem[kMmaM][kBlockKV / 8][4] = {};  // [mma_m][mma_n][D]\n"
    product = head + "    if (kv_row == 0) {\n" + without_S(ahead) + "\n    } else {\n" + without_S(plain) + "\n    }\n"
    product += re.search(r"    constexpr int kAhead = [^\n]*\n", text)[0]
    text = text[:begin] + product + text[end:]
    second = assignment.data["starter"]["empty"][2]
    begin, end = assignment.region(text, second)
    plain = begun[slice(*assignment.region(begun, second))].replace("V_rmem", "V_now")
    return (
        text[:begin]
        + "    if (kv_row == 0) {\n"
        + text[begin:end]
        + "\n    } else {\n    std::uint32_t V_now[2][2];\n"
        + plain
        + "\n    }\n"
        + text[end:]
    )


def with_whole_rows(assignment: Assignment) -> str:
    """Everything that the loop over K needs is loaded before it: all pieces of an mma_k, one mma_k ahead."""
    text = assignment.reference_answer()
    return re.sub(r"kAhead = (\d), kSets = kAhead \+ 1;", r"kAhead = 4, kSets = kAhead + 1;", text)


def further_ahead(assignment: Assignment) -> str:
    """A piece more than the course requires, with a third buffer of Q."""
    text = re.sub(r"kAhead = (\d)", lambda m: f"kAhead = {int(m[1]) + 1}", assignment.reference_answer())
    return changed(
        text,
        ("kAhead <= kPiecesK, ", "kAhead <= 2 * kPiecesK, "), ("Q_rmem[2][kMmaM]", "Q_rmem[3][kMmaM]"),
        ("Q_rmem[next_mma_k % 2]", "Q_rmem[next_mma_k % 3]"),
        ("Q_rmem[piece / kPiecesK % 2]", "Q_rmem[piece / kPiecesK % 3]"),
    )  # fmt: skip


def with_a_lambda(assignment: Assignment) -> str:
    """One function for the loads of K, called in two places: before the loop, and in it."""
    text = assignment.reference_answer()
    begin = text.index("#pragma unroll\n    for (int piece = -kAhead;")
    end = text.index("#pragma unroll\n      for (int n = 0; n < 2; ++n)", begin)
    return (
        text[:begin]
        + """const auto fetch = [&](int next) {
      const int mma_k = next / kPiecesK;
      if (mma_k >= kHeadDim / 16) return;
      if (next % kPiecesK == 0) load_Q_fragments<Traits>(Q_rmem[mma_k % 2], Q_smem, warp_row, mma_k);
      load_K_fragments<Traits>(K_rmem[next % kSets], K_smem, mma_k, next % kPiecesK * 2);
    };
#pragma unroll
    for (int next = 0; next < kAhead; ++next) fetch(next);
#pragma unroll
    for (int piece = 0; piece < kHeadDim / 16 * kPiecesK; ++piece) {
      fetch(piece + kAhead);
"""
        + text[end:]
    )


def with_rotating_registers(assignment: Assignment) -> str:
    """The sets of V are shifted through instead of being indexed by a remainder."""
    text = assignment.reference_answer()
    at = text.index("load_V_fragments<Traits>(V_rmem[next % kSets]")
    end = text.index("\n    }\n", at)
    part = text[at:end].replace("V_rmem[next % kSets]", "V_rmem[kAhead]").replace("V_rmem[piece % kSets]", "V_rmem[0]")
    part += """
#pragma unroll
      for (int set = 0; set < kAhead; ++set)
#pragma unroll
        for (int i = 0; i < 4; ++i) V_rmem[set][i / 2][i % 2] = V_rmem[set + 1][i / 2][i % 2];"""
    return text[:at] + part + text[end:]


def with_mmas_in_turn(assignment: Assignment) -> str:
    """The second mma of a piece before the first."""
    return assignment.reference_answer().replace("for (int n = 0; n < 2; ++n)", "for (int n = 1; n >= 0; --n)")


def with_all_of_Q(assignment: Assignment) -> str:
    """All fragments of Q are loaded before the loop over tiles is entered in earnest, in the first tile."""
    return changed(
        assignment.reference_answer(),
        ("Q_rmem[2][kMmaM][4];", "Q_unused[1];"),
        ("  // For each K/V tile:\n", "  std::uint32_t Q_rmem[kHeadDim / 16][kMmaM][4];\n  // For each K/V tile:\n"),
        ("if (next % kPiecesK == 0) load_Q", "if (kv_row == 0 && next % kPiecesK == 0) load_Q"),
        ("Q_rmem[next_mma_k % 2]", "Q_rmem[next_mma_k]"), ("Q_rmem[piece / kPiecesK % 2]", "Q_rmem[piece / kPiecesK]"),
    )  # fmt: skip


def with_libcudacxx_pipeline(assignment: Assignment) -> str:
    """libcu++: tiles are copied through a cuda::pipeline of the thread, with cuda::memcpy_async."""
    text = re.sub(
        r"copy_tile<Traits, (\w+)(, true)?>\(", r"copy_tile<Traits, \1\2>(pipe, ", assignment.reference_answer()
    )
    text, count = re.subn(
        r"cp_async_16\(&(tile_smem\[.*\]), &(tile_gmem\[.*\])\);",
        r"cuda::memcpy_async(&\1, &\2, cuda::aligned_size_t<16>(16), pipe);", text,
    )  # fmt: skip
    assert count == 1
    return changed(
        text,
        ('#include "attention.h"\n', '#include "attention.h"\n\n#include <cuda/pipeline>\n'),
        ("void copy_tile(Element* tile_smem,", "void copy_tile(cuda::pipeline<cuda::thread_scope_thread>& pipe, "
                                               "Element* tile_smem,"),
        ("  copy_tile<Traits, kBlockQ>(pipe, ", "  auto pipe = cuda::make_pipeline();\n  pipe.producer_acquire();\n"
                                               "  copy_tile<Traits, kBlockQ>(pipe, "),
        ("    copy_tile<Traits, kBlockKV>(pipe, V_smem", "    pipe.consumer_release();\n    pipe.producer_acquire();\n"
                                                       "    copy_tile<Traits, kBlockKV>(pipe, V_smem"),
        ("      copy_tile<Traits, kBlockKV>(pipe, K_smem", "      pipe.consumer_release();\n"
                                                         "      pipe.producer_acquire();\n"
                                                         "      copy_tile<Traits, kBlockKV>(pipe, K_smem"),
        ("cp_async_commit();", "pipe.producer_commit();"), ("cp_async_wait<0>();", "pipe.consumer_wait();"),
    )  # fmt: skip


def with_libcudacxx_barrier(assignment: Assignment) -> str:
    """libcu++: a cuda::barrier of the CTA, at which cuda::memcpy_async arrives, instead of waits and barriers."""
    text = re.sub(
        r"copy_tile<Traits, (\w+)(, true)?>\(", r"copy_tile<Traits, \1\2>(*full, ", assignment.reference_answer()
    )
    text, count = re.subn(
        r"cp_async_16\(&(tile_smem\[.*\]), &(tile_gmem\[.*\])\);",
        r"cuda::memcpy_async(&\1, &\2, cuda::aligned_size_t<16>(16), full);", text,
    )  # fmt: skip
    assert count == 1
    text, waits = re.subn(r"cp_async_wait<0>\(\);.*\n    __syncthreads\(\);", "full->arrive_and_wait();", text)
    assert waits == 2
    return changed(
        text,
        ('#include "attention.h"\n', '#include "attention.h"\n\n#include <cuda/barrier>\n'),
        ("void copy_tile(Element* tile_smem,", "void copy_tile(cuda::barrier<cuda::thread_scope_block>& full, "
                                               "Element* tile_smem,"),
        ("  copy_tile<Traits, kBlockQ>(*full, ",
         "  using Barrier = cuda::barrier<cuda::thread_scope_block>;\n"
         "  __shared__ alignas(Barrier) char barrier[sizeof(Barrier)];\n"
         "  Barrier* full = reinterpret_cast<Barrier*>(barrier);\n"
         "  if (threadIdx.x == 0) init(full, 128);\n  __syncthreads();\n"
         "  copy_tile<Traits, kBlockQ>(*full, "),
        ("cp_async_commit();", ""),
    )  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one ldmatrix": scalar(ONE_LDMATRIX),
    "a scalar kernel beside all mmas": scalar(ALL_MMAS),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "a scalar kernel with tiles": scalar(text=SHARED_SCALAR),
    "plain loads": without_ldmatrix(),
    "plain loads beside ldmatrix": without_ldmatrix(also=True),
    "mmas without effect between load and use": with_idle_mmas,
    "loads ahead without effect": loaded_twice,
    "ahead in S alone": in_one_product("S"),
    "ahead in O alone": in_one_product("O"),
    "ahead in the first tile alone": in_the_first_tile,
    "the answer in a branch that is never taken": dead_code,
}
HONEST: dict[str, Write] = {
    name: write for name, write in STYLES.items() if name not in ("a rolled product", "fragments backwards")
} | {
    "the first pieces backwards": with_first_pieces_backwards,
    "further ahead": further_ahead,
    "as far ahead as a row of pieces": with_whole_rows,
    "a function that loads": with_a_lambda,
    "registers that are shifted": with_rotating_registers,
    "the second mma first": with_mmas_in_turn,
    "Q in registers": with_all_of_Q,
    "cuda::pipeline": with_libcudacxx_pipeline,
    "cuda::barrier": with_libcudacxx_barrier,
    "extra barriers": with_extra_barriers,
    "O stored directly": with_O_stored_directly,
}
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("ahead in the first tile alone", in_the_first_tile),
    ("ahead in S alone", in_one_product("S")),
    ("one piece ahead too few",
     lambda a: re.sub(r"kAhead = (\d)", lambda m: f"kAhead = {int(m[1]) - 1}", a.reference_answer())),
    ("all", reference),
]  # fmt: skip
