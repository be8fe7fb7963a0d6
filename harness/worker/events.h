// The worker's side of the protocol: events, one JSON object a line, on a file descriptor.
#pragma once

#include <chrono>
#include <cstdint>
#include <nlohmann/json_fwd.hpp>
#include <string>

#include "worker/parallel.h"

namespace flash_ladder {

/// kEventFileDescriptor if it is open, else standard output. To be asked before anything else opens a file.
int event_file_descriptor();

/// Writes events as protocol.h lists them. Used by one thread.
class EventWriter {
 public:
  explicit EventWriter(int file_descriptor) : file_descriptor_(file_descriptor) {}

  /// Throws std::system_error when nobody listens any more.
  void write(const nlohmann::json& event);

  /// Writes a progress event, unless one with the same text was written just now.
  void progress(const std::string& what, std::int64_t done, std::int64_t total);

  /// progress() with the text given once.
  Progress reporter(std::string what);

 private:
  int file_descriptor_;
  std::string last_what_;
  std::chrono::steady_clock::time_point last_time_;
};

}  // namespace flash_ladder
