// What a launch did: counters, as totals and per source line, and findings.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/memory.h"
#include "emulator/useful_work.h"

namespace flash_ladder::emulator {

struct Dim3 {
  std::uint32_t x = 1, y = 1, z = 1;

  bool operator==(const Dim3&) const = default;
};

/// A line of the source. `file` is as in the PTX's .file; empty, with line 0, if the PTX has no line information.
struct SourceLine {
  std::string file;
  int line = 0;

  auto operator<=>(const SourceLine&) const = default;
};

/// Where an instruction comes from: first its own line, perhaps in an inlined helper, then the line that calls that
/// helper, and so on out to the kernel. Empty without line information.
using SourcePosition = std::vector<SourceLine>;

/// "ptx.h:76, called from 07_ldmatrix.cu:74, called from 07_ldmatrix.cu:164", with file names but no folders.
std::string to_string(const SourcePosition& position);

/// The classes by which warp instructions are counted. Each instruction belongs to exactly one.
enum class InstructionClass : std::uint8_t {
  mma,          // mma.sync
  wgmma,        // wgmma.mma_async
  tma,          // cp.async.bulk: copies by TMA
  ldmatrix,     // ldmatrix
  shared_load,  // ld.shared, and ld with a generic address in shared memory
  shared_store,
  global_load,
  global_store,
  cp_async,        // global → shared copies
  local_memory,    // ld/st.local
  atomic,          // atom, red
  parameter_load,  // ld.param, ld.const
  float32,         // add, mul, fma, min, max … .f32
  float64,
  float16,  // f16, bf16 and packed arithmetic
  special,  // ex2, lg2, rcp, rsqrt, sqrt, sin, cos, tanh; division
  integer,  // integer arithmetic, logic, shifts, prmt, bit fields
  compare,  // setp, set, selp, slct, predicate logic
  convert,  // cvt, cvta
  move,     // mov
  shuffle,  // shfl, vote, match, redux, activemask
  branch,   // bra, ret, exit
  barrier,  // bar.sync and its variants, bar.warp.sync, mbarrier, cp.async's commit and wait, fences
  other,
};
inline constexpr std::size_t kNumInstructionClasses = static_cast<std::size_t>(InstructionClass::other) + 1;

/// "mma", "shared_load", …: as in the JSON.
std::string_view to_string(InstructionClass instruction_class);

/// Traffic of one kind. For global memory a transaction is a 32-byte sector, counted per request (warp instruction); for
/// shared memory a wavefront, one pass over the 32 banks.
struct Traffic {
  std::uint64_t requests = 0;      // warp instructions
  std::uint64_t transactions = 0;  // the cost of the actual access pattern
  std::uint64_t ideal = 0;         // the cost of the best pattern for this many lanes and bytes
  std::uint64_t bytes = 0;         // requested by the active lanes

  Traffic& operator+=(const Traffic& other);
  bool operator==(const Traffic&) const = default;
};

struct Counters {
  std::array<std::uint64_t, kNumInstructionClasses> instructions{};  // warp instructions, by class
  std::uint64_t warp_instructions = 0;                               // their sum
  std::uint64_t thread_instructions = 0;                             // the sum of their active lanes
  Traffic global_load,
      global_store;        // sectors; loads include the global side of cp.async, stores include atomics
  Traffic shared_load;     // wavefronts of ld.shared and ldmatrix
  Traffic shared_store;    // wavefronts of st.shared
  Traffic shared_copy;     // wavefronts of data that cp.async writes to shared memory
  Traffic wgmma_operands;  // wavefronts of operands that wgmma reads from shared memory, once for each warpgroup
  Traffic tma_load;        // sectors that TMA reads from global memory; `bytes` counts whole boxes
  Traffic tma_store;
  Traffic local;                         // sectors of ld.local and st.local
  std::uint64_t barriers = 0;            // warps arriving at a CTA-wide or named barrier
  std::uint64_t branches = 0;            // conditional branches …
  std::uint64_t divergent_branches = 0;  // … at which the lanes of a warp diverged

  std::uint64_t of(InstructionClass c) const { return instructions[static_cast<std::size_t>(c)]; }
  Counters& operator+=(const Counters& other);
  bool operator==(const Counters&) const = default;
};

/// The counters of all instructions that come from one position. Code that the compiler has moved to a barrier or a
/// wait is charged to the line that first uses it.
struct LineCounters {
  SourcePosition position;
  Counters counters;
};

/// Warps of a CTA that use Hopper's units in the same way, and hold the same number of registers. Roles belong to
/// warpgroups, not to single warps.
struct Role {
  std::vector<int> warps;
  bool loads = false, multiplies = false, stores = false;  // with TMA, with wgmma, with TMA
  int registers_at_launch = 0;                             // per thread
  int registers = 0;                                       // after the warps' last setmaxnreg

  bool operator==(const Role&) const = default;
};

/// "wgmma, TMA stores"
std::string describe_work(const Role& role);
/// "warps 0–3: TMA loads, 24 registers a thread; warps 4–11: wgmma, TMA stores, 240 registers a thread (168 at the
/// launch)"; empty for fewer than two roles.
std::string describe(const std::vector<Role>& roles);

/// "warp 3", "warps 0–2 and 5"
std::string list_of_warps(const std::vector<int>& warps);

enum class FindingKind : std::uint8_t {
  out_of_bounds,  // global, shared or local
  use_after_free,
  misaligned,
  uninitialised_read,  // shared, local or poisoned global memory, or registers
  missing_fence,       // wgmma.fence, fence.proxy.async or fence.mbarrier_init: earlier operations are not visible
  in_flight,           // a register or shared memory that wgmma or TMA still uses
  transaction_count,   // expect_tx differs from the number of bytes that TMA brings
  layout_mismatch,     // a matrix descriptor and the tensor map have different swizzles
  race,                // two unordered accesses to the same memory, at least one of them a write; or the wait for a
                       // phase of an mbarrier and the end of the phase before or after it
  overlapping_copies,  // an asynchronous copy to bytes that another one, still in flight, writes
  divergent_barrier,   // lanes or warps that miss a barrier that others wait at
  missing_lanes,       // shuffle, vote, mma …: lanes that the mask names, or that must take part, are missing
  assertion,           // assert() of device code failed
  invalid_operation,   // a misuse that the PTX ISA forbids: an mbarrier that was not initialised, a negative count …
  launch_limits,       // more threads, shared memory or registers than the sm has; the kernel did not run
  endless_loop,        // instruction budget used up
  deadlock,            // all warps of the CTA wait for something that cannot happen
  overwritten,  // shared memory that was filled again before it had been read, in a CTA that then cannot continue
};

/// "out_of_bounds", "race", …: as in the JSON.
std::string_view to_string(FindingKind kind);

/// The other side of a finding: the last write to the address, for example.
struct OtherAccess {
  std::string what;  // "written", "read", "cp.async issued", …
  SourcePosition position;
  int warp = -1;
  int lane = -1;
  std::optional<Dim3> cta = {};  // if it is a different CTA
};

/// The last wait of a thread before an access that it made too early: for its own copies, or for a phase of an mbarrier.
struct LastWait {
  std::string what;  // "for parity 1 of the mbarrier at byte 512 of shared memory, …"
  SourcePosition position;
  int warp = -1;
  int lane = -1;
};

struct Finding {
  FindingKind kind = FindingKind::out_of_bounds;
  std::string message;      // one line, complete except for position, CTA, warp and lane, which format() adds
  std::string kernel;       // mangled name
  std::string instruction;  // the PTX instruction
  int ptx_line = 0;
  SourcePosition position;         // empty for launch_limits
  Dim3 cta{0, 0, 0};               // blockIdx
  int warp = -1;                   // -1: the whole CTA
  int lane = -1;                   // the lowest lane concerned; -1: the whole warp
  std::optional<Address> address;  // global address, or offset in the CTA's shared or the thread's local memory
  std::optional<OtherAccess> other;
  std::vector<LastWait> waits = {};  // the last waits of the thread, and of the thread of `other`
  std::uint64_t count = 1;           // how often this happened at this line (with this other line), counting each lane
};

/// The complete finding as text of a few lines.
std::string format(const Finding& finding);

enum class Outcome : std::uint8_t {
  completed,  // all CTAs ran to their end, perhaps with findings
  refused,    // over the limits: the kernel did not run
  stopped,    // an endless loop, a deadlock, a budget or an interruption: some CTAs did not end
};

struct CtaTrace;  // trace.h

/// Everything in it is the same on every run and with any number of host threads, except for a launch that was
/// interrupted or used up its budget.
struct Report {
  Outcome outcome = Outcome::completed;
  bool interrupted = false;  // through Options::interrupt
  Counters totals;
  std::vector<LineCounters> lines;  // by position; only positions with executed instructions
  std::vector<Role> roles;          // of the warps of the first CTA
  // In order of CTA, then of time, except that divergent barriers come first, and races between warps before those
  // inside one; at most Options::max_findings.
  std::vector<Finding> findings;
  std::uint64_t findings_kinds = 0;  // number of distinct findings, including those that were left out
  std::uint64_t findings_total = 0;  // occurrences of all of them
  // With Options::list_executed: the instructions that any lane has executed, one per line and without guards and
  // comments, in the order of the text. Functions appear in place of their calls, and "$L…:" at the target of a branch.
  std::string executed;
  std::optional<UsefulWork> useful;       // with Options::outputs, if all CTAs have ended
  bool over_budget = false;               // all CTAs together have used up Options::max_warp_instructions …
  SourcePosition busiest;                 // … and this is where most of it was executed
  std::shared_ptr<const CtaTrace> trace;  // of Options::trace_cta; null: not requested, or no such CTA ran
};

}  // namespace flash_ladder::emulator
