// Distributes work over the cores of the host.
#pragma once

#include <cstdint>
#include <functional>

namespace flash_ladder {

/// Called with the amount of work done, on the thread that started the work.
using Progress = std::function<void(std::int64_t done, std::int64_t total)>;

/// Calls work(0) … work(count - 1), each once, in any order, on `threads` threads (0: as many as the host has cores),
/// including the caller's. The first exception ends the work and is rethrown to the caller.
void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& work, const Progress& progress = {},
                  int threads = 0);

}  // namespace flash_ladder
