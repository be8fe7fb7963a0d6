// The ceiling of wgmma: two warpgroups per CTA, each with its own 64 rows of A and both with the same 256 of B, in tiles
// of 64 columns with 128-byte swizzle (PTX ISA, "Asynchronous warpgroup level matrix shared memory layout"). The values
// of the data do not matter.
#define ACCUMULATORS_4(i) "+f"(c[i]), "+f"(c[i + 1]), "+f"(c[i + 2]), "+f"(c[i + 3])
#define ACCUMULATORS_16(i) ACCUMULATORS_4(i), ACCUMULATORS_4(i + 4), ACCUMULATORS_4(i + 8), ACCUMULATORS_4(i + 12)
#define ACCUMULATORS_64(i) ACCUMULATORS_16(i), ACCUMULATORS_16(i + 16), ACCUMULATORS_16(i + 32), ACCUMULATORS_16(i + 48)

extern "C" __global__ void __launch_bounds__(256) ceiling(const unsigned* operands, float* out, int rounds) {
  __shared__ __align__(1024) unsigned smem[(2 * 64 + 256) * 32];
  for (int i = threadIdx.x; i < (2 * 64 + 256) * 32; i += 256) smem[i] = operands[i];
  asm volatile("fence.proxy.async.shared::cta;" ::: "memory");  // wgmma reads what these stores wrote, of all threads
  __syncthreads();
  const unsigned begin = __cvta_generic_to_shared(smem);
  const unsigned long long layout = 1ull << 62 | 64ull << 32;  // 128-byte swizzle; 1024 bytes from 8 rows to the next
  const unsigned long long A = layout | (begin + threadIdx.x / 128 * 64 * 128) / 16;
  const unsigned long long B = layout | (begin + 2 * 64 * 128) / 16;
  float c[128];
  for (int i = 0; i < 128; ++i) c[i] = 0;
  asm volatile("wgmma.fence.sync.aligned;" ::: "memory");
  for (int round = 0; round < rounds; ++round) {
#pragma unroll
    for (int k = 0; k < 16; ++k)
      asm volatile(
          "wgmma.mma_async.sync.aligned.m64n256k16.f32.f16.f16 "
          "{%0, %1, %2, %3, %4, %5, %6, %7, %8, %9, %10, %11, %12, %13, %14, %15, "
          "%16, %17, %18, %19, %20, %21, %22, %23, %24, %25, %26, %27, %28, %29, %30, %31, "
          "%32, %33, %34, %35, %36, %37, %38, %39, %40, %41, %42, %43, %44, %45, %46, %47, "
          "%48, %49, %50, %51, %52, %53, %54, %55, %56, %57, %58, %59, %60, %61, %62, %63, "
          "%64, %65, %66, %67, %68, %69, %70, %71, %72, %73, %74, %75, %76, %77, %78, %79, "
          "%80, %81, %82, %83, %84, %85, %86, %87, %88, %89, %90, %91, %92, %93, %94, %95, "
          "%96, %97, %98, %99, %100, %101, %102, %103, %104, %105, %106, %107, %108, %109, %110, %111, "
          "%112, %113, %114, %115, %116, %117, %118, %119, %120, %121, %122, %123, %124, %125, %126, %127}, "
          "%128, %129, 1, 1, 1, 0, 0;"
          : ACCUMULATORS_64(0), ACCUMULATORS_64(64)
          : "l"(A + k % 4 * 2), "l"(B + k % 4 * 2));
    asm volatile("wgmma.commit_group.sync.aligned;" ::: "memory");
    asm volatile("wgmma.wait_group.sync.aligned 0;" ::: "memory");
  }
  float sum = 0;
  for (int i = 0; i < 128; ++i) sum += c[i];
  out[blockIdx.x * blockDim.x + threadIdx.x] = sum;
}
