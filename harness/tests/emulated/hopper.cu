// Programs for sm_90a, as students write them: a product by TMA and wgmma, and clusters that read each other's shared memory.
// emulate_test.py builds it with -arch=sm_90a and runs hopper NAME right, and hopper NAME wrong. Lines at which it expects the finding
// of the wrong form are marked: // fault: NAME.
#include <cooperative_groups.h>
#include <cuda.h>
#include <cuda_fp16.h>

#include <cstdint>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    const cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                                    \
      std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error)); \
      std::exit(3);                                                                \
    }                                                                              \
  } while (0)

namespace cg = cooperative_groups;

// ---- C = A B^T, [64][64] each, by one warpgroup

__device__ std::uint32_t shared_address(const void* p) {
  return static_cast<std::uint32_t>(__cvta_generic_to_shared(p));
}

__device__ void load(void* to, const CUtensorMap& map, std::uint64_t* barrier) {
  asm volatile(
      "cp.async.bulk.tensor.2d.shared::cluster.global.mbarrier::complete_tx::bytes [%0], [%1, {%3, %3}], [%2];" ::"r"(
          shared_address(to)),
      "l"(&map), "r"(shared_address(barrier)), "r"(0)
      : "memory");
}

__device__ std::uint64_t descriptor(const void* p) {
  return (shared_address(p) >> 4) | std::uint64_t{1024 >> 4} << 32 | std::uint64_t{1} << 62;
}

template <bool kRight>
__global__ void __launch_bounds__(128)
    product(const __grid_constant__ CUtensorMap A_map, const __grid_constant__ CUtensorMap B_map, float* C) {
  __shared__ __align__(1024) __half A[64 * 64], B[64 * 64];
  __shared__ std::uint64_t barrier;
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.init.shared.b64 [%0], 1;" ::"r"(shared_address(&barrier)));
    asm volatile("fence.mbarrier_init.release.cluster;" ::: "memory");
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    asm volatile("mbarrier.arrive.expect_tx.shared::cta.b64 _, [%0], %1;" ::"r"(shared_address(&barrier)), "r"(16384)
                 : "memory");
    load(A, A_map, &barrier);
    load(B, B_map, &barrier);
  }
  asm volatile("{ .reg .pred p; WAIT: mbarrier.try_wait.parity.shared::cta.b64 p, [%0], 0; @!p bra WAIT; }" ::"r"(
                   shared_address(&barrier))
               : "memory");
  float D[8][4] = {};
  // The zeros come before the fence, and the compiler must not move them.
#pragma unroll
  for (int i = 0; i < 32; ++i) asm volatile("" : "+f"(D[i / 4][i % 4])::"memory");
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
#pragma unroll
  for (int k = 0; k < 4; ++k) {
    asm volatile(
        "wgmma.mma_async.sync.aligned.m64n64k16.f32.f16.f16 {%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, "
        "%15, %16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31}, %32, %33, 1, 1, 1, 0, 0;"
        : "+f"(D[0][0]), "+f"(D[0][1]), "+f"(D[0][2]), "+f"(D[0][3]), "+f"(D[1][0]), "+f"(D[1][1]), "+f"(D[1][2]),
          "+f"(D[1][3]), "+f"(D[2][0]), "+f"(D[2][1]), "+f"(D[2][2]), "+f"(D[2][3]), "+f"(D[3][0]), "+f"(D[3][1]),
          "+f"(D[3][2]), "+f"(D[3][3]), "+f"(D[4][0]), "+f"(D[4][1]), "+f"(D[4][2]), "+f"(D[4][3]), "+f"(D[5][0]),
          "+f"(D[5][1]), "+f"(D[5][2]), "+f"(D[5][3]), "+f"(D[6][0]), "+f"(D[6][1]), "+f"(D[6][2]), "+f"(D[6][3]),
          "+f"(D[7][0]), "+f"(D[7][1]), "+f"(D[7][2]), "+f"(D[7][3])
        : "l"(descriptor(A) + k * 2), "l"(descriptor(B) + k * 2));
  }
  asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
  if (kRight) asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  const int row = threadIdx.x / 32 * 16 + threadIdx.x % 32 / 4, column = threadIdx.x % 4 * 2;
#pragma unroll
  for (int n = 0; n < 8; ++n)
    for (int i = 0; i < 4; ++i) C[(row + i / 2 * 8) * 64 + n * 8 + column + i % 2] = D[n][i];  // fault: product
}

CUtensorMap map_of(void* data) {
  CUtensorMap map;
  const cuuint64_t sizes[] = {64, 64}, strides[] = {128};
  const cuuint32_t box[] = {64, 64}, steps[] = {1, 1};
  const CUresult result = cuTensorMapEncodeTiled(&map, CU_TENSOR_MAP_DATA_TYPE_FLOAT16, 2, data, sizes, strides, box,
                                                 steps, CU_TENSOR_MAP_INTERLEAVE_NONE, CU_TENSOR_MAP_SWIZZLE_128B,
                                                 CU_TENSOR_MAP_L2_PROMOTION_L2_128B, CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE);
  if (result != CUDA_SUCCESS) std::exit(3);
  return map;
}

void run_product(bool right) {
  std::vector<__half> A(64 * 64), B(64 * 64);
  for (int i = 0; i < 64 * 64; ++i) {
    A[i] = __float2half(static_cast<float>(i * 7 % 11 - 5));
    B[i] = __float2half(static_cast<float>(i * 5 % 13 - 6));
  }
  void *A_device, *B_device;
  float* C_device;
  CHECK(cudaMalloc(&A_device, 8192));
  CHECK(cudaMalloc(&B_device, 8192));
  CHECK(cudaMalloc(&C_device, 16384));
  CHECK(cudaMemcpy(A_device, A.data(), 8192, cudaMemcpyHostToDevice));
  CHECK(cudaMemcpy(B_device, B.data(), 8192, cudaMemcpyHostToDevice));
  (right ? product<true> : product<false>)<<<1, 128>>>(map_of(A_device), map_of(B_device), C_device);
  CHECK(cudaGetLastError());
  std::vector<float> C(64 * 64);
  CHECK(cudaMemcpy(C.data(), C_device, 16384, cudaMemcpyDeviceToHost));
  int wrong = 0;
  for (int i = 0; i < 64; ++i) {
    for (int j = 0; j < 64; ++j) {
      float sum = 0;
      for (int k = 0; k < 64; ++k) sum += __half2float(A[i * 64 + k]) * __half2float(B[j * 64 + k]);
      wrong += C[i * 64 + j] != sum;
    }
  }
  std::printf("%d wrong\n", wrong);
}

// ---- Clusters: each CTA sums up the values of all of them

template <bool kMeetsFirst, bool kMeetsLast>
__device__ void sum_of_cluster(int* x) {
  __shared__ int own[32];
  const cg::cluster_group cluster = cg::this_cluster();
  own[threadIdx.x] = static_cast<int>(cluster.block_rank() + 1) * 100 + static_cast<int>(threadIdx.x);
  if (kMeetsFirst) cluster.sync();
  int sum = 0;
  for (unsigned rank = 0; rank < cluster.num_blocks(); ++rank)
    sum += cluster.map_shared_rank(own, static_cast<int>(rank))[threadIdx.x];  // fault: not_met left_early
  if (kMeetsLast) cluster.sync();
  x[blockIdx.x * 32 + threadIdx.x] = sum;
}

template <bool kRight>
__global__ void __cluster_dims__(4) not_met(int* x) {
  sum_of_cluster<kRight, true>(x);
}
template <bool kRight>
__global__ void __cluster_dims__(4) left_early(int* x) {
  sum_of_cluster<true, kRight>(x);
}

// A histogram that is distributed over the CTAs.
template <bool kRight>
__global__ void __cluster_dims__(1, 2) histogram(int* x) {
  __shared__ int bins[8];
  const cg::cluster_group cluster = cg::this_cluster();
  if (threadIdx.x < 8) bins[threadIdx.x] = 0;
  cluster.sync();
  const unsigned bin = (threadIdx.x * 5 + blockIdx.y * 3) % 16;
  int* const there = cluster.map_shared_rank(bins, static_cast<int>(bin / 8)) + bin % 8;
  if (kRight)
    atomicAdd(there, 1);
  else
    ++*there;  // fault: histogram
  cluster.sync();
  if (threadIdx.x < 8) x[blockIdx.y * 8 + threadIdx.x] = bins[threadIdx.x];
}

int main(int argc, char** argv) {
  if (argc != 3) return 2;
  const bool right = std::strcmp(argv[2], "right") == 0;
  const auto is = [&](const char* name) { return std::strcmp(argv[1], name) == 0; };
  if (is("product")) {
    run_product(right);
    return 0;
  }
  int* x;
  CHECK(cudaMalloc(&x, 1024));
  CHECK(cudaMemset(x, 0, 1024));
  if (is("not_met")) (right ? not_met<true> : not_met<false>)<<<8, 32>>>(x);
  if (is("left_early")) (right ? left_early<true> : left_early<false>)<<<8, 32>>>(x);
  if (is("histogram")) (right ? histogram<true> : histogram<false>)<<<dim3(1, 2), 32>>>(x);
  int result[256];
  CHECK(cudaMemcpy(result, x, 1024, cudaMemcpyDeviceToHost));
  std::printf("%d %d %d\n", result[0], result[15], result[255]);
}
