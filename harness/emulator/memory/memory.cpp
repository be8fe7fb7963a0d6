#include "emulator/memory.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstdlib>
#include <cstring>
#include <new>
#include <utility>

#include "emulator/function_name.h"

namespace flash_ladder::emulator {
namespace {

// Bit 48 is set: no current 64-bit processor gives a program such an address, so a host that reads device memory
// faults, as it would with a GPU.
constexpr Address kFirstAddress = Address{1} << 48;
constexpr std::size_t kAlignment = 256;
constexpr std::size_t kGap = 4096;

struct Free {
  void operator()(void* bytes) const { std::free(bytes); }
};

// calloc, because the system provides large blocks of zeros lazily.
std::uint8_t* zeros(std::size_t size) {
  return static_cast<std::uint8_t*>(std::calloc(std::max<std::size_t>(size, 1), 1));
}

}  // namespace

struct Memory::Entry {
  Allocation allocation;
  std::unique_ptr<std::byte, Free> bytes;  // null if adopted or freed
  std::unique_ptr<std::uint8_t, Free> initialised;
  bool adopted = false;
  std::string name = {};
};

Memory::Memory(std::size_t capacity) : next_(kFirstAddress), capacity_(capacity) {}

Memory::~Memory() = default;

Address Memory::allocate(std::size_t size) {
  const std::lock_guard lock(mutex_);
  if (size > capacity_ - used_) return 0;
  const Address address = add(size, false);
  if (address != 0) used_ += size;
  return address;
}

Address Memory::allocate_on_heap(std::size_t size) {
  const std::lock_guard lock(mutex_);
  const Address address = size > heap_bytes_ - std::min(heap_used_, heap_bytes_) ? 0 : add(size, true);
  if (address != 0) heap_used_ += size;
  heap_was_full_ |= address == 0;
  return address;
}

Address Memory::add(std::size_t size, bool heap) {
  auto entry = std::make_unique<Entry>();
  // Aligned, so that host loops over it are fast.
  entry->bytes.reset(reinterpret_cast<std::byte*>(zeros(size)));
  entry->initialised.reset(zeros(size));
  if (entry->bytes == nullptr || entry->initialised == nullptr) return 0;
  Allocation& allocation = entry->allocation;
  allocation.address = next_;
  allocation.size = size;
  allocation.poisoned = size > 0;
  allocation.heap = heap;
  allocation.data = entry->bytes.get();
  allocation.initialised = entry->initialised.get();
  next_ += (size + kGap + kAlignment - 1) / kAlignment * kAlignment;
  const Address address = allocation.address;
  entries_[address] = std::move(entry);
  return address;
}

Address Memory::adopt(void* host, std::size_t size) {
  const std::lock_guard lock(mutex_);
  auto entry = std::make_unique<Entry>();
  entry->allocation.address = reinterpret_cast<Address>(host);
  entry->allocation.size = size;
  entry->allocation.data = static_cast<std::byte*>(host);
  entry->adopted = true;
  const Address address = entry->allocation.address;
  entries_[address] = std::move(entry);
  return address;
}

void Memory::free(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(address);
  if (found == entries_.end()) {
    throw MemoryError(fmt::format("free of {:#x}, which is {}", address, describe(address)));
  }
  Entry& entry = *found->second;
  if (entry.adopted) {  // the host may reuse the address
    entries_.erase(found);
    return;
  }
  if (entry.allocation.heap) {
    throw MemoryError(
        fmt::format("free of {:#x}, which a kernel allocated with malloc: only a kernel can free it", address));
  }
  if (entry.allocation.freed) throw MemoryError(fmt::format("free of {:#x}, which was freed before", address));
  used_ -= entry.allocation.size;
  release(entry);
}

void Memory::free_on_heap(Address address) {
  const std::lock_guard lock(mutex_);
  const auto found = entries_.find(address);
  if (found == entries_.end() || !found->second->allocation.heap) {
    throw MemoryError(
        fmt::format("free of {:#x}, which malloc has not returned: it is {}", address, describe(address)));
  }
  Entry& entry = *found->second;
  if (entry.allocation.freed) throw MemoryError(fmt::format("free of {:#x}, which was freed before", address));
  heap_used_ -= entry.allocation.size;
  release(entry);
}

void Memory::release(Entry& entry) {
  entry.allocation.freed = true;
  entry.allocation.data = nullptr;
  entry.allocation.initialised = nullptr;
  entry.bytes.reset();
  entry.initialised.reset();
}

void Memory::set_name(Address address, std::string name) {
  const std::lock_guard lock(mutex_);
  entries_.at(address)->name = std::move(name);
}

void Memory::set_constant(Address address) {
  const std::lock_guard lock(mutex_);
  entries_.at(address)->allocation.constant = true;
}

Memory::Entry* Memory::entry(Address address) const {
  auto next = entries_.upper_bound(address);
  if (next == entries_.begin()) return nullptr;
  Entry& found = *std::prev(next)->second;
  const Allocation& allocation = found.allocation;
  const bool inside = address < allocation.end() || (allocation.size == 0 && address == allocation.address);
  return inside ? &found : nullptr;
}

Memory::Entry& Memory::range(Address address, std::size_t size, const char* what) const {
  Entry* found = entry(address);
  if (found == nullptr || found->allocation.freed || size > found->allocation.end() - address) {
    throw MemoryError(fmt::format("{} of {} bytes at {:#x}, which is {}", what, size, address, describe(address)));
  }
  if (found->allocation.heap) {
    throw MemoryError(
        fmt::format("{} of {} bytes at {:#x}, which a kernel allocated with malloc: the host has no access to that "
                    "memory. "
                    "Let a kernel copy it to memory from cudaMalloc",
                    what, size, address));
  }
  return *found;
}

void Memory::mark(Entry& entry, std::size_t offset, std::size_t size, bool initialised) {
  Allocation& allocation = entry.allocation;
  if (entry.adopted || size == 0) return;
  if (initialised && size == allocation.size) {  // all of it: from now on no lookup is needed
    allocation.poisoned = false;
    return;
  }
  if (!allocation.poisoned) {
    if (initialised) return;
    std::memset(allocation.initialised, 0xff, allocation.size);
    allocation.poisoned = true;
  }
  std::memset(allocation.initialised + offset, initialised ? 0xff : 0, size);
}

void Memory::write(Address to, const void* from, std::size_t size) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = range(to, size, "a copy");
  std::memcpy(entry.allocation.data + (to - entry.allocation.address), from, size);
  mark(entry, to - entry.allocation.address, size, true);
}

void Memory::read(void* to, Address from, std::size_t size) const {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  const Entry& entry = range(from, size, "a copy");
  std::memcpy(to, entry.allocation.data + (from - entry.allocation.address), size);
}

void Memory::copy(Address to, Address from, std::size_t size) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  const Entry& source = range(from, size, "a copy");
  Entry& target = range(to, size, "a copy");
  const std::size_t source_offset = from - source.allocation.address, target_offset = to - target.allocation.address;
  std::memmove(target.allocation.data + target_offset, source.allocation.data + source_offset, size);
  if (!source.allocation.poisoned) {
    mark(target, target_offset, size, true);
    return;
  }
  // Copies byte by byte which bytes are initialised.
  if (!target.adopted) {
    mark(target, target_offset, size, false);
    std::memmove(target.allocation.initialised + target_offset, source.allocation.initialised + source_offset, size);
  }
}

void Memory::fill(Address to, std::uint8_t value, std::size_t size) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = range(to, size, "a fill");
  std::memset(entry.allocation.data + (to - entry.allocation.address), value, size);
  mark(entry, to - entry.allocation.address, size, true);
}

void Memory::poison(Address address, std::size_t size) {
  if (size == 0) return;
  const std::lock_guard lock(mutex_);
  Entry& entry = range(address, size, "a poisoning");
  mark(entry, address - entry.allocation.address, size, false);
}

bool Memory::is_of_host(Address address) const {
  const std::lock_guard lock(mutex_);
  const Entry* found = entry(address);
  return found != nullptr && found->adopted;
}

const Allocation* Memory::find(Address address) const {
  const std::lock_guard lock(mutex_);
  const Entry* found = entry(address);
  return found == nullptr ? nullptr : &found->allocation;
}

std::vector<Allocation> Memory::allocations() const {
  const std::lock_guard lock(mutex_);
  std::vector<Allocation> all;
  all.reserve(entries_.size());
  for (const auto& [address, entry] : entries_) all.push_back(entry->allocation);
  return all;
}

std::string Memory::describe(Address address) const {
  const std::lock_guard lock(mutex_);
  const auto name = [](const Entry& entry) {
    const Allocation& allocation = entry.allocation;
    if (!entry.name.empty()) {
      return fmt::format("`{}`, {} bytes at {:#x}", variable_name(entry.name), allocation.size, allocation.address);
    }
    return fmt::format("{} of {} bytes{} at {:#x}", allocation.freed ? "the freed allocation" : "the allocation",
                       allocation.size, allocation.heap ? " by malloc in a kernel" : "", allocation.address);
  };
  const auto next = entries_.upper_bound(address);
  if (next != entries_.begin()) {
    const Entry& entry_before = *std::prev(next)->second;
    const Allocation& before = entry_before.allocation;
    if (address < before.end()) return fmt::format("byte {} of {}", address - before.address, name(entry_before));
    if (address - before.end() < (Address{1} << 20)) {
      return fmt::format("{} bytes after the end of {}", address - before.end(), name(entry_before));
    }
  }
  if (next != entries_.end() && next->first - address < (Address{1} << 20)) {
    return fmt::format("{} bytes before {}", next->first - address, name(*next->second));
  }
  if (address == 0 && heap_was_full_) {
    return fmt::format(
        "the null pointer. malloc returned one in a kernel: the {} bytes of its heap were not enough "
        "(cudaDeviceSetLimit(cudaLimitMallocHeapSize, …))",
        heap_bytes_);
  }
  return address == 0 ? "the null pointer" : "in no allocation";
}

}  // namespace flash_ladder::emulator
