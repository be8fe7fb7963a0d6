// A producer and a consumer in one warp: lanes 0–15 fill slots that lanes 16–31 read, and each half polls an mbarrier of the
// other. Independent thread scheduling lets both halves make progress.
// `half_warps 0` runs it; `half_warps 1` waits for an arrival too many, which is a deadlock.
#include <cstdio>
#include <cstdlib>

#include "mbarrier.h"

constexpr int kHalf = 16, kRounds = 5;

__device__ bool has_ended(std::uint64_t* barrier, int parity) {
  std::uint32_t ended;
  asm volatile(
      "{ .reg .pred ended;\n"
      "mbarrier.test_wait.parity.shared.b64 ended, [%1], %2;\n"
      "selp.u32 %0, 1, 0, ended; }"
      : "=r"(ended)
      : "r"(smem_address(barrier)), "r"(parity)
      : "memory");
  return ended != 0;
}

// sums[i] = the sum of what slot i contains in all rounds.
__global__ void half_warps(int arrivals, int* sums) {
  __shared__ std::uint64_t full, empty;
  __shared__ int slots[kHalf];
  const int lane_id = threadIdx.x;
  if (lane_id == 0) {
    mbarrier_init(&full, arrivals);
    mbarrier_init(&empty, kHalf);
  }
  __syncwarp();
  if (lane_id < kHalf) {
    for (int round = 0; round < kRounds; ++round) {
      while (!has_ended(&empty, (round & 1) ^ 1)) continue;
      slots[lane_id] = 100 * round + lane_id;
      mbarrier_arrive(&full);
    }
  } else {
    int sum = 0;
    for (int round = 0; round < kRounds; ++round) {
      while (!has_ended(&full, round & 1)) continue;
      sum += slots[lane_id - kHalf];
      mbarrier_arrive(&empty);
    }
    sums[lane_id - kHalf] = sum;
  }
}

int main(int, char** arguments) {
  int* sums;
  cudaMallocManaged(&sums, kHalf * sizeof(int));
  half_warps<<<1, 32>>>(kHalf + std::atoi(arguments[1]), sums);
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  bool right = true;
  for (int i = 0; i < kHalf; ++i) right &= sums[i] == 100 * (kRounds * (kRounds - 1) / 2) + kRounds * i;
  std::puts(right ? "right" : "wrong");
  return right ? 0 : 1;
}
