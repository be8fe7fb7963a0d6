// What is thrown for PTX that cannot be run.
#pragma once

#include <stdexcept>
#include <string>

namespace flash_ladder::emulator {

/// PTX that is malformed, or uses what the virtual GPU does not know. what() has the line of the PTX and, where the PTX was
/// compiled with -lineinfo, of the source.
class PtxError : public std::runtime_error {
 public:
  PtxError(const std::string& message, int ptx_line) : std::runtime_error(message), ptx_line_(ptx_line) {}
  int ptx_line() const { return ptx_line_; }

 private:
  int ptx_line_;
};

}  // namespace flash_ladder::emulator
