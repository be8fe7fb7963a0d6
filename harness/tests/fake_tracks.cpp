// A made-up version of each track, for tests that a new kernel is found because its file exists: no command may know
// more about a version than its registration says. Only a fake worker ever runs them.
#include "registry.h"

namespace flash_ladder {
namespace {

cudaError_t never_launched(const AttentionArgs&, cudaStream_t) { return cudaErrorNotSupported; }
cudaError_t never_launched_either(const ExtendedArgs&, cudaStream_t) { return cudaErrorNotSupported; }

// `function` is the mangled name of its __global__ function.
BasicConfiguration<const char*> made_up(const char* function, Dtype dtype, int smem_kib, Launch launch) {
  return {.name = "64x64",
          .dtype = dtype,
          .block_q = 64,
          .block_kv = 64,
          .head_dim = 128,
          .head_dim_v = 128,
          .num_warps = 4,
          .stages = 1,
          .step_kv = 64,
          .smem_bytes = smem_kib * 1024,
          .traits = function,
          .workspace_bytes = no_workspace,
          .launch = launch};
}

const Registration extension({
    .source = "kernels/extensions/causal.cu",
    .extends = "01",
    .solves = {.causal = true, .any_length = true},
    .configurations = {made_up("N12flash_ladder6causal13causal_kernelE", Dtype::fp16, 48, never_launched_either),
                       made_up("N12flash_ladder6causal13causal_kernelE", Dtype::bf16, 48, never_launched_either)},
});

const Registration hopper({
    .source = "kernels/hopper/02_wgmma.cu",
    .architecture = Architecture::sm_90a,
    // More than an SM of sm_80 has.
    .configurations = {made_up("N12flash_ladder3v0212wgmma_kernelE", Dtype::fp16, 200, never_launched),
                       made_up("N12flash_ladder3v0212wgmma_kernelE", Dtype::bf16, 200, never_launched)},
});

const Registration ladder({
    .source = "kernels/01_first.cu",
    .configurations = {made_up("N12flash_ladder3v0112first_kernelE", Dtype::fp16, 48, never_launched),
                       made_up("N12flash_ladder3v0112first_kernelE", Dtype::bf16, 48, never_launched)},
});

}  // namespace
}  // namespace flash_ladder
