// The exception for PTX that cannot be run.
#pragma once

#include <stdexcept>
#include <string>

namespace flash_ladder::emulator {

/// PTX that is malformed, or uses a feature that the virtual GPU does not know. what() names the line of the PTX and,
/// if the PTX was compiled with -lineinfo, of the source.
class PtxError : public std::runtime_error {
 public:
  PtxError(const std::string& message, int ptx_line) : std::runtime_error(message), ptx_line_(ptx_line) {}
  int ptx_line() const { return ptx_line_; }

 private:
  int ptx_line_;
};

}  // namespace flash_ladder::emulator
