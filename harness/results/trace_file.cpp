#include "results/trace_file.h"

#include <fmt/format.h>

#include <algorithm>
#include <nlohmann/json.hpp>
#include <string>

#include "emulator/function_name.h"
#include "emulator/trace.h"
#include "results/counters.h"
#include "results/document.h"

namespace flash_ladder {
namespace {

using nlohmann::json;

// The line in the kernel's own file: the innermost line of the file that contains the kernel. null if nothing is known.
json line_of(const emulator::SourcePosition& position) {
  for (const emulator::SourceLine& line : position)
    if (line.file == position.back().file) return fmt::format("{}:{}", line.file, line.line);
  return nullptr;
}

// All lines of that file, innermost first, because several of its barriers share the lines of helpers and lambdas.
json calls_of(const emulator::SourcePosition& position) {
  json calls = json::array();
  for (const emulator::SourceLine& line : position)
    if (line.file == position.back().file) calls.push_back(fmt::format("{}:{}", line.file, line.line));
  return calls;
}

void add_barrier(json& arguments, const emulator::TraceBarrier& barrier) {
  arguments[barrier.is_mbarrier ? "mbarrier" : "barrier"] = barrier.id;
  arguments["phase"] = barrier.phase;
}

}  // namespace

void write_trace(const std::filesystem::path& path, const Result& result) {
  json events = json::array(), roles = json::array(), mbarriers = json::array();
  int process = 0;
  for (const auto& trace : result.traces) {
    const emulator::Dim3& cta = trace->cta;
    const std::string kernel = emulator::function_name(trace->kernel);
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", process},
                      {"args", {{"name", fmt::format("{}, CTA ({}, {}, {})", kernel, cta.x, cta.y, cta.z)}}}});
    for (int warp = 0; warp < trace->num_warps; ++warp) {
      std::string name = fmt::format("warp {}", warp);
      for (const emulator::Role& role : trace->roles)
        if (trace->roles.size() > 1 && std::ranges::find(role.warps, warp) != role.warps.end())
          name += ": " + emulator::describe_work(role);
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", process},
                        {"tid", warp},
                        {"args", {{"name", std::move(name)}}}});
    }
    const auto position = [&](const auto& of) -> const emulator::SourcePosition& {
      return trace->positions[static_cast<std::size_t>(of.position)];
    };
    for (const emulator::TraceInterval& interval : trace->intervals) {
      json arguments = {{"line", line_of(position(interval))}, {"instructions", interval.instructions}};
      if (interval.barrier) {
        add_barrier(arguments, *interval.barrier);
        arguments["ended_by"] = interval.ended_by < 0 ? json() : json(interval.ended_by);
        arguments["calls"] = calls_of(position(interval));
      }
      events.push_back({{"ph", "X"},
                        {"pid", process},
                        {"tid", interval.warp},
                        {"ts", interval.begin},
                        {"dur", interval.end - interval.begin},
                        {"name", to_string(interval.phase)},
                        {"args", std::move(arguments)}});
    }
    for (const emulator::TraceEvent& event : trace->events) {
      json arguments = {{"line", line_of(position(event))}, {"calls", calls_of(position(event))}};
      if (event.barrier) add_barrier(arguments, *event.barrier);
      if (event.kind != emulator::TraceEvent::Kind::arrive) {
        arguments["shared"] = event.shared;
        arguments["bytes"] = event.bytes;
      }
      events.push_back({{"ph", "i"},
                        {"s", "t"},
                        {"pid", process},
                        {"tid", event.warp},
                        {"ts", event.at},
                        {"name", to_string(event.kind)},
                        {"args", std::move(arguments)}});
    }
    // These rows are separate from the rows of the warps.
    for (const emulator::TraceWgmmas& wgmmas : trace->wgmmas) {
      const std::string name = fmt::format("wgmma of warps {}–{}", wgmmas.first_warp, wgmmas.first_warp + 3);
      const json common = {{"cat", "wgmma"}, {"id", wgmmas.first_warp}, {"pid", process}, {"name", name}};
      json begin = common, end = common;
      begin.update({{"ph", "b"},
                    {"ts", wgmmas.begin},
                    {"args",
                     {{"line", line_of(position(wgmmas))},
                      {"calls", calls_of(position(wgmmas))},
                      {"first_warp", wgmmas.first_warp},
                      {"count", wgmmas.count}}}});
      end.update({{"ph", "e"}, {"ts", wgmmas.end}});
      events.push_back(std::move(begin));
      events.push_back(std::move(end));
    }
    for (json& role : roles_to_json(trace->roles)) {
      role["pid"] = process;
      roles.push_back(std::move(role));
    }
    for (const emulator::TraceMbarrier& mbarrier : trace->mbarriers)
      mbarriers.push_back({{"pid", process},
                           {"mbarrier", mbarrier.address},
                           {"arrivals", mbarrier.arrivals},
                           {"line", line_of(position(mbarrier))}});
    ++process;
  }
  const json document = {{"traceEvents", std::move(events)},
                         {"otherData",
                          {{"unit", "one microsecond stands for one warp instruction, not for time"},
                           {"kernel", result.kernel},
                           {"name", result.name},
                           {"config", result.config},
                           {"problem", result.problem},
                           {"roles", std::move(roles)},
                           {"mbarriers", std::move(mbarriers)},
                           {"ptx_hash", result.ptx_hash}}}};
  write_document(path, document, "traceEvents");
}

}  // namespace flash_ladder
