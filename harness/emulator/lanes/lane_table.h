// Instructions that work on each lane by itself: add, fma, cvt, setp … Each is a function over the 32 lanes of a warp, found by
// the PTX opcode with all its modifiers.
#pragma once

#include <cstddef>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator {

inline constexpr int kWarpSize = 32;
inline constexpr std::uint32_t kAllLanes = 0xffffffffu;
/// Of a sector, the least that is read from global memory.
inline constexpr unsigned kSectorBytes = 32;

/// How a register's 32 lanes lie in a warp's register file: a predicate is 32 bits, the others are arrays of 32.
enum class Slot : std::uint8_t { predicate, b16, b32, b64 };

constexpr int slot_bytes(Slot slot) {
  constexpr int kBytes[] = {4, 64, 128, 256};
  return kBytes[static_cast<int>(slot)];
}

/// `registers` is the register file of a warp, `r` the offsets of the operands in it, those written first. Writes only the
/// lanes in `mask`.
using LaneFunction = void (*)(std::byte* registers, const std::int32_t* r, std::uint32_t mask);

/// When the result is undefined in a lane in which some source is: a register that nothing has written.
enum class UndefinedRule : std::uint8_t {
  any,   // always
  move,  // always; the result is that source
  selp,  // not if the source that is not chosen is the undefined one
  and_,  // not if the other source is 0
  or_,   // not if the other source has all bits set
};

struct LaneOperation {
  LaneFunction function = nullptr;
  InstructionClass instruction_class = InstructionClass::other;
  std::uint8_t writes = 1;   // how many of `slots` are results
  bool sign_extend = false;  // how the result fills a register that is wider than it
  std::uint8_t operands = 0;
  Slot slots[6] = {};  // of the operands: results, then sources
  UndefinedRule undefined_rule = UndefinedRule::any;
};

class LaneTable {
 public:
  /// Parts of the opcode in brackets are optional: "add[.rn][.sat].f32" adds four.
  void add(const char* opcode, const LaneOperation& operation);
  const LaneOperation* find(std::string_view opcode) const;
  std::size_t size() const { return operations_.size(); }
  std::vector<std::string> opcodes() const;

 private:
  std::unordered_map<std::string, LaneOperation> operations_;
};

enum class ShuffleMode : std::uint8_t { up, down, bfly, idx };

/// What lanes do together.
struct WarpFunctions {
  /// shfl.sync of all lanes, by ShuffleMode: where each of them reads, its own value if that is out of range, and what is there. `control`
  /// holds the clamp in bits 0–4 and the mask of the segment in bits 8–12. Returns which lanes are in range.
  std::uint32_t (*shuffle[4])(const std::uint32_t* values, const std::uint32_t* delta, const std::uint32_t* control,
                              std::uint32_t* sources, std::uint32_t* results);
  /// Tensor-core instructions: r holds d0…, a0…, b0…, c0…
  LaneFunction mma_m16n8k16_f16;
  LaneFunction mma_m16n8k16_bf16;
  LaneFunction mma_m16n8k8_f16;
  LaneFunction mma_m16n8k8_bf16;
  /// A warp's part of a wgmma: 16 rows of D (+)= A B. `a` is [16][k] and `b` [k][n], of which each eight columns are in the
  /// order 0 2 4 6 1 3 5 7. `d` are the registers of D, [n / 8][4], of 32 lanes each, as in mma.
  using WgmmaFunction = void (*)(float* const* d, const float* a, const float* b, int n, int k, bool accumulate);
  WgmmaFunction wgmma_f16;   // products of which are exact: fp8 too
  WgmmaFunction wgmma_bf16;  // or may be beyond the range of fp32: tf32 too
  /// 16-bit elements of operands as fp32.
  void (*f16_to_float)(const std::uint16_t* from, float* to, int count);
  void (*bf16_to_float)(const std::uint16_t* from, float* to, int count);
};

/// What accesses to memory by all 32 lanes need. `offsets` are from the start of the CTA's shared memory.
struct MemoryFunctions {
  /// The offsets from a register with addresses; true if all are below `limit` and multiples of `bytes`. `offset` is added.
  bool (*offsets)(const std::byte* address_register, bool wide, std::int64_t offset, std::uint32_t limit,
                  std::uint32_t bytes, std::uint32_t* offsets);
  /// The lowest and the highest of them.
  void (*range)(const std::uint32_t* offsets, std::uint32_t* lowest, std::uint32_t* highest);
  /// The offsets relative to `base`, and a hash of them.
  std::uint32_t (*pattern)(const std::uint32_t* offsets, std::uint32_t base, std::uint32_t* pattern);
  /// Whether the addresses in a register are those of the pattern, from a base on, which is where `offset` leads to.
  bool (*repeats)(const std::byte* address_register, bool wide, std::int64_t offset, const std::uint32_t* pattern,
                  std::uint64_t* base);
  bool (*equal)(const std::uint32_t* a, const std::uint32_t* b);
  /// Loads of 2 bytes, and of 1, 2 or 4 words (the index), into the registers r.
  using Gather = void (*)(const std::byte* memory, const std::uint32_t* offsets, std::byte* registers,
                          const std::int32_t* r);
  Gather gather16;
  Gather gather32[5];
  /// An 8×8 matrix of 16-bit elements from eight rows, to where a register's 32 lanes are: by rows, and by columns.
  void (*matrix)(const std::byte* memory, const std::uint32_t* offsets, std::byte* to);
  void (*transposed_matrix)(const std::byte* memory, const std::uint32_t* offsets, std::byte* to);
  /// For checks/shared_shadow.h, by log2 of the cells that a lane touches. Reads are `count` different offsets behind `base`, with lanes
  /// that are 32 more if they are not the only ones.
  void (*read_cells[5])(std::uint32_t* readers, std::uint32_t base, const std::uint32_t* offsets,
                        const std::uint32_t* lanes, std::uint32_t count, int shift, std::uint32_t synced,
                        std::uint32_t cell);
  void (*write_cells[5])(std::uint32_t* writers, const std::uint32_t* offsets, int shift, std::uint32_t cell);
  bool (*any_at_least[5])(const std::uint32_t* cells, const std::uint32_t* offsets, int shift, std::uint32_t bound);
  /// Behind the cells from `first` on, of `count` in all, that are the same but for the lowest `shift` bits.
  std::uint32_t (*end_of_run)(const std::uint32_t* cells, std::uint32_t first, std::uint32_t count, int shift);
  /// Of global memory: whether all lie in the `size` bytes from `begin` on and are aligned; then `host` becomes where, if `begin` is at
  /// `data`, and `consecutive` says whether they lie side by side, in order of lanes.
  bool (*inside)(const std::uint64_t* addresses, std::uint64_t begin, std::uint64_t size, std::uint32_t bytes,
                 std::byte* data, std::byte** host, bool* consecutive);
  /// The distinct sectors of addresses that do not go down from lane to lane; 0 if they do.
  std::uint32_t (*sectors)(const std::uint64_t* addresses);
  /// For checks/clocks.h: of each entry the larger one.
  void (*later)(std::uint32_t* entries, const std::uint32_t* others, std::size_t count);
};

/// All of them, in the form that this machine's processor executes fastest. Results do not depend on it.
const LaneTable& lane_table();
const WarpFunctions& warp_functions();
const MemoryFunctions& memory_functions();

/// "avx2" or "portable": which one that is.
std::string_view instruction_set();

}  // namespace flash_ladder::emulator
