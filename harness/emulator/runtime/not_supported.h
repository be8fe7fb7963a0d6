// The result of functions that the virtual GPU does not implement.
#pragma once

namespace flash_ladder::emulator::runtime {

/// Reports it on standard error, once, stores cudaErrorNotSupported as the last error, and returns it.
int answer_not_supported(const char* function, const char* why);

}  // namespace flash_ladder::emulator::runtime
