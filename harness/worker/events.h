// The worker's side of the protocol: writes events to a file descriptor, one JSON object per line.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "worker/parallel.h"

namespace flash_ladder {

/// kEventFileDescriptor if it is open, otherwise standard output. Must be called before anything else opens a file.
int event_file_descriptor();

/// Writes the events listed in protocol.h. For use by one thread.
class EventWriter {
 public:
  explicit EventWriter(int file_descriptor) : file_descriptor_(file_descriptor) {}

  /// Throws std::system_error if the reader has gone.
  void write(const nlohmann::json& event);

  /// Writes a progress event, unless an event with the same text was written only a moment ago.
  void progress(const std::string& what, std::int64_t done, std::int64_t total);

  /// Returns progress() with the text already bound.
  Progress reporter(std::string what);

 private:
  int file_descriptor_;
  std::string last_what_;
  std::chrono::steady_clock::time_point last_time_;
};

}  // namespace flash_ladder
