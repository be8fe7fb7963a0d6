// The answer of functions that the virtual GPU does not have.
#pragma once

namespace flash_ladder::emulator::runtime {

/// Says so on standard error, once, remembers cudaErrorNotSupported as the last error, and returns it.
int answer_not_supported(const char* function, const char* why);

}  // namespace flash_ladder::emulator::runtime
