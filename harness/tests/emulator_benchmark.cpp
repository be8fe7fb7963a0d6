// How fast the virtual GPU runs the versions of the ladder, with and without its checks.
//
//   emulator-benchmark [SEQ_LEN [HEADS [VERSION]]]      default: 256, 1 and all versions; batch 1, fp16
#include <cuda_runtime_api.h>
#include <fmt/format.h>
#include <sys/resource.h>

#include <algorithm>
#include <cstdlib>
#include <ctime>
#include <limits>
#include <stdexcept>
#include <string>
#include <string_view>
#include <thread>

#include "emulator/runtime/virtual_runtime.h"
#include "host/versions.h"
#include "problem/problem.h"
#include "rules/support.h"
#include "worker/inputs.h"

namespace flash_ladder {
namespace {

namespace runtime = emulator::runtime;

void check(cudaError_t error) {
  if (error != cudaSuccess) throw std::runtime_error(cudaGetErrorString(error));
}

// Q, K, V, O and the workspace on the virtual GPU, until the program ends.
ExtendedArgs arguments_of(const Configuration& configuration, const AttentionProblem& problem) {
  const Inputs inputs = make_inputs(problem, Distribution::normal, Packing::separate, /*seed=*/1);
  Tensor tensors[4];  // Q, K, V, O
  for (std::size_t i = 0; i < std::size(tensors); ++i) {
    const TensorLayout layout = contiguous_layout(problem.seq_len, problem.heads, problem.head_dim);
    tensors[i] = {nullptr, layout.batch_stride, layout.row_stride, layout.head_stride};
    const auto bytes = static_cast<std::size_t>(output_size(problem)) * sizeof(std::uint16_t);
    check(cudaMalloc(&tensors[i].data, bytes));
    if (i < inputs.buffers.size())
      check(cudaMemcpy(tensors[i].data, inputs.buffers[i].data(), bytes, cudaMemcpyHostToDevice));
  }
  void* workspace = nullptr;
  if (const std::size_t bytes = configuration.workspace_bytes(problem); bytes > 0) check(cudaMalloc(&workspace, bytes));
  return launch_args(problem, {tensors[0], tensors[1], tensors[2], tensors[3]}, softmax_scale(problem.head_dim),
                     workspace);
}

double now(clockid_t clock) {
  timespec time{};
  clock_gettime(clock, &time);
  return static_cast<double>(time.tv_sec) * 1e3 + static_cast<double>(time.tv_nsec) / 1e6;
}

// Milliseconds of one launch: the best of several, which other programs disturb least. For one thread it is processor
// time, for several threads elapsed time.
double milliseconds(const Configuration& configuration, const ExtendedArgs& args, int launches) {
  const clockid_t clock = runtime::settings().threads == 1 ? CLOCK_PROCESS_CPUTIME_ID : CLOCK_MONOTONIC;
  double best = std::numeric_limits<double>::infinity();
  for (int i = 0; i < launches; ++i) {
    const double start = now(clock);
    check(configuration.launch(args, nullptr));
    check(cudaDeviceSynchronize());
    best = std::min(best, now(clock) - start);
  }
  return best;
}

void measure(const Version& version, const Configuration& configuration, const AttentionProblem& problem) {
  constexpr int kLaunches = 5;
  const ExtendedArgs args = arguments_of(configuration, problem);
  runtime::Settings& settings = runtime::settings();

  settings.checks = true;
  settings.threads = 0;
  const double first = milliseconds(configuration, args, 1);
  runtime::take_counters();
  const double all_threads = milliseconds(configuration, args, 1);
  std::uint64_t instructions = 0;
  for (const runtime::KernelCounters& kernel : runtime::take_counters())
    instructions += kernel.totals.warp_instructions;
  const double threads = std::min(all_threads, milliseconds(configuration, args, kLaunches));
  settings.threads = 1;
  const double one_thread = milliseconds(configuration, args, kLaunches);
  settings.checks = false;
  const double unchecked = milliseconds(configuration, args, kLaunches);

  const auto rate = [&](double ms) { return static_cast<double>(instructions) / ms / 1e3; };
  rusage usage{};
  getrusage(RUSAGE_SELF, &usage);
  fmt::print("{:<22} {:<9} {:>11} {:>9.1f} {:>9.1f} {:>10.2f} {:>8.1f} {:>9.2f}x {:>8.1f} {:>9}\n", label(version),
             configuration.name, instructions, rate(one_thread), rate(unchecked), one_thread, threads,
             one_thread / threads, std::max(first - threads, 0.0), usage.ru_maxrss / 1024);
  std::fflush(stdout);
}

int run(int argc, char** argv) {
  AttentionProblem problem{.heads = argc > 2 ? std::atoll(argv[2]) : 1,
                           .seq_len = argc > 1 ? std::atoll(argv[1]) : 256};
  problem.seq_len_kv = problem.seq_len;
  const std::string_view only = argc > 3 ? argv[3] : "";
  if (argc > 4 || problem.seq_len < 1 || problem.heads < 1) {
    fmt::print(
        stderr,
        "usage: emulator-benchmark [SEQ_LEN [HEADS [VERSION]]], two numbers of at least 1 and a part of a name\n");
    return 2;
  }
  runtime::settings().sm = 90;  // its limits admit every configuration
  fmt::print("{}, heads {}; {} threads at most\n\n", problem.seq_len, problem.heads,
             std::thread::hardware_concurrency());
  fmt::print("{:<32} {:>11} {:>19} {:>10} {:>8} {:>10} {:>8} {:>9}\n", "", "warp", "M per s, 1 thread", "ms,",
             "ms, all", "", "first,", "MiB,");
  fmt::print("{:<22} {:<9} {:>11} {:>9} {:>9} {:>10} {:>8} {:>10} {:>8} {:>9}\n", "version", "config", "instr.",
             "checks", "none", "1 thread", "threads", "scaling", "more ms", "peak");
  for (const Version& version : versions()) {
    if (label(version).find(only) == std::string::npos) continue;
    for (const Configuration& configuration : version.configurations) {
      if (configuration.dtype == problem.dtype && !why_unsupported(version, configuration, problem))
        measure(version, configuration, problem);
    }
  }
  return runtime::findings().total == 0 ? 0 : 1;
}

}  // namespace
}  // namespace flash_ladder

int main(int argc, char** argv) {
  try {
    return flash_ladder::run(argc, argv);
  } catch (const std::exception& error) {
    fmt::print(stderr, "emulator-benchmark: {}\n", error.what());
    return 3;
  }
}
