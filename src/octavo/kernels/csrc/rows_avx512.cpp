// Row operations: AVX512.
#include "rows_lanes.h"

namespace octavo {

const RowKernel rows_f32_avx512 = Rows<float>::kernel();
const RowKernel rows_bf16_avx512 = Rows<bf16>::kernel();

}  // namespace octavo
