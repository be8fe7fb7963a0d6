#include "app/run/temporary_directory.h"

#include <fmt/format.h>

#include <cerrno>
#include <cstdlib>
#include <cstring>
#include <string>

#include "errors.h"

namespace flash_ladder {

TemporaryDirectory::TemporaryDirectory() {
  std::error_code error;
  const auto parent = std::filesystem::temp_directory_path(error);
  std::string name = ((error ? std::filesystem::path("/tmp") : parent) / "flash-ladder-XXXXXX").string();
  if (!mkdtemp(name.data()))
    throw UnavailableError(
        fmt::format("cannot create a temporary directory '{}': {}; point TMPDIR to one that you may write to", name,
                    std::strerror(errno)));
  path_ = name;
}

TemporaryDirectory::~TemporaryDirectory() {
  std::error_code ignored;
  std::filesystem::remove_all(path_, ignored);
}

}  // namespace flash_ladder
