// The argument that kernels of the backward track have beside AttentionArgs, whose O is one of their inputs.
//
//   D = rowsum(dO ∘ O)   P = exp(S - L)   dV = Pᵀ dO   dP = dO Vᵀ   dS = P ∘ (dP - D)
//   dQ = softmax_scale · dS K   dK = softmax_scale · dSᵀ Q        (Dao et al., FlashAttention, appendix B.4)
//
// where S = softmax_scale · Q Kᵀ. With softcap, S is softcap · tanh(S / softcap), and dS has the factor 1 - tanh² more. With
// dropout, the P of dV, and dP, are multiplied by the mask and by 256 / dropout_keep. Nothing here needs CUDA, so any host compiler
// can include it.
#pragma once

#include "attention.h"

namespace flash_ladder {

/// Shapes as those of the tensors after which they are named. All have the type of Q, K and V.
struct Gradients {
  Tensor dO;          // the gradient of the loss with respect to O, an input
  Tensor dQ, dK, dV;  // outputs
  // [batch][heads][seq_len], or [heads][total] if the sequences are packed, an input: L = m + log l of each row, the natural
  // logarithm, as the forward pass stores it. -inf for a row that sees no key, and for a row of padding.
  const float* log_sum_exp = nullptr;
};

}  // namespace flash_ladder
