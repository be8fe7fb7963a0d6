#include "app/up_to_date.h"

#include "app/selection.h"

namespace flash_ladder {

namespace fs = std::filesystem;

std::optional<std::string> newer_source(const std::vector<const Version*>& versions, const fs::path& source_tree) {
  std::error_code error;
  const auto built = fs::last_write_time(fs::read_symlink("/proc/self/exe"), error);
  std::vector<fs::path> files;
  for (const Version* version : versions) files.push_back(source_file(*version, source_tree));
  for (const auto& entry : fs::recursive_directory_iterator(source_tree / "common", error))
    if (entry.path().extension() == ".h") files.push_back(entry.path());
  for (const auto& file : files) {
    const auto written = fs::last_write_time(file, error);
    if (!error && written > built) return file.string();
  }
  return std::nullopt;
}

}  // namespace flash_ladder
