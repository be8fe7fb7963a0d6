// The purpose of each SASS opcode, for summing up counts.
#pragma once

#include <string>
#include <string_view>
#include <vector>

#include "sass/sass_code.h"

namespace flash_ladder {

/// All classes, in display order: "tensor core", "fp32", … , "other".
const std::vector<std::string>& opcode_classes();

/// The opcode that measures the work of a kernel or a loop: the first that occurs of QGMMA or HGMMA (wgmma), HMMA
/// (mma), or, before 04, FFMA; empty if none of them does.
std::string work_opcode(const OpcodeCounts& counts);

/// The class of an opcode (without modifiers); "other" if it is not in the table.
std::string opcode_class(std::string_view opcode);

}  // namespace flash_ladder
