#include "emulator/exec/trace_recorder.h"

#include <algorithm>
#include <string_view>
#include <utility>

namespace flash_ladder::emulator {
namespace {

constexpr std::int8_t kNone = -1;

std::int8_t phase_of(InstructionClass instruction_class, std::string_view text) {
  const auto phase = [](Phase p) { return static_cast<std::int8_t>(p); };
  switch (instruction_class) {
    using enum InstructionClass;
    case mma:
    case wgmma:
      return phase(Phase::mma);
    case ldmatrix:
    case shared_load:
      return phase(Phase::load);
    case cp_async:
    case tma:
    case global_load:
      return phase(Phase::copy);
    case shared_store:
    case global_store:
      return phase(Phase::store);
    case float32:
    case float64:
    case float16:
    case special:
    case shuffle:
      return phase(Phase::arithmetic);
    case convert:  // also of addresses
      return text.find(".f") != text.npos || text.find(".bf16") != text.npos ? phase(Phase::arithmetic) : kNone;
    case barrier:
      if (text.starts_with("wgmma.wait")) return phase(Phase::wait_wgmma);
      if (text.starts_with("wgmma.")) return phase(Phase::mma);
      if (text.starts_with("cp.async.wait") || text.starts_with("cp.async.bulk.wait")) return phase(Phase::wait_copies);
      if (text.starts_with("cp.async.")) return phase(Phase::copy);
      if (text.starts_with("mbarrier.test_wait") || text.starts_with("mbarrier.try_wait"))
        return phase(Phase::wait_mbarrier);
      if ((text.starts_with("bar.") || text.starts_with("barrier.")) && !text.starts_with("bar.warp"))
        return text.find(".arrive") == text.npos ? phase(Phase::wait_barrier) : kNone;
      return kNone;
    default:
      return kNone;
  }
}

bool is_wait(Phase phase) { return phase <= Phase::wait_wgmma; }

}  // namespace

TraceRecorder::TraceRecorder(const CompiledKernel& kernel, const Dim3& cta, int num_warps) : kernel_(kernel) {
  trace_.kernel = kernel.name;
  trace_.cta = cta;
  trace_.num_warps = num_warps;
  trace_.positions = kernel.positions;
  warps_.resize(static_cast<std::size_t>(num_warps));
  phases_.assign(kernel.sources.size(), kNone);
  for (const Instruction& instruction : kernel.code) {
    if (!instruction.counted) continue;
    phases_[instruction.source] = phase_of(instruction.instruction_class, kernel.sources[instruction.source].text);
  }
}

int TraceRecorder::position_of(std::int32_t instruction) const {
  return kernel_.sources[kernel_.code[static_cast<std::size_t>(instruction)].source].position;
}

void TraceRecorder::add(WarpTrace& warp, Phase phase, std::int32_t instruction, std::uint64_t steps,
                        std::uint64_t instructions) {
  const int position = position_of(instruction);
  TraceInterval* last = warp.intervals.empty() ? nullptr : &warp.intervals.back();
  if (last == nullptr || last->phase != phase || last->position != position || is_wait(phase)) {
    warp.intervals.push_back({.warp = static_cast<int>(&warp - warps_.data()),
                              .phase = phase,
                              .begin = warp.clock,
                              .end = warp.clock,
                              .instructions = 0,
                              .position = position});
    last = &warp.intervals.back();
  }
  warp.clock += steps;
  last->end = warp.clock;
  last->instructions += instructions;
}

void TraceRecorder::execute(int warp_index, std::int32_t index) {
  const Instruction& instruction = kernel_.code[static_cast<std::size_t>(index)];
  if (!instruction.counted) return;
  WarpTrace& warp = warps_[static_cast<std::size_t>(warp_index)];
  const std::int8_t phase = phases_[instruction.source];
  if (warp.asks_again) {
    if (phase == kNone || phase == static_cast<std::int8_t>(Phase::wait_mbarrier)) return;
    warp.asks_again = false;  // it does something else in the meantime
  }
  warp.instruction = index;
  if (phase != kNone) {
    add(warp, static_cast<Phase>(phase), index, 1, 1);
  } else if (warp.intervals.empty() || is_wait(warp.intervals.back().phase)) {
    add(warp, Phase::other, index, 1, 1);
  } else {
    ++warp.intervals.back().instructions;
    warp.intervals.back().end = ++warp.clock;
  }
}

void TraceRecorder::go_on(int warp_index, std::uint64_t time, const TraceBarrier& barrier, int ended_by) {
  WarpTrace& warp = warps_[static_cast<std::size_t>(warp_index)];
  warp.asks_again = false;
  TraceInterval& wait = warp.intervals.back();  // time of the waiting instruction
  wait.barrier = barrier;
  if (time <= warp.clock) return;
  wait.ended_by = ended_by;
  wait.end = warp.clock = time;
}

void TraceRecorder::ask_again(int warp_index) { warps_[static_cast<std::size_t>(warp_index)].asks_again = true; }

void TraceRecorder::note(TraceEvent event, std::int32_t instruction) {
  WarpTrace& warp = warps_[static_cast<std::size_t>(event.warp)];
  event.at = warp.clock;
  event.position = position_of(instruction);
  warp.events.push_back(event);
}

void TraceRecorder::finish_wgmma(int first_warp, std::uint64_t begin, int waiting_warp, std::int32_t instruction) {
  const std::uint64_t end = clock(waiting_warp);
  const int position = position_of(instruction);
  if (!trace_.wgmmas.empty()) {
    TraceWgmmas& last = trace_.wgmmas.back();
    if (last.first_warp == first_warp && last.end == end && last.position == position) {
      ++last.count;
      return;
    }
  }
  trace_.wgmmas.push_back({first_warp, begin, end, 1, position});
}

void TraceRecorder::note_mbarrier(std::uint32_t address, std::uint32_t arrivals, std::int32_t instruction) {
  std::erase_if(trace_.mbarriers, [&](const TraceMbarrier& known) { return known.address == address; });
  trace_.mbarriers.push_back({address, arrivals, position_of(instruction)});
}

CtaTrace TraceRecorder::take(std::vector<Role> roles) {
  for (WarpTrace& warp : warps_) {
    trace_.intervals.insert(trace_.intervals.end(), warp.intervals.begin(), warp.intervals.end());
    trace_.events.insert(trace_.events.end(), warp.events.begin(), warp.events.end());
  }
  std::ranges::stable_sort(trace_.wgmmas, {}, &TraceWgmmas::first_warp);
  std::ranges::sort(trace_.mbarriers, {}, &TraceMbarrier::address);
  trace_.roles = std::move(roles);
  return std::move(trace_);
}

}  // namespace flash_ladder::emulator
