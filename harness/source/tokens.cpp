#include "source/tokens.h"

#include <algorithm>
#include <array>
#include <cctype>

namespace flash_ladder {
namespace {

bool is_word(char c) { return std::isalnum(static_cast<unsigned char>(c)) || c == '_' || (c & 0x80); }
bool is_space(char c) { return std::isspace(static_cast<unsigned char>(c)); }

// Reads a text character by character, skipping backslashes at line ends.
class Cursor {
 public:
  explicit Cursor(std::string_view text) : text_(text) { skip_continuations(); }

  bool done() const { return position_ >= text_.size(); }
  int line() const { return line_; }
  // The current character, or 0 at the end.
  char peek() const { return done() ? '\0' : text_[position_]; }
  bool starts_with(std::string_view expected) const {
    Cursor ahead = *this;
    return std::all_of(expected.begin(), expected.end(), [&](char c) { return !ahead.done() && ahead.take() == c; });
  }
  char take() {
    const char c = take_raw();
    skip_continuations();
    return c;
  }
  // The same for raw strings, in which a backslash stands for itself.
  char take_raw() {
    const char c = text_[position_++];
    if (c == '\n') ++line_;
    return c;
  }
  void skip_continuations() {
    for (;;) {
      const std::string_view rest = text_.substr(std::min(position_, text_.size()));
      if (rest.starts_with("\\\n"))
        position_ += 2;
      else if (rest.starts_with("\\\r\n"))
        position_ += 3;
      else
        return;
    }
  }

 private:
  std::string_view text_;
  std::size_t position_ = 0;
  int line_ = 1;
};

// Reads a string or character literal, starting at its opening quote. One that is never closed (which can only be prose
// after #error) ends with its line.
std::string take_literal(Cursor& cursor) {
  const char quote = cursor.peek();
  std::string text(1, cursor.take());
  while (!cursor.done() && cursor.peek() != '\n') {
    const char c = cursor.take();
    text += c;
    if (c == quote) break;
    if (c == '\\' && !cursor.done()) text += cursor.take();
  }
  return text;
}

// Reads a raw string, starting at its opening quote: "delimiter( … )delimiter".
std::string take_raw_literal(Cursor& cursor) {
  std::string text, closing = ")";
  do {
    text += cursor.take_raw();
  } while (!cursor.done() && cursor.peek() != '(');
  closing += text.substr(1) + '"';
  while (!cursor.done() && !text.ends_with(closing)) text += cursor.take_raw();
  cursor.skip_continuations();
  return text;
}

// The operators of more than one character, longest first.
constexpr std::array<std::string_view, 27> kOperators = {"<<=", ">>=", "...", "->*", "<=>", "::", "->", "++", "--",
                                                         "<<",  ">>",  "<=",  ">=",  "==",  "!=", "&&", "||", "+=",
                                                         "-=",  "*=",  "/=",  "%=",  "&=",  "|=", "^=", "##", ".*"};

std::string take_token(Cursor& cursor) {
  const char first = cursor.peek();
  std::string text;
  const bool number = std::isdigit(static_cast<unsigned char>(first)) || (first == '.' && [ahead = cursor]() mutable {
                        return ahead.take(), std::isdigit(ahead.peek());
                      }());
  if (number) {
    // A "pp-number": also 1'000'000, 0x1p-3 and 1e+5.
    while (is_word(cursor.peek()) || cursor.peek() == '.' || cursor.peek() == '\'' ||
           ((cursor.peek() == '+' || cursor.peek() == '-') &&
            std::string_view("eEpP").find(text.back()) != std::string_view::npos))
      text += cursor.take();
    return text;
  }
  if (is_word(first)) {
    while (is_word(cursor.peek())) text += cursor.take();
    // The prefix of a literal is part of it.
    constexpr std::array<std::string_view, 9> kPrefixes = {"L", "u", "U", "u8", "R", "LR", "uR", "UR", "u8R"};
    if (std::find(kPrefixes.begin(), kPrefixes.end(), text) != kPrefixes.end()) {
      if (cursor.peek() == '"' && text.back() == 'R') return text + take_raw_literal(cursor);
      if (cursor.peek() == '"' || cursor.peek() == '\'') return text + take_literal(cursor);
    }
    return text;
  }
  if (first == '"' || first == '\'') return take_literal(cursor);

  const auto* op = std::find_if(kOperators.begin(), kOperators.end(),
                                [&](std::string_view candidate) { return cursor.starts_with(candidate); });
  const std::size_t length = op == kOperators.end() ? 1 : op->size();
  while (text.size() < length) text += cursor.take();
  return text;
}

}  // namespace

std::vector<Token> tokens(std::string_view source) {
  std::vector<Token> result;
  bool after_space = false;
  for (Cursor cursor(source); !cursor.done();) {
    if (cursor.starts_with("//")) {
      while (!cursor.done() && cursor.peek() != '\n') cursor.take();
      after_space = true;
    } else if (cursor.starts_with("/*")) {
      cursor.take(), cursor.take();
      while (!cursor.done() && !cursor.starts_with("*/")) cursor.take();
      if (!cursor.done()) cursor.take(), cursor.take();
      after_space = true;
    } else if (is_space(cursor.peek())) {
      cursor.take();
      after_space = true;
    } else {
      const int line = cursor.line();
      result.push_back({take_token(cursor), line, after_space});
      after_space = false;
    }
  }
  return result;
}

}  // namespace flash_ladder
