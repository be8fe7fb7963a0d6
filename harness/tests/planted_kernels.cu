// Versions that are wrong on purpose, and a correct one, for tests of how the harness handles them. They are linked
// into a separate worker, harness-worker-planted, and are not part of the ladder.

#include <string>

#include "convert.h"
#include "registry.h"

namespace flash_ladder::planted {

enum class Fault {
  none,
  skips_a_tile,       // for queries 16 to 31 of head 1 the last 16 keys do not count, if there are others
  writes_past_end,    // of O, into the guard band
  illegal_address,    // writes to an address without memory
  never_ends,         //
  unannounced_smem,   // requests more shared memory than its configuration says, and than there is
  changes_with_time,  // one bit of the output differs from launch to launch
  writes_its_input,   // an element of Q, after it has been used
  leaves_a_hole,      // one element of O is never written
};

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;
  static constexpr int kBlockKV = 16;
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;  // one thread per element of a row
  static constexpr int kSmemBytes = 0;
};

constexpr int kHugeSmemBytes = 1 << 20;  // more than any GPU has so far

__device__ unsigned int launch_count = 0;

// The sum of x over the CTA's 128 threads, returned to every thread.
__device__ float cta_sum(float x) {
  __shared__ float sums[4];
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  __syncthreads();  // the sums of the previous call have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();  // the sums of this call are complete
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// A CTA computes 16 rows, one after the other, by online softmax.
template <typename Element, Fault kFault>
__global__ void attention(AttentionArgs args) {
  using T = Traits<Element>;
  const int head = blockIdx.y, batch = blockIdx.z, d = threadIdx.x;
  const bool first_cta = blockIdx.x == 0 && head == 0 && batch == 0;
  if (kFault == Fault::illegal_address && first_cta) *reinterpret_cast<volatile int*>(16) = 1;
  if (kFault == Fault::never_ends)
    while (true) __nanosleep(1000);
  const bool skips = kFault == Fault::skips_a_tile && blockIdx.x == 1 && head == 1 && args.seq_len_kv > T::kBlockKV;
  const int num_keys = args.seq_len_kv - (skips ? T::kBlockKV : 0);

  for (int row = blockIdx.x * T::kBlockQ; row < (blockIdx.x + 1) * T::kBlockQ; ++row) {
    const float q = to_float(args.Q.row<Element>(batch, head, row)[d]);
    float row_max = -INFINITY, row_sum = 0, output = 0;
    for (int key = 0; key < num_keys; ++key) {
      const float score = cta_sum(q * to_float(args.K.row<Element>(batch, head, key)[d])) * args.softmax_scale;
      const float new_max = fmaxf(row_max, score);
      const float rescale = expf(row_max - new_max), p = expf(score - new_max);
      row_max = new_max;
      row_sum = row_sum * rescale + p;
      output = output * rescale + p * to_float(args.V.row<Element>(batch, head, key)[d]);
    }
    if (kFault == Fault::leaves_a_hole && first_cta && row == 5 && d == 7) continue;
    args.O.row<Element>(batch, head, row)[d] = from_float<Element>(output / row_sum);
  }

  if (!first_cta || d != 0) return;
  unsigned short* first_of_O = reinterpret_cast<unsigned short*>(args.O.row<Element>(0, 0, 0));
  if (kFault == Fault::writes_past_end) first_of_O[args.batch * args.O.batch_stride] = 0;
  if (kFault == Fault::writes_its_input) args.Q.row<Element>(0, 0, 0)[0] = from_float<Element>(0.5f);
  if (kFault == Fault::changes_with_time) *first_of_O ^= launch_count++ & 1;
}

template <typename Element, Fault kFault>
cudaError_t launch(const AttentionArgs& args, cudaStream_t stream) {
  const dim3 grid(args.seq_len / Traits<Element>::kBlockQ, args.heads, args.batch);
  const int smem_bytes = kFault == Fault::unannounced_smem ? kHugeSmemBytes : 0;
  attention<Element, kFault><<<grid, Traits<Element>::kHeadDim, smem_bytes, stream>>>(args);
  return cudaGetLastError();
}

template <Fault kFault>
Description version(const char* source, int smem_bytes = 0) {
  Description version = {
      .source = source,
      .configurations = {configuration<Traits<__half>>("16x16", launch<__half, kFault>),
                         configuration<Traits<__nv_bfloat16>>("16x16", launch<__nv_bfloat16, kFault>)}};
  for (auto& configuration : version.configurations) configuration.smem_bytes = smem_bytes;
  return version;
}

const Registration registrations[] = {
    Registration(version<Fault::none>("kernels/90_right.cu")),
    Registration(version<Fault::skips_a_tile>("kernels/91_skips_a_tile.cu")),
    Registration(version<Fault::writes_past_end>("kernels/92_writes_past_end.cu")),
    Registration(version<Fault::illegal_address>("kernels/93_illegal_address.cu")),
    Registration(version<Fault::never_ends>("kernels/94_never_ends.cu")),
    Registration(version<Fault::none>("kernels/95_too_much_smem.cu", kHugeSmemBytes)),
    Registration(version<Fault::unannounced_smem>("kernels/96_unannounced_smem.cu")),
    Registration(version<Fault::changes_with_time>("kernels/97_changes_with_time.cu")),
    Registration(version<Fault::writes_its_input>("kernels/98_writes_its_input.cu")),
    Registration(version<Fault::leaves_a_hole>("kernels/99_leaves_a_hole.cu")),
};

}  // namespace flash_ladder::planted
