#include "worker/device_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <utility>

#include "problem/problem.h"
#include "rules/support.h"
#include "worker/cuda_check.h"
#include "worker/gradients.h"

namespace flash_ladder {
namespace {

Tensor device_tensor(const GuardedBuffer& buffer, const TensorLayout& layout, std::int64_t element_bytes) {
  return {.data = buffer.data() + layout.offset * element_bytes,
          .batch_stride = layout.batch_stride,
          .row_stride = layout.row_stride,
          .head_stride = layout.head_stride};
}

// 32-bit numbers on the GPU; nullptr if there are none.
template <typename Number>
const Number* upload(std::optional<GuardedBuffer>& to, const char* name, const std::vector<Number>& numbers) {
  static_assert(sizeof(Number) == 4);
  if (numbers.empty()) return nullptr;
  HostBuffer bits(std::ssize(numbers) * 2);
  std::memcpy(bits.data(), numbers.data(), bits.bytes());
  to.emplace(name, bits.bytes());
  to->upload(bits);
  return reinterpret_cast<const Number*>(to->data());
}

std::vector<int> in_32_bits(const std::vector<std::int64_t>& numbers) { return {numbers.begin(), numbers.end()}; }

// The same elements in 8 bits, two per element of the buffer; rows begin at multiples of 16.
HostBuffer to_e4m3(const Inputs& inputs, int buffer) {
  const HostBuffer& from = inputs.buffers[buffer];
  HostBuffer to(from.size() / 2);
  std::fill_n(to.data(), to.size(), 0x7f7f);  // gaps are NaN here, too
  for_each_scaled_row(inputs, buffer, [&](std::int64_t begin, std::int64_t end, float scale) {
    for (std::int64_t i = begin; i < end; i += 2) {
      const auto bits = [&](std::int64_t at) {
        return e4m3_from_float(element_to_float(inputs.problem.dtype, from.data()[at]) / scale);
      };
      to.data()[i / 2] = static_cast<std::uint16_t>(bits(i) | bits(i + 1) << 8);
    }
  });
  return to;
}

HostBuffer from_e4m3(const Inputs& inputs, int buffer, const HostBuffer& from) {
  HostBuffer to(from.size() * 2);
  for_each_scaled_row(inputs, buffer, [&](std::int64_t begin, std::int64_t end, float scale) {
    for (std::int64_t i = begin; i < end; ++i) {
      const auto bits = static_cast<std::uint8_t>(from.data()[i / 2] >> i % 2 * 8);
      to.data()[i] = element_from_float(inputs.problem.dtype, e4m3_to_float(bits) * scale);
    }
  });
  return to;
}

// [batch][kv_heads]: the scales of K (1) or V (2) of an e4m3 cache; otherwise empty.
std::vector<float> scales_of_cache(const Inputs& inputs, std::int64_t tensor) {
  const AttentionProblem& problem = inputs.problem;
  std::vector<float> scales;
  for (std::int64_t batch = 0; batch < problem.batch && problem.fp8_cache; ++batch)
    for (std::int64_t head = 0; head < problem.heads; head += problem.heads / num_kv_heads(problem))
      scales.push_back(inputs.scales[(tensor * problem.batch + batch) * problem.heads + head]);
  return scales;
}

// K or V as a launch that appends finds it: in the place of the new row, there is NaN.
HostBuffer without_new_row(const Inputs& inputs, int buffer) {
  const AttentionProblem& problem = inputs.problem;
  HostBuffer copy(inputs.buffers[buffer].size());
  std::memcpy(copy.data(), inputs.buffers[buffer].data(), copy.bytes());
  for (const auto& [layout, its_buffer] :
       {std::pair{&inputs.K, inputs.K_buffer}, std::pair{&inputs.V, inputs.V_buffer}})
    for (std::int64_t batch = 0; batch < problem.batch && its_buffer == buffer; ++batch)
      for (std::int64_t head = 0; head < num_kv_heads(problem); ++head)
        std::fill_n(copy.data() + layout->row(batch, head, num_keys(problem, batch) - 1), problem.head_dim, kPoison);
  return copy;
}

}  // namespace

DeviceProblem::DeviceProblem(const Version& version, const std::vector<const Configuration*>& configurations,
                             const Inputs& inputs)
    : version_(label(version)), problem_(describe(inputs.problem)), host_(inputs) {
  const AttentionProblem& problem = inputs.problem;
  const char* const names[] = {"Q", "K", "V"};
  for (std::size_t i = 0; i < inputs.buffers.size(); ++i) {
    const bool in_8_bits = is_in_8_bits(inputs, static_cast<int>(i));
    const HostBuffer converted = in_8_bits        ? to_e4m3(inputs, static_cast<int>(i))
                                 : problem.append ? without_new_row(inputs, static_cast<int>(i))
                                                  : HostBuffer();
    const HostBuffer& bits = in_8_bits || problem.append ? converted : inputs.buffers[i];
    inputs_.emplace_back(inputs.buffers.size() == 1 ? "packed Q, K, V" : names[i], bits.bytes());
    inputs_.back().upload(bits);
  }
  if (inputs.gradients) {
    const GradientInputs& given = *inputs.gradients;
    HostBuffer log_sum_exp(std::ssize(given.log_sum_exp) * 2);
    std::memcpy(log_sum_exp.data(), given.log_sum_exp.data(), log_sum_exp.bytes());
    for (const auto& [name, bits] :
         {std::pair{"dO", &given.dO}, std::pair{"O", &given.O}, std::pair{"L", &std::as_const(log_sum_exp)}}) {
      gradient_inputs_.emplace_back(name, bits->bytes());
      gradient_inputs_.back().upload(*bits);
    }
    for (std::size_t i = 0; i < kGradientNames.size(); ++i)
      outputs_.emplace_back(std::string(kGradientNames[i]), output_size(problem_of_gradient(problem, i)) * 2);
  } else {
    outputs_.emplace_back("O", output_size(problem) * 2);
  }
  std::size_t workspace_bytes = 0;
  for (const Configuration* configuration : configurations) {
    configurations_ += (configurations_.empty() ? "" : ", ") + configuration->name;
    workspace_bytes = std::max(workspace_bytes, configuration->workspace_bytes(problem));
  }
  if (workspace_bytes > 0) workspace_.emplace("the workspace", workspace_bytes);
  if (version.solves.log_sum_exp)
    log_sum_exp_.emplace("the log-sum-exp",
                         total_rows(problem) * problem.heads * static_cast<std::int64_t>(sizeof(float)));
  const auto element_bytes = [&](int buffer) { return is_in_8_bits(inputs, buffer) ? 1 : 2; };
  // Of packed sequences, the device gets the sums of the lengths.
  const int* lengths =
      upload(lengths_, "the lengths", in_32_bits(problem.packed ? first_rows(problem) : problem.lengths));
  const int* lengths_kv = upload(lengths_kv_, "the lengths of K and V",
                                 in_32_bits(problem.packed ? first_rows_kv(problem) : lengths_of_cache(problem)));
  const PageTable table = inputs.K.table != nullptr ? *inputs.K.table : PageTable();
  const GuardedBuffer& O = inputs.gradients ? gradient_inputs_[1] : outputs_.front();
  Tensors tensors{.Q = device_tensor(inputs_[inputs.Q_buffer], inputs.Q, element_bytes(inputs.Q_buffer)),
                  .K = device_tensor(inputs_[inputs.K_buffer], inputs.K, element_bytes(inputs.K_buffer)),
                  .V = device_tensor(inputs_[inputs.V_buffer], inputs.V, element_bytes(inputs.V_buffer)),
                  .O = device_tensor(O, output_layout(problem), 2),
                  .lengths = lengths,
                  .lengths_kv = lengths_kv,
                  .scales = upload(scales_, "the scales", inputs.scales),
                  .log_sum_exp = log_sum_exp_ ? reinterpret_cast<float*>(log_sum_exp_->data()) : nullptr,
                  .offsets = lengths,
                  .offsets_kv = lengths_kv,
                  .alibi_slopes = upload(alibi_slopes_, "the slopes of ALiBi", inputs.alibi_slopes),
                  .sinks = upload(sinks_, "the sinks", inputs.sinks),
                  .page_table = upload(page_table_, "the page table", table.pages),
                  .page_table_width = static_cast<int>(table.width),
                  .num_pages = static_cast<int>(table.num_pages),
                  .K_scales = upload(K_scales_, "the scales of K", scales_of_cache(inputs, 1)),
                  .V_scales = upload(V_scales_, "the scales of V", scales_of_cache(inputs, 2))};
  add_new_token(tensors);
  static_cast<ExtendedArgs&>(args_) =
      launch_args(problem, tensors, inputs.scale(), workspace_ ? workspace_->data() : nullptr);
  if (!inputs.gradients) return;
  const auto gradient = [&](std::size_t which) {
    return device_tensor(outputs_[which], output_layout(problem_of_gradient(problem, which)), 2);
  };
  args_.gradients = {.dO = device_tensor(gradient_inputs_[0], inputs.gradients->dO_layout, 2),
                     .dQ = gradient(0),
                     .dK = gradient(1),
                     .dV = gradient(2),
                     .log_sum_exp = reinterpret_cast<const float*>(gradient_inputs_[2].data())};
}

void DeviceProblem::add_new_token(Tensors& tensors) {
  const auto add = [&](const char* name, const HostBuffer& bits) -> const GuardedBuffer& {
    new_token_inputs_.emplace_back(name, bits.bytes());
    new_token_inputs_.back().upload(bits);
    return new_token_inputs_.back();
  };
  if (host_.problem.append) {
    tensors.K_new = device_tensor(add("the new key", host_.new_K), host_.new_K_layout, 2);
    tensors.V_new = device_tensor(add("the new value", host_.new_V), host_.new_V_layout, 2);
  }
  if (host_.problem.rotary_dim != 0) {
    tensors.rotary_cos = add("the cosines", host_.rotary_cos).data();
    tensors.rotary_sin = add("the sines", host_.rotary_sin).data();
  }
}

void DeviceProblem::poison(const Stream& stream) {
  for (GuardedBuffer& output : outputs_) output.poison(stream);
  if (log_sum_exp_) log_sum_exp_->poison(stream);
  if (workspace_) workspace_->poison(stream);
}

std::string DeviceProblem::describe_launch(const std::string& doing, const std::string& configurations) const {
  return fmt::format("{} {}, configuration {}, {}", doing, version_, configurations, problem_);
}

void DeviceProblem::launch(const Configuration& configuration, const Stream& stream) const {
  check(configuration.launch(args_, stream.get()), describe_launch("launching", configuration.name));
}

void DeviceProblem::launch_without_log_sum_exp(const Configuration& configuration, const Stream& stream) const {
  BackwardArgs args = args_;
  args.log_sum_exp = nullptr;
  check(configuration.launch(args, stream.get()), describe_launch("launching", configuration.name));
}

void DeviceProblem::wait() const { check(cudaDeviceSynchronize(), describe_launch("running", configurations_)); }

std::vector<float> DeviceProblem::log_sum_exp() const {
  if (!log_sum_exp_) return {};
  const HostBuffer bits = log_sum_exp_->download();
  std::vector<float> numbers(bits.bytes() / sizeof(float));
  std::memcpy(numbers.data(), bits.data(), bits.bytes());
  return numbers;
}

std::vector<HostBuffer> DeviceProblem::inputs() const {
  std::vector<HostBuffer> buffers;
  for (std::size_t i = 0; i < inputs_.size(); ++i) {
    buffers.push_back(inputs_[i].download());
    if (is_in_8_bits(host_, static_cast<int>(i)))
      buffers.back() = from_e4m3(host_, static_cast<int>(i), buffers.back());
  }
  return buffers;
}

std::vector<HostBuffer> DeviceProblem::outputs() const {
  std::vector<HostBuffer> buffers;
  for (const GuardedBuffer& output : outputs_) buffers.push_back(output.download());
  return buffers;
}

std::vector<HostBuffer> DeviceProblem::gradient_inputs() const {
  std::vector<HostBuffer> buffers;
  for (const GuardedBuffer& input : gradient_inputs_) buffers.push_back(input.download());
  return buffers;
}

std::optional<std::string> DeviceProblem::guard_damage() const {
  for (const auto* buffers : {&outputs_, &inputs_, &gradient_inputs_, &new_token_inputs_})
    for (const GuardedBuffer& buffer : *buffers)
      if (auto damage = buffer.guard_damage()) return damage;
  for (const auto& buffer : {&log_sum_exp_, &workspace_, &lengths_, &lengths_kv_, &page_table_, &scales_, &K_scales_,
                             &V_scales_, &alibi_slopes_, &sinks_})
    if (buffer->has_value())
      if (auto damage = (*buffer)->guard_damage()) return damage;
  return std::nullopt;
}

}  // namespace flash_ladder
