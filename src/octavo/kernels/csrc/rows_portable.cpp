// Row operations: plain C++, on any processor.
#include "rows_lanes.h"

namespace octavo {

const RowKernel rows_f32_portable = Rows<float>::kernel();
const RowKernel rows_bf16_portable = Rows<bf16>::kernel();

}  // namespace octavo
