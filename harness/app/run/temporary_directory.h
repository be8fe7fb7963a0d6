// A directory that exists for the lifetime of a scope.
#pragma once

#include <filesystem>

namespace flash_ladder {

class TemporaryDirectory {
 public:
  /// Throws UnavailableError if the directory cannot be created.
  TemporaryDirectory();
  ~TemporaryDirectory();
  TemporaryDirectory(const TemporaryDirectory&) = delete;
  TemporaryDirectory& operator=(const TemporaryDirectory&) = delete;
  const std::filesystem::path& path() const { return path_; }

 private:
  std::filesystem::path path_;
};

}  // namespace flash_ladder
