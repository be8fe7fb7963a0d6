#include "emulator/tensor_map.h"

#include <cstring>

namespace flash_ladder::emulator {
namespace {

constexpr std::uint64_t kMagic = 0x70616d20726f736e;  // "nsor map"

// The layout in the kernel's parameters.
struct Image {
  std::uint64_t magic;
  std::uint64_t address;
  std::uint64_t strides[TensorMap::kMostDimensions - 1];
  std::uint32_t sizes_less_one[TensorMap::kMostDimensions];
  std::uint16_t box[TensorMap::kMostDimensions];
  std::uint8_t dimensions, element_bytes, swizzle, fills_with_nan;
  std::uint8_t rest[128 - 82];
};
static_assert(sizeof(Image) == kTensorMapBytes);

}  // namespace

std::string to_string(Swizzle swizzle) {
  switch (swizzle) {
    case Swizzle::none:
      return "no swizzle";
    case Swizzle::bytes_32:
      return "the 32-byte swizzle";
    case Swizzle::bytes_64:
      return "the 64-byte swizzle";
    case Swizzle::bytes_128:
      break;
  }
  return "the 128-byte swizzle";
}

std::uint32_t TensorMap::box_bytes() const {
  auto bytes = static_cast<std::uint32_t>(element_bytes);
  for (int i = 0; i < dimensions; ++i) bytes *= box[static_cast<std::size_t>(i)];
  return bytes;
}

void store_tensor_map(const TensorMap& map, std::byte* to) {
  Image image{};
  image.magic = kMagic;
  image.address = map.address;
  for (std::size_t i = 0; i < map.sizes.size(); ++i) {
    if (i > 0) image.strides[i - 1] = map.strides[i];
    image.sizes_less_one[i] = static_cast<std::uint32_t>(map.sizes[i] - 1);
    image.box[i] = static_cast<std::uint16_t>(map.box[i]);
  }
  image.dimensions = static_cast<std::uint8_t>(map.dimensions);
  image.element_bytes = static_cast<std::uint8_t>(map.element_bytes);
  image.swizzle = static_cast<std::uint8_t>(map.swizzle);
  image.fills_with_nan = map.fills_with_nan;
  std::memcpy(to, &image, sizeof image);
}

std::optional<TensorMap> load_tensor_map(const std::byte* from) {
  Image image;
  std::memcpy(&image, from, sizeof image);
  if (image.magic != kMagic || image.dimensions < 1 || image.dimensions > TensorMap::kMostDimensions ||
      image.swizzle > static_cast<std::uint8_t>(Swizzle::bytes_128) || image.element_bytes == 0 ||
      image.element_bytes > 8) {
    return std::nullopt;
  }
  TensorMap map{.address = image.address,
                .dimensions = image.dimensions,
                .element_bytes = image.element_bytes,
                .swizzle = static_cast<Swizzle>(image.swizzle),
                .fills_with_nan = image.fills_with_nan != 0};
  map.strides[0] = image.element_bytes;
  for (std::size_t i = 0; i < map.sizes.size(); ++i) {
    if (i > 0) map.strides[i] = image.strides[i - 1];
    map.sizes[i] = std::uint64_t{image.sizes_less_one[i]} + 1;
    map.box[i] = image.box[i];
    if (static_cast<int>(i) < map.dimensions && (map.box[i] == 0 || map.box[i] > 256)) return std::nullopt;
  }
  return map;
}

}  // namespace flash_ladder::emulator
