// The virtual GPU's global memory: allocations with exact bounds, and for each byte whether it has been written.
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

/// A host-side copy, fill or free was given an invalid address. what() says which one, and what is there.
class MemoryError : public std::runtime_error {
 public:
  using std::runtime_error::runtime_error;
};

/// One allocation. Kept after free(), without its bytes, so that a later access can report what it hits.
struct Allocation {
  Address address = 0;
  std::size_t size = 0;
  bool freed = false;
  bool constant = false;                // a __constant__ variable: only the host may write it
  bool heap = false;                    // allocated with malloc in device code: only kernels may use and free it
  bool poisoned = false;                // some bytes may be uninitialised; then `initialised` has an entry per byte
  std::byte* data = nullptr;            // the bytes, in host memory
  std::uint8_t* initialised = nullptr;  // 0xff if the byte was written, 0 if not; null if never poisoned

  Address end() const { return address + size; }
};

/// Global memory of one device. Host-side calls (allocate, free, read, …) may come from several threads, but not during
/// a launch. The calls for the heap are for kernels.
class Memory {
 public:
  /// `capacity` is the number of bytes that can be allocated at a time.
  explicit Memory(std::size_t capacity = std::size_t{8} << 30);
  ~Memory();
  Memory(const Memory&) = delete;
  Memory& operator=(const Memory&) = delete;

  /// Allocates `size` uninitialised bytes at a multiple of 256. Addresses are never reused, and there is a gap after
  /// each allocation, so an access past the end never hits another one. Returns 0 if less than `size` is left; a size
  /// of 0 gives an allocation in which no byte may be accessed.
  Address allocate(std::size_t size);
  /// Makes host memory visible to kernels at its own address (pinned, mapped and managed memory). It counts as
  /// initialised. free() ends that; the caller still owns the bytes.
  Address adopt(void* host, std::size_t size);
  /// Throws MemoryError unless `address` was returned by allocate() or adopt() and not freed since.
  void free(Address address);

  /// malloc in device code: like allocate(), but from a separate heap. Returns 0 if less than `size` is left in it.
  Address allocate_on_heap(std::size_t size);
  /// free in device code. Throws MemoryError unless `address` was returned by allocate_on_heap() and not freed since.
  void free_on_heap(Address address);
  /// The size of the heap: cudaLimitMallocHeapSize.
  void set_heap_bytes(std::size_t bytes) { heap_bytes_ = bytes; }
  std::size_t heap_bytes() const { return heap_bytes_; }

  /// The name of the allocation in messages: that of a variable, as in the PTX.
  void set_name(Address address, std::string name);
  /// Makes the allocation read-only for kernels.
  void set_constant(Address address);

  /// Copies from and to the host, copies between allocations, and fills. The range must be within one allocation,
  /// otherwise MemoryError. Written bytes count as initialised; copy() copies that state too.
  void write(Address to, const void* from, std::size_t size);
  void read(void* to, Address from, std::size_t size) const;
  void copy(Address to, Address from, std::size_t size);
  void fill(Address to, std::uint8_t value, std::size_t size);
  /// Marks the bytes as uninitialised: a kernel that reads one before writing it gets a finding. Their values stay.
  void poison(Address address, std::size_t size);

  /// Whether the address is in host memory passed to adopt().
  bool is_of_host(Address address) const;
  /// The allocation, perhaps freed, that contains the address; null if there is none.
  const Allocation* find(Address address) const;
  /// All of them, by address, including freed ones.
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
  std::size_t heap_bytes_ = std::size_t{8} << 20;  // as in CUDA
  std::size_t heap_used_ = 0;
  bool heap_was_full_ = false;
  mutable std::recursive_mutex mutex_;
};

}  // namespace flash_ladder::emulator
