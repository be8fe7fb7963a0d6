// Sets of registers, for the analyses of a kernel's control flow.
#pragma once

#include <cstddef>
#include <cstdint>
#include <vector>

namespace flash_ladder::emulator {

/// A set of the numbers 0 … size - 1.
class Bits {
 public:
  explicit Bits(std::size_t size) : words_((size + 63) / 64) {}
  bool get(int i) const { return (words_[static_cast<std::size_t>(i) / 64] >> (i % 64)) & 1; }
  void set(int i) { words_[static_cast<std::size_t>(i) / 64] |= std::uint64_t{1} << (i % 64); }
  void clear(int i) { words_[static_cast<std::size_t>(i) / 64] &= ~(std::uint64_t{1} << (i % 64)); }
  /// this |= other & ~mask; returns whether that changed anything.
  bool merge(const Bits& other, const Bits* mask) {
    std::uint64_t changed = 0;
    for (std::size_t i = 0; i < words_.size(); ++i) {
      const std::uint64_t more = mask == nullptr ? other.words_[i] : other.words_[i] & ~mask->words_[i];
      changed |= more & ~words_[i];
      words_[i] |= more;
    }
    return changed != 0;
  }
  template <typename F>
  void for_each(F f) const {
    for (std::size_t i = 0; i < words_.size(); ++i) {
      for (std::uint64_t rest = words_[i]; rest != 0; rest &= rest - 1)
        f(static_cast<int>(64 * i) + __builtin_ctzll(rest));
    }
  }

 private:
  std::vector<std::uint64_t> words_;
};

}  // namespace flash_ladder::emulator
