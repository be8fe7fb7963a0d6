// wgmma. PTX ISA, "Asynchronous Warpgroup Level Matrix Instructions". exec/wgmma_unit.cpp decides when it reads and
// writes what, and checks it.
#include <charconv>
#include <map>
#include <string_view>
#include <system_error>

#include "emulator/decode/kernel_decoder.h"
#include "emulator/exec/cta_executor.h"
#include "emulator/exec/divergence.h"
#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Operand;

void multiply(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  cta.async()->wgmma.issue(warp, instruction, mask);
}

void wgmma_fence(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  cta.async()->wgmma.fence_registers(warp);
}

void commit_wgmmas(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  cta.async()->wgmma.commit(warp);
}

void wait(CtaExecutor& cta, Warp& warp, const Instruction& instruction, std::uint32_t mask) {
  check_all_lanes(cta, warp, instruction, mask);
  cta.async()->wgmma.wait(warp, instruction);
}

std::vector<std::int32_t> registers(KernelDecoder& d, const Operand& operand, std::size_t count, bool written) {
  const std::vector<Operand> elements = d.elements(operand);
  if (elements.size() != count) d.fail("a fragment of the wrong length");
  std::vector<std::int32_t> all;
  for (const Operand& element : elements)
    all.push_back(written ? d.write(element, Slot::b32) : d.read(element, Slot::b32));
  return all;
}

// 1 or -1.
bool negates(KernelDecoder& d, std::size_t operand) {
  const int scale = d.immediate(operand);
  if (scale != 1 && scale != -1) d.fail("the scale of an operand is 1 or -1");
  return scale < 0;
}

bool transposes(KernelDecoder& d, std::size_t operand) {
  const int transposed = d.immediate(operand);
  if (transposed != 0 && transposed != 1) d.fail("transposing an operand is 0 or 1");
  return transposed == 1;
}

// wgmma.mma_async.sync.aligned.m64nNkK.dtype.atype.btype d, a-desc or a, b-desc, scale-d[, imm-scale-a, imm-scale-b[, imm-trans-a]
// [, imm-trans-b]]; A in registers cannot be transposed.
void decode_multiply(KernelDecoder& d) {
  if (d.parts().size() != 8) d.fail_unknown();
  const std::string_view shape = d.parts()[4];
  static const std::map<std::string_view, Wgmma::Element> elements = {{"f16", Wgmma::Element::f16},
                                                                      {"bf16", Wgmma::Element::bf16},
                                                                      {"tf32", Wgmma::Element::tf32},
                                                                      {"e4m3", Wgmma::Element::e4m3},
                                                                      {"e5m2", Wgmma::Element::e5m2}};
  const auto a = elements.find(d.parts()[6]), b = elements.find(d.parts()[7]);
  if (a == elements.end() || b == elements.end()) d.fail_unknown();
  Wgmma wgmma;
  wgmma.a_element = a->second;
  wgmma.b_element = b->second;
  const bool is_8_bits = wgmma.element_bytes() == 1, is_16_bits = wgmma.element_bytes() == 2;
  if (is_8_bits ? b->second < Wgmma::Element::e4m3 : a->second != b->second) d.fail_unknown();
  wgmma.d_in_f16 = d.parts()[5] == "f16";
  if (wgmma.d_in_f16 ? a->second != Wgmma::Element::f16 && !is_8_bits : d.parts()[5] != "f32") d.fail_unknown();
  const std::size_t k_at = shape.find('k');
  if (!shape.starts_with("m64n") || k_at == shape.npos) d.fail_unknown();
  int k = 0;
  const auto number = [&](std::size_t from, std::size_t to, int& value) {
    const auto [end, error] = std::from_chars(shape.data() + from, shape.data() + to, value);
    return error == std::errc() && end == shape.data() + to;
  };
  if (!number(4, k_at, wgmma.n) || !number(k_at + 1, shape.size(), k) || k != wgmma.k() || wgmma.n % 8 != 0 ||
      wgmma.n < 8 || wgmma.n > 256) {
    d.fail_unknown();
  }

  const bool a_in_registers = d.operand(1).kind == Operand::Kind::vector;
  const std::size_t scales = is_16_bits ? (a_in_registers ? 7 : 8) : 6;
  d.expect_operands(4, scales);
  const std::size_t given = d.num_operands();
  if (given == 5 || (given == 7 && !a_in_registers)) d.fail("operands are missing");
  if (given >= 6) {
    wgmma.negates_a = negates(d, 4);
    wgmma.negates_b = negates(d, 5);
  }
  if (given >= 7) {
    if (!a_in_registers) wgmma.transposes_a = transposes(d, 6);
    wgmma.transposes_b = transposes(d, given - 1);
  }
  std::vector<int> reads;
  if (a_in_registers) {
    wgmma.a = registers(d, d.operand(1), 4, false);
  } else {
    reads.push_back(d.read(d.operand(1), Slot::b64));
  }
  reads.push_back(d.read(d.operand(2), Slot::b64));
  reads.push_back(d.read(d.operand(3), Slot::predicate));
  wgmma.d = registers(d, d.operand(0), static_cast<std::size_t>(wgmma.n / (wgmma.d_in_f16 ? 4 : 2)), true);
  Instruction& out = d.emit(multiply, InstructionClass::wgmma, {}, reads);
  out.role = MemoryRole::wgmma_operands;
  out.space = ptx::Space::shared;
  out.bytes = 16;
  out.wgmma = static_cast<std::int32_t>(d.kernel().wgmmas.size());
  d.kernel().wgmmas.push_back(std::move(wgmma));
}

void decode_wgmma(KernelDecoder& d) {
  if (d.parts().size() < 4 || d.parts()[2] != "sync" || d.parts()[3] != "aligned") d.fail_unknown();
  d.kernel().uses_async_proxy = true;
  const std::string_view which = d.parts()[1];
  if (which == "mma_async") return decode_multiply(d);
  if (d.parts().size() != 4) d.fail_unknown();
  if (which == "wait_group") {
    d.expect_operands(1);
    const int count = d.immediate(0);
    if (count < 0 || count > 7) d.fail("wgmma.wait_group waits until 0 to 7 groups are left");
    Instruction& out = d.emit(wait, InstructionClass::barrier, {}, {});
    out.count = static_cast<std::uint32_t>(count);
    out.computes_nothing = true;
    return;
  }
  d.expect_operands(0);
  if (which != "fence" && which != "commit_group") d.fail_unknown();
  d.emit(which == "fence" ? wgmma_fence : commit_wgmmas, InstructionClass::barrier, {}, {}).computes_nothing = true;
}

}  // namespace

void add_wgmma_operations(OperationTable& table) { table.add("wgmma", decode_wgmma); }

}  // namespace flash_ladder::emulator
