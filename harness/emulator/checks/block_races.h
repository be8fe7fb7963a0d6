// Finds races between CTAs that cannot communicate: no CTA may access memory that another one writes. The CTAs run on
// several host threads. The memory accesses of each CTA are examined when it has ended, in the order of CTAs, so that
// the findings are always the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <deque>
#include <functional>
#include <vector>

#include "emulator/checks/global_shadow.h"
#include "emulator/memory.h"

namespace flash_ladder::emulator {

class BlockRaces {
 public:
  /// One granule of memory that two CTAs access, at least one of them by writing.
  struct Race {
    GlobalConflict::Kind kind;
    Address address;
    std::uint64_t cta, other_cta;
    std::int32_t instruction, other_instruction;
  };
  using Report = std::function<void(const Race& race)>;

  BlockRaces(const std::vector<Allocation>& allocations, int granule);

  /// Compares the accesses of a CTA with those of the CTAs before it.
  void add(std::uint64_t cta, const MemoryUse& use, const Report& report);
  /// Calls f(address, size, whether it was written) for everything that was accessed, by address.
  void for_each_used(const std::function<void(Address, std::size_t, bool)>& f) const;

 private:
  // Indices into `users_`, counted from 1 (0: no user), or, with kMixed, where the indices of the granules begin in
  // `mixed_`.
  static constexpr std::uint32_t kMixed = 0x80000000u;
  struct Line {
    std::uint32_t reader = 0, writer = 0;
    std::uint32_t written = 0;  // index into `written_`, from 1
  };
  struct User {
    std::uint64_t cta;
    std::int32_t instruction;
  };
  Line& line_at(Address address);
  std::uint32_t user(std::uint64_t cta, std::int32_t instruction);
  std::uint32_t get(std::uint32_t users, std::size_t granule) const {
    return (users & kMixed) == 0 ? users : mixed_[(users & ~kMixed) + granule];
  }
  void set(std::uint32_t& users, std::size_t granule, std::uint32_t user);

  const std::vector<Allocation>& allocations_;
  const int granule_;
  const std::size_t per_line_;
  std::vector<std::vector<Line>> lines_;  // of each allocation
  std::size_t last_ = 0;                  // allocation
  std::vector<User> users_;
  std::vector<std::uint32_t> last_user_;  // for each instruction: an index into users_, or 0
  std::vector<std::uint32_t> mixed_;
  std::deque<std::array<std::byte, MemoryUse::kLineBytes>> written_;
};

}  // namespace flash_ladder::emulator
