// How many CTAs fit on an SM, compared with the tables of the CUDA C++ Programming Guide and with values calculated
// manually.
#include "sass/occupancy.h"

#include <gtest/gtest.h>

namespace flash_ladder {
namespace {

constexpr int kKiB = 1024;

void expect(int compute_capability, int threads, int registers, int smem_bytes, int ctas,
            const std::string& limited_by) {
  const SmLimits* limits = sm_limits(compute_capability);
  ASSERT_NE(limits, nullptr);
  const Occupancy result = occupancy(*limits, threads, registers, smem_bytes);
  EXPECT_EQ(result.ctas_per_sm, ctas) << "sm_" << compute_capability;
  EXPECT_EQ(result.limited_by, limited_by) << "sm_" << compute_capability;
}

// CUDA C++ Programming Guide, "Technical Specifications per Compute Capability".
TEST(SmLimits, AsPublished) {
  struct Row {
    int compute_capability, warps, ctas, smem_kib, smem_per_cta_kib;
  };
  for (const Row& row :
       {Row{80, 64, 32, 164, 163}, {86, 48, 16, 100, 99}, {89, 48, 24, 100, 99}, {90, 64, 32, 228, 227}}) {
    const SmLimits* limits = sm_limits(row.compute_capability);
    ASSERT_NE(limits, nullptr);
    EXPECT_EQ(limits->threads, row.warps * 32);
    EXPECT_EQ(limits->ctas, row.ctas);
    EXPECT_EQ(limits->registers, 65536);
    EXPECT_EQ(limits->smem_bytes, row.smem_kib * kKiB);
    EXPECT_EQ(limits->smem_per_cta_bytes, row.smem_per_cta_kib * kKiB);
  }
  EXPECT_EQ(sm_limits(75), nullptr);
  EXPECT_EQ(sm_limits(100), nullptr);
}

TEST(Occupancy, LimitedByCtas) {
  expect(80, 32, 16, 0, 32, "CTAs");
  expect(86, 32, 16, 0, 16, "CTAs");
  expect(89, 32, 16, 0, 24, "CTAs");
  expect(90, 32, 16, 0, 32, "CTAs");
}

TEST(Occupancy, LimitedByThreads) {
  expect(80, 1024, 16, 0, 2, "threads");
  expect(86, 1024, 16, 0, 1, "threads");  // 1536 threads: half of the second would not fit
  expect(90, 256, 24, 0, 8, "threads");
}

// A warp gets its registers in units of 256, from the quarter of the register file that belongs to its scheduler.
TEST(Occupancy, LimitedByRegisters) {
  expect(90, 128, 254, 70 * kKiB, 2, "registers");  // 256 × 32 per warp: 2 warps per quarter, 8 in total
  expect(90, 128, 168, 0, 3, "registers");          // 168 × 32 = 5376: 3 warps per quarter
  expect(90, 128, 169, 0, 2, "registers");          // rounded up to 176 × 32 = 5632: only 2 warps per quarter
  expect(80, 128, 41, 0, 10, "registers");  // rounded up to 48 × 32 = 1536: 10 warps per quarter; 1312 would allow 12
  expect(80, 96, 255, 0, 2, "registers");   // 8 warps, 3 per CTA
}

// A CTA gets shared memory in units of 128 bytes, and the system takes 1 KiB of it.
TEST(Occupancy, LimitedBySharedMemory) {
  expect(86, 128, 166, 48 * kKiB, 2, "shared memory");  // 2 × 49 KiB of 100
  expect(86, 128, 16, 33024, 3, "shared memory");       // 33,024 + 1,024 = 266 units: 3 take 102,144 of 102,400 bytes
  expect(86, 128, 16, 33109, 2, "shared memory");       // 85 bytes more need a 267th unit: 3 CTAs would take 102,528
  expect(90, 256, 128, 139 * kKiB, 1, "shared memory");
}

TEST(Occupancy, LimitedByBoth) {
  expect(80, 128, 166, 48 * kKiB, 3, "registers and shared memory");   // 3 warps per quarter; 3 × 49 KiB of 164
  expect(90, 128, 255, 104 * kKiB, 2, "registers and shared memory");  // 2 warps per quarter; 2 × 105 KiB of 228
  expect(80, 256, 32, 0, 8, "registers and threads");  // 64 warps × 1024 registers: both limits are reached exactly
}

TEST(Occupancy, TheMostSharedMemoryOfOneCta) {
  for (const int compute_capability : {80, 86, 89, 90}) {
    const int most = sm_limits(compute_capability)->smem_per_cta_bytes;
    expect(compute_capability, 128, 64, most, 1, "shared memory");
    expect(compute_capability, 128, 64, most + 1, 0, "shared memory");
  }
}

TEST(Occupancy, MoreRegistersThanThereAre) { expect(90, 1024, 128, 0, 0, "registers"); }

TEST(Occupancy, NoThreadsIsNoLaunch) { EXPECT_THROW(occupancy(*sm_limits(80), 0, 32, 0), std::invalid_argument); }

}  // namespace
}  // namespace flash_ladder
