#include "emulator/ptx/source_lines.h"

namespace flash_ladder::emulator::ptx {

int SourceLines::intern(int file, int line, int parent) {
  const auto [entry, is_new] = index_.try_emplace({file, line, parent}, static_cast<int>(positions_.size()));
  if (is_new) {
    std::vector<NumberedLine> position = {{file, line}};
    if (parent != 0) position.insert(position.end(), positions_[parent].begin(), positions_[parent].end());
    positions_.push_back(std::move(position));
  }
  return entry->second;
}

int SourceLines::locate(const Location& location, const Location* inlined_at) {
  if (location.line == 0) return 0;  // code of the compiler's own
  int parent = 0;
  if (inlined_at != nullptr) {
    const auto known = latest_.find(*inlined_at);
    parent = known != latest_.end() ? known->second : intern(inlined_at->file, inlined_at->line, 0);
    // A damaged text can make a chain of any length.
    if (positions_[parent].size() > 64) parent = 0;
  }
  return latest_[location] = intern(location.file, location.line, parent);
}

}  // namespace flash_ladder::emulator::ptx
