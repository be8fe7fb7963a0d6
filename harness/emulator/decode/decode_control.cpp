// Barriers, branches, and the calls that are left.
#include <fmt/format.h>

#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {

void KernelDecoder::mbarrier() {
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

// bar.sync a[, b]; bar.arrive a, b; bar.red.op d, a[, b], c; bar.warp.sync m; the same as barrier.…[.aligned].
void KernelDecoder::bar() {
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

void KernelDecoder::bra() {
  expect_operands(1);
  if (operand(0).kind != Kind::label) fail("a branch needs a label");
  emit(Action::branch, InstructionClass::branch, {}, {}).target =
      operand(0).index;  // of the PTX, until the end of run()
}

void KernelDecoder::brx() {
  expect_operands(2);
  if (operand(1).kind != Kind::table) fail("brx.idx needs a list of branch targets");
  const int index = read(operand(0), Slot::b32);
  emit(Action::branch_table, InstructionClass::branch, {}, {index}).count =
      static_cast<std::uint32_t>(operand(1).index);
}

void KernelDecoder::leave() {
  expect_operands(0);
  emit(Action::exit, InstructionClass::branch, {}, {});
}

void KernelDecoder::trap() { emit(Action::trap, InstructionClass::other, {}, {}); }

void KernelDecoder::nothing() { emit(Action::nothing, InstructionClass::other, {}, {}); }

void KernelDecoder::nanosleep() { emit(Action::yield, InstructionClass::other, {}, {}); }

// Only printf and assert: the functions that the text defines have been inlined (inline_calls.h).
void KernelDecoder::call() {
  const std::size_t callee = operand(0).kind == Kind::vector ? 1 : 0;
  if (callee >= num_operands() || operand(callee).kind != Kind::function) {
    fail("calls through pointers are not supported");
  }
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
    fail(fmt::format("the virtual GPU does not know the function {}, which this file only declares", name));
  }
}

}  // namespace flash_ladder::emulator
