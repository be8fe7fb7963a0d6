#include "modules/modules.h"

#include <dlfcn.h>
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <algorithm>
#include <fstream>

#include "errors.h"

namespace flash_ladder {

namespace fs = std::filesystem;

fs::path module_folder() { return fs::read_symlink("/proc/self/exe").parent_path() / "kernels"; }

std::vector<fs::path> listed_kernels(const fs::path& folder) {
  std::vector<fs::path> files;
  std::ifstream list(folder / "list.txt");
  for (std::string line; std::getline(list, line);)
    if (!line.empty()) files.emplace_back(line);
  return files;
}

fs::path module_file(const Version& version, const fs::path& folder) { return folder / (label(version) + ".so"); }

void load_module(const Version& version, const fs::path& folder) {
  if (version.is_registered) return;
  const fs::path file = module_file(version, folder);
  std::error_code error;
  if (!fs::exists(file, error))
    throw UnavailableError(fmt::format("{} is not built: {} is missing; scripts/harness --kernel {} builds it",
                                       version.source, file.string(), kernel_id(version)));
  // Lazy: the harness has none of the CUDA functions that only a launch calls.
  if (dlopen(file.c_str(), RTLD_LAZY | RTLD_LOCAL) == nullptr)
    throw UnavailableError(
        fmt::format("{} cannot be loaded: {}; delete it, and scripts/harness --kernel {} builds it anew", file.string(),
                    dlerror(), kernel_id(version)));
  if (!version.is_registered)
    throw UnavailableError(
        fmt::format("{} does not register itself as version {}; end the file with a Registration whose "
                    ".source is __FILE__, as the other kernels do",
                    version.source, kernel_id(version)));
  if (const auto why = why_not_its_own_code(version)) throw UnavailableError(*why);
  if (const auto why = why_extends_none(version)) throw UnavailableError(*why);
}

std::optional<std::string> why_not_its_own_code(const Version& version) {
  const std::string own = code_namespace(version);
  const std::string mangled = fmt::format("N12flash_ladder{}{}", own.size(), own);  // flash_ladder::own::…
  for (const Configuration& configuration : version.configurations)
    if (!configuration.traits.starts_with(mangled))
      return fmt::format(
          "{}: the code of configuration {} ({}) is not in namespace flash_ladder::{}; put all of the "
          "version's code there, and build again",
          version.source, configuration.name, configuration.traits, own);
  return std::nullopt;
}

std::optional<std::string> why_extends_none(const Version& version) {
  std::vector<std::string> ids;
  for (const Version& other : versions()) ids.push_back(kernel_id(other));
  if (!version.is_extension() || std::ranges::find(ids, version.extends) != ids.end()) return std::nullopt;
  return fmt::format("{} extends '{}', which is no version; write one of {}, and build again", version.source,
                     version.extends, fmt::join(ids, ", "));
}

}  // namespace flash_ladder
