#include "sass/opcode_class.h"

#include <algorithm>

namespace flash_ladder {
namespace {

// CUDA Binary Utilities, "Instruction Set Reference", Ampere and Hopper. Opcodes that start with U do the same work
// once for the whole warp, in the uniform datapath.
struct OpcodeClass {
  std::string_view name;
  std::vector<std::string_view> opcodes;
};
const std::vector<OpcodeClass> kClasses = {
    {"tensor core", {"HMMA", "IMMA", "DMMA", "BMMA", "HGMMA", "QGMMA", "IGMMA", "BGMMA"}},
    {"fp32", {"FFMA", "FMUL", "FADD", "FMNMX", "FSETP", "FSET", "FSEL", "FCHK", "FSWZADD"}},
    {"fp16", {"HFMA2", "HADD2", "HMUL2", "HMNMX2", "HSETP2", "HSET2"}},
    {"special function", {"MUFU"}},
    {"conversion", {"F2FP", "F2F", "F2I", "I2F", "I2FP", "FRND"}},
    {"integer", {"IMAD",  "IADD3", "VIADD", "LEA",    "LOP3", "SHF",    "PRMT", "ISETP", "IMNMX", "VIMNMX", "IABS",
                 "BMSK",  "SGXT",  "POPC",  "FLO",    "BREV", "PLOP3",  "SEL",  "LOP",   "UIMAD", "UIADD3", "ULEA",
                 "ULOP3", "USHF",  "UPRMT", "UISETP", "USEL", "UPLOP3", "UFLO", "UPOPC", "UBMSK", "USGXT"}},
    {"move", {"MOV", "CS2R", "S2R", "S2UR", "R2UR", "P2R", "R2P", "LDC", "UMOV", "ULDC"}},
    {"shared memory", {"LDS", "STS", "LDSM", "STSM", "ATOMS"}},
    {"TMA", {"UTMALDG", "UTMASTG", "UTMAREDG", "UTMAPF", "UTMACCTL", "UTMACMDFLUSH", "UBLKCP", "UBLKRED", "UBLKPF"}},
    {"global memory", {"LDG", "STG", "LDGSTS", "LD", "ST", "ATOM", "ATOMG", "RED"}},
    {"local memory", {"LDL", "STL"}},
    {"warp exchange", {"SHFL", "VOTE", "VOTEU", "MATCH", "REDUX", "ELECT"}},
    {"synchronisation",
     {"BAR", "DEPBAR", "LDGDEPBAR", "ARRIVES", "SYNCS", "WARPSYNC", "MEMBAR", "ERRBAR", "CCTL", "NANOSLEEP",
      "WARPGROUP", "WARPGROUPSET", "FENCE", "UCGABAR_ARV", "UCGABAR_WAIT", "USETMAXREG"}},
    {"control", {"BRA", "BRX", "JMP", "JMX", "CALL", "RET", "EXIT", "BSSY", "BSYNC", "BREAK", "BMOV", "YIELD", "NOP"}},
    {"other", {}},
};

}  // namespace

std::string work_opcode(const OpcodeCounts& counts) {
  for (const char* opcode : {"QGMMA", "HGMMA", "HMMA", "FFMA"})
    if (const auto found = counts.find(opcode); found != counts.end() && found->second > 0) return opcode;
  return "";
}

const std::vector<std::string>& opcode_classes() {
  static const std::vector<std::string> names = [] {
    std::vector<std::string> all;
    for (const OpcodeClass& candidate : kClasses) all.emplace_back(candidate.name);
    return all;
  }();
  return names;
}

std::string opcode_class(std::string_view opcode) {
  for (const OpcodeClass& candidate : kClasses)
    if (std::find(candidate.opcodes.begin(), candidate.opcodes.end(), opcode) != candidate.opcodes.end())
      return std::string(candidate.name);
  return "other";
}

}  // namespace flash_ladder
