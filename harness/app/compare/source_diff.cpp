#include "app/compare/source_diff.h"

#include <fmt/format.h>

#include <cstring>
#include <fstream>
#include <regex>
#include <sstream>
#include <utility>

#include "app/options/selection.h"
#include "app/run/temporary_directory.h"
#include "errors.h"
#include "source/program_output.h"

namespace flash_ladder {
namespace {

// The file without its header comment, and with vNN in place of v06.
std::string normalised(const Version& version, const std::filesystem::path& source_tree) {
  const auto path = source_file(version, source_tree);
  std::ifstream file(path);
  if (!file) throw UnavailableError(fmt::format("'{}' cannot be read; --diff needs the source tree", path.string()));
  const std::regex name_space(fmt::format("\\bflash_ladder::{}\\b", code_namespace(version)));
  std::string text;
  bool in_header = true;
  for (std::string line; std::getline(file, line);) {
    in_header = in_header && line.starts_with("//");
    if (in_header) continue;
    text += std::regex_replace(line, name_space, "flash_ladder::vNN") + '\n';
  }
  return text;
}

}  // namespace

std::string source_diff(const Version& from, const Version& to, const std::filesystem::path& source_tree) {
  const TemporaryDirectory directory;
  const auto old_file = directory.path() / "from", new_file = directory.path() / "to";
  std::ofstream(old_file) << normalised(from, source_tree);
  std::ofstream(new_file) << normalised(to, source_tree);
  ProgramOutput diff = output_of(
      {"diff", "-u", "--label", from.source, "--label", to.source, "--", old_file.string(), new_file.string()});
  if (diff.error != 0)
    throw UnavailableError(
        fmt::format("the program `diff` cannot be started ({}); install diffutils", std::strerror(diff.error)));
  constexpr int kDifferent = 1;  // a higher exit status means trouble
  if (diff.status > kDifferent) throw UnavailableError("the program `diff` failed, see above");
  return std::move(diff.text);
}

std::string painted_diff(const std::string& diff, const Paint& paint) {
  std::string text;
  std::istringstream lines(diff);
  for (std::string line; std::getline(lines, line);) {
    if (line.starts_with("+"))
      text += paint.good(line);
    else if (line.starts_with("-"))
      text += paint.bad(line);
    else
      text += line.starts_with("@@") ? paint.dim(line) : line;
    text += '\n';
  }
  return text;
}

}  // namespace flash_ladder
