// What all CTAs of a launch share, and the words in which they report what they find.
#pragma once

#include <cstdint>
#include <map>
#include <optional>
#include <string>
#include <vector>

#include "emulator/checks/findings.h"
#include "emulator/checks/global_shadow.h"
#include "emulator/checks/ordering.h"
#include "emulator/decode/instruction.h"
#include "emulator/launch.h"

namespace flash_ladder::emulator {

/// It does not change while they run, except for the heap of device code.
struct LaunchContext {
  const CompiledKernel& kernel;
  const LaunchConfig& config;
  Memory& memory;
  const Options& options;
  Dim3 cluster;                         // CTAs in each dimension
  std::vector<Allocation> allocations;  // by address
  // Allocated with malloc since the launch began. Kernels that call malloc or free run one CTA at a time.
  std::map<Address, Allocation> made = {};
  // For CTAs that can communicate and so run one at a time; otherwise null.
  LaunchOrdering* ordering = nullptr;
  GlobalShadow* shadow = nullptr;
};

/// A finding at an instruction of a CTA. `warp` and `lane` are -1 if it does not belong to a particular one.
RawFinding describe(const LaunchContext& context, FindingKind kind, const Dim3& cta, int warp, std::int32_t instruction,
                    int lane, std::optional<Address> address, const std::string& message);
/// What distinguishes findings: the source position, or the instruction if there is none.
std::int32_t place_of(const CompiledKernel& kernel, std::int32_t instruction);
SourcePosition position_of(const CompiledKernel& kernel, std::int32_t instruction);
/// "a write to byte 4 of the allocation of 64 bytes at 0x…, and nothing orders it after a read"
std::string message_of(const LaunchContext& context, GlobalConflict::Kind kind, Address address, bool of_another_block);
/// CTAs are numbered cluster by cluster, first along x.
Dim3 cta_at(const LaunchContext& context, std::uint64_t index);

}  // namespace flash_ladder::emulator
