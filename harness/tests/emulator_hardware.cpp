// Runs the conformance suite on a real GPU and writes its results, with which emulator_conformance_test compares the
// virtual GPU's: emulator-hardware harness/tests/emulator_hardware.json [PART | --missing], with PART only the cases whose
// names contain it, and with --missing only those that the file lacks; the results of the others stay in the file. Missing
// cases run one by one, each in its own process, because a failure destroys the CUDA context; it is stored under "failed",
// with the driver's message. Loads the driver's library at run time, so that it builds everywhere.

#include <dlfcn.h>
#include <fmt/format.h>
#include <sys/wait.h>
#include <unistd.h>

#include <cstdint>
#include <cstdio>
#include <fstream>
#include <nlohmann/json.hpp>
#include <stdexcept>
#include <string>
#include <vector>

#include "emulator_cases.h"

namespace {

using flash_ladder::emulator::ConformanceCase;

// The few functions of the CUDA driver API that are needed, under their versioned names.
class Driver {
 public:
  Driver() : library_(dlopen("libcuda.so.1", RTLD_NOW)) {
    if (library_ == nullptr) throw std::runtime_error("there is no libcuda.so.1: no NVIDIA driver on this machine");
    check(function<int(unsigned)>("cuInit")(0), "cuInit");
    check(function<int(int*, int)>("cuDeviceGet")(&device_, 0), "cuDeviceGet");
    void* context = nullptr;
    check(function<int(void**, int)>("cuDevicePrimaryCtxRetain")(&context, device_), "cuDevicePrimaryCtxRetain");
    check(function<int(void*)>("cuCtxSetCurrent")(context), "cuCtxSetCurrent");
  }

  std::string device_name() {
    char name[256] = {};
    check(function<int(char*, int, int)>("cuDeviceGetName")(name, sizeof name, device_), "cuDeviceGetName");
    return name;
  }
  int driver_version() {
    int version = 0;
    check(function<int(int*)>("cuDriverGetVersion")(&version), "cuDriverGetVersion");
    return version;
  }

  std::vector<std::uint64_t> run(const ConformanceCase& one) {
    void* module = nullptr;
    void* kernel = nullptr;
    check(function<int(void**, const void*)>("cuModuleLoadData")(&module, one.ptx.c_str()), "cuModuleLoadData");
    check(function<int(void**, void*, const char*)>("cuModuleGetFunction")(&kernel, module, "test"),
          "cuModuleGetFunction");
    std::vector<std::uint64_t> output(std::size_t{one.threads} * one.outputs);
    std::uint64_t input_address = 0, output_address = 0;
    const auto allocate = function<int(std::uint64_t*, std::size_t)>("cuMemAlloc_v2");
    const auto upload = function<int(std::uint64_t, const void*, std::size_t)>("cuMemcpyHtoD_v2");
    // At least as much as the kernel may read.
    std::vector<std::uint64_t> input = one.input;
    input.resize(input.size() + 1);
    check(allocate(&input_address, input.size() * 8), "cuMemAlloc");
    check(allocate(&output_address, output.size() * 8), "cuMemAlloc");
    check(upload(input_address, input.data(), input.size() * 8), "cuMemcpyHtoD");
    check(upload(output_address, output.data(), output.size() * 8), "cuMemcpyHtoD");
    alignas(64) unsigned char map[128] = {};
    if (one.map) encode(*one.map, one.map_is_of_output ? output_address : input_address, map);
    void* arguments[] = {&input_address, &output_address, map};
    const auto launch = function<int(void*, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, unsigned, void*,
                                     void**, void**)>("cuLaunchKernel");
    check(launch(kernel, one.ctas, 1, 1, one.threads, 1, 1, 0, nullptr, arguments, nullptr), "cuLaunchKernel");
    check(function<int(void*, std::uint64_t, std::size_t)>("cuMemcpyDtoH_v2")(output.data(), output_address,
                                                                              output.size() * 8),
          "the kernel");
    const auto free = function<int(std::uint64_t)>("cuMemFree_v2");
    check(free(input_address), "cuMemFree");
    check(free(output_address), "cuMemFree");
    check(function<int(void*)>("cuModuleUnload")(module), "cuModuleUnload");
    return output;
  }

 private:
  void encode(const flash_ladder::emulator::TensorMap& map, std::uint64_t address, void* to) {
    // CUtensorMapDataType: UINT8, FLOAT16, FLOAT32; no interleaving; L2 promotion of 256 bytes.
    const int type = map.element_bytes == 1 ? 0 : map.element_bytes == 2 ? 6 : 7;
    constexpr std::uint32_t kSteps[] = {1, 1, 1, 1, 1};
    check(function<int(void*, int, std::uint32_t, void*, const std::uint64_t*, const std::uint64_t*,
                       const std::uint32_t*, const std::uint32_t*, int, int, int, int)>("cuTensorMapEncodeTiled")(
              to, type, static_cast<std::uint32_t>(map.dimensions), reinterpret_cast<void*>(address), map.sizes.data(),
              map.strides.data() + 1, map.box.data(), kSteps, 0, static_cast<int>(map.swizzle), 3,
              map.fills_with_nan ? 1 : 0),
          "cuTensorMapEncodeTiled");
  }

  template <typename F>
  F* function(const char* name) {
    void* symbol = dlsym(library_, name);
    if (symbol == nullptr) throw std::runtime_error(fmt::format("the driver has no {}", name));
    return reinterpret_cast<F*>(symbol);
  }
  void check(int error, const char* what) {
    if (error != 0) throw std::runtime_error(fmt::format("{} failed with CUDA error {}", what, error));
  }

  void* library_;
  int device_ = 0;
};

std::string words(const std::vector<std::uint64_t>& values) {
  std::string text;
  for (const std::uint64_t value : values) text += fmt::format("{}{:x}", text.empty() ? "" : " ", value);
  return text;
}

// Its results in the form of words(), or "failed: …", from a separate process.
std::string run_apart(const ConformanceCase& one) {
  int ends[2];
  if (pipe(ends) != 0) throw std::runtime_error("no pipe");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process");
  if (child == 0) {
    std::string answer;
    try {
      answer = words(Driver().run(one));
    } catch (const std::exception& error) {
      answer = fmt::format("failed: {}", error.what());
    }
    for (std::size_t at = 0; at < answer.size();) {
      const ssize_t written = write(ends[1], answer.data() + at, answer.size() - at);
      if (written <= 0) _exit(1);
      at += static_cast<std::size_t>(written);
    }
    _exit(0);
  }
  close(ends[1]);
  std::string answer;
  char buffer[4096];
  for (ssize_t got; (got = read(ends[0], buffer, sizeof buffer)) > 0;)
    answer.append(buffer, static_cast<std::size_t>(got));
  close(ends[0]);
  int status = 0;
  waitpid(child, &status, 0);
  return answer.empty() ? "failed: the process has ended without an answer" : answer;
}

int run_missing(const char* path) {
  nlohmann::json results;
  if (std::ifstream before(path); before) results = nlohmann::json::parse(before);
  if (!results.contains("failed")) results["failed"] = nlohmann::json::object();
  int asked = 0, failed = 0;
  for (const ConformanceCase& one : flash_ladder::emulator::conformance_cases()) {
    if (results["results"].contains(one.name)) continue;
    ++asked;
    const std::string answer = run_apart(one);
    const bool is_failure = answer.starts_with("failed: ");
    results["failed"].erase(one.name);
    results[is_failure ? "failed" : "results"][one.name] = is_failure ? answer.substr(8) : answer;
    failed += is_failure;
    fmt::print("{}: {}\n", one.name, is_failure ? answer : "recorded");
    std::ofstream file(path);
    file << results.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", path));
  }
  fmt::print("{} cases were missing, {} failed\n", asked, failed);
  return failed == 0 ? 0 : 1;
}

}  // namespace

int main(int argc, char** argv) {
  if (argc != 2 && argc != 3) {
    std::fputs("usage: emulator-hardware FILE.json [PART | --missing]\n", stderr);
    return 2;
  }
  try {
    if (argc == 3 && std::string(argv[2]) == "--missing") return run_missing(argv[1]);
    Driver driver;
    nlohmann::json results;
    const std::string part = argc == 3 ? argv[2] : "";
    if (std::ifstream before(argv[1]); before && !part.empty()) results = nlohmann::json::parse(before);
    results["device"] = driver.device_name();
    results["driver"] = driver.driver_version();
    int failed = 0;
    for (const ConformanceCase& one : flash_ladder::emulator::conformance_cases()) {
      if (one.name.find(part) == one.name.npos) continue;
      try {
        results["results"][one.name] = words(driver.run(one));
      } catch (const std::runtime_error& error) {
        fmt::print(stderr, "{}: {}\n", one.name, error.what());
        ++failed;
      }
    }
    std::ofstream file(argv[1]);
    file << results.dump(1) << '\n';
    if (!file.flush()) throw std::runtime_error(fmt::format("cannot write {}", argv[1]));
    fmt::print("{} cases on {}, {} failed\n", results["results"].size(), driver.device_name(), failed);
    return failed == 0 ? 0 : 1;
  } catch (const std::exception& error) {
    fmt::print(stderr, "emulator-hardware: {}\n", error.what());
    return 3;
  }
}
