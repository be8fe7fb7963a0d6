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

// Renaming onto a device or a pipe would replace it, and renaming onto a symbolic link would destroy the link.
bool is_special(const fs::path& path) {
  std::error_code error;
  const fs::file_status status = fs::status(path, error);
  return fs::exists(status) && !fs::is_regular_file(status);
}

// The target of `path`, if it is a symbolic link. Sets `error` if the target cannot be determined.
fs::path link_target(fs::path path, std::error_code& error) {
  constexpr int kMostLinks = 40;  // as many as Linux follows
  for (int links = 0; links < kMostLinks; ++links) {
    const fs::file_status status = fs::symlink_status(path, error);
    if (status.type() == fs::file_type::not_found) error.clear();
    if (error || !fs::is_symlink(status)) return path;
    const fs::path target = fs::read_symlink(path, error);
    if (error) return path;
    path = path.parent_path() / target;  // an absolute target replaces the whole path
  }
  error = std::make_error_code(std::errc::too_many_symbolic_link_levels);
  return path;
}

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
  const fs::path target = link_target(path, error);
  if (error) refuse(error.message());
  if (fs::exists(target, error) && access(target.c_str(), W_OK) != 0) refuse(std::strerror(errno));
  if (is_special(target)) return;
  const fs::path temporary = temporary_name(target);
  errno = 0;
  if (!write(temporary, "")) refuse(std::strerror(errno));
  fs::remove(temporary, error);
}

void write_file_atomically(const fs::path& path, const std::string& text) {
  const auto fail = [&](const std::string& why) {
    throw UnavailableError(
        fmt::format("writing '{}' failed: {}; free some space or choose another place", path.string(), why));
  };
  std::error_code error;
  const fs::path target = link_target(path, error);
  if (error) fail(error.message());
  const fs::path written = is_special(target) ? target : temporary_name(target);
  errno = 0;
  if (!write(written, text)) {
    const std::string why = std::strerror(errno);
    if (written != target) fs::remove(written, error);
    fail(why);
  }
  if (written == target) return;
  fs::rename(written, target, error);
  if (!error) return;
  const std::string why = error.message();
  fs::remove(written, error);
  fail(why);
}

}  // namespace flash_ladder
