// NEON: 4 floats in a register.
#include "attention_fma.h"

namespace octavo {

const AttentionKernel attention_f32_neon = {attend_task<FmaTiles<F32Units>>, merge_task};
const AttentionKernel attention_bf16_neon = {attend_task<FmaTiles<Bf16Units>>, merge_task};

}  // namespace octavo
