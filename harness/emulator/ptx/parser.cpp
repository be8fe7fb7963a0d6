#include "emulator/ptx/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "emulator/ptx/lexer.h"
#include "emulator/ptx/source_lines.h"
#include "emulator/ptx_error.h"

namespace flash_ladder::emulator::ptx {
namespace {

using Kind = Operand::Kind;

// A text with a larger variable than this, or with more registers, is damaged.
constexpr std::size_t kMaxVariableBytes = std::size_t{1} << 30;
constexpr std::uint64_t kMaxRegisters = 1 << 20;
// The size of the area that CUDA's headers assume at %reserved_smem_offset_1.
constexpr std::size_t kReservedForCooperativeGroups = 288;

const std::unordered_map<std::string_view, SpecialRegister>& special_registers() {
  using enum SpecialRegister;
  static const std::unordered_map<std::string_view, SpecialRegister> names = {
      {"%tid.x", tid_x},
      {"%tid.y", tid_y},
      {"%tid.z", tid_z},
      {"%ntid.x", ntid_x},
      {"%ntid.y", ntid_y},
      {"%ntid.z", ntid_z},
      {"%ctaid.x", ctaid_x},
      {"%ctaid.y", ctaid_y},
      {"%ctaid.z", ctaid_z},
      {"%nctaid.x", nctaid_x},
      {"%nctaid.y", nctaid_y},
      {"%nctaid.z", nctaid_z},
      {"%laneid", laneid},
      {"%warpid", warpid},
      {"%nwarpid", nwarpid},
      {"%smid", smid},
      {"%nsmid", nsmid},
      {"%gridid", gridid},
      {"%lanemask_eq", lanemask_eq},
      {"%lanemask_le", lanemask_le},
      {"%lanemask_lt", lanemask_lt},
      {"%lanemask_ge", lanemask_ge},
      {"%lanemask_gt", lanemask_gt},
      {"%clusterid.x", clusterid_x},
      {"%clusterid.y", clusterid_y},
      {"%clusterid.z", clusterid_z},
      {"%nclusterid.x", nclusterid_x},
      {"%nclusterid.y", nclusterid_y},
      {"%nclusterid.z", nclusterid_z},
      {"%cluster_ctaid.x", cluster_ctaid_x},
      {"%cluster_ctaid.y", cluster_ctaid_y},
      {"%cluster_ctaid.z", cluster_ctaid_z},
      {"%cluster_ctarank", cluster_ctarank},
      {"%cluster_nctaid.x", cluster_nctaid_x},
      {"%cluster_nctaid.y", cluster_nctaid_y},
      {"%cluster_nctaid.z", cluster_nctaid_z},
      {"%cluster_nctarank", cluster_nctarank},
      {"%dynamic_smem_size", dynamic_smem_size},
      {"%total_smem_size", total_smem_size},
      {"%envreg1", envreg1},
      {"%envreg2", envreg2},
      {"%clock", clock},
      {"%clock_hi", clock_hi},
      {"%clock64", clock64},
      {"%globaltimer", globaltimer},
      {"%globaltimer_lo", globaltimer_lo},
      {"%globaltimer_hi", globaltimer_hi},
  };
  return names;
}

Space space_of(std::string_view directive) {
  if (directive == ".global") return Space::global;
  if (directive == ".const") return Space::constant;
  if (directive == ".shared") return Space::shared;
  if (directive == ".local") return Space::local;
  if (directive == ".param") return Space::param;
  return Space::generic;
}

// nvcc writes non-ASCII bytes as octal escapes: \303\274 is a u with two dots in UTF-8.
std::string without_escapes(std::string_view text) {
  constexpr std::size_t kDigits = 3;
  const auto is_octal = [](char c) { return c >= '0' && c <= '7'; };
  std::string plain;
  for (std::size_t i = 0; i < text.size(); ++i) {
    const std::string_view digits = text.substr(i + 1).substr(0, kDigits);
    if (text[i] == '\\' && digits.size() == kDigits && std::all_of(digits.begin(), digits.end(), is_octal)) {
      plain += static_cast<char>((digits[0] - '0') * 64 + (digits[1] - '0') * 8 + (digits[2] - '0'));
      i += kDigits;
    } else {
      plain += text[i];
    }
  }
  return plain;
}

class Parser {
 public:
  explicit Parser(std::string_view text) : lexer_(text) {}

  Text parse();

 private:
  // The declarations within a pair of braces inside a function.
  struct Scope {
    std::unordered_map<std::string_view, std::pair<int, int>> ranges;  // "%r" → first index and count, of %r<count>
    std::unordered_map<std::string_view, int> registers;
    std::unordered_map<std::string_view, int> variables;
    std::unordered_map<std::string_view, int> labels;  // → instruction index
    std::unordered_map<std::string_view, int> tables;  // → branch table
    struct Use {  // use of a name that is not a register or a variable: a label further on, or a function
      std::string_view name;
      int instruction;  // -1: `operand` is an index in branch table `table`
      int operand;
      int table;
      int line;
    };
    std::vector<Use> uses;
  };

  Token expect_word();
  void expect(char symbol);
  std::int64_t expect_integer();
  bool accept(char symbol);
  bool accept(std::string_view word);

  void parse_file();
  void name_files();
  void skip_to_semicolon();
  std::array<std::uint32_t, 3> parse_dimensions();
  int parse_variable(Space space, bool external, bool parameter);
  void parse_initial(Variable& variable, int element_bytes);
  void parse_initial_value(Variable& variable, int element_bytes, std::size_t& offset);
  void parse_function(bool entry);
  std::vector<int> parse_parameters();
  void parse_body();
  void parse_statement();
  void parse_registers(std::string_view type_name);
  void parse_location(SourceLines& lines);
  void parse_branch_targets(std::string_view label);
  void parse_instruction();
  Operand parse_operand(int operand_number);
  Operand parse_name(int operand_number);
  void parse_offset(Operand& operand);
  int find_register(std::string_view name) const;
  int find_variable(std::string_view name) const;
  bool is_function(std::string_view name) const;
  void close_scope();

  Lexer lexer_;
  Text text_;
  std::unordered_map<std::string_view, int> module_variables_;
  Function* function_ = nullptr;
  int function_index_ = -1;
  SourceLines* lines_ = nullptr;
  int position_ = 0;
  std::vector<Scope> scopes_;
  std::vector<std::vector<std::vector<SourceLines::NumberedLine>>> positions_;  // of each function
};

Token Parser::expect_word() {
  if (lexer_.peek().kind != TokenKind::word) lexer_.fail("expected a name");
  return lexer_.next();
}

void Parser::expect(char symbol) {
  if (!lexer_.peek().is(symbol)) {
    const Token& found = lexer_.peek();
    lexer_.fail(fmt::format(
        "expected '{}'{}", symbol,
        found.kind == TokenKind::end ? " before the end of the text" : fmt::format(" instead of '{}'", found.text)));
  }
  lexer_.next();
}

std::int64_t Parser::expect_integer() {
  const bool negative = accept('-');
  if (lexer_.peek().kind != TokenKind::integer) lexer_.fail("expected an integer");
  const std::uint64_t value = lexer_.next().value;
  return static_cast<std::int64_t>(negative ? 0 - value : value);
}

bool Parser::accept(char symbol) {
  if (!lexer_.peek().is(symbol)) return false;
  lexer_.next();
  return true;
}

bool Parser::accept(std::string_view word) {
  if (!lexer_.peek().is(word)) return false;
  lexer_.next();
  return true;
}

void Parser::skip_to_semicolon() {
  while (!lexer_.peek().is(';')) {
    if (lexer_.peek().kind == TokenKind::end) lexer_.fail("expected ';' before the end of the text");
    lexer_.next();
  }
  lexer_.next();
}

Text Parser::parse() {
  bool version = false, target = false, address_size = false;
  std::string_view linkage;  // ".visible", ".extern" …, for the function or variable that must follow
  while (lexer_.peek().kind != TokenKind::end) {
    if (accept(';')) continue;
    const Token token = expect_word();
    if (token.text == ".version") {
      if (lexer_.peek().kind != TokenKind::real) lexer_.fail("expected a version such as 9.0");
      lexer_.next();
      version = true;
    } else if (token.text == ".target") {
      expect_word();
      target = true;
      while (accept(',')) expect_word();
    } else if (token.text == ".address_size") {
      if (expect_integer() != 64) lexer_.fail("only 64-bit addresses are supported (.address_size 64)");
      address_size = true;
    } else if (token.text == ".file") {
      parse_file();
    } else if (token.text == ".section") {
      expect_word();
      if (!lexer_.peek().is('{')) lexer_.fail("expected '{'");
      lexer_.skip_block();
    } else if (token.text == ".visible" || token.text == ".weak" || token.text == ".common" ||
               token.text == ".extern") {
      linkage = token.text;
    } else if (token.text == ".entry" || token.text == ".func") {
      parse_function(token.text == ".entry");
      linkage = {};
    } else if (token.text == ".pragma" || token.text == ".alias") {
      skip_to_semicolon();
    } else if (const Space space = space_of(token.text);
               space == Space::global || space == Space::constant || space == Space::shared) {
      parse_variable(space, linkage == ".extern", false);
      linkage = {};
    } else {
      lexer_.fail(fmt::format("unexpected '{}'", token.text));
    }
  }
  const char* missing = !version           ? ".version"
                        : !target          ? ".target"
                        : !address_size    ? ".address_size 64"
                        : !linkage.empty() ? "a function or variable"
                                           : nullptr;
  if (missing != nullptr) {
    lexer_.fail(fmt::format("expected {} before the end of the text, which is empty or was cut short", missing));
  }
  name_files();
  return std::move(text_);
}

// Fills in the names of the files in the functions' positions.
void Parser::name_files() {
  for (std::size_t i = 0; i < text_.functions.size(); ++i) {
    for (const auto& numbered : positions_[i]) {
      SourcePosition& position = text_.functions[i].positions.emplace_back();
      for (const auto& [file, line] : numbered) {
        const auto name = text_.files.find(file);
        position.push_back({name == text_.files.end() ? fmt::format("file {}", file) : name->second, line});
      }
    }
  }
}

void Parser::parse_file() {
  const int number = static_cast<int>(expect_integer());
  if (lexer_.peek().kind != TokenKind::string) lexer_.fail("expected a file name in quotes");
  text_.files[number] = without_escapes(lexer_.next().text);
  while (accept(',')) expect_integer();  // time and size
}

std::array<std::uint32_t, 3> Parser::parse_dimensions() {
  std::array<std::uint32_t, 3> dimensions = {1, 1, 1};
  int i = 0;
  do {
    if (i == 3) lexer_.fail("more than three dimensions");
    dimensions[i++] = static_cast<std::uint32_t>(expect_integer());
  } while (accept(','));
  return dimensions;
}

// What follows the state space: .align 16 .b8 name[4][2] = {…}. Several names may share one type.
int Parser::parse_variable(Space space, bool external, bool parameter) {
  Variable variable{.function = function_index_, .parameter = parameter, .space = space, .external = external};
  Type type{.kind = 0};
  int vector = 1;
  bool aligned = false;
  while (lexer_.peek().kind == TokenKind::word && lexer_.peek().text[0] == '.') {
    const std::string_view word = lexer_.next().text;
    if (word == ".align") {
      variable.alignment = static_cast<std::size_t>(expect_integer());
      if (!std::has_single_bit(variable.alignment) || variable.alignment > 65536) {
        lexer_.fail(fmt::format("an alignment of {}", variable.alignment));
      }
      aligned = true;
    } else if (word == ".v2" || word == ".v4") {
      vector = word[2] - '0';
    } else if (word == ".ptr") {  // the state space and alignment of what a kernel's pointer parameter points to
      while (lexer_.peek().is(".global") || lexer_.peek().is(".shared") || lexer_.peek().is(".const") ||
             lexer_.peek().is(".local")) {
        lexer_.next();
      }
      if (accept(".align")) expect_integer();
    } else if (word == ".attribute") {
      expect('(');
      while (!lexer_.peek().is(')')) {
        if (lexer_.peek().kind == TokenKind::end) lexer_.fail("expected ')'");
        lexer_.next();
      }
      lexer_.next();
    } else {
      type = type_of(word.substr(1));
      if (type.kind == 0) lexer_.fail(fmt::format("unknown type or attribute '{}'", word));
    }
  }
  if (type.kind == 0 || type.bits < 8) lexer_.fail("a variable without a type");
  const int element_bytes = type.bits / 8;
  if (!aligned) variable.alignment = static_cast<std::size_t>(element_bytes * vector);
  int index = -1;
  do {
    Variable one = variable;
    const Token name = expect_word();
    one.name = std::string(name.text);
    one.line = name.line;
    std::size_t count = static_cast<std::size_t>(vector);
    while (accept('[')) {
      if (accept(']')) {
        count = 0;
        continue;
      }
      const std::int64_t extent = expect_integer();
      if (extent < 0 || (extent > 0 && count > kMaxVariableBytes / static_cast<std::size_t>(extent))) {
        lexer_.fail(fmt::format("the size of {} is out of range", one.name));
      }
      count *= static_cast<std::size_t>(extent);
      expect(']');
    }
    one.size = count * static_cast<std::size_t>(element_bytes);
    if (one.size > kMaxVariableBytes) lexer_.fail(fmt::format("{} is larger than 1 GiB", one.name));
    if (accept('=')) {
      parse_initial(one, element_bytes);
      if (one.size == 0) one.size = one.initial.size();
      if (one.initial.size() > one.size) lexer_.fail(fmt::format("{} has more values than elements", one.name));
    }
    index = static_cast<int>(text_.variables.size());
    text_.variables.push_back(std::move(one));
    if (scopes_.empty()) {
      module_variables_[name.text] = index;
    } else {
      scopes_.back().variables[name.text] = index;
    }
  } while (!parameter && accept(','));
  if (!parameter) expect(';');
  return index;
}

void Parser::parse_initial(Variable& variable, int element_bytes) {
  std::size_t offset = 0;
  int depth = 0;
  do {
    if (accept('{')) {
      ++depth;
    } else if (accept('}')) {
      --depth;
    } else if (!accept(',')) {
      parse_initial_value(variable, element_bytes, offset);
    }
  } while (depth > 0);
}

void Parser::parse_initial_value(Variable& variable, int element_bytes, std::size_t& offset) {
  std::uint64_t value = 0;
  if (lexer_.peek().kind == TokenKind::word) {
    Token name = expect_word();
    const bool generic = name.text == "generic";
    if (generic) {
      expect('(');
      name = expect_word();
    }
    std::int64_t addend = 0;
    if (accept('+')) addend = expect_integer();
    if (generic) expect(')');
    if (accept('+')) addend = expect_integer();
    if (element_bytes != 8) lexer_.fail("an address in a variable that is not 64 bits wide");
    variable.relocations.push_back({offset, std::string(name.text), addend});
  } else {
    const bool negative = accept('-');
    const Token number = lexer_.next();
    if (number.kind == TokenKind::real) {
      double real = number.single ? std::bit_cast<float>(static_cast<std::uint32_t>(number.value))
                                  : std::bit_cast<double>(number.value);
      if (negative) real = -real;
      value = element_bytes == 8   ? std::bit_cast<std::uint64_t>(real)
              : element_bytes == 4 ? std::bit_cast<std::uint32_t>(static_cast<float>(real))
                                   : 0;
      if (number.single && element_bytes == 4 && !negative) value = number.value;  // keeps the bits of a NaN
    } else if (number.kind == TokenKind::integer) {
      value = negative ? 0 - number.value : number.value;
    } else {
      lexer_.fail("expected a value");
    }
  }
  if (offset + 8 > kMaxVariableBytes) lexer_.fail("too many values");
  variable.initial.resize(offset + static_cast<std::size_t>(element_bytes));
  for (int i = 0; i < element_bytes; ++i) {
    variable.initial[offset + static_cast<std::size_t>(i)] = static_cast<std::uint8_t>(value >> (8 * i));
  }
  offset += static_cast<std::size_t>(element_bytes);
}

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

}  // namespace

Text parse(std::string_view text) { return Parser(text).parse(); }

std::uint64_t function_address(const Text& text, std::string_view name) {
  constexpr std::uint64_t kFirst = std::uint64_t{3} << 48, kStep = 16;
  const auto found = std::find_if(text.functions.begin(), text.functions.end(),
                                  [&](const Function& function) { return function.name == name && !function.entry; });
  if (found == text.functions.end()) return 0;
  return kFirst + kStep * static_cast<std::uint64_t>(found - text.functions.begin());
}

Type type_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Type> types = {
      {"b8", {'b', 8}},           {"b16", {'b', 16}},  {"b32", {'b', 32}},          {"b64", {'b', 64}},
      {"b128", {'b', 128}},       {"u8", {'u', 8}},    {"u16", {'u', 16}},          {"u32", {'u', 32}},
      {"u64", {'u', 64}},         {"s8", {'s', 8}},    {"s16", {'s', 16}},          {"s32", {'s', 32}},
      {"s64", {'s', 64}},         {"f16", {'f', 16}},  {"f32", {'f', 32}},          {"f64", {'f', 64}},
      {"f16x2", {'f', 32, true}}, {"bf16", {'h', 16}}, {"bf16x2", {'h', 32, true}}, {"tf32", {'t', 32}},
      {"pred", {'p', 1}},
  };
  const auto found = types.find(name);
  return found == types.end() ? Type{.kind = 0} : found->second;
}

}  // namespace flash_ladder::emulator::ptx
