// Q, K, V and O in host memory: 16-bit elements as bits, and where each row of them lies.
#pragma once

#include <cstdint>
#include <memory>

#include "host/problem.h"

namespace flash_ladder {

/// Conversion of one element. From float it rounds to nearest even.
std::uint16_t element_from_float(Dtype dtype, float value);
float element_to_float(Dtype dtype, std::uint16_t bits);
/// The same for `count` elements in a row.
void elements_to_float(Dtype dtype, const std::uint16_t* bits, std::int64_t count, float* values);

/// Whether an element is a NaN or an infinity.
inline bool is_finite(Dtype dtype, std::uint16_t bits) {
  const std::uint16_t exponent = dtype == Dtype::fp16 ? 0x7c00 : 0x7f80;
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
