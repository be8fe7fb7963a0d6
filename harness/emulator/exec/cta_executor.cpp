#include "emulator/exec/cta_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>
#include <set>
#include <type_traits>

namespace flash_ladder::emulator {
namespace {

// A spinning CTA is abandoned after this many rounds in which no warp did anything that another may wait for.
constexpr int kIdleRounds = 1000;

// A warp yields after this many loop iterations, because it may be waiting for a value that another warp will write.
// The number is small, so that waiting costs little, but larger than the number of iterations between two waits in the
// ladder's kernels, so that the order of their warps is determined by their mbarriers.
constexpr int kLoopsPerTurn = 256;
// For a warp that has been seen to wait for memory.
constexpr int kLoopsPerTurnOfStuck = 8;

// A warp that waits without returning to an earlier state, because its loop contains a clock, a random number or a
// counter, lets other lanes of the warp run after it has yielded this many times, and other CTAs after this many rounds
// of all warps.
constexpr unsigned kTurnsOfPatience = 16;
constexpr int kRoundsOfPatience = 64;

// Whether its value may differ in the next CTA that the same executor runs.
bool may_depend_on_cta(ptx::SpecialRegister which) {
  using enum ptx::SpecialRegister;
  return !((which >= tid_x && which <= ntid_z) || (which >= nctaid_x && which <= nwarpid) ||
           (which >= lanemask_eq && which <= lanemask_gt));
}

std::uint32_t low_mask(std::uint32_t count) { return count >= 32 ? kAllLanes : (1u << count) - 1; }

}  // namespace

std::int32_t place_of(const CompiledKernel& kernel, std::int32_t instruction) {
  if (instruction < 0) return -1;
  const int position = kernel.sources[kernel.code[static_cast<std::size_t>(instruction)].source].position;
  return position > 0 ? position : static_cast<std::int32_t>(kernel.positions.size()) + instruction;
}

SourcePosition position_of(const CompiledKernel& kernel, std::int32_t instruction) {
  const SourceInstruction& source = kernel.sources[kernel.code[static_cast<std::size_t>(instruction)].source];
  return kernel.positions[static_cast<std::size_t>(source.position)];
}

RawFinding describe(const LaunchContext& context, FindingKind kind, const Dim3& cta, int warp, std::int32_t instruction,
                    int lane, std::optional<Address> address, const std::string& message) {
  RawFinding raw;
  raw.kind = kind;
  Finding& finding = raw.finding;
  finding.kind = kind;
  finding.message = message;
  finding.kernel = context.kernel.name;
  finding.cta = cta;
  finding.warp = warp;
  finding.lane = lane;
  finding.address = address;
  if (instruction >= 0) {
    raw.place = place_of(context.kernel, instruction);
    const SourceInstruction& source =
        context.kernel.sources[context.kernel.code[static_cast<std::size_t>(instruction)].source];
    finding.instruction = one_line(source.text);
    finding.ptx_line = source.ptx_line;
    finding.position = position_of(context.kernel, instruction);
  }
  return raw;
}

Dim3 cta_at(const LaunchContext& context, std::uint64_t index) {
  const Dim3 &grid = context.config.grid, &cluster = context.cluster;
  const auto place_in = [](std::uint64_t number, const Dim3& of) {
    return Dim3{static_cast<std::uint32_t>(number % of.x), static_cast<std::uint32_t>(number / of.x % of.y),
                static_cast<std::uint32_t>(number / of.x / of.y)};
  };
  const std::uint64_t size = std::uint64_t{cluster.x} * cluster.y * cluster.z;
  const Dim3 at = place_in(index / size, {grid.x / cluster.x, grid.y / cluster.y, grid.z / cluster.z}),
             inside = place_in(index % size, cluster);
  return {at.x * cluster.x + inside.x, at.y * cluster.y + inside.y, at.z * cluster.z + inside.z};
}

std::string message_of(const LaunchContext& context, GlobalConflict::Kind kind, Address address,
                       bool of_another_block) {
  const std::string where = context.memory.describe(address);
  const char* const whose = of_another_block ? " of another block" : "";
  switch (kind) {
    case GlobalConflict::Kind::read_after_write:
      return fmt::format("a read of global memory at {:#x}, and nothing orders it after the write{}: {}", address,
                         whose, where);
    case GlobalConflict::Kind::write_after_read:
      return fmt::format("a write to global memory at {:#x}, and nothing orders it after a read{}: {}", address, whose,
                         where);
    case GlobalConflict::Kind::write_after_write:
      break;
  }
  return fmt::format("a write to global memory at {:#x}, and nothing orders it after the write before it{}: {}",
                     address, of_another_block ? ", of another block" : "", where);
}

void AlignedBytes::resize(std::size_t size) {
  constexpr std::size_t kAlignment = 64;
  storage_ = std::make_unique<std::byte[]>(size + kAlignment);
  const auto address = reinterpret_cast<std::uintptr_t>(storage_.get());
  data_ = storage_.get() + (kAlignment - address % kAlignment) % kAlignment;
  size_ = size;
}

CtaExecutor::CtaExecutor(LaunchContext& context)
    : context_(context),
      code_(context.kernel.code),
      counters_(context.kernel.code.size()),
      last_patterns_(context.kernel.code.size()) {
  const Dim3& block = context.config.block;
  num_threads_ = block.x * block.y * block.z;
  const std::uint32_t num_warps = (num_threads_ + kWarpSize - 1) / kWarpSize;
  warps_.resize(num_warps);
  const std::size_t stride = (context.kernel.register_bytes + 63) / 64 * 64;
  registers_.resize(stride * num_warps);
  for (std::uint32_t i = 0; i < num_warps; ++i) {
    warps_[i].registers = registers_.data() + stride * i;
    warps_[i].index = static_cast<int>(i);
  }
  const CompiledKernel& kernel = context.kernel;
  shared_bytes_ = static_cast<std::uint32_t>(kernel.reserved_shared_bytes + kernel.static_shared_bytes +
                                             context.config.dynamic_shared_bytes);
  // A wgmma whose operand is out of bounds, which is a finding, reads the first chunk.
  const std::uint32_t kept_shared_bytes =
      std::max<std::uint32_t>(shared_bytes_, context.kernel.uses_async_proxy ? kChunk : 0);
  shared_.resize(kept_shared_bytes);
  local_.resize(context.kernel.local_bytes * num_warps * kWarpSize);
  if (context.options.checks) {
    ordering_ = std::make_unique<Ordering>(static_cast<int>(num_warps), context.ordering);
    if (kept_shared_bytes > 0) {
      shadow_ = std::make_unique<SharedShadow>(kept_shared_bytes, context.kernel.shared_granule,
                                               static_cast<int>(num_warps), ordering_->clocks(), *this,
                                               context.kernel.uses_async_proxy ? AsyncProxy::kEngines : 0);
    }
    global_ = context.shadow;
    if (global_ == nullptr) {
      own_global_ = std::make_unique<GlobalShadow>(context.kernel.global_granule, GlobalShadow::Of::cta);
      global_ = own_global_.get();
    }
    local_written_.resize(local_.size());
  }
  if (context.kernel.uses_async_proxy) {
    async_ = std::make_unique<AsyncUnits>(*this, num_warps, kept_shared_bytes, context.options.registers_per_thread);
  }
}

CtaExecutor::State CtaExecutor::resume() {
  const std::uint64_t budget = budget_;
  int idle_rounds = 0, waiting_rounds = 0;
  may_go_on_ = false;
  for (Warp& warp : warps_) {
    warp.stuck = false;  // others may have changed memory
    warp.turn.taken = warp.turn.records = false;
  }
  State state = State::stopped;
  while (!stopped_) {
    const std::uint64_t progress = progress_, changes = changes_;
    bool any_ran = false, all_ended = true, only_waited = true, any_waits = false;
    for (Warp& warp : warps_) {
      if (warp.status == WarpStatus::yielded && !(warp.stuck && warp.stuck_at == changes_)) {
        warp.status = WarpStatus::ready;
      }
      if (warp.status == WarpStatus::ready) {
        any_ran = true;
        if (trace_ == nullptr && !warp.turn.records)
          run_warp<false>(warp);
        else
          run_warp<true>(warp);
        if (stopped_) break;
        if (warp.status == WarpStatus::yielded) {
          warp.stuck = !warp.asked_mbarrier() && has_come_back(warp);
          warp.stuck_at = changes_;
          warp.has_been_stuck |= warp.stuck;
          // A warp that is not waiting at an mbarrier does its own work: the budget, not the deadlock check, ends its
          // endless loop.
          if (!warp.stuck && !warp.asked_mbarrier()) ++progress_;
          if (warp.stuck && spins_on_a_lock(warp) && give_way(warp)) warp.stuck = false;
          const bool waits = !warp.stuck && !warp.asked_mbarrier() && may_wait(warp);
          if (waits && ++warp.waited % kTurnsOfPatience == 0 && !give_way(warp)) warp.tried = 0;
          any_waits |= waits;
          only_waited &= waits || warp.stuck || warp.asked_mbarrier();
        } else {
          only_waited = false;
        }
      }
      all_ended &= warp.status == WarpStatus::ended;
    }
    if (stopped_) break;
    if (all_ended) {
      if (async_ != nullptr) async_->finish();
      state = State::ended;
      break;
    }
    if (context_.options.interrupt != nullptr && context_.options.interrupt->load(std::memory_order_relaxed)) {
      stopped_ = true;
      break;
    }
    waiting_rounds = any_waits && only_waited && changes_ == changes ? waiting_rounds + 1 : 0;
    if (waiting_rounds == kRoundsOfPatience) {
      may_go_on_ = true;
      state = State::stuck;
      break;
    }
    idle_rounds = progress_ == progress ? idle_rounds + 1 : 0;
    if (any_ran && idle_rounds < (peers_.empty() ? kIdleRounds : 2)) continue;
    if (!peers_.empty()) {
      state = State::stuck;
      break;
    }
    if (give_way()) {
      idle_rounds = 0;
      continue;
    }
    // A warp that spins on memory, rather than on something that only the CTA's own warps can change, may be waiting
    // for another CTA.
    const auto spins = [](const Warp& warp) { return warp.status == WarpStatus::yielded && !warp.asked_mbarrier(); };
    if (std::any_of(warps_.begin(), warps_.end(), spins)) {
      state = State::stuck;
      break;
    }
    report_deadlock();
    stopped_ = true;
  }
  executed_ += budget - budget_;
  return state;
}

// The places of the registers that determine the path of the executed instructions, their memory accesses, and the
// later values of these registers themselves. If these registers return to earlier values, a loop repeats for ever.
template <typename Executed>
std::vector<std::int32_t> CtaExecutor::deciding_registers(std::int32_t begin, std::int32_t end,
                                                          Executed executed) const {
  std::set<std::int32_t> decide;
  const auto add_sources = [&](const Instruction& instruction) {
    const std::size_t before = decide.size();
    if (instruction.guard >= 0) decide.insert(instruction.guard);
    for (std::size_t k = instruction.writes; k < instruction.operands; ++k) decide.insert(instruction.r[k]);
    return decide.size() != before;
  };
  for (bool changed = true; changed;) {
    changed = false;
    for (std::int32_t i = begin; i < end; ++i) {
      if (!executed(i)) continue;
      const Instruction& instruction = code_[static_cast<std::size_t>(i)];
      bool matters = instruction.action == Action::branch || instruction.action == Action::branch_table ||
                     instruction.action == Action::exit;
      if (instruction.action == Action::operation) {
        matters =
            instruction.writes == 0 || (instruction.role != MemoryRole::none && instruction.role != MemoryRole::load);
      }
      for (std::size_t k = 0; !matters && k < instruction.writes; ++k) matters = decide.contains(instruction.r[k]);
      if (matters) changed |= add_sources(instruction);
      for (std::size_t k = 0; matters && k < instruction.writes; ++k) changed |= decide.insert(instruction.r[k]).second;
    }
  }
  return {decide.begin(), decide.end()};
}

// Whether a yielding warp is in the same state as before, with no change of memory in between. Snapshots are taken less
// and less often, so that cycles of several scheduling slots are found too (Brent's algorithm).
bool CtaExecutor::has_come_back(Warp& warp) {
  Turn& turn = warp.turn;
  const std::size_t bytes = context_.kernel.register_bytes;
  const auto same = [&](std::int32_t place, std::size_t size) {
    return std::memcmp(turn.registers.data() + place, warp.registers + place, size) == 0;
  };
  if (turn.taken && turn.changes == changes_ && turn.pc == warp.pc && turn.reconverge == warp.reconverge &&
      turn.active == warp.active && turn.depth == warp.stack.size()) {
    if (same(0, bytes)) return true;
    if (turn.records) {
      const std::vector<std::int32_t> deciding =
          deciding_registers(0, static_cast<std::int32_t>(code_.size()),
                             [&](std::int32_t i) { return turn.executed[static_cast<std::size_t>(i)]; });
      if (std::all_of(deciding.begin(), deciding.end(), [&](std::int32_t place) {
            return same(place, static_cast<std::size_t>(context_.kernel.places.at(place)));
          })) {
        return true;
      }
    }
  }
  if (turn.taken && ++turn.since < turn.next) return false;
  // The state of wgmma and TMA is not in the registers.
  turn.records = turn.taken && turn.changes == changes_ && async_ == nullptr;
  turn.executed.assign(turn.records ? code_.size() : 0, false);
  turn.next = turn.taken ? std::min(2 * turn.next, Turn::kMostTurns) : 1;
  turn.taken = true;
  turn.since = 0;
  turn.changes = changes_;
  turn.registers.assign(warp.registers, warp.registers + bytes);
  turn.pc = warp.pc;
  turn.reconverge = warp.reconverge;
  turn.active = warp.active;
  turn.depth = warp.stack.size();
  watching_ = true;
  return false;
}

// Whether the loop repeatedly tries to get a lock, which another lane of the warp may hold.
bool CtaExecutor::spins_on_a_lock(const Warp& warp) const {
  return loop_has(warp, [](const Instruction& i) { return i.instruction_class == InstructionClass::atomic; });
}

// Whether the loop reads something that others may change, or the time.
bool CtaExecutor::may_wait(const Warp& warp) const {
  return spins_on_a_lock(warp) || loop_has(warp, [](const Instruction& i) {
           return i.action == Action::clock || (i.role == MemoryRole::load && is_strong(i.strength));
         });
}

bool CtaExecutor::loop_has(const Warp& warp, bool (*is)(const Instruction&)) const {
  const auto [begin, end] = loop_of(warp);
  return std::any_of(code_.begin() + begin, code_.begin() + end, is);
}

// The loop that a yielding warp is in, from its first instruction to just after its last.
std::pair<std::int32_t, std::int32_t> CtaExecutor::loop_of(const Warp& warp) const {
  for (auto i = static_cast<std::size_t>(warp.pc); i < code_.size(); ++i) {
    const Instruction& instruction = code_[i];
    if (instruction.action == Action::branch && instruction.target <= warp.pc) {
      return {instruction.target, static_cast<std::int32_t>(i) + 1};
    }
  }
  return {warp.pc, warp.pc};
}

// What the loop waits for: the first load or atomic operation in it that decides whether it ends; null if there is none.
const Instruction* CtaExecutor::looked_at(const Warp& warp) const {
  const auto [begin, end] = loop_of(warp);
  const std::vector<std::int32_t> deciding = deciding_registers(begin, end, [](std::int32_t) { return true; });
  const auto decides = [&](const Instruction& instruction) {
    if (instruction.instruction_class == InstructionClass::atomic) return true;
    if (instruction.role != MemoryRole::load || !instruction.counted) return false;
    return std::any_of(instruction.r.begin(), instruction.r.begin() + instruction.writes,
                       [&](std::int32_t place) { return std::binary_search(deciding.begin(), deciding.end(), place); });
  };
  const auto found = std::find_if(code_.begin() + begin, code_.begin() + end, decides);
  return found == code_.begin() + end ? nullptr : &*found;
}

// The active lanes repeat a cycle: lets others of the warp run, which wait at the reconvergence point or are on another
// path. Lanes that diverged because of what they wait for then reconverge further out.
bool CtaExecutor::give_way(Warp& warp) {
  if (warp.tried_at != changes_) warp.tried = 0;
  if (warp.tried > warp.stack.size() + 1) return false;  // all of them have been scheduled
  warp.tried_at = changes_;
  ++warp.tried;
  while (!warp.stack.empty()) {
    const Warp::Parted top = warp.stack.back();
    const Warp::Parted own{warp.pc, warp.reconverge, warp.active, warp.pc};
    if ((top.mask & warp.active) == 0) {  // on another path: goes below all of them in the stack
      auto last = warp.stack.end();
      while (last != warp.stack.begin() && (std::prev(last)->mask & warp.active) == 0 &&
             std::prev(last)->reconverge == warp.reconverge) {
        --last;
      }
      if (top.reconverge != warp.reconverge) return false;
      warp.stack.insert(last, own);
      warp.stack.pop_back();
      warp.pc = top.pc;
      warp.active = top.mask;
    } else {
      warp.stack.pop_back();
      warp.reconverge = top.reconverge;
      const std::uint32_t there = top.mask & ~warp.active;
      if (there == 0) continue;
      warp.stack.push_back({own.pc, top.reconverge, own.mask, own.branch});
      warp.pc = top.pc;
      warp.active = there;
      warp.gave_way = true;
    }
    warp.turn.taken = warp.turn.records = false;
    return true;
  }
  return false;
}

bool CtaExecutor::give_way() {
  bool others_run = false;
  for (Warp& warp : warps_) {
    if (warp.status == WarpStatus::yielded && (warp.stuck || warp.asked_mbarrier()) && give_way(warp))
      others_run = true;
  }
  return others_run;
}

std::optional<CtaTrace> CtaExecutor::take_trace() {
  if (trace_ == nullptr) return std::nullopt;
  return std::exchange(trace_, nullptr)->take(roles());
}

std::vector<Role> CtaExecutor::roles() const { return async_ == nullptr ? std::vector<Role>{} : async_->roles(); }

void CtaExecutor::start(std::uint64_t index) {
  const Dim3 cta = cta_at(context_, index);
  cta_ = cta;
  cta_index_ = static_cast<std::uint32_t>(index);
  stopped_ = false;
  budget_ = context_.options.max_warp_instructions_per_cta;
  threads_alive_ = num_threads_;
  barriers_ = {};
  mbarriers_.clear();
  cluster_barrier_ = {};
  flags_.clear();
  std::uint32_t left = num_threads_;
  for (Warp& warp : warps_) {
    warp.pc = 0;
    warp.reconverge = -1;
    warp.active = warp.alive = low_mask(left);
    left -= std::min<std::uint32_t>(left, kWarpSize);
    warp.status = WarpStatus::ready;
    warp.stack.clear();
    warp.copies.clear();
    warp.executed = 0;
    warp.failed_wait = {};
    warp.last_arrival = {};
    warp.cluster = {};
    warp.turn.taken = warp.turn.records = false;
    warp.tried = warp.waited = 0;
    warp.gave_way = false;
    warp.has_been_stuck = false;
    std::memset(warp.groups, 0, sizeof warp.groups);
    warp.waits.clear();
    warp.work = {};
    if (context_.options.checks) warp.undefined.assign(context_.kernel.num_watched, {.lanes = kAllLanes});
  }
  trace_.reset();
  if (context_.options.trace_cta == cta)
    trace_ = std::make_unique<TraceRecorder>(context_.kernel, cta, static_cast<int>(warps_.size()));
  fill_uniforms(cta);
  std::memset(shared_.data(), 0, shared_.size());
  std::memset(local_.data(), 0, local_.size());
  if (ordering_ != nullptr) ordering_->reset(cta_index_);
  if (shadow_ != nullptr) {
    shadow_->reset();
  } else if (ordering_ != nullptr) {
    ordering_->clocks().reset(num_warps(), 1);
  }
  if (own_global_ != nullptr) own_global_->reset();
  if (ordering_ != nullptr && clocks().is_in_cluster())
    peer_uses_.assign(static_cast<std::size_t>(clocks().engine_of(peers_.size(), 0)), {});
  if (async_ != nullptr) async_->start();
  std::fill(local_written_.begin(), local_written_.end(), 0);
}

// Constants and special registers. Those that do not depend on the CTA are filled only once.
void CtaExecutor::fill_uniforms(const Dim3& cta) {
  using enum ptx::SpecialRegister;
  const Dim3 &block = context_.config.block, &grid = context_.config.grid, &cluster = context_.cluster;
  for (Warp& warp : warps_) {
    for (const UniformSlot& slot : context_.kernel.uniforms) {
      if (uniforms_filled_ && !(slot.special && may_depend_on_cta(slot.special_register))) continue;
      std::byte* to = warp.registers + slot.offset;
      const auto fill = [&](auto value_of) {
        const auto fill_lanes = [&](auto* lanes) {
          for (std::uint32_t lane = 0; lane < kWarpSize; ++lane)
            lanes[lane] = static_cast<std::remove_pointer_t<decltype(lanes)>>(value_of(lane));
        };
        switch (slot.slot) {
          case Slot::b16:
            return fill_lanes(reinterpret_cast<std::uint16_t*>(to));
          case Slot::b32:
            return fill_lanes(reinterpret_cast<std::uint32_t*>(to));
          default:
            return fill_lanes(reinterpret_cast<std::uint64_t*>(to));
        }
      };
      if (slot.slot == Slot::predicate) {
        std::memcpy(to, &slot.value, 4);
        continue;
      }
      if (!slot.special) {
        fill([&](std::uint32_t) { return slot.value; });
        continue;
      }
      const auto thread = [&](std::uint32_t lane) { return static_cast<std::uint32_t>(warp.index) * kWarpSize + lane; };
      const auto shared_size =
          static_cast<std::uint32_t>(shared_bytes_ - context_.kernel.reserved_shared_bytes + kSharedBase);
      fill([&](std::uint32_t lane) -> std::uint64_t {
        switch (slot.special_register) {
          case tid_x:
            return thread(lane) % block.x;
          case tid_y:
            return thread(lane) / block.x % block.y;
          case tid_z:
            return thread(lane) / block.x / block.y;
          case ntid_x:
            return block.x;
          case ntid_y:
            return block.y;
          case ntid_z:
            return block.z;
          case ctaid_x:
            return cta.x;
          case ctaid_y:
            return cta.y;
          case ctaid_z:
            return cta.z;
          case nctaid_x:
            return grid.x;
          case nctaid_y:
            return grid.y;
          case nctaid_z:
            return grid.z;
          case laneid:
            return lane;
          case warpid:
            return static_cast<std::uint32_t>(warp.index);
          case nwarpid:
            return static_cast<std::uint32_t>(num_warps());
          case nsmid:
          case one:
            return 1;
          case clusterid_x:
            return cta.x / cluster.x;
          case clusterid_y:
            return cta.y / cluster.y;
          case clusterid_z:
            return cta.z / cluster.z;
          case nclusterid_x:
            return grid.x / cluster.x;
          case nclusterid_y:
            return grid.y / cluster.y;
          case nclusterid_z:
            return grid.z / cluster.z;
          case cluster_ctaid_x:
            return cta.x % cluster.x;
          case cluster_ctaid_y:
            return cta.y % cluster.y;
          case cluster_ctaid_z:
            return cta.z % cluster.z;
          case cluster_nctaid_x:
            return cluster.x;
          case cluster_nctaid_y:
            return cluster.y;
          case cluster_nctaid_z:
            return cluster.z;
          case cluster_ctarank:
            return rank_;
          case cluster_nctarank:
            return cluster_size();
          case lanemask_eq:
            return 1u << lane;
          case lanemask_lt:
            return (1u << lane) - 1;
          case lanemask_le:
            return (2u << lane) - 1;
          case lanemask_gt:
            return ~((2u << lane) - 1);
          case lanemask_ge:
            return ~((1u << lane) - 1);
          case dynamic_smem_size:
            return context_.config.dynamic_shared_bytes;
          case total_smem_size:
            return shared_size;
          case envreg1:
            return context_.config.grid_workspace >> 32;
          case envreg2:
            return context_.config.grid_workspace & 0xffffffff;
          default:
            return 0;
        }
      });
    }
  }
  uniforms_filled_ = true;
}

// Runs a warp until it has to wait, yields or has ended.
template <bool kRecords>
void CtaExecutor::run_warp(Warp& warp) {
  int loops_left = warp.has_been_stuck ? kLoopsPerTurnOfStuck : kLoopsPerTurn;
  std::byte* const registers = warp.registers;
  const Instruction* const code = code_.data();
  ExecutionCount* const executions = counters_.executions.data();
  while (true) {
    if (warp.pc == warp.reconverge) reconverge(warp);
    const Instruction& instruction = code[warp.pc];
    std::uint32_t mask = warp.active;
    if (instruction.guard >= 0) {
      const std::uint32_t guard = *reinterpret_cast<const std::uint32_t*>(registers + instruction.guard);
      mask &= instruction.guard_negated ? ~guard : guard;
    }
    ExecutionCount& count = executions[warp.pc];
    ++count.warps;
    count.lanes += mask == kAllLanes ? kWarpSize : static_cast<std::uint32_t>(std::popcount(mask));
    ++warp.executed;
    if constexpr (kRecords) {
      if (trace_ != nullptr) trace_->execute(warp.index, warp.pc);
      if (warp.turn.records) warp.turn.executed[static_cast<std::size_t>(warp.pc)] = true;
    }
    if (budget_-- == 0) {
      stopped_ = true;
      find(FindingKind::endless_loop, &warp, &instruction, -1, std::nullopt,
           fmt::format("the block has executed {} warp instructions without reaching its end{}{}",
                       context_.options.max_warp_instructions_per_cta,
                       context_.options.how_to_allow_more.empty() ? "" : ". ", context_.options.how_to_allow_more));
      return;
    }
    if (instruction.action == Action::lane) {
      if (mask != 0) instruction.function(registers, instruction.r.data(), mask);
      ++warp.pc;
      continue;
    }
    if (watches(warp, instruction)) follow_undefined(warp, instruction, mask);
    switch (instruction.action) {
      case Action::branch: {
        const std::uint32_t taken = mask;
        const std::int32_t at = warp.pc;
        if (taken == warp.active) {
          warp.pc = instruction.target;
        } else if (taken == 0) {
          ++warp.pc;
        } else {
          part(warp, instruction, taken);
        }
        if (warp.pc <= at && --loops_left == 0) {
          warp.status = WarpStatus::yielded;
          return;
        }
        continue;
      }
      case Action::branch_table:
        branch_by_table(warp, instruction, mask);
        continue;
      case Action::exit:
        if (instruction.execute != nullptr && mask != 0) instruction.execute(*this, warp, instruction, mask);
        ++warp.pc;
        end_lanes(warp, mask);
        if (warp.status == WarpStatus::ended) return;
        continue;
      default:
        break;
    }
    ++warp.pc;
    if (mask == 0) continue;
    if (instruction.probe != 0) async_->wgmma.probe(warp, instruction);
    switch (instruction.action) {
      case Action::watched_lane:
        instruction.function(registers, instruction.r.data(), mask);
        break;
      case Action::clock:
        for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
          reinterpret_cast<std::uint64_t*>(registers + instruction.r[0])[std::countr_zero(rest)] = warp.executed;
        }
        break;
      default:
        instruction.execute(*this, warp, instruction, mask);
        if (warp.status != WarpStatus::ready) return;
        break;
    }
  }
}

// The active lanes have reached the point where the others wait, or will arrive: continue with those, or together.
void CtaExecutor::reconverge(Warp& warp) {
  while (!warp.stack.empty() && (warp.pc == warp.reconverge || warp.active == 0)) {
    const Warp::Parted& next = warp.stack.back();
    warp.pc = next.pc;
    warp.reconverge = next.reconverge;
    warp.active = next.mask;
    // The lanes that they wait for at a __syncwarp() have passed on without reaching it. (At a barrier of the block
    // they are before it, and execute it again.)
    if (next.sync >= 0 && next.sync != next.pc && next.mask != 0) {
      check_group(warp, code_[static_cast<std::size_t>(next.sync)], next.mask, next.mask, next.sync_mask);
    }
    warp.stack.pop_back();
  }
}

bool CtaExecutor::wait_for_lanes(Warp& warp, const Instruction& instruction, std::uint32_t named) {
  if (warp.stack.empty()) return false;
  const Warp::Parted next = warp.stack.back();
  const bool on_another_way = (next.mask & warp.active) == 0 && next.reconverge == warp.reconverge;
  if (!on_another_way || (next.mask & named) == 0 || next.sync >= 0) return false;
  auto last = std::prev(warp.stack.end());  // the warp's own lanes go below all of them
  while (last != warp.stack.begin() && (std::prev(last)->mask & warp.active) == 0 &&
         std::prev(last)->reconverge == warp.reconverge) {
    --last;
  }
  warp.stack.insert(last, {.pc = warp.pc,
                           .reconverge = warp.reconverge,
                           .mask = warp.active,
                           .branch = next.branch,
                           .sync = index_of(instruction),
                           .sync_mask = named});
  warp.stack.pop_back();
  warp.pc = next.pc;
  warp.active = next.mask;
  return true;
}

bool CtaExecutor::gather_at_barrier(Warp& warp, const Instruction& instruction) {
  if (!warp.gave_way) return false;
  const std::int32_t at = index_of(instruction);
  while (!warp.stack.empty() && warp.stack.back().sync == at && warp.stack.back().reconverge == warp.reconverge) {
    warp.active |= warp.stack.back().mask;
    warp.stack.pop_back();
  }
  warp.pc = at;
  if (warp.active == warp.alive || wait_for_lanes(warp, instruction, warp.alive)) return true;
  warp.pc = at + 1;
  return false;
}

void CtaExecutor::check_group(const Warp& warp, const Instruction& instruction, std::uint32_t here, std::uint32_t lanes,
                              std::uint32_t named) {
  const auto wrong = [&](std::uint32_t which, const std::string& message) {
    if (which != 0)
      find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(which), std::nullopt, message);
    return which != 0;
  };
  if (wrong(lanes & ~named, fmt::format("the lane is not in the mask that it passes, {:#010x}", named))) return;
  // The mask may include lanes that have ended: "all non-exited threads" must take part (PTX ISA, "shfl.sync",
  // "vote.sync" …).
  const std::uint32_t missing = named & warp.alive & ~here, others = named & here & ~lanes;
  if (wrong(missing, fmt::format("the mask {:#010x} names lanes that do not take part: {:#010x}", named, missing)))
    return;
  wrong(others, fmt::format("the mask {:#010x} names lanes that pass another mask: {:#010x}", named, others));
}

// Lanes diverge: those that do not branch continue first, those that do wait in the stack, and below them an entry for
// all of them waits at the reconvergence point.
void CtaExecutor::part(Warp& warp, const Instruction& instruction, std::uint32_t taken) {
  ++counters_.details[static_cast<std::size_t>(warp.pc)].divergent;
  const std::uint32_t not_taken = warp.active & ~taken;
  const std::int32_t at = warp.pc, next = at + 1;
  std::int32_t meet = instruction.reconverge;
  if (meet >= 0) {
    warp.stack.push_back({meet, warp.reconverge, warp.active, warp.pc});
  } else {
    meet = warp.reconverge;
  }
  warp.reconverge = meet;
  if (next == meet) {
    warp.pc = instruction.target;
    warp.active = taken;
  } else {
    if (instruction.target != meet) warp.stack.push_back({instruction.target, meet, taken, at});
    warp.pc = next;
    warp.active = not_taken;
  }
}

void CtaExecutor::branch_by_table(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const std::vector<std::int32_t>& targets = context_.kernel.branch_tables[instruction.count];
  const auto* index = reinterpret_cast<const std::uint32_t*>(warp.registers + instruction.r[0]);
  // Lanes grouped by their target.
  std::vector<std::pair<std::int32_t, std::uint32_t>> ways;
  const auto add = [&](std::int32_t target, std::uint32_t lanes) {
    for (auto& [known, known_lanes] : ways) {
      if (known == target) {
        known_lanes |= lanes;
        return;
      }
    }
    ways.emplace_back(target, lanes);
  };
  for (int lane = 0; lane < kWarpSize; ++lane) {
    if (!((warp.active >> lane) & 1)) continue;
    if (!((mask >> lane) & 1)) {
      add(warp.pc + 1, 1u << lane);
    } else if (index[lane] < targets.size()) {
      add(targets[index[lane]], 1u << lane);
    } else {
      find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
           fmt::format("a branch to entry {} of a table of {}", index[lane], targets.size()));
      add(targets.empty() ? warp.pc + 1 : targets.back(), 1u << lane);
    }
  }
  if (ways.size() > 1) {
    ++counters_.details[static_cast<std::size_t>(warp.pc)].divergent;
    if (instruction.reconverge >= 0) {
      warp.stack.push_back({instruction.reconverge, warp.reconverge, warp.active, warp.pc});
      warp.reconverge = instruction.reconverge;
    }
    for (std::size_t i = ways.size() - 1; i > 0; --i)
      warp.stack.push_back({ways[i].first, warp.reconverge, ways[i].second, warp.pc});
  }
  warp.pc = ways[0].first;
  warp.active = ways[0].second;
}

void CtaExecutor::end_lanes(Warp& warp, std::uint32_t mask) {
  if (mask == 0) return;
  warp.alive &= ~mask;
  warp.active &= ~mask;
  threads_alive_ -= static_cast<std::uint32_t>(std::popcount(mask));
  for (Warp::Parted& parted : warp.stack) parted.mask &= ~mask;
  note_progress();
  if (warp.alive == 0) {
    warp.status = WarpStatus::ended;
    check_barriers();
    end_in_cluster(warp, mask);
    return;
  }
  if (warp.active == 0) reconverge(warp);
  check_barriers();
  end_in_cluster(warp, mask);
}

// For whole-warp instructions that take no mask.
void CtaExecutor::check_all_lanes(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (mask == kAllLanes) return;
  find(FindingKind::missing_lanes, &warp, &instruction, std::countr_zero(~mask), std::nullopt,
       fmt::format("all 32 lanes must execute this instruction together; lanes {:#010x} do not", ~mask));
}

std::int32_t CtaExecutor::place_of(std::int32_t instruction) const {
  return emulator::place_of(context_.kernel, instruction);
}

SourcePosition CtaExecutor::position_of(std::int32_t instruction) const {
  return emulator::position_of(context_.kernel, instruction);
}

RawFinding CtaExecutor::describe(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
                                 std::optional<Address> address, const std::string& message) const {
  return emulator::describe(context_, kind, cta_, warp == nullptr ? -1 : warp->index,
                            instruction == nullptr ? -1 : index_of(*instruction), lane, address, message);
}

void CtaExecutor::find(FindingKind kind, const Warp* warp, const Instruction* instruction, int lane,
                       std::optional<Address> address, const std::string& message) {
  if (!findings_.is_new(kind, instruction == nullptr ? -1 : place_of(index_of(*instruction)), -1)) return;
  findings_.add(describe(kind, warp, instruction, lane, address, message));
}

void CtaExecutor::find(FindingKind kind, const Warp& warp, std::int32_t instruction, int lane,
                       std::optional<Address> address, const std::string& message, const OtherSide& other) {
  const std::int32_t other_place = place_of(other.instruction);
  if (!findings_.is_new(kind, place_of(instruction), other_place)) return;
  RawFinding raw = describe(kind, &warp, &code_[static_cast<std::size_t>(instruction)], lane, address, message);
  raw.other_place = other_place;
  if (other.instruction >= 0) {
    raw.finding.other = {
        .what = other.what, .position = position_of(other.instruction), .warp = other.warp, .lane = other.lane};
    if (other.cta != nullptr && other.cta != this) raw.finding.other->cta = other.cta->cta_;
  }
  findings_.add(std::move(raw));
}

void CtaExecutor::renumber(const Renumbering& renumbering) {
  for (Barrier& barrier : barriers_) renumbering.apply_to(barrier.clock);
  renumbering.apply_to(cluster_barrier_.told);
  renumbering.apply_to(cluster_barrier_.known);
  for (Mbarrier& barrier : mbarriers_) {
    renumbering.apply_to(barrier.arriving);
    renumbering.apply_to(barrier.completed);
  }
  for (Warp& warp : warps_)
    for (EndedWait& wait : warp.waits) wait.before = renumbering(wait.before);
  ordering_->renumber(renumbering);
  if (async_ != nullptr) async_->renumber(renumbering);
}

}  // namespace flash_ladder::emulator
