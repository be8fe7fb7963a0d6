#include "results/atomic_file.h"

#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <fstream>

#include "errors.h"

namespace flash_ladder {
namespace {

namespace fs = std::filesystem;

// Renaming over a device or a pipe would replace it, and over a symbolic link would lose it.
bool is_special(const fs::path& path) { return fs::exists(path) && !fs::is_regular_file(path); }
fs::path link_target(const fs::path& path) { return fs::is_symlink(path) ? fs::weakly_canonical(path) : path; }

fs::path temporary_name(const fs::path& path) { return fmt::format("{}.{}.tmp", path.string(), getpid()); }

bool write(const fs::path& path, const std::string& text) {
  std::ofstream file(path, std::ios::binary | std::ios::trunc);
  file << text;
  file.close();
  return static_cast<bool>(file);
}

}  // namespace

void check_writable(const fs::path& path) {
  const auto refuse = [&](const std::string& why) {
    throw UsageError(
        fmt::format("cannot write to '{}': {}; name a file in a directory that exists and that you may write to",
                    path.string(), why));
  };
  std::error_code error;
  if (path.empty()) refuse("the name is empty");
  if (fs::is_directory(path, error)) refuse("it is a directory");
  const fs::path target = link_target(path);
  if (fs::exists(target, error) && access(target.c_str(), W_OK) != 0) refuse(std::strerror(errno));
  if (is_special(target)) return;
  const fs::path temporary = temporary_name(target);
  errno = 0;
  if (!write(temporary, "")) refuse(std::strerror(errno));
  fs::remove(temporary, error);
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  const fs::path target = link_target(path);
  const fs::path written = is_special(target) ? target : temporary_name(target);
  errno = 0;
  if (!write(written, text)) {
    const std::string why = std::strerror(errno);
    std::error_code ignored;
    if (written != target) fs::remove(written, ignored);
    throw UnavailableError(
        fmt::format("writing '{}' failed: {}; free some space or choose another place", path.string(), why));
  }
  if (written != target) fs::rename(written, target);
}

}  // namespace flash_ladder
