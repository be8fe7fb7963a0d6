#include <algorithm>
#include <stdexcept>

#include "host/backward.h"
#include "host/versions.h"

namespace flash_ladder {
namespace {

constexpr std::string_view kKernels = "kernels/";
constexpr std::string_view kEnding = ".cu";

bool is_digit(char c) { return c >= '0' && c <= '9'; }

// A lower-case name that is a C++ identifier.
bool is_name(std::string_view text) {
  const auto fits = [](char c) { return (c >= 'a' && c <= 'z') || is_digit(c) || c == '_'; };
  return !text.empty() && text[0] >= 'a' && text[0] <= 'z' && std::all_of(text.begin(), text.end(), fits);
}

// "06_swizzle".
bool is_numbered(std::string_view stem) {
  return stem.size() > 3 && is_digit(stem[0]) && is_digit(stem[1]) && stem[2] == '_' && is_name(stem.substr(3)) &&
         stem.substr(0, 2) != "00";
}

std::string two_digits(int number) { return (number < 10 ? "0" : "") + std::to_string(number); }

// A function-local static, since registrations run before main in an unspecified order.
std::vector<Version>& registry() {
  static std::vector<Version> versions;
  return versions;
}

// Extensions, which have no number, come last.
bool comes_before(const Version& a, const Version& b) {
  if (a.is_extension() != b.is_extension()) return b.is_extension();
  if (series(a.track) != series(b.track)) return series(a.track) < series(b.track);
  return a.is_extension() ? a.name < b.name : a.number < b.number;
}

Version* with_id(const std::string& id) {
  for (Version& version : registry())
    if (kernel_id(version) == id) return &version;
  return nullptr;
}

std::string why_not_both(const Version& a, const Version& b) {
  return a.source + " and " + b.source + " are both version " + kernel_id(b) + "; give one of them another " +
         (b.is_extension() ? "name" : "number");
}

Configuration kept(const BasicConfiguration<const char*>& said) {
  return {.name = said.name,
          .dtype = said.dtype,
          .block_q = said.block_q,
          .block_kv = said.block_kv,
          .head_dim = said.head_dim,
          .head_dim_v = said.head_dim_v,
          .num_warps = said.num_warps,
          .stages = said.stages,
          .step_kv = said.step_kv,
          .smem_bytes = said.smem_bytes,
          .traits = said.traits,
          .workspace_bytes = said.workspace_bytes,
          .launch = said.launch,
          .fragments = said.fragments};
}

}  // namespace

Version version_of_file(std::string_view path) {
  // The last folder of that name, because a checkout may itself be inside another one.
  auto start = path.rfind(kKernels);
  while (start != std::string_view::npos && start > 0 && path[start - 1] != '/')
    start = path.rfind(kKernels, start - 1);
  if (start != std::string_view::npos && path.ends_with(kEnding)) {
    const std::string_view file = path.substr(start);
    const auto slash = file.rfind('/');
    const std::string_view folder = file.substr(kKernels.size(), slash + 1 - kKernels.size());
    const std::string_view stem = file.substr(slash + 1, file.size() - slash - 1 - kEnding.size());
    Version version;
    version.source = file;
    for (const auto& [its_folder, track] :
         {std::pair{std::string_view(""), Track::ladder}, std::pair{std::string_view("hopper/"), Track::hopper},
          std::pair{std::string_view("backward/"), Track::backward},
          std::pair{std::string_view("backward/hopper/"), Track::backward},
          std::pair{std::string_view("decoding/"), Track::decoding},
          std::pair{std::string_view("decoding/hopper/"), Track::decoding}}) {
      const std::string letter = series(track);
      if (folder != its_folder || !stem.starts_with(letter) || !is_numbered(stem.substr(letter.size()))) continue;
      const std::string_view numbered = stem.substr(letter.size());
      version.track = track;
      if (track == Track::backward) version.kind = ProblemKind::backward;
      if (track == Track::decoding) version.kind = ProblemKind::decoding;
      version.number = 10 * (numbered[0] - '0') + numbered[1] - '0';
      version.name = numbered.substr(3);
      return version;
    }
    if ((folder == "extensions/" || folder == "hopper/extensions/" || folder == "backward/extensions/" ||
         folder == "backward/hopper/extensions/") &&
        is_name(stem)) {
      version.track = Track::extension;
      if (folder.starts_with("backward/")) version.kind = ProblemKind::backward;
      version.name = stem;
      return version;
    }
  }
  throw std::invalid_argument(
      "'" + std::string(path) +
      "' is not the path of a kernel; allowed: kernels/NN_name.cu, kernels/hopper/NN_name.cu, "
      "kernels/backward/BNN_name.cu, kernels/backward/hopper/BNN_name.cu, kernels/decoding/DNN_name.cu, "
      "kernels/decoding/hopper/DNN_name.cu, "
      "kernels/extensions/name.cu, kernels/hopper/extensions/name.cu, kernels/backward/extensions/name.cu, "
      "kernels/backward/hopper/extensions/name.cu, with small letters, digits and _ in the name");
}

std::string series(Track track) { return track == Track::backward ? "B" : track == Track::decoding ? "D" : ""; }

bool in_one_series(const Version& a, const Version& b) {
  return !a.is_extension() && !b.is_extension() && series(a.track) == series(b.track);
}

std::string kernel_id(const Version& version) {
  return version.is_extension() ? version.name : series(version.track) + two_digits(version.number);
}

std::string label(const Version& version) {
  return version.is_extension() ? version.name : kernel_id(version) + "_" + version.name;
}

std::string title(const Version& version) {
  return version.is_extension() ? version.name : kernel_id(version) + " · " + version.name;
}

std::string code_namespace(const Version& version) {
  return version.is_extension() ? version.name : "v" + kernel_id(version);
}

const std::vector<Version>& versions() { return registry(); }

void announce(Version version) {
  auto& all = registry();
  if (const Version* other = with_id(kernel_id(version))) throw std::invalid_argument(why_not_both(*other, version));
  all.insert(std::upper_bound(all.begin(), all.end(), version, comes_before), std::move(version));
}

namespace {

// Adds a version, or completes it if it was announced.
void add(Version version, const std::vector<BasicConfiguration<const char*>>& configurations) {
  for (const BasicConfiguration<const char*>& configuration : configurations)
    version.configurations.push_back(kept(configuration));
  version.is_registered = true;
  Version* const announced = with_id(kernel_id(version));
  if (announced != nullptr && !announced->is_registered && announced->source == version.source)
    *announced = std::move(version);
  else
    announce(std::move(version));
}

}  // namespace

Registration::Registration(Description description) {
  Version version = version_of_file(description.source);
  version.extends = description.extends;
  version.architecture = description.architecture;
  version.most_queries = description.most_queries;
  version.preferred_up_to_keys = description.preferred_up_to_keys;
  version.solves = description.solves;
  add(std::move(version), description.configurations);
}

BackwardRegistration::BackwardRegistration(BackwardDescription description) {
  Version version = version_of_file(description.source);
  version.kind = ProblemKind::backward;
  version.extends = description.extends;
  version.architecture = description.architecture;
  version.deterministic = description.deterministic;
  version.solves = description.solves;
  add(std::move(version), description.configurations);
}

}  // namespace flash_ladder
