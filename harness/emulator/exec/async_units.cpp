#include "emulator/exec/async_units.h"

#include <algorithm>

#include "emulator/exec/cta_executor.h"

namespace flash_ladder::emulator {

AsyncUnits::AsyncUnits(CtaExecutor& cta, std::size_t num_warps, std::size_t shared_bytes, int registers_per_thread)
    : proxy(cta, num_warps, shared_bytes),
      wgmma(cta, proxy, num_warps),
      copies(cta, proxy, num_warps),
      registers(cta, num_warps, registers_per_thread),
      cta_(cta) {}

void AsyncUnits::start() {
  proxy.start();
  wgmma.start();
  copies.start();
  registers.start();
}

void AsyncUnits::finish() {
  copies.finish();
  wgmma.finish();
}

void AsyncUnits::renumber(const Renumbering& renumbering) {
  proxy.renumber(renumbering);
  wgmma.renumber(renumbering);
  copies.renumber(renumbering);
}

std::vector<Role> AsyncUnits::roles() const {
  const std::vector<Warp>& warps = cta_.warps();
  std::vector<Role> roles;
  for (std::size_t first = 0; first < warps.size(); first += kWarpgroup) {
    const std::size_t end = std::min(first + kWarpgroup, warps.size());
    for (std::size_t w = first; w < end; ++w) {
      Role role{.warps = {}, .registers_at_launch = registers.at_launch(), .registers = registers.held_by(w)};
      for (std::size_t other = first; other < end; ++other) {
        role.loads |= warps[other].work.loads;
        role.multiplies |= warps[other].work.multiplies;
        role.stores |= warps[other].work.stores;
      }
      const auto same = std::ranges::find_if(roles, [&](const Role& known) {
        return known.loads == role.loads && known.multiplies == role.multiplies && known.stores == role.stores &&
               known.registers == role.registers;
      });
      Role& own = same != roles.end() ? *same : roles.emplace_back(std::move(role));
      own.warps.push_back(static_cast<int>(w));
    }
  }
  return roles;
}

std::string AsyncUnits::describe_wait(const Warp& warp, std::int32_t& at) const {
  std::string wait = registers.describe_wait(warp, at);
  return wait.empty() ? wgmma.describe_wait(warp, at) : wait;
}

}  // namespace flash_ladder::emulator
