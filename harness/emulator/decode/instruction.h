// What a launch executes: PTX instructions with all names resolved. An operand is an offset into the warp's register file.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/lanes/lane_table.h"
#include "emulator/memory/strength.h"
#include "emulator/ptx/syntax.h"
#include "emulator/report.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {

class CtaExecutor;  // exec/
struct Instruction;
struct Warp;

/// What the executor does to execute an instruction.
enum class Action : std::uint8_t {
  lane,          // function
  watched_lane,  // the same, and `watched` is not -1
  operation,     // execute: everything that concerns memory, barriers, or other lanes
  clock,         // r: result, 64 bits
  branch,        // target
  branch_table,  // r: index; targets in CompiledKernel::branch_tables[count]
  exit,          // execute, if there is one; then the lanes end
};

/// Executes an instruction for the lanes of the mask, which is not empty. The warp's pc is already that of the next
/// instruction. Sets Warp::status if the warp cannot continue for now.
using Execute = void (*)(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask);

/// The counters to which the memory traffic of an instruction belongs.
enum class MemoryRole : std::uint8_t { none, load, store, copy, wgmma_operands, tma_load, tma_store };

inline constexpr int kMaxOperands = 16;

/// What to check before an instruction is executed, in a kernel with wgmma (decode/wgmma_registers.cpp).
inline constexpr std::uint8_t kMayBeInFlight = 1;  // it accesses a register that a wgmma may still read or write
inline constexpr std::uint8_t kIsUnfenced = 2;     // a wgmma may use a register that it accesses: no fence between

struct Instruction {
  Action action = Action::operation;
  InstructionClass instruction_class = InstructionClass::other;
  bool counted = true;  // false: a helper of the previous or the next instruction, which has been counted
  bool guard_negated = false;
  std::uint8_t writes = 0;    // how many of `r` are results
  std::uint8_t operands = 0;  // how many of `r` are used
  std::uint8_t bytes = 0;     // size of one element of memory
  std::uint8_t elements = 1;
  ptx::Space space = ptx::Space::generic;
  bool sign_extend = false;  // a load of 8 or 16 bits
  bool wide_address = true;  // the address is 64 bits wide
  bool of_cluster = false;   // .shared::cluster: the address may be in another CTA's shared memory
  Strength strength = kWeak;
  // For a strong access or a fence: whether it acquires, whether it releases, and whether it is only for the threads of
  // the block. For a strong access: whether it is for the host, too.
  bool acquires = false, releases = false, block_only = false, of_system = false;
  bool has_count = false;   // barrier with a thread count, mbarrier.arrive with .expect_tx
  ptx::Type type{};         // atomics, reductions
  std::int32_t guard = -1;  // a predicate, -1: none
  MemoryRole role = MemoryRole::none;
  bool computes_nothing = false;  // a barrier, a wait, a fence: its line contains nothing else
  bool arrives = false;           // counts as a barrier that warps arrive at
  // One bit for each source, from 1: `execute` itself checks whether it was ever written.
  std::uint16_t own_sources = 0;
  Execute execute = nullptr;
  LaneFunction function = nullptr;
  const LaneOperation* lane_operation = nullptr;
  std::array<std::int32_t, kMaxOperands> r{};
  std::int64_t offset = 0;       // added to the address
  std::int32_t target = -1;      // of a branch: an instruction
  std::int32_t reconverge = -1;  // where the lanes that diverge at a branch reconverge; -1: at the end
  std::uint32_t count = 0;
  std::uint32_t source = 0;   // index into CompiledKernel::sources
  std::int32_t watched = -1;  // index into CompiledKernel::watched; -1: everything that it reads has been written
  // Index into CompiledKernel::variables: the address is computed from the address of this variable and of no other.
  // -1: not known, or the memory has no other variable.
  std::int32_t variable = -1;
  std::int32_t wgmma = -1;  // index into CompiledKernel::wgmmas; -1: not a wgmma
  std::uint8_t probe = 0;   // kMayBeInFlight, kIsUnfenced
  bool hands_on = false;    // a load that may read uninitialised local memory: only the use of its result is checked
};

/// The parts of a wgmma besides its descriptors and scale-d, which are ordinary operands of the Instruction.
struct Wgmma {
  enum class Element : std::uint8_t { f16, bf16, tf32, e4m3, e5m2 };
  std::vector<std::int32_t> d, a;  // registers, like Instruction::r; `a` is empty if A has a descriptor
  Element a_element{}, b_element{};
  int n = 0;
  bool d_in_f16 = false;
  bool negates_a = false, negates_b = false;
  bool transposes_a = false, transposes_b = false;
  std::vector<std::int32_t> watched_d, watched_a;  // numbers in Warp::undefined for those of `d` and `a` that have one

  int element_bytes() const { return a_element == Element::tf32 ? 4 : a_element <= Element::bf16 ? 2 : 1; }
  int k() const { return 32 / element_bytes(); }
};

/// Registers that may be read before they are written have numbers, from 0: those of an instruction's guard and
/// operands. -1 for all other registers.
struct WatchedOperands {
  std::int32_t guard = -1;
  std::array<std::int32_t, kMaxOperands> r = [] {
    std::array<std::int32_t, kMaxOperands> none;
    none.fill(-1);
    return none;
  }();
};

/// The instruction's form in the text, for messages and counters.
struct SourceInstruction {
  std::string_view text;
  int ptx_line = 0;
  int position = 0;    // index into CompiledKernel::positions
  int charged_to = 0;  // another such index: the position whose counters include it
};

/// A place in the register file whose value does not change while a CTA runs.
struct UniformSlot {
  Slot slot = Slot::b32;
  std::int32_t offset = 0;
  bool special = false;
  ptx::SpecialRegister special_register{};
  std::uint64_t value = 0;
};

/// An instruction as in the text, but on one line and without comments.
std::string one_line(std::string_view text);

/// A variable in shared or local memory, at these offsets.
struct KnownVariable {
  ptx::Space space = ptx::Space::shared;
  std::string name;                  // empty: one of a function's local variables, whose name is not in the text
  std::uint32_t begin = 0, end = 0;  // for dynamic shared memory the end depends on the launch: ~0
};

/// The prefix that nvcc gives to the names of those variables that hold all local variables of a function.
inline constexpr std::string_view kLocalVariables = "__local_depot";

class CompiledKernel {
 public:
  std::string name;
  std::vector<Instruction> code;
  std::vector<SourceInstruction> sources;
  std::vector<SourcePosition> positions;
  std::vector<std::vector<std::int32_t>> branch_tables;
  std::vector<UniformSlot> uniforms;
  std::vector<WatchedOperands> watched;
  std::vector<KnownVariable> variables;  // those that some accesses are known to use exclusively
  std::vector<Wgmma> wgmmas;
  std::vector<std::pair<Address, std::string>>
      functions;                  // for a kernel with calls through pointers: all functions whose address is taken
  bool uses_async_proxy = false;  // wgmma, TMA, setmaxnreg, or st.async: exec/async_units.h
  std::size_t num_watched = 0;    // registers
  std::array<std::uint32_t, 3> cluster = {1, 1, 1};  // CTAs
  std::size_t register_bytes = 0;                    // of one warp
  // The places in it: offsets and sizes in bytes. Registers that are never live at the same time share one.
  std::unordered_map<std::int32_t, std::int32_t> places;
  std::size_t parameter_bytes = 0;
  std::size_t static_shared_bytes = 0;
  std::size_t reserved_shared_bytes = 0;  // before them: what the system reserves for cooperative groups
  std::size_t local_bytes = 0;            // per thread
  int shared_granule = 16;                // the smallest access to shared memory, in bytes
  int global_granule = 16;                // the same of global memory
  bool lets_next_kernel_begin = false;    // it executes griddepcontrol.launch_dependents
  bool serial = false;  // its CTAs communicate, through atomics or flags: run in order, so that results are repeatable
  bool uses_shared = false;
  bool uses_mbarriers = false;
};

// The windows through which a generic address refers to shared, local or parameter memory. They are not valid addresses
// of the host, and do not overlap any allocation.
inline constexpr Address kSharedWindow = Address{2} << 48;
inline constexpr Address kLocalWindow = kSharedWindow + (Address{1} << 32);
inline constexpr Address kParameterWindow = kSharedWindow + (Address{2} << 32);
inline constexpr Address kWindowSize = Address{1} << 32;
// The first bytes of shared memory belong to the system, as on GPUs: address 0 is never valid.
inline constexpr std::uint32_t kSharedBase = kReservedSmemBytes;
inline constexpr std::uint32_t kLocalBase = 64;
// An address in the shared memory of the CTA with this rank, as mapa returns it: shared memory is never larger than
// this shift allows.
inline constexpr std::uint64_t kRankShift = 24;
constexpr std::uint64_t in_cta(std::uint64_t shared_address, std::uint64_t rank) {
  return shared_address + ((rank + 1) << kRankShift);
}
/// The rank in such an address; nullopt for a plain address in the CTA's own shared memory.
constexpr std::optional<std::uint64_t> rank_of(std::uint64_t shared_address) {
  const std::uint64_t tag = shared_address >> kRankShift;
  return tag == 0 ? std::nullopt : std::optional(tag - 1);
}
/// The same address without its rank.
constexpr std::uint64_t without_rank(std::uint64_t shared_address) {
  return shared_address & ((std::uint64_t{1} << kRankShift) - 1);
}

}  // namespace flash_ladder::emulator
