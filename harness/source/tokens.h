// C++ source text as the tokens that a compiler sees: no comments, no white space.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flash_ladder {

struct Token {
  std::string text;
  int line;          // line where it starts, from 1; lines joined by a backslash count as one
  bool after_space;  // white space or a comment precedes it
};

/// Splits source text into names, numbers, string and character literals (including raw strings) and operators.
std::vector<Token> tokens(std::string_view source);

}  // namespace flash_ladder
