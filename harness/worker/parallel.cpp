#include "worker/parallel.h"

#include <algorithm>
#include <atomic>
#include <exception>
#include <mutex>
#include <thread>
#include <vector>

namespace flash_ladder {

void parallel_for(std::int64_t count, const std::function<void(std::int64_t)>& work, const Progress& progress,
                  int threads) {
  if (threads == 0) threads = std::max(1u, std::thread::hardware_concurrency());
  std::atomic<std::int64_t> next = 0, done = 0;
  std::exception_ptr failure;
  std::mutex failure_mutex;

  const auto run = [&](bool report) {
    try {
      for (std::int64_t i = next++; i < count; i = next++) {
        if (report && progress) progress(done, count);
        work(i);
        ++done;
      }
    } catch (...) {
      const std::lock_guard lock(failure_mutex);
      if (!failure) failure = std::current_exception();
      next = count;  // the other threads finish their current piece
    }
  };
  {
    std::vector<std::jthread> helpers;
    for (std::int64_t i = 1; i < std::min<std::int64_t>(threads, count); ++i) helpers.emplace_back(run, false);
    run(true);
  }  // joins
  if (failure) std::rethrow_exception(failure);
  if (progress) progress(count, count);
}

}  // namespace flash_ladder
