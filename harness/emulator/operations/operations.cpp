#include "emulator/operations/operations.h"

namespace flash_ladder::emulator {

const OperationTable& operation_table() {
  static const OperationTable table = [] {
    OperationTable operations;
    add_barrier_operations(operations);
    add_call_operations(operations);
    add_control_operations(operations);
    add_copy_operations(operations);
    add_exchange_operations(operations);
    add_matrix_operations(operations);
    add_mbarrier_operations(operations);
    add_memory_operations(operations);
    add_scalar_operations(operations);
    add_value_operations(operations);
    add_warpgroup_operations(operations);
    add_wgmma_operations(operations);
    return operations;
  }();
  return table;
}

void nothing(CtaExecutor&, Warp&, const Instruction&, std::uint32_t) {}

}  // namespace flash_ladder::emulator
