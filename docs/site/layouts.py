"""Layouts: fragments of mma in the lanes of a warp, tiles in shared memory, and the cost of a warp's access.

The formulas are those of common/ptx.h, of smem_offset() in the kernels and of docs/virtual_gpu.md. harness/tests/
docs_chapters_test.py compares them with the counters of the virtual GPU, so that no drawing shows a different layout.
"""

from __future__ import annotations

from collections.abc import Iterable
from typing import TypeVar

T = TypeVar("T")

HEAD_DIM = 128
ELEMENT = 2  # bytes
BANKS, WORD = 32, 4
SECTOR = 32


def fragment_A(lane: int, register: int) -> list[tuple[int, int]]:
    """The two (row, k) of A [16 m][16 k] in a register, 0 to 3, of a lane; the lower half of the register first."""
    group, pair = lane // 4, lane % 4 * 2
    row, k = group + register % 2 * 8, pair + register // 2 * 8
    return [(row, k), (row, k + 1)]


def fragment_B(lane: int, register: int) -> list[tuple[int, int]]:
    """The two (k, column) of B [16 k][8 n] in a register, 0 or 1, of a lane."""
    group, pair = lane // 4, lane % 4 * 2
    k = pair + register * 8
    return [(k, group), (k + 1, group)]


def fragment_D(lane: int, register: int) -> tuple[int, int]:
    """The (row, column) of D [16 m][8 n] in a register, 0 to 3, of a lane: an fp32 fills a register."""
    group, pair = lane // 4, lane % 4 * 2
    return group + register // 2 * 8, pair + register % 2


def smem_offset(row: int, col: int, swizzled: bool) -> int:
    """Bytes from the start of a tile [rows][128] of 16-bit elements to (row, col), in 04 and 05, or in 06 and later."""
    chunk, within = divmod(col, 8)
    if swizzled:
        chunk ^= row % 8
    return (row * HEAD_DIM + chunk * 8 + within) * ELEMENT


def wavefronts(addresses: Iterable[int], size: int) -> int:
    """The wavefronts of one access of a warp to shared memory: one address per lane, `size` bytes each (2, 4, 8 or 16).

    Accesses of 8 and 16 bytes are served for 16 and 8 lanes at a time. Each pass takes as many wavefronts as the
    busiest bank has distinct words. (If lanes in pairs have the same address, as in 03, a pass can be saved. That is
    not modelled.)
    """
    lanes = list(addresses)
    at_once = min(32, 128 // size)
    return sum(most_words_in_a_bank(lanes[i : i + at_once], size) for i in range(0, len(lanes), at_once))


def most_words_in_a_bank(addresses: Iterable[int], size: int) -> int:
    words: dict[int, set[int]] = {}
    for address in addresses:
        for word in range(address // WORD, (address + size - 1) // WORD + 1):
            words.setdefault(word % BANKS, set()).add(word)
    return max(len(found) for found in words.values())


def sectors(addresses: Iterable[int], size: int) -> int:
    """The sectors of one access of a warp to global memory."""
    return len({byte // SECTOR for address in addresses for byte in (address, address + size - 1)})


def K_load(swizzled: bool, mma_n: int = 0, mma_k: int = 0, register: int = 0) -> list[int]:
    """Addresses of one 32-bit load of load_K_fragments() in 04 to 06, by lane."""
    return [
        smem_offset(mma_n * 8 + lane // 4, mma_k * 16 + register * 8 + lane % 4 * 2, swizzled) for lane in range(32)
    ]


def V_load(swizzled: bool, mma_n: int = 0, mma_k: int = 0, register: int = 0, high: bool = False) -> list[int]:
    """Addresses of one 16-bit load of load_V_fragments() in 04 to 06, by lane."""
    return [
        smem_offset(mma_k * 16 + register * 8 + lane % 4 * 2 + high, mma_n * 8 + lane // 4, swizzled)
        for lane in range(32)
    ]


def Q_load(swizzled: bool, mma_k: int = 0, register: int = 0) -> list[int]:
    """Addresses of one 32-bit load of load_Q_fragments() in 04 to 06, by lane."""
    return [
        smem_offset(register % 2 * 8 + lane // 4, mma_k * 16 + register // 2 * 8 + lane % 4 * 2, swizzled)
        for lane in range(32)
    ]


def ldmatrix_rows(which: str) -> list[tuple[int, int]]:
    """(row, col) of the address that each lane passes to the ldmatrix of a fragment at (0, 0), in 07."""
    lanes = range(32)
    if which == "Q":
        return [(lane % 16, lane // 16 * 8) for lane in lanes]
    if which == "K":
        return [(lane // 16 * 8 + lane % 8, lane // 8 % 2 * 8) for lane in lanes]
    return [(lane % 16, lane // 16 * 8) for lane in lanes]


def ldmatrix_wavefronts(rows: list[tuple[int, int]], swizzled: bool) -> int:
    """The wavefronts of one ldmatrix.x4: one matrix, eight rows of 16 bytes, at a time."""
    addresses = [smem_offset(row, col, swizzled) for row, col in rows]
    return sum(most_words_in_a_bank(addresses[i : i + 8], 16) for i in range(0, 32, 8))


# ---- 14 and later: Q from global memory to fragments, without shared memory ----


def transpose_in_group(registers: list[list[T]]) -> list[list[T]]:
    """What transpose_in_group() of the kernels computes from four registers in each lane of a warp: [lane][register].

    It performs the same exchanges in sequence: the lower lane's y for the upper lane's x.
    """
    found = [list(of_lane) for of_lane in registers]
    for x, y, bit in ((0, 1, 1), (2, 3, 1), (0, 2, 2), (1, 3, 2)):
        for lane in range(len(found)):
            if not lane & bit:
                found[lane][y], found[lane ^ bit][x] = found[lane ^ bit][x], found[lane][y]
    return found


def Q_chunk(lane: int, i: int) -> list[tuple[int, int]]:
    """(row, first of two columns) in each of the four registers of a lane's chunk i, as loaded by load_Q."""
    first = (4 * i + lane % 4) * 8
    return [(lane // 4, first + 2 * register) for register in range(4)]


# ---- 17 and later: shared memory as accessed by wgmma and TMA ----

HALF = 64  # columns of head_dim in a row of 128 bytes


def half_offset(row: int, col: int, rows: int) -> int:
    """Bytes from the start of a tile [2][rows][64] to (row, col), as in smem_offset() of 17 and 22, and as in TMA."""
    chunk = (col // 8 ^ row) % 8
    return (col // HALF * rows * HALF + row * HALF + chunk * 8 + col % 8) * ELEMENT


def swizzle_128(address: int) -> int:
    """The 128-byte swizzle of an address: bits 4 to 6 (a chunk of 16 bytes) XOR bits 7 to 9 (a row of 128 bytes)."""
    return address ^ (address >> 7 & 7) << 4


def K_major(start: int, row: int, k: int, stride: int = 1024) -> int:
    """Where a wgmma with such a descriptor reads element (row, k) of its operand: k runs along a row of 128 bytes."""
    return swizzle_128(start + row // 8 * stride + row % 8 * 128 + k * ELEMENT)


def MN_major(start: int, k: int, n: int, leading: int, stride: int = 1024) -> int:
    """The same for element (k, n) if n runs along a row: 64 columns, with the next 64 `leading` bytes further on."""
    return swizzle_128(start + n // HALF * leading + k // 8 * stride + k % 8 * 128 + n % HALF * ELEMENT)


def start_of_K(mma_k: int, rows: int) -> int:
    """Bytes from the start of a tile to where the wgmma of these 16 columns of head_dim starts: start_S() of 17."""
    return mma_k // 4 * rows * 128 + mma_k % 4 * 32


def start_of_V(mma_k: int) -> int:
    """Bytes from the start of a tile to where the wgmma of these 16 keys starts: start_PV() of 17."""
    return mma_k * 16 * 128


def descriptor(start: int, leading: int, stride: int) -> int:
    """matrix_descriptor() of common/hopper/wgmma.h."""
    return (start & 0x3FFFF) >> 4 | leading >> 4 << 16 | stride >> 4 << 32 | 1 << 62


def wgmma_D(thread: int, mma_n: int, register: int) -> tuple[int, int]:
    """The (row, column) of D [64][n] in D[mma_n][register] of a thread of the warpgroup, 0 to 127."""
    row, col = fragment_D(thread % 32, register)
    return thread // 32 * 16 + row, mma_n * 8 + col


def stmatrix_wavefronts(swizzled: bool) -> int:
    """The wavefronts of one stmatrix.x4 of 22: 16 rows of 128 bytes, two chunks of each; eight rows of one chunk at
    once."""
    offsets = [
        half_offset(lane % 16, lane // 16 * 8, 64) if swizzled else lane % 16 * 128 + lane // 16 * 16
        for lane in range(32)
    ]
    return sum(most_words_in_a_bank(offsets[i : i + 8], 16) for i in range(0, 32, 8))
