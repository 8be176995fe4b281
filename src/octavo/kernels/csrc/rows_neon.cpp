// Row operations: NEON.
#include "rows_lanes.h"

namespace octavo {

const RowKernel rows_f32_neon = Rows<float>::kernel();
const RowKernel rows_bf16_neon = Rows<bf16>::kernel();

}  // namespace octavo
