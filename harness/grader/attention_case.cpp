#include "grader/attention_case.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string_view>

#include "attention.h"
#include "problem/problem.h"
#include "worker/checker.h"
#include "worker/tensors.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

Order order_of(const std::string& name) {
  if (name == "bshd") return Order::bshd;
  if (name == "bhsd") return Order::bhsd;
  if (name == "bhds") return Order::bhds;
  throw std::invalid_argument(fmt::format("the layout '{}' is unknown; there are bshd, bhsd and bhds", name));
}

Distribution distribution(const std::string& name) {
  for (const Distribution known :
       {Distribution::normal, Distribution::offset_mean, Distribution::large_logit, Distribution::ramp})
    if (to_string(known) == name) return known;
  throw std::invalid_argument(
      fmt::format("inputs '{}' are unknown; there are normal, offset-mean, large-logit and ramp", name));
}

// The location of a tensor's elements. If a row of memory is a column of the tensor, row_stride is the distance from
// one to the next.
struct Place {
  TensorLayout layout;
  bool columns = false;

  std::int64_t of(std::int64_t batch, std::int64_t head, std::int64_t row, std::int64_t col) const {
    return columns ? layout.row(batch, head, col) + row : layout.row(batch, head, row) + col;
  }
};

Place place_of(const Attention& attention, char tensor) {
  const AttentionProblem& problem = attention.inputs.problem;
  const bool of_queries = tensor == 'Q' || tensor == 'O';
  const std::int64_t rows = of_queries ? problem.seq_len : problem.seq_len_kv;
  const std::int64_t heads = of_queries ? problem.heads : num_kv_heads(problem), head_dim = problem.head_dim;
  const Order order = attention.orders[std::string_view("QKVO").find(tensor)];
  if (order == Order::bshd) return {contiguous_layout(rows, heads, head_dim)};
  const bool columns = order == Order::bhds;
  return {{.batch_stride = heads * rows * head_dim,
           .row_stride = columns ? rows : head_dim,
           .head_stride = rows * head_dim},
          columns};
}

// Moves the elements of a tensor from one place to another.
void move_elements(const AttentionProblem& problem, std::int64_t rows, std::int64_t heads, const std::uint16_t* from,
                   const Place& from_place, std::uint16_t* to, const Place& to_place) {
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t head = 0; head < heads; ++head)
      for (std::int64_t row = 0; row < rows; ++row)
        for (std::int64_t col = 0; col < problem.head_dim; ++col)
          to[to_place.of(b, head, row, col)] = from[from_place.of(b, head, row, col)];
}

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  return {bytes, bytes + sizeof(T)};
}

}  // namespace

Attention make_attention(const json& request, int threads) {
  const json& layouts = request.at("layouts");
  const auto order = [&](const char* tensor) { return order_of(layouts.at(tensor)); };
  Attention attention{.inputs = make_inputs(request.at("problem"), distribution(request.at("inputs")),
                                            Packing::separate, request.at("seed"), {}, threads),
                      .orders = {order("Q"), order("K"), order("V"), order("O")}};
  attention.inputs.other_scale = request.at("softmax_scale").get<float>();
  attention.hides_expected = request.value("hidden", false);
  return attention;
}

std::vector<Buffer> tensor_buffers(const Attention& attention) {
  const Inputs& inputs = attention.inputs;
  const AttentionProblem& problem = inputs.problem;
  std::vector<Buffer> buffers;
  const struct {
    const char* name;
    int buffer;
    const TensorLayout& layout;
  } tensors[] = {{"Q", inputs.Q_buffer, inputs.Q}, {"K", inputs.K_buffer, inputs.K}, {"V", inputs.V_buffer, inputs.V}};
  for (const auto& [name, buffer, layout] : tensors) {
    const HostBuffer& from = inputs.buffers.at(buffer);
    Buffer& to = buffers.emplace_back(Buffer{.name = name, .bytes = std::vector<std::byte>(from.bytes())});
    const bool is_Q = *name == 'Q';
    move_elements(problem, is_Q ? problem.seq_len : problem.seq_len_kv, is_Q ? problem.heads : num_kv_heads(problem),
                  from.data(), {layout}, reinterpret_cast<std::uint16_t*>(to.bytes.data()), place_of(attention, *name));
  }
  // Poisoned as in the harness.
  buffers.push_back({.name = "O",
                     .bytes = std::vector<std::byte>(output_size(problem) * sizeof(std::uint16_t), std::byte{0xff}),
                     .initialised = false});
  return buffers;
}

std::vector<std::vector<std::byte>> make_arguments(const json& request, const Attention* attention,
                                                   const std::function<std::uint64_t(const std::string&)>& address) {
  std::vector<std::vector<std::byte>> arguments;
  for (const json& argument : request.at("arguments")) {
    if (argument.contains("buffer")) {
      arguments.push_back(bytes_of(address(argument.at("buffer"))));
    } else if (argument.contains("int")) {
      arguments.push_back(bytes_of(argument.at("int").get<std::int32_t>()));
    } else if (argument.contains("float")) {
      arguments.push_back(bytes_of(argument.at("float").get<float>()));
    } else {
      if (attention == nullptr) throw std::invalid_argument("there is no problem whose tensors could be an argument");
      const auto tensor = [&](const char* name) {
        const TensorLayout layout = place_of(*attention, *name).layout;
        return Tensor{.data = reinterpret_cast<void*>(address(name)),
                      .batch_stride = layout.batch_stride,
                      .row_stride = layout.row_stride,
                      .head_stride = layout.head_stride};
      };
      const AttentionArgs args = launch_args(attention->inputs.problem,
                                             {.Q = tensor("Q"), .K = tensor("K"), .V = tensor("V"), .O = tensor("O")},
                                             attention->inputs.scale(), nullptr);
      arguments.push_back(bytes_of(args));
    }
  }
  return arguments;
}

std::string why_wrong(const Attention& attention, const std::vector<Buffer>& before, const std::vector<Buffer>& after,
                      const RowSelection& rows, int threads) {
  const AttentionProblem& problem = attention.inputs.problem;
  for (std::size_t i = 0; i < 3; ++i)
    if (before[i].bytes != after[i].bytes)
      return fmt::format("the launch has changed {}, which is an input", before[i].name);
  HostBuffer output(output_size(problem));
  move_elements(problem, problem.seq_len, problem.heads, reinterpret_cast<const std::uint16_t*>(after[3].bytes.data()),
                place_of(attention, 'O'), output.data(), {output_layout(problem)});
  const Reference reference = make_reference(attention.inputs, rows, {}, threads);
  constexpr std::int64_t kTile = 16;  // rows of an mma
  const Verdict verdict = check_output(attention.inputs, reference, output, kTile, threads);
  if (verdict.correct() || verdict.mismatches.empty()) return verdict.reason;
  const Mismatch& first = verdict.mismatches.front();
  if (attention.hides_expected) return fmt::format("{} (it is {:.5g})", verdict.reason, first.got);
  return fmt::format("{} (it is {:.5g}, should be {:.5g})", verdict.reason, first.got, first.expected);
}

}  // namespace flash_ladder
