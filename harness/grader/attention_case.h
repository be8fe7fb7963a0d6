// A case of an assignment that is an attention problem: its tensors in the course's layout, a kernel's arguments, and
// whether the kernel's output is right. It is independent of the device, so the virtual GPU and a real one get the same.
// The output is O, or O and L, or some of the gradients.
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

/// A range of a device's memory.
struct Buffer {
  std::string name;
  std::vector<std::byte> bytes;
  bool initialised = true;
};

/// The order of a tensor's axes in memory; the last one has no gaps.
enum class Order {
  bshd,
  bhsd,
  bhds
};  // [batch, rows, heads, head_dim], [batch, heads, rows, head_dim], or the latter with columns as rows

/// The problem, its inputs, and the layouts of the tensors in memory.
struct Attention {
  Inputs inputs;
  std::array<Order, 4> orders;  // of Q, K, V and O, and of their gradients
  bool hides_expected = false;  // why_wrong() does not say what the output should be
  // Of a backward problem, whose O and L are inputs: the gradients that are compared, of "dQ", "dK" and "dV".
  std::vector<std::string> gradients = {};
  double log_sum_exp_base = 0;  // L is an output, too: the logarithm with this base. 0: it is not
  std::int64_t workspace_bytes = 0;
};

/// The problem of a request, in the form that run_kernel() documents, with its inputs. `threads`: 0 means as many as
/// the host has cores. Throws std::exception for an invalid request.
Attention make_attention(const nlohmann::json& request, int threads);

/// Q, K and V with their elements, and O, which is poisoned: every byte is 0xff, so every element is a NaN. After them, "L" and
/// "workspace" if there are any, both poisoned, then "lengths_kv" of a problem that has them. Of a backward
/// problem, O, "dO" and "L" are inputs, and "dQ", "dK" and "dV" are poisoned.
std::vector<Buffer> tensor_buffers(const Attention& attention);

/// The bytes of the arguments of one of a request's launches, one after the other. `address` returns the address of a buffer on
/// the device; `attention` is null if no argument is AttentionArgs or Gradients. Throws std::exception as make_attention() does.
std::vector<std::vector<std::byte>> make_arguments(const nlohmann::json& launch, const Attention* attention,
                                                   const std::function<std::uint64_t(const std::string&)>& address);

/// Why the output is wrong; empty if it is right. `before` and `after` are the buffers of tensor_buffers(). The
/// selected rows are compared with the reference, and all others must be finite.
std::string why_wrong(const Attention& attention, const std::vector<Buffer>& before, const std::vector<Buffer>& after,
                      const RowSelection& rows, int threads);

}  // namespace flash_ladder
