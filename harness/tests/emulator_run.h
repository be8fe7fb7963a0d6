// Running small PTX kernels on the virtual GPU, for tests.
#pragma once

#include <cstddef>
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/tensor_map.h"

namespace flash_ladder::emulator {

/// The output and the report of a launch of one block.
struct RunResult {
  std::vector<std::uint64_t> output;
  Report report;
};

/// Launches the kernel `test(.param .u64 input, .param .u64 output)` of a PTX text. With a tensor map, whose address is
/// filled in here, the kernel has a third parameter, `.param .align 64 .b8 map[128]`.
inline RunResult run_test_kernel(const std::string& ptx, unsigned threads, const std::vector<std::uint64_t>& input,
                                 std::size_t output_words, const Options& options = {}, Dim3 grid = {},
                                 std::optional<TensorMap> map = {}, bool map_is_of_output = false) {
  Memory memory;
  const Module module(ptx, memory);
  const Kernel& kernel = module.kernel("test");
  std::vector<std::uint64_t> output(output_words);
  const Address input_address = memory.allocate(input.size() * 8 + 8),
                output_address = memory.allocate(output_words * 8);
  memory.fill(input_address, 0, input.size() * 8 + 8);
  memory.write(input_address, input.data(), input.size() * 8);
  memory.write(output_address, output.data(), output.size() * 8);
  alignas(64) std::byte map_bytes[kTensorMapBytes] = {};
  if (map) {
    map->address = map_is_of_output ? output_address : input_address;
    store_tensor_map(*map, map_bytes);
  }
  const void* arguments[] = {&input_address, &output_address, map_bytes};
  const std::vector<std::byte> parameters = pack_parameters(kernel, arguments);
  LaunchConfig config;
  config.grid = grid;
  config.block = {threads, 1, 1};
  config.parameters = parameters;
  RunResult result;
  result.report = launch(kernel, config, memory, options);
  memory.read(output.data(), output_address, output.size() * 8);
  result.output = std::move(output);
  return result;
}

}  // namespace flash_ladder::emulator
