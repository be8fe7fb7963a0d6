#include "emulator/decode/decoder.h"

#include <fmt/format.h>

#include <bit>

#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {
namespace {

std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = opcode.find('.');
    parts.push_back(opcode.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    opcode.remove_prefix(dot + 1);
  }
}

// p - q for two addresses in one variable: a number that may be added to any address.
bool is_distance(const Instruction& instruction, const std::vector<int>& variable_of) {
  static const LaneOperation* const kSubtractions[] = {lane_table().find("sub.s32"), lane_table().find("sub.u32"),
                                                       lane_table().find("sub.s64"), lane_table().find("sub.u64")};
  const auto of = [&](int k) {
    return variable_of[static_cast<std::size_t>(instruction.r[static_cast<std::size_t>(k)])];
  };
  return std::ranges::count(kSubtractions, instruction.lane_operation) > 0 && of(1) >= 0 && of(1) == of(2);
}

}  // namespace

std::string one_line(std::string_view text) {
  std::string line;
  for (std::size_t i = 0; i < text.size(); ++i) {
    char c = text[i];
    if (const std::string_view two = text.substr(i, 2); two == "//" || two == "/*") {  // a comment is a space
      const std::string_view ends_with = two == "//" ? "\n" : "*/";
      const std::size_t end = text.find(ends_with, i + 2);
      i = end == std::string_view::npos ? text.size() : end + ends_with.size() - 1;
      c = ' ';
    }
    const bool space = c == ' ' || c == '\t' || c == '\n' || c == '\r';
    if (!space) {
      line += c;
    } else if (!line.empty() && line.back() != ' ') {
      line += ' ';
    }
  }
  return line;
}

void KernelDecoder::fail(const std::string& message) const {
  std::string where = fmt::format("PTX line {}", instruction_->line);
  if (const SourcePosition& position = function_.positions[instruction_->position]; !position.empty()) {
    where += " (" + to_string(position) + ")";
  }
  throw PtxError(fmt::format("{}: {}: {}", where, message, one_line(instruction_->text)), instruction_->line);
}

int KernelDecoder::temporary(Slot slot) {
  registers_.push_back({.slot = slot});
  return static_cast<int>(registers_.size()) - 1;
}

int KernelDecoder::constant(Slot slot, std::uint64_t value) {
  if (slot == Slot::predicate) value = value != 0 ? kAllLanes : 0;
  if (slot == Slot::b16) value &= 0xffff;
  if (slot == Slot::b32) value &= 0xffffffff;
  const auto [entry, is_new] = constants_.try_emplace({slot, value}, static_cast<int>(registers_.size()));
  if (is_new) registers_.push_back({.slot = slot, .uniform = true, .value = value});
  return entry->second;
}

int KernelDecoder::special(ptx::SpecialRegister which) {
  const auto [entry, is_new] = specials_.try_emplace(which, static_cast<int>(registers_.size()));
  if (is_new) {
    const bool wide = which == ptx::SpecialRegister::gridid;
    registers_.push_back(
        {.slot = wide ? Slot::b64 : Slot::b32, .uniform = true, .special = true, .special_register = which});
  }
  return entry->second;
}

int KernelDecoder::carry() {
  if (carry_ < 0) carry_ = temporary(Slot::predicate);
  return carry_;
}

// The address of a variable in its own space.
std::uint64_t KernelDecoder::address_of(const Operand& operand) const {
  if (const auto unusable = image_.unusable.find(operand.index); unusable != image_.unusable.end()) {
    fail(unusable->second);
  }
  const std::optional<std::uint64_t> address = layout_.address(operand.index);
  if (!address) fail(fmt::format("the variable {} has no address", operand.name));
  return *address + static_cast<std::uint64_t>(operand.value);
}

void KernelDecoder::name_functions() {
  if (!kernel_->functions.empty()) return;
  for (const ptx::Function& function : image_.text.functions) {
    if (!function.entry)
      kernel_->functions.emplace_back(ptx::function_address(image_.text, function.name), function.name);
  }
}

int KernelDecoder::converted(int reg, Slot slot) {
  const Slot have = registers_[reg].slot;
  if (have == slot) return reg;
  if (have == Slot::predicate || slot == Slot::predicate) fail("a predicate where a value is required, or vice versa");
  if (have < slot) {
    // Only special registers: they are 32 bits wide, but may be read as 64.
    if (!registers_[reg].special) fail("a register that is too narrow");
    const int wide = temporary(slot);
    emit_lane("%widen.u.32.64", {wide}, {reg});
    return wide;
  }
  const int narrow = temporary(slot);
  emit_lane(have == Slot::b32   ? "%narrow.32.16"
            : slot == Slot::b32 ? "%narrow.64.32"
                                : "%narrow.64.16",
            {narrow}, {reg});
  return narrow;
}

// A register that contains the operand's value in the form that an instruction reads.
int KernelDecoder::read(const Operand& operand, Slot slot) {
  switch (operand.kind) {
    case Kind::reg: {
      if (has_halves(operand)) fail("a 128-bit register where none is allowed");
      int reg = converted(operand.index, slot);
      if (operand.negated) {
        if (slot != Slot::predicate) fail("'!' before something that is not a predicate");
        const int inverted = temporary(Slot::predicate);
        emit_lane("not.pred", {inverted}, {reg});
        reg = inverted;
      }
      if (operand.value != 0) fail("an offset that is not in an address");
      return reg;
    }
    case Kind::special: {
      using enum ptx::SpecialRegister;
      const auto which = static_cast<ptx::SpecialRegister>(operand.index);
      if (which >= clock) {
        if (slot != Slot::b32 && slot != Slot::b64) fail("a clock is 32 or 64 bits wide");
        const int wide = temporary(Slot::b64);
        emit(Action::clock, InstructionClass::other, {wide}, {});
        if (slot == Slot::b64) return wide;
        const int half = temporary(Slot::b32);
        emit_lane(which == clock_hi || which == globaltimer_hi ? "%unpack.64.1" : "%unpack.64.0", {half}, {wide});
        return half;
      }
      return converted(special(which), slot);
    }
    case Kind::integer:
      return constant(slot, static_cast<std::uint64_t>(operand.value));
    case Kind::real: {
      if (slot == Slot::predicate || slot == Slot::b16) fail("a floating-point constant where none is allowed");
      const auto bits = static_cast<std::uint64_t>(operand.value);
      if (operand.single && slot == Slot::b64) {
        const double value = std::bit_cast<float>(static_cast<std::uint32_t>(bits));
        return constant(slot, std::bit_cast<std::uint64_t>(value));
      }
      if (!operand.single && slot == Slot::b32) {
        return constant(slot, std::bit_cast<std::uint32_t>(static_cast<float>(std::bit_cast<double>(bits))));
      }
      return constant(slot, bits);
    }
    case Kind::variable:
      if (slot != Slot::b32 && slot != Slot::b64) fail("an address is 32 or 64 bits wide");
      if (const Space space = layout_.space(operand.index); space == Space::shared || space == Space::local) {
        // A new register, so that addresses computed from it are known to be in the variable.
        for (const auto& [reg, variable] : addresses_) {
          const VirtualRegister& known = registers_[static_cast<std::size_t>(reg)];
          if (variable == operand.index && known.slot == slot && known.value == address_of(operand)) return reg;
        }
        const int reg = static_cast<int>(registers_.size());
        registers_.push_back({.slot = slot, .uniform = true, .value = address_of(operand)});
        addresses_[reg] = operand.index;
        return reg;
      }
      return constant(slot, address_of(operand));
    case Kind::function:
      if (slot != Slot::b64) fail("the address of a function is 64 bits wide");
      if (ptx::function_address(image_.text, operand.name) == 0) {
        fail("the address of a kernel: the virtual GPU does not run kernels that launch kernels");
      }
      return constant(slot, ptx::function_address(image_.text, operand.name));
    default:
      fail("an operand of the wrong kind");
  }
}

// A register for a result. If it is wider than the result, the rest is filled afterwards.
int KernelDecoder::write(const Operand& operand, Slot slot, bool sign_extend) {
  if (operand.kind == Kind::sink) return temporary(slot);
  if (operand.kind != Kind::reg || operand.negated || operand.value != 0)
    fail("the destination of a result must be a register");
  if (has_halves(operand)) fail("a 128-bit register where none is allowed");
  const Slot have = registers_[operand.index].slot;
  if (have == slot) return operand.index;
  if (have == Slot::predicate || slot == Slot::predicate) fail("a predicate where a value is required, or vice versa");
  if (have < slot) fail("a register that is too narrow for the result");
  const int result = temporary(slot);
  const char* opcode = slot == Slot::b32   ? (sign_extend ? "%widen.s.32.64" : "%widen.u.32.64")
                       : have == Slot::b32 ? (sign_extend ? "%widen.s.16.32" : "%widen.u.16.32")
                                           : (sign_extend ? "%widen.s.16.64" : "%widen.u.16.64");
  conversions_.push_back({lane_table().find(opcode), operand.index, result});
  return result;
}

std::vector<int> KernelDecoder::halves(const Operand& operand) {
  if (operand.kind == Kind::sink) return {temporary(Slot::b64), temporary(Slot::b64)};
  if (!has_halves(operand) || operand.value != 0) fail("a 128-bit register is needed");
  return {operand.index, upper_halves_.at(operand.index)};
}

int KernelDecoder::immediate(std::size_t i) const {
  if (i >= num_operands() || operand(i).kind != Kind::integer)
    fail("an operand that must be an integer constant is not");
  return static_cast<int>(operand(i).value);
}

Instruction& KernelDecoder::emit(Action action, InstructionClass instruction_class, const std::vector<int>& writes,
                                 const std::vector<int>& reads) {
  if (writes.size() + reads.size() > kMaxOperands) fail("too many operands");
  Instruction& out = kernel_->code.emplace_back();
  out.action = action;
  out.instruction_class = instruction_class;
  out.writes = static_cast<std::uint8_t>(writes.size());
  out.operands = static_cast<std::uint8_t>(writes.size() + reads.size());
  std::copy(writes.begin(), writes.end(), out.r.begin());
  std::copy(reads.begin(), reads.end(), out.r.begin() + static_cast<std::ptrdiff_t>(writes.size()));
  out.guard = guard_;
  out.guard_negated = instruction_->guard_negated;
  out.source = static_cast<std::uint32_t>(kernel_->sources.size() - 1);
  out.counted = first_of_instruction_;
  first_of_instruction_ = false;
  return out;
}

Instruction& KernelDecoder::emit(Execute execute, InstructionClass instruction_class, const std::vector<int>& writes,
                                 const std::vector<int>& reads) {
  Instruction& out = emit(Action::operation, instruction_class, writes, reads);
  out.execute = execute;
  return out;
}

void KernelDecoder::emit_lane(const LaneOperation& operation, const std::vector<int>& writes,
                              const std::vector<int>& reads) {
  Instruction& out = emit(Action::lane, operation.instruction_class, writes, reads);
  out.function = operation.function;
  out.lane_operation = &operation;
}

void KernelDecoder::emit_lane(std::string_view opcode, const std::vector<int>& writes, const std::vector<int>& reads) {
  const LaneOperation* operation = lane_table().find(opcode);
  if (operation == nullptr) fail(fmt::format("no operation {}", opcode));
  emit_lane(*operation, writes, reads);
}

void KernelDecoder::expect_operands(std::size_t count, std::size_t at_most) const {
  if (num_operands() < count || num_operands() > std::max(count, at_most)) {
    fail(fmt::format("{} operands instead of {}", num_operands(), count));
  }
}

ptx::Type KernelDecoder::last_type() const {
  const ptx::Type type = ptx::type_of(parts_.back());
  if (type.kind == 0) fail_unknown();
  return type;
}

std::vector<ptx::Operand> KernelDecoder::elements(const Operand& operand) const {
  return operand.kind == Kind::vector ? operand.elements : std::vector<Operand>{operand};
}

// An address: register + offset, a variable, or a number. Returns the register that contains it, or the constant 0.
int KernelDecoder::address_operand(const Operand& operand, Space space, std::int64_t& offset, bool& wide) {
  if (!operand.address) fail("an address must be in brackets");
  if (operand.kind == Kind::reg) {
    const Slot slot = registers_[operand.index].slot;
    if ((slot != Slot::b32 && slot != Slot::b64) || has_halves(operand)) fail("an address is 32 or 64 bits wide");
    offset = operand.value;
    wide = slot == Slot::b64;
    return operand.index;
  }
  wide = true;
  if (operand.kind == Kind::variable) {
    const Space have = layout_.space(operand.index);
    const bool is_global = have == Space::global || have == Space::constant;
    const bool fits = have == space || (is_global && (space == Space::global || space == Space::constant)) ||
                      (space == Space::generic && is_global);
    if (!fits) fail(fmt::format("{} is not in the state space of the instruction", operand.name));
    offset = static_cast<std::int64_t>(address_of(operand));
  } else if (operand.kind == Kind::integer) {
    offset = operand.value;
  } else {
    fail("a malformed address");
  }
  return constant(Slot::b64, 0);
}

// Instructions in the table of lane operations.
bool KernelDecoder::decode_lane() {
  const LaneOperation* operation = lane_table().find(instruction_->opcode);
  if (operation == nullptr) return decode_multiply_add_with_carry();
  const bool has_carry = operation->writes == 2;
  expect_operands(operation->operands - (has_carry ? 1u : 0u));
  std::vector<int> writes, reads;
  for (std::size_t i = 1; i < num_operands(); ++i) {
    reads.push_back(read(operand(i), operation->slots[i + (has_carry ? 1 : 0)]));
  }
  writes.push_back(write(operand(0), operation->slots[0], operation->sign_extend));
  if (has_carry) writes.push_back(carry());
  emit_lane(*operation, writes, reads);
  return true;
}

// mad.lo.cc.u32 d, a, b, c: a product, followed by a sum that produces a carry. madc.… also consumes one.
bool KernelDecoder::decode_multiply_add_with_carry() {
  if ((parts_[0] != "mad" && parts_[0] != "madc") || parts_.size() < 3) return false;
  const std::string_view type = parts_.back();
  const LaneOperation* product = lane_table().find(fmt::format("mul.{}.{}", parts_[1], type));
  const LaneOperation* sum =
      lane_table().find(fmt::format("{}{}.{}", parts_[0] == "mad" ? "add" : "addc", has("cc") ? ".cc" : "", type));
  if (product == nullptr || sum == nullptr || sum->writes != 2 || parts_.size() != (has("cc") ? 4u : 3u)) return false;
  expect_operands(4);
  const Slot slot = sum->slots[0];
  const int a = read(operand(1), slot), b = read(operand(2), slot), c = read(operand(3), slot);
  const int ab = temporary(slot);
  emit_lane(*product, {ab}, {a, b});
  emit_lane(*sum, {write(operand(0), slot), carry()}, {ab, c});
  return true;
}

void KernelDecoder::decode(const ptx::Instruction& instruction) {
  instruction_ = &instruction;
  parts_ = split(instruction.opcode);
  kernel_->sources.push_back({instruction.text, instruction.line, instruction.position});
  first_of_instruction_ = true;
  first_code_ = kernel_->code.size();
  guard_ = instruction.guard;
  if (guard_ >= 0 && registers_[guard_].slot != Slot::predicate) fail("the guard is not a predicate");
  if (const Decode operation = operations_.find(parts_[0]); operation != nullptr) {
    operation(*this);
  } else if (!decode_lane()) {
    fail_unknown();
  }
  for (const Conversion& conversion : conversions_)
    emit_lane(*conversion.operation, {conversion.to}, {conversion.from});
  conversions_.clear();
}

std::unique_ptr<CompiledKernel> KernelDecoder::run() {
  kernel_->name = function_.name;
  kernel_->positions = function_.positions;
  kernel_->cluster = function_.cluster;
  for (const ptx::Register& reg : function_.registers) {
    registers_.push_back({.slot = reg.bytes == 0 ? Slot::predicate : slot_of(reg.bytes)});
  }
  for (std::size_t i = 0; i < function_.registers.size(); ++i) {
    if (function_.registers[i].bytes == 16) upper_halves_[static_cast<int>(i)] = temporary(Slot::b64);
  }
  std::vector<std::int32_t> start;  // index in the code of each PTX instruction
  for (const ptx::Instruction& instruction : function_.instructions) {
    start.push_back(static_cast<std::int32_t>(kernel_->code.size()));
    decode(instruction);
  }
  start.push_back(static_cast<std::int32_t>(kernel_->code.size()));
  // A text may end without ret.
  ptx::Instruction end{.opcode = "exit", .line = function_.line, .text = "the end of the kernel"};
  instruction_ = &end;
  guard_ = -1;
  kernel_->sources.push_back({end.text, end.line, 0});
  emit(Action::exit, InstructionClass::branch, {}, {}).counted = false;

  for (Instruction& instruction : kernel_->code) {
    if (instruction.action == Action::branch) instruction.target = start[static_cast<std::size_t>(instruction.target)];
    if (instruction.space == Space::shared ||
        (instruction.space == Space::generic && instruction.role != MemoryRole::none)) {
      kernel_->uses_shared = true;
      kernel_->shared_granule = std::min(kernel_->shared_granule, instruction.bytes * instruction.elements);
    }
    const bool global = instruction.space == Space::global || instruction.space == Space::generic;
    if (instruction.role == MemoryRole::copy || (global && instruction.role != MemoryRole::none)) {
      kernel_->global_granule =
          std::min(kernel_->global_granule, std::max(1, instruction.bytes * instruction.elements));
    }
  }
  // Instructions on other memory may also access mbarriers, which have 8 bytes.
  if (kernel_->uses_async_proxy) kernel_->shared_granule = std::min(kernel_->shared_granule, 8);
  for (const std::vector<int>& table : function_.branch_tables) {
    std::vector<std::int32_t>& targets = kernel_->branch_tables.emplace_back();
    for (const int target : table) targets.push_back(start[static_cast<std::size_t>(target)]);
  }
  kernel_->static_shared_bytes = layout_.static_shared_bytes();
  kernel_->reserved_shared_bytes = layout_.reserved_shared_bytes();
  kernel_->local_bytes = layout_.local_bytes();
  kernel_->parameter_bytes = layout_.parameter_bytes();
  find_reconvergence_points(*kernel_);
  charge_moved_code(*kernel_, registers_);
  find_undefined_reads(*kernel_, registers_);
  find_access_patterns(*kernel_);
  find_variables();
  allocate_registers(*kernel_, registers_);
  return std::move(kernel_);
}

namespace {

// `from`: by register, the only variable from whose address it was computed, or a negative number.
void mark_variables(CompiledKernel& kernel, const std::vector<int>& from) {
  using ptx::Space;
  // An access beyond the only variable of a space is found anyway.
  const auto is_only_one = [&](int index) {
    const Space space = kernel.variables[static_cast<std::size_t>(index)].space;
    return std::ranges::count(kernel.variables, space, &KnownVariable::space) == 1;
  };
  for (Instruction& instruction : kernel.code) {
    const bool may_be =
        instruction.space == Space::shared || instruction.space == Space::local || instruction.space == Space::generic;
    if (instruction.role == MemoryRole::none || !may_be || instruction.writes >= instruction.operands) continue;
    const int variable = from[static_cast<std::size_t>(instruction.r[instruction.writes])];
    if (variable >= 0 && !is_only_one(variable)) instruction.variable = variable;
  }
}

}  // namespace

// Finds the variable of shared or local memory that each access goes to, if its address is computed from the address of
// only one variable.
void KernelDecoder::find_variables() {
  std::vector<KnownVariable>& variables = kernel_->variables;
  std::map<int, int> numbers;  // index of a variable → into `variables`
  for (const auto& [reg, variable] : addresses_) {
    if (!numbers.try_emplace(variable, static_cast<int>(variables.size())).second) continue;
    const ptx::Variable& known = image_.text.variables[static_cast<std::size_t>(variable)];
    const Space space = layout_.space(variable);
    const auto begin =
        static_cast<std::uint32_t>(*layout_.address(variable) - (space == Space::shared ? kSharedBase : kLocalBase));
    variables.push_back({.space = space,
                         .name = std::string(known.name),
                         .begin = begin,
                         .end = known.size == 0 ? ~std::uint32_t{0} : begin + static_cast<std::uint32_t>(known.size)});
  }
  const std::size_t num_named = variables.size();

  // nvcc combines all local variables of a function into one, and computes the address of each from the address of that
  // one with add.u64, which it uses for nothing else: add.u64 %rd1, %SPL, 40. Only the start of each is known, so a
  // variable is assumed to extend to the next one.
  const LaneOperation* const frame_offset = lane_table().find("add.u64");
  std::map<std::pair<int, std::uint32_t>, int> parts;  // the combined variable and the offset in it → index
  const auto part = [&](const Instruction& instruction, int whole) {
    if (instruction.lane_operation != frame_offset || instruction.instruction_class == InstructionClass::convert ||
        !variables[static_cast<std::size_t>(whole)].name.starts_with(kLocalVariables)) {
      return whole;
    }
    for (std::size_t k = instruction.writes; k < instruction.operands; ++k) {
      const VirtualRegister& added = registers_[static_cast<std::size_t>(instruction.r[k])];
      const KnownVariable all = variables[static_cast<std::size_t>(whole)];
      if (!added.uniform || added.special || added.value >= all.end - all.begin) continue;
      const auto begin = all.begin + static_cast<std::uint32_t>(added.value);
      const auto [entry, is_new] = parts.try_emplace({whole, begin}, static_cast<int>(variables.size()));
      if (is_new) variables.push_back({.space = all.space, .name = {}, .begin = begin, .end = all.end});
      return entry->second;
    }
    return whole;
  };

  constexpr int kNone = -1, kSeveral = -2;
  std::vector<int> from(registers_.size(), kNone);
  for (const auto& [reg, variable] : addresses_) from[static_cast<std::size_t>(reg)] = numbers[variable];
  for (bool changed = num_named > 0; changed;) {
    changed = false;
    for (const Instruction& instruction : kernel_->code) {
      int sources = kNone;
      for (std::size_t k = instruction.writes; k < instruction.operands; ++k) {
        const auto reg = static_cast<std::size_t>(instruction.r[k]);
        if (registers_[reg].slot == Slot::predicate) continue;  // does not affect the selected value
        if (from[reg] != kNone && from[reg] != sources) sources = sources == kNone ? from[reg] : kSeveral;
      }
      if (sources == kNone) continue;
      if (instruction.role != MemoryRole::none) continue;  // the value read there is unrelated
      if (instruction.action != Action::lane && instruction.action != Action::watched_lane) sources = kSeveral;
      if (sources >= 0) sources = is_distance(instruction, from) ? kNone : part(instruction, sources);
      if (sources == kNone) continue;
      for (std::size_t k = 0; k < instruction.writes; ++k) {
        int& to = from[static_cast<std::size_t>(instruction.r[k])];
        const int joined = to == kNone || to == sources ? sources : kSeveral;
        changed |= joined != to;
        to = joined;
      }
    }
  }
  for (const auto& [place, index] : parts) {
    const auto next = parts.upper_bound(place);
    if (next != parts.end() && next->first.first == place.first)
      variables[static_cast<std::size_t>(index)].end = next->first.second;
  }
  mark_variables(*kernel_, from);
}

std::vector<std::string> OperationTable::names() const {
  std::vector<std::string> names;
  for (const auto& [name, decode] : decode_) names.emplace_back(name);
  std::ranges::sort(names);
  return names;
}

std::unique_ptr<CompiledKernel> compile(const ModuleImage& image, const ptx::Function& function,
                                        const OperationTable& operations) {
  return KernelDecoder(image, function, operations).run();
}

}  // namespace flash_ladder::emulator
