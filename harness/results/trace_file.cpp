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

// The events of one trace, which is a process of the document.
class ProcessEvents {
 public:
  ProcessEvents(const emulator::CtaTrace& trace, int process) : trace_(trace), process_(process) {}

  void add_names(json& events) const {
    const emulator::Dim3& cta = trace_.cta;
    const std::string kernel = emulator::function_name(trace_.kernel);
    events.push_back({{"ph", "M"},
                      {"name", "process_name"},
                      {"pid", process_},
                      {"args", {{"name", fmt::format("{}, CTA ({}, {}, {})", kernel, cta.x, cta.y, cta.z)}}}});
    for (int warp = 0; warp < trace_.num_warps; ++warp) {
      std::string name = fmt::format("warp {}", warp);
      for (const emulator::Role& role : trace_.roles)
        if (trace_.roles.size() > 1 && std::ranges::find(role.warps, warp) != role.warps.end())
          name += ": " + emulator::describe_work(role);
      events.push_back({{"ph", "M"},
                        {"name", "thread_name"},
                        {"pid", process_},
                        {"tid", warp},
                        {"args", {{"name", std::move(name)}}}});
    }
  }

  void add(json& events, const emulator::TraceInterval& interval) const {
    json arguments = {{"line", line_of(position(interval))}, {"instructions", interval.instructions}};
    if (interval.barrier) {
      add_barrier(arguments, *interval.barrier);
      arguments["ended_by"] = interval.ended_by < 0 ? json() : json(interval.ended_by);
      arguments["calls"] = calls_of(position(interval));
    }
    events.push_back({{"ph", "X"},
                      {"pid", process_},
                      {"tid", interval.warp},
                      {"ts", interval.begin},
                      {"dur", interval.end - interval.begin},
                      {"name", to_string(interval.phase)},
                      {"args", std::move(arguments)}});
  }

  void add(json& events, const emulator::TraceEvent& event) const {
    json arguments = {{"line", line_of(position(event))}, {"calls", calls_of(position(event))}};
    if (event.barrier) add_barrier(arguments, *event.barrier);
    if (event.kind != emulator::TraceEvent::Kind::arrive) {
      arguments["shared"] = event.shared;
      arguments["bytes"] = event.bytes;
    }
    events.push_back({{"ph", "i"},
                      {"s", "t"},
                      {"pid", process_},
                      {"tid", event.warp},
                      {"ts", event.at},
                      {"name", to_string(event.kind)},
                      {"args", std::move(arguments)}});
  }

  // Their rows are separate from the rows of the warps.
  void add(json& events, const emulator::TraceWgmmas& wgmmas) const {
    const std::string name = fmt::format("wgmma of warps {}–{}", wgmmas.first_warp, wgmmas.first_warp + 3);
    const json common = {{"cat", "wgmma"}, {"id", wgmmas.first_warp}, {"pid", process_}, {"name", name}};
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

  void add_other_data(json& roles, json& mbarriers) const {
    for (json& role : roles_to_json(trace_.roles)) {
      role["pid"] = process_;
      roles.push_back(std::move(role));
    }
    for (const emulator::TraceMbarrier& mbarrier : trace_.mbarriers)
      mbarriers.push_back({{"pid", process_},
                           {"mbarrier", mbarrier.address},
                           {"arrivals", mbarrier.arrivals},
                           {"line", line_of(position(mbarrier))}});
  }

 private:
  const emulator::SourcePosition& position(const auto& of) const {
    return trace_.positions[static_cast<std::size_t>(of.position)];
  }

  const emulator::CtaTrace& trace_;
  int process_;
};

}  // namespace

void write_trace(const std::filesystem::path& path, const Result& result) {
  json events = json::array(), roles = json::array(), mbarriers = json::array();
  int process = 0;
  for (const auto& trace : result.traces) {
    const ProcessEvents of_trace(*trace, process++);
    of_trace.add_names(events);
    for (const auto& interval : trace->intervals) of_trace.add(events, interval);
    for (const auto& event : trace->events) of_trace.add(events, event);
    for (const auto& wgmmas : trace->wgmmas) of_trace.add(events, wgmmas);
    of_trace.add_other_data(roles, mbarriers);
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
