// The argument of every kernel, which describes the memory on which attention is computed.
//
//   O = softmax(Q Kᵀ / sqrt(head_dim)) V        (Dao et al., FlashAttention, section 2.2)
//
// for every (batch, head) independently. Nothing here needs CUDA, so any host compiler can include it.
#pragma once

#include <cstddef>
#include <cstdint>

#ifdef __CUDACC__
#define FLASH_LADDER_HOST_DEVICE __host__ __device__
#else
#define FLASH_LADDER_HOST_DEVICE
#endif

namespace flash_ladder {

/// One of Q, K, V and O in device memory: shape [batch, seq_len, heads, head_dim]. Strides count elements and are
/// 64-bit, because a tensor may exceed 4 GiB. head_dim is contiguous, and every row starts at a multiple of 16 bytes.
struct Tensor {
  void* data = nullptr;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;  // from one query (or key) to the next
  std::int64_t head_stride = 0;

  /// The head_dim elements of one row of one head.
  template <typename Element>
  FLASH_LADDER_HOST_DEVICE Element* row(int batch, int head, std::int64_t row) const {
    return static_cast<Element*>(data) + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

/// The argument of every kernel. It never grows: anything else about a problem is in ExtendedArgs (host/extended_args.h), from
/// which a launch passes its kernel the fields that it needs. So a new field does not affect versions that ignore it.
struct AttentionArgs {
  Tensor Q, K, V, O;
  int batch = 0;
  int heads = 0;
  int seq_len = 0;
  int seq_len_kv = 0;
  float softmax_scale = 0;    // S = softmax_scale · Q Kᵀ, positive; usually 1 / sqrt(head_dim)
  void* workspace = nullptr;  // device memory that the version requested in its registration
};

}  // namespace flash_ladder
