// Two made-up versions for tests of the command line: one with several configurations, like the tuned versions of the
// ladder, and one with a single configuration. Only a fake worker ever runs them.
#include "registry.h"

namespace flash_ladder {
namespace {

cudaError_t never_launched(const AttentionArgs&, cudaStream_t) { return cudaErrorNotSupported; }

// `traits`: a name that no compiler would generate.
BasicConfiguration<const char*> made_up(const char* name, const char* traits, Dtype dtype, int block_q, int block_kv,
                                        int num_warps, int smem_kib) {
  return {.name = name,
          .dtype = dtype,
          .block_q = block_q,
          .block_kv = block_kv,
          .head_dim = 128,
          .head_dim_v = 128,
          .num_warps = num_warps,
          .stages = 2,
          .step_kv = 16,
          .smem_bytes = smem_kib * 1024,
          .traits = traits,
          .workspace_bytes = no_workspace,
          .launch = never_launched};
}

const Registration single({
    .source = "kernels/01_single.cu",
    .configurations = {made_up("64x64", "flash_ladder::v01::Traits<64x64>", Dtype::fp16, 64, 64, 4, 48),
                       made_up("64x64", "flash_ladder::v01::Traits<64x64>", Dtype::bf16, 64, 64, 4, 48)},
});

const Registration several({
    .source = "kernels/02_several.cu",
    .configurations = {made_up("256x128", "flash_ladder::v02::Traits<256x128>", Dtype::fp16, 256, 128, 8, 139),
                       made_up("128x64", "flash_ladder::v02::Traits<128x64>", Dtype::fp16, 128, 64, 4, 70),
                       made_up("128x32", "flash_ladder::v02::Traits<128x32>", Dtype::fp16, 128, 32, 4, 50),
                       made_up("256x128", "flash_ladder::v02::Traits<256x128>", Dtype::bf16, 256, 128, 8, 139),
                       made_up("128x64", "flash_ladder::v02::Traits<128x64>", Dtype::bf16, 128, 64, 4, 70)},
});

}  // namespace
}  // namespace flash_ladder
