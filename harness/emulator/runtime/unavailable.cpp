// The functions of CUDA's runtime that the virtual GPU does not implement: textures, graphs, memory pools and so on. A
// program that uses one links, and gets the error when it calls it. CMake lists them (unavailable_calls.cmake).
//
// C's calling convention lets a function ignore its arguments, whatever they are. So this file does not include CUDA's
// headers, which declare these functions.
#include "emulator/runtime/not_supported.h"

#define UNAVAILABLE(name)                                                                                        \
  extern "C" int name(...) {                                                                                     \
    return flash_ladder::emulator::runtime::answer_not_supported(#name, "the virtual GPU does not support it."); \
  }
#define UNAVAILABLE_PER_THREAD(name, suffix)                                                                      \
  extern "C" int name##suffix(...) {                                                                              \
    return flash_ladder::emulator::runtime::answer_not_supported(#name,                                           \
                                                                 "compile without --default-stream per-thread."); \
  }

#include "unavailable_calls.inc"

UNAVAILABLE_PER_THREAD(__cudaLaunchKernel, _ptsz)
