// Instructions that concern memory, barriers, control flow or several lanes: each file of this folder decodes some of
// them, next to the functions that execute them, and adds them to the table.
#pragma once

#include <cstdint>
#include <vector>

#include "emulator/decode/kernel_decoder.h"

namespace flash_ladder::emulator {

/// The table with all of them.
const OperationTable& operation_table();

void add_barrier_operations(OperationTable& table);
void add_call_operations(OperationTable& table);
void add_control_operations(OperationTable& table);
void add_copy_operations(OperationTable& table);
void add_exchange_operations(OperationTable& table);
void add_matrix_operations(OperationTable& table);
void add_mbarrier_operations(OperationTable& table);
void add_memory_operations(OperationTable& table);
void add_scalar_operations(OperationTable& table);
void add_value_operations(OperationTable& table);
void add_warpgroup_operations(OperationTable& table);
void add_wgmma_operations(OperationTable& table);

// Used for instructions of several files.

/// For instructions that have no effect here.
void nothing(CtaExecutor&, Warp&, const Instruction&, std::uint32_t);

/// Loads and stores of adjacent elements, one for each register.
Instruction& emit_load(KernelDecoder& decoder, ptx::Space space, const std::vector<int>& to, int address, bool wide,
                       std::int64_t offset, int bytes);
Instruction& emit_store(KernelDecoder& decoder, ptx::Space space, const std::vector<int>& values, int address,
                        bool wide, std::int64_t offset, int bytes);
/// Local memory: a load or a store of a .param variable of a call.
Instruction& emit_local_load(KernelDecoder& decoder, int to, std::uint64_t address, int bytes);
Instruction& emit_local_store(KernelDecoder& decoder, int from, std::uint64_t address, int bytes);
/// cp.async.mbarrier.arrive and bar.warp.sync.
void decode_arrive_when_copied(KernelDecoder& decoder);
/// cp.async.bulk and its variants.
void decode_bulk_copy(KernelDecoder& decoder);
void decode_ldmatrix(KernelDecoder& decoder);
/// st.async and red.async.
void decode_async_store(KernelDecoder& decoder);
void decode_warp_barrier(KernelDecoder& decoder);

/// The space that a part of an opcode names; nullopt if it names none.
std::optional<ptx::Space> named_space(std::string_view part);

}  // namespace flash_ladder::emulator
