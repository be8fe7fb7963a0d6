// A ring of tiles in shared memory: warp 0 copies them in, warp 1 adds them up, and mbarriers synchronise the two.
// `ring N` runs it with fault N, `ring 0` without one. emulate_test.py expects each fault to be found at the line that
// is marked.
#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <vector>

#include "mbarrier.h"

constexpr int kStages = 3;
constexpr int kLanes = 32;
constexpr int kPerLane = 4;  // floats: 16 bytes

// sums[i] = tiles[0][i] + tiles[1][i] + …, for tiles of kLanes * kPerLane floats.
template <int kFault>
__global__ void add_tiles(const float* tiles, int num_tiles, float* sums) {
  __shared__ alignas(16) float ring[kStages][kLanes * kPerLane];
  __shared__ std::uint64_t full[kStages], empty[kStages];
  const int warp_id = threadIdx.x / kLanes, first = threadIdx.x % kLanes * kPerLane;
  if (threadIdx.x < kStages) {
    mbarrier_init(&full[threadIdx.x], kLanes);
    mbarrier_init(&empty[threadIdx.x], kLanes);
  }
  __syncthreads();  // makes the barriers visible

  if (warp_id == 0) {
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % kStages, round = tile / kStages;
      if (kFault != 1) wait(&empty[stage], (round + 1) % 2);                       // fault: 4
      cp_async_16(&ring[stage][first], &tiles[tile * kLanes * kPerLane + first]);  // fault: 1
      if (kFault == 2)
        mbarrier_arrive(&full[stage]);  // does not wait for the copies
      else
        cp_async_mbarrier_arrive(&full[stage]);
    }
  } else {
    float sum[kPerLane] = {};
    for (int tile = 0; tile < num_tiles; ++tile) {
      const int stage = tile % kStages, round = tile / kStages;
      if (kFault != 3) wait(&full[stage], round % 2);
      for (int i = 0; i < kPerLane; ++i) sum[i] += ring[stage][first + i];  // fault: 2 3
      if (kFault != 4) mbarrier_arrive(&empty[stage]);
    }
    for (int i = 0; i < kPerLane; ++i) sums[first + i] = sum[i];
  }
}

int main(int argc, char** argv) {
  const int fault = argc > 1 ? std::atoi(argv[1]) : 0;
  const int num_tiles = argc > 2 ? std::atoi(argv[2]) : 7;
  constexpr int kTile = kLanes * kPerLane;
  std::vector<float> tiles(num_tiles * kTile), sums(kTile);
  for (int i = 0; i < num_tiles * kTile; ++i) tiles[i] = static_cast<float>(i % 13);
  float *tiles_device, *sums_device;
  cudaMalloc(&tiles_device, tiles.size() * sizeof(float));
  cudaMalloc(&sums_device, sums.size() * sizeof(float));
  cudaMemcpy(tiles_device, tiles.data(), tiles.size() * sizeof(float), cudaMemcpyHostToDevice);
  switch (fault) {
    case 0:
      add_tiles<0><<<1, 2 * kLanes>>>(tiles_device, num_tiles, sums_device);
      break;
    case 1:
      add_tiles<1><<<1, 2 * kLanes>>>(tiles_device, num_tiles, sums_device);
      break;
    case 2:
      add_tiles<2><<<1, 2 * kLanes>>>(tiles_device, num_tiles, sums_device);
      break;
    case 3:
      add_tiles<3><<<1, 2 * kLanes>>>(tiles_device, num_tiles, sums_device);
      break;
    case 4:
      add_tiles<4><<<1, 2 * kLanes>>>(tiles_device, num_tiles, sums_device);
      break;
    default:
      return 2;
  }
  const cudaError_t error = cudaMemcpy(sums.data(), sums_device, sums.size() * sizeof(float), cudaMemcpyDeviceToHost);
  if (error != cudaSuccess) {
    std::printf("%s\n", cudaGetErrorName(error));
    return 3;
  }
  for (int i = 0; i < kTile; ++i) {
    float expected = 0;
    for (int tile = 0; tile < num_tiles; ++tile) expected += tiles[tile * kTile + i];
    if (sums[i] != expected) {
      std::printf("wrong: element %d is %g, expected %g\n", i, sums[i], expected);
      return 4;
    }
  }
  std::printf("right\n");
  return 0;
}
