// The reference: plain C++, one float at a time, on any processor.
#include "gemm_fma.h"

namespace octavo {

const GemmKernel gemm_f32_portable = FMA_F32;
const GemmKernel gemm_bf16_portable = FMA_BF16;
const FormatKernels gemm_formats_portable = FMA_FORMATS;

}  // namespace octavo
