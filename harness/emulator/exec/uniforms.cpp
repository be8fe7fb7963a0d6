#include "emulator/exec/uniforms.h"

#include <cstdint>
#include <cstring>
#include <optional>
#include <type_traits>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {
namespace {

using enum ptx::SpecialRegister;

// Whether its value may differ in the next CTA that the same executor runs.
bool may_depend_on_cta(ptx::SpecialRegister which) {
  return !((which >= tid_x && which <= ntid_z) || (which >= nctaid_x && which <= nwarpid) ||
           (which >= lanemask_eq && which <= lanemask_gt));
}

// The value in a thread, if it differs between the threads of a CTA.
std::optional<std::uint64_t> value_of_thread(ptx::SpecialRegister which, const Dim3& block, std::uint32_t warp,
                                             std::uint32_t lane) {
  const std::uint32_t thread = warp * kWarpSize + lane;
  switch (which) {
    case tid_x:
      return thread % block.x;
    case tid_y:
      return thread / block.x % block.y;
    case tid_z:
      return thread / block.x / block.y;
    case laneid:
      return lane;
    case warpid:
      return warp;
    case lanemask_eq:
      return 1u << lane;
    case lanemask_lt:
      return (1u << lane) - 1;
    case lanemask_le:
      return (2u << lane) - 1;
    case lanemask_gt:
      return ~((2u << lane) - 1);
    case lanemask_ge:
      return ~((1u << lane) - 1);
    default:
      return std::nullopt;
  }
}

// The value in all threads of a launch, or nullopt.
std::optional<std::uint64_t> value_of_launch(ptx::SpecialRegister which, CtaExecutor& cta) {
  const LaunchContext& context = cta.context();
  const Dim3 &block = context.config.block, &grid = context.config.grid, &cluster = context.cluster;
  switch (which) {
    case ntid_x:
      return block.x;
    case ntid_y:
      return block.y;
    case ntid_z:
      return block.z;
    case nctaid_x:
      return grid.x;
    case nctaid_y:
      return grid.y;
    case nctaid_z:
      return grid.z;
    case nwarpid:
      return (block.x * block.y * block.z + kWarpSize - 1) / kWarpSize;
    case nsmid:
    case one:
      return 1;
    case nclusterid_x:
      return grid.x / cluster.x;
    case nclusterid_y:
      return grid.y / cluster.y;
    case nclusterid_z:
      return grid.z / cluster.z;
    case cluster_nctaid_x:
      return cluster.x;
    case cluster_nctaid_y:
      return cluster.y;
    case cluster_nctaid_z:
      return cluster.z;
    case dynamic_smem_size:
      return context.config.dynamic_shared_bytes;
    case total_smem_size:
      return cta.memory().shared_bytes() - context.kernel.reserved_shared_bytes + kSharedBase;
    case envreg1:
      return context.config.grid_workspace >> 32;
    case envreg2:
      return context.config.grid_workspace & 0xffffffff;
    default:
      return std::nullopt;
  }
}

// The value in all threads of a CTA.
std::uint64_t value_of_cta(ptx::SpecialRegister which, CtaExecutor& cta) {
  const Dim3 &at = cta.cta(), &cluster = cta.context().cluster;
  switch (which) {
    case ctaid_x:
      return at.x;
    case ctaid_y:
      return at.y;
    case ctaid_z:
      return at.z;
    case clusterid_x:
      return at.x / cluster.x;
    case clusterid_y:
      return at.y / cluster.y;
    case clusterid_z:
      return at.z / cluster.z;
    case cluster_ctaid_x:
      return at.x % cluster.x;
    case cluster_ctaid_y:
      return at.y % cluster.y;
    case cluster_ctaid_z:
      return at.z % cluster.z;
    case cluster_ctarank:
      return cta.cluster().rank();
    case cluster_nctarank:
      return cta.cluster().size();
    default:
      return value_of_launch(which, cta).value_or(0);
  }
}

// Fills a register with value(lane).
template <typename F>
void fill(std::byte* to, Slot slot, F value) {
  const auto fill_lanes = [&](auto* lanes) {
    for (std::uint32_t lane = 0; lane < kWarpSize; ++lane)
      lanes[lane] = static_cast<std::remove_pointer_t<decltype(lanes)>>(value(lane));
  };
  switch (slot) {
    case Slot::b16:
      return fill_lanes(reinterpret_cast<std::uint16_t*>(to));
    case Slot::b32:
      return fill_lanes(reinterpret_cast<std::uint32_t*>(to));
    default:
      return fill_lanes(reinterpret_cast<std::uint64_t*>(to));
  }
}

}  // namespace

void fill_uniforms(CtaExecutor& cta, bool again) {
  const Dim3& block = cta.context().config.block;
  for (Warp& warp : cta.warps()) {
    for (const UniformSlot& slot : cta.context().kernel.uniforms) {
      if (again && !(slot.special && may_depend_on_cta(slot.special_register))) continue;
      std::byte* const to = warp.registers + slot.offset;
      if (slot.slot == Slot::predicate) {
        std::memcpy(to, &slot.value, 4);
      } else if (!slot.special) {
        fill(to, slot.slot, [&](std::uint32_t) { return slot.value; });
      } else {
        const std::uint64_t of_cta = value_of_cta(slot.special_register, cta);
        fill(to, slot.slot, [&](std::uint32_t lane) {
          return value_of_thread(slot.special_register, block, static_cast<std::uint32_t>(warp.index), lane)
              .value_or(of_cta);
        });
      }
    }
  }
}

}  // namespace flash_ladder::emulator
