#include "grader/attention_case.h"

#include <fmt/format.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <nlohmann/json.hpp>
#include <numbers>
#include <span>
#include <stdexcept>
#include <string_view>

#include "attention.h"
#include "gradients.h"
#include "problem/problem.h"
#include "worker/checker.h"
#include "worker/gradients.h"
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

struct Shape {
  std::int64_t rows, heads;
};

// A gradient has the shape, and the place, of the tensor that its name ends in.
Shape shape_of(const AttentionProblem& problem, const std::string& tensor) {
  const bool of_queries = tensor.back() == 'Q' || tensor.back() == 'O';
  return of_queries ? Shape{problem.seq_len, problem.heads} : Shape{problem.seq_len_kv, num_kv_heads(problem)};
}

Place place_of(const Attention& attention, const std::string& tensor) {
  const auto [rows, heads] = shape_of(attention.inputs.problem, tensor);
  const std::int64_t head_dim = attention.inputs.problem.head_dim;
  const Order order = attention.orders[std::string_view("QKVO").find(tensor.back())];
  if (order == Order::bshd) return {contiguous_layout(rows, heads, head_dim)};
  const bool columns = order == Order::bhds;
  return {{.batch_stride = heads * rows * head_dim,
           .row_stride = columns ? rows : head_dim,
           .head_stride = rows * head_dim},
          columns};
}

// Moves the elements of a tensor from one place to another.
void move_elements(const AttentionProblem& problem, const Shape& shape, const std::uint16_t* from,
                   const Place& from_place, std::uint16_t* to, const Place& to_place) {
  for (std::int64_t b = 0; b < problem.batch; ++b)
    for (std::int64_t head = 0; head < shape.heads; ++head)
      for (std::int64_t row = 0; row < shape.rows; ++row)
        for (std::int64_t col = 0; col < problem.head_dim; ++col)
          to[to_place.of(b, head, row, col)] = from[from_place.of(b, head, row, col)];
}

template <typename T>
std::vector<std::byte> bytes_of(const T& value) {
  const auto* bytes = reinterpret_cast<const std::byte*>(&value);
  return {bytes, bytes + sizeof(T)};
}
template <typename T>
std::vector<std::byte> bytes_of(const std::vector<T>& values) {
  const auto bytes = std::as_bytes(std::span(values));
  return {bytes.begin(), bytes.end()};
}

// A tensor with its elements in the course's layout.
Buffer tensor_buffer(const Attention& attention, const std::string& name, const HostBuffer& from,
                     const TensorLayout& layout) {
  Buffer buffer{.name = name, .bytes = std::vector<std::byte>(from.bytes())};
  move_elements(attention.inputs.problem, shape_of(attention.inputs.problem, name), from.data(), {layout},
                reinterpret_cast<std::uint16_t*>(buffer.bytes.data()), place_of(attention, name));
  return buffer;
}

// Poisoned as in the harness.
Buffer poisoned_buffer(const std::string& name, std::int64_t bytes) {
  return {.name = name, .bytes = std::vector<std::byte>(bytes, std::byte{0xff}), .initialised = false};
}

// The elements of an output tensor in the layout that the reference has.
HostBuffer elements_of(const Attention& attention, const Buffer& buffer) {
  const AttentionProblem& problem = attention.inputs.problem;
  const Shape shape = shape_of(problem, buffer.name);
  HostBuffer elements(static_cast<std::int64_t>(buffer.bytes.size() / sizeof(std::uint16_t)));
  move_elements(problem, shape, reinterpret_cast<const std::uint16_t*>(buffer.bytes.data()),
                place_of(attention, buffer.name), elements.data(),
                {contiguous_layout(shape.rows, shape.heads, problem.head_dim)});
  return elements;
}

const Buffer& find_buffer(const std::vector<Buffer>& buffers, std::string_view name) {
  const auto found = std::ranges::find(buffers, name, &Buffer::name);
  if (found == buffers.end()) throw std::invalid_argument(fmt::format("there is no buffer '{}'", name));
  return *found;
}

std::string why_wrong(const Attention& attention, const Reference& reference, const Buffer& output, int threads) {
  constexpr std::int64_t kTile = 16;  // rows of an mma
  const HostBuffer elements = elements_of(attention, output);
  const Verdict verdict = output.name == "O" ? check_output(attention.inputs, reference, elements, kTile, threads)
                                             : check_gradient(reference, elements, kTile, threads);
  if (verdict.correct()) return {};
  const std::string whose = output.name == "O" ? "" : output.name + ": ";
  if (verdict.mismatches.empty()) return whose + verdict.reason;
  const Mismatch& first = verdict.mismatches.front();
  if (attention.hides_expected) return fmt::format("{}{} (it is {:.5g})", whose, verdict.reason, first.got);
  return fmt::format("{}{} (it is {:.5g}, should be {:.5g})", whose, verdict.reason, first.got, first.expected);
}

std::string why_log_sum_exp_is_wrong(const Attention& attention, const Reference& reference, const Buffer& output) {
  std::vector<float> natural(output.bytes.size() / sizeof(float));
  std::memcpy(natural.data(), output.bytes.data(), output.bytes.size());
  const double factor = std::log(attention.log_sum_exp_base);
  if (attention.log_sum_exp_base != std::numbers::e)
    for (float& L : natural)
      if (!std::isnan(L)) L = static_cast<float>(L * factor);  // a NaN keeps its bits: it may never have been written
  const auto wrong = find_wrong_log_sum_exp(reference, natural);
  if (!wrong) return {};
  const std::string as = factor == 1 ? "L" : "L, converted to natural logarithms";
  return fmt::format("{}: {}", as, attention.hides_expected ? wrong->substr(0, wrong->find(" instead of")) : *wrong);
}

}  // namespace

Attention make_attention(const json& request, int threads) {
  const json& layouts = request.at("layouts");
  const auto order = [&](const char* tensor) { return order_of(layouts.at(tensor)); };
  Attention attention{.inputs = make_inputs(request.at("problem"), distribution(request.at("inputs")),
                                            Packing::separate, request.at("seed"), {}, threads),
                      .orders = {order("Q"), order("K"), order("V"), order("O")}};
  Inputs& inputs = attention.inputs;
  inputs.other_scale = request.at("softmax_scale").get<float>();
  attention.hides_expected = request.value("hidden", false);
  attention.gradients = request.value("gradients", std::vector<std::string>());
  attention.log_sum_exp_base = request.value("log_sum_exp_base", 0.0);
  attention.workspace_bytes = request.value("workspace", std::int64_t{0});
  for (const std::string& name : attention.gradients)
    if (std::ranges::find(kGradientNames, name) == kGradientNames.end())
      throw std::invalid_argument(fmt::format("the gradient '{}' is unknown; there are dQ, dK and dV", name));
  if (!attention.gradients.empty())
    inputs.gradients =
        make_gradient_inputs(inputs, Packing::separate, OutputGradient::normal, request.at("seed"), {}, {}, threads);
  return attention;
}

std::vector<Buffer> tensor_buffers(const Attention& attention) {
  const Inputs& inputs = attention.inputs;
  const AttentionProblem& problem = inputs.problem;
  std::vector<Buffer> buffers = {tensor_buffer(attention, "Q", inputs.buffers.at(inputs.Q_buffer), inputs.Q),
                                 tensor_buffer(attention, "K", inputs.buffers.at(inputs.K_buffer), inputs.K),
                                 tensor_buffer(attention, "V", inputs.buffers.at(inputs.V_buffer), inputs.V)};
  const std::int64_t output_bytes = output_size(problem) * static_cast<std::int64_t>(sizeof(std::uint16_t));
  if (inputs.gradients) {
    const GradientInputs& given = *inputs.gradients;
    buffers.push_back(tensor_buffer(attention, "O", given.O, given.O_layout));
    buffers.push_back(tensor_buffer(attention, "dO", given.dO, given.dO_layout));
    buffers.push_back({.name = "L", .bytes = bytes_of(given.log_sum_exp)});
    buffers.push_back(poisoned_buffer("dQ", output_bytes));
    for (const char* name : {"dK", "dV"}) buffers.push_back(poisoned_buffer(name, std::ssize(buffers[1].bytes)));
  } else {
    buffers.push_back(poisoned_buffer("O", output_bytes));
    if (attention.log_sum_exp_base != 0)
      buffers.push_back(
          poisoned_buffer("L", problem.batch * problem.heads * problem.seq_len * std::int64_t{sizeof(float)}));
  }
  if (attention.workspace_bytes != 0) buffers.push_back(poisoned_buffer("workspace", attention.workspace_bytes));
  if (!problem.lengths_kv.empty())
    buffers.push_back({.name = "lengths_kv",
                       .bytes = bytes_of(std::vector<int>(problem.lengths_kv.begin(), problem.lengths_kv.end()))});
  return buffers;
}

std::vector<std::vector<std::byte>> make_arguments(const json& launch, const Attention* attention,
                                                   const std::function<std::uint64_t(const std::string&)>& address) {
  const auto tensor = [&](const char* name) {
    const TensorLayout layout = place_of(*attention, name).layout;
    return Tensor{.data = reinterpret_cast<void*>(address(name)),
                  .batch_stride = layout.batch_stride,
                  .row_stride = layout.row_stride,
                  .head_stride = layout.head_stride};
  };
  std::vector<std::vector<std::byte>> arguments;
  for (const json& argument : launch.at("arguments")) {
    if (argument.contains("buffer")) {
      arguments.push_back(bytes_of(address(argument.at("buffer"))));
    } else if (argument.contains("int")) {
      arguments.push_back(bytes_of(argument.at("int").get<std::int32_t>()));
    } else if (argument.contains("float")) {
      arguments.push_back(bytes_of(argument.at("float").get<float>()));
    } else if (attention == nullptr) {
      throw std::invalid_argument("there is no problem whose tensors could be an argument");
    } else if (argument.contains("gradients")) {
      arguments.push_back(bytes_of(Gradients{.dO = tensor("dO"),
                                             .dQ = tensor("dQ"),
                                             .dK = tensor("dK"),
                                             .dV = tensor("dV"),
                                             .log_sum_exp = reinterpret_cast<const float*>(address("L"))}));
    } else {
      void* workspace = attention->workspace_bytes == 0 ? nullptr : reinterpret_cast<void*>(address("workspace"));
      const AttentionArgs args = launch_args(attention->inputs.problem,
                                             {.Q = tensor("Q"), .K = tensor("K"), .V = tensor("V"), .O = tensor("O")},
                                             attention->inputs.scale(), workspace);
      arguments.push_back(bytes_of(args));
    }
  }
  return arguments;
}

std::string why_wrong(const Attention& attention, const std::vector<Buffer>& before, const std::vector<Buffer>& after,
                      const RowSelection& rows, int threads) {
  for (std::size_t i = 0; i < before.size(); ++i)
    if (before[i].initialised && before[i].bytes != after[i].bytes)
      return fmt::format("the launch has changed {}, which is an input", before[i].name);
  if (!attention.gradients.empty()) {
    const auto references = make_gradient_references(attention.inputs, rows.tile, rows.seed, {}, {}, threads);
    for (std::size_t i = 0; i < kGradientNames.size(); ++i) {
      if (std::ranges::find(attention.gradients, kGradientNames[i]) == attention.gradients.end()) continue;
      const std::string why = why_wrong(attention, references[i], find_buffer(after, kGradientNames[i]), threads);
      if (!why.empty()) return why;
    }
    return {};
  }
  const Reference reference = make_reference(attention.inputs, rows, {}, threads);
  const std::string why = why_wrong(attention, reference, find_buffer(after, "O"), threads);
  if (!why.empty() || attention.log_sum_exp_base == 0) return why;
  return why_log_sum_exp_is_wrong(attention, reference, find_buffer(after, "L"));
}

}  // namespace flash_ladder
