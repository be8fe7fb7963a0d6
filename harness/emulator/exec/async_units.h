// The units that work beside the warps of a CTA from Hopper on: the tensor cores that run wgmma, and TMA. Both access
// shared memory through the asynchronous proxy. PTX ISA, "Asynchronous Operations", "Asynchronous Warpgroup Level
// Matrix Instructions", "Data Movement and Conversion Instructions: Bulk copy".
//
// Everything happens as late as the ISA allows or, with Options::early_async, as early. A correct program gets the same
// results either way; a program that is right only by luck gets a finding:
//
//   wgmma         reads its operands and writes its registers when the first warp of the warpgroup waits for it
//   TMA load      its bytes arrive when a thread tests its mbarrier's phase and all that the phase needs is in flight
//   st.async      likewise, and so do the summands of red.async: in the shared memory of another CTA of the cluster
//   TMA copy      from shared memory to that of another CTA of the cluster: reads it when the bytes arrive
//   TMA store     reads shared memory when the requesting thread waits for the read, and writes when it waits for the write
//   setmaxnreg    takes registers that other warps of the CTA have released, and waits for them
//
// A kernel that uses none of these has no AsyncUnits.
#pragma once

#include <array>
#include <bit>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <map>
#include <optional>
#include <string>
#include <utility>
#include <variant>
#include <vector>

#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/barriers.h"
#include "emulator/exec/warp.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// Fills every byte of shared memory that an asynchronous copy has yet to write: NaN as fp16, bf16 and fp32.
constexpr int kPoison = 0xff;

/// The data of a bulk copy: rows of equal length, parts of which may be outside the tensor.
struct BulkTransfer {
  struct Row {
    std::byte* host = nullptr;         // address of the part inside the tensor
    std::uint32_t begin = 0, end = 0;  // range of that part within the row, in bytes
  };
  std::uint32_t shared = 0;  // offset in the CTA's shared memory, before the swizzle
  std::uint32_t row_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  std::uint16_t fill = 0;  // the value of every two bytes outside the tensor
  bool of_tensor = false;
  std::vector<Row> rows = {};
  // For a copy from shared memory: the CTA whose thread requested it.
  struct Source {
    std::uint32_t offset;
    AccessNumber since = 0;  // accesses to it from this number on came after the issue
  };
  std::optional<Source> source = {};

  std::uint32_t bytes() const { return row_bytes * static_cast<std::uint32_t>(rows.size()); }
  /// The distance between rows in shared memory.
  std::uint32_t row_pitch() const { return row_pitch_of(row_bytes, swizzle); }
  std::uint32_t extent() const { return row_pitch() * static_cast<std::uint32_t>(rows.size()); }
};

/// What lanes of one warp store with st.async, or add with red.async, in the shared memory of one CTA. PTX ISA,
/// "st.async", "red.async".
struct LaneStores {
  /// Returns the new value; values are the low bits of the 64.
  using Combine = std::uint64_t (*)(ptx::Type type, std::uint64_t old, std::uint64_t operand);

  std::uint32_t lanes = 0;
  unsigned bytes_each = 0;
  std::array<std::uint32_t, kWarpSize> offsets = {};  // for those lanes, in the CTA's shared memory
  std::array<std::byte, std::size_t{kWarpSize} * 16> values = {};
  Combine combine = nullptr;  // null: st.async
  ptx::Type type = {};

  std::byte* value(int lane) { return values.data() + static_cast<std::size_t>(lane) * 16; }
  const std::byte* value(int lane) const { return values.data() + static_cast<std::size_t>(lane) * 16; }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(std::popcount(lanes)) * bytes_each; }
};

class AsyncUnits {
 public:
  /// The race detector distinguishes this many mbarriers.
  static constexpr int kEngines = 64;
  /// The unit of access of the asynchronous proxy, in bytes.
  static constexpr std::uint32_t kChunk = 16;

  AsyncUnits(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes, int registers_per_thread);

  /// A CTA begins; all its threads have ended.
  void start();
  void finish();
  void renumber(const Renumbering& renumbering);

  // The generic proxy.

  /// Lanes of a warp have written to shared memory with an ordinary instruction or with cp.async, which is the latest
  /// access to it.
  void note_write(int warp, std::int32_t instruction, std::uint32_t lanes, unsigned bytes,
                  const std::uint32_t* offsets);
  /// Another CTA has written to shared memory: whether the asynchronous proxy can see that is not tracked.
  void forget_write(std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets);
  /// fence.proxy.async; `only_mbarriers`: fence.mbarrier_init, which releases mbarrier.init and is not a proxy fence.
  void fence(const Warp& warp, std::uint32_t lanes, bool only_mbarriers);
  /// A thread has initialised the mbarrier.
  void note_initialised(Mbarrier& barrier, int warp, int lane, std::int32_t instruction);

  // wgmma.

  void issue_wgmma(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void fence_registers(Warp& warp);
  void commit_wgmma(Warp& warp);
  /// The warp may have to wait for other warps of the warpgroup that have not issued their part yet.
  void wait_for_wgmma(Warp& warp, const Instruction& instruction);
  /// Called before an instruction with Instruction::probe is executed.
  void probe(Warp& warp, const Instruction& instruction);

  // TMA, st.async.

  /// `by`: the CTA of the warp, perhaps another CTA of the cluster; `peer` is then what it knows, or null if races are
  /// not checked.
  void issue_load(CtaExecutor& by, Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer,
                  Mbarrier& barrier, const PeerAccess* peer);
  /// A copy begins to read this CTA's shared memory, and continues until it arrives.
  void begin_source(Warp& warp, const Instruction& instruction, int lane, BulkTransfer& transfer);
  void issue_lane_stores(CtaExecutor& by, Warp& warp, const Instruction& instruction, const LaneStores& stores,
                         Mbarrier& barrier, const PeerAccess* peer);
  void issue_store(Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer);
  void commit_stores(Warp& warp, std::uint32_t lanes);
  /// `read_only`: waits until shared memory may be written again, although global memory may not have been written yet.
  void wait_for_stores(Warp& warp, std::uint32_t lanes, std::uint32_t newest_left, bool read_only);
  /// A thread tests whether a phase of the barrier has ended: everything arrives that the phase may still be waiting for.
  void deliver(Mbarrier& barrier);
  /// expect_tx.
  void expect(Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier, std::uint32_t bytes);
  /// The phase ends: the count of bytes to be brought starts again.
  void end_phase(Mbarrier& barrier);
  /// "… and 1024 bytes, of which TMA brings 512"; empty if it waits for no bytes.
  std::string describe_transactions(const Mbarrier& barrier) const;
  /// The mbarrier that is signalled when the data that an instruction brings to this byte have arrived; null if none of
  /// it is in flight.
  const Mbarrier* told_by_load(std::int32_t instruction, std::uint32_t offset) const;

  // setmaxnreg.

  void set_registers(Warp& warp, const Instruction& instruction, bool increase);

  /// What each warp has done so far, and how many registers it holds.
  std::vector<Role> roles() const;

  /// What a warp waits for here, as the end of "warp 1 waits …"; empty if it does not wait.
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;

 private:
  static constexpr int kWarpgroup = 4;  // warps

  struct Chunk {               // 16 bytes of shared memory
    std::int32_t writer = -1;  // the ordinary instruction that wrote it last; -1: the asynchronous proxy can see it
    std::uint32_t written_at = 0;
    AccessNumber number = 0;
    std::uint16_t thread = 0;
    std::uint8_t swizzle = 0;  // 1 + the swizzle of the tensor map with which TMA wrote it; 0: it was written otherwise
    std::int32_t tma = -1;     // the load
  };

  struct WgmmaIssue {
    std::int32_t instruction = -1;
    std::uint64_t descriptors[2] = {};  // of A, if it has one, and of B
    bool accumulates = false;
    unsigned issued = 0;  // one bit for each warp of the warpgroup
    bool executed = false;
    AccessNumber since = 0;    // accesses to shared memory from this number on came after the issue
    std::uint64_t traced = 0;  // when it was issued, for a trace
    std::vector<std::uint32_t>
        chunks[2];  // for A and for B: the addresses of 16 bytes each, in the order in which operand() returns them
  };
  struct WarpQueue {                   // of one warp
    std::uint64_t issued = 0;          // number of the warpgroup's wgmmas that it has issued
    std::deque<std::uint64_t> groups;  // groups that it has not waited for: one past the last wgmma of each
    std::uint64_t done = 0;            // number of wgmmas that it has waited for
    std::int32_t waiting = -1;         // the instruction at which it waits
    std::uint64_t waits_until = 0;     // number of wgmmas that must be done
    std::uint64_t committed = 0;       // number of wgmmas that are in a group
    std::uint64_t seen = 0;            // number of wgmmas issued before its last wait
    unsigned leaves = 0;               // number of newest groups that its last wait leaves in flight
    std::int32_t waited = -1;          // the instruction of its last wait
    bool fenced = false;               // a wgmma.fence was executed
    std::vector<std::pair<std::int32_t, std::int32_t>>
        touched;  // registers accessed since the last fence, and the instructions that did so
  };
  struct Warpgroup {
    std::deque<WgmmaIssue> issues;
    std::uint64_t first = 0;  // the number of the first wgmma in it
  };

  struct Load {  // A load by TMA, or the data of st.async or red.async
    CtaExecutor* by;
    int warp, lane;
    std::int32_t instruction;
    std::uint32_t barrier;
    std::variant<BulkTransfer, LaneStores> what;
    Clock told = {};  // what the threads that issued an st.async knew and had done

    std::uint32_t bytes() const {
      return std::visit([](const auto& one) { return one.bytes(); }, what);
    }
    std::uint32_t shared() const;  // destination of the first byte
  };
  struct Store {
    int warp, lane;
    std::int32_t instruction;
    std::uint32_t group;  // number of groups that the thread had committed before
    AccessNumber since;
    BulkTransfer transfer;
    bool is_read = false;
    std::vector<std::byte> data;  // the data that were read, packed
  };

  bool checks() const;
  void report(FindingKind kind, const Warp& warp, std::int32_t instruction, int lane, std::optional<Address> address,
              const std::string& message, const char* what = nullptr, std::int32_t other = -1, int other_warp = -1,
              int other_lane = -1);
  void report(FindingKind kind, const Load& load, std::optional<Address> address, const std::string& message,
              const char* what = nullptr, std::int32_t other = -1);
  void report(CtaExecutor& by, FindingKind kind, const Warp& warp, std::int32_t instruction, int lane,
              std::optional<Address> address, const std::string& message, const char* what, std::int32_t other,
              int other_warp, int other_lane);
  const Wgmma& wgmma_of(std::int32_t instruction) const;
  WgmmaIssue& issue_of(const Warp& warp, std::uint64_t number);
  std::vector<std::uint32_t> chunks_of(const Warp& warp, const Instruction& instruction, std::uint64_t descriptor,
                                       int rows, bool transposed);
  void check_operands(const Warp& warp, const Instruction& instruction, const WgmmaIssue& issue, bool first);
  void check_registers(const Warp& warp, const Instruction& instruction);
  std::string why_in_flight(const Warp& warp, std::uint64_t number) const;
  void check_visible(const Warp& warp, std::int32_t instruction, int lane, const std::vector<std::uint32_t>& chunks);
  void execute(const WgmmaIssue& issue, int first_warp, int warps);
  bool try_to_wait(Warp& warp);
  void retire(Warpgroup& group, int first_warp);

  template <typename F>
  void for_each_access(const Warp& warp, std::int32_t instruction, int lane, const std::vector<std::uint32_t>& chunks,
                       F f);
  static std::vector<std::uint32_t> chunks_of(const BulkTransfer& transfer);
  static std::vector<std::uint32_t> chunks_of_source(const BulkTransfer& transfer);
  void end_source(const Load& load, CtaExecutor& owner, Clock& into);
  void write_shared(const BulkTransfer& transfer);
  void write_shared(const LaneStores& stores);
  const char* name_of(const Load& load) const;
  std::string bringers(const Mbarrier& barrier) const;
  void arrive(Load& load, Mbarrier& barrier);
  void read(Store& store);
  static void write_global(Store& store);

  CtaExecutor& cta_;
  std::size_t num_warps_;
  int registers_per_thread_;

  std::vector<Chunk> chunks_;
  std::uint32_t now_ = 0;                                // counts writes and fences
  std::vector<std::uint32_t> fences_, mbarrier_fences_;  // by thread: the time of the last fence
  std::vector<Clock> known_at_fence_;  // by warp: what its first lane knew at its last fence.proxy.async

  std::vector<Warpgroup> warpgroups_;
  std::vector<WarpQueue> queues_;

  std::map<std::uint64_t, Load> loads_;
  std::uint64_t next_load_ = 0;
  int next_engine_ = 0;
  std::vector<Store> stores_;
  std::vector<std::uint32_t> store_groups_;  // by thread: number of groups committed so far

  struct Work {
    bool loads = false, multiplies = false, stores = false;
  };
  std::vector<Work> work_;  // by warp

  std::vector<int> registers_;                                 // per thread, by warp
  std::int64_t pool_ = 0;                                      // registers that were given back
  std::vector<std::pair<int, std::int32_t>> wants_registers_;  // waiting warps, and the instruction at which each waits
};

}  // namespace flash_ladder::emulator
