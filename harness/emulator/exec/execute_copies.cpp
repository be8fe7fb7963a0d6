// cp.async. PTX ISA, "Data Movement and Conversion Instructions: Asynchronous copy". A copy happens as late as the program
// allows: when a wait, or the phase of an mbarrier, says that it is complete. Until then its destination holds NaNs.

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <cstring>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

namespace {
constexpr int kPoison = 0xff;  // NaN as fp16, bf16 and fp32
}

void CtaExecutor::copy_async(Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  const unsigned bytes = instruction.bytes;
  LaneAddresses to, from;
  addresses(warp, instruction, instruction.r[0], to);
  std::memcpy(from.at.data(), warp.registers + instruction.r[1], sizeof from.at);
  std::uint32_t offsets[kWarpSize];
  std::uint32_t good = check_shared(warp, instruction, to, mask, bytes, offsets);

  // How many bytes each lane reads; the rest of the destination becomes zero.
  std::uint32_t from_bytes[kWarpSize];
  std::uint32_t readers = good;
  for (int lane = 0; lane < kWarpSize; ++lane) {
    from_bytes[lane] = bytes;
    if (instruction.operands <= 2) continue;
    if (instruction.operation) {  // a predicate: true means that nothing is read
      std::uint32_t ignore;
      std::memcpy(&ignore, warp.registers + instruction.r[2], 4);
      if ((ignore >> lane) & 1) from_bytes[lane] = 0;
    } else {
      std::memcpy(&from_bytes[lane], warp.registers + instruction.r[2] + 4 * lane, 4);
      if (((good >> lane) & 1) && from_bytes[lane] > bytes) {
        find(FindingKind::invalid_operation, &warp, &instruction, lane, std::nullopt,
             fmt::format("cp.async of {} bytes with a source of {}", bytes, from_bytes[lane]));
        from_bytes[lane] = bytes;
      }
    }
    if (from_bytes[lane] == 0) readers &= ~(1u << lane);
  }
  std::byte* host[kWarpSize] = {};
  readers = check_global(warp, instruction, from, readers, bytes, host);
  if (context_.options.checks) check_initialised(warp, instruction, from, readers, bytes);
  if (shadow_ != nullptr) {
    shadow_->issue_copy({warp.index, index_of(instruction), false, good, bytes, offsets});
  }

  DetailCount& detail = counters_.details[static_cast<std::size_t>(index_of(instruction))];
  if (readers != 0) {
    const std::uint64_t sectors = count_sectors(from.at.data(), readers);
    ++detail.global.requests;
    detail.global.transactions += sectors;
    std::uint64_t total = 0;
    for (std::uint32_t rest = readers; rest != 0; rest &= rest - 1) total += from_bytes[std::countr_zero(rest)];
    detail.global.bytes += total;
    detail.global.ideal += std::min(sectors, (total + 31) / 32);
  }
  const Wavefronts wavefronts = banks_.count(offsets, good, bytes);
  ++detail.shared.requests;
  detail.shared.transactions += wavefronts.actual;
  detail.shared.ideal += wavefronts.ideal;
  detail.shared.bytes += static_cast<std::uint64_t>(std::popcount(good)) * bytes;

  PendingCopy& copy = warp.copies.emplace_back();
  copy.instruction = index_of(instruction);
  copy.number = warp.copies_issued++;
  copy.mask = good;
  copy.bytes = static_cast<std::uint8_t>(bytes);
  for (std::uint32_t rest = good; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    copy.group[lane] = warp.groups[lane];
    copy.to[lane] = offsets[lane];
    const bool reads = (readers >> lane) & 1;
    copy.from[lane] = reads ? host[lane] : nullptr;
    copy.from_bytes[lane] = static_cast<std::uint8_t>(reads ? from_bytes[lane] : 0);
    std::memset(shared_.data() + offsets[lane], kPoison, bytes);
  }
}

void CtaExecutor::commit_copies(Warp& warp, std::uint32_t mask) {
  for (int lane = 0; lane < kWarpSize; ++lane) warp.groups[lane] += (mask >> lane) & 1;
}

// Completes the copies of all groups but the newest `newest_left` of each lane.
void CtaExecutor::wait_for_copies(Warp& warp, std::uint32_t mask, std::uint32_t newest_left) {
  for (PendingCopy& copy : warp.copies) {
    std::uint32_t lanes = copy.mask & mask;
    for (std::uint32_t rest = lanes; rest != 0; rest &= rest - 1) {
      const int lane = std::countr_zero(rest);
      // The copies since the last commit are of group `groups`, which is not complete: no wait_group waits for them.
      if (std::uint64_t{copy.group[lane]} + newest_left >= warp.groups[lane]) lanes &= ~(1u << lane);
    }
    if (lanes != 0) complete(warp, copy, lanes, false);
  }
  std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
}

void CtaExecutor::wait_for_all_copies(Warp& warp, std::uint32_t mask) {
  for (PendingCopy& copy : warp.copies) {
    if ((copy.mask & mask) != 0) complete(warp, copy, copy.mask & mask, false);
  }
  std::erase_if(warp.copies, [](const PendingCopy& copy) { return copy.mask == 0; });
}

void CtaExecutor::complete(Warp& warp, PendingCopy& copy, std::uint32_t mask, bool by_mbarrier) {
  for (std::uint32_t rest = mask; rest != 0; rest &= rest - 1) {
    const int lane = std::countr_zero(rest);
    std::byte* to = shared_.data() + copy.to[lane];
    const std::size_t from_bytes = copy.from_bytes[lane];
    if (from_bytes != 0) std::memcpy(to, copy.from[lane], from_bytes);
    std::memset(to + from_bytes, 0, copy.bytes - from_bytes);
  }
  if (shadow_ != nullptr) {
    shadow_->complete_copy({warp.index, copy.instruction, false, mask, copy.bytes, copy.to}, by_mbarrier);
  }
  copy.mask &= ~mask;
  ++progress_;
}

}  // namespace flash_ladder::emulator
