"""The planted bugs of chapters 17 to 27: text of the kernel, and what an exercise tells a reader to write instead.

What comes of it the chapter says; planted_faults.py has those that the virtual GPU is tested with.
"""

from __future__ import annotations

from planted_faults import Fault

CHAPTER_FAULTS = [
    Fault(
        "K goes on by 64 bytes where Q goes on by 32",
        "hopper/17_wgmma",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 32)",
        "advance(K, mma_k / 4 * Traits::kBlockKV * 128 + mma_k % 4 * 64)",
    ),
    Fault(
        "more bytes are promised than come",
        "hopper/18_tma",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element));",
        "mbarrier_arrive_expect_tx(&full[stage], kKVSize * sizeof(Element) + 16);",
    ),
    Fault(
        "empty counts threads, and warps arrive",
        "hopper/19_warp_specialized",
        "mbarrier_init(&K_empty[stage], 4);",
        "mbarrier_init(&K_empty[stage], 128);",
    ),
    Fault(
        "both consumers read the same queries",
        "hopper/20_two_consumers",
        "start_S<Traits>(S_rmem, Q_smem + warpgroup_row * kHeadDim, K_smem + K_next.buffer * kKVSize);",
        "start_S<Traits>(S_rmem, Q_smem, K_smem + K_next.buffer * kKVSize);",
    ),
    Fault(
        "a query tile is taken for that of another head",
        "hopper/21_persistent",
        "return q_tile / q_tiles_per_head % args.heads;",
        "return q_tile % args.heads;",
    ),
    Fault(
        "O is not swizzled",
        "hopper/22_tma_store",
        "row * 64 + ((col / 8) ^ row) % 8 * 8 + col % 8;",
        "row * 64 + col / 8 % 8 * 8 + col % 8;",
    ),
    Fault(
        "V is a tile ahead of P",
        "hopper/23_overlap",
        "copy_V(q_tile, kv_tile - 1);",
        "copy_V(q_tile, kv_tile);",
    ),
    Fault(
        "O is not rescaled when the maximum moves",
        "hopper/24_lazy_rescale",
        "        scale_rows<Traits>(O_rmem, rescale);",
        "",
    ),
    Fault(
        "a first sum may be as large as it likes",
        "hopper/25_first_guess",
        "(new_sum[0] >= least) & (new_sum[0] < 4096) & (new_sum[1] >= least) & (new_sum[1] < 4096);",
        "(new_sum[0] >= least) & (new_sum[1] >= least);",
    ),
    Fault(
        "nobody has the first turn",
        "hopper/26_ping_pong",
        "if (next_turn == 4) named_barrier_arrive(next_turn, 256);",
        "",
    ),
    Fault(
        "one key too many is left unmasked",
        "hopper/27_three_consumers",
        ">= args.seq_len_kv % kBlockKV)",
        "> args.seq_len_kv % kBlockKV)",
    ),
]


def planted(fault: Fault, text: str) -> str:
    """The kernel's text with the fault. Raises ValueError where the kernel has changed."""
    if (count := text.count(fault.old)) != 1:
        raise ValueError(f"{fault.kernel} has {count} times {fault.old!r}, and '{fault.name}' replaces it")
    return text.replace(fault.old, fault.new)
