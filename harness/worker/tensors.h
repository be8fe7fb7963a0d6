// Q, K, V and O in host memory: 16-bit elements as bits, and the location of each row.
//
// An e4m3 problem uses fp16 here, too. Its scales are powers of two, so fp16 can represent every value of an element of
// Q, K and V; the elements become 8 bits on their way to the device (device_problem.h).
#pragma once

#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "host/problem.h"

namespace flash_ladder {

/// Conversion of one element. Conversion from float rounds to nearest even.
std::uint16_t element_from_float(Dtype dtype, float value);
float element_to_float(Dtype dtype, std::uint16_t bits);
/// The same for `count` consecutive elements.
void elements_to_float(Dtype dtype, const std::uint16_t* bits, std::int64_t count, float* values);

/// P = exp(S - rowmax), rounded to the nearest element of the type that multiplies V. For e4m3, whose largest value is
/// 448, P is first multiplied by a number from 128 to 256, and divided by it after rounding. A kernel rounds before it
/// has seen a row's largest score, so the earlier keys determine how far its largest P is above a power of two, and
/// thereby the error of the P with the largest weight. Here that distance is row % 8 eighths of an octave, so that a
/// head has rows of all kinds.
float round_P(Dtype dtype, float P, std::int64_t row);

/// e4m3 as bits, and the number that they stand for. Conversion from float rounds to nearest even; magnitudes above 448
/// become 448. PTX ISA, "Alternate floating-point data formats".
std::uint8_t e4m3_from_float(float value);
float e4m3_to_float(std::uint8_t bits);
/// The least power of two that brings the largest of these fp16 numbers to at most 448. NaNs are ignored; 1 if all are 0.
float e4m3_scale(float largest);

/// Whether an element is a NaN or an infinity.
inline bool is_finite(Dtype dtype, std::uint16_t bits) {
  const std::uint16_t exponent = dtype == Dtype::bf16 ? 0x7f80 : 0x7c00;
  return (bits & exponent) != exponent;
}

/// The distance from |value| to the next larger number of the type: one unit in the last place.
double ulp(Dtype dtype, double value);

/// Memory for elements, uninitialised so that the threads that fill it are the first to touch it.
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

/// Where the rows of each batch entry are, if K and V are paged: row r is row r % page_size of page pages[batch * width + r / page_size].
struct PageTable {
  std::int64_t page_size = 0;   // 0: not paged
  std::int64_t width = 0;       // entries for each batch entry
  std::vector<int> pages = {};  // [batch][width]
  std::int64_t num_pages = 0;   // in memory, used or not
};

/// The location of a tensor of shape [batch, rows, heads, head_dim] in a buffer. Offset and strides count elements; head_dim is
/// contiguous. If it is paged, its shape is [pages, page_size, heads, head_dim], and batch_stride is that of pages.
struct TensorLayout {
  std::int64_t offset = 0;
  std::int64_t batch_stride = 0;
  std::int64_t row_stride = 0;
  std::int64_t head_stride = 0;
  std::vector<std::int64_t> first_rows = {};         // of each batch entry, if they are packed; then batch_stride is 0
  std::shared_ptr<const PageTable> table = nullptr;  // if it is paged

  /// The first element of a row.
  std::int64_t row(std::int64_t batch, std::int64_t head, std::int64_t row) const {
    if (table != nullptr) {
      batch = table->pages[batch * table->width + row / table->page_size];
      row %= table->page_size;
    }
    const std::int64_t before = first_rows.empty() ? 0 : first_rows[batch];
    return offset + batch * batch_stride + (before + row) * row_stride + head * head_stride;
  }
};

/// The layout of a tensor without gaps in its own buffer.
TensorLayout contiguous_layout(std::int64_t rows, std::int64_t heads, std::int64_t head_dim);

/// The layout and the number of elements of O.
TensorLayout output_layout(const AttentionProblem& problem);
std::int64_t output_size(const AttentionProblem& problem);
/// The layout of one number for each row of O, as the log-sum-exp: [batch][heads][seq_len], or [heads][total] if packed.
TensorLayout log_sum_exp_layout(const AttentionProblem& problem);

}  // namespace flash_ladder
