// Eight warps on a ring of two tiles, as in kernels without a CTA-wide barrier in their loop: every thread copies its part of
// each tile, every warp reads all of it, and a warp that is ahead may be a tile ahead of another.
// `decoupled_ring N` runs it with fault N, `decoupled_ring 0` without one. emulate_test.py expects each fault to be found at
// the line that is marked.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <iterator>
#include <vector>

#include "mbarrier.h"

constexpr int kStages = 2;
constexpr int kNumWarps = 8;
constexpr int kThreads = 32 * kNumWarps;
constexpr int kPerThread = 4;  // floats: the 16 bytes of one copy
constexpr int kTile = kThreads * kPerThread;

// sums[w][lane] = the sum, over all tiles, of the elements lane, lane + 32, … It is the same for each warp w.
template <int kFault>
__global__ void add_tiles(const float* tiles, int num_tiles, float* sums) {
  __shared__ alignas(16) float ring[kStages][kTile];
  __shared__ std::uint64_t full[kStages], empty[kStages];
  const int warp_id = threadIdx.x / 32, lane_id = threadIdx.x % 32;
  if (threadIdx.x < kStages) {
    mbarrier_init(&full[threadIdx.x], kFault == 6 ? kThreads - 1 : kThreads);
    mbarrier_init(&empty[threadIdx.x], kNumWarps);
  }
  __syncthreads();  // makes the barriers visible

  const auto copy_tile = [&](int tile) {
    const int stage = tile % kStages, first = threadIdx.x * kPerThread;
    cp_async_16(&ring[stage][first], &tiles[tile * kTile + first]);  // fault: 1 5
    if (kFault == 2)
      mbarrier_arrive(&full[stage]);  // does not wait for the copies
    else
      cp_async_mbarrier_arrive(&full[stage]);
  };
  for (int tile = 0; tile < kStages && tile < num_tiles; ++tile) copy_tile(tile);

  float sum = 0;
  for (int tile = 0; tile < num_tiles; ++tile) {
    const int stage = tile % kStages, parity = tile / kStages % 2;
    if (kFault != 3) wait(&full[stage], kFault == 7 ? 0 : parity);    // fault: 7
    for (int i = lane_id; i < kTile; i += 32) sum += ring[stage][i];  // fault: 2 3 6
    if (kFault != 5) __syncwarp();                                    // all lanes have read
    if (lane_id == 0 && (kFault != 4 || warp_id != 3)) mbarrier_arrive(&empty[stage]);
    if (tile + kStages < num_tiles) {
      if (kFault != 1) wait(&empty[stage], parity);  // fault: 4
      copy_tile(tile + kStages);
    }
  }
  sums[threadIdx.x] = sum;
}

int main(int argc, char** argv) {
  using Kernel = void (*)(const float*, int, float*);
  constexpr Kernel kKernels[] = {add_tiles<0>, add_tiles<1>, add_tiles<2>, add_tiles<3>,
                                 add_tiles<4>, add_tiles<5>, add_tiles<6>, add_tiles<7>};
  const int fault = argc > 1 ? std::atoi(argv[1]) : 0;
  const int num_tiles = argc > 2 ? std::atoi(argv[2]) : 7;
  if (fault < 0 || fault >= static_cast<int>(std::size(kKernels))) return 2;

  std::vector<float> tiles(num_tiles * kTile), sums(kThreads);
  for (int i = 0; i < num_tiles * kTile; ++i) tiles[i] = static_cast<float>(i % 13);
  float *tiles_device, *sums_device;
  cudaMalloc(&tiles_device, tiles.size() * sizeof(float));
  cudaMalloc(&sums_device, sums.size() * sizeof(float));
  cudaMemcpy(tiles_device, tiles.data(), tiles.size() * sizeof(float), cudaMemcpyHostToDevice);
  kKernels[fault]<<<1, kThreads>>>(tiles_device, num_tiles, sums_device);
  const cudaError_t error = cudaMemcpy(sums.data(), sums_device, sums.size() * sizeof(float), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorName(error));
    return 3;
  }
  for (int thread = 0; thread < kThreads; ++thread) {
    float expected = 0;
    for (int i = thread % 32; i < num_tiles * kTile; i += 32) expected += tiles[i];
    if (sums[thread] != expected) {
      std::printf("wrong: sum %d is %g, expected %g\n", thread, sums[thread], expected);
      return 4;
    }
  }
  std::printf("right\n");
  return 0;
}
