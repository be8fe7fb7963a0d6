// The lane loops are compiled once for each of these (with EMULATOR_INSTRUCTION_SET as the namespace), and the
// one that the processor has is chosen at run time.
#pragma once

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

#define FLASH_LADDER_DECLARE_LANES(name)              \
  namespace name {                                    \
  void add_integer_operations(LaneTable&);            \
  void add_compare_operations(LaneTable&);            \
  void add_float_operations(LaneTable&);              \
  void add_half_operations(LaneTable&);               \
  void add_convert_operations(LaneTable&);            \
  WarpFunctions warp_functions();                     \
  MemoryFunctions memory_functions();                 \
  inline void add_lane_operations(LaneTable& table) { \
    add_integer_operations(table);                    \
    add_compare_operations(table);                    \
    add_float_operations(table);                      \
    add_half_operations(table);                       \
    add_convert_operations(table);                    \
  }                                                   \
  }

FLASH_LADDER_DECLARE_LANES(portable)
FLASH_LADDER_DECLARE_LANES(avx2)
#undef FLASH_LADDER_DECLARE_LANES

// Too rare or too scalar to be worth several forms.
void add_rounding_operations(LaneTable& table);  // .rz, .rm, .rp
void add_math_operations(LaneTable& table);      // lg2, sin, cos, tanh

}  // namespace flash_ladder::emulator
