#include "app/run/up_to_date.h"

#include "app/options/selection.h"
#include "modules/modules.h"

namespace flash_ladder {

namespace fs = std::filesystem;

std::optional<std::string> newer_source(const std::vector<const Version*>& versions, const fs::path& source_tree) {
  std::error_code error;
  const auto time_of = [&](const fs::path& file) { return fs::last_write_time(file, error); };
  std::vector<fs::path> headers;
  for (const auto& entry : fs::recursive_directory_iterator(source_tree / "common", error))
    if (entry.path().extension() == ".h") headers.push_back(entry.path());
  for (const Version* version : versions) {
    auto built = time_of(module_file(*version, module_folder()));
    if (error) built = time_of(fs::read_symlink("/proc/self/exe"));  // which is linked with it
    std::vector<fs::path> files = headers;
    files.insert(files.begin(), source_file(*version, source_tree));
    for (const auto& file : files) {
      const auto written = time_of(file);
      if (!error && written > built) return file.string();
    }
  }
  return std::nullopt;
}

}  // namespace flash_ladder
