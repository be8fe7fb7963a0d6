#include "emulator/decode/memory_layout.h"

#include <algorithm>
#include <set>

#include "emulator/decode/instruction.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Space;

std::uint64_t aligned(std::uint64_t value, std::uint64_t alignment) {
  return (value + alignment - 1) / alignment * alignment;
}

void collect(const ptx::Operand& operand, std::set<int>& variables) {
  if (operand.kind == ptx::Operand::Kind::variable) variables.insert(operand.index);
  for (const ptx::Operand& element : operand.elements) collect(element, variables);
}

}  // namespace

MemoryLayout::MemoryLayout(const ModuleImage& image, const ptx::Function& function) : image_(image) {
  std::size_t parameter = 0;
  for (const int index : function.parameters) {
    const ptx::Variable& variable = image.text.variables[static_cast<std::size_t>(index)];
    parameter = aligned(parameter, variable.alignment);
    addresses_[index] = parameter;
    parameters_.push_back({.offset = parameter, .size = variable.size, .alignment = variable.alignment});
    parameter += variable.size;
  }
  parameter_bytes_ = parameter;

  std::set<int> named;
  for (const ptx::Instruction& instruction : function.instructions) {
    for (const ptx::Operand& operand : instruction.operands) collect(operand, named);
  }
  std::uint64_t shared = kSharedBase, local = kLocalBase, dynamic_alignment = 16;
  for (const int index : named) {
    const ptx::Variable& variable = image.text.variables[static_cast<std::size_t>(index)];
    if (!variable.reserved) continue;
    addresses_[index] = shared;
    shared = aligned(shared + variable.size, kSharedBase);  // so that it does not affect the alignment of anything else
  }
  reserved_shared_bytes_ = shared - kSharedBase;
  for (const int index : named) {
    const ptx::Variable& variable = image.text.variables[static_cast<std::size_t>(index)];
    if (variable.reserved) continue;
    if (space(index) == Space::shared && variable.size > 0) {
      addresses_[index] = shared = aligned(shared, variable.alignment);
      shared += variable.size;
    } else if (space(index) == Space::shared) {
      dynamic_alignment = std::max<std::uint64_t>(dynamic_alignment, variable.alignment);
    } else if (space(index) == Space::local) {
      addresses_[index] = local = aligned(local, variable.alignment);
      local += variable.size;
    } else if (space(index) == Space::constant && address(index)) {
      constants_.push_back({.address = *address(index), .size = variable.size});
    }
  }
  const std::uint64_t dynamic = aligned(shared, dynamic_alignment);
  for (const int index : named) {
    const ptx::Variable& variable = image.text.variables[static_cast<std::size_t>(index)];
    if (space(index) == Space::shared && variable.size == 0) {
      addresses_[index] = dynamic;
      shared = dynamic;
    }
  }
  static_shared_bytes_ = shared - kSharedBase - reserved_shared_bytes_;
  local_bytes_ = local == kLocalBase ? 0 : aligned(local, 16) - kLocalBase;
}

std::optional<std::uint64_t> MemoryLayout::address(int variable) const {
  if (const auto found = addresses_.find(variable); found != addresses_.end()) return found->second;
  if (const Address global = image_.addresses[static_cast<std::size_t>(variable)]; global != 0) return global;
  return std::nullopt;
}

Space MemoryLayout::space(int index) const {
  const ptx::Variable& variable = image_.text.variables[static_cast<std::size_t>(index)];
  return variable.space == Space::param && !variable.parameter ? Space::local : variable.space;
}

}  // namespace flash_ladder::emulator
