#include "app/grade/grading.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <string>
#include <vector>

#include "errors.h"

namespace flash_ladder {

void become_grader(const Options& options) {
  const std::string grader = (options.paths.source / "harness" / "grader" / "grade.py").string();
  std::vector<std::string> words = {FLASH_LADDER_PYTHON, grader,
                                    "--build=" + options.paths.study.parent_path().string()};
  words.insert(words.end(), options.grading.begin(), options.grading.end());
  std::vector<char*> arguments;
  for (std::string& word : words) arguments.push_back(word.data());
  arguments.push_back(nullptr);
  execv(arguments.front(), arguments.data());
  throw UnavailableError(fmt::format("{} cannot be started: {}. Run scripts/setup, which creates it",
                                     FLASH_LADDER_PYTHON, std::strerror(errno)));
}

}  // namespace flash_ladder
