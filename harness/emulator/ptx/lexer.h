// PTX text as tokens. PTX ISA, chapter "Syntax".
#pragma once

#include <cstdint>
#include <string>
#include <string_view>

namespace flash_ladder::emulator::ptx {

enum class TokenKind : std::uint8_t {
  end,
  word,     // identifiers, directives, opcodes with their modifiers: "%r1", ".reg", "ld.param.u64", "$L__BB0_1"
  integer,  // value
  real,     // the bits of a double
  string,   // text without the quotes
  symbol,   // one character: , ; : { } [ ] ( ) < > + - ! | @ = *
};

struct Token {
  TokenKind kind = TokenKind::end;
  std::string_view text = {};
  int line = 1;
  std::uint64_t value = 0;  // integer: two's complement; real: bits of the double, or of the float for 0f…
  bool single = false;      // a real written as 0f…

  bool is(char symbol) const { return kind == TokenKind::symbol && text[0] == symbol; }
  bool is(std::string_view word) const { return kind == TokenKind::word && text == word; }
};

class Lexer {
 public:
  explicit Lexer(std::string_view text);

  const Token& peek() const { return token_; }
  Token next();  // returns peek() and advances
  /// The text from one position to another, for messages.
  std::size_t position() const { return token_start_; }
  std::string_view text() const { return text_; }
  /// Skips a block whose opening brace is peek(); its contents are ignored, except for strings and comments.
  void skip_block();
  [[noreturn]] void fail(const std::string& message) const;

 private:
  void advance();
  void skip_space();
  void scan_number();

  std::string_view text_;
  std::size_t at_ = 0;
  std::size_t token_start_ = 0;
  int line_ = 1;
  Token token_;
};

}  // namespace flash_ladder::emulator::ptx
