#include "emulator/ptx/names.h"

#include <unordered_map>

namespace flash_ladder::emulator::ptx {

const std::unordered_map<std::string_view, SpecialRegister>& special_registers() {
  using enum SpecialRegister;
  static const std::unordered_map<std::string_view, SpecialRegister> names = {
      {"%tid.x", tid_x},
      {"%tid.y", tid_y},
      {"%tid.z", tid_z},
      {"%ntid.x", ntid_x},
      {"%ntid.y", ntid_y},
      {"%ntid.z", ntid_z},
      {"%ctaid.x", ctaid_x},
      {"%ctaid.y", ctaid_y},
      {"%ctaid.z", ctaid_z},
      {"%nctaid.x", nctaid_x},
      {"%nctaid.y", nctaid_y},
      {"%nctaid.z", nctaid_z},
      {"%laneid", laneid},
      {"%warpid", warpid},
      {"%nwarpid", nwarpid},
      {"%smid", smid},
      {"%nsmid", nsmid},
      {"%gridid", gridid},
      {"%lanemask_eq", lanemask_eq},
      {"%lanemask_le", lanemask_le},
      {"%lanemask_lt", lanemask_lt},
      {"%lanemask_ge", lanemask_ge},
      {"%lanemask_gt", lanemask_gt},
      {"%clusterid.x", clusterid_x},
      {"%clusterid.y", clusterid_y},
      {"%clusterid.z", clusterid_z},
      {"%nclusterid.x", nclusterid_x},
      {"%nclusterid.y", nclusterid_y},
      {"%nclusterid.z", nclusterid_z},
      {"%cluster_ctaid.x", cluster_ctaid_x},
      {"%cluster_ctaid.y", cluster_ctaid_y},
      {"%cluster_ctaid.z", cluster_ctaid_z},
      {"%cluster_ctarank", cluster_ctarank},
      {"%cluster_nctaid.x", cluster_nctaid_x},
      {"%cluster_nctaid.y", cluster_nctaid_y},
      {"%cluster_nctaid.z", cluster_nctaid_z},
      {"%cluster_nctarank", cluster_nctarank},
      {"%dynamic_smem_size", dynamic_smem_size},
      {"%total_smem_size", total_smem_size},
      {"%envreg1", envreg1},
      {"%envreg2", envreg2},
      {"%clock", clock},
      {"%clock_hi", clock_hi},
      {"%clock64", clock64},
      {"%globaltimer", globaltimer},
      {"%globaltimer_lo", globaltimer_lo},
      {"%globaltimer_hi", globaltimer_hi},
  };
  return names;
}

Space space_of(std::string_view directive) {
  if (directive == ".global") return Space::global;
  if (directive == ".const") return Space::constant;
  if (directive == ".shared") return Space::shared;
  if (directive == ".local") return Space::local;
  if (directive == ".param") return Space::param;
  return Space::generic;
}

Type type_of(std::string_view name) {
  static const std::unordered_map<std::string_view, Type> types = {
      {"b8", {'b', 8}},           {"b16", {'b', 16}},  {"b32", {'b', 32}},          {"b64", {'b', 64}},
      {"b128", {'b', 128}},       {"u8", {'u', 8}},    {"u16", {'u', 16}},          {"u32", {'u', 32}},
      {"u64", {'u', 64}},         {"s8", {'s', 8}},    {"s16", {'s', 16}},          {"s32", {'s', 32}},
      {"s64", {'s', 64}},         {"f16", {'f', 16}},  {"f32", {'f', 32}},          {"f64", {'f', 64}},
      {"f16x2", {'f', 32, true}}, {"bf16", {'h', 16}}, {"bf16x2", {'h', 32, true}}, {"tf32", {'t', 32}},
      {"pred", {'p', 1}},
  };
  const auto found = types.find(name);
  return found == types.end() ? Type{.kind = 0} : found->second;
}

}  // namespace flash_ladder::emulator::ptx
