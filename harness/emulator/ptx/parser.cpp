#include "emulator/ptx/parser.h"

#include <fmt/format.h>

#include <algorithm>
#include <bit>
#include <charconv>
#include <cstring>
#include <unordered_map>
#include <utility>

#include "emulator/ptx/names.h"
#include "emulator/ptx/parser_state.h"
#include "emulator/ptx_error.h"

namespace flash_ladder::emulator::ptx {
namespace {

// A text with a larger variable than this is damaged.
constexpr std::size_t kMaxVariableBytes = std::size_t{1} << 30;

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

}  // namespace

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

Text parse(std::string_view text) { return Parser(text).parse(); }

std::uint64_t function_address(const Text& text, std::string_view name) {
  constexpr std::uint64_t kFirst = std::uint64_t{3} << 48, kStep = 16;
  const auto found = std::find_if(text.functions.begin(), text.functions.end(),
                                  [&](const Function& function) { return function.name == name && !function.entry; });
  if (found == text.functions.end()) return 0;
  return kFirst + kStep * static_cast<std::uint64_t>(found - text.functions.begin());
}

}  // namespace flash_ladder::emulator::ptx
