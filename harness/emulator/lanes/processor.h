// Whether the processor here has the instructions that the virtual GPU was compiled with.
#pragma once

namespace flash_ladder::emulator {

/// Ends the program with a message if it has not. Runs by itself, before main().
void require_processor();

}  // namespace flash_ladder::emulator
