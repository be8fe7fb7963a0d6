// Copies that run beside the warps of a CTA: TMA, and st.async and red.async within a cluster. PTX ISA, "Data Movement and
// Conversion Instructions: Bulk copy", "st.async", "red.async". They happen as late as the ISA allows, or as early
// (Options::early_async):
//
//   TMA load      its bytes arrive when a thread tests its mbarrier's phase and all that the phase needs is in flight
//   st.async      likewise, and so do the summands of red.async: in the shared memory of another CTA of the cluster
//   TMA copy      from shared memory to that of another CTA of the cluster: reads it when the bytes arrive
//   TMA store     reads shared memory when the requesting thread waits for the read, and writes when it waits for the write
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <variant>
#include <vector>

#include "emulator/checks/shared_shadow.h"
#include "emulator/decode/instruction.h"
#include "emulator/exec/async_proxy.h"
#include "emulator/exec/barriers.h"
#include "emulator/exec/bulk_transfer.h"
#include "emulator/exec/warp.h"

namespace flash_ladder::emulator {

class CtaExecutor;

/// Fills every byte of shared memory that an asynchronous copy has yet to write: NaN as fp16, bf16 and fp32.
constexpr int kPoison = 0xff;

class AsyncCopies {
 public:
  AsyncCopies(CtaExecutor& cta, AsyncProxy& proxy, std::size_t num_warps);

  /// A CTA begins; all its threads have ended.
  void start();
  void finish();
  void renumber(const Renumbering& renumbering);

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
  const Mbarrier* signalled_by_load(std::int32_t instruction, std::uint32_t offset) const;

 private:
  struct Load {  // a load by TMA, or the data of st.async or red.async
    CtaExecutor* by;
    int warp, lane;
    std::int32_t instruction;
    std::uint32_t barrier;
    std::variant<BulkTransfer, LaneStores> what;
    Clock released = {};  // what the threads that issued an st.async knew and had done

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
  void report(FindingKind kind, const Load& load, std::optional<Address> address, const std::string& message,
              std::int32_t expected_by = -1);
  void finish_loads();
  void finish_stores();
  void check_lane_stores(CtaExecutor& by, Warp& warp, const LaneStores& stores, const Mbarrier& barrier,
                         const PeerAccess* peer, Load& load);
  void end_source(const Load& load, CtaExecutor& owner, Clock& into);
  void write_shared(const BulkTransfer& transfer);
  void write_shared(const LaneStores& stores);
  const char* name_of(const Load& load) const;
  std::string bringers(const Mbarrier& barrier) const;
  void arrive(Load& load, Mbarrier& barrier);
  void read(Store& store);
  static void write_global(Store& store);

  CtaExecutor& cta_;
  AsyncProxy& proxy_;
  const std::size_t num_warps_;
  std::map<std::uint64_t, Load> loads_;
  std::uint64_t next_load_ = 0;
  std::vector<Store> stores_;
  std::vector<std::uint32_t> store_groups_;  // by thread: number of groups committed so far
};

}  // namespace flash_ladder::emulator
