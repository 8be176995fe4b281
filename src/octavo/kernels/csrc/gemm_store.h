// The end of a product: add the bias, round, store. Each ISA's object file compiles its own copy (see bf16.h).
#pragma once

#include "flush.h"
#include "gemm.h"

namespace octavo {
namespace {

// `sums` are COUNT columns of one row, from `first` on. The last of them may be beyond the last column of y.
template <bool IS_FLUSHED, int64_t COUNT>
inline void store_sums(const Gemm& gemm, int64_t row, int64_t first, const float* sums) {
  const int64_t num_columns = gemm.n - first < COUNT ? gemm.n - first : COUNT;
  float result[COUNT];
  for (int64_t c = 0; c < COUNT; ++c) result[c] = sums[c];
  if (gemm.bias != nullptr) {
    for (int64_t c = 0; c < num_columns; ++c) {
      const float bias = gemm.bias[first + c];
      result[c] = IS_FLUSHED ? Flush::sum(result[c], bias) : result[c] + bias;
    }
  }
  if (!gemm.y_is_bf16) {
    float* y = static_cast<float*>(gemm.y) + row * gemm.y_stride + first;
    for (int64_t c = 0; c < num_columns; ++c) y[c] = result[c];
    return;
  }
  bf16* y = static_cast<bf16*>(gemm.y) + row * gemm.y_stride + first;
  if (num_columns == COUNT) {
    for (int64_t c = 0; c < COUNT; ++c) y[c] = to_bf16(result[c]);
  } else {
    for (int64_t c = 0; c < num_columns; ++c) y[c] = to_bf16(result[c]);
  }
}

inline void store_row(const Gemm& gemm, int64_t row, int64_t block, const float* sums) {
  store_sums<false, BLOCK>(gemm, row, block * BLOCK, sums);
}

// For bf16 products, called in FlushMode: the bias is added with the same handling of subnormal numbers as in the
// product.
inline void store_row_flushed(const Gemm& gemm, int64_t row, int64_t block, const float* sums) {
  store_sums<true, BLOCK>(gemm, row, block * BLOCK, sums);
}

}  // namespace
}  // namespace octavo
