// Weights to the packed forms of gemm.h and back. Sizes were checked by the caller.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

size_t packed_bytes(ov_dtype dtype, int64_t n, int64_t k);
void pack_rows(ov_dtype dtype, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
               void* packed);
void unpack_row(ov_dtype dtype, const void* packed, int64_t k, int64_t row, void* to);

}  // namespace octavo
