// The virtual CUDA runtime without kernels: what it reads from nvcc's container, and how CUDA's functions answer. Programs with
// kernels are in emulate_test.py.
#include "emulator/runtime/virtual_runtime.h"

#include <cuda_runtime_api.h>
#include <elf.h>
#include <fatbinary_section.h>
#include <gmock/gmock.h>
#include <gtest/gtest.h>

#include <cmath>
#include <cstdint>
#include <cstring>
#include <string>
#include <vector>

#include "emulator/runtime/fat_binary.h"

namespace flash_ladder::emulator::runtime {
namespace {

using testing::HasSubstr;
using testing::ThrowsMessage;

// A container as nvcc writes it.
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

  // What is passed to __cudaRegisterFatBinary; valid until the next call.
  const void* get(int version = FATBINC_VERSION) {
    const std::string entries = std::exchange(bytes_, "");
    append(std::uint32_t{0xBA55ED50}, std::uint16_t{1}, std::uint16_t{16}, std::uint64_t{entries.size()});
    whole_ = bytes_ + entries;
    bytes_ = entries;
    wrapper_ = {FATBINC_MAGIC, version, reinterpret_cast<const unsigned long long*>(whole_.data()), nullptr};
    return &wrapper_;
  }

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
  EXPECT_EQ(compute_80_ptx(container.get()), "for 80");
}

TEST(FatBinary, WhatIsMissingIsSaidWithTheRemedy) {
  Container none, other;
  other.add(Container::kMachineCode, 90, "machine code").add(Container::kPtx, 100, "for 100");
  EXPECT_THAT([&] { compute_80_ptx(other.get()); },
              ThrowsMessage<std::runtime_error>(testing::AllOf(HasSubstr("sm_90, compute_100"), HasSubstr("nvcc"))));
  EXPECT_THAT([&] { compute_80_ptx(none.get()); }, ThrowsMessage<std::runtime_error>(HasSubstr("no architecture")));
}

TEST(FatBinary, CompressedPtxIsRefused) {
  for (const std::uint64_t flag : {0x2000, 0x8000}) {
    Container container;
    container.add(Container::kPtx, 80, "compressed", 0x11 | flag);
    EXPECT_THAT([&] { compute_80_ptx(container.get()); },
                ThrowsMessage<std::runtime_error>(HasSubstr("--no-compress")));
  }
}

TEST(FatBinary, RelocatableCodeIsRefused) {
  Container container;
  container.add(Container::kPtx, 80, "relocatable");
  EXPECT_THAT([&] { compute_80_ptx(container.get(FATBINC_LINK_VERSION)); },
              ThrowsMessage<std::runtime_error>(HasSubstr("-rdc=true")));
}

TEST(FatBinary, SomethingElseIsRefused) {
  const std::uint64_t zeros[8] = {};
  EXPECT_THAT([&] { compute_80_ptx(zeros); }, ThrowsMessage<std::runtime_error>(HasSubstr("nvcc's format")));
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

// As for sm_90: the count is an attribute in the section .nv.info, which names the kernel by its symbol.
std::string machine_code_with_attributes(const std::string& kernel, std::uint32_t registers) {
  const std::string names = std::string("\0.nv.info\0", 10) + kernel + std::string("\0", 1);
  Elf64_Sym symbols[2] = {};
  symbols[1].st_name = 10;
  // An attribute of no interest, one without a size, the count.
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

// ---- CUDA's functions ----

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
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, event), cudaErrorNotSupported);
  EXPECT_TRUE(std::isnan(milliseconds));
  EXPECT_EQ(cudaEventElapsedTime(&milliseconds, event, never_recorded), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  EXPECT_EQ(cudaStreamSynchronize(stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventRecord(event, stream), cudaErrorInvalidResourceHandle);
  EXPECT_EQ(cudaEventDestroy(event), cudaSuccess);
  EXPECT_EQ(cudaEventDestroy(event), cudaErrorInvalidResourceHandle);
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
  EXPECT_STREQ(cudaGetErrorName(static_cast<cudaError_t>(12345)), "unrecognized error code");
}

TEST(VirtualRuntime, WhatIsNoKernelCannotBeLaunched) {
  int no_kernel = 0;
  EXPECT_EQ(cudaLaunchKernel(&no_kernel, {1, 1, 1}, {1, 1, 1}, nullptr, 0, nullptr), cudaErrorInvalidDeviceFunction);
  EXPECT_EQ(cudaGetLastError(), cudaErrorInvalidDeviceFunction);
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime
