// mma.sync: the tensor cores. PTX ISA, "Matrix Fragments for mma.m16n8k16 with floating point type".
//
// Numerics: products of two 16-bit numbers are exact in fp32 (but for bf16 products beyond its range); they are added to C one
// after another in order of k, each sum rounded to nearest even in fp32. Tensor cores add several products at a time with
// truncation, in an order that NVIDIA does not specify, so results differ from theirs in the last bits.

#ifdef __FMA__
#include <immintrin.h>
#endif

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/instruction_sets.h"
#include "emulator/lanes/lane_loops.h"

namespace flash_ladder::emulator::EMULATOR_INSTRUCTION_SET {
namespace {

typedef float Row __attribute__((vector_size(32)));  // the 8 columns of one row of D

template <typename T>
float to_float_bits(u32 bits) {
  return to_float(T{static_cast<u16>(bits)});
}

// c += a · b. Products of fp16 are exact, so that a fused multiply-add gives the same.
template <typename T>
inline void multiply_add(float a, const Row& b, Row& c) {
#ifdef __FMA__
  if constexpr (std::is_same_v<T, f16>) {
    c = reinterpret_cast<Row>(
        _mm256_fmadd_ps(_mm256_set1_ps(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
    return;
  }
#endif
  c += a * b;
}

// r: four of D, four of A (two for k = 8), two of B (one), four of C. A register of a fragment of A or B holds, over the 32
// lanes, an 8×8 block: lane 4·row + k/2 has elements k and k+1.
template <typename T, int kBlocks>
void mma(std::byte* registers, const std::int32_t* r, u32) {
  const std::int32_t* d_at = r;
  const std::int32_t* a_at = r + 4;
  const std::int32_t* b_at = a_at + 2 * kBlocks;
  const std::int32_t* c_at = b_at + kBlocks;

  // B by rows of k. Columns are reordered, 0 2 4 6 1 3 5 7: a row of D is then the four lanes of one register, followed by
  // the same lanes of the next.
  alignas(64) float b[kBlocks][4][2][8];  // [k / 8][k / 2 % 4][k % 2][column]
  for (int block = 0; block < kBlocks; ++block) {
    const u32* pairs = reinterpret_cast<const u32*>(registers + b_at[block]);
    alignas(64) u32 by_k[4][8];
    for (int k = 0; k < 4; ++k) {
      for (int n = 0; n < 8; ++n) by_k[k][n] = pairs[4 * (n % 4 * 2 + n / 4) + k];
    }
    for (int k = 0; k < 4; ++k) {
      for (int n = 0; n < 8; ++n) b[block][k][0][n] = to_float_bits<T>(by_k[k][n]);
      for (int n = 0; n < 8; ++n) b[block][k][1][n] = to_float_bits<T>(by_k[k][n] >> 16);
    }
  }
  Row sum[2][8];  // rows 0 … 7, rows 8 … 15; all of C is read before any of D is written
  for (int half = 0; half < 2; ++half) {
    for (int m = 0; m < 8; ++m) {
      char* row = reinterpret_cast<char*>(&sum[half][m]);
      __builtin_memcpy(row, registers + c_at[2 * half] + 16 * m, 16);
      __builtin_memcpy(row + 16, registers + c_at[2 * half + 1] + 16 * m, 16);
    }
  }
  for (int half = 0; half < 2; ++half) {
    alignas(64) float a[kBlocks][64];  // [k / 8][row, k % 8]
    for (int block = 0; block < kBlocks; ++block) {
      const T* elements = reinterpret_cast<const T*>(registers + a_at[2 * block + half]);
      for (int i = 0; i < 64; ++i) a[block][i] = to_float(elements[i]);
    }
    Row rows[8];
    for (int m = 0; m < 8; ++m) rows[m] = sum[half][m];
    for (int block = 0; block < kBlocks; ++block) {
#pragma GCC unroll 8
      for (int k = 0; k < 8; ++k) {
        Row b_row;
        __builtin_memcpy(&b_row, b[block][k / 2][k % 2], sizeof b_row);
        for (int m = 0; m < 8; ++m) multiply_add<T>(a[block][8 * m + k], b_row, rows[m]);
      }
    }
    for (int m = 0; m < 8; ++m) sum[half][m] = rows[m];
  }
  for (int half = 0; half < 2; ++half) {
    float* even = reinterpret_cast<float*>(registers + d_at[2 * half]);
    float* odd = reinterpret_cast<float*>(registers + d_at[2 * half + 1]);
    for (int m = 0; m < 8; ++m) {
      typedef s32 Mask __attribute__((vector_size(32)));
      const Mask is_nan = sum[half][m] != sum[half][m];
      const Mask result = (reinterpret_cast<Mask>(sum[half][m]) & ~is_nan) | (is_nan & static_cast<s32>(kNan));
      __builtin_memcpy(even + 4 * m, &result, 16);
      __builtin_memcpy(odd + 4 * m, reinterpret_cast<const char*>(&result) + 16, 16);
    }
  }
}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": D lies as in mma, eight columns at a time.
template <typename T>
void wgmma(float* const* d, const float* a, const float* b, int n, int k, bool accumulate) {
  for (int block = 0; block < n / 8; ++block) {
    for (int half = 0; half < 2; ++half) {
      float* const even = d[4 * block + 2 * half];
      float* const odd = d[4 * block + 2 * half + 1];
      Row rows[8] = {};
      if (accumulate) {
        for (int m = 0; m < 8; ++m) {
          char* row = reinterpret_cast<char*>(&rows[m]);
          __builtin_memcpy(row, even + 4 * m, 16);
          __builtin_memcpy(row + 16, odd + 4 * m, 16);
        }
      }
      const float* const a_rows = a + 8 * half * k;
      for (int i = 0; i < k; ++i) {
        Row b_row;
        __builtin_memcpy(&b_row, b + i * n + 8 * block, sizeof b_row);
        for (int m = 0; m < 8; ++m) multiply_add<T>(a_rows[m * k + i], b_row, rows[m]);
      }
      for (int m = 0; m < 8; ++m) {
        typedef s32 Mask __attribute__((vector_size(32)));
        const Mask is_nan = rows[m] != rows[m];
        const Mask result = (reinterpret_cast<Mask>(rows[m]) & ~is_nan) | (is_nan & static_cast<s32>(kNan));
        __builtin_memcpy(even + 4 * m, &result, 16);
        __builtin_memcpy(odd + 4 * m, reinterpret_cast<const char*>(&result) + 16, 16);
      }
    }
  }
}

template <typename T>
void to_floats(const u16* from, float* to, int count) {
  for (int i = 0; i < count; ++i) to[i] = to_float(T{from[i]});
}

}  // namespace

WarpFunctions warp_functions() {
  return {.mma_m16n8k16_f16 = mma<f16, 2>,
          .mma_m16n8k16_bf16 = mma<bf16, 2>,
          .mma_m16n8k8_f16 = mma<f16, 1>,
          .mma_m16n8k8_bf16 = mma<bf16, 1>,
          .wgmma_f16 = wgmma<f16>,
          .wgmma_bf16 = wgmma<bf16>,
          .f16_to_float = to_floats<f16>,
          .bf16_to_float = to_floats<bf16>};
}

}  // namespace flash_ladder::emulator::EMULATOR_INSTRUCTION_SET
