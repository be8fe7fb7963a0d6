// How PTX instructions become the virtual GPU's. Those that act on each lane separately are in lanes/; the others are
// decoded by the functions of an OperationTable, with the members of KernelDecoder.
#pragma once

#include <algorithm>
#include <cstdint>
#include <map>
#include <memory>
#include <optional>
#include <string>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/decode/instruction.h"
#include "emulator/decode/memory_layout.h"
#include "emulator/decode/virtual_register.h"
#include "emulator/lanes/lane_table.h"
#include "emulator/ptx/module_image.h"
#include "emulator/ptx/parser.h"

namespace flash_ladder::emulator {

class KernelDecoder;

/// Decodes the decoder's current instruction. Calls emit() or emit_lane() for each instruction of the virtual GPU that
/// it becomes; calls fail_unknown() if this form is not known.
using Decode = void (*)(KernelDecoder& decoder);

/// Instructions, looked up by the first part of their opcode.
class OperationTable {
 public:
  void add(std::string_view name, Decode decode) { decode_.emplace(name, decode); }
  /// Null if the name is unknown.
  Decode find(std::string_view name) const {
    const auto found = decode_.find(name);
    return found == decode_.end() ? nullptr : found->second;
  }
  std::vector<std::string> names() const;

 private:
  std::unordered_map<std::string_view, Decode> decode_;
};

/// Decodes one kernel.
class KernelDecoder {
 public:
  KernelDecoder(const ModuleImage& image, const ptx::Function& function, const OperationTable& operations)
      : image_(image),
        function_(function),
        operations_(operations),
        kernel_(std::make_unique<CompiledKernel>()),
        layout_(image, function) {}

  std::unique_ptr<CompiledKernel> run();

  using Operand = ptx::Operand;
  using Space = ptx::Space;
  using Kind = Operand::Kind;

  bool limits_registers() const { return function_.limits_registers; }

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_unknown() const { fail("the virtual GPU does not know this instruction"); }

  // Registers.
  int temporary(Slot slot);
  int constant(Slot slot, std::uint64_t value);
  int carry();
  int read(const Operand& operand, Slot slot);
  int write(const Operand& operand, Slot slot, bool sign_extend = false);
  /// The lower and the upper half, of 64 bits each, of a register of 128 bits, to read or to write.
  std::vector<int> halves(const Operand& operand);
  std::uint64_t address_of(const Operand& operand) const;
  /// Fills CompiledKernel::functions.
  void name_functions();
  int immediate(std::size_t operand) const;

  // Instructions.
  Instruction& emit(Execute execute, InstructionClass instruction_class, const std::vector<int>& writes,
                    const std::vector<int>& reads);
  Instruction& emit(Action action, InstructionClass instruction_class, const std::vector<int>& writes,
                    const std::vector<int>& reads);
  /// The first instruction that the PTX instruction became: it stands for all of them in the counters.
  Instruction& first_emitted() { return kernel_->code[first_code_]; }
  void emit_lane(std::string_view opcode, const std::vector<int>& writes, const std::vector<int>& reads);
  void emit_lane(const LaneOperation& operation, const std::vector<int>& writes, const std::vector<int>& reads);
  bool decode_lane();
  void expect_operands(std::size_t count, std::size_t at_most = 0) const;
  const Operand& operand(std::size_t i) const {
    if (i >= num_operands()) fail("operands are missing");
    return instruction_->operands[i];
  }
  std::size_t num_operands() const { return instruction_->operands.size(); }
  bool has(std::string_view part) const { return std::find(parts_.begin(), parts_.end(), part) != parts_.end(); }
  ptx::Type last_type() const;
  std::vector<Operand> elements(const Operand& operand) const;
  int address_operand(const Operand& operand, Space space, std::int64_t& offset, bool& wide);

  const ptx::Instruction& instruction() const { return *instruction_; }
  const std::vector<std::string_view>& parts() const { return parts_; }  // of its opcode
  CompiledKernel& kernel() { return *kernel_; }
  const MemoryLayout& layout() const { return layout_; }
  bool is_predicate(const Operand& operand) const {
    return operand.kind == Kind::reg && registers_[static_cast<std::size_t>(operand.index)].slot == Slot::predicate;
  }

 private:
  bool decode_multiply_add_with_carry();
  void decode(const ptx::Instruction& instruction);
  int special(ptx::SpecialRegister which);
  bool has_halves(const Operand& operand) const {
    return operand.kind == Kind::reg && upper_halves_.contains(operand.index);
  }
  int converted(int reg, Slot slot);
  void find_variables();

  const ModuleImage& image_;
  const ptx::Function& function_;
  const OperationTable& operations_;
  std::unique_ptr<CompiledKernel> kernel_;
  MemoryLayout layout_;
  const ptx::Instruction* instruction_ = nullptr;
  std::vector<std::string_view> parts_;  // of its opcode
  std::vector<VirtualRegister> registers_;
  std::map<std::pair<Slot, std::uint64_t>, int> constants_;
  // Registers that hold the address of a variable in shared or local memory → the variable's index.
  std::map<int, int> addresses_;
  std::map<int, int> upper_halves_;  // for registers of 128 bits, which are represented by their lower half
  std::map<ptx::SpecialRegister, int> specials_;
  int carry_ = -1;
  int guard_ = -1;
  bool first_of_instruction_ = true;
  std::size_t first_code_ = 0;
  struct Conversion {  // to perform after the instruction: extends its result into a wider register
    const LaneOperation* operation;
    int to, from;
  };
  std::vector<Conversion> conversions_;
};

/// The kind of register that holds this many bytes.
inline Slot slot_of(int bytes) { return bytes <= 2 ? Slot::b16 : bytes == 4 ? Slot::b32 : Slot::b64; }

}  // namespace flash_ladder::emulator
