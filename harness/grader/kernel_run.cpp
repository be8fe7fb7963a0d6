#include "grader/kernel_run.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <sys/prctl.h>
#include <sys/wait.h>
#include <unistd.h>

#include <chrono>
#include <cstring>
#include <filesystem>
#include <nlohmann/json.hpp>
#include <optional>
#include <regex>
#include <stdexcept>
#include <string_view>
#include <utility>
#include <vector>

#include "emulator/emulator.h"
#include "emulator/function_name.h"
#include "emulator/ptx_error.h"
#include "grader/attention_case.h"
#include "results/counters.h"

namespace flash_ladder {
namespace {

using nlohmann::json;
constexpr std::size_t kMostPrinted = 2000;      // characters of a kernel's output that are kept
constexpr std::size_t kMostMessage = 64 << 20;  // bytes that a child may return besides its buffers

std::vector<std::byte> from_hex(const std::string& text) {
  std::vector<std::byte> bytes(text.size() / 2);
  for (std::size_t i = 0; i < bytes.size(); ++i)
    bytes[i] = static_cast<std::byte>(std::stoi(text.substr(2 * i, 2), nullptr, 16));
  return bytes;
}

std::string to_hex(const std::vector<std::byte>& bytes) {
  std::string text;
  text.reserve(bytes.size() * 2);
  for (const std::byte byte : bytes) fmt::format_to(std::back_inserter(text), "{:02x}", static_cast<unsigned>(byte));
  return text;
}

emulator::Dim3 dimensions(const json& sizes) {
  return {sizes.at(0).get<std::uint32_t>(), sizes.at(1).get<std::uint32_t>(), sizes.at(2).get<std::uint32_t>()};
}

// ---- In the child ----

// The line of the submission that an instruction comes from: the innermost one.
json line_in(const std::string& source_name, const emulator::SourcePosition& position) {
  for (const emulator::SourceLine& line : position)
    if (std::filesystem::path(line.file).filename() == source_name) return line.line;
  return nullptr;
}

json report_to_json(const emulator::Report& report, const std::string& source_name, std::uint64_t most_instructions) {
  json answer = {{"status", "ran"}, {"message", ""}};
  answer["findings"] = json::array();
  // The virtual GPU's own message is for users who can raise the budget.
  if (report.over_budget)
    answer["findings"].push_back(
        {{"kind", to_string(emulator::FindingKind::endless_loop)},
         {"message",
          fmt::format(
              "all blocks together have executed {} warp instructions, and not all of them have ended: an endless "
              "loop, or far too much work",
              most_instructions)},
         {"line", line_in(source_name, report.busiest)},
         {"text", ""},
         {"count", 1}});
  for (const emulator::Finding& finding : report.findings) {
    if (report.over_budget && finding.kind == emulator::FindingKind::launch_limits) continue;
    answer["findings"].push_back({{"kind", to_string(finding.kind)},
                                  {"message", finding.message},
                                  {"line", line_in(source_name, finding.position)},
                                  {"text", format(finding)},
                                  {"count", finding.count}});
  }
  answer["counters"] = counters_to_json(report.totals, Zeros::kept);
  const emulator::UsefulWork work = report.useful.value_or(emulator::UsefulWork{});
  json& useful = answer["useful"] = {{"mmas_loaded_ahead", work.mmas_loaded_ahead}};
  for_each_number(work, [&](const char* name, std::uint64_t number) { useful[name] = number; });
  answer["lines"] = json::array();
  for (const emulator::LineCounters& line : report.lines)
    answer["lines"].push_back({{"line", line_in(source_name, line.position)},
                               {"position", to_string(line.position)},
                               {"counters", counters_to_json(line.counters, Zeros::left_out)}});
  return answer;
}

struct UnfitKernel : std::runtime_error {
  using std::runtime_error::runtime_error;
};

const emulator::Kernel& find_kernel(const emulator::Module& module, const std::string& name) {
  std::vector<std::string> names;
  for (const emulator::Kernel* kernel : module.kernels()) {
    names.push_back(simple_name(kernel->name()));
    if (names.back() == name) return *kernel;
  }
  throw UnfitKernel(
      fmt::format("the file has no kernel {}, which is the one that is launched; {}", name,
                  names.empty() ? "it has none at all" : fmt::format("it has {}", fmt::join(names, ", "))));
}

// The buffers in the virtual GPU's memory.
class DeviceBuffers {
 public:
  DeviceBuffers(emulator::Memory& memory, const std::vector<Buffer>& buffers) : memory_(memory), buffers_(buffers) {
    for (const Buffer& buffer : buffers) {
      addresses_.push_back(memory.allocate(buffer.bytes.size()));
      memory.write(addresses_.back(), buffer.bytes.data(), buffer.bytes.size());
      if (!buffer.initialised) memory.poison(addresses_.back(), buffer.bytes.size());
    }
  }

  emulator::Address address(const std::string& name) const {
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (buffers_[i].name == name) return addresses_[i];
    throw std::invalid_argument(fmt::format("there is no buffer '{}'", name));
  }

  // Those that launches are to fill.
  std::vector<emulator::MemoryRange> outputs() const {
    std::vector<emulator::MemoryRange> ranges;
    for (std::size_t i = 0; i < buffers_.size(); ++i)
      if (!buffers_[i].initialised) ranges.push_back({addresses_[i], buffers_[i].bytes.size()});
    return ranges;
  }

  void read(std::vector<Buffer>& to) const {
    for (std::size_t i = 0; i < to.size(); ++i) memory_.read(to[i].bytes.data(), addresses_[i], to[i].bytes.size());
  }

 private:
  emulator::Memory& memory_;
  const std::vector<Buffer>& buffers_;
  std::vector<emulator::Address> addresses_;
};

std::vector<std::byte> packed_arguments(const emulator::Kernel& kernel, const json& step, const Attention* attention,
                                        const DeviceBuffers& device) {
  const auto arguments = make_arguments(step, attention, [&](const std::string& name) { return device.address(name); });
  const auto& parameters = kernel.parameters();
  bool fits = parameters.size() == arguments.size();
  for (std::size_t i = 0; fits && i < parameters.size(); ++i) fits = parameters[i].size == arguments[i].size();
  if (!fits)
    throw UnfitKernel(fmt::format(
        "{} takes different parameters from those in the assignment: {} of them, {} bytes in all; it is launched "
        "with {}",
        step.at("kernel").get<std::string>(), parameters.size(), kernel.parameter_bytes(), arguments.size()));
  std::vector<const void*> pointers;
  for (const auto& value : arguments) pointers.push_back(value.data());
  return pack_parameters(kernel, pointers.data());
}

// Adds what a later launch did to what those before it did.
void add(emulator::Report& sum, const emulator::Report& later) {
  sum.totals += later.totals;
  sum.lines.insert(sum.lines.end(), later.lines.begin(), later.lines.end());
  sum.findings.insert(sum.findings.end(), later.findings.begin(), later.findings.end());
  sum.executed += later.executed;
  if (sum.useful && later.useful)
    *sum.useful += *later.useful;
  else
    sum.useful = std::nullopt;
  sum.over_budget = later.over_budget;
  sum.busiest = later.busiest;
}

json launch_in_child(const std::string& ptx, const std::string& source_name, const json& request,
                     const std::optional<Attention>& attention, std::vector<Buffer>& buffers) {
  emulator::Memory memory(std::size_t{1} << 30);
  const emulator::Module module(ptx, memory);
  std::vector<json> steps = {request};
  if (request.contains("then")) steps.insert(steps.end(), request.at("then").begin(), request.at("then").end());
  std::vector<const emulator::Kernel*> kernels;  // all are looked for before the first one runs
  for (const json& step : steps) kernels.push_back(&find_kernel(module, step.at("kernel")));

  const DeviceBuffers device(memory, buffers);
  std::string printed;
  emulator::Options options;
  options.sm = request.at("sm");
  options.threads = 1;  // which CTAs have run when a budget is used up must not depend on the machine
  options.max_warp_instructions_per_cta = request.at("instructions");
  options.max_warp_instructions = 2 * options.max_warp_instructions_per_cta;
  options.max_findings = 20;
  options.list_executed = true;
  options.outputs = device.outputs();
  options.print = [&](std::string_view text) {
    printed += text.substr(0, kMostPrinted - std::min(kMostPrinted, printed.size()));
  };
  std::optional<emulator::Report> all;
  std::size_t shared_bytes = 0;
  for (std::size_t i = 0; i < steps.size(); ++i) {
    const json& step = steps[i];
    const std::vector<std::byte> packed =
        packed_arguments(*kernels[i], step, attention ? &*attention : nullptr, device);
    const emulator::Report report = launch(*kernels[i],
                                           {.grid = dimensions(step.at("grid")),
                                            .block = dimensions(step.at("block")),
                                            .dynamic_shared_bytes = step.at("shared"),
                                            .parameters = packed},
                                           memory, options);
    if (all)
      add(*all, report);
    else
      all = report;
    shared_bytes = std::max(shared_bytes, kernels[i]->static_shared_bytes() + step.at("shared").get<std::size_t>());
    if (report.outcome != emulator::Outcome::completed) break;  // later launches would read what was never written
  }
  device.read(buffers);
  json answer = report_to_json(*all, source_name, options.max_warp_instructions);
  answer["shared_bytes"] = shared_bytes;
  answer["ptx"] = all->executed;
  answer["printed"] = printed;
  return answer;
}

void write_all(int to, const void* from, std::size_t size) {
  const char* next = static_cast<const char*>(from);
  while (size > 0) {
    const ssize_t written = write(to, next, size);
    if (written <= 0) _exit(1);
    next += written;
    size -= static_cast<std::size_t>(written);
  }
}

[[noreturn]] void be_child(int pipe, const std::string& ptx, const std::string& source_name, const json& request,
                           const std::optional<Attention>& attention, std::vector<Buffer> buffers,
                           const RunLimits& limits) {
  json answer;
  try {
    prctl(PR_SET_PDEATHSIG, SIGKILL);
    limit_process({.memory_bytes = limits.memory_bytes, .cpu_seconds = limits.cpu_seconds, .may_write_files = false});
    if (limits.isolated) {
      hide_files({});
      forbid_system_calls(SystemCalls::compute);
    }
  } catch (const std::exception& error) {
    answer = {{"status", "not_graded"},
              {"message", fmt::format("the process could not be isolated: {}", error.what())}};
  }
  if (answer.is_null()) {
    const auto refused = [&](const std::string& why) { answer = {{"status", "refused"}, {"message", why}}; };
    try {
      answer = launch_in_child(ptx, source_name, request, attention, buffers);
    } catch (const emulator::PtxError& error) {
      refused(fmt::format("the virtual GPU cannot run it: {}", error.what()));
    } catch (const std::bad_alloc&) {
      refused(fmt::format("it needs more than {} MiB of memory", limits.memory_bytes >> 20));
    } catch (const std::length_error&) {
      refused(fmt::format("it needs more than {} MiB of memory", limits.memory_bytes >> 20));
    } catch (const std::exception& error) {
      refused(error.what());
    }
  }
  // The bytes that the kernel printed may not be text.
  const std::string text = answer.dump(-1, ' ', false, json::error_handler_t::replace);
  const std::uint64_t size = text.size();
  write_all(pipe, &size, sizeof(size));
  write_all(pipe, text.data(), text.size());
  for (const Buffer& buffer : buffers) write_all(pipe, buffer.bytes.data(), buffer.bytes.size());
  _exit(0);
}

// ---- In the parent ----

// Everything that the child writes, at most `most` bytes; nullopt if it has not ended by the deadline.
std::optional<std::string> read_until(int pipe, std::chrono::steady_clock::time_point deadline, std::size_t most) {
  std::string text;
  std::vector<char> block(1 << 16);
  while (true) {
    const auto left =
        std::chrono::duration_cast<std::chrono::milliseconds>(deadline - std::chrono::steady_clock::now());
    pollfd waiting{.fd = pipe, .events = POLLIN, .revents = 0};
    if (left.count() <= 0) return std::nullopt;
    if (poll(&waiting, 1, static_cast<int>(left.count())) <= 0) continue;
    const ssize_t count = read(pipe, block.data(), block.size());
    if (count <= 0 || text.size() + count > most) return text;
    text.append(block.data(), static_cast<std::size_t>(count));
  }
}

json not_graded(const std::string& message) { return {{"status", "not_graded"}, {"message", message}}; }

}  // namespace

std::string simple_name(const std::string& mangled) {
  std::string name = emulator::demangled(mangled);
  if (name == mangled) return name;
  static const std::regex qualifier(R"((\(anonymous namespace\)|[A-Za-z_]\w*)::)");
  name = std::regex_replace(name, qualifier, "");
  // The parameters are in the last parentheses; a template has its return type before its name.
  if (const auto parameters = name.find('('); parameters != std::string::npos) name.erase(parameters);
  const auto arguments = name.find('<');
  if (const auto space = name.rfind(' ', arguments == std::string::npos ? name.size() : arguments);
      space != std::string::npos)
    name.erase(0, space + 1);
  return std::regex_replace(name, std::regex("> (?=>)"), ">");
}

json run_kernel(const std::string& ptx, const std::string& source_name, const json& request, const RunLimits& limits) {
  std::optional<Attention> attention;
  std::vector<Buffer> buffers;
  if (request.contains("problem")) {
    attention = make_attention(request, 1);
    buffers = tensor_buffers(*attention);
  } else {
    for (const auto& [name, buffer] : request.at("buffers").items()) {
      if (buffer.contains("bytes"))
        buffers.push_back({.name = name, .bytes = from_hex(buffer.at("bytes"))});
      else
        buffers.push_back({.name = name,
                           .bytes = std::vector<std::byte>(buffer.at("size").get<std::size_t>(), std::byte{0xff}),
                           .initialised = false});
    }
  }
  std::size_t bytes = 0;
  for (const Buffer& buffer : buffers) bytes += buffer.bytes.size();

  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) throw std::runtime_error("no pipe could be created");
  const pid_t child = fork();
  if (child < 0) throw std::runtime_error("no process could be started");
  if (child == 0) {
    close(ends[0]);
    be_child(ends[1], ptx, source_name, request, attention, std::move(buffers), limits);
  }
  close(ends[1]);
  const auto text = read_until(ends[0], std::chrono::steady_clock::now() + std::chrono::seconds(limits.wall_seconds),
                               kMostMessage + bytes);
  close(ends[0]);
  kill(child, SIGKILL);  // it has ended, or must end
  int status = 0;
  waitpid(child, &status, 0);

  if (!text) return not_graded(fmt::format("it had not ended after {} seconds", limits.wall_seconds));
  std::uint64_t size = 0;
  if (text->size() >= sizeof(size)) std::memcpy(&size, text->data(), sizeof(size));
  if (text->size() < sizeof(size) || size > kMostMessage || text->size() != sizeof(size) + size + bytes) {
    if (WIFSIGNALED(status) && WTERMSIG(status) == SIGXCPU)
      return not_graded(fmt::format("it had not ended after {} seconds of CPU time", limits.cpu_seconds));
    return not_graded(
        fmt::format("the virtual GPU ended without an answer ({})",
                    WIFSIGNALED(status) ? fmt::format("signal {}", WTERMSIG(status)) : "a broken message"));
  }
  json answer = json::parse(text->substr(sizeof(size), size));
  if (answer.at("status") != "ran") return answer;

  std::vector<Buffer> after = buffers;
  const char* next = text->data() + sizeof(size) + size;
  for (Buffer& buffer : after) {
    std::memcpy(buffer.bytes.data(), next, buffer.bytes.size());
    next += buffer.bytes.size();
  }
  if (attention)
    answer["wrong"] = why_wrong(*attention, buffers, after, {.seq_len = attention->inputs.problem.seq_len}, 1);
  for (const Buffer& buffer : after)
    if (!attention || (!buffer.initialised && buffer.name != "workspace"))
      answer["buffers"][buffer.name] = to_hex(buffer.bytes);
  return answer;
}

}  // namespace flash_ladder
