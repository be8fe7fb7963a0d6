// Programs whose threads communicate, each in two forms: right, and without the synchronisation of the accesses.
// emulate_test.py runs both on the virtual GPU: ordering NAME right, ordering NAME wrong. Lines at which it expects one of the two
// accesses of the wrong form are marked: // fault: NAME.
#include <cooperative_groups.h>

#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <cuda/atomic>
#include <cuda/barrier>
#include <cuda/pipeline>
#include <cuda/semaphore>
#include <vector>

#define CHECK(call)                                                                \
  do {                                                                             \
    const cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                                    \
      std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error)); \
      std::exit(3);                                                                \
    }                                                                              \
  } while (0)

constexpr int kWords = 4096;

// ---- Threads of a block, in global memory

template <bool kRight>
__global__ void counter(int* x) {
  if (kRight)
    atomicAdd(x, 1);
  else
    ++*x;  // fault: counter
}

template <bool kRight>
__global__ void volatile_counter(int* x) {
  volatile int* const count = x;
  if (kRight)
    atomicAdd(x, 1);
  else
    *count = *count + 1;  // fault: volatile_counter
}

template <bool kRight>
__global__ void shift(int* x) {
  const int next = x[threadIdx.x + 1];
  if (kRight) __syncthreads();
  x[threadIdx.x] = next + 1;  // fault: shift
}

// All threads read what the last thread then writes.
template <bool kRight>
__global__ void running_total(int* x) {
  for (int round = 0; round < 4; ++round) {
    const int total = x[0];
    if (kRight) __syncthreads();
    if (threadIdx.x == blockDim.x - 1) x[0] = total + 1;  // fault: running_total
    __syncthreads();
    x[1 + threadIdx.x] = total;
  }
}

template <bool kRight>
__global__ void lanes(int* x) {
  x[threadIdx.x] = static_cast<int>(threadIdx.x);  // fault: lanes
  if (kRight) __syncwarp();
  x[1024 + threadIdx.x] = x[threadIdx.x ^ 1];
}

// ---- Blocks

template <bool kRight>
__global__ void block_counter(int* x) {
  if (threadIdx.x != 0) return;
  if (kRight)
    atomicAdd(x, 1);
  else
    x[0] += 1;  // fault: block_counter
}

// Each block reads beyond its own part of what it writes.
template <bool kRight>
__global__ void shift_of_blocks(int* x) {
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x);
  const int next = x[i + 1];
  __syncthreads();
  x[kRight ? i + 2048 : i] = next + 1;  // fault: shift_of_blocks
}

template <bool kRight>
__global__ void same_output(int* x) {
  x[threadIdx.x] = kRight ? 7 : static_cast<int>(blockIdx.x);  // fault: same_output
}

template <bool kRight>
__global__ void bytes_side_by_side(int* x) {
  auto* bytes = reinterpret_cast<unsigned char*>(x);
  const unsigned own = threadIdx.x * gridDim.x + (kRight ? blockIdx.x : 0);
  bytes[own] = static_cast<unsigned char>(blockIdx.x);  // fault: bytes_side_by_side
}

// The last block to arrive adds up what all have written.
template <bool kRight>
__global__ void last_block(int* x) {
  __shared__ bool last;
  int* const count = x + 3000;
  if (threadIdx.x == 0) {
    x[blockIdx.x] = static_cast<int>(blockIdx.x);  // fault: last_block
    if (kRight) __threadfence();
    last = atomicAdd(count, 1) == static_cast<int>(gridDim.x) - 1;
  }
  __syncthreads();
  if (!last) return;
  if (threadIdx.x < gridDim.x) atomicAdd(x + 3001, x[threadIdx.x]);
}

// Block 0 waits for a write of block 1.
template <bool kRight>
__global__ void flag_of_a_block(int* x) {
  volatile int* const flag = x + 64;
  if (blockIdx.x == 1) {
    if (threadIdx.x != 0) return;
    x[0] = 5;  // fault: flag_of_a_block
    if (kRight) __threadfence();
    *flag = 1;
  } else {
    if (threadIdx.x == 0) {
      while (*flag == 0) {
      }
      __threadfence();
    }
    __syncthreads();
    x[128 + threadIdx.x] = x[0];
  }
}

// The same, but the reader has no fence.
template <bool kRight>
__global__ void reader_without_a_fence(int* x) {
  volatile int* const flag = x + 64;
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 1) {
    x[0] = 5;
    __threadfence();
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    if (kRight) __threadfence();
    x[128] = x[0];  // fault: reader_without_a_fence
  }
}

// A fence for the block only.
template <bool kRight>
__global__ void scope_of_a_fence(int* x) {
  volatile int* const flag = x + 64;
  if (threadIdx.x != 0) return;
  if (blockIdx.x == 1) {
    x[0] = 5;  // fault: scope_of_a_fence
    if (kRight)
      __threadfence();
    else
      __threadfence_block();
    *flag = 1;
  } else {
    while (*flag == 0) {
    }
    __threadfence();
    x[128] = x[0];
  }
}

template <bool kRight>
__global__ void acquire_release(int* x) {
  if (threadIdx.x != 0) return;
  cuda::atomic_ref<int, cuda::thread_scope_device> flag(x[64]);
  constexpr auto kRelease = kRight ? cuda::memory_order_release : cuda::memory_order_relaxed;
  if (blockIdx.x == 1) {
    x[0] = 5;  // fault: acquire_release
    flag.store(1, kRelease);
  } else {
    while (flag.load(cuda::memory_order_acquire) == 0) {
    }
    x[128] = x[0];
  }
}

// Each block waits for the one before it, and adds to what the first wrote.
template <bool kRight>
__global__ void chain(int* x) {
  if (threadIdx.x != 0) return;
  const unsigned block = blockIdx.x;
  int* const flags = x + 1024;
  if (block > 0) {
    while (atomicAdd(flags + block - 1, 0) == 0) {
    }
    if (kRight) __threadfence();
  }
  x[block + 1] = x[block] + x[0] + 1;  // fault: chain
  __threadfence();
  atomicExch(flags + block, 1);
}

template <bool kRight>
__global__ void lock_of_blocks(int* x) {
  int* const lock = x + 64;
  if (threadIdx.x != 0) return;
  for (int round = 0; round < 3; ++round) {
    while (atomicCAS(lock, 0, 1) != 0) {
    }
    if (kRight) __threadfence();
    x[0] += 1;  // fault: lock_of_blocks
    if (kRight) __threadfence();
    atomicExch(lock, 0);
  }
}

template <bool kRight>
__global__ void two_locks(int* x) {
  if (threadIdx.x != 0) return;
  int* const lock = x + 64 + (kRight ? 0 : blockIdx.x);
  while (atomicCAS(lock, 0, 1) != 0) {
  }
  __threadfence();
  x[0] += 1;  // fault: two_locks
  __threadfence();
  atomicExch(lock, 0);
}

template <bool kRight>
__global__ void lock_of_every_lane(int* x) {
  int* const lock = x + 64;
  bool done = false;
  while (!done) {
    if (atomicCAS(lock, 0, 1) == 0) {
      if (kRight) __threadfence();
      x[0] += 1;  // fault: lock_of_every_lane
      if (kRight) __threadfence();
      atomicExch(lock, 0);
      done = true;
    }
  }
}

// Between two tries a lane waits by the clock, so that no two iterations are the same; and the threads reach the
// barrier one after another.
template <bool kRight>
__global__ void lock_with_a_pause(int* x) {
  int* const lock = x + 64;
  while (atomicCAS(lock, 0, 1) != 0) {
    const long long begin = clock64();
    while (clock64() - begin < 100) {
    }
  }
  if (kRight) __threadfence();
  x[0] += 1;  // fault: lock_with_a_pause
  if (kRight) __threadfence();
  atomicExch(lock, 0);
  __syncthreads();
  if (kRight && threadIdx.x == 0 && gridDim.x == 1 && x[0] != static_cast<int>(blockDim.x)) __trap();
}

// The lock of the standard library, which sleeps for longer and longer. For one lane of each warp: with all of them it
// hangs on an H200.
template <bool kRight>
__global__ void semaphore(int* x) {
  __shared__ alignas(8) char memory[sizeof(cuda::binary_semaphore<cuda::thread_scope_block>)];
  auto* const turn = reinterpret_cast<cuda::binary_semaphore<cuda::thread_scope_block>*>(memory);
  __shared__ int sum;
  if (threadIdx.x == 0) {
    new (turn) cuda::binary_semaphore<cuda::thread_scope_block>(1);
    sum = 0;
  }
  __syncthreads();
  if (threadIdx.x % 32 == 0) {
    if (kRight) turn->acquire();
    sum += 1 + static_cast<int>(threadIdx.x);  // fault: semaphore
    if (kRight) turn->release();
  }
  __syncthreads();
  if (threadIdx.x == 0) x[0] = sum;
  if (kRight && sum != 1 + 33) __trap();
}

// Block 0 waits for a block that begins later, but not for ever: each iteration changes a counter.
template <bool kRight>
__global__ void patience(int* x) {
  volatile int* const flag = x + 64;
  if (blockIdx.x != 0) {
    x[blockIdx.x] = 5;  // fault: patience
    if (kRight) __threadfence();
    if (blockIdx.x == gridDim.x - 1) *flag = 1;
    return;
  }
  bool came = false;
  for (int turn = 0; turn < 200000 && !came; ++turn) came = *flag != 0;
  if (!came) __trap();
  __threadfence();
  x[128] = x[gridDim.x - 1];
}

// A ticket lock: only its owner writes who is next.
template <bool kRight>
__global__ void tickets(int* x) {
  if (threadIdx.x != 0) return;
  volatile int* const serving = x + 65;
  const int ticket = atomicAdd(x + 64, 1);
  while (*serving != ticket) {
  }
  if (kRight) __threadfence();
  x[0] += 1;  // fault: tickets
  if (kRight) __threadfence();
  *serving = *serving + 1;
}

// A plain read before the loop, as in the programming guide.
template <bool kRight>
__global__ void maximum(int* x) {
  auto* const largest = reinterpret_cast<float*>(x);
  const float value = static_cast<float>(threadIdx.x + blockIdx.x);
  if (kRight) {
    int old = x[0], assumed;
    do {
      assumed = old;
      old = atomicCAS(x, assumed, __float_as_int(fmaxf(value, __int_as_float(assumed))));
    } while (assumed != old);
  } else {
    if (value > *largest) *largest = value;  // fault: maximum
  }
}

template <bool kRight>
__global__ void grid_sync(int* x) {
  const cooperative_groups::grid_group grid = cooperative_groups::this_grid();
  const int i = static_cast<int>(blockIdx.x * blockDim.x + threadIdx.x), n = static_cast<int>(gridDim.x * blockDim.x);
  for (int round = 0; round < 3; ++round) {
    const int next = x[(i + 1) % n];
    grid.sync();
    x[i] = next + 1;  // fault: grid_sync
    if (kRight || round == 2) grid.sync();
  }
}

// ---- Shared memory

template <bool kRight>
__global__ void warp_reduction(int* x) {
  __shared__ int values[64];
  volatile int* const sum = values;
  const unsigned t = threadIdx.x;
  values[t] = x[t] + 1;
  __syncthreads();
  if (t >= 32) return;
  for (unsigned distance = 32; distance > 0; distance /= 2) {
    int own = 0;
    if (kRight) {
      own = sum[t] + sum[t + distance];
      __syncwarp();
      sum[t] = own;
      __syncwarp();
    } else {
      sum[t] = sum[t] + sum[t + distance];  // fault: warp_reduction
    }
  }
  if (t == 0) x[0] = sum[0];
}

// The sum is in a register, so that no address is both read and written.
template <bool kRight>
__global__ void warp_reduction_in_a_register(int* x) {
  __shared__ int values[64];
  volatile int* const sum = values;
  const unsigned t = threadIdx.x;
  int own = x[t] + 1;
  sum[t] = own;
  if (t < 32) sum[t + 32] = 0;
  __syncwarp();
  for (unsigned distance = 16; distance > 0; distance /= 2) {
    const int other = sum[t + distance];
    if (kRight) __syncwarp();
    own += other;
    sum[t] = own;  // fault: warp_reduction_in_a_register
    if (kRight) __syncwarp();
  }
  if (t == 0) x[0] = own;
}

template <bool kRight>
__global__ void flag_of_a_warp(int* x) {
  __shared__ int data;
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncthreads();
  if (threadIdx.x == 32) {
    data = x[9];  // fault: flag_of_a_warp
    if (kRight) __threadfence_block();
    flag = 1;
  } else if (threadIdx.x == 0) {
    while (flag == 0) {
    }
    __threadfence_block();
    x[0] = data;
  }
}

// Lane 0 waits for a write of lane 1: threads of a warp are scheduled independently.
template <bool kRight>
__global__ void inside_a_warp(int* x) {
  __shared__ int data;
  __shared__ volatile int flag;
  if (threadIdx.x == 0) flag = 0;
  __syncwarp();
  if (threadIdx.x == 0) {
    while (flag == 0) {
    }
    __threadfence_block();
    x[0] = data;
  } else if (threadIdx.x == 1) {
    data = x[9];  // fault: inside_a_warp
    if (kRight) __threadfence_block();
    flag = 1;
  }
}

template <bool kRight>
__global__ void lock_in_shared_memory(int* x) {
  __shared__ int lock, sum;
  if (threadIdx.x == 0) lock = sum = 0;
  __syncthreads();
  bool done = false;
  while (!done) {
    if (atomicCAS(&lock, 0, 1) == 0) {
      if (kRight) __threadfence_block();
      sum += 1;  // fault: lock_in_shared_memory
      if (kRight) __threadfence_block();
      atomicExch(&lock, 0);
      done = true;
    }
  }
  __syncthreads();
  x[threadIdx.x] = sum;
}

template <bool kRight>
__global__ void shared_acquire_release(int* x) {
  __shared__ int data;
  __shared__ cuda::atomic<int, cuda::thread_scope_block> flag;
  if (threadIdx.x == 0) flag.store(0, cuda::memory_order_relaxed);
  __syncthreads();
  if (threadIdx.x == 32) {
    data = x[9];  // fault: shared_acquire_release
    flag.store(1, kRight ? cuda::memory_order_release : cuda::memory_order_relaxed);
  } else if (threadIdx.x == 0) {
    while (flag.load(cuda::memory_order_acquire) == 0) {
    }
    x[0] = data;
  }
}

// Two halves of a warp that synchronise in two branches.
template <bool kRight>
__global__ void two_branches(int* x) {
  __shared__ int values[32];
  const unsigned t = threadIdx.x;
  if (t < 16) {
    values[t] = x[t];
    if (kRight) __syncwarp();
    x[100 + t] = values[t + 16];
  } else {
    values[t] = x[t];
    if (kRight) __syncwarp();
    x[100 + t] = values[t - 16];  // fault: two_branches
  }
}

template <bool kRight>
__global__ void pipeline(int* x) {
  constexpr int kStages = 2;
  __shared__ cuda::pipeline_shared_state<cuda::thread_scope_block, kStages> state;
  __shared__ int tiles[kStages][64];
  const auto block = cooperative_groups::this_thread_block();
  auto pipe = cuda::make_pipeline(block, &state);
  const unsigned t = threadIdx.x;
  int sum = 0;
  for (int tile = 0; tile < 5; ++tile) {
    pipe.producer_acquire();
    cuda::memcpy_async(&tiles[tile % kStages][t], x + tile * 64 + t, sizeof(int), pipe);
    pipe.producer_commit();
    if (kRight) pipe.consumer_wait();
    sum += tiles[tile % kStages][t ^ 33];  // fault: pipeline
    pipe.consumer_release();
    if (!kRight) pipe.consumer_wait();
  }
  x[1024 + t] = sum;
}

template <bool kRight>
__global__ void barrier_object(int* x) {
  __shared__ cuda::barrier<cuda::thread_scope_block> barrier;
  __shared__ int values[64];
  if (threadIdx.x == 0) init(&barrier, blockDim.x);
  __syncthreads();
  values[threadIdx.x] = x[threadIdx.x];  // fault: barrier_object
  if (kRight)
    barrier.arrive_and_wait();
  else
    (void)barrier.arrive();
  x[64 + threadIdx.x] = values[threadIdx.x ^ 32];
}

template <bool kRight>
__global__ void histogram(int* x) {
  __shared__ int bins[16];
  if (threadIdx.x < 16) bins[threadIdx.x] = 0;
  __syncthreads();
  atomicAdd(&bins[threadIdx.x % 16], 1);
  if (kRight) __syncthreads();
  if (threadIdx.x < 16) atomicAdd(x + threadIdx.x, bins[threadIdx.x]);  // fault: histogram
}

using Kernel = void (*)(int*);
struct Program {
  const char* name;
  Kernel right, wrong;
  int blocks, threads;
  bool cooperative = false;
};
#define PROGRAM(name, blocks, threads) {#name, name<true>, name<false>, blocks, threads}
const Program programs[] = {
    PROGRAM(counter, 1, 64),
    PROGRAM(volatile_counter, 2, 1),
    PROGRAM(shift, 1, 64),
    PROGRAM(running_total, 1, 256),
    PROGRAM(lanes, 1, 32),
    PROGRAM(block_counter, 4, 32),
    PROGRAM(shift_of_blocks, 4, 64),
    PROGRAM(same_output, 4, 64),
    PROGRAM(bytes_side_by_side, 3, 64),
    PROGRAM(last_block, 8, 64),
    PROGRAM(flag_of_a_block, 2, 64),
    PROGRAM(reader_without_a_fence, 2, 32),
    PROGRAM(scope_of_a_fence, 2, 32),
    PROGRAM(acquire_release, 2, 32),
    PROGRAM(chain, 6, 32),
    PROGRAM(lock_of_blocks, 4, 32),
    PROGRAM(two_locks, 4, 32),
    PROGRAM(lock_of_every_lane, 2, 64),
    PROGRAM(lock_with_a_pause, 1, 64),
    PROGRAM(semaphore, 1, 64),
    PROGRAM(patience, 8, 1),
    PROGRAM(tickets, 4, 32),
    PROGRAM(maximum, 2, 64),
    {"grid_sync", grid_sync<true>, grid_sync<false>, 4, 64, /*cooperative=*/true},
    PROGRAM(warp_reduction, 1, 64),
    PROGRAM(warp_reduction_in_a_register, 1, 32),
    PROGRAM(flag_of_a_warp, 1, 64),
    PROGRAM(inside_a_warp, 1, 32),
    PROGRAM(lock_in_shared_memory, 1, 64),
    PROGRAM(shared_acquire_release, 1, 64),
    PROGRAM(two_branches, 1, 32),
    PROGRAM(pipeline, 1, 64),
    PROGRAM(barrier_object, 1, 64),
    PROGRAM(histogram, 1, 64),
};

int main(int argc, char** argv) {
  for (const Program& program : programs) {
    if (argc != 3) std::puts(program.name);
    if (argc != 3 || std::strcmp(argv[1], program.name) != 0) continue;
    int* x = nullptr;
    CHECK(cudaMalloc(&x, kWords * sizeof(int)));
    CHECK(cudaMemset(x, 0, kWords * sizeof(int)));
    const Kernel kernel = std::strcmp(argv[2], "right") == 0 ? program.right : program.wrong;
    void* arguments[] = {&x};
    if (program.cooperative)
      CHECK(cudaLaunchCooperativeKernel(kernel, program.blocks, program.threads, arguments));
    else
      CHECK(cudaLaunchKernel(kernel, program.blocks, program.threads, arguments));
    CHECK(cudaDeviceSynchronize());
    CHECK(cudaFree(x));
    return 0;
  }
  return argc == 1 ? 0 : 2;
}
