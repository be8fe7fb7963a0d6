#include "emulator/runtime/device.h"

#include <algorithm>
#include <charconv>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <iterator>
#include <new>
#include <stdexcept>
#include <utility>

#include "emulator/function_name.h"
#include "emulator/runtime/fat_binary.h"
#include "emulator/runtime/not_supported.h"

namespace flash_ladder::emulator::runtime {
namespace {

constexpr std::size_t kMaxFindings = 100;

thread_local cudaError_t thread_last_error = cudaSuccess;
thread_local bool runs_host_function = false;

/// A number from the environment, perhaps after a `prefix`.
template <typename Number>
void read_environment(const char* name, Number& value, std::string_view prefix = "") {
  const char* text = std::getenv(name);
  if (text == nullptr || *text == '\0') return;
  Number number{};
  const char* const end = text + std::strlen(text);
  const char* const begin = std::string_view(text).starts_with(prefix) ? text + prefix.size() : text;
  const auto [stop, error] = std::from_chars(begin, end, number);
  if (error != std::errc() || stop != end || number <= Number{}) {
    throw std::invalid_argument(std::string(name) + "=" + text + " is not a number above 0.");
  }
  value = number;
}

Settings initial_settings() {
  Settings settings;
  read_environment("FLASH_LADDER_SM", settings.sm, "sm_");
  read_environment("FLASH_LADDER_SM_COUNT", settings.sm_count);
  read_environment("FLASH_LADDER_MAX_INSTRUCTIONS", settings.max_warp_instructions_per_cta);
  read_environment("FLASH_LADDER_MAX_LAUNCH_INSTRUCTIONS", settings.max_warp_instructions);
  read_environment("FLASH_LADDER_THREADS", settings.threads);
  if (const char* async = std::getenv("FLASH_LADDER_ASYNC"); async != nullptr && *async != '\0') {
    const std::string_view when = async;
    if (when != "late" && when != "early")
      throw std::invalid_argument("FLASH_LADDER_ASYNC=" + std::string(when) + " is not late or early.");
    settings.early_async = when == "early";
  }
  try {
    known_limits(settings.sm);
  } catch (const std::invalid_argument& error) {
    throw std::invalid_argument(std::string("FLASH_LADDER_SM: ") + error.what());
  }
  return settings;
}

FindingKey key_of(const Finding& finding) {
  // Findings about the host have no instruction, only a message.
  return {finding.kind,
          finding.kernel,
          finding.ptx_line,
          finding.position,
          finding.ptx_line == 0 ? finding.message : std::string(),
          finding.other ? finding.other->position : SourcePosition()};
}

void add(std::vector<LineCounters>& to, const std::vector<LineCounters>& lines) {
  for (const LineCounters& line : lines) {
    const auto place = std::lower_bound(to.begin(), to.end(), line, [](const LineCounters& a, const LineCounters& b) {
      return a.position < b.position;
    });
    if (place != to.end() && place->position == line.position) {
      place->counters += line.counters;
    } else {
      to.insert(place, line);
    }
  }
}

}  // namespace

Settings& settings() {
  static Settings settings = initial_settings();
  return settings;
}

Device::Device() : memory(settings().memory_bytes), sm(settings().sm), limits(known_limits(sm)) {}

Device& device() {
  static Device& device = *new Device;
  return device;
}

Module& Library::module(Memory& memory, int sm) {
  if (module_ == nullptr && error_.empty()) {
    try {
      module_ = std::make_unique<Module>(device_ptx(fat_binary_, sm), memory, managed_variables);
      registers_ = register_counts(fat_binary_, sm);
    } catch (const std::exception& error) {
      error_ = error.what();
    }
  }
  if (module_ == nullptr) throw std::runtime_error(error_);
  return *module_;
}

std::string_view Library::ptx() const { return device_ptx(fat_binary_, settings().sm); }

int Library::registers(const std::string& kernel) const {
  const auto entry = registers_.find(kernel);
  return entry == registers_.end() ? 0 : entry->second;
}

Registry& registry() {
  static Registry& registry = *new Registry;
  return registry;
}

Function* Registry::find_function(const void* host_address_or_handle) {
  const std::lock_guard lock(mutex);
  const auto entry = functions_by_host_address.find(host_address_or_handle);
  return entry == functions_by_host_address.end() ? nullptr : entry->second;
}

const Variable* Registry::find_variable(const void* host_address) {
  const std::lock_guard lock(mutex);
  const auto entry = variables.find(host_address);
  return entry == variables.end() ? nullptr : &entry->second;
}

Function& Device::function(const void* host_address_or_handle) {
  Function* function = registry().find_function(host_address_or_handle);
  if (function == nullptr) throw ApiError{cudaErrorInvalidDeviceFunction};
  if (function->kernel == nullptr) function->kernel = &function->library->module(memory, sm).kernel(function->name);
  return *function;
}

ModuleVariable Device::variable(const void* host_address) {
  const Variable* variable = registry().find_variable(host_address);
  if (variable == nullptr) throw ApiError{cudaErrorInvalidSymbol};
  // nvcc omits from the PTX variables that no kernel uses.
  const auto found = variable->library->module(memory, sm).variable(variable->name);
  if (!found) throw ApiError{cudaErrorInvalidSymbol};
  return *found;
}

void Device::require_stream(cudaStream_t stream) const {
  const bool built_in = stream == nullptr || stream == cudaStreamLegacy || stream == cudaStreamPerThread;
  if (!built_in && !streams.contains(reinterpret_cast<Stream*>(stream))) throw ApiError{cudaErrorInvalidResourceHandle};
}

void Device::begin_host_function(cudaStream_t stream) {
  order.host_function(stream);
  in_host_function.insert(stream);
  runs_host_function = true;
}

void Device::end_host_function(cudaStream_t stream) {
  in_host_function.erase(in_host_function.find(stream));
  runs_host_function = false;
  host_function_ended.notify_all();
}

void Device::wait_for_all() {
  // A host function must not call CUDA. If it does, it must not wait for itself.
  if (!runs_host_function) host_function_ended.wait(mutex, [&] { return in_host_function.empty(); });
  order.host_waits_for_all();
}

void Device::require_usable_stream(cudaStream_t stream) {
  require_stream(stream);
  if (!runs_host_function) host_function_ended.wait(mutex, [&] { return !in_host_function.contains(stream); });
  if (stream != nullptr && stream != cudaStreamLegacy) return;
  for (Stream* other : streams) {
    if (other->capture == nullptr || (other->flags & cudaStreamNonBlocking) != 0) continue;
    break_capture(
        *other->capture, cudaErrorStreamCaptureImplicit,
        "uses the default stream, which would wait for the stream that is being captured: use a stream of its own, "
        "or create the captured one with cudaStreamNonBlocking");
  }
}

void Device::break_capture(Graph& graph, cudaError_t error, const std::string& why) {
  print_once(std::string(call_name) + " " + why +
             ". cudaStreamEndCapture will return cudaErrorStreamCaptureInvalidated.");
  graph.invalidated = true;
  throw ApiError{error};
}

void Device::refuse_to_wait_for_capture(cudaStream_t stream) {
  Graph* const graph = capture_of(stream);
  if (graph == nullptr) return;
  break_capture(*graph, cudaErrorStreamCaptureUnsupported,
                "cannot wait for a stream that is being captured: its work has not begun");
}

Graph* Device::capture_of(cudaStream_t stream) const {
  auto* own = reinterpret_cast<Stream*>(stream);
  return streams.contains(own) ? own->capture.get() : nullptr;
}

void Device::record(const Function& function, Report report) {
  if (report.outcome == Outcome::refused) {  // the kernel did not run
    for (Finding& finding : report.findings) record(std::move(finding));
    return;
  }
  auto entry = std::find_if(counters.begin(), counters.end(),
                            [&](const KernelCounters& candidate) { return candidate.kernel == function.name; });
  if (entry == counters.end()) {
    KernelCounters& first = counters.emplace_back();
    first.kernel = function.name;
    first.ptx = function.library->ptx();
    entry = std::prev(counters.end());
  }
  if (entry->launches++ == 0) entry->roles = std::move(report.roles);
  entry->totals += report.totals;
  add(entry->lines, report.lines);
  if (report.trace != nullptr) traces.push_back(std::move(report.trace));
  for (Finding& finding : report.findings) record(std::move(finding));
}

void Device::record(Finding finding) {
  findings.total += finding.count;
  const auto [found, is_new] = known_findings.try_emplace(key_of(finding), known_findings.size());
  findings.kinds = known_findings.size();
  if (!is_new && found->second < findings.kept.size()) {
    findings.kept[found->second].count += finding.count;
  } else if (is_new && findings.kept.size() < kMaxFindings) {
    findings.kept.push_back(std::move(finding));
  }
}

void Device::not_run(const std::string& kernel, const std::string& why) {
  kernels_not_run = true;
  print_once("the kernel " + demangled(kernel) + " was not run: " + why);
}

std::vector<KernelCounters> take_counters() {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  return std::exchange(device.counters, {});
}

std::uint64_t count_ctas(const std::function<void()>& work) {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  device.ctas_asked_for = 0;
  const struct RunAgain {
    Device& device;
    ~RunAgain() { device.ctas_asked_for.reset(); }
  } run_again{device};
  work();
  return *device.ctas_asked_for;
}

std::vector<std::shared_ptr<const CtaTrace>> take_traces() {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  return std::exchange(device.traces, {});
}

Findings findings() {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  return device.findings;
}

Findings take_findings() {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  device.pending_error = device.sticky_error = thread_last_error = cudaSuccess;
  device.known_findings.clear();
  return std::exchange(device.findings, {});
}

bool host_touched(const void* address) {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  return device.order.host_touched(address);
}

bool kernels_not_run() {
  Device& device = runtime::device();
  const std::lock_guard lock(device.mutex);
  return device.kernels_not_run;
}

void print_once(const std::string& message) {
  static std::set<std::string> printed;
  if (!settings().explains_errors) return;
  if (printed.insert(message).second) std::fprintf(stderr, "virtual GPU: %s\n", message.c_str());
}

cudaError_t remember(cudaError_t error) {
  if (error != cudaSuccess) thread_last_error = error;
  return error;
}

cudaError_t last_error(bool reset) {
  const cudaError_t error = thread_last_error;
  if (reset) thread_last_error = device().sticky_error;
  return error;
}

int answer_not_supported(const char* function, const char* why) {
  print_once(std::string(function) + " answers cudaErrorNotSupported: " + why);
  if (std::strstr(function, "Launch") != nullptr) {  // work was not done, and the program may not check the error code
    Device& device = runtime::device();
    const std::lock_guard lock(device.mutex);
    device.kernels_not_run = true;
  }
  return remember(cudaErrorNotSupported);
}

cudaError_t error_of_exception(const char* name, Device& device) {
  try {
    throw;
  } catch (const ApiError& error) {
    return error.code;
  } catch (const MemoryError& error) {
    // CUDA reports only "invalid argument", and the program may not even check that.
    Finding finding;
    finding.kind = FindingKind::invalid_operation;
    finding.message = std::string(name) + ": " + error.what();
    finding.position = line_of(host_place());
    device.record(std::move(finding));
    return cudaErrorInvalidValue;
  } catch (const PtxError& error) {
    print_once(error.what());
    return cudaErrorInvalidPtx;
  } catch (const std::bad_alloc&) {
    return cudaErrorMemoryAllocation;
  } catch (const std::exception& error) {
    print_once(error.what());
    return cudaErrorNoKernelImageForDevice;
  }
}

}  // namespace flash_ladder::emulator::runtime
