#include "emulator/checks/block_races.h"

#include <algorithm>
#include <cstring>

namespace flash_ladder::emulator {

BlockRaces::BlockRaces(const std::vector<Allocation>& allocations, int granule)
    : allocations_(allocations),
      granule_(granule),
      per_line_(MemoryUse::kLineBytes / static_cast<std::size_t>(granule)),
      lines_(allocations.size()) {}

// Lines begin at multiples of their size, which is not required of allocations of the host.
BlockRaces::Line& BlockRaces::line_at(Address address) {
  const auto begins = [&](std::size_t i) { return allocations_[i].address / MemoryUse::kLineBytes; };
  const Address line = address / MemoryUse::kLineBytes;
  if (line < begins(last_) || line - begins(last_) >= lines_[last_].size()) {
    const auto next = std::upper_bound(allocations_.begin(), allocations_.end(), address + MemoryUse::kLineBytes - 1,
                                       [](Address a, const Allocation& allocation) { return a < allocation.address; });
    last_ = static_cast<std::size_t>(std::max<std::ptrdiff_t>(next - allocations_.begin() - 1, 0));
    if (lines_[last_].empty())
      lines_[last_].resize((allocations_[last_].end() - 1) / MemoryUse::kLineBytes - begins(last_) + 1);
  }
  return lines_[last_].at(line - begins(last_));
}

std::uint32_t BlockRaces::user(std::uint64_t cta, std::int32_t instruction) {
  const auto index = static_cast<std::size_t>(instruction);
  if (index >= last_user_.size()) last_user_.resize(index + 1);
  std::uint32_t& last = last_user_[index];
  if (last == 0 || users_[last - 1].cta != cta) {
    users_.push_back({cta, instruction});
    last = static_cast<std::uint32_t>(users_.size());
  }
  return last;
}

void BlockRaces::set(std::uint32_t& users, std::size_t granule, std::uint32_t user) {
  if (get(users, granule) == user) return;
  if ((users & kMixed) == 0) {
    const auto begin = static_cast<std::uint32_t>(mixed_.size());
    mixed_.resize(begin + per_line_, users);
    users = kMixed | begin;
  }
  mixed_[(users & ~kMixed) + granule] = user;
}

void BlockRaces::for_each_used(const std::function<void(Address, std::size_t, bool)>& f) const {
  for (std::size_t i = 0; i < lines_.size(); ++i) {
    for (std::size_t k = 0; k < lines_[i].size(); ++k) {
      const Line& line = lines_[i][k];
      const Address address = (allocations_[i].address / MemoryUse::kLineBytes + k) * MemoryUse::kLineBytes;
      if (line.reader == 0 && line.writer == 0) continue;
      if (((line.reader | line.writer) & kMixed) == 0) {
        f(address, MemoryUse::kLineBytes, line.writer != 0);
        continue;
      }
      for (std::size_t granule = 0; granule < per_line_; ++granule) {
        const bool writes = get(line.writer, granule) != 0;
        if (writes || get(line.reader, granule) != 0)
          f(address + granule * static_cast<std::size_t>(granule_), static_cast<std::size_t>(granule_), writes);
      }
    }
  }
}

void BlockRaces::add(std::uint64_t cta, const MemoryUse& use, const Report& report) {
  for (const MemoryUse::Line& mine : use.lines) {
    Line& line = line_at(mine.address);
    if (mine.write == MemoryUse::kNothing && mine.read >= 0 && line.writer == 0 && (line.reader & kMixed) == 0) {
      if (line.reader == 0) line.reader = user(cta, mine.read);
      continue;
    }
    const bool unused = line.reader == 0 && line.writer == 0;
    if (mine.write != MemoryUse::kNothing && line.written == 0) {
      written_.emplace_back();
      line.written = static_cast<std::uint32_t>(written_.size());
    }
    if (mine.write >= 0 && mine.read == MemoryUse::kNothing && unused) {
      line.writer = user(cta, mine.write);
      std::memcpy(written_[line.written - 1].data(), use.written.data() + mine.written, MemoryUse::kLineBytes);
      continue;
    }
    if (mine.write == MemoryUse::kMixed && mine.read == MemoryUse::kNothing && unused) {
      line.writer = kMixed | static_cast<std::uint32_t>(mixed_.size());
      for (std::size_t granule = 0; granule < per_line_; ++granule) {
        const std::int32_t write = use.mixed[mine.writes + granule];
        mixed_.push_back(write == MemoryUse::kNothing ? 0 : user(cta, write));
      }
      std::memcpy(written_[line.written - 1].data(), use.written.data() + mine.written, MemoryUse::kLineBytes);
      continue;
    }
    for (std::size_t granule = 0; granule < per_line_; ++granule) {
      const auto by = [&](std::int32_t uniform, std::uint32_t mixed) {
        return uniform == MemoryUse::kMixed ? use.mixed[mixed + granule] : uniform;
      };
      const std::int32_t write = by(mine.write, mine.writes), read = by(mine.read, mine.reads);
      const auto conflict = [&](GlobalConflict::Kind kind, std::int32_t instruction, std::uint32_t other) {
        const User& earlier = users_[other - 1];
        report({.kind = kind,
                .address = mine.address + granule * static_cast<std::size_t>(granule_),
                .cta = cta,
                .other_cta = earlier.cta,
                .instruction = instruction,
                .other_instruction = earlier.instruction});
      };
      const std::uint32_t writer = get(line.writer, granule), reader = get(line.reader, granule);
      const bool reads_written = read != MemoryUse::kNothing && writer != 0;
      if (reads_written) conflict(GlobalConflict::Kind::read_after_write, read, writer);
      if (write != MemoryUse::kNothing) {
        std::byte* const before = written_[line.written - 1].data() + granule * static_cast<std::size_t>(granule_);
        const std::byte* const now = use.written.data() + mine.written + granule * static_cast<std::size_t>(granule_);
        // Two CTAs that write the same value do not conflict. If the value that one wrote depends on the other's write,
        // whether it is the same is a matter of luck; that is already a finding, and with different luck the same
        // finding would count once more.
        if (writer != 0 && !reads_written && std::memcmp(before, now, static_cast<std::size_t>(granule_)) != 0)
          conflict(GlobalConflict::Kind::write_after_write, write, writer);
        if (reader != 0) conflict(GlobalConflict::Kind::write_after_read, write, reader);
        std::memcpy(before, now, static_cast<std::size_t>(granule_));
        set(line.writer, granule, user(cta, write));
      }
      if (read != MemoryUse::kNothing && reader == 0) set(line.reader, granule, user(cta, read));
    }
  }
}

}  // namespace flash_ladder::emulator
