// A kernel that is launched as a dependent of the one ahead of it, and may begin before that one has ended.
//   dependent CASE
#include <cuda_runtime.h>

#include <cstdio>
#include <cstring>

__global__ void square(const int* x, int* squares) {
  asm volatile("griddepcontrol.launch_dependents;");
  squares[threadIdx.x] = x[threadIdx.x] * x[threadIdx.x];
}

// twice[i] = 2 · squares[i] + x[i]; `early` reads squares before the wait, and `overwrites` writes there.
__global__ void twice(const int* x, int* squares, int* twice, bool early, bool overwrites) {
  const int added = x[threadIdx.x];
  if (overwrites) squares[threadIdx.x] = 0;  // fault: overwrites
  int read = 0;
  if (early) read = squares[threadIdx.x];  // fault: reads
  asm volatile("griddepcontrol.wait;" ::: "memory");
  if (!early) read = squares[threadIdx.x];
  twice[threadIdx.x] = 2 * read + added;
}

int main(int, char** arguments) {
  const auto is = [&](const char* name) { return std::strcmp(arguments[1], name) == 0; };
  int *x, *squares, *result;
  cudaMallocManaged(&x, 32 * sizeof(int));
  cudaMallocManaged(&result, 32 * sizeof(int));
  cudaMalloc(&squares, 32 * sizeof(int));
  for (int i = 0; i < 32; ++i) x[i] = i;
  cudaStream_t stream;
  cudaStreamCreate(&stream);
  const bool captures = is("graph") || is("graph_memset");
  if (captures) cudaStreamBeginCapture(stream, cudaStreamCaptureModeGlobal);

  square<<<1, 32, 0, stream>>>(x, squares);
  if (is("memset") || is("graph_memset")) cudaMemsetAsync(result, 0, 32 * sizeof(int), stream);
  cudaLaunchAttribute dependent{};
  dependent.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  dependent.val.programmaticStreamSerializationAllowed = is("ordinary") ? 0 : 1;
  cudaLaunchConfig_t config{};
  config.gridDim = 1;
  config.blockDim = 32;
  config.stream = stream;
  config.attrs = &dependent;
  config.numAttrs = 1;
  // Something else than the first kernel is ahead of it, or it is no dependent launch: then it may read early.
  const bool early = is("reads") || is("ordinary") || is("memset") || captures;
  cudaLaunchKernelEx(&config, twice, static_cast<const int*>(x), squares, result, early, is("overwrites"));

  if (captures) {
    cudaGraph_t graph;
    cudaGraphExec_t executable;
    cudaStreamEndCapture(stream, &graph);
    cudaGraphInstantiate(&executable, graph, 0);
    cudaGraphLaunch(executable, stream);
  }
  if (cudaDeviceSynchronize() != cudaSuccess) return 1;
  bool right = true;
  for (int i = 0; i < 32; ++i) right &= is("overwrites") || result[i] == 2 * i * i + i;
  std::puts(right ? "right" : "wrong");
  return right ? 0 : 1;
}
