// The parser's output: functions as lists of instructions whose names are resolved.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "emulator/report.h"

namespace flash_ladder::emulator::ptx {

/// Types as in ".f32". The width is in bits; that of a predicate is 1.
struct Type {
  char kind = 'b';  // b, u, s, f (f16 … f64), h (bf16), t (tf32), p (pred)
  int bits = 0;
  bool packed = false;  // f16x2, bf16x2

  bool operator==(const Type&) const = default;
};

enum class Space : std::uint8_t { generic, global, constant, shared, local, param };

/// A register of a function. The width is the declared one; instructions may use fewer bits of it.
struct Register {
  std::string_view name;   // the prefix, for %r<100>
  int number = -1;         // of %r<100>
  std::uint8_t bytes = 4;  // 2, 4, 8, 16; 0 for a predicate
};

/// A variable outside or inside a function, or a parameter.
struct Variable {
  std::string name = {};
  int function = -1;       // index into Text::functions of the function that contains it; -1: of the module
  bool parameter = false;  // of a function, as opposed to a .param variable inside one
  Space space = Space::global;
  std::size_t alignment = 1;
  std::size_t size = 0;  // bytes; 0 for extern .shared x[]
  bool external = false;
  bool reserved = false;                   // reserved by the system, in shared memory: %reserved_smem_offset_1
  std::vector<std::uint8_t> initial = {};  // its initial value; the rest is zero
  struct Relocation {
    std::size_t offset;
    std::string symbol;
    std::int64_t addend;
  };
  std::vector<Relocation> relocations = {};  // addresses of other variables in `initial`, 8 bytes each
  int line = 0;
};

enum class SpecialRegister : std::uint8_t {
  tid_x,
  tid_y,
  tid_z,
  ntid_x,
  ntid_y,
  ntid_z,
  ctaid_x,
  ctaid_y,
  ctaid_z,
  nctaid_x,
  nctaid_y,
  nctaid_z,
  laneid,
  warpid,
  nwarpid,
  smid,
  nsmid,
  gridid,
  lanemask_eq,
  lanemask_le,
  lanemask_lt,
  lanemask_ge,
  lanemask_gt,
  clusterid_x,
  clusterid_y,
  clusterid_z,
  nclusterid_x,
  nclusterid_y,
  nclusterid_z,
  cluster_ctaid_x,
  cluster_ctaid_y,
  cluster_ctaid_z,
  cluster_nctaid_x,
  cluster_nctaid_y,
  cluster_nctaid_z,
  cluster_ctarank,
  cluster_nctarank,
  zero,
  one,
  dynamic_smem_size,
  total_smem_size,
  envreg1,  // together with envreg2, the address of a cooperative launch's workspace, as CUDA's headers read it
  envreg2,
  clock,
  clock_hi,
  clock64,
  globaltimer,
  globaltimer_lo,
  globaltimer_hi,
};

/// An operand of an instruction.
struct Operand {
  enum class Kind : std::uint8_t {
    none,
    reg,       // index: into Function::registers
    special,   // index: a SpecialRegister
    integer,   // value
    real,      // value: bits of a double, or of a float if `single`
    variable,  // index: into Text::variables; value: offset to add to its address
    label,     // index: of the instruction that it precedes
    table,     // index: into Function::branch_tables
    function,  // name
    sink,      // _
    vector,    // elements; with another kind and `address`, these are the coordinates in a tensor
  };
  Kind kind = Kind::none;
  bool address = false;  // in brackets; if it is a register, `value` is added to it
  bool negated = false;  // !%p
  bool single = false;
  bool pair = false;  // %p|%q: the following operand is its second half
  int index = -1;
  std::int64_t value = 0;
  std::string_view name = {};
  std::vector<Operand> elements = {};
};

struct Instruction {
  std::string_view opcode = {};  // with its modifiers: "ld.param.u64"
  int guard = -1;                // register index of @%p
  bool guard_negated = false;
  std::vector<Operand> operands = {};
  int line = 0;                // line of the PTX
  int position = 0;            // index into Function::positions
  std::string_view text = {};  // without the guard and the semicolon, as written
};

/// A .entry or a .func.
struct Function {
  std::string name = {};
  bool entry = false;
  bool defined = false;
  std::vector<int> parameters;  // indices into Text::variables
  std::vector<int> results;     // the same, for the results of a .func
  std::vector<Register> registers;
  std::vector<Instruction> instructions;
  std::vector<std::vector<int>> branch_tables;  // instruction indices, of .branchtargets
  std::vector<SourcePosition> positions;        // [0] is "unknown"
  std::array<std::uint32_t, 3> max_threads{};
  std::array<std::uint32_t, 3> required_threads{};
  std::array<std::uint32_t, 3> cluster = {1, 1, 1};
  bool limits_registers = false;  // .minnctapersm or .maxnreg
  int line = 0;
  // What could not be parsed in its body, which is empty then: only kernels that are or call this function cannot be run.
  std::string error = {};
  int error_line = 0;
};

struct Text {
  std::map<int, std::string> files;
  std::vector<Variable> variables;  // of the module, and of all functions
  std::vector<Function> functions;
};

/// The value of a pointer to a function, which is not a memory address. 0 if the text has no function of this name, or
/// it is a kernel.
std::uint64_t function_address(const Text& text, std::string_view name);

}  // namespace flash_ladder::emulator::ptx
