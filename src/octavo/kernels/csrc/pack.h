// Packs weights into the forms of gemm.h and formats/format.h, and unpacks them. Callers have checked the sizes.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

size_t packed_bytes(ov_format format, int64_t n, int64_t k);  // 0 if k is not a multiple of the weight block
// Returns false if a scale or a weight is not finite. Rows of quantised formats must be contiguous.
bool pack_rows(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
               void* packed);
void unpack_row(ov_format format, const void* packed, int64_t k, int64_t row, void* to);

}  // namespace octavo
