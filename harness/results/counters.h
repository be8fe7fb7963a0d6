// What the virtual GPU counts, under the names used in JSON. Only this file composes the names; all other code uses the
// members of Counters, whose existence the compiler checks.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder {

using emulator::Counters;
using emulator::InstructionClass;
using emulator::kNumInstructionClasses;
using emulator::Traffic;

/// One kind of traffic: the prefix of its counters' names, the words for it, and what one of its transactions is called.
struct TrafficKind {
  std::string_view name;
  std::string_view words;
  std::string_view transactions;
  Traffic Counters::* member;
};
inline constexpr std::array<TrafficKind, 9> kTrafficKinds = {{
    {"global_load", "global loads", "sectors", &Counters::global_load},
    {"global_store", "global stores", "sectors", &Counters::global_store},
    {"shared_load", "shared loads", "wavefronts", &Counters::shared_load},
    {"shared_store", "shared stores", "wavefronts", &Counters::shared_store},
    {"shared_copy", "copies to shared memory", "wavefronts", &Counters::shared_copy},
    {"local", "local memory", "sectors", &Counters::local},
    {"wgmma_operand", "wgmma operands", "wavefronts", &Counters::wgmma_operands},
    {"tma_load", "TMA loads", "sectors", &Counters::tma_load},
    {"tma_store", "TMA stores", "sectors", &Counters::tma_store},
}};

/// Calls visit(name, counter) for each counter: "mma_instructions", "shared_load_ideal_wavefronts", "barriers" … If
/// Counters is not const, the counter is a reference that can be written to.
template <typename SomeCounters, typename Visit>
void for_each_counter(SomeCounters& counters, Visit visit) {
  visit("warp_instructions", counters.warp_instructions);
  visit("thread_instructions", counters.thread_instructions);
  for (std::size_t i = 0; i < kNumInstructionClasses; ++i)
    visit(std::string(to_string(static_cast<InstructionClass>(i))) + "_instructions", counters.instructions[i]);
  for (const TrafficKind& kind : kTrafficKinds) {
    auto& traffic = counters.*kind.member;
    const std::string name = std::string(kind.name) + "_", transactions(kind.transactions);
    visit(name + "requests", traffic.requests);
    visit(name + transactions, traffic.transactions);
    visit(name + "ideal_" + transactions, traffic.ideal);
    visit(name + "bytes", traffic.bytes);
  }
  visit("barriers", counters.barriers);
  visit("branches", counters.branches);
  visit("divergent_branches", counters.divergent_branches);
}

/// Whether only kernels with wgmma or TMA have this counter. For other kernels it is left out, because it is 0.
inline bool is_of_hopper(std::string_view name) { return name.starts_with("wgmma_") || name.starts_with("tma_"); }

/// An object with all counters, or only with those that are not 0. Zeros of Hopper's counters are never kept.
enum class Zeros { kept, left_out };
nlohmann::json counters_to_json(const Counters& counters, Zeros zeros);
/// The inverse. Throws std::exception for an unknown name and, if zeros are kept, for a missing one.
Counters counters_from_json(const nlohmann::json& json, Zeros zeros);

/// An array of objects: the warps of a role, what they do, and their registers. Its inverse follows; it throws
/// std::exception.
nlohmann::json roles_to_json(const std::vector<emulator::Role>& roles);
std::vector<emulator::Role> roles_from_json(const nlohmann::json& json);

}  // namespace flash_ladder
