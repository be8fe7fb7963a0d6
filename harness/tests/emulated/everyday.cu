// What ordinary programs use beyond a kernel and a copy; each is started by its name. emulate_test.py runs them on the
// virtual GPU. Lines at which it expects a finding are marked: // fault: NAME.
#include <cooperative_groups.h>
#include <cooperative_groups/reduce.h>
#include <unistd.h>

#include <cassert>
#include <csignal>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    const cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                                    \
      std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error)); \
      std::exit(3);                                                                \
    }                                                                              \
  } while (0)

// Device memory of n ints, all zero.
int* zeros(int n) {
  int* pointer = nullptr;
  CHECK(cudaMalloc(&pointer, n * sizeof(int)));
  CHECK(cudaMemset(pointer, 0, n * sizeof(int)));
  return pointer;
}

std::vector<int> values(const int* pointer, int n) {
  std::vector<int> host(n);
  CHECK(cudaMemcpy(host.data(), pointer, n * sizeof(int), cudaMemcpyDeviceToHost));
  return host;
}

__global__ void asserts(int limit) {
  assert(threadIdx.x < limit);  // fault: assertion
}
int assertion() {
  asserts<<<1, 64>>>(100);
  CHECK(cudaDeviceSynchronize());
  asserts<<<1, 64>>>(40);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// Each block adds up what all blocks wrote before the grid synchronised.
__global__ void sum_of_the_grid(int* x, int* sums, int rounds) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  for (int round = 0; round < rounds; ++round) {
    if (threadIdx.x == 0) x[blockIdx.x] = static_cast<int>(blockIdx.x) + round;
    grid.sync();
    int sum = 0;
    for (unsigned i = 0; i < gridDim.x; ++i) sum += x[i];
    grid.sync();
    if (threadIdx.x == 0) sums[blockIdx.x] += sum;
  }
}
cudaError_t launch_cooperatively(int blocks, int rounds, int* x, int* sums) {
  void* arguments[] = {&x, &sums, &rounds};
  return cudaLaunchCooperativeKernel(reinterpret_cast<const void*>(sum_of_the_grid), dim3(blocks), dim3(96), arguments,
                                     0, nullptr);
}
int cooperative() {
  constexpr int kBlocks = 20, kRounds = 3;
  int *x = zeros(kBlocks), *sums = zeros(kBlocks);
  CHECK(launch_cooperatively(kBlocks, kRounds, x, sums));
  CHECK(cudaDeviceSynchronize());
  int wrong = 0;
  for (const int sum : values(sums, kBlocks)) wrong += sum != kRounds * (kBlocks * (kBlocks - 1) / 2) + 3 * kBlocks;
  std::printf("%d wrong\n", wrong);
  return 0;
}
// Tiles of several warps, which synchronise through shared memory that the program does not declare.
template <unsigned Size>
__device__ int wrong_results_of_tile(const cooperative_groups::thread_block& block, int* values, bool waits) {
  const auto tile = cooperative_groups::tiled_partition<Size>(block);
  const int i = threadIdx.x, first = i / Size * Size;
  int wrong =
      cooperative_groups::reduce(tile, i, cooperative_groups::plus<int>()) != Size * first + Size * (Size - 1) / 2;
  wrong += tile.shfl(i, Size - 2) != first + Size - 2;
  wrong += tile.any(i == 70) != (70 / Size == i / Size);
  wrong += tile.all(i < 128) != (first < 128);
  tile.sync();
  values[i] = i;  // fault: tiles_that_do_not_wait
  if (waits) tile.sync();
  wrong += values[first + (i + 40) % Size] != first + (i + 40) % Size;
  return wrong;
}
__global__ void results_of_tiles(bool waits, int* wrong) {
  __shared__ cooperative_groups::block_tile_memory<256> memory;
  __shared__ int values[2][256];
  const cooperative_groups::thread_block block = cooperative_groups::this_thread_block(memory);
  atomicAdd(wrong,
            wrong_results_of_tile<64>(block, values[0], waits) + wrong_results_of_tile<128>(block, values[1], true));
}
int count_wrong_results_of_tiles(bool waits) {
  int *wrong, host;
  CHECK(cudaMalloc(&wrong, sizeof host));
  CHECK(cudaMemset(wrong, 0, sizeof host));
  results_of_tiles<<<3, 256>>>(waits, wrong);
  CHECK(cudaMemcpy(&host, wrong, sizeof host, cudaMemcpyDeviceToHost));
  if (waits) std::printf("%d wrong\n", host);
  return 0;
}
int tiles_of_warps() { return count_wrong_results_of_tiles(true); }
int tiles_that_do_not_wait() { return count_wrong_results_of_tiles(false); }

int cooperative_too_large() {
  std::printf("%s\n", cudaGetErrorName(launch_cooperatively(100'000, 1, nullptr, nullptr)));
  return 0;
}

// A block waits for the one after it and passes on what it receives: the flags travel from the last block to the first.
__global__ void chain(volatile int* flags) {
  if (threadIdx.x != 0) return;
  int value = 1;
  if (blockIdx.x + 1 < gridDim.x) {
    while (flags[blockIdx.x + 1] == 0) {  // fault: nobody_flags blocks_too_many
    }
    value = flags[blockIdx.x + 1] + 1;
  }
  __threadfence();
  flags[blockIdx.x] = value;
}
int later_blocks() {
  int* flags = zeros(40);
  chain<<<40, 64>>>(flags);
  CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", values(flags, 40)[0]);
  return 0;
}
int blocks_too_many() {
  int* flags = zeros(5000);
  chain<<<5000, 1024>>>(flags);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

__global__ void waits_for_nobody(volatile int* flag) {
  while (*flag == 0) {  // fault: nobody_writes waits_for_the_host
  }
}
int nobody_writes() {
  waits_for_nobody<<<2, 32>>>(zeros(1));
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// On a GPU the host writes while the kernel runs.
int waits_for_the_host() {
  int* flag = nullptr;
  CHECK(cudaMallocHost(&flag, sizeof(int)));
  *flag = 0;
  waits_for_nobody<<<2, 32>>>(flag);
  *static_cast<volatile int*>(flag) = 1;
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// Threads of a warp are scheduled independently since sm_70: each lane gets the lock while the others spin.
__global__ void locked_increment(int* lock, int* counter, bool release) {
  while (atomicCAS(lock, 0, 1) != 0) {  // fault: lock_never_released
  }
  __threadfence();
  *reinterpret_cast<volatile int*>(counter) = *reinterpret_cast<volatile int*>(counter) + 1;
  __threadfence();
  if (release) atomicExch(lock, 0);
}
int lock_of_every_lane() {
  int *lock = zeros(1), *counter = zeros(1);
  locked_increment<<<3, 64>>>(lock, counter, true);
  CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", values(counter, 1)[0]);
  return 0;
}
int lock_never_released() {
  locked_increment<<<1, 64>>>(zeros(1), zeros(1), false);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// Lanes sleep between tests, and continue for a long time.
__global__ void sleeps(int* x) {
  if (threadIdx.x < 32) {
    for (int i = 0; i < 3000; ++i) __nanosleep(100);
    x[threadIdx.x] = 1;
  }
  __syncthreads();
  if (threadIdx.x >= 32) x[threadIdx.x] = x[threadIdx.x - 32] + 1;
}
int sleepers() {
  int* x = zeros(64);
  sleeps<<<1, 64>>>(x);
  CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", values(x, 64)[40]);
  return 0;
}

__global__ void counts(int* x) { atomicAdd(x, 1); }
int null_argument() {
  void* arguments[] = {nullptr};
  std::printf("%s\n", cudaGetErrorName(cudaLaunchKernel(reinterpret_cast<const void*>(counts), dim3(1), dim3(1),
                                                        arguments, 0, nullptr)));
  std::printf("%s\n", cudaGetErrorName(cudaLaunchKernel(reinterpret_cast<const void*>(counts), dim3(1), dim3(1),
                                                        nullptr, 0, nullptr)));
  return 0;
}

int large_grid() {
  counts<<<0x7fffffff, 32>>>(zeros(1));
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// Objects with virtual functions, which one launch creates, another one uses and a third one deletes.
struct Shape {
  virtual __device__ ~Shape() {}
  virtual __device__ float area() const = 0;
};
struct Square : Shape {
  float side;
  __device__ explicit Square(float s) : side(s) {}
  __device__ float area() const override { return side * side; }
};
struct Rectangle : Shape {
  float width, height;
  __device__ Rectangle(float w, float h) : width(w), height(h) {}
  __device__ float area() const override { return width * height; }
};
// All shapes of a list, which is itself a shape.
struct Group : Shape {
  Shape** shapes;
  int n;
  __device__ Group(Shape** s, int count) : shapes(s), n(count) {}
  __device__ float area() const override {
    float sum = 0;
    for (int i = 0; i < n; ++i) sum += shapes[i]->area();  // fault: groups_in_groups
    return sum;
  }
};
__global__ void makes(Shape** shapes) {
  const int i = threadIdx.x;
  const auto size = static_cast<float>(i);
  if (i % 3 == 0) {
    shapes[i] = new Square(size);
  } else {
    shapes[i] = new Rectangle(size, 2);
  }
}
__global__ void measures(Shape** shapes, int n, float* area) {
  Group group(shapes, n);
  Shape* all = &group;
  *area = all->area();
}
__global__ void deletes(Shape** shapes) { delete shapes[threadIdx.x]; }
__global__ void groups(Shape** shapes) {
  shapes[0] = new Group(shapes + 1, 1);
  shapes[1] = new Group(shapes + 2, 1);
}
int objects(bool in_groups) {
  constexpr int kShapes = 40;
  Shape** shapes;
  float *area, host = 0, expected = 0;
  CHECK(cudaMalloc(&shapes, kShapes * sizeof(Shape*)));
  CHECK(cudaMalloc(&area, sizeof(float)));
  makes<<<1, kShapes>>>(shapes);
  if (in_groups) groups<<<1, 1>>>(shapes);
  measures<<<1, 1>>>(shapes, kShapes, area);
  CHECK(cudaMemcpy(&host, area, sizeof host, cudaMemcpyDeviceToHost));
  deletes<<<1, kShapes>>>(shapes);
  CHECK(cudaDeviceSynchronize());
  for (int i = 0; i < kShapes; ++i) expected += static_cast<float>(i % 3 == 0 ? i * i : 2 * i);
  std::printf("area %g, expected %g\n", host, expected);
  return 0;
}
int virtual_functions() { return objects(false); }
int groups_in_groups() { return objects(true); }

// Memory of the heap from which kernels allocate.
enum class Heap { right, overflow, uninitialised, after_free, twice, not_its_own, full };
__global__ void uses_heap(Heap fault, int* x) {
  const int n = fault == Heap::full ? 5'000'000 : 16;
  int* mine = static_cast<int*>(malloc(n * sizeof(int)));
  if (fault != Heap::uninitialised) {
    for (int i = 0; i < 16; ++i) mine[i] = threadIdx.x + i;  // fault: full_heap
  }
  if (fault == Heap::full) return;
  if (fault == Heap::overflow) mine[n] = 1;  // fault: heap_overflow
  int sum = 0;
  for (int i = 0; i < 16; ++i) sum += mine[i];  // fault: uninitialised_heap
  free(mine);
  if (fault == Heap::after_free) sum += mine[3];  // fault: use_after_free
  if (fault == Heap::twice) free(mine);           // fault: freed_twice
  if (fault == Heap::not_its_own) free(x);        // fault: freed_not_its_own
  x[threadIdx.x] = sum;
}
int use_heap(Heap fault) {
  int* x = zeros(64);
  uses_heap<<<1, 64>>>(fault, x);
  CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", values(x, 64)[10]);
  return 0;
}
int heap() { return use_heap(Heap::right); }
int heap_overflow() { return use_heap(Heap::overflow); }
int uninitialised_heap() { return use_heap(Heap::uninitialised); }
int use_after_free() { return use_heap(Heap::after_free); }
int freed_twice() { return use_heap(Heap::twice); }
int freed_not_its_own() { return use_heap(Heap::not_its_own); }
int full_heap() { return use_heap(Heap::full); }
__global__ void hands_out(int** pointer) {
  *pointer = static_cast<int*>(malloc(64));
  for (int i = 0; i < 16; ++i) (*pointer)[i] = i;
}
int heap_of_the_host() {
  int *pointer = nullptr, **device;
  size_t bytes = 0;
  CHECK(cudaDeviceSetLimit(cudaLimitMallocHeapSize, 1 << 20));
  CHECK(cudaDeviceGetLimit(&bytes, cudaLimitMallocHeapSize));
  std::printf("%zu\n", bytes);
  CHECK(cudaMalloc(&device, sizeof(int*)));
  hands_out<<<1, 1>>>(device);
  CHECK(cudaMemcpy(&pointer, device, sizeof pointer, cudaMemcpyDeviceToHost));
  CHECK(cudaMemcpy(&bytes, pointer, sizeof bytes, cudaMemcpyDeviceToHost));
  return 0;
}

// Ctrl-C during a kernel that runs for ever after it has made an error.
__global__ void goes_wrong_and_on(int* x, int n) {
  x[n] = 1;  // fault: interrupted
  // The loop could end, because one that cannot would be detected.
  for (int i = 1; i != 0; i += 2 * n) *static_cast<volatile int*>(x) = 1;
}
int interrupted() {
  int* x = nullptr;
  CHECK(cudaMallocManaged(&x, sizeof(int)));
  *x = 0;
  std::thread([x] {
    while (*static_cast<volatile int*>(x) == 0) std::this_thread::yield();
    kill(getpid(), SIGINT);
  }).detach();
  goes_wrong_and_on<<<1, 32>>>(x, 1);
  CHECK(cudaDeviceSynchronize());
  return 0;
}

// A kernel's arguments are those at the time of the capture.
__global__ void adds(int* x, int n) { x[threadIdx.x] += n; }
int graph_of_kernels() {
  int* x = zeros(32);
  cudaStream_t stream;
  CHECK(cudaStreamCreate(&stream));
  cudaGraph_t graph;
  cudaGraphExec_t executable;
  CHECK(cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal));
  for (int n = 1; n <= 3; ++n) adds<<<1, 32, 0, stream>>>(x, n);
  CHECK(cudaStreamEndCapture(stream, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  std::printf("%d ", values(x, 32)[5]);
  for (int i = 0; i < 4; ++i) CHECK(cudaGraphLaunch(executable, stream));
  CHECK(cudaStreamSynchronize(stream));
  std::printf("%d\n", values(x, 32)[5]);
  return 0;
}

int elapsed_time() {
  cudaEvent_t start, stop;
  CHECK(cudaEventCreate(&start));
  CHECK(cudaEventCreate(&stop));
  for (int round = 0; round < 2; ++round) {
    CHECK(cudaEventRecord(start));
    counts<<<1, 32>>>(zeros(1));
    CHECK(cudaEventRecord(stop));
    CHECK(cudaEventSynchronize(stop));
    float milliseconds = -1;
    CHECK(cudaEventElapsedTime(&milliseconds, start, stop));
    std::puts(milliseconds > 0 ? "some time" : "no time");
  }
  return 0;
}

#define PROGRAM(name) {#name, name}
const struct {
  const char* name;
  int (*run)();
} programs[] = {PROGRAM(assertion),
                PROGRAM(cooperative),
                PROGRAM(cooperative_too_large),
                PROGRAM(tiles_of_warps),
                PROGRAM(tiles_that_do_not_wait),
                PROGRAM(later_blocks),
                PROGRAM(blocks_too_many),
                PROGRAM(nobody_writes),
                PROGRAM(waits_for_the_host),
                PROGRAM(lock_of_every_lane),
                PROGRAM(lock_never_released),
                PROGRAM(sleepers),
                PROGRAM(null_argument),
                PROGRAM(large_grid),
                PROGRAM(interrupted),
                PROGRAM(graph_of_kernels),
                PROGRAM(elapsed_time),
                PROGRAM(virtual_functions),
                PROGRAM(groups_in_groups),
                PROGRAM(heap),
                PROGRAM(heap_overflow),
                PROGRAM(uninitialised_heap),
                PROGRAM(use_after_free),
                PROGRAM(freed_twice),
                PROGRAM(freed_not_its_own),
                PROGRAM(full_heap),
                PROGRAM(heap_of_the_host)};

int main(int argc, char** argv) {
  for (const auto& program : programs)
    if (argc == 2 && std::strcmp(argv[1], program.name) == 0) return program.run();
  std::fprintf(stderr, "which program?\n");
  return 2;
}
