#include "worker/adversarial.h"

#include <algorithm>
#include <cmath>
#include <initializer_list>
#include <numbers>

#include "worker/inputs.h"

namespace flash_ladder {
namespace {

constexpr float kQuery = 64;           // a non-zero element of Q
constexpr std::int64_t kElements = 8;  // how many of them a row has
constexpr float kLarge = 57344;        // 7 · 2^13, which every type can represent with a scale

using Keys = std::vector<DesignedKey>;

// Steps between thirds, for a softmax that takes a new maximum when a sum reaches `limit`. In each third one key is at
// the peak, with V = 0, and the others are smaller by a factor of 2^below than the power of two at or under it, with V = 1.
Keys with_peaks(Keys keys, double second, double third, int below) {
  const std::int64_t size = std::max<std::int64_t>(std::ssize(keys) / 3, 1);
  const double peaks[] = {0, second, third};
  for (std::int64_t key = 0; key < std::ssize(keys); ++key) {
    const double peak = peaks[std::min<std::int64_t>(key / size, 2)];
    keys[key] = key % size == 0 && key / size < 3 ? DesignedKey{peak, 0} : DesignedKey{std::floor(peak) - below, 1};
  }
  return keys;
}

// One level for each third.
Keys with_levels(Keys keys, std::initializer_list<DesignedKey> levels) {
  const std::int64_t size = std::max<std::int64_t>(std::ssize(keys) / 3, 1);
  for (std::int64_t key = 0; key < std::ssize(keys); ++key)
    keys[key] = levels.begin()[std::min<std::int64_t>(key / size, 2)];
  return keys;
}

// Four keys with V = 0, one in each lane's share of the first tile: a lane of an mma or wgmma holds two keys of every eight.
Keys with_four(Keys keys, double level) {
  for (std::int64_t key = 0; key < std::min<std::int64_t>(std::ssize(keys), 8); key += 2) keys[key] = {level, 0};
  return keys;
}

// All values are positive, so that nothing cancels. All weights are powers of two, so that whichever of a row's running
// maxima a version uses as its reference, it rounds no weight that matters. No weight is 2^-25 of the row's maximum: there
// fp16 has a tie, and two correct exponentials may become 0 and 2^-24. In e4m3, no weight that matters is below 2^-12.
Keys drawn(std::int64_t head, std::int64_t num_keys, bool in_8_bits, std::uint64_t seed) {
  std::uint64_t draws = 0;
  const auto draw = [&](std::int64_t from, std::int64_t to) {  // both ends included
    return from + static_cast<std::int64_t>(hash(seed, 0x616476, head, draws++) % (to - from + 1));
  };
  const int most = in_8_bits ? 3 : 20;  // the largest maximum, and the largest downward step
  Keys keys(num_keys);
  switch (draw(0, 2)) {
    case 0: {  // a few keys of the first tile, above or below a guess, dominate the row, and have V = 0
      std::int64_t largest = -7;
      const std::int64_t guess = draw(0, 1) * -3, few = draw(1, 8);
      std::vector<std::int64_t> levels(few);
      for (std::int64_t& level : levels) largest = std::max(largest, level = draw(-7, 2));
      const std::int64_t kept[] = {-22, -23, -24, -26, -27}, kept_in_8_bits[] = {-10, -11, -12, -22, -23};
      for (DesignedKey& key : keys) {
        const std::int64_t below = (in_8_bits ? kept_in_8_bits : kept)[draw(0, 4)];
        key = {static_cast<double>(guess + largest + below), 1};
      }
      const std::int64_t first = draw(0, 15);
      for (std::int64_t i = 0; i < few; ++i)  // each at a different place among the first 16
        keys[std::min((first + 3 * i) % 16, num_keys - 1)] = {static_cast<double>(guess + levels[i]), 0};
      return keys;
    }
    case 1: {  // the maximum moves, and the keys that matter are a little below
      const std::int64_t second = draw(-most, most), third = draw(-most, most), below = draw(4, in_8_bits ? 6 : 12);
      return with_peaks(std::move(keys), static_cast<double>(second), static_cast<double>(third),
                        static_cast<int>(below));
    }
    default: {
      const auto level = [&] { return static_cast<double>(draw(-2 * most, 2 * most)); };
      const double first = level(), second = level(), third = level();
      return with_levels(std::move(keys), {{first, 1}, {second, 2}, {third, 0.5f}});
    }
  }
}

// Significant bits of an element.
int digits(Dtype dtype) { return dtype == Dtype::fp16 ? 11 : dtype == Dtype::bf16 ? 8 : 4; }

}  // namespace

std::vector<DesignedKey> adversarial_keys(std::int64_t head, std::int64_t num_keys, Dtype dtype, std::uint64_t seed) {
  // Relative to the largest weight of a row, fp16 and its denormals keep weights down to 2^-24; e4m3, in which P may
  // grow larger before a new maximum is taken, down to 2^-14.
  const bool in_8_bits = dtype == Dtype::e4m3;
  const int lost = in_8_bits ? -14 : -26, kept = in_8_bits ? -12 : -24;
  const auto all = [&](double level, float value = 1) { return Keys(num_keys, {level, value}); };
  switch (head) {
    // The maximum is above or below the value that a kernel may assume.
    case 0:
      return with_four(all(lost), -5.9);
    case 1:
      return with_four(all(lost + 1), -5.9);
    case 2:
      return with_four(all(lost - 3), -8.9);
    case 3:
      return with_four(all(8 + kept), 8);
    // Sums and maxima near the limits of 12 to 16 and of 24 to 27, near 2^12, and near the largest power of two of
    // fp16; in e4m3, near 448/32.
    case 4:
      return with_peaks(all(0), std::log2(in_8_bits ? 13 : 4090), std::log2(in_8_bits ? 13 : 4090), in_8_bits ? 9 : 18);
    case 5:
      return with_peaks(all(0), std::log2(in_8_bits ? 15 : 4100), std::log2(in_8_bits ? 15 * 13 : 4100.0 * 4090),
                        in_8_bits ? 9 : 18);
    case 6:
      return with_peaks(all(0), std::log2(32700), std::log2(32700), in_8_bits ? 9 : 18);
    case 7:
      return with_peaks(all(0), std::log2(32800), std::log2(32800.0 * 32700), in_8_bits ? 9 : 18);
    case 8:
      return with_levels(all(0), {{0, 0}, {7, 1}, {10, -0.5f}});
    // All scores equal, and huge: q·k = ±2^19. In some rows, q is zero.
    case 9:
    case 10: {
      Keys keys = all((head == 9 ? 1 : -1) * 0x1p19 * softmax_scale(128) * std::numbers::log2e);
      for (std::int64_t key = 0; key < num_keys; key += 2) keys[key].value = 0;
      return keys;
    }
    // A first maximum far below, and large values with small weights.
    case 11: {
      Keys keys = with_levels(all(0), {{-1000, kLarge}, {-1000, kLarge}, {in_8_bits ? kept : -16.0, kLarge}});
      keys[num_keys / 3] = {0, 0};
      return keys;
    }
    case 12: {
      Keys keys = all(kept, kLarge);
      keys[0] = {0, 0};
      return keys;
    }
    // The same with the maximum in the second tile, so that it also comes late in 28 and 29, which begin with the last.
    case 13: {
      Keys keys = with_levels(all(0), {{-1000, kLarge}, {in_8_bits ? kept : -16.0, kLarge}, {-1000, kLarge}});
      keys[num_keys / 3] = {0, 0};
      return keys;
    }
    default:
      return drawn(head, num_keys, in_8_bits, seed);
  }
}

std::vector<float> adversarial_query(std::int64_t head, std::int64_t row, std::int64_t head_dim) {
  // Of each 16 rows of heads 9 and 10, which halves are not zero: the first, the second. A warp has 16 or 32 of the rows.
  constexpr bool kHalves[][2] = {{true, true},  {true, false},  {false, false}, {false, true},
                                 {true, false}, {false, false}, {false, true},  {false, false}};
  const bool is_zero = (head == 9 || head == 10) && !kHalves[row / 16 % std::ssize(kHalves)][row / 8 % 2];
  std::vector<float> elements(head_dim);
  if (!is_zero) std::fill_n(elements.begin(), kElements, kQuery);
  return elements;
}

std::vector<float> adversarial_key(double log2_weight, std::int64_t head_dim, Dtype dtype) {
  std::vector<float> row(head_dim);
  double rest = log2_weight / (std::numbers::log2e * softmax_scale(head_dim) * kQuery);
  for (std::int64_t d = 0; d < kElements && rest != 0; ++d) {
    const double unit = std::exp2(std::ilogb(rest) - digits(dtype) + 1);
    row[d] = static_cast<float>(std::nearbyint(rest / unit) * unit);
    rest -= row[d];
  }
  return row;
}

}  // namespace flash_ladder
