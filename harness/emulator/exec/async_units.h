// What works beside the warps of a CTA from Hopper on: the tensor cores that run wgmma, and TMA. Both see shared memory through the
// asynchronous proxy. PTX ISA, "Asynchronous Operations", "Asynchronous Warpgroup Level Matrix Instructions", "Data Movement and
// Conversion Instructions: Bulk copy".
//
// Everything happens as late as the ISA allows, or, with Options::early_async, as early. Either way a program that is right gets the
// same results; one that is right by luck gets a finding:
//
//   wgmma         reads its operands and writes its registers when the first warp of the warpgroup waits for it
//   TMA load      its bytes arrive when somebody asks for the phase of its mbarrier, and all that the phase needs are under way
//   st.async      likewise, and so does what red.async adds: to the shared memory of another CTA of the cluster
//   TMA copy      from shared memory to that of a CTA of the cluster: reads it when the bytes arrive
//   TMA store     reads shared memory when the thread that asked for it waits, and writes global memory when it waits for that
//   setmaxnreg    takes registers from those that the CTA's warps have given back, and waits for them
//
// A kernel that has none of these has no AsyncUnits.
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

/// Every byte of shared memory that an asynchronous copy is still to write: NaN as fp16, bf16 and fp32.
constexpr int kPoison = 0xff;

/// What a bulk copy moves: rows of equal length, of which parts may lie outside the tensor.
struct BulkTransfer {
  struct Row {
    std::byte* host = nullptr;         // where the part inside the tensor lies
    std::uint32_t begin = 0, end = 0;  // of the row: that part, in bytes
  };
  std::uint32_t shared = 0;  // offset in the CTA's shared memory, before the swizzle
  std::uint32_t row_bytes = 0;
  Swizzle swizzle = Swizzle::none;
  std::uint16_t fill = 0;  // what each two bytes outside the tensor become
  bool of_tensor = false;
  std::vector<Row> rows = {};
  // Of a copy from shared memory, that of the CTA whose thread has asked for it.
  struct Source {
    std::uint32_t offset;
    AccessNumber since = 0;  // accesses to it from this number on came after the issue
  };
  std::optional<Source> source = {};

  std::uint32_t bytes() const { return row_bytes * static_cast<std::uint32_t>(rows.size()); }
  /// In shared memory.
  std::uint32_t row_pitch() const { return row_pitch_of(row_bytes, swizzle); }
  std::uint32_t extent() const { return row_pitch() * static_cast<std::uint32_t>(rows.size()); }
};

/// What lanes of one warp store by st.async, or add by red.async, in the shared memory of one CTA. PTX ISA, "st.async", "red.async".
struct LaneStores {
  /// The new value; values are the low bits of the 64.
  using Combine = std::uint64_t (*)(ptx::Type type, std::uint64_t old, std::uint64_t operand);

  std::uint32_t lanes = 0;
  unsigned bytes_each = 0;
  std::array<std::uint32_t, kWarpSize> offsets = {};  // of those lanes, in the CTA's shared memory
  std::array<std::byte, std::size_t{kWarpSize} * 16> values = {};
  Combine combine = nullptr;  // null: st.async
  ptx::Type type = {};

  std::byte* value(int lane) { return values.data() + static_cast<std::size_t>(lane) * 16; }
  const std::byte* value(int lane) const { return values.data() + static_cast<std::size_t>(lane) * 16; }
  std::uint32_t bytes() const { return static_cast<std::uint32_t>(std::popcount(lanes)) * bytes_each; }
};

class AsyncUnits {
 public:
  /// As many mbarriers are told apart by the race detector.
  static constexpr int kEngines = 64;
  /// What the asynchronous proxy reads and writes at a time, in bytes.
  static constexpr std::uint32_t kChunk = 16;

  AsyncUnits(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes, int registers_per_thread);

  /// A CTA begins; all its threads have ended.
  void start();
  void finish();
  void renumber(const Renumbering& renumbering);

  // The generic proxy.

  /// Lanes of a warp have written to shared memory by an ordinary instruction or by cp.async, the latest access to it.
  void note_write(int warp, std::int32_t instruction, std::uint32_t lanes, unsigned bytes,
                  const std::uint32_t* offsets);
  /// Another CTA has written to shared memory: whether the asynchronous proxy can see that is not followed.
  void forget_write(std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets);
  /// fence.proxy.async; `only_mbarriers`: fence.mbarrier_init, which releases mbarrier.init and is no proxy fence.
  void fence(const Warp& warp, std::uint32_t lanes, bool only_mbarriers);
  /// A thread has initialised it.
  void note_initialised(Mbarrier& barrier, int warp, int lane, std::int32_t instruction);

  // wgmma.

  void issue_wgmma(Warp& warp, const Instruction& instruction, std::uint32_t mask);
  void fence_registers(Warp& warp);
  void commit_wgmma(Warp& warp);
  /// The warp may have to wait for others of the warpgroup, which have not issued theirs yet.
  void wait_for_wgmma(Warp& warp, const Instruction& instruction);
  /// Before an instruction with Instruction::probe is executed.
  void probe(Warp& warp, const Instruction& instruction);

  // TMA, st.async.

  /// `by`: whose warp it is, perhaps another CTA of the cluster; `peer` is then what it knows, null if nobody looks for races.
  void issue_load(CtaExecutor& by, Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer,
                  Mbarrier& barrier, const PeerAccess* peer);
  /// A copy begins to read this CTA's shared memory, until it arrives.
  void begin_source(Warp& warp, const Instruction& instruction, int lane, BulkTransfer& transfer);
  void issue_lane_stores(CtaExecutor& by, Warp& warp, const Instruction& instruction, const LaneStores& stores,
                         Mbarrier& barrier, const PeerAccess* peer);
  void issue_store(Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer);
  void commit_stores(Warp& warp, std::uint32_t lanes);
  /// `read_only`: shared memory may be written again afterwards, global memory need not have been written.
  void wait_for_stores(Warp& warp, std::uint32_t lanes, std::uint32_t newest_left, bool read_only);
  /// Somebody asks whether a phase of the barrier has ended: all arrives that it can still be waiting for.
  void deliver(Mbarrier& barrier);
  /// expect_tx.
  void expect(Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier, std::uint32_t bytes);
  /// The phase ends: what was to be brought in it begins anew.
  void end_phase(Mbarrier& barrier);
  /// "… and 1024 bytes, of which TMA brings 512"; empty if it waits for no bytes.
  std::string describe_transactions(const Mbarrier& barrier) const;
  /// The mbarrier that hears when what an instruction brings to this byte is there; null if none of it is under way.
  const Mbarrier* told_by_load(std::int32_t instruction, std::uint32_t offset) const;

  // setmaxnreg.

  void set_registers(Warp& warp, const Instruction& instruction, bool increase);

  /// Who did what so far, and holds how many registers.
  std::vector<Role> roles() const;

  /// What a warp waits for here, as the end of "warp 1 waits …"; empty if it does not.
  std::string describe_wait(const Warp& warp, std::int32_t& at) const;

 private:
  static constexpr int kWarpgroup = 4;  // warps

  struct Chunk {               // 16 bytes of shared memory
    std::int32_t writer = -1;  // the ordinary instruction that wrote it last, -1: the asynchronous proxy can see it
    std::uint32_t written_at = 0;
    AccessNumber number = 0;
    std::uint16_t thread = 0;
    std::uint8_t swizzle = 0;  // 1 + that of the tensor map with which TMA wrote it; 0: something else did
    std::int32_t tma = -1;     // the load
  };

  struct WgmmaIssue {
    std::int32_t instruction = -1;
    std::uint64_t descriptors[2] = {};  // A, if it has one, and B
    bool accumulates = false;
    unsigned issued = 0;  // a bit for each warp of the warpgroup
    bool executed = false;
    AccessNumber since = 0;    // accesses to shared memory from this number on came after it
    std::uint64_t traced = 0;  // when it was issued, for a trace
    std::vector<std::uint32_t>
        chunks[2];  // of A and of B: where 16 bytes each lie, in the order in which operand() has them
  };
  struct WarpQueue {                   // of one warp
    std::uint64_t issued = 0;          // how many of the warpgroup's
    std::deque<std::uint64_t> groups;  // those that it has not waited for: behind the last wgmma of each
    std::uint64_t done = 0;            // how many it has waited for
    std::int32_t waiting = -1;         // the instruction
    std::uint64_t waits_until = 0;     // so many have to be done
    std::uint64_t committed = 0;       // how many are in a group
    std::uint64_t seen = 0;            // how many were issued before its last wait
    unsigned leaves = 0;               // so many groups, the newest, that wait leaves under way
    std::int32_t waited = -1;          // that wait
    bool fenced = false;               // a wgmma.fence was executed
    std::vector<std::pair<std::int32_t, std::int32_t>>
        touched;  // registers since the last fence, and by which instruction
  };
  struct Warpgroup {
    std::deque<WgmmaIssue> issues;
    std::uint64_t first = 0;  // the number of the first of them
  };

  struct Load {  // of TMA, or what st.async and red.async bring
    CtaExecutor* by;
    int warp, lane;
    std::int32_t instruction;
    std::uint32_t barrier;
    std::variant<BulkTransfer, LaneStores> what;
    Clock told = {};  // what those knew and had done who have issued an st.async

    std::uint32_t bytes() const {
      return std::visit([](const auto& one) { return one.bytes(); }, what);
    }
    std::uint32_t shared() const;  // where the first byte goes
  };
  struct Store {
    int warp, lane;
    std::int32_t instruction;
    std::uint32_t group;  // how many groups the thread had committed before
    AccessNumber since;
    BulkTransfer transfer;
    bool is_read = false;
    std::vector<std::byte> data;  // what was read, packed
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
  std::vector<std::uint32_t> fences_, mbarrier_fences_;  // by thread: when the last one was
  std::vector<Clock> known_at_fence_;  // by warp: what its first lane knew at its last fence.proxy.async

  std::vector<Warpgroup> warpgroups_;
  std::vector<WarpQueue> queues_;

  std::map<std::uint64_t, Load> loads_;
  std::uint64_t next_load_ = 0;
  int next_engine_ = 0;
  std::vector<Store> stores_;
  std::vector<std::uint32_t> store_groups_;  // by thread: committed so far

  struct Work {
    bool loads = false, multiplies = false, stores = false;
  };
  std::vector<Work> work_;  // by warp

  std::vector<int> registers_;                                 // per thread, by warp
  std::int64_t pool_ = 0;                                      // registers that were given back
  std::vector<std::pair<int, std::int32_t>> wants_registers_;  // warps that wait, and at which instruction
};

}  // namespace flash_ladder::emulator
