// Small CUDA programs as a student might write them, each started by its name. emulate_test.py runs them on the virtual GPU.
// Lines at which it expects a finding are marked: // fault: NAME.
#include <cmath>
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

__constant__ float scale;
__device__ int launches;

template <typename T>
__global__ void scale_all(T* x, int n) {
  const int i = blockIdx.x * blockDim.x + threadIdx.x;
  if (i < n) x[i] *= static_cast<T>(scale);
  if (i == 0) ++launches;
}

__global__ void sum_of_block(const float* x, float* sums) {
  __shared__ float partial[256];
  partial[threadIdx.x] = x[blockIdx.x * 256 + threadIdx.x];
  __syncthreads();
  for (int step = 128; step > 0; step /= 2) {
    if (threadIdx.x < step) partial[threadIdx.x] += partial[threadIdx.x + step];
    __syncthreads();
  }
  if (threadIdx.x == 0) sums[blockIdx.x] = partial[0];
}

// Tiles of eight lanes, which exchange values and wait for each other in one instruction, each under its own mask.
__global__ void tiles_of_a_warp(int* right) {
  const unsigned lane = threadIdx.x, mask = 0xffu << (lane / 8 * 8);
  __shared__ unsigned of_lane[32];
  of_lane[lane] = lane;
  __syncwarp(mask);
  right[lane] = (__ballot_sync(mask, lane % 3 == 0) == (0x49249249u & mask)) +
                (__any_sync(mask, lane == 20) == (lane / 8 == 2)) + (__all_sync(mask, lane < 16) == (lane < 16)) +
                (__reduce_add_sync(mask, lane) == 28 + lane / 8 * 64) +
                (__match_any_sync(mask, lane % 4) == 0x11u << (lane % 4 + lane / 8 * 8)) +
                (__shfl_xor_sync(mask, lane, 7) == of_lane[lane ^ 7]);
}
int tiles() {
  int *right, sum = 0, host[32];
  CHECK(cudaMalloc(&right, sizeof host));
  tiles_of_a_warp<<<1, 32>>>(right);
  CHECK(cudaMemcpy(host, right, sizeof host, cudaMemcpyDeviceToHost));
  for (const int of_lane : host) sum += of_lane;
  std::printf("%d of 192 are right\n", sum);
  CHECK(cudaFree(right));
  return 0;
}

// Everything that an ordinary small program does: two kernels, a stream, events, a symbol, pinned memory.
int correct() {
  constexpr int kBlocks = 5, kN = kBlocks * 256;
  std::vector<float> x(kN);
  for (int i = 0; i < kN; ++i) x[i] = static_cast<float>(i % 7);
  float *x_device, *sums_device, *sums;
  CHECK(cudaMalloc(&x_device, kN * sizeof(float)));
  CHECK(cudaMalloc(&sums_device, kBlocks * sizeof(float)));
  CHECK(cudaMallocHost(&sums, kBlocks * sizeof(float)));
  cudaStream_t stream;
  cudaEvent_t start, stop;
  CHECK(cudaStreamCreate(&stream));
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));

  const float two = 2;
  CHECK(cudaMemcpyToSymbol(scale, &two, sizeof two));
  CHECK(cudaMemcpyAsync(x_device, x.data(), kN * sizeof(float), cudaMemcpyHostToDevice, stream));
  CHECK(cudaEventRecord(start, stream));
  scale_all<<<kBlocks + 1, 256, 0, stream>>>(x_device, kN);
  sum_of_block<<<kBlocks, 256, 0, stream>>>(x_device, sums_device);
  CHECK(cudaGetLastError());
  CHECK(cudaEventRecord(stop, stream));
  CHECK(cudaMemcpyAsync(sums, sums_device, kBlocks * sizeof(float), cudaMemcpyDeviceToHost, stream));
  CHECK(cudaStreamSynchronize(stream));

  int count = 0;
  CHECK(cudaMemcpyFromSymbol(&count, launches, sizeof count));
  float expected = 0;
  for (int i = 0; i < 256; ++i) expected += 2 * x[i];
  const float sum = sums[0];
  std::printf("sum %g, expected %g, %d launch\n", sum, expected, count);
  CHECK(cudaFree(x_device));
  CHECK(cudaFree(sums_device));
  CHECK(cudaFreeHost(sums));
  CHECK(cudaStreamDestroy(stream));
  return sum == expected ? 0 : 4;
}

int managed() {
  int* x;
  CHECK(cudaMallocManaged(&x, 64 * sizeof(int)));
  for (int i = 0; i < 64; ++i) x[i] = i;
  const float three = 3;
  CHECK(cudaMemcpyToSymbol(scale, &three, sizeof three));
  scale_all<<<1, 64>>>(x, 64);
  CHECK(cudaDeviceSynchronize());
  std::printf("%d %d\n", x[1], x[63]);
  CHECK(cudaFree(x));
  return 0;
}

__global__ void prints() { printf("thread %d of %d\n", threadIdx.x, blockDim.x); }
int device_printf() {
  prints<<<1, 3>>>();
  CHECK(cudaDeviceSynchronize());
  return 0;
}

int properties() {
  cudaDeviceProp device;
  CHECK(cudaGetDeviceProperties(&device, 0));
  int blocks = 0;
  CHECK(cudaOccupancyMaxActiveBlocksPerMultiprocessor(&blocks, sum_of_block, 256, 0));
  std::printf("%s, %d.%d, %zu bytes of shared memory, %d blocks per SM\n", device.name, device.major, device.minor,
              device.sharedMemPerBlockOptin, blocks);
  return 0;
}

int own_code() { return 7; }

int registers() {
  cudaFuncAttributes attributes;
  CHECK(cudaFuncGetAttributes(&attributes, sum_of_block));
  std::printf("%s\n", attributes.numRegs >= 4 && attributes.numRegs <= 64 ? "known" : "unknown");
  return 0;
}

struct Pair {
  double first, second;
};

__device__ __noinline__ Pair halves(Pair x, int which) {
  if (which % 3 == 0) return {x.first / 2, x.second};
  return {x.first, x.second / 2};
}

__device__ __noinline__ double product_of_halves(Pair x, int which) {
  const Pair y = halves(x, which), z = halves(y, which + 1);
  return y.first * y.second + z.first * z.second;
}

__global__ void call_functions(const double* x, double* y) {
  const int i = threadIdx.x;
  y[i] = sin(x[i]);
  y[64 + i] = pow(x[i], 1.25);
  y[128 + i] = tgamma(x[i] / 1000);
  y[192 + i] = product_of_halves({x[i], 3}, i);
  if (i % 2 == 0) y[192 + i] += product_of_halves({4, x[i]}, i + 1);
}

// Functions that the compiler does not inline, including mathematical ones.
int device_functions() {
  double host_x[64], host_y[256], *x, *y;
  for (int i = 0; i < 64; ++i) host_x[i] = i < 32 ? 1 + i * 0.75 : 1e5 * i;  // large ones take the slow path of sin
  CHECK(cudaMalloc(&x, sizeof host_x));
  CHECK(cudaMalloc(&y, sizeof host_y));
  CHECK(cudaMemcpy(x, host_x, sizeof host_x, cudaMemcpyHostToDevice));
  call_functions<<<1, 64>>>(x, y);
  CHECK(cudaGetLastError());
  CHECK(cudaMemcpy(host_y, y, sizeof host_y, cudaMemcpyDeviceToHost));
  int wrong = 0;
  const auto expect = [&](double got, double expected) {
    const bool same = std::isinf(expected) ? got == expected : std::fabs(got - expected) <= 1e-13 * std::fabs(expected);
    if (!same) ++wrong;
  };
  const auto product = [](double first, double second, int which) {
    double total = 0;
    for (int step = 0; step < 2; ++step) {
      ((which + step) % 3 == 0 ? first : second) /= 2;
      total += first * second;
    }
    return total;
  };
  for (int i = 0; i < 64; ++i) {
    expect(host_y[i], std::sin(host_x[i]));
    expect(host_y[64 + i], std::pow(host_x[i], 1.25));
    expect(host_y[128 + i], std::tgamma(host_x[i] / 1000));
    expect(host_y[192 + i], product(host_x[i], 3, i) + (i % 2 == 0 ? product(4, host_x[i], i + 1) : 0));
  }
  std::printf("%d wrong\n", wrong);
  return 0;
}

__device__ int plus_one(int x) { return x + 1; }
__device__ int twice(int x) { return 2 * x; }
typedef int (*Step)(int);
__device__ Step steps[3] = {plus_one, twice, nullptr};

__global__ void call_through_pointer(int* x, int different) {
  x[threadIdx.x] = steps[threadIdx.x % different](threadIdx.x);  // fault: call_of_nothing
}
int call_steps(int different) {
  int *x, host[32], wrong = 0;
  CHECK(cudaMalloc(&x, sizeof host));
  call_through_pointer<<<1, 32>>>(x, different);
  CHECK(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
  for (int i = 0; i < 32; ++i) wrong += host[i] != (i % 2 == 0 ? i + 1 : 2 * i);
  std::printf("%d wrong\n", wrong);
  return 0;
}
int function_pointers() { return call_steps(2); }
int call_of_nothing() { return call_steps(3); }

// ---- what the virtual GPU cannot run ----

__device__ __noinline__ int fibonacci(int n) { return n < 2 ? n : fibonacci(n - 1) + fibonacci(n - 2); }

__global__ void call_recursively(int* x) { x[threadIdx.x] = fibonacci(threadIdx.x); }
extern "C" __global__ void f(int* x) { x[threadIdx.x] = fibonacci(threadIdx.x); }
int recursion_in_c() {
  int* x;
  CHECK(cudaMalloc(&x, 32 * sizeof(int)));
  f<<<1, 32>>>(x);
  return 0;  // without checking the error
}
int recursion() {
  int* x;
  CHECK(cudaMalloc(&x, 32 * sizeof(int)));
  call_recursively<<<1, 32>>>(x);
  std::printf("%s\n", cudaGetErrorName(cudaGetLastError()));
  return 0;
}

// ---- mistakes ----

__global__ void write_one_too_far(int* x) {
  x[threadIdx.x + 1] = 1;  // fault: out_of_bounds
}
int out_of_bounds() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  write_one_too_far<<<1, 64>>>(x);
  CHECK(cudaGetLastError());
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__device__ __noinline__ void write_at(int* x, int i) {
  x[i] = 1;  // fault: callee_out_of_bounds
}
__global__ void call_with_wrong_index(int* x) {
  write_at(x, threadIdx.x);
  write_at(x, threadIdx.x + 2);  // fault: callee_out_of_bounds_call
}
// A thread's own two arrays, one of which has its first n elements filled. nvcc combines both into one.
__global__ void fill_local_array(int n, int* x) {
  int filled[8], other[8];
#pragma unroll 1
  for (int i = 0; i < 8; ++i) other[i] = i;
#pragma unroll 1
  for (int i = 0; i < n; ++i) filled[i] = 7 - i;  // fault: into_the_next_local_array
  int sum = 0;
#pragma unroll 1
  for (const int* last = filled + 8; last != filled;) sum += *--last;
  const int* chosen = threadIdx.x % 2 == 0 ? filled : other;
  x[threadIdx.x] = sum + chosen[n / 2];
}
int fill_local_arrays(int n) {
  int *x, host[2];
  CHECK(cudaMalloc(&x, sizeof host));
  fill_local_array<<<1, 2>>>(n, x);
  CHECK(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));
  std::printf("%d %d\n", host[0], host[1]);
  CHECK(cudaFree(x));
  return 0;
}
int local_arrays() { return fill_local_arrays(8); }
int into_the_next_local_array() { return fill_local_arrays(9); }

int callee_out_of_bounds() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  call_with_wrong_index<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

int sticky_error() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  write_one_too_far<<<1, 64>>>(x);
  const cudaError_t first = cudaDeviceSynchronize();
  void* more = nullptr;
  const cudaError_t second = cudaMalloc(&more, 4);
  std::printf("%s, %s, %s\n", cudaGetErrorName(first), cudaGetErrorName(second), cudaGetErrorName(cudaGetLastError()));
  return 0;
}

__global__ void reverse(int* x) {
  __shared__ int copy[64];
  copy[threadIdx.x] = x[threadIdx.x];
  x[threadIdx.x] = copy[63 - threadIdx.x];  // fault: missing_syncthreads
}
int missing_syncthreads() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  CHECK(cudaMemset(x, 0, 64 * sizeof(int)));
  reverse<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void read_unwritten(int* x) {
  __shared__ int copy[64];
  if (threadIdx.x < 32) copy[threadIdx.x] = 1;
  __syncthreads();
  x[threadIdx.x] = copy[threadIdx.x];  // fault: uninitialised_shared
}
int uninitialised_shared() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  read_unwritten<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void add_one(int* x) {
  x[threadIdx.x] += 1;  // fault: uninitialised_global
}
int uninitialised_global() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  add_one<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void half_waits(int* x) {
  if (threadIdx.x < 32) __syncthreads();  // fault: divergent_barrier
  x[threadIdx.x] = 1;
  __syncthreads();
  if (threadIdx.x < 16) __syncthreads();
}
int divergent_barrier() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  half_waits<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void never_ends(volatile int* x) {
  while (*x == 0) {  // fault: endless_loop
  }
}
int endless_loop() {
  int* x;
  CHECK(cudaMalloc(&x, sizeof(int)));
  CHECK(cudaMemset(x, 0, sizeof(int)));
  never_ends<<<1, 1>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void read_pair(const char* x, double* y) {
  *y = *reinterpret_cast<const double*>(x + 4);  // fault: misaligned
}
int misaligned() {
  char* x;
  double* y;
  CHECK(cudaMalloc(&x, 64));
  CHECK(cudaMalloc(&y, sizeof(double)));
  CHECK(cudaMemset(x, 0, 64));
  read_pair<<<1, 1>>>(x, y);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

int too_much_shared_memory() {
  write_one_too_far<<<1, 32, 60000>>>(nullptr);
  CHECK(cudaGetLastError());
  return 0;
}

int copy_too_long() {
  int* x;
  int host[64] = {};
  CHECK(cudaMalloc(&x, 32 * sizeof(int)));
  cudaMemcpy(x, host, sizeof host, cudaMemcpyHostToDevice);
  return 0;
}

int copy_the_wrong_way() {
  int* x;
  int host[32] = {};
  CHECK(cudaMalloc(&x, sizeof host));
  cudaMemcpy(host, x, sizeof host, cudaMemcpyHostToDevice);
  return 0;
}

int freed_twice() {
  int* x;
  CHECK(cudaMalloc(&x, 4));
  CHECK(cudaFree(x));
  cudaFree(x);
  return 0;
}

int host_touches_device_memory() {
  int* x;
  CHECK(cudaMalloc(&x, 4));
  std::printf("before\n");
  *static_cast<volatile int*>(x) = 1;
  return 0;
}

__global__ void many_mistakes(int* x) {
#define MISTAKE(i) x[64 + 100 * i + threadIdx.x] = i
  MISTAKE(0);
  MISTAKE(1);
  MISTAKE(2);
  MISTAKE(3);
  MISTAKE(4);
  MISTAKE(5);
  MISTAKE(6);
  MISTAKE(7);
  MISTAKE(8);
  MISTAKE(9);
  MISTAKE(10);
  MISTAKE(11);
}
int twelve_mistakes() {
  int* x;
  CHECK(cudaMalloc(&x, 64 * sizeof(int)));
  many_mistakes<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

int graph() {
  cudaGraph_t graph;
  CHECK(cudaGraphCreate(&graph, 0));
  cudaGraphNode_t node;
  CHECK(cudaGraphAddEmptyNode(&node, graph, nullptr, 0));
  return 0;
}

#define PROGRAM(name) {#name, name}
const struct {
  const char* name;
  int (*run)();
} programs[] = {PROGRAM(correct),
                PROGRAM(tiles),
                PROGRAM(managed),
                PROGRAM(device_printf),
                PROGRAM(properties),
                PROGRAM(own_code),
                PROGRAM(registers),
                PROGRAM(device_functions),
                PROGRAM(function_pointers),
                PROGRAM(call_of_nothing),
                PROGRAM(recursion),
                PROGRAM(recursion_in_c),
                PROGRAM(callee_out_of_bounds),
                PROGRAM(out_of_bounds),
                PROGRAM(local_arrays),
                PROGRAM(into_the_next_local_array),
                PROGRAM(sticky_error),
                PROGRAM(missing_syncthreads),
                PROGRAM(uninitialised_shared),
                PROGRAM(uninitialised_global),
                PROGRAM(divergent_barrier),
                PROGRAM(endless_loop),
                PROGRAM(misaligned),
                PROGRAM(too_much_shared_memory),
                PROGRAM(copy_too_long),
                PROGRAM(copy_the_wrong_way),
                PROGRAM(freed_twice),
                PROGRAM(host_touches_device_memory),
                PROGRAM(twelve_mistakes),
                PROGRAM(graph)};

int main(int argc, char** argv) {
  for (const auto& program : programs)
    if (argc == 2 && std::strcmp(argv[1], program.name) == 0) return program.run();
  std::fprintf(stderr, "which program?\n");
  return 2;
}
