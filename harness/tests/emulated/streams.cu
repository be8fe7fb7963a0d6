// Programs with several streams, and with memory that host and device share, each in two forms: right, and without the
// synchronisation of the work. emulate_test.py runs both on the virtual GPU: streams NAME right, streams NAME wrong.
// Lines of the wrong form at which it expects a finding are marked: // fault: NAME.
#include <atomic>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <thread>

#define CHECK(call)                                                                \
  do {                                                                             \
    const cudaError_t error = (call);                                              \
    if (error != cudaSuccess) {                                                    \
      std::printf("%s: %s\n", cudaGetErrorName(error), cudaGetErrorString(error)); \
      std::exit(3);                                                                \
    }                                                                              \
  } while (0)

constexpr int kWords = 4096;

__device__ int variable[4];

__global__ void add(int* x, int value) { x[blockIdx.x * blockDim.x + threadIdx.x] += value; }
__global__ void copy(int* to, const int* from) {
  const unsigned i = blockIdx.x * blockDim.x + threadIdx.x;
  to[i] = from[i] + variable[0];
}

int* device_memory() {
  int* x = nullptr;
  CHECK(cudaMalloc(&x, kWords * sizeof(int)));
  CHECK(cudaMemset(x, 0, kWords * sizeof(int)));
  CHECK(cudaDeviceSynchronize());
  return x;
}

int* pinned_memory() {
  int* x = nullptr;
  CHECK(cudaMallocHost(&x, kWords * sizeof(int)));
  std::memset(x, 0, kWords * sizeof(int));
  return x;
}

cudaStream_t new_stream(unsigned flags = cudaStreamNonBlocking) {
  cudaStream_t stream = nullptr;
  CHECK(cudaStreamCreateWithFlags(&stream, flags));
  return stream;
}

void order(cudaStream_t before, cudaStream_t after) {
  cudaEvent_t done = nullptr;
  CHECK(cudaEventCreate(&done));
  CHECK(cudaEventRecord(done, before));
  CHECK(cudaStreamWaitEvent(after, done));
}

void two_streams(bool right) {
  int* const x = device_memory();
  cudaStream_t first = new_stream(), second = new_stream();
  add<<<16, 256, 0, first>>>(x, 1);
  if (right) order(first, second);
  add<<<16, 256, 0, second>>>(x, 2);  // fault: two_streams
  CHECK(cudaDeviceSynchronize());
}

// Each stream has its own half; both read the same data.
void halves(bool right) {
  int *const x = device_memory(), *const y = device_memory();
  for (int half = 0; half < 2; ++half) {
    const int part = right ? half : 0;
    copy<<<8, 256, 0, new_stream()>>>(x + part * kWords / 2, y);  // fault: halves
  }
  CHECK(cudaDeviceSynchronize());
}

// The legacy default stream waits for blocking streams, and they wait for it.
void default_stream(bool right) {
  int* const x = device_memory();
  int host[kWords];
  cudaStream_t stream = new_stream(right ? cudaStreamDefault : cudaStreamNonBlocking);
  add<<<16, 256, 0, stream>>>(x, 1);
  CHECK(cudaMemcpy(host, x, sizeof host, cudaMemcpyDeviceToHost));  // fault: default_stream
}

void host_reads_early(bool right) {
  int *const x = device_memory(), *const host = pinned_memory();
  cudaStream_t stream = new_stream();
  add<<<16, 256, 0, stream>>>(x, 3);
  CHECK(cudaMemcpyAsync(host, x, kWords * sizeof(int), cudaMemcpyDeviceToHost, stream));
  if (right) CHECK(cudaStreamSynchronize(stream));
  std::printf("%d\n", host[100]);  // fault: host_reads_early
  CHECK(cudaDeviceSynchronize());
}

void host_overwrites(bool right) {
  int *const x = device_memory(), *const host = pinned_memory();
  cudaStream_t stream = new_stream();
  CHECK(cudaMemcpyAsync(x, host, kWords * sizeof(int), cudaMemcpyHostToDevice, stream));
  if (right) CHECK(cudaStreamSynchronize(stream));
  host[5] = 7;  // fault: host_overwrites
  CHECK(cudaDeviceSynchronize());
}

// A variable of a separate module: it has its value before its first use.
__managed__ int managed_variable[kWords] = {5, 6};
__managed__ int of_the_host_alone = 3;
__global__ void add_to_variable(int value) { managed_variable[blockIdx.x * blockDim.x + threadIdx.x] += value; }
void managed_variables(bool right) {
  add_to_variable<<<16, 256>>>(1);
  if (right) CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", managed_variable[1]);  // fault: managed_variables
  CHECK(cudaDeviceSynchronize());
  managed_variable[1] += of_the_host_alone;
  add_to_variable<<<16, 256>>>(10);
  int host[2];
  CHECK(cudaMemcpyFromSymbol(host, managed_variable, sizeof host));
  std::printf("%d %d\n", host[0], host[1]);
}

void managed(bool right) {
  int* x = nullptr;
  CHECK(cudaMallocManaged(&x, kWords * sizeof(int)));
  std::memset(x, 0, kWords * sizeof(int));
  add<<<16, 256>>>(x, 3);
  if (right) CHECK(cudaDeviceSynchronize());
  std::printf("%d\n", x[1000]);  // fault: managed
  CHECK(cudaDeviceSynchronize());
}

// Copies to pageable memory are complete when they return; a double buffer waits for its event.
void double_buffer(bool right) {
  int *const x = device_memory(), *const host = pinned_memory();
  cudaStream_t stream = new_stream();
  cudaEvent_t copied[2];
  for (cudaEvent_t& event : copied) CHECK(cudaEventCreateWithFlags(&event, cudaEventDisableTiming));
  for (int round = 0; round < 6; ++round) {
    int* const buffer = host + round % 2 * kWords / 2;
    if (right && round >= 2) CHECK(cudaEventSynchronize(copied[round % 2]));
    buffer[9] = round;  // fault: double_buffer
    CHECK(cudaMemcpyAsync(x, buffer, kWords / 2 * sizeof(int), cudaMemcpyHostToDevice, stream));
    CHECK(cudaEventRecord(copied[round % 2], stream));
    add<<<8, 256, 0, stream>>>(x, 1);
  }
  int pageable[16];
  CHECK(cudaMemcpyAsync(pageable, x, sizeof pageable, cudaMemcpyDeviceToHost, stream));
  std::printf("%d\n", pageable[9]);
}

// The completion of such a copy, also of rows or a variable, implies everything before it in the stream.
void copies_to_pageable_memory(bool right) {
  int *const x = device_memory(), *const host = pinned_memory();
  cudaStream_t stream = new_stream();
  int pageable[4];
  for (int round = 0; round < 2; ++round) {
    add<<<16, 256, 0, stream>>>(host, 1);
    if (right && round == 0) CHECK(cudaMemcpy2DAsync(pageable, 8, x, 64, 8, 2, cudaMemcpyDeviceToHost, stream));
    if (right && round == 1) {
      CHECK(cudaMemcpyFromSymbolAsync(pageable, variable, sizeof pageable, 0, cudaMemcpyDeviceToHost, stream));
    }
    std::printf("%d\n", host[7]);  // fault: copies_to_pageable_memory
  }
}

// Fills are work of the default stream. They need not be waited for there, and those of pinned memory are complete when
// they return.
void fill_of_rows(bool right) {
  int *const x = device_memory(), *const host = pinned_memory();
  int* managed = nullptr;
  CHECK(cudaMallocManaged(&managed, kWords * sizeof(int)));
  add<<<16, 256>>>(managed, 1);
  CHECK(cudaMemset2D(managed, 64, 0, 64, 16));
  CHECK(cudaMemset2D(host, 64, 1, 64, 16));
  std::printf("%d\n", host[0]);
  cudaStream_t stream = new_stream();
  add<<<16, 256, 0, stream>>>(x, 1);
  if (right) CHECK(cudaStreamSynchronize(stream));
  CHECK(cudaMemset2D(x, 64, 0, 32, 16));  // fault: fill_of_rows
  CHECK(cudaDeviceSynchronize());
}

// Memory of a pool exists from the allocation in its stream until the stream has reached the point where it is freed.
void allocated_in_a_stream(bool right) {
  cudaStream_t first = new_stream(), second = new_stream();
  int* x = nullptr;
  CHECK(cudaMallocAsync(&x, kWords * sizeof(int), first));
  if (right) order(first, second);
  CHECK(cudaMemsetAsync(x, 0, kWords * sizeof(int), second));  // fault: allocated_in_a_stream
  order(second, first);
  CHECK(cudaFreeAsync(x, first));
  // The same memory is never returned again, so later errors are unrelated to it.
  CHECK(cudaMallocAsync(&x, kWords * sizeof(int), second));
  CHECK(cudaFreeAsync(x, second));
  CHECK(cudaDeviceSynchronize());
}

void freed_in_a_stream(bool right) {
  cudaStream_t first = new_stream(), second = new_stream();
  int* x = nullptr;
  CHECK(cudaMallocAsync(&x, kWords * sizeof(int), first));
  CHECK(cudaMemsetAsync(x, 0, kWords * sizeof(int), first));
  CHECK(cudaStreamSynchronize(first));
  add<<<16, 256, 0, second>>>(x, 1);
  if (right) order(second, first);
  CHECK(cudaFreeAsync(x, first));  // fault: freed_in_a_stream
  CHECK(cudaDeviceSynchronize());
}

// A host function comes after everything before it in its stream, and after nothing else. Other threads continue meanwhile.
struct ForFunction {
  const int *before, *elsewhere;
  std::atomic<bool> done = false;
};
void look(void* data) {
  auto& from = *static_cast<ForFunction*>(data);
  while (!from.done) std::this_thread::yield();
  std::printf("%d\n", from.before[7]);
  std::printf("%d\n", from.elsewhere[7]);  // fault: function_of_the_host
}
void function_of_the_host(bool right) {
  int *const before = pinned_memory(), *const elsewhere = pinned_memory();
  ForFunction data{before, elsewhere};
  int* const x = device_memory();
  cudaStream_t first = new_stream(), second = new_stream(), third = new_stream();
  add<<<16, 256, 0, first>>>(before, 1);
  add<<<16, 256, 0, second>>>(elsewhere, 2);
  if (right) order(second, first);
  std::thread other([&] {
    add<<<16, 256, 0, third>>>(x, 1);
    data.done = true;
  });
  CHECK(cudaLaunchHostFunc(first, look, &data));
  other.join();
  CHECK(cudaDeviceSynchronize());
}

// A host function tells other threads that everything before it in its stream, or in its graph, is done.
std::atomic<bool> told;
void told_by_a_function(bool right) {
  int* const host = pinned_memory();
  cudaStream_t stream = new_stream(), teller = right ? stream : new_stream();
  const auto tell = [](void*) { told = true; };
  const auto look = [&] {
    while (!told.exchange(false)) std::this_thread::yield();
    std::printf("%d\n", host[7]);  // fault: told_by_a_function
  };
  add<<<16, 256, 0, stream>>>(host, 1);
  CHECK(cudaLaunchHostFunc(teller, tell, nullptr));
  look();
  add<<<16, 256, 0, stream>>>(host, 1);
  CHECK(cudaStreamAddCallback(teller, [](cudaStream_t, cudaError_t, void*) { told = true; }, nullptr, 0));
  look();
  cudaGraph_t graph = nullptr;
  cudaGraphExec_t executable = nullptr;
  CHECK(cudaStreamBeginCapture(teller, cudaStreamCaptureModeGlobal));
  add<<<16, 256, 0, stream>>>(host, 1);
  CHECK(cudaLaunchHostFunc(teller, tell, nullptr));
  CHECK(cudaStreamEndCapture(teller, &graph));
  CHECK(cudaGraphInstantiate(&executable, graph, 0));
  CHECK(cudaGraphLaunch(executable, teller));
  look();
}

// If a kernel accesses memory in ways that are meant for the host, too, the host may do so at the same time. atomicAdd
// is for the GPU only.
__global__ void count(int* x, bool of_system) {
  if (of_system) {
    atomicAdd_system(x, 1);
  } else {
    atomicAdd(x, 1);
  }
}
__global__ void raise(volatile int* flag) { *flag = 1; }
void at_the_same_time(bool right) {
  int* const x = pinned_memory();
  raise<<<1, 1>>>(x + 1);
  count<<<1, 32>>>(x, right);
  std::atomic_ref(x[0]).fetch_add(1);  // fault: at_the_same_time
  std::printf("%d\n", std::atomic_ref(x[1]).load());
  CHECK(cudaDeviceSynchronize());
}

// A kernel may read any variable that it names, and any element of an array.
__constant__ int factor;
__constant__ int factors[2];
__global__ void scale(int* x, int which) { x[blockIdx.x * blockDim.x + threadIdx.x] *= factor + factors[which]; }
void constant_memory(bool right) {
  int* const x = device_memory();
  const int values[2] = {2, 3};
  CHECK(cudaMemcpyToSymbol(factor, values, sizeof factor));
  cudaStream_t stream = new_stream();
  for (int round = 0; round < 2; ++round) {
    const std::size_t size = sizeof values[0];
    CHECK(cudaMemcpyToSymbolAsync(factors, values, size, round * size, cudaMemcpyHostToDevice, stream));
    scale<<<16, 256, 0, stream>>>(x, round);
    CHECK(cudaMemcpyToSymbol(factors, values, size, (1 - round) * size));
    if (right) CHECK(cudaStreamSynchronize(stream));
    CHECK(cudaMemcpyToSymbol(factor, values, sizeof factor));  // fault: constant_memory
  }
  CHECK(cudaDeviceSynchronize());
}

#define PROGRAM(name) {#name, name}
const struct {
  const char* name;
  void (*run)(bool right);
} programs[] = {PROGRAM(two_streams),
                PROGRAM(halves),
                PROGRAM(default_stream),
                PROGRAM(host_reads_early),
                PROGRAM(host_overwrites),
                PROGRAM(managed),
                PROGRAM(double_buffer),
                PROGRAM(fill_of_rows),
                PROGRAM(copies_to_pageable_memory),
                PROGRAM(function_of_the_host),
                PROGRAM(constant_memory),
                PROGRAM(managed_variables),
                PROGRAM(allocated_in_a_stream),
                PROGRAM(freed_in_a_stream),
                PROGRAM(told_by_a_function),
                PROGRAM(at_the_same_time)};

int main(int argc, char** argv) {
  for (const auto& program : programs) {
    if (argc != 3 || std::strcmp(argv[1], program.name) != 0) continue;
    program.run(std::strcmp(argv[2], "right") == 0);
    return 0;
  }
  return 2;
}
