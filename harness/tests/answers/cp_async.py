"""05, cp.async."""

from __future__ import annotations

from .attention import (
    ALL_MMAS,
    ONE_COPY,
    SHARED_SCALAR,
    STYLES,
    dead_code,
    of_another_size,
    scalar,
    scores_by_hand,
    with_O_stored_directly,
    with_Q_in_registers,
)  # fmt: skip
from .edits import Assignment, Write, changed, from_reference, reference, replaced, starter

NAME = "05_cp_async"


def without_ahead(assignment: Assignment) -> str:
    """the ring with a wait for every tile, and another wait that has no effect."""
    return changed(
        assignment.reference_answer(),
        ("cp_async_wait<kStages - 2>();", f"cp_async_wait<0>(); cp_async_wait<{assignment.values['stages'] - 2}>();"),
    )


def beside_mbarrier(assignment: Assignment) -> str:
    """the same, with copies that also arrive at an mbarrier for which nothing waits."""
    return changed(
        without_ahead(assignment),
        ("  // Copy Q. There is no commit here",
         "  __shared__ std::uint64_t unused;\n"
         "  if (threadIdx.x == 0) { mbarrier_init(&unused, 1); cp_async_mbarrier_arrive(&unused); }\n"
         "  // Copy Q. There is no commit here"),
    )  # fmt: skip


def tile_by_tile(assignment: Assignment) -> str:
    """cp.async, but each tile is requested when it is needed."""
    return changed(
        assignment.starter(),
        ("*reinterpret_cast<uint4*>(&tile_smem[smem_offset<Traits>(row, col)]) =\n"
         "        *reinterpret_cast<const uint4*>(&tile_gmem[row * row_stride + col]);",
         "cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);"),
        ("    __syncthreads();  // K, V and",
         "    cp_async_commit();\n    cp_async_wait<0>();\n    __syncthreads();  // K, V and"),
    )  # fmt: skip


def with_mbarriers(assignment: Assignment) -> str:
    """as its page proposes."""
    answer = changed(
        assignment.reference_answer(),
        ("  // Issues the copies of a tile, if there is one; its group may be empty.\n",
         "  __shared__ std::uint64_t full[Traits::kStages], empty[Traits::kStages];\n"
         "  if (threadIdx.x < Traits::kStages) {\n"
         "    mbarrier_init(&full[threadIdx.x], 128);\n"
         "    mbarrier_init(&empty[threadIdx.x], 128);\n"
         "  }\n"
         "  __syncthreads();\n"),
        ("      const int stage = tile % kStages;\n",
         "      const int stage = tile % kStages;\n"
         "      while (!mbarrier_test_wait(&empty[stage], tile / kStages % 2 ^ 1)) {}\n"),
        ("    }\n    cp_async_commit();\n", "      cp_async_mbarrier_arrive(&full[stage]);\n    }\n"),
        ("    copy_KV_tile(tile + kStages - 1);", ""),
        ("    __syncthreads();                  // and so", "    copy_KV_tile(tile + kStages - 1);  // and so"),
        ("    cp_async_wait<kStages - 2>();     // this", "    // this"),
        ("    // S = Q Kᵀ.\n",
         "    while (!mbarrier_test_wait(&full[tile % kStages], tile / kStages % 2)) {}\n    // S = Q Kᵀ.\n"),
    )  # fmt: skip
    end = answer.rindex("  }\n", 0, answer.index("\n  // Normalise and store O.") + 1)
    return answer[:end] + "    mbarrier_arrive(&empty[tile % kStages]);\n" + answer[end:]


def with_cuda_pipeline(assignment: Assignment) -> str:
    return changed(
        assignment.reference_answer(),
        ("cp_async_16(&", "__pipeline_memcpy_async(&"),
        ("tile_gmem[row * row_stride + col]);", "tile_gmem[row * row_stride + col], 16);"),
        ("cp_async_commit();", "__pipeline_commit();"),
        ("cp_async_wait<kStages - 2>();", "__pipeline_wait_prior(kStages - 2);"),
        ('#include "ptx.h"\n', '#include "ptx.h"\n\n#include <cuda_pipeline.h>\n'),
    )


def with_counted_stages(assignment: Assignment) -> str:
    """in a loop that the compiler must not unroll, with counters instead of remainders."""
    return changed(
        assignment.reference_answer(),
        ("  // For each K/V tile:\n", "  // For each K/V tile:\n  int stage_of_tile = 0;\n#pragma unroll 1\n"),
        ("K_smem + tile % kStages * kTile", "K_smem + stage_of_tile * kTile"),
        ("V_smem + tile % kStages * kTile", "V_smem + stage_of_tile * kTile"),
        ("    copy_KV_tile(tile + kStages - 1);",
         "    stage_of_tile = stage_of_tile + 1 == kStages ? 0 : stage_of_tile + 1;\n"
         "    copy_KV_tile(tile + kStages - 1);"),
    )  # fmt: skip


def with_idle_copies(assignment: Assignment) -> str:
    """Each tile is requested when it is needed; what is in flight meanwhile are copies that nobody needs, which reach O
    with the weight 0."""
    return changed(
        tile_by_tile(assignment),
        ("    cp_async_commit();\n    cp_async_wait<0>();\n",
         """    cp_async_commit();
    for (int stage = 1; stage < Traits::kStages; ++stage) {
      copy_tile<Traits, kBlockKV>(K_smem + stage * kBlockKV * kHeadDim, K_gmem, args.K.row_stride);
      copy_tile<Traits, kBlockKV>(V_smem + stage * kBlockKV * kHeadDim, V_gmem, args.V.row_stride);
    }
    cp_async_commit();
    cp_async_wait<1>();
"""),
        ("  // Normalise and store O.", """  cp_async_wait<0>();
  __syncthreads();
  float nothing = 0;
  for (int i = threadIdx.x; i < (Traits::kStages - 1) * kBlockKV * kHeadDim; i += 128)
    nothing += to_float(K_smem[kBlockKV * kHeadDim + i]) + to_float(V_smem[kBlockKV * kHeadDim + i]);
  for (int i = 0; i < kHeadDim / 2; ++i) O_rmem[0][i / 4][i % 4] += 0.0f * nothing;
  // Normalise and store O."""),
    )  # fmt: skip


def with_plain_copies_beside(assignment: Assignment) -> str:
    """The ring of the reference answer, whose tiles reach O with the weight 0: what is used comes through registers."""
    return changed(
        assignment.reference_answer(),
        ("    // S = Q Kᵀ.\n",
         """    float nothing = 0;
    for (int i = threadIdx.x; i < kTile; i += 128) nothing += to_float(K_stage[i]) + to_float(V_stage[i]);
    O_rmem[0][0][0] += 0.0f * nothing;
    __syncthreads();
    for (int i = threadIdx.x; i < kTile / 8; i += 128) {
      const int row = i / (kHeadDim / 8), col = i % (kHeadDim / 8) * 8;
      *(uint4*)&K_stage[row * kHeadDim + col] = *(const uint4*)&K_gmem[(kv_row + row) * args.K.row_stride + col];
      *(uint4*)&V_stage[row * kHeadDim + col] = *(const uint4*)&V_gmem[(kv_row + row) * args.V.row_stride + col];
    }
    __syncthreads();
    // S = Q Kᵀ.
"""),
    )  # fmt: skip


def with_two_copies(assignment: Assignment) -> str:
    """The ring, and each tile once more, with a wait, when it is used."""
    return changed(
        assignment.reference_answer(),
        ("    // S = Q Kᵀ.\n",
         """    copy_tile<Traits, kBlockKV>(const_cast<Element*>(K_stage), K_gmem + kv_row * args.K.row_stride,
                                args.K.row_stride);
    copy_tile<Traits, kBlockKV>(const_cast<Element*>(V_stage), V_gmem + kv_row * args.V.row_stride, args.V.row_stride);
    cp_async_commit();
    cp_async_wait<0>();
    __syncthreads();
    // S = Q Kᵀ.
"""),
    )  # fmt: skip


def ahead_once(assignment: Assignment) -> str:
    """Only the first tiles are requested early; from then on each is requested when it is needed."""
    return changed(
        assignment.reference_answer(),
        ("    cp_async_wait<kStages - 2>();  ", "    if (tile >= kStages - 1) { __syncthreads(); "
                                                "copy_KV_tile(tile); cp_async_wait<0>(); }\n"
         "    cp_async_wait<0>();  "),
        ("    copy_KV_tile(tile + kStages - 1);", "    "),
    )  # fmt: skip


def with_one_warp_that_copies(assignment: Assignment) -> str:
    """The ring, whose tiles the first warp copies while the others wait at the barrier."""
    return changed(
        assignment.reference_answer(),
        ("  constexpr int kNumThreads = Traits::kNumWarps * 32;\n",
         "  constexpr int kNumThreads = 32;\n  if (threadIdx.x >= kNumThreads) return;\n"),
    )  # fmt: skip


def one_tile_ahead(assignment: Assignment) -> str:
    """Two of the buffers are used."""
    return replaced((r"kStages = Traits::kStages,", "kStages = 2,"))(assignment)


def through_registers(assignment: Assignment) -> str:
    """The ring, with plain copies."""
    return changed(
        assignment.reference_answer(),
        ("cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);",
         "*reinterpret_cast<uint4*>(&tile_smem[smem_offset<Traits>(row, col)]) =\n"
         "        *reinterpret_cast<const uint4*>(&tile_gmem[row * row_stride + col]);"),
    )  # fmt: skip


def with_barriers_between(assignment: Assignment) -> str:
    """copies when they are needed, with a wait that leaves groups pending which are empty."""
    return changed(
        tile_by_tile(assignment),
        (
            "    cp_async_commit();\n    cp_async_wait<0>();",
            "    cp_async_commit();\n    cp_async_commit();\n    cp_async_commit();\n    cp_async_wait<2>();",
        ),
    )


def with_libcudacxx_pipeline(assignment: Assignment) -> str:
    """libcu++: a cuda::pipeline of the thread, and cuda::memcpy_async."""
    return changed(
        assignment.reference_answer(),
        ('#include "attention.h"\n', '#include "attention.h"\n\n#include <cuda/pipeline>\n'),
        ("void copy_tile(Element* tile_smem,", "void copy_tile(cuda::pipeline<cuda::thread_scope_thread>& pipe, "
                                               "Element* tile_smem,"),
        ("    cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);",
         "    cuda::memcpy_async(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col],\n"
         "                       cuda::aligned_size_t<16>(16), pipe);"),
        ("copy_tile<Traits, kBlockKV>(", "copy_tile<Traits, kBlockKV>(pipe, "),
        ("copy_tile<Traits, kBlockQ>(", "copy_tile<Traits, kBlockQ>(pipe, "),
        ("  // Issues the copies of a tile,", "  auto pipe = cuda::make_pipeline();\n  // Issues the copies of a "
                                              "tile,"),
        ("    const std::int64_t kv_row = tile * kBlockKV;\n", "    const std::int64_t kv_row = tile * "
                                                               "kBlockKV;\n    if (tile > 0) "
                                                               "pipe.producer_acquire();\n"),
        ("    cp_async_commit();\n  };", "    pipe.producer_commit();\n  };"),
        ("  copy_tile<Traits, kBlockQ>(pipe, ", "  pipe.producer_acquire();\n  copy_tile<Traits, kBlockQ>(pipe, "),
        ("cp_async_wait<kStages - 2>();", "cuda::pipeline_consumer_wait_prior<kStages - 2>(pipe);"),
    )  # fmt: skip


def with_libcudacxx_barriers(assignment: Assignment) -> str:
    """libcu++: a cuda::barrier for each buffer, at which cuda::memcpy_async arrives."""
    return changed(
        assignment.reference_answer(),
        ('#include "attention.h"\n', '#include "attention.h"\n\n#include <cuda/barrier>\n'),
        ("void copy_tile(Element* tile_smem,", "void copy_tile(cuda::barrier<cuda::thread_scope_block>& full, "
                                               "Element* tile_smem,"),
        ("    cp_async_16(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col]);",
         "    cuda::memcpy_async(&tile_smem[smem_offset<Traits>(row, col)], &tile_gmem[row * row_stride + col],\n"
         "                       cuda::aligned_size_t<16>(16), full);"),
        ("copy_tile<Traits, kBlockKV>(", "copy_tile<Traits, kBlockKV>(full[stage], "),
        ("copy_tile<Traits, kBlockQ>(", "copy_tile<Traits, kBlockQ>(full[0], "),
        ("  // Issues the copies of a tile,",
         "  using Barrier = cuda::barrier<cuda::thread_scope_block>;\n"
         "  __shared__ alignas(Barrier) char barriers[Traits::kStages * sizeof(Barrier)];\n"
         "  Barrier* full = reinterpret_cast<Barrier*>(barriers);\n"
         "  if (threadIdx.x < Traits::kStages) init(&full[threadIdx.x], 128);\n  __syncthreads();\n"
         "  Barrier::arrival_token token[Traits::kStages];\n"
         "  // Issues the copies of a tile,"),
        ("args.V.row_stride);\n    }\n    cp_async_commit();\n  };", "args.V.row_stride);\n      token[stage] = "
                                                                     "full[stage].arrive();\n    }\n  };"),
        ("cp_async_wait<kStages - 2>();", "full[tile % kStages].wait(std::move(token[tile % kStages]));"),
    )  # fmt: skip


def with_V_behind_K(assignment: Assignment) -> str:
    """The buffers of a stage are adjacent: K, then V."""
    return changed(
        assignment.reference_answer(),
        ("K_smem + stage * kTile", "K_smem + 2 * stage * kTile"), ("V_smem + stage * kTile",
            "K_smem + (2 * stage + 1) * kTile"),
        ("K_smem + tile % kStages * kTile", "K_smem + 2 * (tile % kStages) * kTile"),
        ("V_smem + tile % kStages * kTile", "K_smem + (2 * (tile % kStages) + 1) * kTile"),
    )  # fmt: skip


CHEATS: dict[str, Write] = {
    "a scalar kernel": scalar(),
    "a scalar kernel with one copy": scalar(ONE_COPY),
    "double precision beside all mmas": scalar(ALL_MMAS, real="double"),
    "a scalar kernel with tiles": scalar(text=SHARED_SCALAR),
    "a wait for every tile": without_ahead,
    "a wait for every tile, and an mbarrier without effect": beside_mbarrier,
    "copies when they are needed": tile_by_tile,
    "copies when they are needed, and empty groups": with_barriers_between,
    "copies when they are needed, and others in flight": with_idle_copies,
    "plain copies beside the ring": with_plain_copies_beside,
    "every tile copied twice": with_two_copies,
    "early copies of the first tiles": ahead_once,
    "one tile ahead": one_tile_ahead,
    "a ring of plain copies": through_registers,
    "scores by hand": scores_by_hand(),
    "the answer in a branch that is never taken": dead_code,
    "right for one length": of_another_size,
}
HONEST: dict[str, Write] = STYLES | {
    "mbarriers": with_mbarriers,
    "cuda_pipeline.h": with_cuda_pipeline,
    "cuda::pipeline": with_libcudacxx_pipeline,
    "cuda::barrier": with_libcudacxx_barriers,
    "a loop that is not unrolled": with_counted_stages,
    "Q in registers": with_Q_in_registers,
    "O stored directly": with_O_stored_directly,
    "V after K in each buffer": with_V_behind_K,
}
ORDERED: list[tuple[str, Write]] = [
    ("the starter", starter),
    ("copies when they are needed", tile_by_tile),
    ("a wait off by one", from_reference(("cp_async_wait<kStages - 2>();", "cp_async_wait<kStages - 1>();"))),
    ("a wait for every tile", without_ahead),
    ("a tile less in flight", from_reference(("cp_async_wait<kStages - 2>();", "cp_async_wait<kStages - 3>();"))),
    ("one warp copies", with_one_warp_that_copies),
    ("all", reference),
]
