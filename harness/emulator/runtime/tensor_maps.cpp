// The driver functions that programs look up by name: the one that creates tensor maps. CUDA Driver API, "Tensor Map
// Object Management"; the rules are those of cuTensorMapEncodeTiled.
#include <cuda.h>
#include <fmt/format.h>

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

#include "emulator/runtime/device.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator::runtime {
namespace {

struct DataType {
  int bytes;
  bool is_float;
};

std::optional<DataType> data_type(CUtensorMapDataType type) {
  switch (type) {
    case CU_TENSOR_MAP_DATA_TYPE_UINT8:
      return DataType{1, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT16:
      return DataType{2, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT32:
    case CU_TENSOR_MAP_DATA_TYPE_INT32:
      return DataType{4, false};
    case CU_TENSOR_MAP_DATA_TYPE_UINT64:
    case CU_TENSOR_MAP_DATA_TYPE_INT64:
      return DataType{8, false};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT16:
    case CU_TENSOR_MAP_DATA_TYPE_BFLOAT16:
      return DataType{2, true};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT32_FTZ:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32:
    case CU_TENSOR_MAP_DATA_TYPE_TFLOAT32_FTZ:
      return DataType{4, true};
    case CU_TENSOR_MAP_DATA_TYPE_FLOAT64:
      return DataType{8, true};
    default:
      return std::nullopt;
  }
}

struct Request {
  CUtensorMap* map;
  CUtensorMapDataType type;
  cuuint32_t rank;
  const void* address;
  const cuuint64_t *sizes, *strides;
  const cuuint32_t *box, *steps;
  CUtensorMapInterleave interleave;
  CUtensorMapSwizzle swizzle;
  CUtensorMapL2promotion promotion;
  CUtensorMapFloatOOBfill fill;
};

// Why CUDA returns CUDA_ERROR_INVALID_VALUE; empty if it does not.
std::string why_invalid(const Request& r) {
  const auto type = data_type(r.type);
  const bool interleaved = r.interleave != CU_TENSOR_MAP_INTERLEAVE_NONE;
  const cuuint64_t alignment = r.interleave == CU_TENSOR_MAP_INTERLEAVE_32B ? 32 : 16;
  const auto address = reinterpret_cast<std::uintptr_t>(r.address);
  if (reinterpret_cast<std::uintptr_t>(r.map) % 64 != 0) return "the map is not at a multiple of 64 bytes";
  if (!type) return fmt::format("data type {} is not known", static_cast<int>(r.type));
  if (r.rank < (interleaved ? 3 : 1) || r.rank > TensorMap::kMostDimensions) {
    return fmt::format("{} dimensions; there can be {} to {}", r.rank, interleaved ? 3 : 1, TensorMap::kMostDimensions);
  }
  if (address % alignment != 0) return fmt::format("the address {:#x} is not a multiple of {}", address, alignment);
  for (cuuint32_t i = 0; i < r.rank; ++i) {
    if (r.sizes[i] == 0 || r.sizes[i] > cuuint64_t{1} << 32)
      return fmt::format("globalDim[{}] is {}; it can be 1 to 2^32", i, r.sizes[i]);
    if (r.box[i] == 0 || r.box[i] > 256) return fmt::format("boxDim[{}] is {}; it can be 1 to 256", i, r.box[i]);
    if (r.steps[i] == 0 || r.steps[i] > 8)
      return fmt::format("elementStrides[{}] is {}; it can be 1 to 8", i, r.steps[i]);
    // A value that is too large is most often a negative one.
    if (i + 1 < r.rank && (r.strides[i] % alignment != 0 || r.strides[i] >= cuuint64_t{1} << 40)) {
      return fmt::format("globalStrides[{}] is {}; it must be a multiple of {}, at least 0 and less than 2^40", i,
                         static_cast<std::int64_t>(r.strides[i]), alignment);
    }
  }
  const cuuint64_t inner = cuuint64_t{r.box[0]} * static_cast<cuuint64_t>(type->bytes);
  if (!interleaved && inner % 16 != 0)
    return fmt::format("a row of the box has {} bytes, which is not a multiple of 16", inner);
  if (r.swizzle > CU_TENSOR_MAP_SWIZZLE_128B && r.swizzle <= CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B) return {};
  if (r.swizzle < CU_TENSOR_MAP_SWIZZLE_NONE || r.swizzle > CU_TENSOR_MAP_SWIZZLE_128B_ATOM_64B)
    return fmt::format("swizzle {} is not known", static_cast<int>(r.swizzle));
  if (r.interleave == CU_TENSOR_MAP_INTERLEAVE_32B && r.swizzle != CU_TENSOR_MAP_SWIZZLE_32B)
    return "the 32-byte interleave requires the 32-byte swizzle";
  const cuuint64_t span = cuuint64_t{16} << r.swizzle;
  if (!interleaved && r.swizzle != CU_TENSOR_MAP_SWIZZLE_NONE && inner > span)
    return fmt::format("a row of the box has {} bytes; with the swizzle of {} bytes it can have that many", inner,
                       span);
  if (r.fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE && !type->is_float) return "NaN can fill only floating-point tensors";
  return {};
}

CUresult encode_tiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                      const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                      const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                      CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  const bool needs_strides = rank > 1;
  if (map == nullptr || sizes == nullptr || (needs_strides && strides == nullptr) || box == nullptr || steps == nullptr)
    return CUDA_ERROR_INVALID_VALUE;
  Device& device = runtime::device();
  if (device.sm < 90) {
    print_once(fmt::format("cuTensorMapEncodeTiled: sm_{} has no TMA.", device.sm));
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  const Request request{map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill};
  if (const std::string why = why_invalid(request); !why.empty()) {
    print_once("cuTensorMapEncodeTiled: " + why + ".");
    return CUDA_ERROR_INVALID_VALUE;
  }
  bool steps_over = false;
  for (cuuint32_t i = 1; i < rank; ++i) steps_over |= steps[i] != 1;
  if (interleave != CU_TENSOR_MAP_INTERLEAVE_NONE || swizzle > CU_TENSOR_MAP_SWIZZLE_128B || steps_over) {
    print_once(
        "cuTensorMapEncodeTiled: interleaved layouts, elementStrides other than 1, and swizzles of other atoms than 16 bytes "
        "are not supported by the virtual GPU.");
    return CUDA_ERROR_NOT_SUPPORTED;
  }
  TensorMap made{.address = reinterpret_cast<std::uintptr_t>(address),
                 .dimensions = static_cast<int>(rank),
                 .element_bytes = data_type(type)->bytes,
                 .swizzle = static_cast<Swizzle>(swizzle),
                 .fills_with_nan = fill != CU_TENSOR_MAP_FLOAT_OOB_FILL_NONE};
  for (cuuint32_t i = 0; i < rank; ++i) {
    made.sizes[i] = sizes[i];
    made.box[i] = box[i];
    if (i > 0) made.strides[i] = strides[i - 1];
  }
  store_tensor_map(made, reinterpret_cast<std::byte*>(map));
  return CUDA_SUCCESS;
}

cudaError_t entry_point(const char* symbol, void** function, cudaDriverEntryPointQueryResult* status) {
  if (symbol == nullptr || function == nullptr) return remember(cudaErrorInvalidValue);
  const bool known = std::string_view(symbol) == "cuTensorMapEncodeTiled";
  *function = known ? reinterpret_cast<void*>(encode_tiled) : nullptr;
  if (!known) {
    print_once(std::string(symbol) + ": cuTensorMapEncodeTiled is the only driver function that the virtual GPU has.");
  }
  if (status != nullptr) *status = known ? cudaDriverEntryPointSuccess : cudaDriverEntryPointSymbolNotFound;
  return known || status != nullptr ? cudaSuccess : remember(cudaErrorSymbolNotFound);
}

}  // namespace
}  // namespace flash_ladder::emulator::runtime

using namespace flash_ladder::emulator::runtime;  // C functions are in no namespace

extern "C" {

// Programs that are linked with the driver library call it directly.
CUresult cuTensorMapEncodeTiled(CUtensorMap* map, CUtensorMapDataType type, cuuint32_t rank, void* address,
                                const cuuint64_t* sizes, const cuuint64_t* strides, const cuuint32_t* box,
                                const cuuint32_t* steps, CUtensorMapInterleave interleave, CUtensorMapSwizzle swizzle,
                                CUtensorMapL2promotion promotion, CUtensorMapFloatOOBfill fill) {
  return encode_tiled(map, type, rank, address, sizes, strides, box, steps, interleave, swizzle, promotion, fill);
}

cudaError_t cudaGetDriverEntryPoint(const char* symbol, void** function, unsigned long long /*flags*/,
                                    cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, status);
}

cudaError_t cudaGetDriverEntryPointByVersion(const char* symbol, void** function, unsigned /*version*/,
                                             unsigned long long /*flags*/, cudaDriverEntryPointQueryResult* status) {
  return entry_point(symbol, function, status);
}

}  // extern "C"
