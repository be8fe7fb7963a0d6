// The source positions of instructions, from .loc directives.
#pragma once

#include <map>
#include <tuple>
#include <utility>
#include <vector>

namespace flash_ladder::emulator::ptx {

/// Resolves the .loc directives of one function. `.loc 3 76 22, function_name X, inlined_at 1 74 5` names only the
/// innermost call; if 1 74 5 is itself inlined, the .loc for 1 74 5 says so, and the compiler writes that one first.
class SourceLines {
 public:
  SourceLines() { positions_.emplace_back(); }

  struct Location {
    int file, line, column;
    auto operator<=>(const Location&) const = default;
  };

  /// Handles a .loc and returns the index of its position. `inlined_at` is null if the directive has none.
  int locate(const Location& location, const Location* inlined_at);
  /// A line of a file, identified by number, because the .file directives may come at the end of the text.
  struct NumberedLine {
    int file, line;
  };
  /// All positions so far, innermost line first; [0] is "unknown".
  std::vector<std::vector<NumberedLine>> take() { return std::move(positions_); }

 private:
  int intern(int file, int line, int parent);

  std::vector<std::vector<NumberedLine>> positions_;
  std::map<std::tuple<int, int, int>, int> index_;  // (file, line, parent) → position
  std::map<Location, int> latest_;                  // the last .loc for a location → its position
};

}  // namespace flash_ladder::emulator::ptx
