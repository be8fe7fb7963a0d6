// Damaged PTX: mutated and truncated texts of the conformance suite. Each is either refused with its line, or runs to
// an end; nothing crashes, hangs or reads invalid memory. To be run with the sanitizers as well.

#include <fmt/format.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <random>

#include "emulator/lanes/lane_table.h"
#include "emulator_cases.h"
#include "emulator_program.h"
#include "emulator_run.h"

namespace flash_ladder::emulator {
namespace {

// The outcome for a text: parsed, and each of its kernels run on a small block.
enum class Fate { refused, ran };

Fate try_text(const std::string& text) {
  Options options;
  options.threads = 1;
  options.max_warp_instructions_per_cta = 2000;
  options.print = [](std::string_view) {};
  try {
    Memory memory(std::size_t{16} << 20);
    const Module module(text, memory);
    for (const Kernel* kernel : module.kernels()) {
      std::vector<std::byte> parameters(kernel->parameter_bytes());
      const Address some = memory.allocate(4096);
      memory.fill(some, 1, 4096);
      for (const KernelParameter& parameter : kernel->parameters()) {
        if (parameter.size == 8) std::memcpy(parameters.data() + parameter.offset, &some, 8);
      }
      launch(*kernel, {.grid = {2, 1, 1}, .block = {40, 1, 1}, .dynamic_shared_bytes = 64, .parameters = parameters},
             memory, options);
    }
    return Fate::ran;
  } catch (const PtxError& error) {
    EXPECT_GT(error.ptx_line(), 0) << error.what();
    EXPECT_NE(std::string(error.what()).find("PTX line"), std::string::npos) << error.what();
    return Fate::refused;
  }
}

class Mutator {
 public:
  explicit Mutator(std::vector<std::string> texts) : texts_(std::move(texts)) {}

  std::string next() {
    std::string text = texts_[random_() % texts_.size()];
    for (std::size_t changes = 1 + random_() % 4; changes > 0 && !text.empty(); --changes) change(text);
    return text;
  }

 private:
  void change(std::string& text) {
    static const char* const kWords[] = {"%r1",
                                         "%rd90",
                                         "%p1",
                                         "-1",
                                         "0",
                                         "4294967296",
                                         "0x",
                                         "0f7fffffff",
                                         ".b64",
                                         ".pred",
                                         ".v4",
                                         "{",
                                         "}",
                                         "[",
                                         "]",
                                         ";",
                                         "@!%p1",
                                         "bra",
                                         "<99999999>",
                                         ".align 3",
                                         "%tid.x",
                                         ":",
                                         "|",
                                         "_",
                                         "ret;",
                                         "\"",
                                         "//",
                                         "/*",
                                         "99999999999999999999",
                                         "ld.shared.v4.b64",
                                         "st.local.u8",
                                         "mma.sync",
                                         "bar.sync",
                                         "call",
                                         ".loc 1 1 1",
                                         "\n",
                                         "%",
                                         "[%r1+2147483647]",
                                         ".shared .b8 a[1000000000];",
                                         ".local .b8 b[2000000];",
                                         "exit;",
                                         "mbarrier.init.shared.b64",
                                         "cp.async.wait_group"};
    const std::size_t at = random_() % text.size();
    switch (random_() % 7) {
      case 0:  // another character
        text[at] = static_cast<char>(random_() % 256);
        break;
      case 1:  // a part of the text deleted
        text.erase(at, 1 + random_() % 12);
        break;
      case 2:  // a word inserted
        text.insert(at, fmt::format(" {} ", kWords[random_() % std::size(kWords)]));
        break;
      case 3:  // everything after it deleted
        if (random_() % 4 == 0) text.resize(at);
        break;
      case 4: {  // a piece of another text
        const std::string& other = texts_[random_() % texts_.size()];
        const std::size_t from = random_() % other.size();
        text.insert(at, other.substr(from, random_() % 60));
        break;
      }
      case 5: {  // a line duplicated, or moved
        const std::size_t begin = text.rfind('\n', at), end = text.find('\n', at);
        if (begin != std::string::npos && end != std::string::npos)
          text.insert(random_() % text.size(), text.substr(begin, end - begin));
        break;
      }
      default: {  // another number
        const std::size_t digit = text.find_first_of("0123456789", at);
        if (digit != std::string::npos) text[digit] = static_cast<char>('0' + random_() % 10);
        break;
      }
    }
  }

  std::vector<std::string> texts_;
  std::mt19937 random_{20};
};

std::vector<std::string> seeds() {
  std::vector<std::string> texts;
  int others = 0;
  for (const ConformanceCase& one : conformance_cases()) {
    // The cases that are written in full have the interesting syntax.
    const bool written_out = lane_table().find(one.name) == nullptr;
    if (written_out || others++ % 7 == 0) texts.push_back(one.ptx);
  }
  texts.push_back(program(
      "@%p1 bra E;\nld.shared.u32 %r1, [%r94];\nE:\nbar.sync 0;\n",
      ".global .align 8 .b8 names[] = {104, 105, 0};\n.const .f32 table[2][2] = {{1.0, 2.0}, {3.0, 0f40800000}};\n"));
  texts.push_back(program(
      "{\n.param .b64 p0;\nst.param.b64 [p0], %rd1;\n.param .b64 p1;\nst.param.b64 [p1], %rd2;\n.param .b32 r0;\ncall.uni (r0), vprintf, (p0, p1);\nld.param.b32 %r1, [r0];\n}\n",
      ".extern .func (.param .b32 r) vprintf (.param .b64 a, .param .b64 b);\n"));
  texts.push_back(program(
      "{\n.param .b32 a;\nst.param.b32 [a], %r90;\n.param .b32 r;\n@%p1 call (r), outer, (a);\nld.param.b32 %r1, [r];\n}\n",
      ".func (.param .b32 r) inner (.param .b32 a)\n{\n.reg .b32 %r<3>;\n.reg .pred %p;\n.local .b32 x[4];\nld.param.b32 %r1, [a];\nsetp.lt.s32 %p, %r1, 7;\n@%p ret;\nbrx.idx %r1, T;\nT: .branchtargets A, B;\nA: st.local.b32 [x+4], %r1;\nB: st.param.b32 [r], %r1;\n}\n"
      ".func (.param .b32 r) outer (.param .b32 a)\n{\ncall (r), inner, (a);\ncall (r), inner, (r);\nret;\n}\n"));
  return texts;
}

TEST(Fuzz, DamagedTextsAreRefusedOrRun) {
  Mutator mutator(seeds());
  constexpr int kTexts = 3000;
  int refused = 0, ran = 0;
  for (int i = 0; i < kTexts; ++i) {
    const std::string text = mutator.next();
    try {
      (try_text(text) == Fate::refused ? refused : ran)++;
    } catch (const std::exception& error) {
      ADD_FAILURE() << "text " << i << ": " << error.what() << "\n" << text;
      return;
    }
  }
  EXPECT_GT(refused, 100);
  EXPECT_GT(ran, 100);
}

TEST(Fuzz, WhatIsCutShortIsRefused) {
  const std::string text = program(
      "@%p1 bra E;\nmov.b64 {%r1, %r2}, %rd1;\nld.shared.v2.u32 {%r3, %r4}, [%r93+8];\nE:\nshfl.sync.bfly.b32 %r1|%p2, %r2, 1, 31, -1;\n");
  // The header without its kernel is a complete text, and so is a text that ends after the kernel.
  const std::size_t header = text.find("64\n") + 2, kernel = text.find(".visible"), end = text.rfind('}');
  for (std::size_t length = 0; length <= text.size(); ++length) {
    const Fate fate = try_text(text.substr(0, length));
    if (length < header || (length > kernel && length <= end)) {
      EXPECT_EQ(fate, Fate::refused) << text.substr(0, length);
    }
  }
  EXPECT_EQ(try_text(text.substr(0, header)), Fate::ran);
  EXPECT_EQ(try_text(text.substr(0, end + 1)), Fate::ran);
  EXPECT_EQ(try_text(text), Fate::ran);
}

PtxError error_in(const std::string& text) {
  try {
    Memory memory;
    const Module module(text, memory);
    for (const Kernel* kernel : module.kernels()) kernel->compiled();
  } catch (const PtxError& error) {
    return error;
  }
  return {"no error", 0};
}

std::string error_of(const std::string& text) { return error_in(text).what(); }

// Expects an error at this line of the text that names this part of it.
void expect_error(const std::string& text, int line, const std::string& name) {
  const PtxError error = error_in(text);
  EXPECT_EQ(error.ptx_line(), line) << error.what();
  EXPECT_THAT(error.what(), testing::HasSubstr(name));
}

// Errors name the line, the source line if there is one, and what is wrong.
TEST(Errors, SayWhatAndWhere) {
  EXPECT_EQ(error_of(program("mov.u32 %r1, 5;\nfrobnicate.s32 %r1, %r2;\n")),
            "PTX line 25 (kernel.cu:2): the virtual GPU does not know this instruction: frobnicate.s32 %r1, %r2");
  EXPECT_EQ(error_of(program("add.s32 %r1, %r2;\n")),
            "PTX line 23 (kernel.cu:1): 2 operands instead of 3: add.s32 %r1, %r2");
  EXPECT_EQ(error_of(program("add.s32 %r1, %r2, %undeclared;\n")), "PTX line 23: unknown name '%undeclared'");
  EXPECT_EQ(error_of(program("mov.u32 %r1, %reserved_smem_offset_0;\n")),
            "PTX line 23: %reserved_smem_offset_0: of the shared memory that the system reserves, the virtual GPU "
            "has only the part at %reserved_smem_offset_1, which cooperative groups use for tiles of more than a warp");
  expect_error(program("bra NOWHERE;\n"), 23, "NOWHERE");
  EXPECT_EQ(error_of(program("add.s32 %r1, %r2, %r3\n")), "PTX line 24: expected ';' instead of 'ret'");
  EXPECT_EQ(error_of(program("add.s32 %r1, %r2, 12ab;\n")), "PTX line 23: malformed number 12ab");
  EXPECT_EQ(error_of(program("tex.2d.v4.f32.f32 {%f1, %f2, %f3, %f4}, [image, {%f1, %f2}];\n")),
            "PTX line 23: tex.2d.v4.f32.f32: the virtual GPU does not support textures and surfaces. Read the array "
            "through a pointer (ld.global), with the texture's addressing written out");
  const std::string unknown_shape = "wmma.load.a.sync.aligned.row.m16n16k99.f16 {%r1}, [%rd1], 16";
  expect_error(program(unknown_shape + ";\n"), 23, unknown_shape);
  const std::string unknown_wait = "mbarrier.wait.shared.b64 %p1, [smem], %rd1";
  expect_error(program(unknown_wait + ";\n"), 23, unknown_wait);
  EXPECT_EQ(error_of(".version 7.8\n.target sm_80\n.address_size 32\n"),
            "PTX line 4: only 64-bit addresses are supported (.address_size 64)");
  EXPECT_EQ(
      error_of(program("call f, ();\n", ".func f ()\n{\ncall g, ();\n}\n.func g ()\n{\ncall\n\tf, ();\n}\n")),
      "PTX line 10 (kernel.cu:1): the virtual GPU does not run recursive functions; f calls itself, perhaps through "
      "others");
  EXPECT_EQ(
      error_of(program("call f, ();\n", ".extern .func g ();\n.func f ()\n{\n.reg .b32 %r1;\ncall\n\tg, (%r1);\n}\n")),
      "PTX line 8 (kernel.cu:1): the virtual GPU does not know the function g, which this file only declares: call g, "
      "(%r1)");
  EXPECT_EQ(error_of(program("mov.u64 %rd1, g;\n", ".visible .entry g ()\n{\n}\n")),
            "PTX line 26 (kernel.cu:1): the address of a kernel: the virtual GPU does not run kernels that launch "
            "kernels: mov.u64 %rd1, g");
  EXPECT_EQ(error_of(program(".reg .b128 %q;\nadd.u64 %rd1, %q, %rd1;\n")),
            "PTX line 25 (kernel.cu:2): a 128-bit register where none is allowed: add.u64 %rd1, %q, %rd1");
  const std::string registers = "{%r1, %r2, %r3, %r4}";
  const std::string sparse =
      fmt::format("mma.sp.sync.aligned.m16n8k32.row.col.f32.f16.f16.f32 {0}, {0}, {0}, {0}, %r5, 2;\n", registers);
  expect_error(program(sparse), 23, "a sparsity selector of 2, which is 0 to 1 here");
  EXPECT_EQ(error_of(program("call f, (%r1);\n", ".func f ()\n{\n}\n")),
            "PTX line 26 (kernel.cu:1): a malformed call of f");
  EXPECT_EQ(error_of("this is no PTX"), "PTX line 1: unexpected 'this'");
  EXPECT_EQ(error_of(""), "PTX line 1: expected .version before the end of the text, which is empty or was cut short");
  expect_error(".version 7.8\n", 2, ".target");
  expect_error(".version 7.8\n.target sm_80\n", 3, ".address_size 64");
  expect_error(".version 7.8\n.target sm_80\n.address_size 64\n.visible", 4, "function or variable");
}

TEST(Errors, CallsThatBecomeTooLong) {
  // Each function calls the next one twice.
  std::string functions = ".func f20 ()\n{\n}\n";
  for (int i = 19; i >= 0; --i) {
    functions += fmt::format(".func f{} ()\n{{\ncall f{}, ();\ncall f{}, ();\n}}\n", i, i + 1, i + 1);
  }
  EXPECT_THAT(error_of(program("call f0, ();\n", functions)), testing::HasSubstr("too many instructions"));
  EXPECT_EQ(error_of(program("call f10, ();\n", functions)), "no error");
  const std::string large = ".func f ()\n{\n.reg .b32 %r<1000000>;\nmov.u32 %r1, 1;\n}\n";
  EXPECT_THAT(error_of(program("call f, ();\n", large)), testing::HasSubstr("registers; f is one of them"));
}

TEST(Errors, KeepOnlyTheKernelsFromRunningThatTheyConcern) {
  for (
      const std::string broken : {
          ".visible .entry broken()\n{\nmov.u32 %r1, %undeclared;\n}\n",
          ".visible .entry broken()\n{\n{\nbra NOWHERE;\n}\n}\n",
          ".visible .entry broken()\n{\n.frobnicate;\n}\n",
          ".visible .entry broken()\n{\nret\n}\n",
          ".func f ()\n{\n.reg .b32 %r;\nmov.u32 %r, %undeclared;\n}\n.visible .entry broken()\n{\ncall f, ();\n}\n",
          ".global .u64 table[2] = {0, f};\n.visible .entry broken()\n{\n.reg .b64 %r;\nmov.u64 %r, table;\n}\n",
          ".global .u64 pointer = table;\n.global .u64 table = nothing;\n.visible .entry broken()\n{\n.reg .b64 %r;\nld.global.u64 %r, [pointer];\n}\n",
      }) {
    Memory memory;
    const Module module(program("add.u32 %r1, %r2, %r3;\n", broken), memory);
    EXPECT_NO_THROW(module.kernel("test").compiled()) << broken;
    EXPECT_THROW(module.kernel("broken").compiled(), PtxError) << broken;
  }
}

}  // namespace
}  // namespace flash_ladder::emulator
