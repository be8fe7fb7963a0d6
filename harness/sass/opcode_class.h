// What SASS opcodes are for, to sum up counts of them.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sass/sass_code.h"

namespace flash_ladder {

/// All classes, in the order in which to show them: "tensor core", "fp32", … , "other".
const std::vector<std::string>& opcode_classes();

/// The opcode by which the work of a kernel or a loop is told: QGMMA or HGMMA (wgmma), HMMA (mma), or before 04 FFMA, the first of which
/// there is any; empty where there is none.
std::string work_opcode(const OpcodeCounts& counts);

/// The class of an opcode (without modifiers); "other" for one that is in no table.
std::string opcode_class(std::string_view opcode);

}  // namespace flash_ladder
