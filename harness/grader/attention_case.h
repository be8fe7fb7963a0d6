// A case of an assignment that is an attention problem: its tensors as the course lays them out, a kernel's arguments, and whether
// what the kernel wrote is right. It knows nothing of the device, so the virtual GPU and a real one get the same.
#pragma once

#include <array>
#include <cstddef>
#include <cstdint>
#include <functional>
#include <nlohmann/json_fwd.hpp>
#include <string>
#include <vector>

#include "worker/inputs.h"
#include "worker/reference.h"

namespace flash_ladder {

/// A piece of a device's memory.
struct Buffer {
  std::string name;
  std::vector<std::byte> bytes;
  bool initialised = true;
};

/// How the axes of a tensor follow each other in memory, the last one without gaps.
enum class Order {
  bshd,
  bhsd,
  bhds
};  // [batch, rows, heads, head_dim], [batch, heads, rows, head_dim], or that with columns as rows

/// The problem, its inputs, and how the four tensors lie in memory.
struct Attention {
  Inputs inputs;
  std::array<Order, 4> orders;  // of Q, K, V, O
};

/// The problem of a request, as run_kernel() describes it, with its inputs. `threads`: 0, as many as the host has cores. Throws
/// std::exception for a request that makes no sense.
Attention make_attention(const nlohmann::json& request, int threads);

/// Q, K and V with their elements, and O, which is poisoned: a NaN, and 0xff in each byte.
std::vector<Buffer> tensor_buffers(const Attention& attention);

/// The bytes of a kernel's arguments, one after the other. `address` says where a buffer lies on the device; `attention` is null
/// where no argument is AttentionArgs. Throws std::exception as make_attention() does.
std::vector<std::vector<std::byte>> make_arguments(const nlohmann::json& request, const Attention* attention,
                                                   const std::function<std::uint64_t(const std::string&)>& address);

/// Why the output is wrong; empty when it is right. `before` and `after` are the buffers of tensor_buffers(). The selected rows are
/// compared with the reference, and all others have to be finite.
std::string why_wrong(const Attention& attention, const std::vector<Buffer>& before, const std::vector<Buffer>& after,
                      const RowSelection& rows, int threads);

}  // namespace flash_ladder
