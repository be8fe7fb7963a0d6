// The kernels' code, compiled when a command needs it.
#pragma once

#include <map>
#include <string>
#include <utility>
#include <vector>

#include "host/versions.h"

namespace flash_ladder {

/// Announces the kernels of this build, with what their files say of them. Does nothing in a program that is linked with
/// kernels.
void announce_kernels();

/// Loads the code of versions, after compiling what is missing or older than its sources, with progress on standard error.
/// Where that fails, the compiler's messages are printed, the version stays unregistered, and the reason is returned.
std::map<const Version*, std::string> provide_code(const std::vector<const Version*>& versions);

/// The version that `text` names (select_version()), with its code. Throws UnavailableError if it cannot be had.
const Version& select_with_code(const std::string& text);

/// Two versions that are compared, with their code.
std::pair<const Version&, const Version&> select_with_code(const std::string& a, const std::string& b);

/// The same for several (select_versions()). Those whose code cannot be had are left out, and standard error says why; throws
/// UnavailableError if none is left.
std::vector<const Version*> select_all_with_code(const std::string& text);

/// The same, and if it is a single version, the code of the version before it too. If only that cannot be had, standard error
/// says why, and it stays unregistered.
std::vector<const Version*> select_all_with_code_before(const std::string& text);

/// Whether select_all_with_code() has left out a version, so that not all of what was requested is done.
bool any_left_out();

}  // namespace flash_ladder
