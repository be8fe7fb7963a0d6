// Where the variables that a kernel uses are placed: parameters, shared and local memory.
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
  /// Shared variables are placed in the order in which the text declares them, followed by all extern ones, where the
  /// launch's dynamic shared memory begins. Memory that the system reserves comes first, if the kernel refers to it.
  /// Only variables to which the function's instructions refer are placed.
  MemoryLayout(const ModuleImage& image, const ptx::Function& function);

  /// The address of a variable in its space; nullopt if it is not a variable of this function.
  std::optional<std::uint64_t> address(int variable) const;
  /// The space that contains it: .param variables inside a function are arguments of calls, and are placed in local memory.
  ptx::Space space(int variable) const;

  std::size_t static_shared_bytes() const { return static_shared_bytes_; }
  /// Placed before them, and not counted towards any limit.
  std::size_t reserved_shared_bytes() const { return reserved_shared_bytes_; }
  std::size_t local_bytes() const { return local_bytes_; }
  std::size_t parameter_bytes() const { return parameter_bytes_; }
  const std::vector<KernelParameter>& parameters() const { return parameters_; }
  /// The variables in constant memory that are used.
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
