// Operations of all lanes of a warp together. shfl.sync: PTX ISA, "shfl.sync". mma.sync, the tensor cores: PTX ISA,
// "Matrix Fragments for mma.m16n8k16 with floating point type".
//
// Numerics of mma: products of two 16-bit numbers are exact in fp32 (except for bf16 products beyond its range); they are
// added to C one after another in order of k, each sum rounded to nearest even in fp32. Tensor cores add several products
// at a time with truncation, in an order that NVIDIA does not specify, so their results differ in the last bits.

#include "emulator/lanes/across_lanes.h"

#if defined(__AVX2__) && defined(__FMA__) && defined(__F16C__)
#define EMULATOR_HAS_X86_64_V3
#include <immintrin.h>
#endif

#include "emulator/lanes/float_bits.h"
#include "emulator/lanes/lane_loops.h"

namespace flash_ladder::emulator {
namespace {

typedef float Row __attribute__((vector_size(32)));  // the 8 columns of one row of D

// The processor's own conversion keeps a NaN's payload, but any sum with it becomes the canonical NaN anyway.
template <typename T>
inline void to_floats(const T* from, float* to, int count) {
  int i = 0;
#ifdef EMULATOR_HAS_X86_64_V3
  if constexpr (std::is_same_v<T, f16>) {
    for (; i + 8 <= count; i += 8)
      _mm256_storeu_ps(to + i, _mm256_cvtph_ps(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from + i))));
  }
#endif
  for (; i < count; ++i) to[i] = to_float(from[i]);
}

// c += a · b. Products of fp16 are exact, so a fused multiply-add gives the same result.
template <typename T>
inline void multiply_add(float a, const Row& b, Row& c) {
#ifdef EMULATOR_HAS_X86_64_V3
  if constexpr (std::is_same_v<T, f16>) {
    c = reinterpret_cast<Row>(
        _mm256_fmadd_ps(_mm256_set1_ps(a), reinterpret_cast<__m256>(b), reinterpret_cast<__m256>(c)));
    return;
  }
#endif
  c += a * b;
}

// A register of B, which holds 8 k of 8 columns, as rows of k. Columns are reordered to 0 2 4 6 1 3 5 7: a row of D is
// then four lanes of one register, followed by the same lanes of the next.
inline void rows_of_k(const std::byte* fragment, u16 (&rows)[8][8]) {
#ifdef EMULATOR_HAS_X86_64_V3
  const auto* columns = reinterpret_cast<const __m256i*>(fragment);  // two at a time: 0 1, 2 3, 4 5, 6 7
  const __m256i k03_left = _mm256_unpacklo_epi16(columns[0], columns[1]),
                k47_left = _mm256_unpackhi_epi16(columns[0], columns[1]),
                k03_right = _mm256_unpacklo_epi16(columns[2], columns[3]),
                k47_right = _mm256_unpackhi_epi16(columns[2], columns[3]);
  // Each contains the even columns of two k, followed by the odd ones.
  const __m256i pairs[] = {_mm256_unpacklo_epi32(k03_left, k03_right), _mm256_unpackhi_epi32(k03_left, k03_right),
                           _mm256_unpacklo_epi32(k47_left, k47_right), _mm256_unpackhi_epi32(k47_left, k47_right)};
  for (int pair = 0; pair < 4; ++pair)
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(rows[2 * pair]), _mm256_permute4x64_epi64(pairs[pair], 0b11011000));
#else
  const u16* columns = reinterpret_cast<const u16*>(fragment);
  for (int k = 0; k < 8; ++k) {
    for (int n = 0; n < 8; ++n) rows[k][n] = columns[8 * (n % 4 * 2 + n / 4) + k];
  }
#endif
}

// Assembled in one piece, because data stored by halves and read as a whole would have to wait until they are in the cache.
inline void load_row(Row& row, const float* even, const float* odd) {
#ifdef EMULATOR_HAS_X86_64_V3
  row = reinterpret_cast<Row>(_mm256_loadu2_m128(odd, even));
#else
  __builtin_memcpy(&row, even, 16);
  __builtin_memcpy(reinterpret_cast<char*>(&row) + 16, odd, 16);
#endif
}

inline void store_row(const Row& row, float* even, float* odd) {
#ifdef EMULATOR_HAS_X86_64_V3
  _mm256_storeu2_m128(odd, even, reinterpret_cast<__m256>(row));
#else
  __builtin_memcpy(even, &row, 16);
  __builtin_memcpy(odd, reinterpret_cast<const char*>(&row) + 16, 16);
#endif
}

// Replaces every NaN by the canonical one. If the sum of all rows contains no NaN, none of the rows does.
inline void unify_nans(Row (&rows)[8]) {
  typedef s32 Mask __attribute__((vector_size(32)));
  const Row sum = ((rows[0] + rows[1]) + (rows[2] + rows[3])) + ((rows[4] + rows[5]) + (rows[6] + rows[7]));
#ifdef EMULATOR_HAS_X86_64_V3
  const auto bits = reinterpret_cast<__m256>(sum);
  if (_mm256_movemask_ps(_mm256_cmp_ps(bits, bits, _CMP_UNORD_Q)) == 0) [[likely]]
    return;
#else
  const Mask is_nan = sum != sum;
  s32 any = 0;
  for (int i = 0; i < 8; ++i) any |= is_nan[i];
  if (any == 0) return;
#endif
  for (Row& row : rows) {
    const Mask is_nan = row != row;
    row = reinterpret_cast<Row>((reinterpret_cast<const Mask&>(row) & ~is_nan) | (is_nan & static_cast<s32>(kNan)));
  }
}

// rows += A B, for eight rows of A, `a_stride` apart and contiguous in k, and the matching rows of B, `b_stride` apart.
template <typename T>
inline __attribute__((always_inline)) void multiply_rows(Row (&rows)[8], const float* a, int a_stride, const float* b,
                                                         int b_stride, int k) {
  // Not unrolled over k: otherwise the compiler would place all of a row's sums one after another, each waiting for the
  // previous one.
#pragma GCC unroll 1
  for (int i = 0; i < k; ++i) {
    Row b_row;
    __builtin_memcpy(&b_row, b + i * b_stride, sizeof b_row);
#pragma GCC unroll 8
    for (int m = 0; m < 8; ++m) multiply_add<T>(a[m * a_stride + i], b_row, rows[m]);
  }
}

// r: four registers of D, four of A (two for k = 8), two of B (one), four of C. Over the 32 lanes, a register of a
// fragment of A or B holds an 8×8 block: lane 4·row + k/2 holds elements k and k+1.
template <typename T, int kBlocks>
void mma(std::byte* registers, const std::int32_t* r) {
  const std::int32_t* d_at = r;
  const std::int32_t* a_at = r + 4;
  const std::int32_t* b_at = a_at + 2 * kBlocks;
  const std::int32_t* c_at = b_at + kBlocks;
  const auto floats = [&](std::int32_t at) { return reinterpret_cast<float*>(registers + at); };

  // All of A, B and C is read before any of D is written.
  alignas(64) float b[kBlocks][8][8];   // [k / 8][k % 8][column]
  alignas(64) float a[2][kBlocks][64];  // [half][k / 8][row, k % 8]
  for (int block = 0; block < kBlocks; ++block) {
    alignas(64) u16 rows_of_b[8][8];
    rows_of_k(registers + b_at[block], rows_of_b);
    to_floats(reinterpret_cast<const T*>(rows_of_b), b[block][0], 64);
    for (int half = 0; half < 2; ++half)
      to_floats(reinterpret_cast<const T*>(registers + a_at[2 * block + half]), a[half][block], 64);
  }
  Row c[2][8];  // rows 0 … 7, rows 8 … 15
  for (int half = 0; half < 2; ++half) {
    for (int m = 0; m < 8; ++m)
      load_row(c[half][m], floats(c_at[2 * half]) + 4 * m, floats(c_at[2 * half + 1]) + 4 * m);
  }
#pragma GCC unroll 2
  for (int half = 0; half < 2; ++half) {
    Row rows[8];
    for (int m = 0; m < 8; ++m) rows[m] = c[half][m];
    for (int block = 0; block < kBlocks; ++block) multiply_rows<T>(rows, a[half][block], 8, b[block][0], 8, 8);
    unify_nans(rows);
    for (int m = 0; m < 8; ++m) store_row(rows[m], floats(d_at[2 * half]) + 4 * m, floats(d_at[2 * half + 1]) + 4 * m);
  }
}

// PTX ISA, "Register Fragments for wgmma.mma_async.m64nNk16": D has the same layout as in mma, eight columns at a time.
template <typename T>
void wgmma(float* const* d, const float* a, const float* b, int n, int k, bool accumulate) {
  for (int block = 0; block < n / 8; ++block) {
    for (int half = 0; half < 2; ++half) {
      float* const even = d[4 * block + 2 * half];
      float* const odd = d[4 * block + 2 * half + 1];
      Row rows[8] = {};
      if (accumulate) {
        for (int m = 0; m < 8; ++m) load_row(rows[m], even + 4 * m, odd + 4 * m);
      }
      multiply_rows<T>(rows, a + 8 * half * k, k, b + 8 * block, n, k);
      unify_nans(rows);
      for (int m = 0; m < 8; ++m) store_row(rows[m], even + 4 * m, odd + 4 * m);
    }
  }
}

}  // namespace

namespace lanes {

// Without branches, so that the compiler processes several lanes at a time.
template <ShuffleMode kMode>
u32 shuffle(const u32* values, const u32* delta, const u32* control, u32* sources, u32* results) {
  u32 in_range = 0;
#pragma GCC ivdep
  for (u32 lane = 0; lane < kWarpSize; ++lane) {
    const u32 segment_mask = (control[lane] >> 8) & 31, clamp = control[lane] & 31;
    const u32 lowest = lane & segment_mask, highest = lowest | (clamp & ~segment_mask), by = delta[lane] & 31;
    u32 source = 0;
    if constexpr (kMode == ShuffleMode::up) source = lane - by;
    if constexpr (kMode == ShuffleMode::down) source = lane + by;
    if constexpr (kMode == ShuffleMode::bfly) source = lane ^ by;
    if constexpr (kMode == ShuffleMode::idx) source = lowest | (by & ~segment_mask);
    const auto to = static_cast<s32>(source), limit = static_cast<s32>(highest);
    const bool valid = kMode == ShuffleMode::up ? to >= limit : to <= limit;
    sources[lane] = valid ? source : lane;
    in_range |= static_cast<u32>(valid) << lane;
  }
  for (int lane = 0; lane < kWarpSize; ++lane) results[lane] = values[sources[lane]];
  return in_range;
}

template u32 shuffle<ShuffleMode::up>(const u32*, const u32*, const u32*, u32*, u32*);
template u32 shuffle<ShuffleMode::down>(const u32*, const u32*, const u32*, u32*, u32*);
template u32 shuffle<ShuffleMode::bfly>(const u32*, const u32*, const u32*, u32*, u32*);
template u32 shuffle<ShuffleMode::idx>(const u32*, const u32*, const u32*, u32*, u32*);

void mma_m16n8k16_f16(std::byte* registers, const std::int32_t* r, u32) { mma<f16, 2>(registers, r); }
void mma_m16n8k16_bf16(std::byte* registers, const std::int32_t* r, u32) { mma<bf16, 2>(registers, r); }
void mma_m16n8k8_f16(std::byte* registers, const std::int32_t* r, u32) { mma<f16, 1>(registers, r); }
void mma_m16n8k8_bf16(std::byte* registers, const std::int32_t* r, u32) { mma<bf16, 1>(registers, r); }

void wgmma_f16(float* const* d, const float* a, const float* b, int n, int k, bool accumulate) {
  wgmma<f16>(d, a, b, n, k, accumulate);
}
void wgmma_bf16(float* const* d, const float* a, const float* b, int n, int k, bool accumulate) {
  wgmma<bf16>(d, a, b, n, k, accumulate);
}

void f16_to_float(const u16* from, float* to, int count) { to_floats(reinterpret_cast<const f16*>(from), to, count); }
void bf16_to_float(const u16* from, float* to, int count) { to_floats(reinterpret_cast<const bf16*>(from), to, count); }

}  // namespace lanes
}  // namespace flash_ladder::emulator
