// AVX512: 16 floats in a register, 32 registers.
#include "gemm_fma.h"

namespace octavo {

const GemmKernel gemm_f32_avx512 = FMA_F32;
const GemmKernel gemm_bf16_avx512 = FMA_BF16;
const FormatKernels gemm_formats_avx512 = FMA_FORMATS;

}  // namespace octavo
