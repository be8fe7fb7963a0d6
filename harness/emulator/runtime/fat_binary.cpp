#include "emulator/runtime/fat_binary.h"

#include <elf.h>
#include <fatbinary_section.h>

#include <algorithm>
#include <charconv>
#include <cstddef>
#include <cstdint>
#include <cstring>
#include <fstream>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <system_error>
#include <vector>

namespace flash_ladder::emulator::runtime {
namespace {

// The container format. NVIDIA does not document it; these are the members that nvcc 12 and 13 write.
constexpr std::uint32_t kContainerMagic = 0xBA55ED50;
struct ContainerHeader {
  std::uint32_t magic;
  std::uint16_t version;
  std::uint16_t header_bytes;
  std::uint64_t entries_bytes;  // all entries, each a header and its contents
};

constexpr std::uint16_t kKindPtx = 1;
constexpr std::uint16_t kKindMachineCode = 2;
constexpr std::uint64_t kCompressed = 0x2000 | 0x8000;  // with LZ4 or with Zstandard
struct EntryHeader {
  std::uint16_t kind;
  std::uint16_t version;
  std::uint32_t header_bytes;
  std::uint64_t contents_bytes;
  std::uint32_t compressed_bytes;
  std::uint32_t options_offset;
  std::uint16_t minor_version;
  std::uint16_t major_version;
  std::uint32_t architecture;  // 80 for compute_80 and for sm_80
  std::uint32_t name_offset;
  std::uint32_t name_bytes;
  std::uint64_t flags;
  std::uint64_t reserved;
  std::uint64_t uncompressed_bytes;
};
static_assert(sizeof(ContainerHeader) == 16 && sizeof(EntryHeader) == 64);

struct Entry {
  std::uint16_t kind;
  int architecture;
  bool compressed;
  const std::byte* contents;
  std::size_t size;
};

constexpr const char* kRemedy =
    "Compile with nvcc -lineinfo --no-compress -gencode arch=compute_80,code=compute_80, as scripts/emulate does.";

// No alignment is guaranteed.
template <typename T>
T load(const std::byte* address) {
  T value;
  std::memcpy(&value, address, sizeof value);
  return value;
}

/// How many bytes can be read from here on in this process's memory. Nothing else bounds a container whose length field
/// is damaged.
std::uint64_t readable_bytes(const std::byte* from) {
  const auto address = reinterpret_cast<std::uintptr_t>(from);
  std::ifstream maps("/proc/self/maps");
  if (!maps) return std::numeric_limits<std::uint64_t>::max();
  std::uintptr_t end = address;  // of the adjacent mappings from `from` on, in order of address
  for (std::string line; std::getline(maps, line);) {
    std::uintptr_t begin = 0, behind = 0;  // "7f5c0a000000-7f5c0a021000 r-xp …"
    const char* const line_end = line.data() + line.size();
    const auto first = std::from_chars(line.data(), line_end, begin, 16);
    if (first.ec != std::errc() || first.ptr == line_end || *first.ptr != '-') continue;
    const auto second = std::from_chars(first.ptr + 1, line_end, behind, 16);
    if (second.ec != std::errc()) continue;
    const bool readable = std::string_view(second.ptr, line_end - second.ptr).starts_with(" r");
    if (begin <= end && end < behind && readable) end = behind;
  }
  return end - address;
}

[[noreturn]] void fail_damaged(const std::string& how) {
  throw std::runtime_error("The program's device code is damaged: " + how + ". Compile the program again.");
}

std::vector<Entry> entries(const void* fat_binary) {
  const auto wrapper = load<__fatBinC_Wrapper_t>(static_cast<const std::byte*>(fat_binary));
  if (wrapper.magic != FATBINC_MAGIC) throw std::runtime_error("The program's device code is not in nvcc's format.");
  if (wrapper.version != FATBINC_VERSION) {
    throw std::runtime_error(
        "The program has relocatable device code (nvcc -rdc=true or -dc), which the virtual GPU does not link. Compile it "
        "without that option, with all device code that a kernel uses in the kernel's own file.");
  }
  const auto* container = reinterpret_cast<const std::byte*>(wrapper.data);
  const std::uint64_t readable = readable_bytes(container);
  if (readable < sizeof(ContainerHeader)) fail_damaged("its container is not in memory");
  const auto header = load<ContainerHeader>(container);
  if (header.magic != kContainerMagic) throw std::runtime_error("The program's device code is not in nvcc's format.");

  if (header.header_bytes < sizeof(ContainerHeader) || header.header_bytes > readable ||
      header.entries_bytes > readable - header.header_bytes) {
    fail_damaged("its container has " + std::to_string(header.entries_bytes) + " bytes, according to its header");
  }

  std::vector<Entry> all;
  const std::byte* address = container + header.header_bytes;
  const std::byte* const end = address + header.entries_bytes;
  for (std::uint64_t left; (left = static_cast<std::uint64_t>(end - address)) >= sizeof(EntryHeader);) {
    const auto entry = load<EntryHeader>(address);
    if (entry.header_bytes < sizeof(EntryHeader) || entry.header_bytes > left ||
        entry.contents_bytes > left - entry.header_bytes) {
      fail_damaged("entry " + std::to_string(all.size()) + " of its container does not end inside it");
    }
    all.push_back({.kind = entry.kind,
                   .architecture = static_cast<int>(entry.architecture),
                   .compressed = (entry.flags & kCompressed) != 0 || entry.uncompressed_bytes != 0,
                   .contents = address + entry.header_bytes,
                   .size = entry.contents_bytes});
    address += entry.header_bytes + entry.contents_bytes;
  }
  return all;
}

}  // namespace

std::string_view device_ptx(const void* fat_binary, int sm) {
  std::string found;
  const std::vector<Entry> all = entries(fat_binary);
  const auto has = [&](int architecture) {
    return std::any_of(all.begin(), all.end(), [&](const Entry& entry) {
      return entry.kind == kKindPtx && entry.architecture == architecture;
    });
  };
  const int wanted = sm >= 90 && !has(80) && has(90) ? 90 : 80;
  for (const Entry& entry : all) {
    const bool is_ptx = entry.kind == kKindPtx;
    if (is_ptx && entry.architecture == wanted) {
      if (entry.compressed) throw std::runtime_error(std::string("The program's PTX is compressed. ") + kRemedy);
      const auto* text = reinterpret_cast<const char*>(entry.contents);
      return {text, strnlen(text, entry.size)};  // padded with zeros to a multiple of 8 bytes
    }
    found +=
        (found.empty() ? "" : ", ") + std::string(is_ptx ? "compute_" : "sm_") + std::to_string(entry.architecture);
  }
  throw std::runtime_error("The virtual GPU, as an sm_" + std::to_string(sm) + ", runs PTX for compute_80" +
                           (sm >= 90 ? " or compute_90a" : "") + ", but the program has only code for " +
                           (found.empty() ? std::string("no architecture") : found) + ". " + kRemedy);
}

std::map<std::string, int> register_counts(const void* fat_binary, int sm) {
  // An sm runs the code for its own major version with the highest minor version that does not exceed its own.
  const Entry* code = nullptr;
  const std::vector<Entry> all = entries(fat_binary);
  for (const Entry& entry : all) {
    const bool runs = entry.architecture / 10 == sm / 10 && entry.architecture <= sm;
    if (entry.kind != kKindMachineCode || entry.compressed || !runs) continue;
    if (code == nullptr || entry.architecture > code->architecture) code = &entry;
  }
  if (code == nullptr || code->size < sizeof(Elf64_Ehdr)) return {};

  // Machine code is an ELF file. A kernel is a section ".text.<mangled name>", whose sh_info contains the register
  // count in its upper eight bits; for sm_90 the count is only in the section .nv.info.
  const auto header = load<Elf64_Ehdr>(code->contents);
  if (std::memcmp(header.e_ident, ELFMAG, SELFMAG) != 0 || header.e_shentsize != sizeof(Elf64_Shdr)) return {};
  const auto fits = [&](std::uint64_t offset, std::uint64_t bytes) {
    return offset <= code->size && bytes <= code->size - offset;
  };
  if (!fits(header.e_shoff, std::uint64_t{header.e_shnum} * sizeof(Elf64_Shdr)) ||
      header.e_shstrndx >= header.e_shnum) {
    return {};
  }
  const auto section = [&](int index) {
    return load<Elf64_Shdr>(code->contents + header.e_shoff + index * sizeof(Elf64_Shdr));
  };
  const auto string_in = [&](const Elf64_Shdr& strings, std::uint32_t offset) -> std::string_view {
    if (offset >= strings.sh_size || !fits(strings.sh_offset, strings.sh_size)) return {};
    const auto* text = reinterpret_cast<const char*>(code->contents + strings.sh_offset + offset);
    return {text, strnlen(text, strings.sh_size - offset)};
  };
  const Elf64_Shdr names = section(header.e_shstrndx);

  std::map<std::string, int> registers;
  constexpr std::string_view kPrefix = ".text.";
  for (int i = 0; i < header.e_shnum; ++i) {
    const Elf64_Shdr shdr = section(i);
    const std::string_view name = string_in(names, shdr.sh_name);
    if (name.starts_with(kPrefix) && shdr.sh_info >> 24 != 0) {
      registers[std::string(name.substr(kPrefix.size()))] = static_cast<int>(shdr.sh_info >> 24);
    }
    if (name != ".nv.info" || !fits(shdr.sh_offset, shdr.sh_size) || shdr.sh_link >= header.e_shnum) continue;
    const Elf64_Shdr symbols = section(static_cast<int>(shdr.sh_link));
    if (symbols.sh_link >= header.e_shnum || !fits(symbols.sh_offset, symbols.sh_size)) continue;
    const Elf64_Shdr symbol_names = section(static_cast<int>(symbols.sh_link));
    // Attributes: a format, a number and, for format 4, a size followed by that many bytes.
    constexpr unsigned char kSized = 4, kRegisterCount = 0x2f;
    struct Attribute {
      unsigned char format, number;
      std::uint16_t size;
    };
    struct RegisterCount {
      std::uint32_t symbol, registers;
    };
    const std::byte* const info = code->contents + shdr.sh_offset;
    for (std::uint64_t at = 0; at + sizeof(Attribute) <= shdr.sh_size;) {
      const auto attribute = load<Attribute>(info + at);
      at += sizeof(Attribute);
      if (attribute.format != kSized) continue;
      if (attribute.size > shdr.sh_size - at) break;
      if (attribute.number == kRegisterCount && attribute.size == sizeof(RegisterCount)) {
        const auto count = load<RegisterCount>(info + at);
        if (count.symbol < symbols.sh_size / sizeof(Elf64_Sym)) {
          const auto symbol = load<Elf64_Sym>(code->contents + symbols.sh_offset + count.symbol * sizeof(Elf64_Sym));
          const std::string_view kernel = string_in(symbol_names, symbol.st_name);
          if (!kernel.empty()) registers[std::string(kernel)] = static_cast<int>(count.registers & 0xff);
        }
      }
      at += attribute.size;
    }
  }
  return registers;
}

}  // namespace flash_ladder::emulator::runtime
