// Dependent launches: a kernel may begin while the one before it in the stream is still running. PTX ISA,
// griddepcontrol; CUDA C++ Programming Guide, "Programmatic Dependent Launch and Synchronization".
#pragma once

namespace flash_ladder {

/// Allows the next kernel to begin once every CTA of this one has called this or has ended, if the host launches it as a dependent
/// one. It says nothing about memory.
__device__ inline void let_next_kernel_begin() { asm volatile("griddepcontrol.launch_dependents;"); }

/// In a kernel that was launched as a dependent one: waits until the kernel before it has ended, and everything that it has written
/// is visible. Every thread that reads this has to wait. In other kernels it does nothing.
__device__ inline void wait_for_previous_kernel() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

}  // namespace flash_ladder
