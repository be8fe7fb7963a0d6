// The order between streams that the virtual CUDA runtime keeps track of. Races between streams are in emulate_test.py.
#include <cuda_runtime_api.h>
#include <gtest/gtest.h>

#include "emulator/report.h"
#include "emulator/runtime/virtual_runtime.h"

namespace flash_ladder::emulator::runtime {
namespace {

// Each used to be remembered with all of its predecessors, and the loop took more than 100 s instead of less than one.
TEST(VirtualStreams, StreamsThatHaveEndedAreForgotten) {
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  for (int i = 0; i < 20'000; ++i) {
    cudaStream_t stream = nullptr;
    ASSERT_EQ(cudaStreamCreate(&stream), cudaSuccess);
    ASSERT_EQ(cudaMemsetAsync(device, 1, 4, stream), cudaSuccess);
    ASSERT_EQ(cudaMemset(device, 2, 4), cudaSuccess);
    ASSERT_EQ(cudaStreamSynchronize(stream), cudaSuccess);
    ASSERT_EQ(cudaStreamDestroy(stream), cudaSuccess);
  }
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(take_findings().total, 0);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

TEST(VirtualStreams, WorkOfAStreamThatHasEndedIsInFlightUntilTheHostWaits) {
  void* device = nullptr;
  ASSERT_EQ(cudaMalloc(&device, 8), cudaSuccess);
  cudaStream_t ended = nullptr, other = nullptr;
  ASSERT_EQ(cudaStreamCreateWithFlags(&ended, cudaStreamNonBlocking), cudaSuccess);
  ASSERT_EQ(cudaStreamCreateWithFlags(&other, cudaStreamNonBlocking), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device, 3, 4, ended), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(ended), cudaSuccess);
  EXPECT_EQ(cudaMemsetAsync(device, 4, 4, other), cudaSuccess);
  const Findings taken = take_findings();
  ASSERT_EQ(taken.total, 1);
  EXPECT_EQ(taken.kept[0].kind, FindingKind::race);
  EXPECT_EQ(cudaDeviceSynchronize(), cudaSuccess);
  EXPECT_EQ(cudaStreamDestroy(other), cudaSuccess);
  EXPECT_EQ(cudaFree(device), cudaSuccess);
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime
