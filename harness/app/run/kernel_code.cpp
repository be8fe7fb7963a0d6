#include "app/run/kernel_code.h"

#include <fcntl.h>
#include <fmt/format.h>
#include <fmt/ranges.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <chrono>
#include <filesystem>
#include <thread>
#include <utility>

#include "app/options/output.h"
#include "app/options/selection.h"
#include "app/run/child_process.h"
#include "app/terminal/terminal.h"
#include "errors.h"
#include "modules/modules.h"
#include "source/registration_text.h"

namespace flash_ladder {
namespace {

namespace fs = std::filesystem;

// This program's build, which compiles the modules.
fs::path build_folder() { return module_folder().parent_path(); }

// The kernel's file in the tree that is built: --source may name another.
fs::path built_file(const Version& version) {
  for (const fs::path& file : listed_kernels(module_folder()))
    if (file.string().ends_with("/" + version.source)) return file;
  return {};
}

fs::path built_tree(const Version& version) {
  const std::string file = built_file(version).string();
  return file.substr(0, file.size() - std::min(file.size(), version.source.size()));
}

// Whether the module is at least as new as all that can change it. The build knows exactly what does, but takes a moment
// to tell, and there may be none.
bool is_current(const Version& version) {
  std::error_code error;
  const auto built = fs::last_write_time(module_file(version, module_folder()), error);
  if (error) return false;
  const auto is_newer = [&](const fs::path& file) {
    const auto written = fs::last_write_time(file, error);
    return !error && written > built;
  };
  if (is_newer(built_file(version)) || is_newer(build_folder() / "build.ninja")) return false;
  const auto headers = fs::recursive_directory_iterator(built_tree(version) / "common", error);
  return std::none_of(begin(headers), end(headers), [&](const fs::directory_entry& entry) {
    return entry.path().extension() == ".h" && is_newer(entry.path());
  });
}

// One build at a time: scripts/setup takes the same lock. Builds inherit it, so that it lasts as long as they do.
class BuildLock {
 public:
  explicit BuildLock(const fs::path& tree) : file_(open((tree / "scripts" / "setup").c_str(), O_RDONLY)) {
    Progress progress;
    while (file_ >= 0 && flock(file_, LOCK_EX | LOCK_NB) != 0) {
      progress.show("waiting for another build to end");
      check_interrupt();
      std::this_thread::sleep_for(std::chrono::milliseconds(100));
    }
  }
  ~BuildLock() {
    if (file_ >= 0) close(file_);
  }
  BuildLock(const BuildLock&) = delete;
  BuildLock& operator=(const BuildLock&) = delete;

 private:
  int file_;  // -1: the tree has no such file
};

std::string labels(const std::vector<const Version*>& versions) {
  std::vector<std::string> names;
  for (const Version* version : versions) names.push_back(label(*version));
  return fmt::format("{}", fmt::join(names, ", "));
}

enum class Output { shown, discarded };

// Whether all of these modules could be built; those that can are built in any case.
bool build(const std::vector<const Version*>& versions, Output shown) {
  std::vector<std::string> words = {"-c", R"(exec "$0" "$@" >&3 2>&1)", FLASH_LADDER_NINJA, "-C", build_folder(), "-k",
                                    "0"};
  for (const Version* version : versions) words.push_back("kernel_" + label(*version));
  ChildProcess child("/bin/sh", words, false);
  Progress progress;
  std::string output;
  bool is_announced = shown == Output::discarded, command_follows = false;
  const auto next_line = [&](std::string& line) {
    try {
      return child.read_line(line, std::chrono::hours(24)) == ChildProcess::Read::line;
    } catch (const Interrupted&) {
      child.ask_to_end();
      throw;
    }
  };
  for (std::string line; next_line(line);) {
    // Lines that Ninja prints even if there is nothing to do.
    if ((line.starts_with("ninja: ") && !line.starts_with("ninja: error")) ||
        line.find("Re-checking globbed") != std::string::npos)
      continue;
    if (!is_announced) complain("compiling " + labels(versions));
    is_announced = true;
    const bool is_step = line.starts_with('[');
    if (is_step && shown == Output::shown) progress.show(line);
    // Ninja prints a command that failed before the command's own messages.
    const bool is_command = std::exchange(command_follows, line.starts_with("FAILED: "));
    if (!is_step && !is_command && !command_follows) output += line + "\n";
  }
  const bool done = child.wait(std::chrono::hours(24)) == 0;
  progress.clear();
  if (!done && shown == Output::shown) write_error(output);
  return done;
}

// Builds modules. Returns why not, for those that could not be built.
std::map<const Version*, std::string> compile(const std::vector<const Version*>& wanted) {
  std::map<const Version*, std::string> failed;
  if (access(FLASH_LADDER_NINJA, X_OK) != 0) {
    for (const Version* version : wanted) {
      const std::string why =
          fmt::format("{} has to be compiled, and {} is gone; run scripts/setup", version->source, FLASH_LADDER_NINJA);
      std::error_code error;
      if (fs::exists(module_file(*version, module_folder()), error))
        complain(fmt::format("warning: {}. What runs is older code.", why));
      else
        failed[version] = why;
    }
    return failed;
  }
  const BuildLock lock(built_tree(*wanted.front()));
  const auto start = fs::file_time_type::clock::now();
  const bool done = build(wanted, Output::shown);
  for (const Version* version : wanted) {
    if (done || (wanted.size() > 1 && build({version}, Output::discarded))) {
      // It depends on nothing newer, so that the build need not be asked again.
      std::error_code error;
      if (!is_current(*version)) fs::last_write_time(module_file(*version, module_folder()), start, error);
    } else {
      failed[version] =
          fmt::format("{} does not compile: see above. Correct what is said there, and run the same command again",
                      version->source);
    }
  }
  return failed;
}

bool left_out = false;

// `beside`: nullptr, or a version whose code is wanted too.
std::vector<const Version*> with_code(std::vector<const Version*> selected, const Version* beside) {
  std::vector<const Version*> wanted = selected;
  if (beside != nullptr) wanted.push_back(beside);
  const auto failed = provide_code(wanted);
  std::erase_if(selected, [&](const Version* version) { return failed.contains(version); });
  if (selected.empty()) throw UnavailableError(failed.at(wanted.front()));
  for (const auto& [version, why] : failed) {
    complain(fmt::format("{} is left out: {}", label(*version), why));
    left_out = left_out || version != beside;
  }
  return selected;
}

}  // namespace

void announce_kernels() {
  if (!versions().empty()) return;
  for (const fs::path& file : listed_kernels(module_folder())) {
    Version version = version_of_file(file.string());
    std::error_code error;
    if (fs::exists(file, error)) {
      const RegistrationText text = read_registration(file);
      version.extends = text.extends;
      if (text.architecture == "sm_90a") version.architecture = Architecture::sm_90a;
      for (const auto& [name, member] : kSolves)
        version.solves.*member = std::ranges::find(text.solves, name) != text.solves.end();
    }
    announce(std::move(version));
  }
}

std::map<const Version*, std::string> provide_code(const std::vector<const Version*>& versions) {
  std::map<const Version*, std::string> failed;
  // Whether the module was loaded, right or not.
  const auto load = [&](const Version* version) {
    try {
      load_module(*version, module_folder());
    } catch (const UnavailableError& error) {
      failed[version] = error.what();
    }
    return version->is_registered;
  };
  std::vector<const Version*> stale;
  for (const Version* version : versions) {
    if (version->is_registered || (is_current(*version) && load(version))) continue;
    // What cannot be loaded was perhaps left by a build that was interrupted, and is newer than its sources.
    std::error_code error;
    if (failed.erase(version) > 0) fs::remove(module_file(*version, module_folder()), error);
    stale.push_back(version);
  }
  if (stale.empty()) return failed;
  failed.merge(compile(stale));
  for (const Version* version : stale)
    if (!failed.contains(version)) load(version);
  return failed;
}

const Version& select_with_code(const std::string& text) {
  const Version& version = select_version(text);
  for (const auto& [_, why] : provide_code({&version})) throw UnavailableError(why);
  return version;
}

std::pair<const Version&, const Version&> select_with_code(const std::string& a, const std::string& b) {
  const Version &first = select_version(a), &second = select_version(b);
  for (const auto& [_, why] : provide_code({&first, &second})) throw UnavailableError(why);
  return {first, second};
}

std::vector<const Version*> select_all_with_code(const std::string& text) {
  return with_code(select_versions(text), nullptr);
}

std::vector<const Version*> select_all_with_code_before(const std::string& text) {
  const auto selected = select_versions(text);
  return with_code(selected, selected.size() == 1 ? version_before(*selected.front()) : nullptr);
}

bool any_left_out() { return left_out; }

}  // namespace flash_ladder
