// Times untrusted kernels on a GPU, beside a version of the ladder. harness/grader/gpu.py starts it, one process for
// each submission, because a CUDA fault destroys the process's CUDA context. It contains no host code of the file: it
// receives machine code for the GPU. Requests arrive as JSON on standard input:
//
//   {"command": "device", "device": 0}
//   {"command": "time", "device": 0, "repeat": 20,
//    "files": [{"name", "ptx", "cubin"}, …],                 files: the PTX contains the names of the kernels in the cubin
//    "kernel", "grid", "block", "shared", "arguments", "problem", "layouts", "softmax_scale", "inputs", "seed",
//                                                            as in kernel_run.h, for all files
//    "version": "06_swizzle"}                                of the ladder, on the same problem with its own head_dim and layout
//
// Answers go to standard output, one JSON object per line, in the form of a worker's events (rules/protocol.h); the
// last one counts:
//
//   {"event": "device", "device": {…}}
//   {"event": "timed", "timings": [{"name", "problem", "ms": {"median", "p10", "p90"}, "tflops"}, …]}    the files, then the version
//   {"event": "wrong", "name": "…", "message": "…"}          a file's output on the GPU is not right, so nothing was timed
//   {"event": "error", "kind": "usage|unavailable|cuda", "message": "…"}
#include <cuda.h>
#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <array>
#include <cstring>
#include <fstream>
#include <iostream>
#include <iterator>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <string>
#include <utility>
#include <vector>

#include "errors.h"
#include "grader/attention_case.h"
#include "grader/kernel_run.h"
#include "problem/problem.h"
#include "rules/protocol.h"
#include "rules/support.h"
#include "rules/version_name.h"
#include "worker/benchmark.h"
#include "worker/check_sets.h"
#include "worker/cuda_check.h"
#include "worker/cuda_objects.h"
#include "worker/device_problem.h"
#include "worker/events.h"
#include "worker/gpu.h"
#include "worker/timing.h"

namespace {

using namespace flash_ladder;
using nlohmann::json;

// The words for messages in place of the harness's flags.
Words words() {
  Words words = kFlags;
  words.without_gpu = "grade without --with-gpu";
  words.other_gpu = "with CUDA_VISIBLE_DEVICES";
  return words;
}

// A function of the driver, which machines without a GPU do not have, so it is looked up at run time.
template <typename Function>
Function driver_function(const char* name) {
  void* function = nullptr;
  cudaDriverEntryPointQueryResult found;
#if CUDART_VERSION >= 12050
  const cudaError_t error = cudaGetDriverEntryPointByVersion(name, &function, 12000, cudaEnableDefault, &found);
#else
  const cudaError_t error = cudaGetDriverEntryPoint(name, &function, cudaEnableDefault, &found);
#endif
  check(error, fmt::format("looking for {} in the driver", name));
  if (found != cudaDriverEntryPointSuccess) throw CudaError(fmt::format("the driver has no {}", name));
  return reinterpret_cast<Function>(function);
}

struct Driver {
  decltype(&cuModuleLoadData) load = driver_function<decltype(&cuModuleLoadData)>("cuModuleLoadData");
  decltype(&cuModuleUnload) unload = driver_function<decltype(&cuModuleUnload)>("cuModuleUnload");
  decltype(&cuModuleGetFunction) find = driver_function<decltype(&cuModuleGetFunction)>("cuModuleGetFunction");
  decltype(&cuFuncSetAttribute) set = driver_function<decltype(&cuFuncSetAttribute)>("cuFuncSetAttribute");
  decltype(&cuLaunchKernel) launch = driver_function<decltype(&cuLaunchKernel)>("cuLaunchKernel");
  decltype(&cuGetErrorString) describe = driver_function<decltype(&cuGetErrorString)>("cuGetErrorString");

  void check(CUresult result, const std::string& doing) const {
    if (result == CUDA_SUCCESS) return;
    const char* words = nullptr;
    describe(result, &words);
    throw CudaError(fmt::format("{}: {}", doing, words != nullptr ? words : fmt::format("error {}", int{result})));
  }
};

std::string read_file(const std::string& path) {
  std::ifstream file(path, std::ios::binary);
  std::string text((std::istreambuf_iterator<char>(file)), {});
  if (!file) throw UnavailableError(fmt::format("{} cannot be read", path));
  return text;
}

// The mangled name of a kernel.
std::string mangled_name(const std::string& ptx, const std::string& kernel) {
  static const std::regex entry(R"(\.entry\s+([\w$]+))");
  for (auto match = std::sregex_iterator(ptx.begin(), ptx.end(), entry); match != std::sregex_iterator(); ++match)
    if (simple_name((*match)[1]) == kernel) return (*match)[1];
  throw UsageError(fmt::format("the file has no kernel {}", kernel));
}

// A kernel of a file, and the way the assignment launches it.
class StrangersKernel {
 public:
  StrangersKernel(const Driver& driver, const json& file, const json& request)
      : driver_(driver),
        name_(file.at("name")),
        grid_(request.at("grid").get<Dimensions>()),
        block_(request.at("block").get<Dimensions>()),
        shared_(request.at("shared").get<unsigned>()) {
    const std::string cubin = read_file(file.at("cubin"));
    driver_.check(driver_.load(&module_, cubin.data()), fmt::format("loading {}", name_));
    const std::string kernel = mangled_name(read_file(file.at("ptx")), request.at("kernel"));
    driver_.check(driver_.find(&function_, module_, kernel.c_str()),
                  fmt::format("looking for {} in {}", kernel, name_));
    driver_.check(driver_.set(function_, CU_FUNC_ATTRIBUTE_MAX_DYNAMIC_SHARED_SIZE_BYTES, static_cast<int>(shared_)),
                  fmt::format("requesting {} bytes of shared memory for {}", shared_, name_));
  }
  ~StrangersKernel() { driver_.unload(module_); }
  StrangersKernel(const StrangersKernel&) = delete;
  StrangersKernel& operator=(const StrangersKernel&) = delete;

  const std::string& name() const { return name_; }

  void launch(const std::vector<std::vector<std::byte>>& arguments, const Stream& stream) const {
    std::vector<void*> pointers;
    for (const auto& bytes : arguments) pointers.push_back(const_cast<std::byte*>(bytes.data()));
    driver_.check(driver_.launch(function_, grid_[0], grid_[1], grid_[2], block_[0], block_[1], block_[2], shared_,
                                 stream.get(), pointers.data(), nullptr),
                  fmt::format("launching {}", name_));
  }
  void wait() const { check(cudaDeviceSynchronize(), fmt::format("running {}", name_)); }

 private:
  using Dimensions = std::array<unsigned, 3>;

  const Driver& driver_;
  std::string name_;
  Dimensions grid_, block_;
  unsigned shared_;  // bytes
  CUmodule module_ = nullptr;
  CUfunction function_ = nullptr;
};

// The tensors of the files' problem on the GPU.
class DeviceTensors {
 public:
  explicit DeviceTensors(const Attention& attention) : before_(tensor_buffers(attention)) {
    for (const Buffer& buffer : before_) {
      memory_.emplace_back(buffer.name, static_cast<std::int64_t>(buffer.bytes.size()));
      HostBuffer elements(static_cast<std::int64_t>(buffer.bytes.size() / sizeof(std::uint16_t)));
      std::memcpy(elements.data(), buffer.bytes.data(), buffer.bytes.size());
      memory_.back().upload(elements);
    }
  }

  std::uint64_t address(const std::string& name) const {
    for (std::size_t i = 0; i < before_.size(); ++i)
      if (before_[i].name == name) return reinterpret_cast<std::uint64_t>(memory_[i].data());
    throw std::invalid_argument(fmt::format("there is no buffer '{}'", name));
  }

  void poison_output(const Stream& stream) { memory_.back().poison(stream); }

  // What is wrong after a launch; empty if nothing is.
  std::string why_wrong(const Attention& attention, const RowSelection& rows) const {
    std::vector<Buffer> after = before_;
    for (std::size_t i = 0; i < after.size(); ++i) {
      if (const auto damage = memory_[i].guard_damage()) return *damage;
      const HostBuffer elements = memory_[i].download();
      std::memcpy(after[i].bytes.data(), elements.data(), after[i].bytes.size());
    }
    return flash_ladder::why_wrong(attention, before_, after, rows, 0);
  }

 private:
  std::vector<Buffer> before_;
  std::vector<GuardedBuffer> memory_;
};

json timing_to_json(const std::string& name, const AttentionProblem& problem, const Timing& timing) {
  const Milliseconds ms = summarise(timing.milliseconds);
  return {{"name", name},
          {"problem", describe(problem)},
          {"ms", {{"median", ms.median}, {"p10", ms.p10}, {"p90", ms.p90}}},
          {"tflops", tflops(problem, ms.median)}};
}

// The files must be right before they are timed.
json time_files(const json& request, EventWriter& events) {
  const int ordinal = request.at("device");
  events.progress("open the GPU", 0, 1);
  const DeviceInfo device = open_gpu(ordinal, words());
  const Driver driver;

  events.progress("make inputs", 0, 1);
  const Attention attention = make_attention(request, 0);
  const AttentionProblem& problem = attention.inputs.problem;
  DeviceTensors tensors(attention);
  const auto arguments =
      make_arguments(request, &attention, [&](const std::string& name) { return tensors.address(name); });
  const RowSelection rows{.seq_len = problem.seq_len, .tile = row_tile(problem, 64), .seed = request.at("seed")};
  std::vector<std::unique_ptr<StrangersKernel>> kernels;
  std::vector<Timed> timed;
  for (const json& file : request.at("files")) {
    const StrangersKernel& kernel = *kernels.emplace_back(std::make_unique<StrangersKernel>(driver, file, request));
    events.progress(fmt::format("check {}", kernel.name()), 0, 1);
    const Stream stream;
    tensors.poison_output(stream);
    kernel.launch(arguments, stream);
    kernel.wait();
    if (const std::string why = tensors.why_wrong(attention, rows); !why.empty())
      return {{"event", "wrong"}, {"name", kernel.name()}, {"message", why}};
    timed.push_back({.launch = [&arguments, it = &kernel](const Stream& on) { it->launch(arguments, on); },
                     .wait = [it = &kernel] { it->wait(); }});
  }

  const std::string wanted = request.at("version"), any_configuration;
  const Version& version = select_version(wanted);
  AttentionProblem ladders{.batch = problem.batch,
                           .heads = problem.heads,
                           .seq_len = problem.seq_len,
                           .seq_len_kv = problem.seq_len_kv,
                           .dtype = problem.dtype};
  const Configuration& configuration = select_configuration(version, ladders, any_configuration, device);
  ladders.head_dim = configuration.head_dim;
  for (const auto& why : {why_unsupported(version, configuration, ladders, words()),
                          why_unsupported_by_device(version, configuration, device, words())})
    if (why) throw UsageError(*why);
  events.progress("make the ladder's inputs", 0, 1);
  const Inputs inputs = make_inputs(ladders, Distribution::normal, Packing::separate, request.at("seed"));
  const DeviceProblem of_version(version, {&configuration}, inputs);
  timed.push_back(to_be_timed(of_version, {&configuration}).front());

  const Nvml nvml(pci_bus_id(ordinal));
  const std::vector<Timing> timings = time_launches(timed, device, nvml, request.at("repeat"), events);
  json answer = {{"event", "timed"}, {"timings", json::array()}};
  for (std::size_t i = 0; i < timings.size(); ++i) {
    const bool is_file = i < kernels.size();
    answer["timings"].push_back(
        timing_to_json(is_file ? kernels[i]->name() : label(version), is_file ? problem : ladders, timings[i]));
  }
  return answer;
}

json answer(EventWriter& events) {
  const auto error_event = [](const char* kind, const std::exception& error) {
    return json{{"event", "error"}, {"kind", kind}, {"message", error.what()}};
  };
  try {
    const std::string text((std::istreambuf_iterator<char>(std::cin)), {});
    const json request = json::parse(text);
    if (request.at("command") == "device")
      return {{"event", "device"}, {"device", open_gpu(request.at("device").get<int>(), words())}};
    return time_files(request, events);
  } catch (const UnavailableError& error) {
    return error_event("unavailable", error);
  } catch (const CudaError& error) {
    return error_event("cuda", error);
  } catch (const std::exception& error) {
    return error_event("usage", error);
  }
}

}  // namespace

int main() {
  // The output of kernels is discarded, so that it cannot be mistaken for an answer.
  const int answers = dup(STDOUT_FILENO);
  const int nowhere = open("/dev/null", O_WRONLY);
  if (answers < 0 || nowhere < 0 || dup2(nowhere, STDOUT_FILENO) < 0) {
    std::cerr << "harness-grader-gpu: its output could not be redirected\n";
    return kExitUnavailable;
  }
  try {
    EventWriter events(answers);
    events.write(answer(events));
    return kExitOk;
  } catch (const std::exception& error) {
    std::cerr << "harness-grader-gpu: " << error.what() << '\n';
    return kExitUnavailable;
  }
}
