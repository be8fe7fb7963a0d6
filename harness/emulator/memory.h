// The virtual GPU's global memory: allocations with exact bounds, and for each byte whether it was ever written.
#pragma once

#include <cstddef>
#include <cstdint>
#include <map>
#include <memory>
#include <mutex>
#include <stdexcept>
#include <string>
#include <vector>

namespace flash_ladder::emulator {

/// An address as kernels see it. Device addresses are never valid host addresses (bit 48 is set), except those of adopt().
using Address = std::uint64_t;

/// A host-side copy, fill or free named an address that it must not. what() says which, and what lies there.
class MemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One allocation. Kept after free(), without its bytes, so that a later access can be told what it hits.
struct Allocation {
  Address address = 0;
  std::size_t size = 0;
  bool freed = false;
  bool constant = false;                // a __constant__ variable: the host's to write, and nobody else's
  bool heap = false;                    // by malloc in device code: the kernels' to use and to free, and nobody else's
  bool poisoned = false;                // some byte may be uninitialised; then `initialised` has an entry per byte
  std::byte* data = nullptr;            // the bytes, in host memory
  std::uint8_t* initialised = nullptr;  // 0xff where the byte was written, 0 where not; null if never poisoned

  Address end() const { return address + size; }
};

/// Global memory of one device. Host-side calls (allocate, free, read, …) may come from several threads; none of them may run
/// during a launch. The calls for the heap are a kernel's.
class Memory {
 public:
  /// `capacity` is how many bytes can be allocated at a time.
  explicit Memory(std::size_t capacity = std::size_t{8} << 30);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Allocates `size` uninitialised bytes at a multiple of 256. Addresses are never used twice, and there is a gap after
  /// each allocation, so an access past the end never hits another one. 0 if less than `size` is left; a size of 0 is an
  /// allocation of which no byte may be touched.
  Address allocate(std::size_t size);
  /// Makes host memory visible to kernels at its own address (pinned, mapped and managed memory). It counts as initialised.
  /// free() ends that; the bytes stay the caller's.
  Address adopt(void* host, std::size_t size);
  /// Throws MemoryError unless `address` was returned by allocate() or adopt() and not freed since.
  void free(Address address);

  /// malloc in device code: like allocate(), but from a heap of its own. 0 if less than `size` is left of that.
  Address allocate_on_heap(std::size_t size);
  /// free in device code. Throws MemoryError unless `address` was returned by allocate_on_heap() and not freed since.
  void free_on_heap(Address address);
  /// How many bytes the heap has: cudaLimitMallocHeapSize.
  void set_heap_bytes(std::size_t bytes) { heap_bytes_ = bytes; }
  std::size_t heap_bytes() const { return heap_bytes_; }

  /// What the allocation is called in messages: the name of a variable, as the PTX has it.
  void set_name(Address address, std::string name);
  /// Says that kernels must not write there.
  void set_constant(Address address);

  /// Copies from and to the host, between allocations, and fills. The range must lie in one allocation: MemoryError if not.
  /// What is written counts as initialised; copy() copies that too.
  void write(Address to, const void* from, std::size_t size);
  void read(void* to, Address from, std::size_t size) const;
  void copy(Address to, Address from, std::size_t size);
  void fill(Address to, std::uint8_t value, std::size_t size);
  /// Forgets that the bytes were written: a kernel that reads one before writing it gets a finding. Their value stays.
  void poison(Address address, std::size_t size);

  /// Whether the address lies in memory of the host: of adopt().
  bool is_of_host(Address address) const;
  /// The allocation, perhaps freed, in which the address lies, or null.
  const Allocation* find(Address address) const;
  /// All of them, by address; the freed ones too.
  std::vector<Allocation> allocations() const;
  /// For a message: "4 bytes after the end of the allocation of 1024 bytes at 0x1000000000000", "in no allocation" …
  std::string describe(Address address) const;

  std::size_t capacity() const { return capacity_; }
  std::size_t used() const { return used_; }

 private:
  struct Entry;
  Entry& range(Address address, std::size_t size, const char* what) const;
  Entry* entry(Address address) const;
  Address add(std::size_t size, bool heap);
  static void release(Entry& entry);
  static void mark(Entry& entry, std::size_t offset, std::size_t size, bool initialised);

  std::map<Address, std::unique_ptr<Entry>> entries_;  // by address
  Address next_;
  std::size_t capacity_;
  std::size_t used_ = 0;
  std::size_t heap_bytes_ = std::size_t{8} << 20;  // as CUDA's
  std::size_t heap_used_ = 0;
  bool heap_was_full_ = false;
  mutable std::recursive_mutex mutex_;
};

}  // namespace flash_ladder::emulator
