// Row operations: AVX2 and FMA.
#include "rows_lanes.h"

namespace octavo {

const RowKernel rows_f32_avx2 = Rows<float>::kernel();
const RowKernel rows_bf16_avx2 = Rows<bf16>::kernel();

}  // namespace octavo
