// NEON: 4 floats in a register.
#include "attention_bf16.h"
#include "attention_f32.h"

namespace octavo {

const AttentionKernel attention_f32_neon = {attend_task<F32Tiles>, merge_task};
const AttentionKernel attention_bf16_neon = {attend_task<Bf16Tiles>, merge_task};

}  // namespace octavo
