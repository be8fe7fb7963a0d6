// Small PTX kernels for tests, written as one statement per line. Each line of the body is also a line of an imaginary
// source, kernel.cu, beginning with 1, so that tests can say where a finding must be.
#pragma once

#include <fmt/format.h>

#include <sstream>
#include <string>

namespace flash_ladder::emulator {

/// The lines of a body, each preceded by a directive that makes it line 1, 2, … of the source.
inline std::string numbered(const std::string& body) {
  std::istringstream lines(body);
  std::string text, line;
  for (int number = 1; std::getline(lines, line); ++number) text += fmt::format(".loc 1 {} 0\n{}\n", number, line);
  return text;
}

/// A kernel `test(.param .u64 input, .param .u64 output)`. The body may use %r, %rd, %rs, %f and %p registers, `smem`
/// (4096 bytes of shared memory) and `local` (64 bytes), with these initial values: %r90 = tid, %r91 = lane, %r92 =
/// warp, %rd90 = input, %rd91 = output, %r93 = the address of smem, %r94 = the address of the thread's word in it.
inline std::string program(const std::string& body, const std::string& declarations = {}) {
  return ".version 7.8\n.target sm_80\n.address_size 64\n" + declarations +
         ".visible .entry test(.param .u64 input, .param .u64 output)\n{\n"
         ".reg .b16 %rs<100>;\n.reg .b32 %r<100>;\n.reg .b64 %rd<100>;\n.reg .f32 %f<100>;\n.reg .pred %p<100>;\n"
         ".shared .align 16 .b8 smem[4096];\n.local .align 16 .b8 local[64];\n"
         "mov.u32 %r90, %tid.x;\nand.b32 %r91, %r90, 31;\nshr.u32 %r92, %r90, 5;\n"
         "ld.param.u64 %rd90, [input];\ncvta.to.global.u64 %rd90, %rd90;\nld.param.u64 %rd91, [output];\ncvta.to.global.u64 %rd91, %rd91;\n"
         "mov.u32 %r93, smem;\nmad.lo.u32 %r94, %r90, 4, %r93;\n" +
         numbered(body) + "ret;\n}\n.file 1 \"/somewhere/kernel.cu\"\n";
}

}  // namespace flash_ladder::emulator
