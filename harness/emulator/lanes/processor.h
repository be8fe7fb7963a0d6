// Checks that the processor has the instructions for which the virtual GPU was compiled.
#pragma once

namespace flash_ladder::emulator {

/// Ends the program with a message if it does not. Runs automatically before main().
void require_processor();

}  // namespace flash_ladder::emulator
