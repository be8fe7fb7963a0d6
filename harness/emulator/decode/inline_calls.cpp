// Each call gets separate registers for the callee. The callee's local memory has one location for all calls, because
// no function is active twice, and each thread has its own local memory. The callee's parameters are the .param
// variables that the caller passes.
#include "emulator/decode/inline_calls.h"

#include <fmt/format.h>

#include <algorithm>
#include <map>
#include <set>
#include <string_view>
#include <unordered_map>
#include <utility>
#include <vector>

#include "emulator/ptx_error.h"

namespace flash_ladder::emulator {
namespace {

using ptx::Function;
using ptx::Instruction;
using ptx::Operand;
using Kind = Operand::Kind;

// Anything larger would take gigabytes to decode.
constexpr std::size_t kMaxInstructions = 50'000;
constexpr std::size_t kMaxRegisters = 200'000;
constexpr std::size_t kMaxDepth = 100;

// call (results), function, (arguments): the results and the arguments may be missing.
const Operand* callee_of(const Instruction& instruction) {
  if (instruction.opcode != "call" && instruction.opcode != "call.uni") return nullptr;
  const std::vector<Operand>& operands = instruction.operands;
  const std::size_t i = !operands.empty() && operands[0].kind == Kind::vector ? 1 : 0;
  return i < operands.size() && operands[i].kind == Kind::function ? &operands[i] : nullptr;
}

// call (results), %rd1, (arguments), prototype
const Operand* pointer_of(const Instruction& instruction) {
  if (instruction.opcode != "call" && instruction.opcode != "call.uni") return nullptr;
  const std::vector<Operand>& operands = instruction.operands;
  const std::size_t i = !operands.empty() && operands[0].kind == Kind::vector ? 1 : 0;
  return i < operands.size() && operands[i].kind == Kind::reg ? &operands[i] : nullptr;
}

bool can_be_called(const Function& function) { return !function.entry && function.defined; }

// The functions whose address is taken by an instruction or a variable. They must be defined.
std::vector<const Function*> addressed_functions(const ptx::Text& text) {
  if (std::none_of(text.functions.begin(), text.functions.end(), can_be_called)) return {};  // the usual case
  std::set<std::string_view> names;
  for (const ptx::Variable& variable : text.variables) {
    for (const ptx::Variable::Relocation& relocation : variable.relocations) names.insert(relocation.symbol);
  }
  for (const Function& function : text.functions) {
    for (const Instruction& instruction : function.instructions) {
      if (instruction.opcode.starts_with("call")) continue;
      for (const Operand& operand : instruction.operands) {
        if (operand.kind == Kind::function) names.insert(operand.name);
      }
    }
  }
  std::vector<const Function*> functions;
  for (const Function& function : text.functions) {
    if (can_be_called(function) && names.contains(function.name)) functions.push_back(&function);
  }
  return functions;
}

// ld.param [%rd1]: in a kernel the parameters have addresses of their own; in a function they are in its caller's
// variables.
bool takes_address_of_parameter(const Instruction& instruction) {
  return (instruction.opcode.starts_with("ld.param") || instruction.opcode.starts_with("st.param")) &&
         std::any_of(instruction.operands.begin(), instruction.operands.end(),
                     [](const Operand& operand) { return operand.address && operand.kind == Kind::reg; });
}

using Functions = std::unordered_map<std::string_view, const Function*>;

Functions defined_functions(const ptx::Text& text) {
  Functions functions;
  for (const Function& function : text.functions) {
    if (can_be_called(function)) functions[function.name] = &function;
  }
  return functions;
}

class Inliner {
 public:
  explicit Inliner(const ptx::Text& text)
      : text_(text), functions_(defined_functions(text)), addressed_(addressed_functions(text)) {}

  bool calls(const Function& kernel) const {
    return std::any_of(kernel.instructions.begin(), kernel.instructions.end(), [&](const Instruction& instruction) {
      return find(instruction) != nullptr || pointer_of(instruction) != nullptr;
    });
  }

  Function run(const Function& kernel) {
    out_ = kernel;
    out_.registers.clear();
    out_.instructions.clear();
    out_.branch_tables.clear();
    out_.positions.assign(1, {});
    append(kernel, {}, {});
    return std::move(out_);
  }

 private:
  using Arguments = std::map<int, const Operand*>;  // by the callee's parameters

  const Function* find(const Instruction& instruction) const {
    const Operand* callee = callee_of(instruction);
    if (callee == nullptr) return nullptr;
    const auto found = functions_.find(callee->name);
    return found == functions_.end() ? nullptr : found->second;
  }

  [[noreturn]] static void fail(const Instruction& call, const SourcePosition& position, const std::string& message) {
    const std::string where = position.empty() ? "" : " (" + to_string(position) + ")";
    throw PtxError(fmt::format("PTX line {}{}: {}", call.line, where, message), call.line);
  }

  void append(const Function& function, const Arguments& arguments, const SourcePosition& called_at);
  void append_body(const Function& callee, const Instruction& call);
  void append_bodies(const Instruction& call);
  bool fits(const Function& callee, const Instruction& call) const;
  int position(const Function& function, int index, const SourcePosition& called_at);

  const ptx::Text& text_;
  Functions functions_;
  std::vector<const Function*> addressed_;
  std::vector<const Function*> active_;
  std::size_t inlined_ = 0;  // instructions
  Function out_;
};

// The position of an instruction of the function, followed by that of the call.
int Inliner::position(const Function& function, int index, const SourcePosition& called_at) {
  SourcePosition whole = function.positions[static_cast<std::size_t>(index)];
  whole.insert(whole.end(), called_at.begin(), called_at.end());
  if (whole.empty()) return 0;
  if (out_.positions.back() != whole) out_.positions.push_back(std::move(whole));
  return static_cast<int>(out_.positions.size()) - 1;
}

void Inliner::append(const Function& function, const Arguments& arguments, const SourcePosition& called_at) {
  active_.push_back(&function);
  const int first_register = static_cast<int>(out_.registers.size());
  const int first_table = static_cast<int>(out_.branch_tables.size());
  out_.registers.insert(out_.registers.end(), function.registers.begin(), function.registers.end());
  out_.branch_tables.resize(out_.branch_tables.size() + function.branch_tables.size());

  const auto rename = [&](Operand& operand, const auto& self) -> void {
    if (operand.kind == Kind::reg) operand.index += first_register;
    if (operand.kind == Kind::table) operand.index += first_table;
    if (operand.kind == Kind::variable) {
      if (const auto argument = arguments.find(operand.index); argument != arguments.end()) {
        operand.index = argument->second->index;
        operand.name = argument->second->name;
      }
    }
    for (Operand& element : operand.elements) self(element, self);
  };

  std::vector<int> start;               // for each instruction of the function: its index in `out_`
  std::vector<std::size_t> with_label;  // indices in `out_`: their labels are those of the function until the end
  const auto branch = [&](Instruction& instruction, std::size_t target) {
    instruction.opcode = "bra";
    instruction.operands = {{.kind = Kind::label, .index = static_cast<int>(target)}};
  };
  for (const Instruction& original : function.instructions) {
    if (active_.size() > 1 && (++inlined_ > kMaxInstructions || out_.registers.size() > kMaxRegisters)) {
      fail(original, called_at,
           fmt::format("the functions that the kernel calls have too many instructions or registers; {} is one of them",
                       function.name));
    }
    start.push_back(static_cast<int>(out_.instructions.size()));
    Instruction instruction = original;
    instruction.position = position(function, original.position, called_at);
    if (instruction.guard >= 0) instruction.guard += first_register;
    for (Operand& operand : instruction.operands) rename(operand, rename);
    const Function* const callee = find(original);
    const bool through_pointer = pointer_of(original) != nullptr;
    if ((callee != nullptr || through_pointer) && instruction.guard >= 0) {
      Instruction skip = instruction;
      skip.guard_negated = !skip.guard_negated;
      branch(skip, start.size());
      with_label.push_back(out_.instructions.size());
      out_.instructions.push_back(std::move(skip));
    }
    if (callee != nullptr) {
      append_body(*callee, instruction);
      continue;
    }
    if (through_pointer) {
      append_bodies(instruction);
      continue;
    }
    if (active_.size() > 1 && takes_address_of_parameter(original)) {
      fail(original, called_at,
           fmt::format("the virtual GPU does not run {}: it keeps the address of a parameter in a register",
                       function.name));
    }
    const bool returns = active_.size() > 1 && (original.opcode == "ret" || original.opcode == "ret.uni");
    if (returns) branch(instruction, function.instructions.size());
    if (!instruction.operands.empty() && instruction.operands[0].kind == Kind::label) {
      with_label.push_back(out_.instructions.size());
    }
    out_.instructions.push_back(std::move(instruction));
  }
  start.push_back(static_cast<int>(out_.instructions.size()));
  for (const std::size_t i : with_label) {
    int& index = out_.instructions[i].operands[0].index;
    index = start[static_cast<std::size_t>(index)];
  }
  for (std::size_t i = 0; i < function.branch_tables.size(); ++i) {
    std::vector<int>& table = out_.branch_tables[static_cast<std::size_t>(first_table) + i];
    for (const int target : function.branch_tables[i]) table.push_back(start[static_cast<std::size_t>(target)]);
  }
  active_.pop_back();
}

void Inliner::append_body(const Function& callee, const Instruction& call) {
  if (!callee.error.empty()) throw PtxError(callee.error, callee.error_line);
  const SourcePosition called_at = out_.positions[static_cast<std::size_t>(call.position)];
  if (std::find(active_.begin(), active_.end(), &callee) != active_.end()) {
    fail(call, called_at,
         fmt::format("the virtual GPU does not run recursive functions; {} calls itself, perhaps through others",
                     callee.name));
  }
  if (active_.size() > kMaxDepth) {
    fail(call, called_at, fmt::format("{} is called through more than {} functions", callee.name, kMaxDepth));
  }
  std::size_t next = 0;
  Arguments arguments;
  const auto bind = [&](const std::vector<int>& parameters) {
    const bool listed = next < call.operands.size() && call.operands[next].kind == Kind::vector;
    static const std::vector<Operand> nothing;
    const std::vector<Operand>& given = listed ? call.operands[next++].elements : nothing;
    bool fits = given.size() == parameters.size();
    for (std::size_t i = 0; fits && i < given.size(); ++i) {
      fits = given[i].kind == Kind::variable && given[i].value == 0;
      arguments[parameters[i]] = &given[i];
    }
    if (!fits) fail(call, called_at, fmt::format("a malformed call of {}", callee.name));
  };
  bind(callee.results);
  ++next;  // the function
  bind(callee.parameters);
  append(callee, arguments, called_at);
}

// Whether the call passes what the function takes: as many parameters, of the same sizes.
bool Inliner::fits(const Function& callee, const Instruction& call) const {
  std::size_t next = 0;
  const auto same = [&](const std::vector<int>& parameters) {
    const bool listed = next < call.operands.size() && call.operands[next].kind == Kind::vector;
    static const std::vector<Operand> nothing;
    const std::vector<Operand>& given = listed ? call.operands[next++].elements : nothing;
    return std::equal(
        given.begin(), given.end(), parameters.begin(), parameters.end(), [&](const Operand& operand, int parameter) {
          return operand.kind == Kind::variable && text_.variables[static_cast<std::size_t>(operand.index)].size ==
                                                       text_.variables[static_cast<std::size_t>(parameter)].size;
        });
  };
  const bool results = same(callee.results);
  ++next;  // the pointer
  return same(callee.parameters) && results;
}

// For each function that the pointer may refer to: if it is not that one, jump to the next; the body; jump to the end.
// The call itself stays after the last one, where it leads nowhere.
void Inliner::append_bodies(const Instruction& call) {
  const Operand pointer = *pointer_of(call);
  const auto add = [&](std::string_view opcode, std::vector<Operand> operands, int guard) {
    Instruction instruction = call;
    instruction.opcode = opcode;
    instruction.operands = std::move(operands);
    instruction.guard = guard;
    instruction.guard_negated = false;
    out_.instructions.push_back(std::move(instruction));
    return out_.instructions.size() - 1;
  };
  const auto here = [&] { return static_cast<int>(out_.instructions.size()); };
  std::vector<std::size_t> to_end;
  for (const Function* function : addressed_) {
    const bool is_active = std::find(active_.begin(), active_.end(), function) != active_.end();
    if (is_active || !fits(*function, call)) continue;
    const int differs = static_cast<int>(out_.registers.size());
    out_.registers.push_back({.name = "differs", .bytes = 0});
    const auto address = static_cast<std::int64_t>(ptx::function_address(text_, function->name));
    add("setp.ne.u64", {{.kind = Kind::reg, .index = differs}, pointer, {.kind = Kind::integer, .value = address}}, -1);
    const std::size_t to_next = add("bra", {{.kind = Kind::label}}, differs);
    append_body(*function, call);
    to_end.push_back(add("bra", {{.kind = Kind::label}}, -1));
    out_.instructions[to_next].operands[0].index = here();
  }
  out_.instructions.push_back(call);
  for (const std::size_t branch : to_end) out_.instructions[branch].operands[0].index = here();
}

}  // namespace

bool calls_functions(const ptx::Text& text, const ptx::Function& kernel) { return Inliner(text).calls(kernel); }

ptx::Function inline_calls(const ptx::Text& text, const ptx::Function& kernel) { return Inliner(text).run(kernel); }

}  // namespace flash_ladder::emulator
