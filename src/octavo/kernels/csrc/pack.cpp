// Weights to the packed forms of gemm.h and back, some rows at a time.
#include "pack.h"

#include <cstring>

#include "bf16.h"
#include "gemm.h"

namespace octavo {

namespace {

// Where element (row, k) of w is in the packed form, in elements.
int64_t bf16_place(int64_t row, int64_t k, int64_t num_k_blocks) {
  const int64_t tile = (row / BLOCK * num_k_blocks + k / BLOCK) * 2 + row % BLOCK / 16;
  return tile * 512 + k % BLOCK / 2 * 32 + row % 16 * 2 + k % 2;
}

int64_t f32_place(int64_t row, int64_t k, int64_t num_k_blocks) {
  return ((row / BLOCK * num_k_blocks + k / BLOCK) * BLOCK + k % BLOCK) * BLOCK + row % BLOCK;
}

}  // namespace

size_t packed_bytes(ov_dtype dtype, int64_t n, int64_t k) {
  return size_t(blocks_of(n) * blocks_of(k) * BLOCK * BLOCK) * (dtype == OV_BF16 ? 2 : 4);
}

void pack_rows(ov_dtype dtype, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
               void* packed) {
  const int64_t num_k_blocks = blocks_of(k);
  // Blocks of k outside, rows inside: sixteen neighbouring rows share their cache lines in the packed form.
  for (int64_t start = 0; start < k; start += BLOCK) {
    const int64_t end = start + BLOCK < k ? start + BLOCK : k;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = start; i < end; ++i) {
        if (dtype == OV_BF16) {
          static_cast<bf16*>(packed)[bf16_place(first_row + r, i, num_k_blocks)] =
              static_cast<const bf16*>(rows)[r * stride + i];
        } else {
          static_cast<float*>(packed)[f32_place(first_row + r, i, num_k_blocks)] =
              static_cast<const float*>(rows)[r * stride + i];
        }
      }
    }
  }
}

void unpack_row(ov_dtype dtype, const void* packed, int64_t k, int64_t row, void* to) {
  const int64_t num_k_blocks = blocks_of(k);
  for (int64_t start = 0; start < k; start += BLOCK) {
    const int64_t count = start + BLOCK < k ? BLOCK : k - start;
    if (dtype == OV_BF16) {
      // Pairs lie together, 32 elements from one to the next.
      const bf16* from = static_cast<const bf16*>(packed) + bf16_place(row, start, num_k_blocks);
      for (int64_t i = 0; i < count; ++i) static_cast<bf16*>(to)[start + i] = from[i / 2 * 32 + i % 2];
    } else {
      const float* from = static_cast<const float*>(packed) + f32_place(row, start, num_k_blocks);
      for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[start + i] = from[i * BLOCK];
    }
  }
}

}  // namespace octavo
