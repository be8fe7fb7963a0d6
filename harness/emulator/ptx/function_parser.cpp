// Functions: parameters, declarations, statements and operands.
#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <utility>

#include "emulator/ptx/names.h"
#include "emulator/ptx/parser.h"
#include "emulator/ptx/parser_state.h"
#include "emulator/ptx_error.h"

namespace flash_ladder::emulator::ptx {
namespace {

using Kind = Operand::Kind;

// A text with more registers than this is damaged.
constexpr std::uint64_t kMaxRegisters = 1 << 20;
// The size of the area that CUDA's headers assume at %reserved_smem_offset_1.
constexpr std::size_t kReservedForCooperativeGroups = 288;

}  // namespace

std::vector<int> Parser::parse_parameters() {
  std::vector<int> parameters;
  expect('(');
  while (!accept(')')) {
    if (!parameters.empty()) expect(',');
    if (accept(".reg")) lexer_.fail("functions with register parameters are not supported");
    if (!accept(".param")) lexer_.fail("expected .param");
    parameters.push_back(parse_variable(Space::param, false, true));
  }
  return parameters;
}

void Parser::parse_function(bool entry) {
  function_index_ = static_cast<int>(text_.functions.size());
  Function& function = text_.functions.emplace_back();
  function_ = &function;
  SourceLines lines;
  lines_ = &lines;
  position_ = 0;
  scopes_.emplace_back();
  function.entry = entry;
  if (!entry && lexer_.peek().is('(')) function.results = parse_parameters();
  function.line = lexer_.peek().line;
  function.name = std::string(expect_word().text);
  if (lexer_.peek().is('(')) function.parameters = parse_parameters();
  while (!lexer_.peek().is('{') && !lexer_.peek().is(';')) {
    const std::string_view directive = expect_word().text;
    if (directive == ".maxntid") {
      function.max_threads = parse_dimensions();
    } else if (directive == ".reqntid") {
      function.required_threads = parse_dimensions();
    } else if (directive == ".minnctapersm" || directive == ".maxnreg") {
      function.limits_registers = true;
      expect_integer();
    } else if (directive == ".maxclusterrank" || directive == ".abi_preserve" || directive == ".abi_preserve_control") {
      expect_integer();
    } else if (directive == ".reqnctapercluster") {
      function.cluster = parse_dimensions();
    } else if (directive == ".pragma") {
      skip_to_semicolon();
    } else if (directive != ".noreturn" && directive != ".explicitcluster" && directive != ".unified") {
      lexer_.fail(fmt::format("unknown directive '{}'", directive));
    }
  }
  if (accept(';')) {
    close_scope();
  } else {
    function.defined = true;
    const Lexer at_body = lexer_;
    try {
      parse_body();
      close_scope();
    } catch (const PtxError& error) {
      function.error = error.what();
      function.error_line = error.ptx_line();
      function.instructions.clear();
      function.branch_tables.clear();
      scopes_.clear();
      lexer_ = at_body;
      lexer_.skip_block();
    }
  }
  positions_.push_back(lines.take());
  lines_ = nullptr;
  function_ = nullptr;
  function_index_ = -1;
}

void Parser::parse_body() {
  expect('{');
  int depth = 1;
  while (depth > 0) {
    if (lexer_.peek().kind == TokenKind::end) lexer_.fail("a function that does not end");
    if (accept('{')) {
      scopes_.emplace_back();
      if (++depth > 1000) lexer_.fail("too many nested braces");
    } else if (accept('}')) {
      if (--depth > 0) close_scope();
    } else {
      parse_statement();
    }
  }
}

bool Parser::is_function(std::string_view name) const {
  return std::any_of(text_.functions.begin(), text_.functions.end(),
                     [&](const Function& function) { return function.name == name; });
}

// Branches refer to the labels of this scope; any other name may be a label further out.
void Parser::close_scope() {
  Scope scope = std::move(scopes_.back());
  scopes_.pop_back();
  for (const Scope::Use& use : scope.uses) {
    const auto place = [&]() -> Operand* {
      return use.instruction < 0 ? nullptr : &function_->instructions[use.instruction].operands[use.operand];
    };
    if (const auto label = scope.labels.find(use.name); label != scope.labels.end()) {
      if (Operand* operand = place()) {
        operand->kind = Kind::label;
        operand->index = label->second;
      } else {
        function_->branch_tables[use.table][use.operand] = label->second;
      }
    } else if (const auto table = scope.tables.find(use.name); table != scope.tables.end() && place() != nullptr) {
      place()->kind = Kind::table;
      place()->index = table->second;
    } else if (!scopes_.empty()) {
      scopes_.back().uses.push_back(use);
    } else if (Operand* operand = place();
               operand != nullptr &&
               (function_->instructions[use.instruction].opcode.substr(0, 4) == "call" || is_function(use.name))) {
      operand->kind = Kind::function;
    } else {
      throw PtxError(fmt::format("PTX line {}: unknown name '{}'", use.line, use.name), use.line);
    }
  }
}

void Parser::parse_statement() {
  if (accept(';')) return;
  const Token& token = lexer_.peek();
  if (token.is('@')) return parse_instruction();
  if (token.kind != TokenKind::word) lexer_.fail(fmt::format("unexpected '{}'", token.text));
  if (token.text[0] != '.') return parse_instruction();
  const Token directive = lexer_.next();
  if (directive.text == ".reg") {
    parse_registers(expect_word().text.substr(1));
  } else if (directive.text.starts_with(".reg.")) {  // without a blank before the type
    parse_registers(directive.text.substr(5));
  } else if (directive.text == ".loc") {
    parse_location(*lines_);
  } else if (directive.text == ".pragma") {
    skip_to_semicolon();
  } else if (const Space space = space_of(directive.text); space != Space::generic) {
    parse_variable(space, false, false);
  } else {
    lexer_.fail(fmt::format("unknown directive '{}'", directive.text));
  }
}

void Parser::parse_registers(std::string_view type_name) {
  const Type type = type_of(type_name);
  if (type.kind == 0) lexer_.fail(fmt::format("a register of unknown type '.{}'", type_name));
  // No register is narrower than 16 bits: 8-bit values are kept in 16-bit registers.
  const auto bytes = static_cast<std::uint8_t>(type.kind == 'p' ? 0 : std::max(type.bits, 16) / 8);
  Scope& scope = scopes_.back();
  do {
    const std::string_view name = expect_word().text;
    const int first = static_cast<int>(function_->registers.size());
    if (accept('<')) {
      const std::int64_t count = expect_integer();
      if (count < 0 || static_cast<std::uint64_t>(count) + function_->registers.size() > kMaxRegisters) {
        lexer_.fail(fmt::format("{} registers", count));
      }
      expect('>');
      scope.ranges[name] = {first, static_cast<int>(count)};
      for (int i = 0; i < count; ++i) function_->registers.push_back({name, i, bytes});
    } else {
      scope.registers[name] = first;
      function_->registers.push_back({name, -1, bytes});
      if (function_->registers.size() > kMaxRegisters) lexer_.fail("too many registers");
    }
  } while (accept(','));
  expect(';');
}

// .loc file line column[, function_name label[+n], inlined_at file line column]
void Parser::parse_location(SourceLines& lines) {
  const auto location = [&] {
    SourceLines::Location at{};
    at.file = static_cast<int>(expect_integer());
    at.line = static_cast<int>(expect_integer());
    at.column = static_cast<int>(expect_integer());
    return at;
  };
  const SourceLines::Location at = location();
  if (accept(',')) {
    if (!accept("function_name")) lexer_.fail("expected function_name");
    expect_word();
    if (accept('+')) expect_integer();
    expect(',');
    if (!accept("inlined_at")) lexer_.fail("expected inlined_at");
    const SourceLines::Location inlined_at = location();
    position_ = lines.locate(at, &inlined_at);
  } else {
    position_ = lines.locate(at, nullptr);
  }
}

void Parser::parse_branch_targets(std::string_view label) {
  const int table = static_cast<int>(function_->branch_tables.size());
  std::vector<int>& targets = function_->branch_tables.emplace_back();
  scopes_.back().tables[label] = table;
  do {
    const Token name = expect_word();
    scopes_.back().uses.push_back({name.text, -1, static_cast<int>(targets.size()), table, name.line});
    targets.push_back(-1);
  } while (accept(','));
  expect(';');
}

void Parser::parse_instruction() {
  Instruction instruction;
  if (accept('@')) {
    instruction.guard_negated = accept('!');
    const std::string_view guard = expect_word().text;
    instruction.guard = find_register(guard);
    if (instruction.guard < 0) lexer_.fail(fmt::format("unknown predicate '{}'", guard));
  }
  const std::size_t start = lexer_.position();
  const Token word = expect_word();
  if (accept(':')) {  // a label
    if (accept(".branchtargets")) return parse_branch_targets(word.text);
    if (accept(".callprototype")) return skip_to_semicolon();
    if (!scopes_.back().labels.emplace(word.text, static_cast<int>(function_->instructions.size())).second) {
      lexer_.fail(fmt::format("the label {} appears twice", word.text));
    }
    return;
  }
  if (word.text[0] == '%' || word.text[0] == '$' || word.text[0] == '_') {
    lexer_.fail(fmt::format("expected an instruction instead of '{}'", word.text));
  }
  const std::string_view mnemonic = word.text.substr(0, word.text.find('.'));
  for (const std::string_view texture : {"tex", "tld4", "txq", "suld", "sust", "sured", "suq", "istypep"}) {
    if (mnemonic != texture) continue;
    throw PtxError(
        fmt::format("PTX line {}: {}: the virtual GPU does not support textures and surfaces. Read the array through "
                    "a pointer (ld.global), with the texture's addressing written out",
                    word.line, word.text),
        word.line);
  }
  instruction.opcode = word.text;
  instruction.line = word.line;
  instruction.position = position_;
  int number = 0;
  if (!lexer_.peek().is(';')) {
    do {
      Operand operand = parse_operand(number++);
      operand.pair = accept('|');
      instruction.operands.push_back(std::move(operand));
      if (instruction.operands.back().pair) instruction.operands.push_back(parse_operand(number++));
    } while (accept(','));
  }
  instruction.text = lexer_.text().substr(start, lexer_.position() - start);
  expect(';');
  function_->instructions.push_back(std::move(instruction));
}

Operand Parser::parse_operand(int operand_number) {
  if (lexer_.peek().is('{') || lexer_.peek().is('(')) {
    const char close = lexer_.next().is('{') ? '}' : ')';
    Operand vector{.kind = Kind::vector};
    while (!accept(close)) {
      if (!vector.elements.empty()) expect(',');
      if (vector.elements.size() >= 128) lexer_.fail("a vector with more than 128 elements");
      // A name in a call's list that is not a register or a variable is reported with the call itself.
      if (lexer_.peek().is('{') || lexer_.peek().is('(') || lexer_.peek().is('[')) lexer_.fail("a nested operand");
      vector.elements.push_back(parse_operand(-1));
    }
    return vector;
  }
  if (accept('[')) {
    if (lexer_.peek().is('{') || lexer_.peek().is('[') || lexer_.peek().is('!')) lexer_.fail("a malformed address");
    Operand inner = parse_operand(-1);
    inner.address = true;
    if (accept(',')) {  // [tensor map, {coordinates}]
      if (!lexer_.peek().is('{')) lexer_.fail("expected the coordinates of a tensor, in braces");
      inner.elements = parse_operand(-1).elements;
    }
    expect(']');
    return inner;
  }
  if (accept('!')) {
    Operand operand = parse_name(operand_number);
    operand.negated = true;
    return operand;
  }
  if (lexer_.peek().kind == TokenKind::word) return parse_name(operand_number);
  const bool negative = accept('-');
  const Token number = lexer_.next();
  if (number.kind == TokenKind::integer) {
    const std::uint64_t value = negative ? 0 - number.value : number.value;
    return {.kind = Kind::integer, .value = static_cast<std::int64_t>(value)};
  }
  if (number.kind == TokenKind::real) {
    const std::uint64_t sign = number.single ? 0x80000000u : std::uint64_t{1} << 63;
    return {.kind = Kind::real,
            .single = number.single,
            .value = static_cast<std::int64_t>(number.value ^ (negative ? sign : 0))};
  }
  lexer_.fail(number.kind == TokenKind::end ? std::string("an instruction that does not end")
                                            : fmt::format("unexpected '{}'", number.text));
}

Operand Parser::parse_name(int operand_number) {
  const Token name = expect_word();
  Operand operand;
  if (name.text == "_") {
    operand.kind = Kind::sink;
    return operand;
  }
  if (name.text == "WARP_SZ") return {.kind = Kind::integer, .value = 32};
  operand.name = name.text;
  if ((operand.index = find_register(name.text)) >= 0) {
    operand.kind = Kind::reg;
  } else if ((operand.index = find_variable(name.text)) >= 0) {
    operand.kind = Kind::variable;
  } else if (const auto special = special_registers().find(name.text); special != special_registers().end()) {
    operand.kind = Kind::special;
    operand.index = static_cast<int>(special->second);
    return operand;
  } else if (name.text == "%reserved_smem_offset_1") {
    operand.kind = Kind::variable;
    operand.index = module_variables_[name.text] = static_cast<int>(text_.variables.size());
    text_.variables.push_back({.name = std::string(name.text),
                               .space = Space::shared,
                               .alignment = 16,
                               .size = kReservedForCooperativeGroups,
                               .reserved = true,
                               .line = name.line});
  } else if (name.text.starts_with("%reserved_smem_offset")) {
    throw PtxError(fmt::format("PTX line {}: {}: of the shared memory that the system reserves, the virtual GPU has "
                               "only the part at %reserved_smem_offset_1, which cooperative groups use for tiles of "
                               "more than a warp",
                               name.line, name.text),
                   name.line);
  } else if (name.text[0] == '%' || operand_number < 0) {
    throw PtxError(fmt::format("PTX line {}: unknown name '{}'", name.line, name.text), name.line);
  } else {
    scopes_.back().uses.push_back(
        {name.text, static_cast<int>(function_->instructions.size()), operand_number, -1, name.line});
    operand.kind = Kind::label;
    return operand;
  }
  parse_offset(operand);
  return operand;
}

void Parser::parse_offset(Operand& operand) {
  if (accept('+')) {
    operand.value = expect_integer();
  } else if (accept('-')) {
    operand.value = static_cast<std::int64_t>(0 - static_cast<std::uint64_t>(expect_integer()));
  }
}

int Parser::find_register(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->registers.find(name); found != scope->registers.end()) return found->second;
    const std::size_t digits = name.find_last_not_of("0123456789") + 1;
    if (digits == 0 || digits == name.size()) continue;
    const auto range = scope->ranges.find(name.substr(0, digits));
    if (range == scope->ranges.end()) continue;
    int number = 0;
    const auto [end, error] = std::from_chars(name.data() + digits, name.data() + name.size(), number);
    if (error == std::errc() && number < range->second.second) return range->second.first + number;
  }
  return -1;
}

int Parser::find_variable(std::string_view name) const {
  for (auto scope = scopes_.rbegin(); scope != scopes_.rend(); ++scope) {
    if (const auto found = scope->variables.find(name); found != scope->variables.end()) return found->second;
  }
  const auto found = module_variables_.find(name);
  return found == module_variables_.end() ? -1 : found->second;
}

}  // namespace flash_ladder::emulator::ptx
