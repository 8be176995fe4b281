// The reference: plain C++, one float at a time, on any processor.
#include "attention_bf16.h"
#include "attention_f32.h"

namespace octavo {

const AttentionKernel attention_f32_portable = {attend_task<F32Tiles>, merge_task};
const AttentionKernel attention_bf16_portable = {attend_task<Bf16Tiles>, merge_task};

}  // namespace octavo
