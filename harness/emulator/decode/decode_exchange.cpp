// What the lanes of a warp do together: matrix products, shuffles, votes.
#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {

void KernelDecoder::mma() {
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

void KernelDecoder::shfl() {
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

void KernelDecoder::vote() {
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

void KernelDecoder::match() {
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

void KernelDecoder::redux() {
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

void KernelDecoder::activemask() {
  if (instruction_->opcode != "activemask.b32") fail_unknown();
  expect_operands(1);
  emit(Action::active_mask, InstructionClass::shuffle, {write(operand(0), Slot::b32)}, {});
}

}  // namespace flash_ladder::emulator
