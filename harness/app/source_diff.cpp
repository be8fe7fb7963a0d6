#include "app/source_diff.h"

#include <fmt/format.h>

#include <cstdio>
#include <fstream>
#include <memory>
#include <regex>
#include <sstream>

#include "app/selection.h"
#include "app/temporary_directory.h"
#include "errors.h"

namespace flash_ladder {
namespace {

// The file without its header comment, and with v06 written as vNN.
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

std::string run(const std::string& command) {
  const std::unique_ptr<std::FILE, int (*)(std::FILE*)> pipe(popen(command.c_str(), "r"), pclose);
  std::string output;
  char chunk[4096];
  for (std::size_t count; pipe && (count = std::fread(chunk, 1, sizeof chunk, pipe.get())) > 0;)
    output.append(chunk, count);
  return output;
}

}  // namespace

std::string source_diff(const Version& from, const Version& to, const std::filesystem::path& source_tree) {
  if (std::system("diff --version >/dev/null 2>&1") != 0)
    throw UnavailableError("the program `diff` was not found; install diffutils");
  const TemporaryDirectory directory;
  std::ofstream(directory.path() / "from") << normalised(from, source_tree);
  std::ofstream(directory.path() / "to") << normalised(to, source_tree);
  // The directory's name comes from TMPDIR, which is the user's to choose: it goes to the shell as a variable.
  setenv("FLASH_LADDER_DIFF", directory.path().c_str(), 1);
  return run(fmt::format("cd \"$FLASH_LADDER_DIFF\" && diff -u --label {} --label {} from to", from.source, to.source));
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
