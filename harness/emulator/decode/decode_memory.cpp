// Loads, stores, atomics, matrices in shared memory, and asynchronous copies.
#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {

std::optional<ptx::Space> named_space(std::string_view part) {
  if (part == "global") return ptx::Space::global;
  if (part == "const") return ptx::Space::constant;
  if (part == "shared" || part == "shared::cta") return ptx::Space::shared;
  if (part == "local") return ptx::Space::local;
  if (part == "param" || part == "param::entry" || part == "param::func") return ptx::Space::param;
  return std::nullopt;
}

// What ld and st say before the type.
void KernelDecoder::memory_modifiers(Space& space, int& elements, bool& strong) const {
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
               !part.starts_with("L1::") && !part.starts_with("L2::")) {
      fail_unknown();
    }
  }
}

void KernelDecoder::ld() {
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

void KernelDecoder::st() {
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

void KernelDecoder::atom() {
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
               part != "gpu" && part != "sys" && part != "noftz" && !part.starts_with("L2::")) {
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

void KernelDecoder::ldmatrix() {
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

void KernelDecoder::cp() {
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
      if (!parts_[next].starts_with("L2::")) fail_unknown();
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

void KernelDecoder::createpolicy() {
  if (num_operands() == 0) fail_unknown();
  emit_lane("mov.b64", {write(operand(0), Slot::b64)}, {constant(Slot::b64, 0)});
}

void KernelDecoder::fence() { emit(Action::nothing, InstructionClass::barrier, {}, {}); }

}  // namespace flash_ladder::emulator
