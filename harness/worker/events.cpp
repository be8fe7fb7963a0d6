#include "worker/events.h"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <nlohmann/json.hpp>
#include <system_error>
#include <utility>

#include "rules/protocol.h"

namespace flash_ladder {

int event_file_descriptor() {
  return fcntl(kEventFileDescriptor, F_GETFD) == -1 ? STDOUT_FILENO : kEventFileDescriptor;
}

void EventWriter::write(const nlohmann::json& event) {
  // A message may contain bytes that are not UTF-8, such as a file name; they must not prevent it from arriving.
  const std::string line = event.dump(-1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
  for (std::size_t written = 0; written < line.size();) {
    const ssize_t bytes = ::write(file_descriptor_, line.data() + written, line.size() - written);
    if (bytes < 0 && errno == EINTR) continue;
    if (bytes < 0) throw std::system_error(errno, std::generic_category(), "writing an event");
    written += bytes;
  }
}

void EventWriter::progress(const std::string& what, std::int64_t done, std::int64_t total) {
  using std::chrono::steady_clock, std::chrono::milliseconds;
  const auto now = steady_clock::now();
  if (what == last_what_ && done < total && now - last_time_ < milliseconds(50)) return;
  write({{"event", "progress"}, {"what", what}, {"done", done}, {"total", total}});
  last_what_ = what;
  last_time_ = now;
}

Progress EventWriter::reporter(std::string what) {
  return [this, what = std::move(what)](std::int64_t done, std::int64_t total) { progress(what, done, total); };
}

}  // namespace flash_ladder
