// NEON: 4 floats in a register, 32 registers.
#include "gemm_fma.h"

namespace octavo {

const GemmKernel gemm_f32_neon = FMA_F32;
const GemmKernel gemm_bf16_neon = FMA_BF16;
const FormatKernels gemm_formats_neon = FMA_FORMATS;

}  // namespace octavo
