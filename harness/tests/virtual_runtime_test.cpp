// The virtual CUDA runtime without kernels: what it reads from nvcc's container, and the results of CUDA's functions.
// Programs with kernels are in emulate_test.py.
#include "emulator/runtime/virtual_runtime.h"

#include <cuda.h>
#include <cuda_runtime_api.h>
#include <elf.h>
#include <fatbinary_section.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>
#include <sys/mman.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <atomic>
#include <cstdint>
#include <cstring>
#include <iterator>
#include <new>
#include <random>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "emulator/runtime/fat_binary.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator::runtime {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A container in the format that nvcc writes.
class Container {
 public:
  static constexpr std::uint16_t kPtx = 1, kMachineCode = 2;

  Container& add(std::uint16_t kind, std::uint32_t architecture, std::string contents, std::uint64_t flags = 0x11) {
    contents.resize((contents.size() + 7) / 8 * 8);
    append(kind, std::uint16_t{0x101}, std::uint32_t{64}, std::uint64_t{contents.size()});
    append(std::uint32_t{0}, std::uint32_t{64}, std::uint16_t{0}, std::uint16_t{9}, architecture);
    append(std::uint32_t{0}, std::uint32_t{0}, flags, std::uint64_t{0}, std::uint64_t{0});
    bytes_ += contents;
    return *this;
  }

  // The argument for __cudaRegisterFatBinary; valid until the next call.
  const void* get(int version = FATBINC_VERSION) {
    const std::string entries = std::exchange(bytes_, "");
    append(std::uint32_t{0xBA55ED50}, std::uint16_t{1}, std::uint16_t{16}, std::uint64_t{entries.size()});
    whole_ = bytes_ + entries;
    bytes_ = entries;
    wrapper_ = {FATBINC_MAGIC, version, reinterpret_cast<const unsigned long long*>(whole_.data()), nullptr};
    return &wrapper_;
  }

  const std::string& whole() const { return whole_; }

 private:
  template <typename... Members>
  void append(const Members&... members) {
    (bytes_.append(reinterpret_cast<const char*>(&members), sizeof members), ...);
  }

  std::string bytes_, whole_;
  __fatBinC_Wrapper_t wrapper_{};
};

TEST(FatBinary, ThePtxForCompute80IsFoundAmongOthers) {
  Container container;
  container.add(Container::kMachineCode, 80, "machine code").add(Container::kPtx, 90, "for 90");
  container.add(Container::kPtx, 80, "for 80");
  EXPECT_EQ(device_ptx(container.get(), 90), "for 80");
}

TEST(FatBinary, WhatIsMissingIsSaidWithTheRemedy) {
  Container none, other;
  other.add(Container::kMachineCode, 90, "machine code").add(Container::kPtx, 100, "for 100");
  EXPECT_THAT([&] { device_ptx(other.get(), 90); },
              ThrowsMessage<std::runtime_error>(testing::AllOf(HasSubstr("sm_90, compute_100"), HasSubstr("nvcc"))));
  EXPECT_THAT([&] { device_ptx(none.get(), 90); }, ThrowsMessage<std::runtime_error>(HasSubstr("no architecture")));
}

TEST(FatBinary, CompressedPtxIsRefused) {
  for (const std::uint64_t flag : {0x2000, 0x8000}) {
    Container container;
    container.add(Container::kPtx, 80, "compressed", 0x11 | flag);
    EXPECT_THAT([&] { device_ptx(container.get(), 90); },
                ThrowsMessage<std::runtime_error>(HasSubstr("--no-compress")));
  }
}

TEST(FatBinary, RelocatableCodeIsRefused) {
  Container container;
  container.add(Container::kPtx, 80, "relocatable");
  EXPECT_THAT([&] { device_ptx(container.get(FATBINC_LINK_VERSION), 90); },
              ThrowsMessage<std::runtime_error>(HasSubstr("-rdc=true")));
}

TEST(FatBinary, SomethingElseIsRefused) {
  const std::uint64_t zeros[8] = {};
  EXPECT_THAT([&] { device_ptx(zeros, 90); }, ThrowsMessage<std::runtime_error>(HasSubstr("nvcc's format")));
}

// An ELF file with one kernel.
std::string machine_code(const std::string& kernel, std::uint32_t registers) {
  const std::string names = std::string("\0.text.", 7) + kernel + std::string("\0", 1);
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 2;
  header.e_shstrndx = 0;
  Elf64_Shdr sections[2] = {};
  sections[0].sh_offset = sizeof header + sizeof sections;
  sections[0].sh_size = names.size();
  sections[1].sh_name = 1;
  sections[1].sh_info = registers << 24 | 7;
  return std::string(reinterpret_cast<const char*>(&header), sizeof header) +
         std::string(reinterpret_cast<const char*>(sections), sizeof sections) + names;
}

TEST(FatBinary, RegistersComeFromTheMachineCodeThatTheSmWouldRun) {
  Container container;
  container.add(Container::kMachineCode, 80, machine_code("kernel", 40));
  container.add(Container::kMachineCode, 86, machine_code("kernel", 41));
  container.add(Container::kMachineCode, 90, machine_code("kernel", 42));
  const void* fat_binary = container.get();
  EXPECT_EQ(register_counts(fat_binary, 80).at("kernel"), 40);
  EXPECT_EQ(register_counts(fat_binary, 86).at("kernel"), 41);
  EXPECT_EQ(register_counts(fat_binary, 89).at("kernel"), 41);
  EXPECT_EQ(register_counts(fat_binary, 90).at("kernel"), 42);
}

// The format for sm_90: the count is an attribute in the section .nv.info, which names the kernel through its symbol.
std::string machine_code_with_attributes(const std::string& kernel, std::uint32_t registers) {
  const std::string names = std::string("\0.nv.info\0", 10) + kernel + std::string("\0", 1);
  Elf64_Sym symbols[2] = {};
  symbols[1].st_name = 10;
  // An attribute of no interest, one without a size, and the count.
  const std::uint32_t info[] = {0x00041104, 1, 0x00ff1903, 0x00082f04, 1, registers};
  Elf64_Ehdr header{};
  std::memcpy(header.e_ident, ELFMAG, SELFMAG);
  header.e_shoff = sizeof header;
  header.e_shentsize = sizeof(Elf64_Shdr);
  header.e_shnum = 3;
  Elf64_Shdr sections[3] = {};
  sections[0].sh_offset = sizeof header + sizeof sections;
  sections[0].sh_size = names.size();
  sections[1].sh_offset = sections[0].sh_offset + names.size();
  sections[1].sh_size = sizeof symbols;
  sections[2].sh_name = 1;
  sections[2].sh_link = 1;
  sections[2].sh_offset = sections[1].sh_offset + sizeof symbols;
  sections[2].sh_size = sizeof info;
  const auto bytes = [](const auto& object) {
    return std::string(reinterpret_cast<const char*>(&object), sizeof object);
  };
  return bytes(header) + bytes(sections) + names + bytes(symbols) + bytes(info);
}

TEST(FatBinary, RegistersMayBeAttributes) {
  const std::string good = machine_code_with_attributes("kernel", 43);
  Container container;
  container.add(Container::kMachineCode, 90, good);
  EXPECT_EQ(register_counts(container.get(), 90).at("kernel"), 43);
  for (std::size_t size = 0; size < good.size(); size += 4) {
    Container damaged;
    damaged.add(Container::kMachineCode, 90, good.substr(0, size));
    EXPECT_EQ(register_counts(damaged.get(), 90).count("kernel"), 0u) << size << " bytes";
  }
}

TEST(FatBinary, DamagedMachineCodeHasNoRegisters) {
  const std::string good = machine_code("kernel", 40);
  for (std::size_t size = 0; size < good.size(); size += 8) {
    Container container;
    container.add(Container::kMachineCode, 80, good.substr(0, size));
    EXPECT_EQ(register_counts(container.get(), 80).count("kernel"), 0u) << size << " bytes";
  }
}

// A container at the end of readable memory: reading beyond it ends the test.
class GuardedMemory {
 public:
  explicit GuardedMemory(std::size_t size) : page_(static_cast<std::size_t>(sysconf(_SC_PAGESIZE))) {
    bytes_ = (size + page_ - 1) / page_ * page_;
    base_ =
        static_cast<char*>(mmap(nullptr, bytes_ + page_, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
    if (base_ == MAP_FAILED || mprotect(base_ + bytes_, page_, PROT_NONE) != 0) throw std::bad_alloc();
  }
  ~GuardedMemory() { munmap(base_, bytes_ + page_); }
  GuardedMemory(const GuardedMemory&) = delete;
  GuardedMemory& operator=(const GuardedMemory&) = delete;
  char* place(const std::string& contents) {
    return std::copy(contents.begin(), contents.end(), base_ + bytes_ - contents.size()) - contents.size();
  }

 private:
  std::size_t page_, bytes_ = 0;
  char* base_ = nullptr;
};

TEST(FatBinary, ADamagedContainerIsRefusedOrRead) {
  const std::string ptx =
      ".version 8.0\n.target sm_80\n.address_size 64\n.visible .entry kernel(.param .u64 p)\n{\n"
      ".reg .b64 %rd<2>;\nld.param.u64 %rd1, [p];\nret;\n}\n";
  Container container;
  container.add(Container::kMachineCode, 80, machine_code("kernel", 40));
  container.add(Container::kMachineCode, 90, machine_code_with_attributes("kernel", 41));
  container.add(Container::kPtx, 80, ptx);
  container.get();
  const std::string good = container.whole();
  GuardedMemory memory(good.size());
  std::mt19937 random(11);
  const auto number = [&](std::size_t below) {
    return std::uniform_int_distribution<std::size_t>(0, below - 1)(random);
  };
  int refused = 0;
  const auto read = [&](const std::string& damaged) {
    __fatBinC_Wrapper_t wrapper = {FATBINC_MAGIC, FATBINC_VERSION,
                                   reinterpret_cast<const unsigned long long*>(memory.place(damaged)), nullptr};
    try {
      register_counts(&wrapper, 80);
      register_counts(&wrapper, 90);
      Memory device;
      const Module module(device_ptx(&wrapper, 90), device);
    } catch (const std::runtime_error& error) {
      EXPECT_STRNE(error.what(), "");
      ++refused;
    }
  };
  read(good);
  EXPECT_EQ(refused, 0);
  for (std::size_t size = 0; size < good.size(); ++size) read(good.substr(0, size));
  EXPECT_EQ(refused, static_cast<int>(good.size())) << "what is cut short is refused";
  // Lengths and offsets are the most dangerous values: bytes of all kinds, with an emphasis on the ends of ranges.
  constexpr unsigned char kValues[] = {0, 1, 0x40, 0x7f, 0x80, 0xff};
  for (int round = 0; round < 20'000; ++round) {
    std::string damaged = good;
    for (std::size_t left = 1 + number(4); left > 0; --left) {
      const std::size_t at = number(damaged.size()), bytes = 1 + number(8);
      const auto value = static_cast<char>(round % 2 == 0 ? kValues[number(std::size(kValues))] : number(256));
      for (std::size_t i = at; i < std::min(at + bytes, damaged.size()); ++i) damaged[i] = value;
    }
    read(damaged);
  }
  EXPECT_GT(refused, static_cast<int>(good.size()));
}

TEST(FatBinary, AContainerThatIsLongerThanMemoryIsRefused) {
  Container container;
  container.add(Container::kPtx, 80, "for 80");
  container.get();
  std::string damaged = container.whole();
  damaged[14] = 1;  // entries_bytes, 2⁴⁸ more
  GuardedMemory memory(damaged.size());
  const __fatBinC_Wrapper_t wrapper = {FATBINC_MAGIC, FATBINC_VERSION,
                                       reinterpret_cast<const unsigned long long*>(memory.place(damaged)), nullptr};
  EXPECT_THAT([&] { device_ptx(&wrapper, 90); },
              ThrowsMessage<std::runtime_error>(HasSubstr("according to its header")));
}

TEST(FatBinary, ThePtxForHopperIsTakenWhereThereIsNoOther) {
  Container container;
  container.add(Container::kMachineCode, 90, "machine code").add(Container::kPtx, 90, "for 90a");
  EXPECT_EQ(device_ptx(container.get(), 90), "for 90a");
  EXPECT_THAT([&] { device_ptx(container.get(), 89); },
              ThrowsMessage<std::runtime_error>(HasSubstr("sm_90, compute_90")));
}

// ---- CUDA's functions ----

struct TensorMapRequest {
  CUtensorMapDataType type = CU_TENSOR_MAP_DATA_TYPE_FLOAT16;
  cuuint32_t rank = 3;
  std::uintptr_t address = 4096;
  std::array<cuuint64_t, 5> sizes = {64, 100, 2, 1, 1};
  std::array<cuuint64_t, 4> strides = {256, 128, 16, 16};  // as in the kernels: dimensions in any order
  std::array<cuuint32_t, 5> box = {64, 32, 2, 1, 1}, steps = {1, 1, 1, 1, 1};
  CUtensorMapInterleave interleave = CU_TENSOR_MAP_INTERLEAVE_NONE;
  CUtensorMapSwizzle swizzle = CU_TENSOR_MAP_SWIZZLE_128B;
  CUtensorMapFloatOOBfill fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE;

  CUresult encode(CUtensorMap* map) const {
    void* function = nullptr;
    cudaDriverEntryPointQueryResult status{};
    EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuTensorMapEncodeTiled", &function, 12000, cudaEnableDefault, &status),
              cudaSuccess);
    EXPECT_EQ(status, cudaDriverEntryPointSuccess);
    return reinterpret_cast<decltype(&cuTensorMapEncodeTiled)>(function)(
        map, type, rank, reinterpret_cast<void*>(address), sizes.data(), strides.data(), box.data(), steps.data(),
        interleave, swizzle, CU_TENSOR_MAP_L2_PROMOTION_NONE, fill);
  }
};

TEST(TensorMaps, SayWhatTheyWereMadeOf) {
  alignas(64) CUtensorMap map;
  const TensorMapRequest request;
  ASSERT_EQ(request.encode(&map), CUDA_SUCCESS);
  const auto loaded = load_tensor_map(reinterpret_cast<const std::byte*>(&map));
  ASSERT_TRUE(loaded.has_value());
  EXPECT_EQ(loaded->address, 4096u);
  EXPECT_EQ(loaded->dimensions, 3);
  EXPECT_EQ(loaded->element_bytes, 2);
  EXPECT_EQ(loaded->swizzle, Swizzle::bytes_128);
  EXPECT_EQ(loaded->sizes[1], 100u);
  EXPECT_EQ(loaded->strides[2], 128u);
  EXPECT_EQ(loaded->box_bytes(), 64u * 32 * 2 * 2);
  std::memset(&map, 0, sizeof map);
  EXPECT_FALSE(load_tensor_map(reinterpret_cast<const std::byte*>(&map)).has_value());
}

TEST(TensorMaps, WrongOnesAreRefusedAsByTheDriver) {
  alignas(64) CUtensorMap maps[2];
  const auto refused = [&](auto change) {
    TensorMapRequest request;
    change(request);
    return request.encode(maps) == CUDA_ERROR_INVALID_VALUE;
  };
  EXPECT_FALSE(refused([](TensorMapRequest&) {}));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.rank = 6; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.rank = 0; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.address += 8; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.sizes[1] = 0; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.sizes[1] = (cuuint64_t{1} << 32) + 1; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.strides[0] = 200; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.strides[1] = cuuint64_t{1} << 40; }));
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.strides[1] = -cuuint64_t{256}; }));
  EXPECT_NE(::testing::internal::GetCapturedStderr().find("globalStrides[1] is -256; "), std::string::npos);
  settings().explains_errors = false;
  ::testing::internal::CaptureStderr();
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.strides[1] = -cuuint64_t{512}; }));
  EXPECT_EQ(::testing::internal::GetCapturedStderr(), "");
  settings().explains_errors = true;
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.box[1] = 257; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.box[2] = 0; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.box[0] = 4; })) << "8 bytes a row";
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.box[0] = 128; })) << "256 bytes a row, and the swizzle has 128";
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.steps[1] = 9; }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) { r.swizzle = static_cast<CUtensorMapSwizzle>(99); }));
  EXPECT_TRUE(refused([](TensorMapRequest& r) {
    r.type = CU_TENSOR_MAP_DATA_TYPE_UINT16;
    r.fill = CU_TENSOR_MAP_FLOAT_OOB_FILL_NAN_REQUEST_ZERO_FMA;
  }));
  EXPECT_EQ(TensorMapRequest().encode(reinterpret_cast<CUtensorMap*>(reinterpret_cast<char*>(maps) + 8)),
            CUDA_ERROR_INVALID_VALUE)
      << "not at a multiple of 64";
}

TEST(TensorMaps, OtherFunctionsOfTheDriverAreNotThere) {
  void* function = &function;
  cudaDriverEntryPointQueryResult status{};
  EXPECT_EQ(cudaGetDriverEntryPointByVersion("cuMemAlloc", &function, 12000, cudaEnableDefault, &status), cudaSuccess);
  EXPECT_EQ(status, cudaDriverEntryPointSymbolNotFound);
  EXPECT_EQ(function, nullptr);
}

TEST(VirtualRuntime, MemoryThereAndBack) {
  std::vector<int> there = {1, 2, 3, 4}, back(4);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device, there.data(), 16, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemset(static_cast<char*>(device) + 4, 0xff, 4), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(back.data(), device, 16, cudaMemcpyDefault), cudaSuccess);
  EXPECT_THAT(back, testing::ElementsAre(1, -1, 3, 4));
  cudaPointerAttributes attributes{};
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, device), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeDevice);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaPointerGetAttributes(&attributes, back.data()), cudaSuccess);
  EXPECT_EQ(attributes.type, cudaMemoryTypeUnregistered);
}

TEST(VirtualRuntime, RowsWithAPitch) {
  const char rows[2][3] = {{'a', 'b', 'c'}, {'d', 'e', 'f'}};
  char back[2][3] = {};
  void* device = nullptr;
  std::size_t pitch = 0;
  ASSERT_EQ(cudaMallocPitch(&device, &pitch, 3, 2), cudaSuccess);
  EXPECT_EQ(pitch, 512u);
  EXPECT_EQ(cudaMemcpy2D(device, pitch, rows, 3, 3, 2, cudaMemcpyHostToDevice), cudaSuccess);
  EXPECT_EQ(cudaMemset2D(device, pitch, 'x', 1, 2), cudaSuccess);
  EXPECT_EQ(cudaMemcpy2D(back, 3, device, pitch, 3, 2, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(std::string(&back[0][0], 6), "xbcxef");
  EXPECT_EQ(cudaMemcpy2D(back, 2, device, pitch, 3, 2, cudaMemcpyDeviceToHost), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(VirtualRuntime, BoxesWithAPitch) {
  char box[2][3][4], back[1][2][2] = {};
  for (int i = 0; i < 24; ++i) (&box[0][0][0])[i] = static_cast<char>('a' + i);
  cudaPitchedPtr device{};
  ASSERT_EQ(cudaMalloc3D(&device, {4, 3, 2}), cudaSuccess);
  EXPECT_EQ(cudaMemset3D(device, '-', {4, 3, 2}), cudaSuccess);
  cudaMemcpy3DParms copy{};
  copy.srcPtr = {box, 4, 4, 3};
  copy.dstPtr = device;
  copy.extent = {4, 2, 2};
  copy.kind = cudaMemcpyHostToDevice;
  EXPECT_EQ(cudaMemcpy3D(&copy), cudaSuccess);
  copy = {};
  copy.srcPtr = device;
  copy.srcPos = {2, 1, 1};
  copy.dstPtr = {back, 2, 2, 2};
  copy.extent = {2, 2, 1};
  copy.kind = cudaMemcpyDeviceToHost;
  EXPECT_EQ(cudaMemcpy3D(&copy), cudaSuccess);
  EXPECT_EQ(std::string(&back[0][0][0], 4), "st--");
  copy.extent.width = 3;
  EXPECT_EQ(cudaMemcpy3D(&copy), cudaErrorInvalidPitchValue);
  EXPECT_EQ(cudaFree(device.ptr), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, CopiesBetweenDevicesHaveOneDevice) {
  void* device = nullptr;
  int back = 0;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  EXPECT_EQ(cudaMemset(device, 1, 4), cudaSuccess);
  EXPECT_EQ(cudaMemcpyPeer(static_cast<char*>(device) + 4, 0, device, 0, 4), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(&back, static_cast<char*>(device) + 4, 4, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(back, 0x01010101);
  EXPECT_EQ(cudaMemcpyPeer(device, 1, device, 0, 4), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, WhatMemoryOfTheHostIsFor) {
  void *pinned = nullptr, *managed = nullptr;
  ASSERT_EQ(cudaHostAlloc(&pinned, 16, cudaHostAllocMapped | cudaHostAllocPortable), cudaSuccess);
  ASSERT_EQ(cudaMallocManaged(&managed, 16, cudaMemAttachGlobal), cudaSuccess);
  unsigned flags = 0;
  EXPECT_EQ(cudaHostGetFlags(&flags, pinned), cudaSuccess);
  EXPECT_EQ(flags, cudaHostAllocMapped | cudaHostAllocPortable);
  EXPECT_EQ(cudaHostGetFlags(&flags, managed), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamAttachMemAsync(nullptr, managed, 0, cudaMemAttachSingle), cudaSuccess);
  EXPECT_EQ(cudaStreamAttachMemAsync(nullptr, pinned, 0, cudaMemAttachSingle), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFreeHost(pinned), cudaSuccess);
  EXPECT_EQ(cudaFree(managed), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, MemoryRunsOut) {
  std::size_t free = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  EXPECT_EQ(total, settings().memory_bytes);
  void* device = &free;
  EXPECT_EQ(cudaMalloc(&device, free + 1), cudaErrorMemoryAllocation);
  EXPECT_EQ(device, nullptr);
  EXPECT_EQ(cudaGetLastError(), cudaErrorMemoryAllocation);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess) << "it does not stick";
}

TEST(VirtualRuntime, WrongUseIsAnErrorAndAFinding) {
  const std::uint64_t before = findings().total;
  int host[4] = {};
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  EXPECT_EQ(cudaMemcpy(device, host, 17, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(host, device, 16, cudaMemcpyHostToDevice), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemcpy(device, host, 16, static_cast<cudaMemcpyKind>(9)), cudaErrorInvalidMemcpyDirection);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFree(nullptr), cudaSuccess);
  EXPECT_EQ(cudaPeekAtLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidValue);
  EXPECT_EQ(findings().total, before + 3);
  EXPECT_EQ(findings().kept.back().kind, FindingKind::invalid_operation);
  EXPECT_THAT(findings().kept.back().message, HasSubstr("cudaFree"));
}

TEST(VirtualRuntime, NullPointersAreErrorsAndFindings) {
  take_findings();
  int host[4] = {};
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  for (const auto& [to, from, kind] :
       {std::tuple(device, static_cast<void*>(nullptr), cudaMemcpyHostToDevice),
        std::tuple(static_cast<void*>(nullptr), device, cudaMemcpyDeviceToHost),
        std::tuple(static_cast<void*>(nullptr), device, cudaMemcpyDefault),
        std::tuple(static_cast<void*>(host), static_cast<void*>(nullptr), cudaMemcpyDefault),
        std::tuple(static_cast<void*>(nullptr), static_cast<void*>(host), cudaMemcpyHostToDevice)}) {
    EXPECT_EQ(cudaMemcpy(to, from, 16, kind), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpyAsync(to, from, 16, kind, nullptr), cudaErrorInvalidValue);
    EXPECT_EQ(cudaMemcpy2D(to, 8, from, 8, 8, 2, kind), cudaErrorInvalidValue);
    const Findings taken = take_findings();
    EXPECT_EQ(taken.total, 3);
    for (const Finding& finding : taken.kept) {
      EXPECT_EQ(finding.kind, FindingKind::invalid_operation);
      EXPECT_THAT(finding.message,
                  HasSubstr(to == nullptr ? "the destination is the null pointer" : "the source is the null pointer"));
    }
    EXPECT_EQ(cudaMemcpy(to, from, 0, kind), cudaSuccess) << "nothing is copied";
  }
  EXPECT_EQ(cudaMemset(nullptr, 0, 16), cudaErrorInvalidValue);
  EXPECT_EQ(cudaMemset2D(nullptr, 8, 0, 8, 2), cudaErrorInvalidValue);
  EXPECT_EQ(take_findings().total, 2);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, FindingsAreHandedOverOnce) {
  take_findings();
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  EXPECT_EQ(cudaMemset(device, 0, 17), cudaErrorInvalidValue);
  const Findings taken = take_findings();
  EXPECT_EQ(taken.total, 1);
  ASSERT_EQ(taken.kept.size(), 1);
  EXPECT_THAT(taken.kept.front().message, HasSubstr("cudaMemset"));
  EXPECT_EQ(take_findings().total, 0);
  EXPECT_EQ(findings().kept.size(), 0);
  EXPECT_EQ(cudaGetLastError(), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(VirtualRuntime, FindingsThatAreTooManyToKeepAreCounted) {
  take_findings();
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 16), cudaSuccess);
  for (int round = 0; round < 2; ++round)
    for (std::size_t size = 17; size < 167; ++size) cudaMemset(device, 0, size);
  const Findings taken = take_findings();
  EXPECT_EQ(taken.kept.size(), 100);
  EXPECT_EQ(taken.kinds, 150);
  EXPECT_EQ(taken.total, 300);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(take_findings().kinds, 0);
}

TEST(VirtualRuntime, StreamsAndEventsAreChecked) {
  cudaStream_t stream = nullptr;
  cudaEvent_t event = nullptr, never_recorded = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&event), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&never_recorded), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(nullptr, event, 0), cudaSuccess);
  EXPECT_EQ(cudaEventSynchronize(event), cudaSuccess);
  float milliseconds = 1;
  milliseconds = -1;
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, event), cudaSuccess);
  EXPECT_EQ(milliseconds, 0);
  cudaEvent_t later = nullptr, untimed = nullptr;
  ASSERT_EQ(cudaEventCreate(&later), cudaSuccess);
  ASSERT_EQ(cudaEventCreateWithFlags(&untimed, cudaEventDisableTiming), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(later, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(untimed, stream), cudaSuccess);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, later), cudaSuccess);
  EXPECT_GE(milliseconds, 0);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, untimed), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, never_recorded), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
  cudaGetLastError();
}

// In another stream; the work after it waits for it.
TEST(VirtualRuntime, AFunctionOfTheHostMayWaitForAThreadThatCallsCuda) {
  cudaStream_t stream = nullptr, other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  struct State {
    std::atomic<int> steps = 0;
  } state;
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 4096), cudaSuccess);
  const auto wait_for = [](State& state, int steps) {
    for (int i = 0; i < 10000 && state.steps < steps; ++i) usleep(1000);
    EXPECT_GE(state.steps, steps);
  };
  const auto later = [&](int after, auto call) {
    return std::thread([&state, wait_for, after, call] {
      wait_for(state, after);
      EXPECT_EQ(call(), cudaSuccess);
      EXPECT_EQ(state.steps, 3) << "it has not waited for the function";
    });
  };
  std::thread first([&] {
    wait_for(state, 1);
    EXPECT_EQ(cudaMemsetAsync(device, 2, 4, other), cudaSuccess);
    EXPECT_EQ(cudaStreamSynchronize(other), cudaSuccess);
    state.steps = 2;
  });
  std::thread second = later(2, [&] { return cudaStreamSynchronize(stream); });
  std::thread third = later(2, [&] { return cudaDeviceSynchronize(); });
  const auto function = [](void* data) {
    State& state = *static_cast<State*>(data);
    state.steps = 1;
    for (int i = 0; i < 10000 && state.steps < 2; ++i) usleep(1000);
    usleep(50'000);
    ++state.steps;
  };
  EXPECT_EQ(cudaLaunchHostFunc(stream, function, &state), cudaSuccess);
  for (std::thread* thread : {&first, &second, &third}) thread->join();
  EXPECT_EQ(state.steps, 3);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  take_findings();
}

TEST(VirtualRuntime, AGraphDoesAgainWhatWasCaptured) {
  cudaStream_t stream = nullptr, other = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  std::vector<char> bytes(8, 'a');
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  ASSERT_EQ(cudaMemset(device, 'b', 8), cudaSuccess);
  int calls = 0;

  ASSERT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
  EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaErrorIllegalState);
  cudaStreamCaptureStatus status{};
  EXPECT_EQ(cudaStreamIsCapturing(stream, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusActive);
  EXPECT_EQ(cudaMemsetAsync(device, 'c', 4, stream), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(other, fork, 0), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(static_cast<char*>(device) + 6, 'd', 2, other), cudaSuccess);
  EXPECT_EQ(cudaEventRecord(join, other), cudaSuccess);
  EXPECT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
  EXPECT_EQ(cudaMemcpyAsync(bytes.data(), device, 8, cudaMemcpyDeviceToHost, stream), cudaSuccess);
  EXPECT_EQ(cudaLaunchHostFunc(stream, [](void* count) { ++*static_cast<int*>(count); }, &calls), cudaSuccess);
  cudaGraph_t graph = nullptr;
  EXPECT_EQ(cudaStreamEndCapture(other, &graph), cudaErrorStreamCaptureUnmatched);
  ASSERT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
  EXPECT_EQ(bytes, std::vector<char>(8, 'a')) << "nothing has been done";
  EXPECT_EQ(calls, 0);
  EXPECT_EQ(cudaStreamIsCapturing(other, &status), cudaSuccess);
  EXPECT_EQ(status, cudaStreamCaptureStatusNone);

  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(std::string(bytes.begin(), bytes.end()), "ccccbbdd");
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  EXPECT_EQ(calls, 2);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaErrorInvalidValue);
  EXPECT_EQ(cudaStreamBeginCapture(nullptr, cudaStreamCaptureModeGlobal), cudaErrorStreamCaptureUnsupported);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(fork), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(join), cudaSuccess);
  cudaGetLastError();
}

// Nodes cannot be added to it, so it stays empty.
TEST(VirtualRuntime, AGraphMayBeEmpty) {
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  EXPECT_EQ(cudaGraphCreate(&graph, 1), cudaErrorInvalidValue) << "there are no flags";
  EXPECT_EQ(cudaGraphCreate(nullptr, 0), cudaErrorInvalidValue);
  ASSERT_EQ(cudaGraphCreate(&graph, 0), cudaSuccess);
  cudaGraphNode_t node = nullptr;
  EXPECT_EQ(cudaGraphAddEmptyNode(&node, graph, nullptr, 0), cudaErrorNotSupported);
  ASSERT_EQ(cudaGraphInstantiate(&executable, graph, 0), cudaSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, nullptr), cudaSuccess);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
  EXPECT_EQ(cudaGraphDestroy(graph), cudaErrorInvalidValue);
  cudaGetLastError();
}

// Calls that CUDA's documentation forbids while a stream is captured.
TEST(VirtualRuntime, ACaptureEndsWithoutAGraph) {
  cudaStream_t stream = nullptr, other = nullptr, apart = nullptr;
  cudaEvent_t fork = nullptr, join = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  ASSERT_EQ(cudaStreamCreate(&other), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&apart, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&fork), cudaSuccess);
  ASSERT_EQ(cudaEventCreate(&join), cudaSuccess);
  void *device = nullptr, *more = nullptr;
  char host[8] = {};
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  const auto end_of_capture = [&](cudaStream_t captured, auto call) {
    EXPECT_EQ(cudaStreamBeginCapture(captured, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(device, 0, 8, captured), cudaSuccess);
    call();
    cudaGraph_t graph = nullptr;
    const cudaError_t error = cudaStreamEndCapture(captured, &graph);
    EXPECT_EQ(graph == nullptr, error != cudaSuccess);
    if (graph != nullptr) {
      EXPECT_EQ(cudaGraphDestroy(graph), cudaSuccess);
    }
    return error;
  };
  const auto answers = [&](cudaStream_t captured, cudaError_t error, auto call) {
    const auto expect = [&] {
      EXPECT_EQ(call(), error);
      cudaStreamCaptureStatus status{};
      EXPECT_EQ(cudaStreamIsCapturing(captured, &status), cudaSuccess);
      EXPECT_EQ(status, cudaStreamCaptureStatusInvalidated);
      EXPECT_EQ(cudaMemsetAsync(device, 0, 8, captured), cudaErrorStreamCaptureInvalidated);
    };
    EXPECT_EQ(end_of_capture(captured, expect), cudaErrorStreamCaptureInvalidated);
    EXPECT_EQ(cudaMemsetAsync(device, 0, 8, captured), cudaSuccess) << "it is over";
  };
  answers(stream, cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamSynchronize(stream); });
  answers(apart, cudaErrorStreamCaptureUnsupported, [&] { return cudaStreamQuery(apart); });
  answers(apart, cudaErrorStreamCaptureUnsupported, [] { return cudaDeviceSynchronize(); });
  answers(apart, cudaErrorStreamCaptureUnsupported, [&] { return cudaMallocAsync(&more, 8, apart); });
  answers(apart, cudaErrorCapturedEvent, [&] {
    EXPECT_EQ(cudaEventRecord(fork, apart), cudaSuccess);
    return cudaEventSynchronize(fork);
  });
  answers(stream, cudaErrorStreamCaptureImplicit, [&] { return cudaMemset(device, 0, 8); });
  answers(stream, cudaErrorStreamCaptureImplicit, [&] { return cudaMemcpy(host, device, 8, cudaMemcpyDeviceToHost); });
  const auto use_default_stream = [&] { EXPECT_EQ(cudaMemset(device, 0, 8), cudaSuccess); };
  EXPECT_EQ(end_of_capture(apart, use_default_stream), cudaSuccess) << "it does not wait for the default stream";

  const auto fork_and = [&](bool join_again) {
    return end_of_capture(stream, [&] {
      EXPECT_EQ(cudaEventRecord(fork, stream), cudaSuccess);
      EXPECT_EQ(cudaStreamWaitEvent(other, fork, 0), cudaSuccess);
      EXPECT_EQ(cudaMemsetAsync(device, 0, 8, other), cudaSuccess);
      EXPECT_EQ(cudaEventRecord(join, other), cudaSuccess);
      if (join_again) {
        EXPECT_EQ(cudaStreamWaitEvent(stream, join, 0), cudaSuccess);
      }
    });
  };
  EXPECT_EQ(fork_and(true), cudaSuccess);
  EXPECT_EQ(fork_and(false), cudaErrorStreamCaptureUnjoined);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  for (cudaStream_t done : {stream, other, apart}) EXPECT_EQ(cudaStreamDestroy(done), cudaSuccess);
  for (cudaEvent_t done : {fork, join}) EXPECT_EQ(cudaEventDestroy(done), cudaSuccess);
  take_findings();
}

TEST(VirtualRuntime, AGraphIsUpdatedByOneThatIsAlike) {
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  const auto captured = [&](char value, auto more) {
    cudaGraph_t graph = nullptr;
    EXPECT_EQ(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal), cudaSuccess);
    EXPECT_EQ(cudaMemsetAsync(device, value, 8, stream), cudaSuccess);
    more();
    EXPECT_EQ(cudaStreamEndCapture(stream, &graph), cudaSuccess);
    return graph;
  };
  const auto nothing = [] {};
  const auto fill = [&] { EXPECT_EQ(cudaMemsetAsync(device, 'z', 1, stream), cudaSuccess); };
  const auto copy = [&] {
    EXPECT_EQ(cudaMemcpyAsync(device, device, 1, cudaMemcpyDeviceToDevice, stream), cudaSuccess);
  };
  cudaGraphExec_t executable = nullptr;
  ASSERT_EQ(cudaGraphInstantiate(&executable, captured('a', fill), 0), cudaSuccess);
  cudaGraphExecUpdateResultInfo result{};
  EXPECT_EQ(cudaGraphExecUpdate(executable, captured('b', nothing), &result), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorTopologyChanged);
  EXPECT_EQ(cudaGraphExecUpdate(executable, captured('c', copy), &result), cudaErrorGraphExecUpdateFailure);
  EXPECT_EQ(result.result, cudaGraphExecUpdateErrorNodeTypeChanged);
  EXPECT_EQ(cudaGraphExecUpdate(executable, captured('d', fill), &result), cudaSuccess);
  EXPECT_EQ(result.result, cudaGraphExecUpdateSuccess);
  EXPECT_EQ(cudaGraphLaunch(executable, stream), cudaSuccess);
  std::string bytes(8, ' ');
  EXPECT_EQ(cudaMemcpy(bytes.data(), device, 8, cudaMemcpyDeviceToHost), cudaSuccess);
  EXPECT_EQ(bytes, "zddddddd");
  EXPECT_EQ(cudaGraphExecDestroy(executable), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  take_findings();
}

TEST(VirtualRuntime, ThereIsOneMemoryPool) {
  cudaMemPool_t pool = nullptr;
  ASSERT_EQ(cudaDeviceGetDefaultMemPool(&pool, 0), cudaSuccess);
  std::uint64_t threshold = ~std::uint64_t{0};
  EXPECT_EQ(cudaMemPoolSetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  void* device = nullptr;
  EXPECT_EQ(cudaMallocFromPoolAsync(&device, 16, pool, nullptr), cudaSuccess);
  EXPECT_NE(device, nullptr);
  std::uint64_t used = 0, most = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemCurrent, &used), cudaSuccess);
  EXPECT_GE(used, 16);
  EXPECT_EQ(cudaFreeAsync(device, nullptr), cudaSuccess);
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrUsedMemHigh, &most), cudaSuccess);
  EXPECT_GE(most, used);
  threshold = 0;
  EXPECT_EQ(cudaMemPoolGetAttribute(pool, cudaMemPoolAttrReleaseThreshold, &threshold), cudaSuccess);
  EXPECT_EQ(threshold, ~std::uint64_t{0});
  EXPECT_EQ(cudaMallocFromPoolAsync(&device, 16, nullptr, nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaDeviceGetDefaultMemPool(&pool, 1), cudaErrorInvalidDevice);
  cudaGetLastError();
}

TEST(VirtualRuntime, OneDevice) {
  int count = 0, value = 0;
  EXPECT_EQ(cudaGetDeviceCount(&count), cudaSuccess);
  EXPECT_EQ(count, 1);
  EXPECT_EQ(cudaSetDevice(1), cudaErrorInvalidDevice);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxSharedMemoryPerBlockOptin, 0), cudaSuccess);
  EXPECT_EQ(value, 227 * 1024);
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrClockRate, 0), cudaSuccess);
  EXPECT_EQ(value, 0) << "it has no clock";
  EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMaxPitch, 0), cudaSuccess);
  EXPECT_EQ(value, 0x7fffffff);
  for (const cudaDeviceAttr attribute :
       {cudaDevAttrClusterLaunch, cudaDevAttrConcurrentManagedAccess, cudaDevAttrStreamPrioritiesSupported,
        cudaDevAttrGlobalL1CacheSupported, cudaDevAttrGpuOverlap}) {
    EXPECT_EQ(cudaDeviceGetAttribute(&value, attribute, 0), cudaSuccess);
    EXPECT_EQ(value, 1) << attribute;
  }
  for (const int unknown : {0, 9999}) {
    EXPECT_EQ(cudaDeviceGetAttribute(&value, static_cast<cudaDeviceAttr>(unknown), 0), cudaErrorInvalidValue);
  }
  cudaGetLastError();
}

TEST(VirtualRuntime, WhatWasSetIsAnswered) {
  std::size_t value = 0;
  EXPECT_EQ(cudaDeviceSetLimit(cudaLimitStackSize, 8192), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetLimit(&value, cudaLimitStackSize), cudaSuccess);
  EXPECT_EQ(value, 8192);
  EXPECT_EQ(cudaDeviceSetLimit(static_cast<cudaLimit>(99), 1), cudaErrorUnsupportedLimit);
  int least = 0, greatest = 0, priority = 0;
  EXPECT_EQ(cudaDeviceGetStreamPriorityRange(&least, &greatest), cudaSuccess);
  EXPECT_LT(greatest, least);
  cudaStream_t stream = nullptr;
  ASSERT_EQ(cudaStreamCreateWithPriority(&stream, cudaStreamDefault, greatest - 1), cudaSuccess);
  unsigned long long id = 0, of_default = 0;
  EXPECT_EQ(cudaStreamGetId(stream, &id), cudaSuccess);
  EXPECT_EQ(cudaStreamGetId(nullptr, &of_default), cudaSuccess);
  EXPECT_NE(id, of_default);
  EXPECT_EQ(cudaStreamGetPriority(stream, &priority), cudaSuccess);
  EXPECT_EQ(priority, greatest);
#pragma GCC diagnostic push
#pragma GCC diagnostic ignored "-Wdeprecated-declarations"
  cudaSharedMemConfig banks{};
  EXPECT_EQ(cudaDeviceSetSharedMemConfig(cudaSharedMemBankSizeEightByte), cudaSuccess);
  EXPECT_EQ(cudaDeviceGetSharedMemConfig(&banks), cudaSuccess);
  EXPECT_EQ(banks, cudaSharedMemBankSizeFourByte) << "as on every GPU since sm_50";
  EXPECT_EQ(cudaDeviceGetSharedMemConfig(nullptr), cudaErrorInvalidValue);
  EXPECT_EQ(cudaFuncSetSharedMemConfig(&value, cudaSharedMemBankSizeEightByte), cudaErrorInvalidDeviceFunction);
#pragma GCC diagnostic pop
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, AResetEndsWhatWasAllocated) {
  take_findings();
  void *before = nullptr, *after = nullptr;
  std::size_t free = 0, free_again = 0, total = 0;
  ASSERT_EQ(cudaMemGetInfo(&free, &total), cudaSuccess);
  ASSERT_EQ(cudaMalloc(&before, 16), cudaSuccess);
  ASSERT_EQ(cudaDeviceReset(), cudaSuccess);
  ASSERT_EQ(cudaMemGetInfo(&free_again, &total), cudaSuccess);
  EXPECT_GE(free_again, free);
  EXPECT_EQ(cudaMemset(before, 0, 16), cudaErrorInvalidValue);
  EXPECT_THAT(take_findings().kept.at(0).message, HasSubstr("freed"));
  EXPECT_EQ(cudaFree(before), cudaErrorInvalidValue);
  EXPECT_EQ(take_findings().total, 0) << "programs do that when they end";
  ASSERT_EQ(cudaMalloc(&after, 16), cudaSuccess);
  EXPECT_EQ(cudaFree(after), cudaSuccess);
  cudaGetLastError();
}

TEST(VirtualRuntime, TheNumberOfSmsIsASetting) {
  const auto sm_count = [] {
    int value = 0;
    EXPECT_EQ(cudaDeviceGetAttribute(&value, cudaDevAttrMultiProcessorCount, 0), cudaSuccess);
    cudaDeviceProp properties{};
    EXPECT_EQ(cudaGetDeviceProperties(&properties, 0), cudaSuccess);
    EXPECT_EQ(properties.multiProcessorCount, value);
    return value;
  };
  EXPECT_EQ(sm_count(), 132);
  settings().sm_count = 3;
  EXPECT_EQ(sm_count(), 3);
  settings().sm_count = 0;
  EXPECT_EQ(sm_count(), 132);
}

TEST(VirtualRuntime, ErrorsHaveCudasWords) {
  EXPECT_STREQ(cudaGetErrorName(cudaErrorIllegalAddress), "cudaErrorIllegalAddress");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorIllegalAddress), "an illegal memory access was encountered");
  EXPECT_STREQ(cudaGetErrorName(cudaErrorHardwareStackError), "cudaErrorHardwareStackError");
  EXPECT_STREQ(cudaGetErrorString(cudaErrorHardwareStackError), "hardware stack error") << "nothing here answers it";
  EXPECT_STREQ(cudaGetErrorString(cudaErrorStreamCaptureUnjoined), "capturing stream has unjoined work");
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST(VirtualRuntime, WhatIsNoKernelCannotBeLaunched) {
  int no_kernel = 0;
  EXPECT_EQ(cudaLaunchKernel(&no_kernel, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime
