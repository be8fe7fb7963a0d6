// B02 · fused
//
// Idea        Nothing of size seq_len² leaves the SM. A CTA keeps one tile of K and V, and visits all tiles of Q and dO. It
//             computes a tile of P and dS, uses it for dV, dK and dQ, and forgets it. dK and dV stay in registers until
//             the last query. dQ sums over keys, which belong to different CTAs, so each CTA adds its part to memory with
//             atomics, in fp32.
// Changed     One kernel takes the place of three, with tiles in shared memory and sub-tiles in registers as in version 03.
//             row_sums also sets the sums of dQ to 0, and a last kernel converts them.
// Prediction  A load from shared memory feeds 3 to 11 FFMAs, where in B01 each FFMA needs two loads from the caches. Still,
//             shared memory takes longer than the FFMAs, and limits the speed to about 35 TFLOP/s. With 12 warps per SM
//             and three barriers per iteration, half of that: 15x over B01. The result now depends on the order of the
//             additions to dQ.

#include "convert.h"
#include "gradients.h"
#include "host/backward.h"
#include "ptx.h"
#include "registry.h"

namespace flash_ladder::vB02 {

template <typename Element_>
struct Traits {
  using Element = Element_;
  static constexpr int kBlockQ = 32;   // query rows per iteration
  static constexpr int kBlockKV = 32;  // keys and values per CTA
  static constexpr int kHeadDim = 128;
  static constexpr int kNumWarps = 4;
  static constexpr int kRowStride = kHeadDim + 4;  // of tiles in shared memory: eight rows start in different banks
  // K, V, Q, dO, P and dS, all fp32.
  static constexpr int kSmemBytes =
      (2 * (kBlockKV + kBlockQ) * kRowStride + 2 * kBlockQ * kBlockKV) * int{sizeof(float)};
};

// The threads form a grid of 8 × 16. Thread (thread_row, thread_col) owns
//
//   S, dP  [4 queries][2 keys]  queries thread_row · 4 + 0…3, keys thread_col and thread_col + 16
//   dK, dV [4 keys][8 of d]     keys thread_row · 4 + 0…3, d = thread_col · 4 + 0…3 and 64 + thread_col · 4 + 0…3
//   dQ     [4 queries][8 of d]  queries thread_row · 4 + 0…3, d = thread_col + 0, 16, 32 … 112, so that neighbouring
//                               threads add to neighbouring addresses
constexpr int kThreadCols = 16;
constexpr int kRows = 4;   // of each matrix per thread
constexpr int kKeys = 2;   // columns of S per thread
constexpr int kQuads = 2;  // runs of four columns of dK and dV per thread

// The workspace holds D, [batch][heads][seq_len], then the sums of dQ, [batch][heads][seq_len][kHeadDim], both in fp32.
__device__ inline float* row_of_D(const AttentionArgs& args, int batch, int head) {
  return static_cast<float*>(args.workspace) + (batch * args.heads + head) * std::int64_t{args.seq_len};
}
template <typename Traits>
__device__ float* row_of_dQ(const AttentionArgs& args, int batch, int head, std::int64_t row) {
  const std::int64_t size_of_D = std::int64_t{args.batch} * args.heads * args.seq_len;
  float* dQ = static_cast<float*>(args.workspace) + size_of_D;
  return dQ + ((batch * args.heads + head) * std::int64_t{args.seq_len} + row) * Traits::kHeadDim;
}

// exp(x) = 2^(x · log2(e)): the hardware's exponential has base 2.
__device__ inline float exp_approx(float x) { return exp2_approx(x * 1.44269504f); }  // log2(e)

// Loads the eight elements at gmem and converts them to fp32: one 16-byte load.
template <typename Element>
__device__ void load_8(float (&x)[8], const Element* gmem) {
  const uint4 bits = *reinterpret_cast<const uint4*>(gmem);
  const Element* elements = reinterpret_cast<const Element*>(&bits);
#pragma unroll
  for (int i = 0; i < 8; ++i) x[i] = to_float(elements[i]);
}

// Copies a [kNumRows][kHeadDim] tile to shared memory, in rows of kRowStride.
template <typename Traits, int kNumRows, typename Element = typename Traits::Element>
__device__ void copy_tile(float* tile_smem, const Element* tile_gmem, std::int64_t row_stride) {
  for (int i = threadIdx.x; i < kNumRows * Traits::kHeadDim / 8; i += Traits::kNumWarps * 32) {
    const int row = i / (Traits::kHeadDim / 8), col = i % (Traits::kHeadDim / 8) * 8;
    float x[8];
    load_8(x, &tile_gmem[row * row_stride + col]);
    float4* destination = reinterpret_cast<float4*>(&tile_smem[row * Traits::kRowStride + col]);
    destination[0] = make_float4(x[0], x[1], x[2], x[3]);
    destination[1] = make_float4(x[4], x[5], x[6], x[7]);
  }
}

// Reads four neighbouring floats of shared memory with one load.
__device__ inline void load_4(float (&x)[4], const float* smem) {
  const float4 quad = *reinterpret_cast<const float4*>(smem);
  x[0] = quad.x, x[1] = quad.y, x[2] = quad.z, x[3] = quad.w;
}

// S += A Bᵀ, for this thread's rows of A and B: S = Q Kᵀ, and dP = dO Vᵀ.
template <typename Traits>
__device__ void multiply_rows(float (&S)[kRows][kKeys], const float* A_smem, const float* B_smem) {
#pragma unroll 4
  for (int d = 0; d < Traits::kHeadDim; d += 4) {
    float a[kRows][4], b[kKeys][4];
#pragma unroll
    for (int row = 0; row < kRows; ++row) load_4(a[row], &A_smem[row * Traits::kRowStride + d]);
#pragma unroll
    for (int key = 0; key < kKeys; ++key) load_4(b[key], &B_smem[key * kThreadCols * Traits::kRowStride + d]);
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int key = 0; key < kKeys; ++key)
#pragma unroll
        for (int i = 0; i < 4; ++i) S[row][key] += a[row][i] * b[key][i];
  }
}

// C += Pᵀ B, for this thread's keys and columns: dV += Pᵀ dO, and dK += dSᵀ Q.
template <typename Traits>
__device__ void multiply_transposed(float (&C)[kRows][kQuads][4], const float* P_smem, const float* B_smem) {
#pragma unroll 4
  for (int query = 0; query < Traits::kBlockQ; ++query) {
    float p[kRows], b[kQuads][4];
    load_4(p, &P_smem[query * Traits::kBlockKV]);
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad)
      load_4(b[quad], &B_smem[query * Traits::kRowStride + quad * Traits::kHeadDim / kQuads]);
#pragma unroll
    for (int row = 0; row < kRows; ++row)
#pragma unroll
      for (int i = 0; i < kQuads * 4; ++i) C[row][i / 4][i % 4] += p[row] * b[i / 4][i % 4];
  }
}

// D = rowsum(dO ∘ O): one thread per row. It adds in the order in which multiply_rows() adds to dP: if a row sees only one
// key, O is that row of V, and dP - D must be exactly 0. Then the CTA sets its rows of the sums of dQ to 0.
template <typename Traits>
__global__ void row_sums(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int first_query = blockIdx.x * blockDim.x, query = first_query + threadIdx.x;
  if (query < args.seq_len) {
    const Element* dO_gmem = gradients.dO.row<Element>(batch, head, query);  // [kHeadDim]
    const Element* O_gmem = args.O.row<Element>(batch, head, query);         // [kHeadDim]
    float sum = 0;
    for (int d = 0; d < Traits::kHeadDim; ++d) sum += to_float(dO_gmem[d]) * to_float(O_gmem[d]);
    row_of_D(args, batch, head)[query] = sum;
  }
  float* sums_gmem = row_of_dQ<Traits>(args, batch, head, first_query);  // [num_rows][kHeadDim]
  const int num_rows = min(int(blockDim.x), args.seq_len - first_query);
  for (int i = threadIdx.x; i < num_rows * Traits::kHeadDim; i += blockDim.x) sums_gmem[i] = 0;
}

template <typename Traits>
__global__ void __launch_bounds__(Traits::kNumWarps * 32) flash_gradients(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  constexpr int kBlockQ = Traits::kBlockQ, kBlockKV = Traits::kBlockKV, kHeadDim = Traits::kHeadDim;
  constexpr int kRowStride = Traits::kRowStride;
  static_assert(kBlockQ * kThreadCols == Traits::kNumWarps * 32 * kRows && kBlockQ == kBlockKV);
  static_assert(kBlockKV == kThreadCols * kKeys && kHeadDim == kThreadCols * kQuads * 4);

  extern __shared__ __align__(16) float smem[];
  float* K_smem = smem;                            // [kBlockKV][kRowStride]
  float* V_smem = K_smem + kBlockKV * kRowStride;  // [kBlockKV][kRowStride]
  float* Q_smem = V_smem + kBlockKV * kRowStride;  // [kBlockQ][kRowStride]
  float* dO_smem = Q_smem + kBlockQ * kRowStride;  // [kBlockQ][kRowStride]
  float* P_smem = dO_smem + kBlockQ * kRowStride;  // [kBlockQ][kBlockKV]
  float* dS_smem = P_smem + kBlockQ * kBlockKV;    // [kBlockQ][kBlockKV]

  // What this CTA computes: one tile of keys of one head of one batch entry.
  const int kv_row = blockIdx.x * kBlockKV, head = blockIdx.y, batch = blockIdx.z;
  const int thread_row = threadIdx.x / kThreadCols, thread_col = threadIdx.x % kThreadCols;
  const int row = thread_row * kRows;  // the first of this thread's rows, of queries and of keys
  const Element* Q_gmem = args.Q.row<Element>(batch, head, 0);         // [seq_len][kHeadDim]
  const Element* dO_gmem = gradients.dO.row<Element>(batch, head, 0);  // [seq_len][kHeadDim]
  const float* L_gmem = gradients.log_sum_exp + (batch * args.heads + head) * std::int64_t{args.seq_len};  // [seq_len]
  const float* D_gmem = row_of_D(args, batch, head);                                                       // [seq_len]

  float dK_rmem[kRows][kQuads][4] = {}, dV_rmem[kRows][kQuads][4] = {};  // [key][quad][column]

  // Copy K and V.
  copy_tile<Traits, kBlockKV>(K_smem, args.K.row<Element>(batch, head, kv_row), args.K.row_stride);
  copy_tile<Traits, kBlockKV>(V_smem, args.V.row<Element>(batch, head, kv_row), args.V.row_stride);

  // For each Q/dO tile:
  for (std::int64_t q_row = 0; q_row < args.seq_len; q_row += kBlockQ) {
    // Copy Q and dO.
    __syncthreads();  // all warps are done with the previous iteration's tiles, P and dS
    copy_tile<Traits, kBlockQ>(Q_smem, Q_gmem + q_row * args.Q.row_stride, args.Q.row_stride);
    copy_tile<Traits, kBlockQ>(dO_smem, dO_gmem + q_row * gradients.dO.row_stride, gradients.dO.row_stride);
    __syncthreads();  // Q, dO and, the first time, K and V are complete

    // S = Q Kᵀ, and dP = dO Vᵀ.
    float S_rmem[kRows][kKeys] = {}, dP_rmem[kRows][kKeys] = {};
    multiply_rows<Traits>(S_rmem, &Q_smem[row * kRowStride], &K_smem[thread_col * kRowStride]);
    multiply_rows<Traits>(dP_rmem, &dO_smem[row * kRowStride], &V_smem[thread_col * kRowStride]);

    // P = exp(S - L), and dS = P ∘ (dP - D).
#pragma unroll
    for (int i = 0; i < kRows; ++i) {
      const float L = L_gmem[q_row + row + i], D = D_gmem[q_row + row + i];
#pragma unroll
      for (int key = 0; key < kKeys; ++key) {
        const float p = exp_approx(S_rmem[i][key] * args.softmax_scale - L);
        const int at = (row + i) * kBlockKV + key * kThreadCols + thread_col;
        P_smem[at] = p;
        dS_smem[at] = p * (dP_rmem[i][key] - D);
      }
    }
    __syncthreads();  // P and dS are complete

    // dV += Pᵀ dO, and dK += dSᵀ Q.
    multiply_transposed<Traits>(dV_rmem, &P_smem[row], &dO_smem[thread_col * 4]);
    multiply_transposed<Traits>(dK_rmem, &dS_smem[row], &Q_smem[thread_col * 4]);

    // dQ += dS K, in memory, where other CTAs add to the same elements.
    float dQ_rmem[kRows][kHeadDim / kThreadCols] = {};  // [query][column]
#pragma unroll 4
    for (int key = 0; key < kBlockKV; ++key)
#pragma unroll
      for (int i = 0; i < kHeadDim / kThreadCols; ++i) {
        const float k = K_smem[key * kRowStride + i * kThreadCols + thread_col];
#pragma unroll
        for (int query = 0; query < kRows; ++query) dQ_rmem[query][i] += dS_smem[(row + query) * kBlockKV + key] * k;
      }
#pragma unroll
    for (int query = 0; query < kRows; ++query)
#pragma unroll
      for (int i = 0; i < kHeadDim / kThreadCols; ++i)
        atomicAdd(row_of_dQ<Traits>(args, batch, head, q_row + row + query) + i * kThreadCols + thread_col,
                  dQ_rmem[query][i]);
  }

  // Store dK and dV.
#pragma unroll
  for (int key = 0; key < kRows; ++key) {
    Element* dK_gmem = gradients.dK.row<Element>(batch, head, kv_row + row + key) + thread_col * 4;
    Element* dV_gmem = gradients.dV.row<Element>(batch, head, kv_row + row + key) + thread_col * 4;
#pragma unroll
    for (int quad = 0; quad < kQuads; ++quad) {
      const auto(&dK)[4] = dK_rmem[key][quad], (&dV)[4] = dV_rmem[key][quad];
      const float scale = args.softmax_scale;
      const int col = quad * kHeadDim / kQuads;
      *reinterpret_cast<uint2*>(&dK_gmem[col]) =
          make_uint2(pack<Element>(dK[0] * scale, dK[1] * scale), pack<Element>(dK[2] * scale, dK[3] * scale));
      *reinterpret_cast<uint2*>(&dV_gmem[col]) = make_uint2(pack<Element>(dV[0], dV[1]), pack<Element>(dV[2], dV[3]));
    }
  }
}

// Converts the sums of dQ: one warp per row.
template <typename Traits>
__global__ void convert_dQ(AttentionArgs args, Gradients gradients) {
  using Element = typename Traits::Element;
  const int head = blockIdx.y, batch = blockIdx.z;
  const int query = blockIdx.x * Traits::kNumWarps + threadIdx.x / 32;
  Element* dQ_gmem = gradients.dQ.row<Element>(batch, head, query);      // [kHeadDim]
  const float* sums_gmem = row_of_dQ<Traits>(args, batch, head, query);  // [kHeadDim]
#pragma unroll
  for (int d = threadIdx.x % 32; d < Traits::kHeadDim; d += 32)
    dQ_gmem[d] = from_float<Element>(sums_gmem[d] * args.softmax_scale);
}

template <typename Traits>
std::size_t workspace_bytes(const AttentionProblem& problem) {
  return problem.batch * problem.heads * problem.seq_len * (1 + Traits::kHeadDim) * sizeof(float);
}

template <typename Traits>
cudaError_t launch(const BackwardArgs& args, cudaStream_t stream) {
  constexpr int kNumThreads = Traits::kNumWarps * 32;
  const auto kernel = flash_gradients<Traits>;
  // More than 48 KB of shared memory has to be requested.
  const cudaError_t error =
      cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, Traits::kSmemBytes);
  if (error != cudaSuccess) return error;
  const Gradients& gradients = args.gradients;
  row_sums<Traits><<<dim3((args.seq_len + 127) / 128, args.heads, args.batch), 128, 0, stream>>>(args, gradients);
  kernel<<<dim3(args.seq_len_kv / Traits::kBlockKV, args.heads, args.batch), kNumThreads, Traits::kSmemBytes, stream>>>(
      args, gradients);
  convert_dQ<Traits>
      <<<dim3(args.seq_len / Traits::kNumWarps, args.heads, args.batch), kNumThreads, 0, stream>>>(args, gradients);
  return cudaGetLastError();
}

const BackwardRegistration registration({
    .source = __FILE__,
    .deterministic = false,  // the CTAs of a head add to dQ in any order
    .configurations = {configuration<Traits<__half>>("32x32", backward_launch<launch<Traits<__half>>>,
                                                     workspace_bytes<Traits<__half>>),
                       configuration<Traits<__nv_bfloat16>>("32x32", backward_launch<launch<Traits<__nv_bfloat16>>>,
                                                            workspace_bytes<Traits<__nv_bfloat16>>)},
});

}  // namespace flash_ladder::vB02
