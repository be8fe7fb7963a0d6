// The conformance suite: small PTX kernels with inputs, run by emulator_conformance_test on the virtual GPU and by
// emulator-hardware on a real one.
#pragma once

#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

/// How close a result must be to the hardware's.
enum class Closeness {
  bits,         // the same bits
  bits_or_nan,  // the same, but any NaN matches a NaN, because the ISA does not say which one
  float_ulps,   // as floats, up to `bound` units in the last place of the hardware's result
  double_ulps,
  half_ulps,       // like float_ulps, for each 16-bit half of the result, as fp16
  float_absolute,  // as floats, up to `bound`
  float_either,  // as floats, up to `bound` units in the last place or 2^-22 (lg2: relative far from 1, absolute near it)
  sine,  // as floats, up to 2^-14.7 for arguments up to 100 π (sin, cos: "max. absolute error"), without limit beyond
};

/// One kernel `test(.param .u64 input, .param .u64 output)`, launched with one cluster of `ctas` CTAs of `threads`
/// threads. It reads its operands from `input` and writes `outputs` 64-bit words per thread, output[i · threads + tid].
struct ConformanceCase {
  std::string name;
  std::string ptx;
  unsigned threads = 32;
  unsigned ctas = 1;
  unsigned outputs = 1;
  std::vector<std::uint64_t> input;
  Closeness closeness = Closeness::bits;
  double bound = 0;
  bool hopper = false;  // for sm_90a only
  bool late = false;    // written when no GPU was available: its results may not be recorded yet
  // A third parameter, .b8 map[128]: the tensor map of the input or the output, whose address is not set here.
  std::optional<TensorMap> map = {};
  bool map_is_of_output = false;
  int unlike = -1;  // a result that the recorded GPU computes contrary to the ISA, and that is not compared
};

/// All cases. Names are unique.
std::vector<ConformanceCase> conformance_cases();
/// The cases that are for sm_90a.
std::vector<ConformanceCase> hopper_cases();

/// The operations of the lane table that no case covers, because they are not PTX instructions.
bool is_internal(const std::string& opcode);

}  // namespace flash_ladder::emulator
