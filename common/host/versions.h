// The list of all versions: the CLI, the tests, the recorder, the plots and the docs read it. To add a version, add a file.
//
// A program that is linked with kernels knows them from the start. Other programs announce them, and learn the rest when a
// kernel's code is loaded (harness/modules/).
#pragma once

#include <string>
#include <string_view>
#include <utility>
#include <vector>

#include "host/registration.h"

namespace flash_ladder {

using Configuration = BasicConfiguration<std::string>;

/// What a version can solve, by name.
inline constexpr std::pair<const char*, bool Solves::*> kSolves[] = {
    {"head_dim_v", &Solves::head_dim_v}, {"causal", &Solves::causal},
    {"any_length", &Solves::any_length}, {"kv_heads", &Solves::kv_heads},
    {"window", &Solves::window},         {"lengths", &Solves::lengths},
    {"packed", &Solves::packed},         {"paged", &Solves::paged},
    {"append", &Solves::append},         {"rotary", &Solves::rotary},
    {"fp8_cache", &Solves::fp8_cache},   {"scores", &Solves::scores},
    {"dropout", &Solves::dropout},       {"log_sum_exp", &Solves::log_sum_exp}};
static_assert(std::size(kSolves) == sizeof(Solves), "every member of Solves is in kSolves");

/// The folder that contains a version's file.
enum class Track {
  ladder,     // kernels/NN_name.cu
  hopper,     // kernels/hopper/NN_name.cu
  backward,   // kernels/backward/BNN_name.cu, kernels/backward/hopper/BNN_name.cu
  decoding,   // kernels/decoding/DNN_name.cu, kernels/decoding/hopper/DNN_name.cu
  extension,  // extensions/name.cu in kernels/, kernels/hopper/ or kernels/backward/
};

/// What a version computes. harness/problem/kind.h describes each kind.
enum class ProblemKind {
  forward,   // O
  backward,  // dQ, dK and dV: launched with BackwardArgs (host/backward.h)
  decoding,  // O, for few queries and many keys
};

/// One rung of the ladder, or an extension of one.
struct Version {
  // From the path of its file.
  Track track = Track::ladder;
  int number = 0;      // 6, and 1 for B01 and D01; 0: an extension has none
  std::string name;    // "swizzle"
  std::string source;  // from the root of the project: "kernels/06_swizzle.cu"
  ProblemKind kind = ProblemKind::forward;
  // The rest of its Description. Until its code registers it, there are no configurations, and the other fields are what the
  // program that announced it knows.
  std::string extends = "";
  Architecture architecture = Architecture::sm_80;
  int most_queries = 0;
  int preferred_up_to_keys = 0;
  bool deterministic = true;  // whether repeated launches agree bit for bit: only a backward version may do otherwise
  Solves solves = {};
  std::vector<Configuration> configurations;
  bool is_registered = false;

  bool is_extension() const { return track == Track::extension; }
};

/// What precedes the numbers of a track: "B" for backward, "D" for decoding, and nothing for the ladder and the Hopper track, which share one
/// series of numbers.
std::string series(Track track);
/// Whether the numbers of both versions are in one series. False for extensions, which have none.
bool in_one_series(const Version& a, const Version& b);

/// Its name in --kernel, JSON and requests: "06", "B01", "D01", "causal".
std::string kernel_id(const Version& version);
/// The name of its file, and of its profiles: "06_swizzle", "causal".
std::string label(const Version& version);
/// The heading of its study: "06 · swizzle", "causal".
std::string title(const Version& version);
/// The namespace of its code inside flash_ladder: "v06", "causal".
std::string code_namespace(const Version& version);

/// A version of which only the path of its file is known; the last folder `kernels` in it is the project's. Throws
/// std::invalid_argument, which lists the allowed forms, if the path is not that of a kernel file.
Version version_of_file(std::string_view path);

/// Adds a version whose code is loaded later. Throws std::invalid_argument for a second version with the same number or name.
void announce(Version version);

/// All announced and registered versions: each series in order of number, then the extensions by name. Pointers to them
/// stay valid when an announced version is registered.
const std::vector<Version>& versions();

}  // namespace flash_ladder
