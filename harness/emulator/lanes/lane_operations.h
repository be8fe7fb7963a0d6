// The operations of lane_table.h, by the file that defines them.
#pragma once

#include "emulator/lanes/lane_table.h"

namespace flash_ladder::emulator {

void add_integer_operations(LaneTable& table);
void add_compare_operations(LaneTable& table);
void add_float_operations(LaneTable& table);
void add_half_operations(LaneTable& table);
void add_convert_operations(LaneTable& table);
void add_rounding_operations(LaneTable& table);  // .rz, .rm, .rp
void add_math_operations(LaneTable& table);      // lg2, sin, cos, tanh

}  // namespace flash_ladder::emulator
