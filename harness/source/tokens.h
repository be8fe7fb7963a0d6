// C++ source text as the tokens that a compiler sees: no comments, no white space.
#pragma once

#include <string>
#include <string_view>
#include <vector>

namespace flash_ladder {

struct Token {
  std::string text;
  int line;  // where it starts, from 1; lines that end in a backslash and the ones they continue on count as one
  bool after_space;  // white space or a comment stands between it and the token before it
};

/// Splits source text into names, numbers, string and character literals (raw strings among them) and operators.
std::vector<Token> tokens(std::string_view source);

}  // namespace flash_ladder
