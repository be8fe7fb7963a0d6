#include "emulator/exec/launch_context.h"

#include <fmt/format.h>

namespace flash_ladder::emulator {

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

}  // namespace flash_ladder::emulator
