// PTX text and the kernels in it.
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

/// One parameter of a kernel: where in the launch's parameter bytes it lies.
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
  std::array<std::uint32_t, 3> max_block() const;       // .maxntid (or .reqntid), 0 where it says nothing
  std::array<std::uint32_t, 3> required_block() const;  // .reqntid, 0 where it says nothing

  const std::vector<ModuleVariable>& constants() const;  // __constant__ variables that it names
  std::array<std::uint32_t, 3> cluster() const;          // .reqnctapercluster, ones where it says nothing

  /// Decoded on first use: an instruction that the virtual GPU does not know is a PtxError then, so that it does not keep a
  /// module's other kernels from running. Thread-safe.
  const CompiledKernel& compiled() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

/// PTX text, loaded: kernels to launch, and variables that have their place in memory.
class Module {
 public:
  /// Parses the text and puts its __device__ and __constant__ variables into `memory`, which must outlive the module.
  /// Throws PtxError for what concerns all kernels; what concerns one is said when that one is to run. Variables that are in
  /// `placed`, by name, have memory there already, as large as they are.
  Module(std::string_view ptx, Memory& memory, const std::map<std::string, Address>& placed = {});
  ~Module();
  Module(Module&&) noexcept;

  /// By mangled name; null if there is none.
  const Kernel* find_kernel(std::string_view name) const;
  /// The same, but throws std::out_of_range with the names that there are.
  const Kernel& kernel(std::string_view name) const;
  std::vector<const Kernel*> kernels() const;  // in the order of the text
  std::optional<ModuleVariable> variable(std::string_view name) const;

 private:
  std::unique_ptr<ModuleImage> image_;
  std::vector<std::unique_ptr<Kernel>> kernels_;
};

/// A launch's parameter bytes from pointers to the arguments, one per parameter, as cudaLaunchKernel gets them.
std::vector<std::byte> pack_parameters(const Kernel& kernel, const void* const* arguments);

}  // namespace flash_ladder::emulator
