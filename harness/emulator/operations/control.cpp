// Branches, the end of a thread, and instructions that only take time.
#include <fmt/format.h>

#include <bit>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;
using Kind = Operand::Kind;

void decode_bra(KernelDecoder& d) {
  d.expect_operands(1);
  if (d.operand(0).kind != Kind::label) d.fail("a branch needs a label");
  d.emit(Action::branch, InstructionClass::branch, {}, {}).target =
      d.operand(0).index;  // of the PTX, until the end of run()
}

void decode_brx(KernelDecoder& d) {
  d.expect_operands(2);
  if (d.operand(1).kind != Kind::table) d.fail("brx.idx needs a list of branch targets");
  const int index = d.read(d.operand(0), Slot::b32);
  d.emit(Action::branch_table, InstructionClass::branch, {}, {index}).count =
      static_cast<std::uint32_t>(d.operand(1).index);
}

void decode_leave(KernelDecoder& d) {
  d.expect_operands(0);
  d.emit(Action::exit, InstructionClass::branch, {}, {});
}

void trap(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta.find(
      FindingKind::invalid_operation, &warp, &instruction, std::countr_zero(mask), std::nullopt,
      "the kernel executed a trap. nvcc puts one where code cannot be right, such as a write to __constant__ memory, "
      "and warns of it");
}

void decode_trap(KernelDecoder& d) { d.emit(Action::exit, InstructionClass::other, {}, {}).execute = trap; }

void decode_nothing(KernelDecoder& d) { d.emit(nothing, InstructionClass::other, {}, {}); }

void sleep(CtaExecutor&, Warp& warp, const Instruction&, std::uint32_t) { warp.status = WarpStatus::yielded; }

void decode_nanosleep(KernelDecoder& d) { d.emit(sleep, InstructionClass::other, {}, {}); }

}  // namespace

void add_control_operations(OperationTable& table) {
  table.add("bra", decode_bra);
  table.add("brx", decode_brx);
  table.add("ret", decode_leave);
  table.add("exit", decode_leave);
  table.add("trap", decode_trap);
  table.add("discard", decode_nothing);
  table.add("prefetch", decode_nothing);
  table.add("prefetchu", decode_nothing);
  table.add("applypriority", decode_nothing);
  table.add("brkpt", decode_nothing);
  table.add("pmevent", decode_nothing);
  table.add("nanosleep", decode_nanosleep);
}

}  // namespace flash_ladder::emulator
