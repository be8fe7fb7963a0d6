// Where the variables that a kernel names lie: parameters, shared and local memory.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <optional>
#include <vector>

#include "emulator/module.h"
#include "emulator/ptx/module_image.h"

namespace flash_ladder::emulator {

class MemoryLayout {
 public:
  /// Shared variables lie in the order in which the text declares them, extern ones all behind the others, where the launch's
  /// dynamic shared memory begins. Before them all lies what the system reserves, if it is named. Only those that the function's
  /// instructions name are given a place.
  MemoryLayout(const ModuleImage& image, const ptx::Function& function);

  /// The address of a variable in its space; none if it is not one of this function's.
  std::optional<std::uint64_t> address(int variable) const;
  /// The space that it lies in: .param variables inside a function are arguments of calls, and lie in local memory.
  ptx::Space space(int variable) const;

  std::size_t static_shared_bytes() const { return static_shared_bytes_; }
  /// Before them, and in no limit's sum.
  std::size_t reserved_shared_bytes() const { return reserved_shared_bytes_; }
  std::size_t local_bytes() const { return local_bytes_; }
  std::size_t parameter_bytes() const { return parameter_bytes_; }
  const std::vector<KernelParameter>& parameters() const { return parameters_; }
  /// The variables in constant memory that are named.
  const std::vector<ModuleVariable>& constants() const { return constants_; }

 private:
  const ModuleImage& image_;
  std::map<int, std::uint64_t> addresses_;
  std::vector<KernelParameter> parameters_;
  std::vector<ModuleVariable> constants_;
  std::size_t static_shared_bytes_ = 0;
  std::size_t reserved_shared_bytes_ = 0;
  std::size_t local_bytes_ = 0;
  std::size_t parameter_bytes_ = 0;
};

}  // namespace flash_ladder::emulator
