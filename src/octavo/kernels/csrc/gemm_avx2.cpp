// AVX2 and FMA: 8 floats in a register, 16 registers.
#include "gemm_fma.h"

namespace octavo {

const GemmKernel gemm_f32_avx2 = FMA_F32;
const GemmKernel gemm_bf16_avx2 = FMA_BF16;
const FormatKernels gemm_formats_avx2 = FMA_FORMATS;

}  // namespace octavo
