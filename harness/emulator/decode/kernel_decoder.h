// How PTX instructions become the virtual GPU's: the members that all of them use are in decoder.cpp, the instructions themselves
// in decode_values.cpp (moves, comparisons, addresses), decode_memory.cpp (loads, stores, atomics, copies), decode_exchange.cpp
// (what the lanes of a warp do together) and decode_control.cpp (barriers, branches, calls).
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
#include "emulator/exec/lane_table.h"
#include "emulator/ptx/module_image.h"
#include "emulator/ptx/parser.h"

namespace flash_ladder::emulator {

/// Decodes one kernel.
class KernelDecoder {
 public:
  KernelDecoder(const ModuleImage& image, const ptx::Function& function)
      : image_(image), function_(function), kernel_(std::make_unique<CompiledKernel>()), layout_(image, function) {}

  std::unique_ptr<CompiledKernel> run();

  using Handler = void (KernelDecoder::*)();
  static const std::unordered_map<std::string_view, Handler>& handlers();

 private:
  using Operand = ptx::Operand;
  using Space = ptx::Space;
  using Kind = Operand::Kind;

  [[noreturn]] void fail(const std::string& message) const;
  [[noreturn]] void fail_unknown() const { fail("the virtual GPU does not know this instruction"); }

  // Registers.
  int temporary(Slot slot);
  int constant(Slot slot, std::uint64_t value);
  int special(ptx::SpecialRegister which);
  int carry();
  int read(const Operand& operand, Slot slot);
  int write(const Operand& operand, Slot slot, bool sign_extend = false);
  int converted(int reg, Slot slot);
  std::uint64_t address_of(const Operand& operand) const;
  int immediate(std::size_t operand) const;

  // Instructions.
  Instruction& emit(Action action, InstructionClass instruction_class, const std::vector<int>& writes,
                    const std::vector<int>& reads);
  void emit_lane(std::string_view opcode, const std::vector<int>& writes, const std::vector<int>& reads);
  void emit_lane(const LaneOperation& operation, const std::vector<int>& writes, const std::vector<int>& reads);
  void decode(const ptx::Instruction& instruction);
  bool decode_lane();
  bool decode_multiply_add_with_carry();
  void expect_operands(std::size_t count, std::size_t at_most = 0) const;
  const Operand& operand(std::size_t i) const { return instruction_->operands[i]; }
  std::size_t num_operands() const { return instruction_->operands.size(); }
  bool has(std::string_view part) const { return std::find(parts_.begin(), parts_.end(), part) != parts_.end(); }
  ptx::Type last_type() const;
  std::vector<Operand> elements(const Operand& operand) const;
  int address_operand(const Operand& operand, Space space, std::int64_t& offset, bool& wide);

  void mov();
  void setp();
  void cvta();
  void isspacep();
  void ld();
  void st();
  void memory_modifiers(Space& space, int& elements, bool& strong) const;
  void atom();
  void ldmatrix();
  void mma();
  void cp();
  void mbarrier();
  void shfl();
  void vote();
  void match();
  void redux();
  void activemask();
  void bar();
  void bra();
  void brx();
  void leave();
  void trap();
  void call();
  void fence();
  void nothing();
  void nanosleep();
  void createpolicy();

  const ModuleImage& image_;
  const ptx::Function& function_;
  std::unique_ptr<CompiledKernel> kernel_;
  MemoryLayout layout_;
  const ptx::Instruction* instruction_ = nullptr;
  std::vector<std::string_view> parts_;  // of its opcode
  std::vector<VirtualRegister> registers_;
  std::map<std::pair<Slot, std::uint64_t>, int> constants_;
  std::map<ptx::SpecialRegister, int> specials_;
  int carry_ = -1;
  int guard_ = -1;
  bool first_of_instruction_ = true;
  struct Conversion {  // after the instruction: its result, into a wider register
    const LaneOperation* operation;
    int to, from;
  };
  std::vector<Conversion> conversions_;
};

/// The space that a part of an opcode names, if it names one.
std::optional<ptx::Space> named_space(std::string_view part);

/// The kind of register that holds so many bytes.
inline Slot slot_of(int bytes) { return bytes <= 2 ? Slot::b16 : bytes == 4 ? Slot::b32 : Slot::b64; }

}  // namespace flash_ladder::emulator
