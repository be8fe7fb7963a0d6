// Compiled without the instructions whose presence it checks.
#include "emulator/lanes/processor.h"

#include <unistd.h>

#include <cstdlib>
#include <string_view>

namespace flash_ladder::emulator {

#ifdef FLASH_LADDER_X86_64_V3

[[gnu::constructor(101)]] void require_processor() {
  __builtin_cpu_init();
  if (__builtin_cpu_supports("avx2") && __builtin_cpu_supports("fma")) return;
  constexpr std::string_view kMessage =
      "The virtual GPU was built for processors with AVX2 and FMA, which this one lacks. Build it on this machine, or for all "
      "machines: cmake --preset default -DFLASH_LADDER_X86_64_V3=OFF\n";
  [[maybe_unused]] const auto written = write(STDERR_FILENO, kMessage.data(), kMessage.size());
  std::_Exit(EXIT_FAILURE);
}

#else

void require_processor() {}

#endif

}  // namespace flash_ladder::emulator
