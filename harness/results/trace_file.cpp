#include "results/trace_file.h"

#include <fmt/format.h>

#include <nlohmann/json.hpp>
#include <string>

#include "emulator/function_name.h"
#include "emulator/trace.h"
#include "results/document.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

// Where the kernel's own file says it: the innermost line of the file that the kernel is in. null where nothing is known.
json line_of(const emulator::SourcePosition& position) {
  for (const emulator::SourceLine& line : position)
    if (line.file == position.back().file) return fmt::format("{}:{}", line.file, line.line);
  return nullptr;
}

}  // namespace

void write_trace(const std::filesystem::path& path, const Result& result) {
  json events = json::array();
  int process = 0;
  for (const auto& trace : result.traces) {
    const emulator::Dim3& cta = trace->cta;
    const std::string kernel = emulator::function_name(trace->kernel);
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", process},
                      {"args", {{"name", fmt::format("{}, CTA ({}, {}, {})", kernel, cta.x, cta.y, cta.z)}}}});
    for (int warp = 0; warp < trace->num_warps; ++warp)
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", process},
                        {"tid", warp},
                        {"args", {{"name", fmt::format("warp {}", warp)}}}});
    for (const emulator::TraceInterval& interval : trace->intervals)
      events.push_back({{"ph", "X"},
                        {"pid", process},
                        {"tid", interval.warp},
                        {"ts", interval.begin},
                        {"dur", interval.end - interval.begin},
                        {"name", to_string(interval.phase)},
                        {"args",
                         {{"line", line_of(trace->positions[static_cast<std::size_t>(interval.position)])},
                          {"instructions", interval.instructions}}}});
    ++process;
  }
  const json document = {{"traceEvents", std::move(events)},
                         {"otherData",
                          {{"unit", "one microsecond stands for one warp instruction, and not for time"},
                           {"kernel", result.kernel},
                           {"name", result.name},
                           {"config", result.config},
                           {"problem", result.problem},
                           {"ptx_hash", result.ptx_hash}}}};
  write_document(path, document, "traceEvents");
}

}  // namespace flash_ladder
