// A plain kernel that solves causal problems of any length, and the mistakes that such a kernel is likely to have, for tests that
// the check of an extension finds them. They run on the virtual GPU, in the worker of the planted faults.

#include <string>

#include "convert.h"
#include "registry.h"

namespace flash_ladder::planted_extensions {

enum class Fault {
  none,
  upper_left,     // the mask starts at the first key, not where it ends with the last
  divides_by_0,   // O of a row that sees no key is 0 / 0
  counts_a_tail,  // what is beyond the last key has a score of 0, and not none
  ignores_mask,
};

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 16;
  static constexpr int kBlockKV = 16;
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;  // a thread per element of a row
  static constexpr int kSmemBytes = 0;
};

// The sum of x over the CTA's 128 threads; every thread gets it.
__device__ float cta_sum(float x) {
  __shared__ float sums[4];
  for (int mask = 16; mask > 0; mask /= 2) x += __shfl_xor_sync(0xffffffff, x, mask);
  __syncthreads();  // the sums of the last call have been read
  if (threadIdx.x % 32 == 0) sums[threadIdx.x / 32] = x;
  __syncthreads();  // the sums of this one are there
  return sums[0] + sums[1] + sums[2] + sums[3];
}

// A CTA computes 16 rows, one after the other, by online softmax.
template <typename Traits, Fault kFault>
__global__ void attention(AttentionArgs args, bool causal) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z, d = threadIdx.x;
  const int end = min((static_cast<int>(blockIdx.x) + 1) * Traits::kBlockQ, args.seq_len);
  for (int row = blockIdx.x * Traits::kBlockQ; row < end; ++row) {
    int num_keys = args.seq_len_kv;
    if (causal && kFault == Fault::upper_left)
      num_keys = min(num_keys, row + 1);
    else if (causal && kFault != Fault::ignores_mask)
      num_keys = max(row + 1 + args.seq_len_kv - args.seq_len, 0);

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
    if (kFault == Fault::counts_a_tail && num_keys % Traits::kBlockKV != 0)
      row_sum += (Traits::kBlockKV - num_keys % Traits::kBlockKV) * expf(-row_max);
    const bool sees_a_key = num_keys > 0 || kFault == Fault::divides_by_0;
    args.O.row<Element>(batch, head, row)[d] = from_float<Element>(sees_a_key ? output / row_sum : 0);
  }
}

template <typename Traits, Fault kFault>
cudaError_t launch(const ExtendedArgs& args, cudaStream_t stream) {
  const dim3 grid((args.seq_len + Traits::kBlockQ - 1) / Traits::kBlockQ, args.heads, args.batch);
  attention<Traits, kFault><<<grid, Traits::kHeadDim, 0, stream>>>(args, args.causal);
  return cudaGetLastError();
}

template <Fault kFault>
Description extension(const char* name) {
  return {.source = std::string("kernels/extensions/") + name + ".cu",
          .extends = "",
          .solves = {.causal = true, .any_length = true},
          .configurations = {configuration<Traits<__half>>("16x16", launch<Traits<__half>, kFault>),
                             configuration<Traits<__nv_bfloat16>>("16x16", launch<Traits<__nv_bfloat16>, kFault>)}};
}

const Registration registrations[] = {
    Registration(extension<Fault::none>("right")),
    Registration(extension<Fault::upper_left>("upper_left")),
    Registration(extension<Fault::divides_by_0>("divides_by_0")),
    Registration(extension<Fault::counts_a_tail>("counts_a_tail")),
    Registration(extension<Fault::ignores_mask>("ignores_mask")),
};

}  // namespace flash_ladder::planted_extensions
