#include "worker/device_problem.h"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>

#include "problem/problem.h"
#include "rules/support.h"
#include "worker/cuda_check.h"

namespace flash_ladder {
namespace {

Tensor device_tensor(const GuardedBuffer& buffer, const TensorLayout& layout) {
  return {.data = buffer.data() + layout.offset * static_cast<std::int64_t>(sizeof(std::uint16_t)),
          .batch_stride = layout.batch_stride,
          .row_stride = layout.row_stride,
          .head_stride = layout.head_stride};
}

// 32-bit numbers on the GPU; nullptr where there are none.
const int* upload(std::optional<GuardedBuffer>& to, const char* name, const std::vector<std::int64_t>& lengths) {
  if (lengths.empty()) return nullptr;
  const std::vector<int> numbers(lengths.begin(), lengths.end());
  HostBuffer bits(std::ssize(numbers) * 2);
  std::memcpy(bits.data(), numbers.data(), bits.bytes());
  to.emplace(name, bits.bytes());
  to->upload(bits);
  return reinterpret_cast<const int*>(to->data());
}

}  // namespace

DeviceProblem::DeviceProblem(const Version& version, const std::vector<const Configuration*>& configurations,
                             const Inputs& inputs)
    : version_(label(version)),
      problem_(describe(inputs.problem)),
      O_("O", output_size(inputs.problem) * static_cast<std::int64_t>(sizeof(std::uint16_t))) {
  const AttentionProblem& problem = inputs.problem;
  const char* const names[] = {"Q", "K", "V"};
  for (std::size_t i = 0; i < inputs.buffers.size(); ++i) {
    inputs_.emplace_back(inputs.buffers.size() == 1 ? "packed Q, K, V" : names[i], inputs.buffers[i].bytes());
    inputs_.back().upload(inputs.buffers[i]);
  }
  std::size_t workspace_bytes = 0;
  for (const Configuration* configuration : configurations) {
    configurations_ += (configurations_.empty() ? "" : ", ") + configuration->name;
    workspace_bytes = std::max(workspace_bytes, configuration->workspace_bytes(problem));
  }
  if (workspace_bytes > 0) workspace_.emplace("the workspace", workspace_bytes);
  args_ = launch_args(problem,
                      {.Q = device_tensor(inputs_[inputs.Q_buffer], inputs.Q),
                       .K = device_tensor(inputs_[inputs.K_buffer], inputs.K),
                       .V = device_tensor(inputs_[inputs.V_buffer], inputs.V),
                       .O = device_tensor(O_, output_layout(problem)),
                       .lengths = upload(lengths_, "the lengths", problem.lengths),
                       .lengths_kv = upload(lengths_kv_, "the lengths of K and V", problem.lengths_kv)},
                      inputs.scale(), workspace_ ? workspace_->data() : nullptr);
}

void DeviceProblem::poison(const Stream& stream) {
  O_.poison(stream);
  if (workspace_) workspace_->poison(stream);
}

std::string DeviceProblem::describe_launch(const std::string& doing, const std::string& configurations) const {
  return fmt::format("{} {}, configuration {}, {}", doing, version_, configurations, problem_);
}

void DeviceProblem::launch(const Configuration& configuration, const Stream& stream) const {
  check(configuration.launch(args_, stream.get()), describe_launch("launching", configuration.name));
}

void DeviceProblem::wait() const { check(cudaDeviceSynchronize(), describe_launch("running", configurations_)); }

std::vector<HostBuffer> DeviceProblem::inputs() const {
  std::vector<HostBuffer> buffers;
  for (const GuardedBuffer& buffer : inputs_) buffers.push_back(buffer.download());
  return buffers;
}

std::optional<std::string> DeviceProblem::guard_damage() const {
  if (auto damage = O_.guard_damage()) return damage;
  for (const GuardedBuffer& buffer : inputs_)
    if (auto damage = buffer.guard_damage()) return damage;
  for (const auto& buffer : {&workspace_, &lengths_, &lengths_kv_})
    if (buffer->has_value())
      if (auto damage = (*buffer)->guard_damage()) return damage;
  return std::nullopt;
}

}  // namespace flash_ladder
