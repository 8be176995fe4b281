// The end of a product: add the bias, round, store. Compiled by each ISA's object for itself (see bf16.h).
#pragma once

#include "bf16.h"
#include "gemm.h"

namespace octavo {
namespace {

// `sums` are 32 columns of one row. The last block may stand over the edge of y.
inline void store_row(const Gemm& gemm, int64_t row, int64_t block, const float* sums) {
  const int64_t first = block * BLOCK;
  const int64_t num_columns = gemm.n - first < BLOCK ? gemm.n - first : BLOCK;
  float result[BLOCK];
  for (int64_t c = 0; c < BLOCK; ++c) result[c] = sums[c];
  if (gemm.bias != nullptr) {
    for (int64_t c = 0; c < num_columns; ++c) result[c] += gemm.bias[first + c];
  }
  if (!gemm.y_is_bf16) {
    float* y = static_cast<float*>(gemm.y) + row * gemm.y_stride + first;
    for (int64_t c = 0; c < num_columns; ++c) y[c] = result[c];
    return;
  }
  bf16* y = static_cast<bf16*>(gemm.y) + row * gemm.y_stride + first;
  if (num_columns == BLOCK) {
    for (int64_t c = 0; c < BLOCK; ++c) y[c] = to_bf16(result[c]);
  } else {
    for (int64_t c = 0; c < num_columns; ++c) y[c] = to_bf16(result[c]);
  }
}

}  // namespace
}  // namespace octavo
