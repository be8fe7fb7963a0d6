#include "emulator/decode/decoder.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <map>
#include <unordered_map>
#include <utility>

#include "emulator/decode/memory_layout.h"
#include "emulator/decode/virtual_register.h"
#include "emulator/ptx/parser.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using ptx::Space;
using Kind = Operand::Kind;

std::vector<std::string_view> split(std::string_view opcode) {
  std::vector<std::string_view> parts;
  while (true) {
    const std::size_t dot = opcode.find('.');
    parts.push_back(opcode.substr(0, dot));
    if (dot == std::string_view::npos) return parts;
    opcode.remove_prefix(dot + 1);
  }
}

bool starts_with(std::string_view text, std::string_view prefix) { return text.substr(0, prefix.size()) == prefix; }

Slot slot_of(int bytes) { return bytes <= 2 ? Slot::b16 : bytes == 4 ? Slot::b32 : Slot::b64; }

class Decoder {
 public:
  Decoder(const ModuleImage& image, const ptx::Function& function)
      : image_(image), function_(function), kernel_(std::make_unique<CompiledKernel>()), layout_(image, function) {}

  std::unique_ptr<CompiledKernel> run();

 private:
  using Handler = void (Decoder::*)();
  static const std::unordered_map<std::string_view, Handler>& handlers();

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

void Decoder::fail(const std::string& message) const {
  std::string where = fmt::format("PTX line {}", instruction_->line);
  if (const SourcePosition& position = function_.positions[instruction_->position]; !position.empty()) {
    where += " (" + to_string(position) + ")";
  }
  throw PtxError(fmt::format("{}: {}: {}", where, message, instruction_->text), instruction_->line);
}

int Decoder::temporary(Slot slot) {
  registers_.push_back({.slot = slot});
  return static_cast<int>(registers_.size()) - 1;
}

int Decoder::constant(Slot slot, std::uint64_t value) {
  if (slot == Slot::predicate) value = value != 0 ? kAllLanes : 0;
  if (slot == Slot::b16) value &= 0xffff;
  if (slot == Slot::b32) value &= 0xffffffff;
  const auto [entry, is_new] = constants_.try_emplace({slot, value}, static_cast<int>(registers_.size()));
  if (is_new) registers_.push_back({.slot = slot, .uniform = true, .value = value});
  return entry->second;
}

int Decoder::special(ptx::SpecialRegister which) {
  const auto [entry, is_new] = specials_.try_emplace(which, static_cast<int>(registers_.size()));
  if (is_new) {
    const bool wide = which == ptx::SpecialRegister::gridid;
    registers_.push_back(
        {.slot = wide ? Slot::b64 : Slot::b32, .uniform = true, .special = true, .special_register = which});
  }
  return entry->second;
}

int Decoder::carry() {
  if (carry_ < 0) carry_ = temporary(Slot::predicate);
  return carry_;
}

// The address that a variable's name stands for, in its own space.
std::uint64_t Decoder::address_of(const Operand& operand) const {
  const std::optional<std::uint64_t> address = layout_.address(operand.index);
  if (!address) fail(fmt::format("the variable {} has no address", operand.name));
  return *address + static_cast<std::uint64_t>(operand.value);
}

int Decoder::converted(int reg, Slot slot) {
  const Slot have = registers_[reg].slot;
  if (have == slot) return reg;
  if (have == Slot::predicate || slot == Slot::predicate)
    fail("a predicate where a value must be, or the other way round");
  if (have < slot) {
    // Only special registers: they are 32 bits wide, and may be read as 64.
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

// A register that holds the operand's value in the form that an instruction wants to read.
int Decoder::read(const Operand& operand, Slot slot) {
  switch (operand.kind) {
    case Kind::reg: {
      int reg = converted(operand.index, slot);
      if (operand.negated) {
        if (slot != Slot::predicate) fail("'!' before something that is no predicate");
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
        const int value = temporary(slot);
        emit(Action::clock, InstructionClass::other, {value}, {}).bytes =
            static_cast<std::uint8_t>(slot == Slot::b64 ? 8 : 4);
        const bool high = which == clock_hi || which == globaltimer_hi;
        kernel_->code.back().operation = high;
        if (slot != Slot::b32 && slot != Slot::b64) fail("a clock is 32 or 64 bits wide");
        return value;
      }
      return converted(special(which), slot);
    }
    case Kind::integer:
      return constant(slot, static_cast<std::uint64_t>(operand.value));
    case Kind::real: {
      if (slot == Slot::predicate || slot == Slot::b16) fail("a floating-point constant where none can be");
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
      return constant(slot, address_of(operand));
    default:
      fail("an operand of the wrong kind");
  }
}

// A register for a result. One that is wider than the result is filled afterwards.
int Decoder::write(const Operand& operand, Slot slot, bool sign_extend) {
  if (operand.kind == Kind::sink) return temporary(slot);
  if (operand.kind != Kind::reg || operand.negated || operand.value != 0) fail("a result must go to a register");
  const Slot have = registers_[operand.index].slot;
  if (have == slot) return operand.index;
  if (have == Slot::predicate || slot == Slot::predicate)
    fail("a predicate where a value must be, or the other way round");
  if (have < slot) fail("a register that is too narrow for the result");
  const int result = temporary(slot);
  const char* opcode = slot == Slot::b32   ? (sign_extend ? "%widen.s.32.64" : "%widen.u.32.64")
                       : have == Slot::b32 ? (sign_extend ? "%widen.s.16.32" : "%widen.u.16.32")
                                           : (sign_extend ? "%widen.s.16.64" : "%widen.u.16.64");
  conversions_.push_back({lane_table().find(opcode), operand.index, result});
  return result;
}

int Decoder::immediate(std::size_t i) const {
  if (i >= num_operands() || operand(i).kind != Kind::integer)
    fail("an operand that must be an integer constant is not");
  return static_cast<int>(operand(i).value);
}

Instruction& Decoder::emit(Action action, InstructionClass instruction_class, const std::vector<int>& writes,
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

void Decoder::emit_lane(const LaneOperation& operation, const std::vector<int>& writes, const std::vector<int>& reads) {
  emit(Action::lane, operation.instruction_class, writes, reads).function = operation.function;
}

void Decoder::emit_lane(std::string_view opcode, const std::vector<int>& writes, const std::vector<int>& reads) {
  const LaneOperation* operation = lane_table().find(opcode);
  if (operation == nullptr) fail(fmt::format("no operation {}", opcode));
  emit_lane(*operation, writes, reads);
}

void Decoder::expect_operands(std::size_t count, std::size_t at_most) const {
  if (num_operands() < count || num_operands() > std::max(count, at_most)) {
    fail(fmt::format("{} operands instead of {}", num_operands(), count));
  }
}

ptx::Type Decoder::last_type() const {
  const ptx::Type type = ptx::type_of(parts_.back());
  if (type.kind == 0) fail_unknown();
  return type;
}

std::vector<Operand> Decoder::elements(const Operand& operand) const {
  return operand.kind == Kind::vector ? operand.elements : std::vector<Operand>{operand};
}

// An address: register + offset, or a variable, or a number. Returns the register that holds it, or the constant 0.
int Decoder::address_operand(const Operand& operand, Space space, std::int64_t& offset, bool& wide) {
  if (!operand.address) fail("an address must be in brackets");
  if (operand.kind == Kind::reg) {
    const Slot slot = registers_[operand.index].slot;
    if (slot != Slot::b32 && slot != Slot::b64) fail("an address is 32 or 64 bits wide");
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
    if (!fits) fail(fmt::format("{} does not lie in the state space of the instruction", operand.name));
    offset = static_cast<std::int64_t>(address_of(operand));
  } else if (operand.kind == Kind::integer) {
    offset = operand.value;
  } else {
    fail("a malformed address");
  }
  return constant(Slot::b64, 0);
}

// Instructions that the table of lane operations has.
bool Decoder::decode_lane() {
  const LaneOperation* operation = lane_table().find(instruction_->opcode);
  if (operation == nullptr) return false;
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

void Decoder::mov() {
  expect_operands(2);
  const Operand &to = operand(0), &from = operand(1);
  const ptx::Type type = last_type();
  if (from.kind == Kind::vector || to.kind == Kind::vector) {
    const Operand& vector = from.kind == Kind::vector ? from : to;
    const std::size_t count = vector.elements.size();
    if (!((type.bits == 32 && count == 2) || (type.bits == 64 && (count == 2 || count == 4)))) fail_unknown();
    const int part_bits = type.bits / static_cast<int>(count);
    const Slot part = slot_of(part_bits / 8), whole = slot_of(type.bits / 8);
    if (from.kind == Kind::vector) {
      std::vector<int> parts;
      for (const Operand& element : from.elements) parts.push_back(read(element, part));
      emit_lane(fmt::format("%pack.{}.{}", part_bits, type.bits), {write(to, whole)}, parts);
    } else {
      const int value = read(from, whole);
      const auto opcode = [&](std::size_t i) {
        return fmt::format("%unpack{}.{}.{}", count == 4 ? "4" : "", type.bits, i);
      };
      // All parts are read before any is written, if one of them is the source itself.
      std::vector<std::pair<int, int>> moves;
      for (std::size_t i = 0; i < count; ++i) {
        if (to.elements[i].kind == Kind::sink) continue;
        const int target = write(to.elements[i], part);
        const int result = target == value ? temporary(part) : target;
        emit_lane(opcode(i), {result}, {value});
        if (result != target) moves.emplace_back(target, result);
      }
      for (const auto& [target, result] : moves)
        emit_lane(part == Slot::b16 ? "mov.b16" : "mov.b32", {target}, {result});
    }
    return;
  }
  if (!decode_lane()) fail_unknown();
}

// setp.lt.and.ftz.f32 p|q, a, b, c: p = (a < b) and c, q = !(a < b) and c.
void Decoder::setp() {
  std::string compare;
  std::string_view boolean;
  for (const std::string_view part : parts_) {
    if (part == "and" || part == "or" || part == "xor") {
      boolean = part;
    } else {
      if (!compare.empty()) compare += '.';
      compare += part;
    }
  }
  const LaneOperation* operation = lane_table().find(compare);
  if (operation == nullptr) fail_unknown();
  const bool two_results = operand(0).pair;
  const std::size_t first = two_results ? 2 : 1;
  expect_operands(first + 2 + (boolean.empty() ? 0 : 1));
  const int a = read(operand(first), operation->slots[1]), b = read(operand(first + 1), operation->slots[2]);
  if (boolean.empty() && !two_results) {
    emit_lane(*operation, {write(operand(0), Slot::predicate)}, {a, b});
    return;
  }
  const int c = boolean.empty() ? -1 : read(operand(first + 2), Slot::predicate);
  const int result = temporary(Slot::predicate), p = temporary(Slot::predicate);
  const std::string combine = std::string(boolean) + ".pred";
  emit_lane(*operation, {result}, {a, b});
  if (boolean.empty()) {
    emit_lane("mov.pred", {p}, {result});
  } else {
    emit_lane(combine, {p}, {result, c});
  }
  if (two_results) {
    const int inverted = temporary(Slot::predicate);
    const int q = write(operand(1), Slot::predicate);
    emit_lane("not.pred", {inverted}, {result});
    if (boolean.empty()) {
      emit_lane("mov.pred", {q}, {inverted});
    } else {
      emit_lane(combine, {q}, {inverted, c});
    }
  }
  emit_lane("mov.pred", {write(operand(0), Slot::predicate)}, {p});
}

Address window_of(Space space) {
  switch (space) {
    case Space::shared:
      return kSharedWindow;
    case Space::local:
      return kLocalWindow;
    case Space::param:
      return kParameterWindow;
    default:
      return 0;
  }
}

std::optional<Space> named_space(std::string_view part) {
  if (part == "global") return Space::global;
  if (part == "const") return Space::constant;
  if (part == "shared" || part == "shared::cta") return Space::shared;
  if (part == "local") return Space::local;
  if (part == "param" || part == "param::entry" || part == "param::func") return Space::param;
  return std::nullopt;
}

// cvta.to.shared.u64 and cvta.shared.u64: generic addresses of a space are its addresses in a window.
void Decoder::cvta() {
  expect_operands(2);
  const bool to = has("to");
  const std::optional<Space> space = parts_.size() > 2 ? named_space(parts_[parts_.size() - 2]) : std::nullopt;
  if (!space || parts_.back() != "u64") fail_unknown();
  const int from = read(operand(1), Slot::b64);
  emit_lane(to ? "sub.u64" : "add.u64", {write(operand(0), Slot::b64)}, {from, constant(Slot::b64, window_of(*space))});
  kernel_->code.back().instruction_class = InstructionClass::convert;
}

void Decoder::isspacep() {
  expect_operands(2);
  const std::optional<Space> space = named_space(parts_.back());
  if (!space) fail_unknown();
  const int address = read(operand(1), Slot::b64), relative = temporary(Slot::b64);
  const int result = write(operand(0), Slot::predicate);
  if (*space == Space::constant) {  // constants are told apart from global memory by nobody
    emit_lane("mov.pred", {result}, {constant(Slot::predicate, 0)});
    return;
  }
  const bool global = *space == Space::global;
  emit_lane("sub.u64", {relative}, {address, constant(Slot::b64, global ? kSharedWindow : window_of(*space))});
  emit_lane(global ? "setp.ge.u64" : "setp.lt.u64", {result},
            {relative, constant(Slot::b64, global ? 3 * kWindowSize : kWindowSize)});
}

// What ld and st say before the type.
void Decoder::memory_modifiers(Space& space, int& elements, bool& strong) const {
  for (std::size_t i = 1; i + 1 < parts_.size(); ++i) {
    const std::string_view part = parts_[i];
    if (const auto named = named_space(part)) {
      space = *named;
    } else if (part == "v2" || part == "v4") {
      elements = part[1] - '0';
    } else if (part == "volatile" || part == "relaxed" || part == "acquire" || part == "release" || part == "mmio") {
      strong = true;
    } else if (part != "weak" && part != "cta" && part != "gpu" && part != "sys" && part != "nc" && part != "ca" &&
               part != "cg" && part != "cs" && part != "lu" && part != "cv" && part != "wb" && part != "wt" &&
               !starts_with(part, "L1::") && !starts_with(part, "L2::")) {
      fail_unknown();
    }
  }
}

void Decoder::ld() {
  expect_operands(2, 3);
  Space space = Space::generic;
  int count = 1;
  bool strong = false;
  memory_modifiers(space, count, strong);
  const ptx::Type type = last_type();
  if (type.bits < 8 || type.bits > 64 || type.bits * count > 128) fail_unknown();
  if (space == Space::param && operand(1).kind == Kind::variable) space = layout_.space(operand(1).index);
  std::int64_t offset = 0;
  bool wide = true;
  const int address = address_operand(operand(1), space, offset, wide);
  const std::vector<Operand> results = elements(operand(0));
  if (static_cast<int>(results.size()) != count) fail("a vector of the wrong length");
  const int bytes = type.bits / 8;
  std::vector<int> writes;
  for (const Operand& result : results) writes.push_back(write(result, slot_of(bytes), type.kind == 's'));
  const InstructionClass instruction_class = space == Space::shared  ? InstructionClass::shared_load
                                             : space == Space::local ? InstructionClass::local_memory
                                             : space == Space::param || space == Space::constant
                                                 ? InstructionClass::parameter_load
                                                 : InstructionClass::global_load;
  Instruction& out = emit(Action::load, instruction_class, writes, {address});
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(count);
  out.space = space;
  out.sign_extend = type.kind == 's';
  out.wide_address = wide;
  out.strong = strong;
  out.offset = offset;
}

void Decoder::st() {
  expect_operands(2, 3);
  Space space = Space::generic;
  int count = 1;
  bool strong = false;
  memory_modifiers(space, count, strong);
  const ptx::Type type = last_type();
  if (type.bits < 8 || type.bits > 64 || type.bits * count > 128) fail_unknown();
  if (space == Space::param && operand(0).kind == Kind::variable) space = layout_.space(operand(0).index);
  if (space == Space::constant || space == Space::param) fail("a store to memory that cannot be written");
  std::int64_t offset = 0;
  bool wide = true;
  std::vector<int> reads = {address_operand(operand(0), space, offset, wide)};
  const std::vector<Operand> values = elements(operand(1));
  if (static_cast<int>(values.size()) != count) fail("a vector of the wrong length");
  const int bytes = type.bits / 8;
  for (const Operand& value : values) reads.push_back(read(value, slot_of(bytes)));
  const InstructionClass instruction_class = space == Space::shared  ? InstructionClass::shared_store
                                             : space == Space::local ? InstructionClass::local_memory
                                                                     : InstructionClass::global_store;
  Instruction& out = emit(Action::store, instruction_class, {}, reads);
  out.bytes = static_cast<std::uint8_t>(bytes);
  out.elements = static_cast<std::uint8_t>(count);
  out.space = space;
  out.wide_address = wide;
  out.strong = strong;
  out.offset = offset;
}

void Decoder::atom() {
  const bool has_result = parts_[0] == "atom";
  Space space = Space::generic;
  std::optional<AtomicOperation> operation;
  static const std::unordered_map<std::string_view, AtomicOperation> operations = {
      {"add", AtomicOperation::add},   {"min", AtomicOperation::min}, {"max", AtomicOperation::max},
      {"and", AtomicOperation::and_},  {"or", AtomicOperation::or_},  {"xor", AtomicOperation::xor_},
      {"exch", AtomicOperation::exch}, {"cas", AtomicOperation::cas}, {"inc", AtomicOperation::inc},
      {"dec", AtomicOperation::dec},
  };
  for (std::size_t i = 1; i + 1 < parts_.size(); ++i) {
    const std::string_view part = parts_[i];
    if (const auto named = named_space(part)) {
      space = *named;
    } else if (const auto found = operations.find(part); found != operations.end()) {
      operation = found->second;
    } else if (part != "relaxed" && part != "acquire" && part != "release" && part != "acq_rel" && part != "cta" &&
               part != "gpu" && part != "sys" && part != "noftz" && !starts_with(part, "L2::")) {
      fail_unknown();
    }
  }
  const ptx::Type type = last_type();
  const bool supported = type.kind == 'f' || type.kind == 'h'
                             ? operation == AtomicOperation::add || (type.bits == 16 && false)
                             : type.bits >= 32 || operation == AtomicOperation::cas;
  if (!operation || !supported || type.bits < 16 || type.bits > 64 ||
      (space != Space::generic && space != Space::global && space != Space::shared)) {
    fail_unknown();
  }
  const std::size_t first = has_result ? 1 : 0;
  const bool is_cas = *operation == AtomicOperation::cas;
  expect_operands(first + (is_cas ? 3 : 2));
  std::int64_t offset = 0;
  bool wide = true;
  const Slot slot = slot_of(type.bits / 8);
  std::vector<int> reads = {address_operand(operand(first), space, offset, wide), read(operand(first + 1), slot)};
  reads.push_back(is_cas ? read(operand(first + 2), slot) : reads[1]);
  const int result = has_result ? write(operand(0), slot) : temporary(slot);
  Instruction& out = emit(Action::atomic, InstructionClass::atomic, {result}, reads);
  out.bytes = static_cast<std::uint8_t>(type.bits / 8);
  out.space = space;
  out.wide_address = wide;
  out.strong = true;
  out.offset = offset;
  out.type = type;
  out.operation = static_cast<std::uint8_t>(*operation);
  if (space != Space::shared) kernel_->serial = true;
}

void Decoder::ldmatrix() {
  expect_operands(2);
  int count = 0;
  bool known =
      has("sync") && has("aligned") && has("m8n8") && (has("shared") || has("shared::cta")) && parts_.back() == "b16";
  for (const std::string_view part : parts_) {
    if (part == "x1" || part == "x2" || part == "x4") count = part[1] - '0';
  }
  known = known && count != 0 && parts_.size() == 7u + (has("trans") ? 1u : 0u);
  if (!known) fail_unknown();
  const std::vector<Operand> results = elements(operand(0));
  if (static_cast<int>(results.size()) != count) fail("a vector of the wrong length");
  std::int64_t offset = 0;
  bool wide = true;
  const int address = address_operand(operand(1), Space::shared, offset, wide);
  std::vector<int> writes;
  for (const Operand& result : results) writes.push_back(write(result, Slot::b32));
  Instruction& out = emit(Action::ldmatrix, InstructionClass::ldmatrix, writes, {address});
  out.bytes = 16;
  out.elements = static_cast<std::uint8_t>(count);
  out.space = Space::shared;
  out.wide_address = wide;
  out.offset = offset;
  out.transposed = has("trans");
}

void Decoder::mma() {
  const WarpFunctions& functions = warp_functions();
  const std::string_view opcode = instruction_->opcode;
  LaneFunction function = nullptr;
  std::size_t blocks = 2;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.f16.f16.f32") function = functions.mma_m16n8k16_f16;
  if (opcode == "mma.sync.aligned.m16n8k16.row.col.f32.bf16.bf16.f32") function = functions.mma_m16n8k16_bf16;
  if (opcode == "mma.sync.aligned.m16n8k8.row.col.f32.f16.f16.f32") function = functions.mma_m16n8k8_f16, blocks = 1;
  if (opcode == "mma.sync.aligned.m16n8k8.row.col.f32.bf16.bf16.f32") function = functions.mma_m16n8k8_bf16, blocks = 1;
  if (function == nullptr) fail_unknown();
  expect_operands(4);
  const std::size_t lengths[] = {4, 2 * blocks, blocks, 4};
  std::vector<int> writes, reads;
  for (std::size_t i = 0; i < 4; ++i) {
    const std::vector<Operand> fragment = elements(operand(i));
    if (fragment.size() != lengths[i]) fail("a fragment of the wrong length");
    for (const Operand& element : fragment) {
      if (i == 0) {
        writes.push_back(write(element, Slot::b32));
      } else {
        reads.push_back(read(element, Slot::b32));
      }
    }
  }
  emit(Action::warp, InstructionClass::mma, writes, reads).function = function;
}

void Decoder::cp() {
  if (parts_.size() < 3 || parts_[1] != "async") fail_unknown();
  const std::string_view kind = parts_[2];
  if (kind == "commit_group" && parts_.size() == 3) {
    expect_operands(0);
    emit(Action::cp_async_commit, InstructionClass::barrier, {}, {});
  } else if (kind == "wait_group" && parts_.size() == 3) {
    expect_operands(1);
    const int count = immediate(0);
    if (count < 0) fail("a negative count");
    emit(Action::cp_async_wait, InstructionClass::barrier, {}, {}).count = static_cast<std::uint32_t>(count);
  } else if (kind == "wait_all" && parts_.size() == 3) {
    expect_operands(0);
    emit(Action::cp_async_wait_all, InstructionClass::barrier, {}, {});
  } else if (kind == "mbarrier") {
    const bool no_increment = has("noinc");
    if (parts_.size() != (no_increment ? 7u : 6u) || parts_[3] != "arrive" || parts_.back() != "b64" ||
        !(has("shared") || has("shared::cta"))) {
      fail_unknown();
    }
    expect_operands(1);
    std::int64_t offset = 0;
    bool wide = true;
    const int address = address_operand(operand(0), Space::shared, offset, wide);
    Instruction& out = emit(Action::cp_async_mbarrier_arrive, InstructionClass::barrier, {}, {address});
    out.offset = offset;
    out.wide_address = wide;
    out.bytes = 8;
    out.space = Space::shared;
    out.operation = no_increment;
  } else if (kind == "ca" || kind == "cg") {
    std::size_t next = 3;
    if (next >= parts_.size() || named_space(parts_[next++]) != Space::shared) fail_unknown();
    if (next >= parts_.size() || parts_[next++] != "global") fail_unknown();
    for (; next < parts_.size(); ++next) {
      if (!starts_with(parts_[next], "L2::")) fail_unknown();
    }
    const bool cache_hint = has("L2::cache_hint");
    expect_operands(3, cache_hint ? 5 : 4);
    const int bytes = immediate(2);
    if (!(bytes == 16 || (kind == "ca" && (bytes == 4 || bytes == 8))))
      fail("the size of a copy is 4, 8 or 16 bytes (.cg: 16)");
    std::int64_t to_offset = 0, from_offset = 0;
    bool to_wide = true, from_wide = true;
    const int to = address_operand(operand(0), Space::shared, to_offset, to_wide);
    int from = address_operand(operand(1), Space::global, from_offset, from_wide);
    if (!from_wide) fail("a global address is 64 bits wide");
    if (from_offset != 0) {
      const int sum = temporary(Slot::b64);
      emit_lane("add.u64", {sum}, {from, constant(Slot::b64, static_cast<std::uint64_t>(from_offset))});
      from = sum;
    }
    std::vector<int> reads = {to, from};
    bool ignore = false;
    if (num_operands() - (cache_hint ? 1 : 0) == 4) {
      ignore = operand(3).kind == Kind::reg && registers_[operand(3).index].slot == Slot::predicate;
      reads.push_back(read(operand(3), ignore ? Slot::predicate : Slot::b32));
    }
    Instruction& out = emit(Action::cp_async, InstructionClass::cp_async, {}, reads);
    out.counted = true;
    if (kernel_->code.size() >= 2) {
      Instruction& before = kernel_->code[kernel_->code.size() - 2];
      if (before.source == out.source) before.counted = false;
    }
    out.bytes = static_cast<std::uint8_t>(bytes);
    out.space = Space::shared;
    out.wide_address = to_wide;
    out.offset = to_offset;
    out.operation = ignore;
  } else {
    fail_unknown();
  }
}

void Decoder::mbarrier() {
  std::optional<MbarrierOperation> operation;
  bool no_complete = false, parity = false;
  for (std::size_t i = 1; i + 1 < parts_.size(); ++i) {
    const std::string_view part = parts_[i];
    if (part == "init") {
      operation = MbarrierOperation::init;
    } else if (part == "inval") {
      operation = MbarrierOperation::inval;
    } else if (part == "arrive") {
      operation = MbarrierOperation::arrive;
    } else if (part == "arrive_drop") {
      operation = MbarrierOperation::arrive_drop;
    } else if (part == "test_wait") {
      operation = MbarrierOperation::test_wait;
    } else if (part == "pending_count") {
      operation = MbarrierOperation::pending_count;
    } else if (part == "noComplete") {
      no_complete = true;
    } else if (part == "parity") {
      parity = true;
    } else if (part != "shared" && part != "shared::cta" && part != "release" && part != "acquire" && part != "cta") {
      fail_unknown();
    }
  }
  if (!operation || parts_.back() != "b64") fail_unknown();
  if (parity) {
    if (operation != MbarrierOperation::test_wait) fail_unknown();
    operation = MbarrierOperation::test_wait_parity;
  }
  std::int64_t offset = 0;
  bool wide = true;
  const auto address = [&](std::size_t i) { return address_operand(operand(i), Space::shared, offset, wide); };
  std::vector<int> writes, reads;
  switch (*operation) {
    case MbarrierOperation::init:
      expect_operands(2);
      reads = {address(0), read(operand(1), Slot::b32)};
      break;
    case MbarrierOperation::inval:
      expect_operands(1);
      reads = {address(0)};
      break;
    case MbarrierOperation::arrive:
    case MbarrierOperation::arrive_drop:
      expect_operands(no_complete ? 3 : 2, 3);
      reads = {address(1), num_operands() == 3 ? read(operand(2), Slot::b32) : constant(Slot::b32, 1)};
      writes = {write(operand(0), Slot::b64)};
      break;
    case MbarrierOperation::test_wait:
      expect_operands(3);
      reads = {address(1), read(operand(2), Slot::b64)};
      writes = {write(operand(0), Slot::predicate)};
      break;
    case MbarrierOperation::test_wait_parity:
      expect_operands(3);
      reads = {address(1), read(operand(2), Slot::b32)};
      writes = {write(operand(0), Slot::predicate)};
      break;
    case MbarrierOperation::pending_count:
      expect_operands(2);
      reads = {read(operand(1), Slot::b64)};
      writes = {write(operand(0), Slot::b32)};
      break;
  }
  Instruction& out = emit(Action::mbarrier, InstructionClass::barrier, writes, reads);
  out.offset = offset;
  out.wide_address = wide;
  out.bytes = 8;
  out.space = Space::shared;
  out.operation = static_cast<std::uint8_t>(*operation);
  out.count = no_complete;
}

void Decoder::shfl() {
  if (parts_.size() != 4 || parts_[1] != "sync" || parts_[3] != "b32") fail_unknown();
  ShuffleMode mode{};
  if (parts_[2] == "up") {
    mode = ShuffleMode::up;
  } else if (parts_[2] == "down") {
    mode = ShuffleMode::down;
  } else if (parts_[2] == "bfly") {
    mode = ShuffleMode::bfly;
  } else if (parts_[2] == "idx") {
    mode = ShuffleMode::idx;
  } else {
    fail_unknown();
  }
  const bool pair = operand(0).pair;
  const std::size_t first = pair ? 2 : 1;
  expect_operands(first + 4);
  std::vector<int> reads;
  for (std::size_t i = first; i < num_operands(); ++i) reads.push_back(read(operand(i), Slot::b32));
  const int value = write(operand(0), Slot::b32);
  const int in_range = pair ? write(operand(1), Slot::predicate) : temporary(Slot::predicate);
  emit(Action::shuffle, InstructionClass::shuffle, {value, in_range}, reads).operation =
      static_cast<std::uint8_t>(mode);
}

void Decoder::vote() {
  if (parts_.size() != 4 || parts_[1] != "sync") fail_unknown();
  static const std::unordered_map<std::string_view, VoteMode> modes = {
      {"all", VoteMode::all}, {"any", VoteMode::any}, {"uni", VoteMode::uni}, {"ballot", VoteMode::ballot}};
  const auto mode = modes.find(parts_[2]);
  if (mode == modes.end() || parts_[3] != (mode->second == VoteMode::ballot ? "b32" : "pred")) fail_unknown();
  expect_operands(3);
  const int source = read(operand(1), Slot::predicate), members = read(operand(2), Slot::b32);
  const int result = write(operand(0), mode->second == VoteMode::ballot ? Slot::b32 : Slot::predicate);
  emit(Action::vote, InstructionClass::shuffle, {result}, {source, members}).operation =
      static_cast<std::uint8_t>(mode->second);
}

void Decoder::match() {
  const bool all = parts_.size() == 4 && parts_[1] == "all";
  if (parts_.size() != 4 || parts_[2] != "sync" || !(all || parts_[1] == "any")) fail_unknown();
  const ptx::Type type = last_type();
  if (type.bits != 32 && type.bits != 64) fail_unknown();
  const bool pair = operand(0).pair;
  const std::size_t first = pair ? 2 : 1;
  expect_operands(first + 2);
  const int value = read(operand(first), slot_of(type.bits / 8)), members = read(operand(first + 1), Slot::b32);
  const int result = write(operand(0), Slot::b32);
  const int equal = pair ? write(operand(1), Slot::predicate) : temporary(Slot::predicate);
  Instruction& out = emit(Action::match, InstructionClass::shuffle, {result, equal}, {value, members});
  out.bytes = static_cast<std::uint8_t>(type.bits / 8);
  out.operation = all;
}

void Decoder::redux() {
  if (parts_.size() != 4 || parts_[1] != "sync") fail_unknown();
  static const std::unordered_map<std::string_view, ReduceOperation> operations = {
      {"add.u32", ReduceOperation::add_u}, {"add.s32", ReduceOperation::add_u}, {"min.u32", ReduceOperation::min_u},
      {"min.s32", ReduceOperation::min_s}, {"max.u32", ReduceOperation::max_u}, {"max.s32", ReduceOperation::max_s},
      {"and.b32", ReduceOperation::and_},  {"or.b32", ReduceOperation::or_},    {"xor.b32", ReduceOperation::xor_}};
  const auto operation = operations.find(instruction_->opcode.substr(std::string_view("redux.sync.").size()));
  if (operation == operations.end()) fail_unknown();
  expect_operands(3);
  const int value = read(operand(1), Slot::b32), members = read(operand(2), Slot::b32);
  emit(Action::reduce, InstructionClass::shuffle, {write(operand(0), Slot::b32)}, {value, members}).operation =
      static_cast<std::uint8_t>(operation->second);
}

void Decoder::activemask() {
  if (instruction_->opcode != "activemask.b32") fail_unknown();
  expect_operands(1);
  emit(Action::active_mask, InstructionClass::shuffle, {write(operand(0), Slot::b32)}, {});
}

// bar.sync a[, b]; bar.arrive a, b; bar.red.op d, a[, b], c; bar.warp.sync m; the same as barrier.…[.aligned].
void Decoder::bar() {
  std::vector<std::string_view> words;
  for (std::size_t i = 1; i < parts_.size(); ++i) {
    if (parts_[i] != "cta" && parts_[i] != "aligned") words.push_back(parts_[i]);
  }
  if (words.size() == 2 && words[0] == "warp" && words[1] == "sync") {
    expect_operands(1);
    emit(Action::warp_barrier, InstructionClass::barrier, {}, {read(operand(0), Slot::b32)});
    return;
  }
  BarrierMode mode{};
  if (words.size() == 1 && words[0] == "sync") {
    mode = BarrierMode::sync;
  } else if (words.size() == 1 && words[0] == "arrive") {
    mode = BarrierMode::arrive;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "popc" && words[2] == "u32") {
    mode = BarrierMode::red_popc;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "and" && words[2] == "pred") {
    mode = BarrierMode::red_and;
  } else if (words.size() == 3 && words[0] == "red" && words[1] == "or" && words[2] == "pred") {
    mode = BarrierMode::red_or;
  } else {
    fail_unknown();
  }
  const bool reduces = mode >= BarrierMode::red_popc;
  const std::size_t first = reduces ? 1 : 0, last = reduces ? 1 : 0;
  expect_operands(first + 1 + last, first + 2 + last);
  const bool has_count = num_operands() == first + 2 + last;
  if (mode == BarrierMode::arrive && !has_count) fail("bar.arrive needs a thread count");
  std::vector<int> writes, reads;
  reads.push_back(read(operand(first), Slot::b32));
  reads.push_back(has_count ? read(operand(first + 1), Slot::b32) : constant(Slot::b32, 0));
  if (reduces) {
    reads.push_back(read(operand(num_operands() - 1), Slot::predicate));
    writes.push_back(write(operand(0), mode == BarrierMode::red_popc ? Slot::b32 : Slot::predicate));
  }
  Instruction& out = emit(Action::barrier, InstructionClass::barrier, writes, reads);
  out.operation = static_cast<std::uint8_t>(mode);
  out.has_count = has_count;
}

void Decoder::bra() {
  expect_operands(1);
  if (operand(0).kind != Kind::label) fail("a branch needs a label");
  emit(Action::branch, InstructionClass::branch, {}, {}).target =
      operand(0).index;  // of the PTX, until the end of run()
}

void Decoder::brx() {
  expect_operands(2);
  if (operand(1).kind != Kind::table) fail("brx.idx needs a list of branch targets");
  const int index = read(operand(0), Slot::b32);
  emit(Action::branch_table, InstructionClass::branch, {}, {index}).count =
      static_cast<std::uint32_t>(operand(1).index);
}

void Decoder::leave() {
  expect_operands(0);
  emit(Action::exit, InstructionClass::branch, {}, {});
}

void Decoder::trap() { emit(Action::trap, InstructionClass::other, {}, {}); }

void Decoder::fence() { emit(Action::nothing, InstructionClass::barrier, {}, {}); }

void Decoder::nothing() { emit(Action::nothing, InstructionClass::other, {}, {}); }

void Decoder::nanosleep() { emit(Action::yield, InstructionClass::other, {}, {}); }

void Decoder::createpolicy() {
  if (num_operands() == 0) fail_unknown();
  emit_lane("mov.b64", {write(operand(0), Slot::b64)}, {constant(Slot::b64, 0)});
}

// Only printf and assert: nvcc inlines the other functions of optimised code.
void Decoder::call() {
  std::size_t callee = 0;
  while (callee < num_operands() && operand(callee).kind != Kind::function) ++callee;
  if (callee == num_operands()) fail("calls through pointers are not supported");
  const std::string_view name = operand(callee).name;
  const std::vector<Operand> arguments =
      callee + 1 < num_operands() ? elements(operand(callee + 1)) : std::vector<Operand>{};
  const auto argument = [&](std::size_t i) {
    if (i >= arguments.size() || arguments[i].kind != Kind::variable) fail("a malformed call");
    const int value = temporary(Slot::b64);
    Instruction& load = emit(Action::load, InstructionClass::other, {value}, {constant(Slot::b64, 0)});
    load.bytes = 8;
    load.space = Space::local;
    load.offset = static_cast<std::int64_t>(address_of(arguments[i]));
    return value;
  };
  if (name == "vprintf") {
    const int format = argument(0), values = argument(1);
    emit(Action::print, InstructionClass::other, {}, {format, values});
    if (callee == 1 && !elements(operand(0)).empty() && elements(operand(0))[0].kind == Kind::variable) {
      Instruction& store =
          emit(Action::store, InstructionClass::other, {}, {constant(Slot::b64, 0), constant(Slot::b32, 0)});
      store.bytes = 4;
      store.space = Space::local;
      store.offset = static_cast<std::int64_t>(address_of(elements(operand(0))[0]));
    }
  } else if (name == "__assertfail") {
    const int message = argument(0), file = argument(1);
    Instruction& out = emit(Action::trap, InstructionClass::other, {}, {message, file});
    out.operation = 1;
  } else {
    fail(fmt::format("the virtual GPU does not run calls of device functions; {} was not inlined", name));
  }
}

const std::unordered_map<std::string_view, Decoder::Handler>& Decoder::handlers() {
  static const std::unordered_map<std::string_view, Handler> table = {
      {"mov", &Decoder::mov},
      {"setp", &Decoder::setp},
      {"cvta", &Decoder::cvta},
      {"isspacep", &Decoder::isspacep},
      {"ld", &Decoder::ld},
      {"ldu", &Decoder::ld},
      {"st", &Decoder::st},
      {"atom", &Decoder::atom},
      {"red", &Decoder::atom},
      {"ldmatrix", &Decoder::ldmatrix},
      {"mma", &Decoder::mma},
      {"cp", &Decoder::cp},
      {"mbarrier", &Decoder::mbarrier},
      {"shfl", &Decoder::shfl},
      {"vote", &Decoder::vote},
      {"match", &Decoder::match},
      {"redux", &Decoder::redux},
      {"activemask", &Decoder::activemask},
      {"bar", &Decoder::bar},
      {"barrier", &Decoder::bar},
      {"bra", &Decoder::bra},
      {"brx", &Decoder::brx},
      {"ret", &Decoder::leave},
      {"exit", &Decoder::leave},
      {"trap", &Decoder::trap},
      {"call", &Decoder::call},
      {"membar", &Decoder::fence},
      {"fence", &Decoder::fence},
      {"prefetch", &Decoder::nothing},
      {"prefetchu", &Decoder::nothing},
      {"applypriority", &Decoder::nothing},
      {"brkpt", &Decoder::nothing},
      {"pmevent", &Decoder::nothing},
      {"nanosleep", &Decoder::nanosleep},
      {"createpolicy", &Decoder::createpolicy},
  };
  return table;
}

void Decoder::decode(const ptx::Instruction& instruction) {
  instruction_ = &instruction;
  parts_ = split(instruction.opcode);
  kernel_->sources.push_back({instruction.text, instruction.line, instruction.position});
  first_of_instruction_ = true;
  guard_ = instruction.guard;
  if (guard_ >= 0 && registers_[guard_].slot != Slot::predicate) fail("the guard is no predicate");
  if (const auto handler = handlers().find(parts_[0]); handler != handlers().end()) {
    if (instruction.operands.empty() && parts_[0] != "ret" && parts_[0] != "exit" && parts_[0] != "trap" &&
        parts_[0] != "membar" && parts_[0] != "fence" && parts_[0] != "cp" && parts_[0] != "brkpt") {
      fail("operands are missing");
    }
    (this->*handler->second)();
  } else if (!decode_lane()) {
    fail_unknown();
  }
  for (const Conversion& conversion : conversions_)
    emit_lane(*conversion.operation, {conversion.to}, {conversion.from});
  conversions_.clear();
}

std::unique_ptr<CompiledKernel> Decoder::run() {
  kernel_->name = function_.name;
  kernel_->positions = function_.positions;
  for (const ptx::Register& reg : function_.registers) {
    registers_.push_back({.slot = reg.bytes == 0 ? Slot::predicate : slot_of(reg.bytes)});
  }
  std::vector<std::int32_t> start;  // of each PTX instruction in the code
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
    const bool maybe_shared = instruction.space == Space::shared ||
                              (instruction.space == Space::generic &&
                               (instruction.action == Action::load || instruction.action == Action::store ||
                                instruction.action == Action::atomic));
    if (maybe_shared && instruction.bytes != 0) {
      kernel_->uses_shared = true;
      const int bytes = instruction.bytes * (instruction.action == Action::ldmatrix ? 1 : instruction.elements);
      kernel_->shared_granule = std::min(kernel_->shared_granule, bytes);
    }
  }
  for (const std::vector<int>& table : function_.branch_tables) {
    std::vector<std::int32_t>& targets = kernel_->branch_tables.emplace_back();
    for (const int target : table) targets.push_back(start[static_cast<std::size_t>(target)]);
  }
  kernel_->static_shared_bytes = layout_.static_shared_bytes();
  kernel_->local_bytes = layout_.local_bytes();
  kernel_->parameter_bytes = layout_.parameter_bytes();
  find_reconvergence_points(*kernel_);
  allocate_registers(*kernel_, registers_);
  return std::move(kernel_);
}

}  // namespace

std::unique_ptr<CompiledKernel> compile(const ModuleImage& image, const ptx::Function& function) {
  return Decoder(image, function).run();
}

}  // namespace flash_ladder::emulator
