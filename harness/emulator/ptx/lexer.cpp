#include "emulator/ptx/lexer.h"

#include <fmt/format.h>

#include <bit>
#include <cctype>
#include <charconv>

#include "emulator/ptx_error.h"

namespace flash_ladder::emulator::ptx {
namespace {

bool is_digit(char c) { return c >= '0' && c <= '9'; }
bool is_letter(char c) { return (c >= 'a' && c <= 'z') || (c >= 'A' && c <= 'Z'); }
bool starts_word(char c) { return is_letter(c) || c == '_' || c == '$' || c == '%' || c == '.'; }
bool continues_word(char c) { return starts_word(c) || is_digit(c); }

}  // namespace

Lexer::Lexer(std::string_view text) : text_(text) { advance(); }

Token Lexer::next() {
  const Token token = token_;
  advance();
  return token;
}

void Lexer::fail(const std::string& message) const {
  throw PtxError(fmt::format("PTX line {}: {}", token_.line, message), token_.line);
}

void Lexer::skip_space() {
  while (at_ < text_.size()) {
    const char c = text_[at_];
    if (c == '\n') {
      ++line_;
      ++at_;
    } else if (c == ' ' || c == '\t' || c == '\r' || c == '\f' || c == '\v' || c == '\0') {
      ++at_;
    } else if (text_.substr(at_, 2) == "//") {
      while (at_ < text_.size() && text_[at_] != '\n') ++at_;
    } else if (text_.substr(at_, 2) == "/*") {
      const std::size_t end = text_.find("*/", at_ + 2);
      token_ = {.line = line_};
      if (end == std::string_view::npos) fail("a comment that does not end");
      for (; at_ < end + 2; ++at_) line_ += text_[at_] == '\n';
    } else {
      return;
    }
  }
}

void Lexer::advance() {
  skip_space();
  token_start_ = at_;
  token_ = {.line = line_};
  if (at_ == text_.size()) return;
  const char c = text_[at_];
  if (is_digit(c)) {
    scan_number();
  } else if (starts_word(c)) {
    token_.kind = TokenKind::word;
    while (at_ < text_.size()) {
      if (continues_word(text_[at_])) {
        ++at_;
      } else if (text_.substr(at_, 2) == "::") {  // shared::cta
        at_ += 2;
      } else {
        break;
      }
    }
    token_.text = text_.substr(token_start_, at_ - token_start_);
  } else if (c == '"') {
    token_.kind = TokenKind::string;
    for (++at_; at_ < text_.size() && text_[at_] != '"' && text_[at_] != '\n'; ++at_) {
    }
    if (at_ == text_.size() || text_[at_] != '"') fail("a string that does not end");
    token_.text = text_.substr(token_start_ + 1, at_ - token_start_ - 1);
    ++at_;
  } else if (std::string_view(",;:{}[]()<>+-!|@=*").find(c) != std::string_view::npos) {
    token_.kind = TokenKind::symbol;
    token_.text = text_.substr(at_++, 1);
  } else {
    fail(fmt::format("unexpected character with code {}", static_cast<unsigned char>(c)));
  }
}

// PTX ISA, "Constants": decimal, 0x…, 0b…, octal 0…, each with an optional U; 0f and 0d with the bits of a float or double;
// and decimal floating point.
void Lexer::scan_number() {
  std::size_t end = at_;
  while (end < text_.size() && (is_digit(text_[end]) || is_letter(text_[end]) || text_[end] == '.' ||
                                ((text_[end] == '+' || text_[end] == '-') && (text_[end - 1] | 0x20) == 'e' &&
                                 text_.substr(at_, 2) != "0x" && text_.substr(at_, 2) != "0X"))) {
    ++end;
  }
  std::string_view digits = text_.substr(at_, end - at_);
  token_.text = digits;
  at_ = end;
  const auto parse = [&](std::string_view part, int base) {
    const auto [stop, error] = std::from_chars(part.data(), part.data() + part.size(), token_.value, base);
    if (error != std::errc() || stop != part.data() + part.size() || part.empty()) {
      fail(fmt::format("malformed number {}", token_.text));
    }
  };
  const char second = digits.size() > 1 ? static_cast<char>(digits[1] | 0x20) : '\0';
  if (digits[0] == '0' && (second == 'f' || second == 'd')) {
    const std::size_t expected = second == 'f' ? 8 : 16;
    if (digits.size() != expected + 2) fail(fmt::format("malformed number {}", digits));
    token_.kind = TokenKind::real;
    token_.single = second == 'f';
    parse(digits.substr(2), 16);
    return;
  }
  token_.kind = TokenKind::integer;
  if (second != 'x' && digits.find_first_of(".eE") != std::string_view::npos) {
    double value = 0;
    const auto [stop, error] = std::from_chars(digits.data(), digits.data() + digits.size(), value);
    if (error != std::errc() || stop != digits.data() + digits.size()) fail(fmt::format("malformed number {}", digits));
    token_.kind = TokenKind::real;
    token_.value = std::bit_cast<std::uint64_t>(value);
    return;
  }
  if (digits.back() == 'U') digits.remove_suffix(1);
  if (second == 'x') {
    parse(digits.substr(2), 16);
  } else if (second == 'b') {
    parse(digits.substr(2), 2);
  } else if (digits.size() > 1 && digits[0] == '0') {
    parse(digits.substr(1), 8);
  } else {
    parse(digits, 10);
  }
}

void Lexer::skip_block() {
  int depth = 0;
  do {
    if (token_.kind == TokenKind::end) fail("a block that does not end");
    if (token_.is('{')) ++depth;
    if (token_.is('}')) --depth;
    advance();
  } while (depth > 0);
}

}  // namespace flash_ladder::emulator::ptx
