// The GPU that a worker runs on.
#pragma once

#include <string>

#include "rules/protocol.h"
#include "rules/support.h"

namespace flash_ladder {

/// Selects the GPU that this process uses and describes it, even if it is too old. Throws UnavailableError if there is
/// no driver or no such GPU.
DeviceInfo describe_gpu(int ordinal, const Words& words = kFlags);

/// The same, but also throws UnavailableError for a GPU that is too old.
DeviceInfo open_gpu(int ordinal, const Words& words = kFlags);

/// The PCI bus id of a GPU: "00000000:3B:00.0".
std::string pci_bus_id(int ordinal);

}  // namespace flash_ladder
