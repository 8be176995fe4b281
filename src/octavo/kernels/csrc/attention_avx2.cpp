// AVX2 and FMA: 8 floats in a register.
#include "attention_bf16.h"
#include "attention_f32.h"

namespace octavo {

const AttentionKernel attention_f32_avx2 = {attend_task<F32Tiles>, merge_task};
const AttentionKernel attention_bf16_avx2 = {attend_task<Bf16Tiles>, merge_task};

}  // namespace octavo
