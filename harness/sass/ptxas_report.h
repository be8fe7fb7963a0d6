// What ptxas -v reports for each __global__ function.
#pragma once

#include <map>
#include <string>
#include <string_view>

namespace flash_ladder {

struct FunctionResources {
  int registers = 0;          // per thread
  int spill_bytes = 0;        // stores + loads, per thread
  int static_smem_bytes = 0;  // per CTA
};

/// Mangled name → resources. A function's spills include those of the device functions compiled with it.
std::map<std::string, FunctionResources> parse_ptxas_report(std::string_view report);

}  // namespace flash_ladder
