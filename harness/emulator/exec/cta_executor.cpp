#include "emulator/exec/cta_executor.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/deadlock.h"
#include "emulator/exec/definedness.h"
#include "emulator/exec/divergence.h"
#include "emulator/exec/loops.h"
#include "emulator/exec/uniforms.h"

namespace flash_ladder::emulator {
namespace {

// A spinning CTA is abandoned after this many rounds in which no warp did anything that another may wait for.
constexpr int kIdleRounds = 1000;

// A warp yields after this many loop iterations, because it may be waiting for a value that another warp will write.
// The number is small, so that waiting costs little, but larger than the number of iterations between two waits in the
// ladder's kernels, so that the order of their warps is determined by their mbarriers.
constexpr int kLoopsPerSlot = 256;
// The same for a warp that was found waiting for memory.
constexpr int kLoopsPerSlotOfStuck = 8;

// A warp that waits without returning to an earlier state, because its loop contains a clock, a random number or a
// counter, lets other lanes of the warp run after it has yielded this many times, and other CTAs after this many rounds
// of all warps.
constexpr unsigned kSlotsOfPatience = 16;
constexpr int kRoundsOfPatience = 64;

std::uint32_t low_mask(std::uint32_t count) { return count >= 32 ? kAllLanes : (1u << count) - 1; }

std::uint32_t threads_of(const LaunchConfig& config) { return config.block.x * config.block.y * config.block.z; }

std::uint32_t warps_of(const LaunchConfig& config) { return (threads_of(config) + kWarpSize - 1) / kWarpSize; }

}  // namespace

CtaExecutor::CtaExecutor(LaunchContext& context)
    : context_(context),
      code_(context.kernel.code),
      counters_(context.kernel.code.size()),
      warps_(warps_of(context.config)),
      num_threads_(threads_of(context.config)),
      memory_(*this, context, cluster_, counters_, warps_.size()) {
  const std::size_t stride = (context.kernel.register_bytes + 63) / 64 * 64;
  registers_.resize(stride * warps_.size());
  for (std::size_t i = 0; i < warps_.size(); ++i) {
    warps_[i].registers = registers_.data() + stride * i;
    warps_[i].index = static_cast<int>(i);
  }
  const CompiledKernel& kernel = context.kernel;
  if (context.options.checks) {
    const auto num_warps = static_cast<int>(warps_.size());
    ordering_ = std::make_unique<Ordering>(num_warps, context.ordering);
    if (memory_.kept_shared_bytes() > 0) {
      shadow_ = std::make_unique<SharedShadow>(memory_.kept_shared_bytes(), kernel.shared_granule, num_warps,
                                               ordering_->clocks(), conflicts_,
                                               kernel.uses_async_proxy ? AsyncProxy::kEngines : 0);
    }
  }
  if (kernel.uses_async_proxy) {
    async_ = std::make_unique<AsyncUnits>(*this, warps_.size(), memory_.kept_shared_bytes(),
                                          context.options.registers_per_thread);
  }
  if (!context.options.outputs.empty())
    dataflow_ = std::make_unique<Dataflow>(kernel, context.options.outputs, warps_.size(), memory_.kept_shared_bytes());
}

void CtaExecutor::join_cluster(std::vector<CtaExecutor*> peers, std::size_t rank, GlobalShadow* global) {
  cluster_.join(std::move(peers), rank);
  memory_.join_cluster(global);
}

void CtaExecutor::start(std::uint64_t index) {
  cta_ = cta_at(context_, index);
  cta_index_ = static_cast<std::uint32_t>(index);
  stopped_ = false;
  budget_ = context_.options.max_warp_instructions_per_cta;
  threads_alive_ = num_threads_;
  barriers_ = {};
  mbarriers_.clear();
  reset_warps();
  trace_.reset();
  if (dataflow_ != nullptr) dataflow_->start();
  if (context_.options.trace_cta == cta_)
    trace_ = std::make_unique<TraceRecorder>(context_.kernel, cta_, static_cast<int>(warps_.size()));
  fill_uniforms(*this, uniforms_filled_);
  uniforms_filled_ = true;
  memory_.start();
  if (ordering_ != nullptr) ordering_->reset(cta_index_);
  if (shadow_ != nullptr) {
    shadow_->reset();
  } else if (ordering_ != nullptr) {
    ordering_->clocks().reset(static_cast<int>(warps_.size()), 1);
  }
  cluster_.start();
  if (async_ != nullptr) async_->start();
}

void CtaExecutor::reset_warps() {
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
    warp.snapshot.taken = warp.snapshot.records = false;
    warp.tried = warp.waited = 0;
    warp.has_yielded = false;
    warp.has_been_stuck = false;
    std::memset(warp.groups, 0, sizeof warp.groups);
    warp.waits.clear();
    warp.work = {};
    if (context_.options.checks) warp.undefined.assign(context_.kernel.num_watched, {.lanes = kAllLanes});
  }
}

CtaExecutor::State CtaExecutor::resume() {
  const std::uint64_t budget = budget_;
  int idle_rounds = 0, waiting_rounds = 0;
  may_go_on_ = false;
  for (Warp& warp : warps_) {
    warp.stuck = false;  // others may have changed memory
    warp.snapshot.taken = warp.snapshot.records = false;
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
        if (trace_ == nullptr && dataflow_ == nullptr && !warp.snapshot.records)
          run_warp<false>(warp);
        else
          run_warp<true>(warp);
        if (stopped_) break;
        if (warp.status == WarpStatus::yielded) {
          warp.stuck = !warp.tested_mbarrier() && has_come_back(*this, warp);
          warp.stuck_at = changes_;
          warp.has_been_stuck |= warp.stuck;
          // A warp that is not waiting at an mbarrier does its own work: the budget, not the deadlock check, ends its
          // endless loop.
          if (!warp.stuck && !warp.tested_mbarrier()) ++progress_;
          if (warp.stuck && spins_on_a_lock(*this, warp) && let_others_run(warp, changes_)) warp.stuck = false;
          const bool waits = !warp.stuck && !warp.tested_mbarrier() && may_wait(*this, warp);
          if (waits && ++warp.waited % kSlotsOfPatience == 0 && !let_others_run(warp, changes_)) warp.tried = 0;
          any_waits |= waits;
          only_waited &= waits || warp.stuck || warp.tested_mbarrier();
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
    if (any_ran && idle_rounds < (!cluster_.has_peers() ? kIdleRounds : 2)) continue;
    if (cluster_.has_peers()) {
      state = State::stuck;
      break;
    }
    if (yield_to_others()) {
      idle_rounds = 0;
      continue;
    }
    // A warp that spins on memory, rather than on something that only the CTA's own warps can change, may be waiting
    // for another CTA.
    const auto spins = [](const Warp& warp) { return warp.status == WarpStatus::yielded && !warp.tested_mbarrier(); };
    if (std::any_of(warps_.begin(), warps_.end(), spins)) {
      state = State::stuck;
      break;
    }
    report_deadlock(*this);
    stopped_ = true;
  }
  executed_ += budget - budget_;
  return state;
}

// Runs a warp until it has to wait, yields or has ended.
template <bool kRecords>
void CtaExecutor::run_warp(Warp& warp) {
  int loops_left = warp.has_been_stuck ? kLoopsPerSlotOfStuck : kLoopsPerSlot;
  std::byte* const registers = warp.registers;
  const Instruction* const code = code_.data();
  ExecutionCount* const executions = counters_.executions.data();
  while (true) {
    if (warp.pc == warp.reconverge) reconverge(*this, warp);
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
    if constexpr (kRecords) record(warp, instruction, mask);
    if (budget_-- == 0) {
      exceed_budget(warp, instruction);
      return;
    }
    if (instruction.action == Action::lane) {
      if (mask != 0) instruction.function(registers, instruction.r.data(), mask);
      ++warp.pc;
      continue;
    }
    if (watches(warp, instruction)) follow_undefined(*this, warp, instruction, mask);
    switch (instruction.action) {
      case Action::branch: {
        const std::uint32_t taken = mask;
        const std::int32_t at = warp.pc;
        if (taken == warp.active) {
          warp.pc = instruction.target;
        } else if (taken == 0) {
          ++warp.pc;
        } else {
          part(*this, warp, instruction, taken);
        }
        if (warp.pc <= at && --loops_left == 0) {
          warp.status = WarpStatus::yielded;
          return;
        }
        continue;
      }
      case Action::branch_table:
        branch_by_table(*this, warp, instruction, mask);
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

void CtaExecutor::record(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  if (trace_ != nullptr) trace_->execute(warp.index, warp.pc);
  if (warp.snapshot.records) warp.snapshot.executed[static_cast<std::size_t>(warp.pc)] = true;
  if (dataflow_ != nullptr && mask != 0) dataflow_->execute(*this, warp, instruction, mask);
}

void CtaExecutor::exceed_budget(const Warp& warp, const Instruction& instruction) {
  stopped_ = true;
  find(FindingKind::endless_loop, &warp, &instruction, -1, std::nullopt,
       fmt::format("the block has executed {} warp instructions without reaching its end{}{}",
                   context_.options.max_warp_instructions_per_cta,
                   context_.options.how_to_allow_more.empty() ? "" : ". ", context_.options.how_to_allow_more));
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
    check_barriers(*this);
    cluster_.end_lanes(warp, mask);
    return;
  }
  if (warp.active == 0) reconverge(*this, warp);
  check_barriers(*this);
  cluster_.end_lanes(warp, mask);
}

bool CtaExecutor::yield_to_others() {
  bool others_run = false;
  for (Warp& warp : warps_) {
    if (warp.status == WarpStatus::yielded && (warp.stuck || warp.tested_mbarrier()) && let_others_run(warp, changes_))
      others_run = true;
  }
  return others_run;
}

void CtaExecutor::report_stuck(std::uint64_t others, std::uint64_t unstarted) {
  stopped_ = true;
  emulator::report_stuck(*this, others, unstarted);
}

std::optional<CtaTrace> CtaExecutor::take_trace() {
  if (trace_ == nullptr) return std::nullopt;
  return std::exchange(trace_, nullptr)->take(roles());
}

std::vector<Role> CtaExecutor::roles() const { return async_ == nullptr ? std::vector<Role>{} : async_->roles(); }

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
  cluster_.renumber(renumbering);
  for (Mbarrier& barrier : mbarriers_) {
    renumbering.apply_to(barrier.arriving);
    renumbering.apply_to(barrier.completed);
    for (Mbarrier::Moment* moment : {&barrier.arrived, &barrier.ended, &barrier.ended_before})
      moment->known_from = renumbering(moment->known_from);
    for (Mbarrier::Moment& wait : barrier.passed) wait.known_from = renumbering(wait.known_from);
  }
  for (Warp& warp : warps_)
    for (EndedWait& wait : warp.waits) wait.before = renumbering(wait.before);
  ordering_->renumber(renumbering);
  if (async_ != nullptr) async_->renumber(renumbering);
}

}  // namespace flash_ladder::emulator
