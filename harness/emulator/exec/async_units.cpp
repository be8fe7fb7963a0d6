#include "emulator/exec/async_units.h"

#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <limits>
#include <span>

#include "emulator/exec/cta_executor.h"
#include "emulator/lanes/warp.h"
#include "host/sm_limits.h"

namespace flash_ladder::emulator {
namespace {

constexpr std::uint32_t kChunk = AsyncUnits::kChunk;
constexpr int kMmaRows = 16;  // out of a wgmma's 64, in each warp

// PTX ISA, "Matrix Descriptor Format".
struct Descriptor {
  std::uint32_t start, leading, stride;  // bytes
  std::uint32_t base_offset;
  Swizzle swizzle;
};

Descriptor decoded(std::uint64_t bits) {
  constexpr Swizzle kSwizzles[] = {Swizzle::none, Swizzle::bytes_128, Swizzle::bytes_64, Swizzle::bytes_32};
  const auto field = [&](int from) { return static_cast<std::uint32_t>((bits >> from) & 0x3fff) << 4; };
  return {.start = field(0),
          .leading = field(16),
          .stride = field(32),
          .base_offset = static_cast<std::uint32_t>((bits >> 49) & 7),
          .swizzle = kSwizzles[bits >> 62]};
}

// 8-bit floating point. PTX ISA, "Alternate Floating-Point Data Formats". e4m3 has no infinity, and one NaN of each sign.
float float_of_8_bits(std::uint8_t bits, bool e5m2) {
  const int mantissa_bits = e5m2 ? 2 : 3, bias = e5m2 ? 15 : 7;
  const int exponent = (bits & 0x7f) >> mantissa_bits, mantissa = bits & ((1 << mantissa_bits) - 1);
  float value;
  if (e5m2 && exponent == 31) {
    value = mantissa == 0 ? std::numeric_limits<float>::infinity() : std::numeric_limits<float>::quiet_NaN();
  } else if (!e5m2 && (bits & 0x7f) == 0x7f) {
    value = std::numeric_limits<float>::quiet_NaN();
  } else {
    const int significand = exponent == 0 ? mantissa : mantissa | (1 << mantissa_bits);
    value = std::ldexp(static_cast<float>(significand), std::max(exponent, 1) - bias - mantissa_bits);
  }
  return (bits & 0x80) != 0 ? -value : value;
}

// Converts `count` adjacent elements to fp32.
void to_floats(Wgmma::Element element, const std::byte* from, float* to, int count) {
  switch (element) {
    case Wgmma::Element::f16:
      lanes::f16_to_float(reinterpret_cast<const std::uint16_t*>(from), to, count);
      break;
    case Wgmma::Element::bf16:
      lanes::bf16_to_float(reinterpret_cast<const std::uint16_t*>(from), to, count);
      break;
    case Wgmma::Element::tf32:
      for (int i = 0; i < count; ++i) {
        std::uint32_t bits;
        std::memcpy(&bits, from + 4 * i, 4);
        to[i] = std::bit_cast<float>(bits & 0xffffe000);  // the other bits are ignored
      }
      break;
    default:
      for (int i = 0; i < count; ++i)
        to[i] = float_of_8_bits(static_cast<std::uint8_t>(from[i]), element == Wgmma::Element::e5m2);
      break;
  }
}

// The number of registers that ptxas allocates to each thread of a kernel with setmaxnreg: as many as the register file
// allows for a block of this size.
int most_registers(std::size_t num_warps) {
  constexpr int kRegisterFile = sm_limits(kHopperSm)->registers;
  return std::min(kMaxRegistersPerThread, kRegisterFile / static_cast<int>(num_warps * kWarpSize) / 8 * 8);
}

// The position of column n of eight in the order that lanes::wgmma_f16() expects.
constexpr int kPlaceOfColumn[] = {0, 4, 1, 5, 2, 6, 3, 7};

}  // namespace

AsyncUnits::AsyncUnits(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes, int registers_per_thread)
    : cta_(cta),
      num_warps_(num_warps),
      registers_per_thread_(registers_per_thread != 0 ? registers_per_thread : most_registers(num_warps)),
      chunks_((shared_bytes + kChunk - 1) / kChunk),
      fences_(num_warps * kWarpSize),
      mbarrier_fences_(num_warps * kWarpSize),
      known_at_fence_(num_warps),
      warpgroups_((num_warps + kWarpgroup - 1) / kWarpgroup),
      queues_(num_warps),
      store_groups_(num_warps * kWarpSize),
      work_(num_warps),
      registers_(num_warps) {}

void AsyncUnits::start() {
  std::fill(chunks_.begin(), chunks_.end(), Chunk{});
  now_ = 0;
  std::fill(fences_.begin(), fences_.end(), 0);
  std::fill(mbarrier_fences_.begin(), mbarrier_fences_.end(), 0);
  std::fill(known_at_fence_.begin(), known_at_fence_.end(), Clock{});
  std::fill(warpgroups_.begin(), warpgroups_.end(), Warpgroup{});
  std::fill(queues_.begin(), queues_.end(), WarpQueue{});
  loads_.clear();
  next_engine_ = 0;
  stores_.clear();
  std::fill(store_groups_.begin(), store_groups_.end(), 0);
  std::fill(work_.begin(), work_.end(), Work{});
  std::fill(registers_.begin(), registers_.end(), registers_per_thread_);
  pool_ = 0;
  wants_registers_.clear();
}

void AsyncUnits::finish() {
  for (auto& [number, load] : loads_) {
    report(FindingKind::in_flight, load, load.shared(),
           fmt::format("{} ends while {} still writes {} bytes of its shared memory: no thread has waited for the "
                       "phase of the mbarrier at byte {}",
                       load.by == &cta_ ? "the block" : fmt::format("CTA {} of the cluster", cta_.rank()),
                       name_of(load), load.bytes(), load.barrier));
  }
  for (std::size_t rank = 0; rank < cta_.cluster_size(); ++rank) {
    CtaExecutor* const there = cta_.peer(rank);
    if (there == &cta_) continue;
    for (auto& [number, load] : there->async()->loads_) {
      const auto* const transfer = std::get_if<BulkTransfer>(&load.what);
      if (load.by != &cta_ || transfer == nullptr || !transfer->source) continue;
      report(
          FindingKind::in_flight, load, transfer->source->offset,
          fmt::format("the block ends while TMA still copies {} bytes of its shared memory to CTA {} of the cluster: "
                      "nothing made it wait for that CTA, which is waiting for the bytes",
                      load.bytes(), rank));
    }
  }
  for (Store& store : stores_) {
    const Warp& warp = cta_.warps()[static_cast<std::size_t>(store.warp)];
    if (!store.is_read) {
      report(FindingKind::in_flight, warp, store.instruction, store.lane, store.transfer.shared,
             "the block ends while TMA still reads its shared memory: the thread that requested the store has not "
             "waited "
             "(cp.async.bulk.wait_group.read)");
      read(store);
    }
    write_global(store);
  }
  for (std::size_t w = 0; w < queues_.size(); ++w) {
    const WarpQueue& queue = queues_[w];
    if (queue.done == queue.issued) continue;
    const Warp& warp = cta_.warps()[w];
    report(FindingKind::in_flight, warp, issue_of(warp, queue.done).instruction, -1, std::nullopt,
           "the warp ends while this wgmma is in flight: " + why_in_flight(warp, queue.done));
  }
  loads_.clear();
  stores_.clear();
}

void AsyncUnits::renumber(const Renumbering& renumbering) {
  for (Warpgroup& group : warpgroups_)
    for (WgmmaIssue& issue : group.issues) issue.since = renumbering(issue.since);
  for (Store& store : stores_) store.since = renumbering(store.since);
  for (Chunk& chunk : chunks_) chunk.number = renumbering(chunk.number);
  for (auto& [number, load] : loads_) {
    renumbering.apply_to(load.told);
    auto* const transfer = std::get_if<BulkTransfer>(&load.what);
    if (transfer != nullptr && transfer->source) transfer->source->since = renumbering(transfer->source->since);
  }
  for (Clock& clock : known_at_fence_) renumbering.apply_to(clock);
}

bool AsyncUnits::checks() const { return cta_.context().options.checks; }

void AsyncUnits::report(FindingKind kind, const Warp& warp, std::int32_t instruction, int lane,
                        std::optional<Address> address, const std::string& message, const char* what,
                        std::int32_t other, int other_warp, int other_lane) {
  report(cta_, kind, warp, instruction, lane, address, message, what, other, other_warp, other_lane);
}

// Reports an operation in flight, attributed to the CTA of the warp that issued it; the other side is an access of this
// CTA.
void AsyncUnits::report(FindingKind kind, const Load& load, std::optional<Address> address, const std::string& message,
                        const char* what, std::int32_t other) {
  report(*load.by, kind, load.by->warps()[static_cast<std::size_t>(load.warp)], load.instruction, load.lane, address,
         message, what, other, load.warp, load.lane);
}

void AsyncUnits::report(CtaExecutor& by, FindingKind kind, const Warp& warp, std::int32_t instruction, int lane,
                        std::optional<Address> address, const std::string& message, const char* what,
                        std::int32_t other, int other_warp, int other_lane) {
  const std::int32_t other_place = cta_.place_of(other);
  if (!by.findings().is_new(kind, cta_.place_of(instruction), other_place)) return;
  RawFinding raw =
      by.describe(kind, &warp, &cta_.code()[static_cast<std::size_t>(instruction)], lane, address, message);
  raw.other_place = other_place;
  if (other >= 0) {
    raw.finding.other = {.what = what, .position = cta_.position_of(other), .warp = other_warp, .lane = other_lane};
    if (&by != &cta_) raw.finding.other->cta = cta_.cta();
  }
  by.findings().add(std::move(raw));
}

const Wgmma& AsyncUnits::wgmma_of(std::int32_t instruction) const {
  const Instruction& at = cta_.code()[static_cast<std::size_t>(instruction)];
  return cta_.context().kernel.wgmmas[static_cast<std::size_t>(at.wgmma)];
}

// ---- the generic proxy ----

void AsyncUnits::note_write(int warp, std::int32_t instruction, std::uint32_t lanes, unsigned bytes,
                            const std::uint32_t* offsets) {
  if (cta_.shadow() == nullptr) return;
  ++now_;
  const AccessNumber number = cta_.shadow()->clocks().next() - 1;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::uint32_t i = offsets[lane] / kChunk; i <= (offsets[lane] + bytes - 1) / kChunk; ++i) {
      chunks_[i] = {.writer = instruction,
                    .written_at = now_,
                    .number = number,
                    .thread = static_cast<std::uint16_t>(warp * kWarpSize + lane)};
    }
  }
}

void AsyncUnits::forget_write(std::uint32_t lanes, unsigned bytes, const std::uint32_t* offsets) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    for (std::uint32_t i = offsets[lane] / kChunk; i <= (offsets[lane] + bytes - 1) / kChunk; ++i) chunks_[i] = {};
  }
}

void AsyncUnits::fence(const Warp& warp, std::uint32_t lanes, bool only_mbarriers) {
  ++now_;
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
    const std::size_t thread =
        static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(std::countr_zero(rest));
    mbarrier_fences_[thread] = now_;
    if (!only_mbarriers) fences_[thread] = now_;
  }
  if (SharedShadow* shadow = cta_.shadow(); shadow != nullptr && !only_mbarriers)
    known_at_fence_[static_cast<std::size_t>(warp.index)] = shadow->clocks().of(warp.index, std::countr_zero(lanes));
}

void AsyncUnits::note_initialised(Mbarrier& barrier, int warp, int lane, std::int32_t instruction) {
  barrier.engine = next_engine_++ % kEngines;
  barrier.initialised_at = ++now_;
  barrier.initialised_by = instruction;
  barrier.initialised_by_thread = warp * kWarpSize + lane;
}

// Data written by ordinary instructions become visible to the asynchronous proxy through a fence.proxy.async of the
// thread that wrote them, or of the thread that starts the asynchronous operation, once it has acquired the write. (PTX
// ISA, "Causality order".)
void AsyncUnits::check_visible(const Warp& warp, std::int32_t instruction, int lane,
                               const std::vector<std::uint32_t>& chunks) {
  const Clock& known = known_at_fence_[static_cast<std::size_t>(warp.index)];
  const auto was_known = [&](const Chunk& chunk) {
    const std::size_t of_warp = num_warps_ * kWarpSize + chunk.thread / kWarpSize;  // its cp.async
    return !known.empty() && (chunk.number < known[chunk.thread] || chunk.number < known[of_warp]);
  };
  for (const std::uint32_t offset : chunks) {
    Chunk& chunk = chunks_[offset / kChunk];
    if (chunk.writer < 0) continue;
    if (fences_[chunk.thread] < chunk.written_at && !was_known(chunk)) {
      report(FindingKind::missing_fence, warp, instruction, lane, offset,
             fmt::format(
                 "byte {} of shared memory was written by an ordinary instruction, and no fence.proxy.async by the "
                 "thread that wrote it has made it visible to the asynchronous proxy, through which this instruction "
                 "reads",
                 offset),
             "written", chunk.writer, chunk.thread / kWarpSize, chunk.thread % kWarpSize);
    }
    chunk.writer = -1;
  }
}

// ---- wgmma ----

AsyncUnits::WgmmaIssue& AsyncUnits::issue_of(const Warp& warp, std::uint64_t number) {
  Warpgroup& group = warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)];
  return group.issues[number - group.first];
}

// The addresses of an operand's 16-byte chunks: two for each of its rows (of A; columns of B), along k; or, if it is
// transposed, those of each k, one for each eight rows. PTX ISA, "Shared Memory Matrix Layout", "Strides".
std::vector<std::uint32_t> AsyncUnits::chunks_of(const Warp& warp, const Instruction& instruction, std::uint64_t bits,
                                                 int rows, bool transposed) {
  const Descriptor descriptor = decoded(bits);
  const std::uint32_t span = kChunk << static_cast<unsigned>(descriptor.swizzle);  // of the swizzle's rows
  const std::uint32_t side_by_side = span / kChunk;
  std::vector<std::uint32_t> chunks;
  std::uint32_t wrong = 0;
  const std::uint64_t size = cta_.shared_bytes();
  const auto add = [&](std::uint32_t address) {
    // The base offset identifies a pattern that does not start at a multiple of its size.
    const std::uint32_t phase = swizzled(address - (descriptor.base_offset << 7), descriptor.swizzle) ^
                                (address - (descriptor.base_offset << 7));
    const std::uint32_t offset = (address ^ phase) - kSharedBase;
    const bool inside = std::uint64_t{offset} + kChunk <= size;
    if (!inside) wrong = address;
    chunks.push_back(inside ? offset : 0);
  };
  const auto unsigned_rows = static_cast<std::uint32_t>(rows);
  if (!transposed) {
    for (std::uint32_t row = 0; row < unsigned_rows; ++row) {
      const std::uint32_t at = descriptor.start + row / 8 * descriptor.stride + row % 8 * span;
      add(at);
      add(at + (descriptor.swizzle == Swizzle::none ? descriptor.leading : kChunk));
    }
  } else {
    for (std::uint32_t k = 0; k < 16; ++k) {
      for (std::uint32_t j = 0; j < unsigned_rows / 8; ++j) {
        if (descriptor.swizzle == Swizzle::none) {
          add(descriptor.start + j * descriptor.stride + k % 8 * kChunk + k / 8 * descriptor.leading);
        } else {
          add(descriptor.start + j % side_by_side * kChunk + j / side_by_side * descriptor.leading + k % 8 * span +
              k / 8 * descriptor.stride);
        }
      }
    }
  }
  if (wrong != 0) {
    cta_.find(
        FindingKind::out_of_bounds, &warp, &instruction, -1, wrong - kSharedBase,
        fmt::format("an operand of wgmma reaches byte {} of the block's {} bytes of shared memory: its descriptor has "
                    "start {}, leading offset {} and stride offset {}",
                    static_cast<std::int32_t>(wrong - kSharedBase), size,
                    static_cast<std::int32_t>(descriptor.start - kSharedBase), descriptor.leading, descriptor.stride));
  }
  return chunks;
}

// Calls f(access) for 32 chunks at a time.
template <typename F>
void AsyncUnits::for_each_access(const Warp& warp, std::int32_t instruction, int lane,
                                 const std::vector<std::uint32_t>& chunks, F f) {
  for (std::size_t first = 0; first < chunks.size(); first += kWarpSize) {
    const std::size_t count = std::min<std::size_t>(kWarpSize, chunks.size() - first);
    alignas(64) std::uint32_t offsets[kWarpSize] = {};
    std::copy_n(chunks.begin() + static_cast<std::ptrdiff_t>(first), count, offsets);
    const std::uint32_t mask = count == kWarpSize ? kAllLanes : (1u << count) - 1;
    f(SharedAccess{warp.index, instruction, false, mask, kChunk, offsets, lane});
  }
}

void AsyncUnits::issue_wgmma(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta_.check_all_lanes(warp, instruction, mask);
  const Wgmma& wgmma = cta_.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  const std::int32_t index = cta_.index_of(instruction);
  const int first_warp = warp.index / kWarpgroup * kWarpgroup;
  if (static_cast<std::size_t>(first_warp + kWarpgroup) > num_warps_) {
    cta_.find(
        FindingKind::invalid_operation, &warp, &instruction, -1, std::nullopt,
        fmt::format("wgmma is for warpgroups of four warps, the first of which is a multiple of four; the block has {} "
                    "warps, so none starts at warp {}",
                    num_warps_, first_warp));
    return;
  }
  const int lane = std::countr_zero(mask);
  std::uint64_t descriptors[2] = {};
  const std::size_t num_descriptors = wgmma.a.empty() ? 2 : 1;
  for (std::size_t i = 0; i < num_descriptors; ++i) {
    const auto* lanes = reinterpret_cast<const std::uint64_t*>(warp.registers + instruction.r[i]);
    descriptors[2 - num_descriptors + i] = lanes[lane];
    for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
      if (lanes[std::countr_zero(rest)] == lanes[lane]) continue;
      cta_.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(rest), std::nullopt,
                "a matrix descriptor of wgmma that differs between the lanes of the warp");
      break;
    }
  }
  std::uint32_t scale;
  std::memcpy(&scale, warp.registers + instruction.r[num_descriptors], sizeof scale);
  const bool accumulates = (scale & mask) != 0;
  if (accumulates && (scale & mask) != mask) {
    cta_.find(FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(mask & ~scale), std::nullopt,
              "scale-d of wgmma differs between the lanes of the warp");
  }

  work_[static_cast<std::size_t>(warp.index)].multiplies = true;
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  Warpgroup& group = warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)];
  const std::uint64_t number = queue.issued++;
  const bool is_first = number == group.first + group.issues.size();
  if (is_first) {
    WgmmaIssue& issue = group.issues.emplace_back();
    issue.instruction = index;
    std::copy_n(descriptors, 2, issue.descriptors);
    issue.accumulates = accumulates;
    if (cta_.shadow() != nullptr) issue.since = cta_.shadow()->clocks().next();
    if (cta_.trace() != nullptr) issue.traced = cta_.trace()->clock(warp.index) - 1;
    if (wgmma.a.empty()) issue.chunks[0] = chunks_of(warp, instruction, descriptors[0], 64, wgmma.transposes_a);
    issue.chunks[1] = chunks_of(warp, instruction, descriptors[1], wgmma.n, wgmma.transposes_b);
    // The tensor cores read 8 rows of 16 bytes at a time, as ldmatrix does.
    for (const std::vector<std::uint32_t>& chunks : issue.chunks) {
      // Chunks of eight consecutive rows: in `chunks`, two of a row are adjacent.
      const bool transposed = &chunks == &issue.chunks[0] ? wgmma.transposes_a : wgmma.transposes_b;
      const std::size_t step = transposed ? chunks.size() / 16 : 2;
      std::vector<std::uint32_t> by_matrix;
      by_matrix.reserve(chunks.size());
      for (std::size_t block = 0; block < chunks.size(); block += 8 * step)
        for (std::size_t i = 0; i < step; ++i)
          for (std::size_t row = 0; row < 8; ++row) by_matrix.push_back(chunks[block + row * step + i]);
      for_each_access(warp, index, -1, by_matrix, [&](const SharedAccess& access) {
        cta_.count_shared(instruction, access.mask, access.mask, kChunk, access.offsets, true);
      });
    }
  }
  WgmmaIssue& issue = issue_of(warp, number);
  issue.issued |= 1u << (warp.index - first_warp);
  if (issue.instruction != index || issue.descriptors[0] != descriptors[0] || issue.descriptors[1] != descriptors[1] ||
      issue.accumulates != accumulates) {
    report(FindingKind::invalid_operation, warp, index, lane, std::nullopt,
           fmt::format("the four warps of a warpgroup must execute the same wgmma together, with the same descriptors "
                       "and scale-d; warp {} executes a different one",
                       warp.index),
           "executed", issue.instruction, first_warp + std::countr_zero(issue.issued), 0);
  }
  if (checks()) {
    check_registers(warp, instruction);
    check_operands(warp, instruction, issue, is_first);
  }
  if (!warp.undefined.empty()) {
    for (const std::int32_t which : wgmma.watched_a) {
      const UndefinedLanes& a = warp.undefined[static_cast<std::size_t>(which)];
      cta_.report_undefined(warp, instruction, {a.lanes & mask, a.origin}, "multiplied by this wgmma");
    }
    for (const std::int32_t which : wgmma.watched_d) {
      UndefinedLanes& d = warp.undefined[static_cast<std::size_t>(which)];
      if (accumulates) cta_.report_undefined(warp, instruction, {d.lanes & mask, d.origin}, "added to by this wgmma");
      d.lanes &= ~mask;
    }
  }
  if (cta_.context().options.early_async) execute(issue, warp.index, 1);

  // Another warp may be waiting for this.
  for (int other = first_warp; other < first_warp + kWarpgroup; ++other) {
    Warp& waiting = cta_.warps()[static_cast<std::size_t>(other)];
    if (queues_[static_cast<std::size_t>(other)].waiting >= 0 && try_to_wait(waiting)) cta_.note_progress();
  }
}

// Why a wgmma is still in flight.
std::string AsyncUnits::why_in_flight(const Warp& warp, std::uint64_t number) const {
  const WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  if (number >= queue.committed) return "no wgmma.commit_group has put it into a group";
  if (number >= queue.seen) return "no wgmma.wait_group has come since";
  const std::string at = to_string(cta_.position_of(queue.waited));
  if (queue.leaves == 1)
    return fmt::format("wgmma.wait_group 1 at {} leaves the newest group pending, and this wgmma is in it", at);
  return fmt::format("wgmma.wait_group {} at {} leaves the {} newest groups pending, and this wgmma is in one of them",
                     queue.leaves, at, queue.leaves);
}

// wgmma may use registers that were accessed earlier only after a wgmma.fence, and may not use those of another wgmma
// in flight, except for accumulators of the same shape.
void AsyncUnits::check_registers(const Warp& warp, const Instruction& instruction) {
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  const Wgmma& wgmma = cta_.context().kernel.wgmmas[static_cast<std::size_t>(instruction.wgmma)];
  const std::int32_t index = cta_.index_of(instruction);
  const auto is_in = [](const std::vector<std::int32_t>& registers, std::int32_t reg) {
    return std::find(registers.begin(), registers.end(), reg) != registers.end();
  };
  if (!queue.fenced) {
    report(FindingKind::missing_fence, warp, index, -1, std::nullopt,
           "a wgmma before any wgmma.fence: nothing orders it after the warp's earlier accesses to these registers");
  } else {
    for (const auto& [reg, by] : queue.touched) {
      const bool is_a = is_in(wgmma.a, reg);
      if (!is_a && !is_in(wgmma.d, reg)) continue;
      report(FindingKind::missing_fence, warp, index, -1, std::nullopt,
             fmt::format(
                 "a register of {} was read or written since the last wgmma.fence: nothing orders this wgmma after "
                 "that access. Put a wgmma.fence between the two",
                 is_a ? "A" : "the accumulator"),
             "touched", by, warp.index, 0);
      break;
    }
  }
  for (std::uint64_t number = queue.done; number + 1 < queue.issued; ++number) {
    const WgmmaIssue& before = issue_of(warp, number);
    const Wgmma& other = wgmma_of(before.instruction);
    const bool reads_its_d = !wgmma.a.empty() && is_in(other.d, wgmma.a[0]);
    const bool writes_its_a = !other.a.empty() && is_in(wgmma.d, other.a[0]);
    const bool other_shape = other.n != wgmma.n && is_in(other.d, wgmma.d[0]);
    if (!reads_its_d && !writes_its_a && !other_shape) continue;
    report(FindingKind::in_flight, warp, index, -1, std::nullopt,
           (reads_its_d    ? "A is the accumulator of a wgmma that is in flight: "
            : writes_its_a ? "the accumulator is A of a wgmma that is in flight: "
                           : "the accumulator belongs to a wgmma of another shape that is in flight: ") +
               why_in_flight(warp, number),
           "wgmma issued", before.instruction, warp.index, 0);
    break;
  }
}

// Checks the data in shared memory: they must be written, ordered, visible to the asynchronous proxy, and in the layout
// of the descriptor.
void AsyncUnits::check_operands(const Warp& warp, const Instruction& instruction, const WgmmaIssue& issue, bool first) {
  const std::int32_t index = cta_.index_of(instruction);
  for (int operand = 0; operand < 2; ++operand) {
    const std::vector<std::uint32_t>& chunks = issue.chunks[operand];
    if (SharedShadow* shadow = cta_.shadow()) {
      for_each_access(warp, index, -1, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
    }
    check_visible(warp, index, -1, chunks);
    if (!first || chunks.empty()) continue;
    const Swizzle swizzle = decoded(issue.descriptors[operand]).swizzle;
    for (const std::uint32_t offset : chunks) {
      const Chunk& chunk = chunks_[offset / kChunk];
      if (chunk.swizzle == 0 || chunk.swizzle == 1 + static_cast<int>(swizzle)) continue;
      report(FindingKind::layout_mismatch, warp, index, -1, offset,
             fmt::format("the descriptor of {} specifies {}, but TMA wrote byte {} of shared memory with {}",
                         operand == 0 ? "A" : "B", to_string(swizzle), offset,
                         to_string(static_cast<Swizzle>(chunk.swizzle - 1))),
             "written by TMA", chunk.tma, warp.index, 0);
      break;
    }
  }
}

void AsyncUnits::fence_registers(Warp& warp) {
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  queue.fenced = true;
  queue.touched.clear();
}

void AsyncUnits::commit_wgmma(Warp& warp) {
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  queue.groups.push_back(queue.issued);
  queue.committed = queue.issued;
}

void AsyncUnits::wait_for_wgmma(Warp& warp, const Instruction& instruction) {
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  queue.waits_until = queue.done;
  queue.seen = queue.issued;
  queue.leaves = static_cast<unsigned>(instruction.count);
  queue.waited = cta_.index_of(instruction);
  while (queue.groups.size() > instruction.count) {
    queue.waits_until = queue.groups.front();
    queue.groups.pop_front();
  }
  queue.waiting = cta_.index_of(instruction);
  if (!try_to_wait(warp)) warp.status = WarpStatus::waiting;
}

// Whether everything that the warp waits for could be done, because all four warps have issued it.
bool AsyncUnits::try_to_wait(Warp& warp) {
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  Warpgroup& group = warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)];
  const int first_warp = warp.index / kWarpgroup * kWarpgroup;
  constexpr unsigned kAll = (1u << kWarpgroup) - 1;
  for (std::uint64_t number = queue.done; number < queue.waits_until; ++number) {
    if (issue_of(warp, number).issued != kAll) return false;
  }
  SharedShadow* shadow = cta_.shadow();
  const Warp& owner = cta_.warps()[static_cast<std::size_t>(first_warp)];  // the warp to which the reads are attributed
  const bool early = cta_.context().options.early_async;
  for (std::uint64_t number = group.first; number < queue.waits_until; ++number) {
    WgmmaIssue& issue = issue_of(warp, number);
    if (issue.executed) continue;
    if (!early) execute(issue, first_warp, kWarpgroup);
    if (shadow != nullptr) {
      for (const std::vector<std::uint32_t>& chunks : issue.chunks)
        for_each_access(owner, issue.instruction, -1, chunks,
                        [&](const SharedAccess& access) { shadow->complete_async_read(access, issue.since); });
    }
    issue.executed = true;
    if (TraceRecorder* trace = cta_.trace())
      trace->finish_wgmma(first_warp, issue.traced, warp.index, issue.instruction);
  }
  if (shadow != nullptr && queue.waits_until > queue.done) {
    Clock clock = shadow->clocks().empty();
    shadow->clocks().publish_async(first_warp, clock);
    shadow->clocks().acquire(warp.index, warp.alive, warp.alive, clock);
  }
  queue.done = std::max(queue.done, queue.waits_until);
  queue.waiting = -1;
  retire(group, first_warp);
  if (warp.status == WarpStatus::waiting) warp.status = WarpStatus::ready;
  return true;
}

// Discards what all four warps have waited for.
void AsyncUnits::retire(Warpgroup& group, int first_warp) {
  std::uint64_t done = queues_[static_cast<std::size_t>(first_warp)].done;
  const auto end = std::min(num_warps_, static_cast<std::size_t>(first_warp + kWarpgroup));
  for (auto i = static_cast<std::size_t>(first_warp) + 1; i < end; ++i) done = std::min(done, queues_[i].done);
  while (group.first < done) {
    group.issues.pop_front();
    ++group.first;
  }
}

// Computes these warps' part of D.
void AsyncUnits::execute(const WgmmaIssue& issue, int first_warp, int warps) {
  const Wgmma& wgmma = wgmma_of(issue.instruction);
  const int k = wgmma.k(), n = wgmma.n;
  const int per_chunk = static_cast<int>(kChunk) / wgmma.element_bytes();
  const std::byte* const shared = cta_.shared();
  alignas(64) float values[16];

  alignas(64) static thread_local float b[32 * 256];  // [k][n], columns in the order of kPlaceOfColumn
  const std::vector<std::uint32_t>& b_chunks = issue.chunks[1];
  const float b_sign = wgmma.negates_b ? -1.0f : 1.0f;
  for (std::size_t i = 0; i < b_chunks.size(); ++i) {
    to_floats(wgmma.b_element, shared + b_chunks[i], values, per_chunk);
    if (!wgmma.transposes_b) {
      const int column = static_cast<int>(i / 2), first_k = static_cast<int>(i % 2) * per_chunk;
      float* const to = b + column / 8 * 8 + kPlaceOfColumn[column % 8];
      for (int j = 0; j < per_chunk; ++j) to[(first_k + j) * n] = b_sign * values[j];
    } else {
      const int row = static_cast<int>(i) / (n / 8), column = static_cast<int>(i) % (n / 8) * 8;
      for (int j = 0; j < 8; ++j) b[row * n + column + kPlaceOfColumn[j]] = b_sign * values[j];
    }
  }
  const float a_sign = wgmma.negates_a ? -1.0f : 1.0f;
  std::vector<float> widened;
  for (int w = first_warp; w < first_warp + warps; ++w) {
    Warp& warp = cta_.warps()[static_cast<std::size_t>(w)];
    const int first_row = w % kWarpgroup * kMmaRows;
    alignas(64) float a[kMmaRows * 32];  // [row][k]
    if (wgmma.a.empty()) {
      const std::vector<std::uint32_t>& chunks = issue.chunks[0];
      for (int row = 0; row < kMmaRows; ++row) {
        for (int half = 0; half < 2 && !wgmma.transposes_a; ++half) {
          const auto chunk = static_cast<std::size_t>(2 * (first_row + row) + half);
          to_floats(wgmma.a_element, shared + chunks[chunk], a + row * k + half * per_chunk, per_chunk);
        }
      }
      for (int i = 0; i < 16 && wgmma.transposes_a; ++i) {
        for (int half = 0; half < 2; ++half) {
          to_floats(wgmma.a_element, shared + chunks[static_cast<std::size_t>(8 * i + first_row / 8 + half)], values,
                    8);
          for (int j = 0; j < 8; ++j) a[(8 * half + j) * k + i] = values[j];
        }
      }
    } else {
      // As in mma: in lane 4 row + t, each register contains the t-th four bytes of a block of eight rows.
      for (std::size_t reg = 0; reg < 4; ++reg) {
        const std::byte* const lanes = warp.registers + wgmma.a[reg];
        const int block_row = static_cast<int>(reg % 2) * 8, block_k = static_cast<int>(reg / 2) * per_chunk;
        for (int row = 0; row < 8; ++row)
          to_floats(wgmma.a_element, lanes + 16 * row, a + (block_row + row) * k + block_k, per_chunk);
      }
    }
    if (wgmma.negates_a)
      for (float& value : a) value *= a_sign;

    float* d[4 * 256 / 8];
    const int num_registers = 4 * n / 8;
    const LaneTable& lanes = lane_table();
    if (!wgmma.d_in_f16) {
      for (int i = 0; i < num_registers; ++i)
        d[i] = reinterpret_cast<float*>(warp.registers + wgmma.d[static_cast<std::size_t>(i)]);
    } else {  // two columns of a row in each register
      widened.resize(static_cast<std::size_t>(num_registers) * kWarpSize);
      for (int i = 0; i < num_registers; ++i) {
        d[i] = widened.data() + i * kWarpSize;
        const auto* pairs =
            reinterpret_cast<const std::uint16_t*>(warp.registers + wgmma.d[static_cast<std::size_t>(i / 2)]);
        std::uint16_t halves[kWarpSize];
        for (int lane = 0; lane < kWarpSize; ++lane) halves[lane] = pairs[2 * lane + i % 2];
        lanes::f16_to_float(halves, d[i], kWarpSize);
      }
    }
    const auto multiply = wgmma.a_element == Wgmma::Element::bf16 || wgmma.a_element == Wgmma::Element::tf32
                              ? lanes::wgmma_bf16
                              : lanes::wgmma_f16;
    multiply(d, a, b, n, k, issue.accumulates);
    if (wgmma.d_in_f16) {
      const LaneFunction narrow = lanes.find("cvt.rn.f16x2.f32")->function;
      alignas(64) std::byte file[3 * 128];
      const std::int32_t r[] = {0, 128, 256};  // the result, and its upper and lower half
      for (int i = 0; i < num_registers / 2; ++i) {
        std::memcpy(file + 128, d[2 * i + 1], 128);
        std::memcpy(file + 256, d[2 * i], 128);
        narrow(file, r, kAllLanes);
        std::memcpy(warp.registers + wgmma.d[static_cast<std::size_t>(i)], file, 128);
      }
    }
  }
}

void AsyncUnits::probe(Warp& warp, const Instruction& instruction) {
  if (!checks()) return;
  WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  const std::int32_t index = cta_.index_of(instruction);
  for (std::size_t k = 0; k < instruction.operands; ++k) {
    const std::int32_t reg = instruction.r[k];
    if ((instruction.probe & kIsUnfenced) != 0) {
      const auto known = std::find_if(queue.touched.begin(), queue.touched.end(),
                                      [&](const auto& touched) { return touched.first == reg; });
      if (known == queue.touched.end()) queue.touched.emplace_back(reg, index);
    }
    if ((instruction.probe & kMayBeInFlight) == 0) continue;
    for (std::uint64_t number = queue.done; number < queue.issued; ++number) {
      const WgmmaIssue& issue = issue_of(warp, number);
      const Wgmma& wgmma = wgmma_of(issue.instruction);
      const bool of_d = std::find(wgmma.d.begin(), wgmma.d.end(), reg) != wgmma.d.end();
      // Registers that hold A may be read.
      const bool of_a = k < instruction.writes && std::find(wgmma.a.begin(), wgmma.a.end(), reg) != wgmma.a.end();
      if (!of_d && !of_a) continue;
      report(FindingKind::in_flight, warp, index, -1, std::nullopt,
             fmt::format("a {} of a register of {} of a wgmma that is in flight: {}",
                         k < instruction.writes ? "write" : "read", of_d ? "the accumulator" : "A",
                         why_in_flight(warp, number)),
             "wgmma issued", issue.instruction, warp.index, 0);
      break;
    }
  }
}

// ---- TMA, st.async ----

std::vector<std::uint32_t> AsyncUnits::chunks_of(const BulkTransfer& transfer) {
  std::vector<std::uint32_t> chunks;
  chunks.reserve(transfer.bytes() / kChunk);
  for (std::uint32_t row = 0; row < transfer.extent(); row += transfer.row_pitch()) {
    for (std::uint32_t at = 0; at < transfer.row_bytes; at += kChunk)
      chunks.push_back(swizzled(transfer.shared + row + at, transfer.swizzle));
  }
  return chunks;
}

// From global to shared memory.
void AsyncUnits::write_shared(const BulkTransfer& transfer) {
  std::vector<std::uint16_t> row(transfer.row_bytes / 2);
  const std::span<std::byte> bytes = std::as_writable_bytes(std::span(row));
  std::uint32_t at = transfer.shared;
  for (const BulkTransfer::Row& from : transfer.rows) {
    std::ranges::fill(row, transfer.fill);
    if (from.begin < from.end) std::memcpy(bytes.data() + from.begin, from.host, from.end - from.begin);
    for (std::uint32_t i = 0; i < transfer.row_bytes; i += kChunk)
      std::memcpy(cta_.shared() + swizzled(at + i, transfer.swizzle), bytes.data() + i, kChunk);
    at += transfer.row_pitch();
  }
}

std::vector<std::uint32_t> AsyncUnits::chunks_of_source(const BulkTransfer& transfer) {
  std::vector<std::uint32_t> chunks;
  for (std::uint32_t at = 0; at < transfer.bytes(); at += kChunk) chunks.push_back(transfer.source->offset + at);
  return chunks;
}

void AsyncUnits::begin_source(Warp& warp, const Instruction& instruction, int lane, BulkTransfer& transfer) {
  const std::int32_t index = cta_.index_of(instruction);
  const std::vector<std::uint32_t> chunks = chunks_of_source(transfer);
  if (SharedShadow* shadow = cta_.shadow()) {
    transfer.source->since = shadow->clocks().next();
    for_each_access(warp, index, lane, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
  }
  if (checks()) check_visible(warp, index, lane, chunks);
}

// The bytes have been read: records that in `into`, a clock of `owner`.
void AsyncUnits::end_source(const Load& load, CtaExecutor& owner, Clock& into) {
  const auto& transfer = std::get<BulkTransfer>(load.what);
  SharedShadow* const shadow = cta_.shadow();
  const Warp& warp = cta_.warps()[static_cast<std::size_t>(load.warp)];
  for_each_access(warp, load.instruction, load.lane, chunks_of_source(transfer),
                  [&](const SharedAccess& access) { shadow->complete_async_read(access, transfer.source->since); });
  Clock told = shadow->clocks().empty();
  shadow->clocks().publish_async(load.warp, told);
  join(into, &owner == &cta_ ? told : owner.shadow()->clocks().turned(told, shadow->clocks()));
}

std::uint32_t AsyncUnits::Load::shared() const {
  const auto* const stores = std::get_if<LaneStores>(&what);
  return stores == nullptr ? std::get<BulkTransfer>(what).shared
                           : stores->offsets[static_cast<std::size_t>(std::countr_zero(stores->lanes))];
}

void AsyncUnits::write_shared(const LaneStores& stores) {
  for (std::uint32_t rest = stores.lanes; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* const to = cta_.shared() + stores.offsets[static_cast<std::size_t>(lane)];
    if (stores.combine == nullptr) {
      std::memcpy(to, stores.value(lane), stores.bytes_each);
      continue;
    }
    std::uint64_t old = 0, operand = 0;
    std::memcpy(&old, to, stores.bytes_each);
    std::memcpy(&operand, stores.value(lane), stores.bytes_each);
    const std::uint64_t combined = stores.combine(stores.type, old, operand);
    std::memcpy(to, &combined, stores.bytes_each);
  }
}

const char* AsyncUnits::name_of(const Load& load) const {
  const auto* const stores = std::get_if<LaneStores>(&load.what);
  return stores == nullptr ? "TMA" : stores->combine == nullptr ? "st.async" : "red.async";
}

// Names the origin of the data in flight: "TMA brings".
std::string AsyncUnits::bringers(const Mbarrier& barrier) const {
  std::vector<std::string> names;
  for (const std::uint64_t number : barrier.deliveries) {
    const std::string name = name_of(loads_.at(number));
    if (std::find(names.begin(), names.end(), name) == names.end()) names.push_back(name);
  }
  if (names.empty()) return "nothing brings";
  return fmt::format("{} {}", fmt::join(names, " and "), names.size() == 1 ? "brings" : "bring");
}

void AsyncUnits::issue_lane_stores(CtaExecutor& by, Warp& warp, const Instruction& instruction,
                                   const LaneStores& stores, Mbarrier& barrier, const PeerAccess* peer) {
  const std::int32_t index = cta_.index_of(instruction);
  Load load{&by, warp.index, std::countr_zero(stores.lanes), index, barrier.address, stores};
  const bool reduces = stores.combine != nullptr;
  if (SharedShadow* shadow = cta_.shadow()) {
    SharedAccess access{warp.index,           index, reduces ? kStrong : kWeak, stores.lanes, stores.bytes_each,
                        stores.offsets.data()};
    access.peer = peer;
    // The mbarrier had already been initialised.
    std::array<std::uint32_t, kWarpSize> at;
    at.fill(barrier.address);
    SharedAccess of_barrier{warp.index, index, kStrong, 1u << load.lane, 8, at.data()};
    of_barrier.peer = peer;
    shadow->check_read(of_barrier);
    if (reduces) shadow->check_read(access);
    shadow->issue_copy(access);
    std::uint32_t overwritten = shadow->overwritten_in_copy(access);
    for (std::uint32_t rest = reduces ? 0 : overwritten; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      const std::uint32_t to = stores.offsets[static_cast<std::size_t>(lane)];
      int last = lane;
      for (int other = lane + 1; other < kWarpSize; ++other)
        if (((stores.lanes >> other) & 1) != 0 && stores.offsets[static_cast<std::size_t>(other)] == to) last = other;
      if (std::memcmp(stores.value(lane), stores.value(last), stores.bytes_each) == 0) overwritten &= ~(1u << lane);
    }
    if (!reduces) shadow->report_overwritten(access, overwritten);
    // Unlike the completion of cp.async.bulk, this one also releases everything before it: nothing in "Asynchronous
    // Operations" of the ISA's "Program Order" exempts it.
    load.told = shadow->clocks().empty();
    if (&by == &cta_)
      shadow->clocks().release(warp.index, stores.lanes, load.told);
    else
      by.tell_peer(warp, cta_, stores.lanes, load.told);
  }
  // Whether the asynchronous proxy can see it is not tracked.
  forget_write(stores.lanes, stores.bytes_each, stores.offsets.data());
  if (cta_.context().options.early_async) {
    write_shared(stores);
  } else if (!reduces) {
    for (std::uint32_t rest = stores.lanes; rest != 0; rest &= rest - 1)
      std::memset(cta_.shared() + stores.offsets[static_cast<std::size_t>(std::countr_zero(rest))], kPoison,
                  stores.bytes_each);
  }
  barrier.deliveries.push_back(next_load_);
  loads_.emplace(next_load_++, std::move(load));
  cta_.note_progress();
}

void AsyncUnits::issue_load(CtaExecutor& by, Warp& warp, const Instruction& instruction, int lane,
                            BulkTransfer transfer, Mbarrier& barrier, const PeerAccess* peer) {
  const bool from_peer = &by != &cta_;
  const std::int32_t index = cta_.index_of(instruction);
  const std::size_t own = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  if (checks() && !from_peer && barrier.initialised_by_thread >= 0 &&
      mbarrier_fences_[static_cast<std::size_t>(barrier.initialised_by_thread)] < barrier.initialised_at &&
      mbarrier_fences_[own] < barrier.initialised_at) {
    report(FindingKind::missing_fence, warp, index, lane, barrier.address,
           fmt::format("the mbarrier at byte {} of shared memory was initialised, but the thread that did so has "
                       "executed no fence.mbarrier_init (or fence.proxy.async) since: before version 9.3, the PTX ISA "
                       "does not guarantee that TMA sees the barrier without one",
                       barrier.address),
           "initialised", barrier.initialised_by, barrier.initialised_by_thread / kWarpSize,
           barrier.initialised_by_thread % kWarpSize);
    barrier.initialised_by_thread = -1;
  }
  const std::vector<std::uint32_t> chunks = chunks_of(transfer);
  if (SharedShadow* shadow = cta_.shadow()) {
    for_each_access(warp, index, lane, chunks, [&](SharedAccess access) {
      access.peer = peer;
      shadow->issue_copy(access, !from_peer || peer != nullptr);
    });
  }
  for (const std::uint32_t offset : chunks) {
    chunks_[offset / kChunk] = {
        .swizzle = static_cast<std::uint8_t>(transfer.of_tensor ? 1 + static_cast<int>(transfer.swizzle) : 0),
        .tma = index};
  }
  if (cta_.context().options.early_async) {
    write_shared(transfer);
  } else {
    for (const std::uint32_t offset : chunks) std::memset(cta_.shared() + offset, kPoison, kChunk);
  }
  if (TraceRecorder* trace = cta_.trace(); trace != nullptr && !from_peer) {
    trace->note({.warp = warp.index,
                 .kind = TraceEvent::Kind::tma_load,
                 .barrier = TraceBarrier{true, barrier.address, barrier.phase},
                 .shared = transfer.shared,
                 .bytes = transfer.bytes()},
                index);
  }
  if (!from_peer) work_[static_cast<std::size_t>(warp.index)].loads = true;
  barrier.deliveries.push_back(next_load_);
  loads_.emplace(next_load_++, Load{&by, warp.index, lane, index, barrier.address, std::move(transfer)});
  cta_.note_progress();
}

void AsyncUnits::arrive(Load& load, Mbarrier& barrier) {
  if (!cta_.context().options.early_async) std::visit([&](const auto& what) { write_shared(what); }, load.what);
  barrier.transactions -= load.bytes();
  if (SharedShadow* shadow = cta_.shadow()) {
    if (const auto* const stores = std::get_if<LaneStores>(&load.what)) {
      SharedAccess access{load.warp,     load.instruction,   stores->combine == nullptr ? kWeak : kStrong,
                          stores->lanes, stores->bytes_each, stores->offsets.data()};
      access.engine = barrier.engine;
      shadow->complete_copy(access, true);
      join(barrier.arriving, load.told);
    } else {
      const Warp& warp = cta_.warps()[static_cast<std::size_t>(load.warp)];
      for_each_access(warp, load.instruction, load.lane, chunks_of(std::get<BulkTransfer>(load.what)),
                      [&](SharedAccess access) {
                        access.engine = barrier.engine;
                        shadow->complete_copy(access, true);
                      });
    }
    const auto* const transfer = std::get_if<BulkTransfer>(&load.what);
    if (transfer != nullptr && transfer->source) load.by->async()->end_source(load, cta_, barrier.arriving);
    shadow->clocks().publish_async(static_cast<int>(num_warps_) + barrier.engine, barrier.arriving);
  }
  cta_.note_progress();
}

void AsyncUnits::deliver(Mbarrier& barrier) {
  if (barrier.pending != 0 || barrier.deliveries.empty()) return;
  std::int64_t under_way = 0;
  for (const std::uint64_t number : barrier.deliveries) under_way += loads_.at(number).bytes();
  if (under_way < barrier.transactions) return;  // more bytes must follow
  if (under_way > barrier.transactions) {
    report(FindingKind::transaction_count, loads_.at(barrier.deliveries.back()), barrier.address,
           fmt::format("{} {} bytes for phase {} of the mbarrier at byte {} of shared memory, but expect_tx has "
                       "announced {}: the phase may end before all of them have arrived",
                       bringers(barrier), under_way, barrier.phase, barrier.address, barrier.promised),
           "expect_tx", barrier.promised_by);
  }
  for (const std::uint64_t number : barrier.deliveries) {
    arrive(loads_.at(number), barrier);
    loads_.erase(number);
  }
  barrier.deliveries.clear();
  barrier.transactions = 0;
}

void AsyncUnits::expect(Warp& warp, const Instruction& instruction, int lane, Mbarrier& barrier, std::uint32_t bytes) {
  constexpr std::uint32_t kMost = (1u << 20) - 1;
  if (bytes > kMost || barrier.transactions + bytes > kMost) {
    cta_.find(
        FindingKind::invalid_operation, &warp, &instruction, lane, barrier.address,
        fmt::format("expect_tx of {} bytes; a phase can wait for {} at most", barrier.transactions + bytes, kMost));
    return;
  }
  barrier.transactions += bytes;
  barrier.promised += bytes;
  barrier.promised_by = cta_.index_of(instruction);
}

void AsyncUnits::end_phase(Mbarrier& barrier) {
  if (!barrier.deliveries.empty()) {
    const Load& load = loads_.at(barrier.deliveries.front());
    report(FindingKind::transaction_count, load, barrier.address,
           fmt::format("phase {} of the mbarrier at byte {} of shared memory has ended, but this {} of {} bytes is "
                       "still in flight: expect_tx has announced {} bytes",
                       barrier.phase - 1, barrier.address,
                       std::holds_alternative<BulkTransfer>(load.what) ? "load" : name_of(load), load.bytes(),
                       barrier.promised),
           "expect_tx", barrier.promised_by);
  }
  barrier.promised = 0;
}

std::string AsyncUnits::describe_transactions(const Mbarrier& barrier) const {
  if (barrier.transactions == 0) return {};
  std::int64_t under_way = 0;
  for (const std::uint64_t number : barrier.deliveries) under_way += loads_.at(number).bytes();
  return fmt::format(", and {} bytes, of which {} {}", barrier.transactions, bringers(barrier),
                     under_way == 0 ? "any" : std::to_string(under_way));
}

const Mbarrier* AsyncUnits::told_by_load(std::int32_t instruction, std::uint32_t offset) const {
  const auto writes = [&](const Load& load) {
    if (const auto* const stores = std::get_if<LaneStores>(&load.what)) {
      for (std::uint32_t rest = stores->lanes; rest != 0; rest &= rest - 1)
        if (offset - stores->offsets[static_cast<std::size_t>(std::countr_zero(rest))] < stores->bytes_each)
          return true;
      return false;
    }
    const std::vector<std::uint32_t> chunks = chunks_of(std::get<BulkTransfer>(load.what));
    return std::ranges::any_of(chunks, [&](std::uint32_t chunk) { return offset - chunk < kChunk; });
  };
  for (auto entry = loads_.rbegin(); entry != loads_.rend(); ++entry) {
    const Load& load = entry->second;
    if (load.instruction != instruction || !writes(load)) continue;
    const auto barrier = std::ranges::find(cta_.mbarriers(), load.barrier, &Mbarrier::address);
    return barrier == cta_.mbarriers().end() ? nullptr : &*barrier;
  }
  return nullptr;
}

void AsyncUnits::issue_store(Warp& warp, const Instruction& instruction, int lane, BulkTransfer transfer) {
  const std::int32_t index = cta_.index_of(instruction);
  const std::vector<std::uint32_t> chunks = chunks_of(transfer);
  AccessNumber since = 0;
  if (SharedShadow* shadow = cta_.shadow()) {
    since = shadow->clocks().next();
    for_each_access(warp, index, lane, chunks, [&](const SharedAccess& access) { shadow->check_async_read(access); });
  }
  if (checks()) check_visible(warp, index, lane, chunks);
  work_[static_cast<std::size_t>(warp.index)].stores = true;
  if (TraceRecorder* trace = cta_.trace()) {
    trace->note(
        {.warp = warp.index, .kind = TraceEvent::Kind::tma_store, .shared = transfer.shared, .bytes = transfer.bytes()},
        index);
  }
  const std::size_t thread = static_cast<std::size_t>(warp.index) * kWarpSize + static_cast<std::size_t>(lane);
  Store& store = stores_.emplace_back(
      Store{warp.index, lane, index, store_groups_[thread], since, std::move(transfer), false, {}});
  if (cta_.context().options.early_async) {
    read(store);
    store.is_read = false;  // not known
  }
  cta_.note_progress();
}

void AsyncUnits::commit_stores(Warp& warp, std::uint32_t lanes) {
  for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1)
    ++store_groups_[static_cast<std::size_t>(warp.index) * kWarpSize +
                    static_cast<std::size_t>(std::countr_zero(rest))];
}

// Reads the data to be stored from shared memory.
void AsyncUnits::read(Store& store) {
  if (store.data.empty()) {
    store.data.resize(store.transfer.bytes());
    std::size_t at = 0;
    for (const std::uint32_t offset : chunks_of(store.transfer)) {
      std::memcpy(store.data.data() + at, cta_.shared() + offset, kChunk);
      at += kChunk;
    }
  }
  store.is_read = true;
}

void AsyncUnits::write_global(Store& store) {
  const std::byte* row = store.data.data();
  for (const BulkTransfer::Row& to : store.transfer.rows) {
    if (to.begin < to.end) std::memcpy(to.host, row + to.begin, to.end - to.begin);
    row += store.transfer.row_bytes;
  }
}

void AsyncUnits::wait_for_stores(Warp& warp, std::uint32_t lanes, std::uint32_t newest_left, bool read_only) {
  SharedShadow* shadow = cta_.shadow();
  bool any = false;
  std::vector<Store> left;
  for (Store& store : stores_) {
    const bool own = store.warp == warp.index && ((lanes >> store.lane) & 1) != 0;
    const std::size_t thread = static_cast<std::size_t>(store.warp) * kWarpSize + static_cast<std::size_t>(store.lane);
    if (!own || std::uint64_t{store.group} + newest_left >= store_groups_[thread]) {
      left.push_back(std::move(store));
      continue;
    }
    if (!store.is_read) {
      any = true;
      read(store);
      if (shadow != nullptr) {
        for_each_access(warp, store.instruction, store.lane, chunks_of(store.transfer),
                        [&](const SharedAccess& access) { shadow->complete_async_read(access, store.since); });
      }
    }
    if (read_only) {
      left.push_back(std::move(store));
    } else {
      write_global(store);
      any = true;
    }
  }
  stores_ = std::move(left);
  if (!any) return;
  if (shadow != nullptr) {
    Clock clock = shadow->clocks().empty();
    shadow->clocks().publish_async(warp.index, clock);
    shadow->clocks().acquire(warp.index, lanes, warp.alive, clock);
  }
  cta_.note_progress();
}

// ---- setmaxnreg ----

void AsyncUnits::set_registers(Warp& warp, const Instruction& instruction, bool increase) {
  const auto count = static_cast<int>(instruction.count);
  int& own = registers_[static_cast<std::size_t>(warp.index)];
  if (increase ? count < own : count > own) {
    cta_.find(FindingKind::invalid_operation, &warp, &instruction, -1, std::nullopt,
              fmt::format("setmaxnreg.{} to {} registers per thread, but the warp has {}", increase ? "inc" : "dec",
                          count, own));
    return;
  }
  const auto needed = [&](int which, std::int32_t at) {
    return std::int64_t{kWarpSize} * (static_cast<int>(cta_.code()[static_cast<std::size_t>(at)].count) -
                                      registers_[static_cast<std::size_t>(which)]);
  };
  if (increase) {
    wants_registers_.emplace_back(warp.index, cta_.index_of(instruction));
    warp.status = WarpStatus::waiting;
  } else {
    pool_ += std::int64_t{kWarpSize} * (own - count);
    own = count;
  }
  // First come, first served.
  while (!wants_registers_.empty()) {
    const auto [which, at] = wants_registers_.front();
    const std::int64_t registers = needed(which, at);
    if (registers > pool_) break;
    pool_ -= registers;
    registers_[static_cast<std::size_t>(which)] += static_cast<int>(registers / kWarpSize);
    cta_.warps()[static_cast<std::size_t>(which)].status = WarpStatus::ready;
    wants_registers_.erase(wants_registers_.begin());
    cta_.note_progress();
  }
}

std::vector<Role> AsyncUnits::roles() const {
  std::vector<Role> roles;
  for (std::size_t first = 0; first < num_warps_; first += kWarpgroup) {
    const std::size_t end = std::min(first + kWarpgroup, num_warps_);
    for (std::size_t w = first; w < end; ++w) {
      Role role{.warps = {}, .registers_at_launch = registers_per_thread_, .registers = registers_[w]};
      for (std::size_t other = first; other < end; ++other) {
        role.loads |= work_[other].loads;
        role.multiplies |= work_[other].multiplies;
        role.stores |= work_[other].stores;
      }
      const auto same = std::ranges::find_if(roles, [&](const Role& known) {
        return known.loads == role.loads && known.multiplies == role.multiplies && known.stores == role.stores &&
               known.registers == role.registers;
      });
      Role& own = same != roles.end() ? *same : roles.emplace_back(std::move(role));
      own.warps.push_back(static_cast<int>(w));
    }
  }
  return roles;
}

std::string AsyncUnits::describe_wait(const Warp& warp, std::int32_t& at) const {
  for (const auto& [which, instruction] : wants_registers_) {
    if (which != warp.index) continue;
    at = instruction;
    return fmt::format(
        "for {} registers per thread instead of {}: the block was launched with {}, and of those that warps have "
        "released, {} per thread of a warp are left",
        cta_.code()[static_cast<std::size_t>(instruction)].count, registers_[static_cast<std::size_t>(which)],
        registers_per_thread_, pool_ / kWarpSize);
  }
  const WarpQueue& queue = queues_[static_cast<std::size_t>(warp.index)];
  if (queue.waiting < 0) return {};
  at = queue.waiting;
  const Warpgroup& group = warpgroups_[static_cast<std::size_t>(warp.index / kWarpgroup)];
  for (std::uint64_t number = queue.done; number < queue.waits_until; ++number) {
    const WgmmaIssue& issue = group.issues[number - group.first];
    std::vector<int> missing;
    for (int i = 0; i < kWarpgroup; ++i)
      if (((issue.issued >> i) & 1) == 0) missing.push_back(warp.index / kWarpgroup * kWarpgroup + i);
    if (missing.empty()) continue;
    const SourcePosition position = cta_.position_of(issue.instruction);
    return fmt::format("for a wgmma{} that {} not executed: all four warps of a warpgroup must",
                       position.empty() ? "" : " (" + to_string(position) + ")",
                       list_of_warps(missing) + (missing.size() == 1 ? " has" : " have"));
  }
  return {};
}

}  // namespace flash_ladder::emulator
