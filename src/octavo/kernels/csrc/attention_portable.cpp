// The reference: plain C++, one float at a time, on any processor.
#include "attention_fma.h"

namespace octavo {

const AttentionKernel attention_f32_portable = {attend_task<FmaTiles<F32Units>>, merge_task};
const AttentionKernel attention_bf16_portable = {attend_task<FmaTiles<Bf16Units>>, merge_task};

}  // namespace octavo
