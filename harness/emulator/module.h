// PTX text and the kernels that it defines.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/memory.h"
#include "emulator/ptx_error.h"

namespace flash_ladder::emulator {

/// One parameter of a kernel, and its location in the launch's parameter bytes.
struct KernelParameter {
  std::size_t offset = 0;
  std::size_t size = 0;
  std::size_t alignment = 1;
};

class CompiledKernel;  // exec/: what a launch executes
class ModuleImage;     // ptx/: the parsed text

/// A variable of a module, in global or constant memory.
struct ModuleVariable {
  Address address = 0;
  std::size_t size = 0;
};

/// A kernel of a module.
class Kernel {
 public:
  Kernel(const ModuleImage& image, int index);
  ~Kernel();
  Kernel(const Kernel&) = delete;
  Kernel& operator=(const Kernel&) = delete;

  const std::string& name() const;  // mangled, as in the PTX
  const std::vector<KernelParameter>& parameters() const;
  std::size_t parameter_bytes() const;
  std::size_t static_shared_bytes() const;
  std::size_t local_bytes() const;                      // per thread
  std::array<std::uint32_t, 3> max_block() const;       // .maxntid (or .reqntid), 0 if unspecified
  std::array<std::uint32_t, 3> required_block() const;  // .reqntid, 0 if unspecified

  const std::vector<ModuleVariable>& constants() const;  // the __constant__ variables that it uses
  std::array<std::uint32_t, 3> cluster() const;          // .reqnctapercluster, ones if unspecified

  /// Whether a dependent launch behind it may begin while it runs. Decodes the kernel, see compiled().
  bool lets_next_kernel_begin() const;

  /// Decoded on first use, so that an instruction unknown to the virtual GPU causes a PtxError only then, and does not
  /// prevent a module's other kernels from running. Thread-safe.
  const CompiledKernel& compiled() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// Loaded PTX text: kernels to launch, and variables placed in memory.
class Module {
 public:
  /// Parses the text and places its __device__ and __constant__ variables in `memory`, which must outlive the module.
  /// Throws PtxError for errors that concern all kernels; an error in one kernel is reported when that kernel is to
  /// run. Variables listed by name in `placed` already have memory of the right size there.
  Module(std::string_view ptx, Memory& memory, const std::map<std::string, Address>& placed = {});
  ~Module();
  Module(Module&&) noexcept;

  /// By mangled name; null if there is none.
  const Kernel* find_kernel(std::string_view name) const;
  /// The same, but throws std::out_of_range, whose message lists the existing names.
  const Kernel& kernel(std::string_view name) const;
  std::vector<const Kernel*> kernels() const;  // in the order of the text
  std::optional<ModuleVariable> variable(std::string_view name) const;

 private:
  std::unique_ptr<ModuleImage> image_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

/// A launch's parameter bytes, copied from pointers to the arguments, one per parameter, as passed to cudaLaunchKernel.
std::vector<std::byte> pack_parameters(const Kernel& kernel, const void* const* arguments);

}  // namespace flash_ladder::emulator
