// Module and Kernel of the public interface.

#include "emulator/module.h"

#include <fmt/format.h>

#include <cstring>
#include <mutex>
#include <unordered_map>

#include "emulator/decode/decoder.h"
#include "emulator/decode/inline_calls.h"
#include "emulator/decode/memory_layout.h"
#include "emulator/operations/operations.h"
#include "emulator/ptx/module_image.h"
#include "emulator/ptx/parser.h"

namespace flash_ladder::emulator {

struct Kernel::State {
  State(const ModuleImage& module, const ptx::Function& as_written)
      : image(module), function(prepared(&as_written)), layout(image, function) {}

  // The kernel with the bodies of the functions that it calls inlined.
  const ptx::Function& prepared(const ptx::Function* as_written) {
    if (!as_written->error.empty()) error.emplace(as_written->error, as_written->error_line);
    if (!calls_functions(image.text, *as_written)) return *as_written;
    try {
      return with_callees.emplace(inline_calls(image.text, *as_written));
    } catch (const PtxError& problem) {
      error = problem;
      return *as_written;
    }
  }

  const ModuleImage& image;
  std::optional<ptx::Function> with_callees;
  std::optional<PtxError> error;  // why it cannot be run
  const ptx::Function& function;
  MemoryLayout layout;
  mutable std::mutex mutex;
  mutable std::unique_ptr<CompiledKernel> compiled;
};

Kernel::Kernel(const ModuleImage& image, int index)
    : state_(new State(image, image.text.functions[static_cast<std::size_t>(index)])) {}

Kernel::~Kernel() = default;

const std::string& Kernel::name() const { return state_->function.name; }
const std::vector<KernelParameter>& Kernel::parameters() const { return state_->layout.parameters(); }
std::size_t Kernel::parameter_bytes() const { return state_->layout.parameter_bytes(); }
std::size_t Kernel::static_shared_bytes() const { return state_->layout.static_shared_bytes(); }
std::size_t Kernel::local_bytes() const { return state_->layout.local_bytes(); }

std::array<std::uint32_t, 3> Kernel::max_block() const {
  const auto& function = state_->function;
  return function.required_threads[0] != 0 ? function.required_threads : function.max_threads;
}

std::array<std::uint32_t, 3> Kernel::required_block() const { return state_->function.required_threads; }

const std::vector<ModuleVariable>& Kernel::constants() const { return state_->layout.constants(); }

std::array<std::uint32_t, 3> Kernel::cluster() const { return state_->function.cluster; }

const CompiledKernel& Kernel::compiled() const {
  if (state_->error) throw *state_->error;
  const std::lock_guard lock(state_->mutex);
  if (state_->compiled == nullptr) state_->compiled = compile(state_->image, state_->function, operation_table());
  return *state_->compiled;
}

bool Kernel::lets_next_kernel_begin() const { return compiled().lets_next_kernel_begin; }

Module::Module(std::string_view ptx, Memory& memory, const std::map<std::string, Address>& placed)
    : image_(std::make_unique<ModuleImage>()) {
  image_->source = std::string(ptx);
  image_->memory = &memory;
  image_->text = ptx::parse(image_->source);
  const std::vector<ptx::Variable>& variables = image_->text.variables;
  std::unordered_map<std::string_view, std::size_t> by_name;
  for (const ptx::Variable& variable : variables) {
    Address address = 0;
    if ((variable.space == ptx::Space::global || variable.space == ptx::Space::constant) && !variable.external) {
      const auto place = placed.find(variable.name);
      address = place != placed.end() ? place->second : memory.allocate(variable.size);
      if (address == 0) {
        throw PtxError(
            fmt::format("PTX line {}: no memory for the {} bytes of {}", variable.line, variable.size, variable.name),
            variable.line);
      }
      memory.set_name(address, variable.name);
      memory.fill(address, 0, variable.size);  // variables start at zero
      memory.write(address, variable.initial.data(), variable.initial.size());
      if (variable.space == ptx::Space::constant) memory.set_constant(address);
      by_name[variable.name] = image_->addresses.size();
    }
    image_->addresses.push_back(address);
  }
  // Prevents only the kernels that use the variable from running.
  const auto set_unusable = [&](std::size_t i, const std::string& symbol, const char* why) {
    image_->unusable.try_emplace(static_cast<int>(i),
                                 fmt::format("{} has the address of {}, {}", variables[i].name, symbol, why));
  };
  for (std::size_t i = 0; i < variables.size(); ++i) {
    for (const ptx::Variable::Relocation& relocation : variables[i].relocations) {
      const auto target = by_name.find(relocation.symbol);
      const std::uint64_t function = ptx::function_address(image_->text, relocation.symbol);
      if (relocation.offset + 8 > variables[i].size || image_->addresses[i] == 0) {
        throw PtxError(fmt::format("PTX line {}: the values of {} do not fit", variables[i].line, variables[i].name),
                       variables[i].line);
      }
      if (target == by_name.end() && function == 0) {
        set_unusable(i, relocation.symbol, "which is neither a variable nor a function that device code can call");
        continue;
      }
      const Address value = (target == by_name.end() ? function : image_->addresses[target->second]) +
                            static_cast<Address>(relocation.addend);
      memory.write(image_->addresses[i] + relocation.offset, &value, sizeof value);
    }
  }
  // Variables that refer to such a variable cannot be used either.
  for (bool changed = true; changed;) {
    changed = false;
    for (std::size_t i = 0; i < variables.size(); ++i) {
      for (const ptx::Variable::Relocation& relocation : variables[i].relocations) {
        const auto target = by_name.find(relocation.symbol);
        if (image_->unusable.contains(static_cast<int>(i)) || target == by_name.end() ||
            !image_->unusable.contains(static_cast<int>(target->second))) {
          continue;
        }
        set_unusable(i, relocation.symbol, "which cannot be used");
        changed = true;
      }
    }
  }
  for (std::size_t i = 0; i < image_->text.functions.size(); ++i) {
    const ptx::Function& function = image_->text.functions[i];
    if (function.entry && function.defined) kernels_.push_back(std::make_unique<Kernel>(*image_, static_cast<int>(i)));
  }
}

Module::~Module() {
  if (image_ == nullptr) return;
  for (const Address address : image_->addresses) {
    if (address == 0) continue;
    const Allocation* allocation = image_->memory->find(address);
    if (allocation != nullptr && !allocation->freed) image_->memory->free(address);
  }
}

Module::Module(Module&&) noexcept = default;

const Kernel* Module::find_kernel(std::string_view name) const {
  for (const auto& kernel : kernels_) {
    if (kernel->name() == name) return kernel.get();
  }
  return nullptr;
}

const Kernel& Module::kernel(std::string_view name) const {
  if (const Kernel* kernel = find_kernel(name)) return *kernel;
  std::string names;
  for (const auto& kernel : kernels_) names += (names.empty() ? "" : ", ") + kernel->name();
  throw std::out_of_range(fmt::format("the module has no kernel {}; it has: {}", name, names.empty() ? "none" : names));
}

std::vector<const Kernel*> Module::kernels() const {
  std::vector<const Kernel*> all;
  for (const auto& kernel : kernels_) all.push_back(kernel.get());
  return all;
}

std::optional<ModuleVariable> Module::variable(std::string_view name) const {
  const std::vector<ptx::Variable>& variables = image_->text.variables;
  for (std::size_t i = 0; i < variables.size(); ++i) {
    if (image_->addresses[i] != 0 && variables[i].name == name)
      return ModuleVariable{image_->addresses[i], variables[i].size};
  }
  return std::nullopt;
}

std::vector<std::byte> pack_parameters(const Kernel& kernel, const void* const* arguments) {
  std::vector<std::byte> bytes(kernel.parameter_bytes());
  for (std::size_t i = 0; i < kernel.parameters().size(); ++i) {
    const KernelParameter& parameter = kernel.parameters()[i];
    std::memcpy(bytes.data() + parameter.offset, arguments[i], parameter.size);
  }
  return bytes;
}

}  // namespace flash_ladder::emulator
