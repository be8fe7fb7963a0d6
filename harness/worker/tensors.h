// Q, K, V and O in host memory: 16-bit elements as bits, and where each row of them lies.
//
// An e4m3 problem has fp16 here, too. Its scales are powers of two, so that fp16 has every number that an element of Q, K and V stands
// for; they become 8 bits on their way to the device (device_problem.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>

#include "host/problem.h"

namespace flash_ladder {

/// Conversion of one element. From float it rounds to nearest even.
std::uint16_t element_from_float(Dtype dtype, float value);
float element_to_float(Dtype dtype, std::uint16_t bits);
/// The same for `count` elements in a row.
void elements_to_float(Dtype dtype, const std::uint16_t* bits, std::int64_t count, float* values);

/// The nearest element of the type that P = exp(S - rowmax) is rounded to, which multiplies V. Of e4m3, which ends at 448, that of
/// P times a number from 128 to 256, over that number. A kernel rounds before it has seen a row's largest score, so how far its largest
/// P is above a power of two, and with it the error of the P that weighs most, is up to the keys before. Here it is row % 8 eighths
/// of an octave, so that a head has rows of all kinds.
float round_P(Dtype dtype, float P, std::int64_t row);

/// e4m3, as bits, and the number that they stand for. From float it rounds to nearest even; what is beyond 448 becomes 448. PTX ISA,
/// "Alternate floating-point data formats".
std::uint8_t e4m3_from_float(float value);
float e4m3_to_float(std::uint8_t bits);
/// The least power of two that brings the largest of these fp16 numbers to at most 448. NaNs do not count; 1 where all are 0.
float e4m3_scale(float largest);

/// Whether an element is a NaN or an infinity.
inline bool is_finite(Dtype dtype, std::uint16_t bits) {
  const std::uint16_t exponent = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
  return (bits & exponent) != exponent;
}

/// The distance from |value| to the next larger number of the type: one unit in the last place.
double ulp(Dtype dtype, double value);

/// Memory for elements, not initialised: the threads that fill it are the first to touch it.
class HostBuffer {
 public:
  HostBuffer() = default;
  explicit HostBuffer(std::int64_t size) : data_(std::make_unique_for_overwrite<std::uint16_t[]>(size)), size_(size) {}

  std::uint16_t* data() { return data_.get(); }
  const std::uint16_t* data() const { return data_.get(); }
  std::int64_t size() const { return size_; }
  std::int64_t bytes() const { return size_ * static_cast<std::int64_t>(sizeof(std::uint16_t)); }

 private:
  std::unique_ptr<std::uint16_t[]> data_;
  std::int64_t size_ = 0;
};

/// Where a tensor of shape [batch, rows, heads, head_dim] lies in a buffer. All members count elements; head_dim is contiguous.
struct TensorLayout {
  std::int64_t offset = 0;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;

  /// The first element of a row.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    return offset + batch * batch_stride + row * row_stride + head * head_stride;
  }
};

/// The layout of a tensor that has a buffer to itself, without gaps.
TensorLayout contiguous_layout(std::int64_t rows, std::int64_t heads, std::int64_t head_dim);

/// The layout and the number of elements of O.
TensorLayout output_layout(const AttentionProblem& problem);
std::int64_t output_size(const AttentionProblem& problem);

}  // namespace flash_ladder
