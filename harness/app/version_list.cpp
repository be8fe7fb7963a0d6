#include "app/version_list.h"

#include <fmt/format.h>

#include <string>

#include "app/output.h"
#include "app/recorded.h"
#include "app/selection.h"
#include "app/study_card.h"
#include "app/terminal.h"
#include "errors.h"
#include "source/kernel_source.h"
#include "worker/support.h"

namespace flash_ladder {
namespace {

constexpr std::size_t kVersionWidth = 22, kSpeedWidth = 14, kIdeaWidth = 70;

std::string speed(const Recording* recording, const AttentionProblem& problem) {
  const Result* result = recording ? find_result(*recording, problem) : nullptr;
  const std::string figure = result ? fmt::format("{:.1f}", *result->tflops) : "-";
  return recording && recording->stale ? figure + " stale" : figure;
}

// The first sentence, or as much of it as the line holds.
std::string in_short(const std::string& idea) {
  std::string text = idea.substr(0, idea.find(". "));
  std::size_t end = text.size();
  while (display_width(text.substr(0, end)) > kIdeaWidth) end = text.rfind(' ', end - 1);
  return end < text.size() ? text.substr(0, end) + " …" : text;
}

}  // namespace

int list_versions(const Options& options) {
  const Paint paint;
  Recorded recorded(options.paths);
  const auto devices = recorded.devices();

  std::string header = pad("version", kVersionWidth);
  for (const auto& device : devices) header += pad(device, kSpeedWidth);
  std::string text = labelled("TFLOP/s at", describe(options.problem)) + "\n" + paint.bold(header + "idea") + "\n";
  bool stale = false;
  for (const Version& version : versions()) {
    text += pad(label(version), kVersionWidth);
    for (const auto& device : devices) {
      const Recording* recording = recorded.find(device, version);
      const std::string figure = speed(recording, options.problem);
      const bool is_stale = recording && recording->stale;
      text += pad(is_stale ? paint.notable(figure) : figure, kSpeedWidth);
      stale = stale || is_stale;
    }
    text += in_short(read_header_comment(source_file(version, options.paths.source)).idea) + "\n";
  }
  if (stale) text += "\nstale: the code has changed since it was recorded; --record measures it anew\n";
  if (devices.empty()) text += fmt::format("\nnothing is recorded in {}\n", options.paths.profiles.string());
  say(options, text);
  for (const auto& problem : recorded.problems()) complain(problem);
  return recorded.problems().empty() ? kExitOk : kExitUnavailable;
}

}  // namespace flash_ladder
