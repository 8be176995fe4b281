// The product by fused multiply-add, for any vector width: each ISA's object compiles it with the `Vector` that its
// flags give it in vector_math.h.
//
// A panel is ROWS rows of x times one block of 32 columns; its sums stay in registers while k runs from 0 upwards:
//
//     x[r][k] (broadcast)  *  w[k][0 .. 31] (32 / WIDTH vectors)  ->  sums[r][0 .. 31]
#pragma once

#include "gemm_store.h"
#include "vector_math.h"

namespace octavo {
namespace {

template <int ROWS>
inline void panel_f32(const Gemm& gemm, int64_t row, int64_t block) {
  constexpr int VECTORS = BLOCK / Vector::WIDTH;
  const float* x = static_cast<const float*>(gemm.x) + row * gemm.x_stride;
  const float* w = static_cast<const float*>(gemm.packed) + block * blocks_of(gemm.k) * BLOCK * BLOCK;
  Vector sums[ROWS][VECTORS];
  for (auto& row_sums : sums)
    for (Vector& sum : row_sums) sum = Vector::zero();
  for (int64_t k = 0; k < gemm.k; ++k, w += BLOCK) {
    Vector column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) column[v] = Vector::load(w + v * Vector::WIDTH);
    for (int r = 0; r < ROWS; ++r) {
      const Vector factor = Vector::broadcast(x[r * gemm.x_stride + k]);
      for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    float result[BLOCK];
    for (int v = 0; v < VECTORS; ++v) sums[r][v].store(result + v * Vector::WIDTH);
    store_row(gemm, row + r, block, result);
  }
}

// x was widened to float by `widen`; the weights are widened here: a 32-bit word of a tile holds k (low) and k + 1.
template <int ROWS>
inline void panel_bf16(const Gemm& gemm, int64_t row, int64_t block) {
  constexpr int HALF = 16 / Vector::WIDTH;  // vectors in one half of the block
  const int64_t stride = blocks_of(gemm.k) * BLOCK;
  const float* x = static_cast<const float*>(gemm.x) + row * stride;
  const bf16* tiles = static_cast<const bf16*>(gemm.packed) + block * stride * BLOCK;
  Vector sums[ROWS][2 * HALF];
  for (auto& row_sums : sums)
    for (Vector& sum : row_sums) sum = Vector::zero();
  for (int64_t k = 0; k < stride; k += 2) {
    const bf16* pairs = tiles + k / BLOCK * 1024 + (k % BLOCK) / 2 * 32;
    for (int odd = 0; odd < 2; ++odd) {
      Vector column[2 * HALF];
      for (int v = 0; v < 2 * HALF; ++v) {
        const bf16* from = pairs + v / HALF * 512 + v % HALF * 2 * Vector::WIDTH;
        column[v] = odd ? Vector::load_odd(from) : Vector::load_even(from);
      }
      for (int r = 0; r < ROWS; ++r) {
        const Vector factor = Vector::broadcast(x[r * stride + k + odd]);
        for (int v = 0; v < 2 * HALF; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
      }
    }
  }
  for (int r = 0; r < ROWS; ++r) {
    float result[BLOCK];
    for (int v = 0; v < 2 * HALF; ++v) sums[r][v].store(result + v * Vector::WIDTH);
    store_row(gemm, row + r, block, result);
  }
}

// Sums fill the registers: 8 x 2 of AVX512's 32, 2 x 4 of AVX2's 16.
constexpr int ROWS_AT_ONCE = Vector::WIDTH == 16 ? 8 : Vector::WIDTH == 8 ? 2 : 1;

size_t nothing(int64_t, int64_t) { return 0; }
int64_t no_pieces(int64_t, int64_t) { return 0; }
void prepare_nothing(const Gemm&, int64_t, void*) {}
size_t no_worker_bytes(const Gemm&) { return 0; }

size_t widened_bytes(int64_t m, int64_t k) { return size_t(m) * size_t(blocks_of(k) * BLOCK) * sizeof(float); }
int64_t each_row(int64_t m, int64_t) { return m; }

// A bf16 row to floats, padded with zeros to a multiple of 32.
void widen(const Gemm& gemm, int64_t row, void* prepared) {
  const int64_t stride = blocks_of(gemm.k) * BLOCK;
  const bf16* from = static_cast<const bf16*>(gemm.x) + row * gemm.x_stride;
  float* to = static_cast<float*>(prepared) + row * stride;
  for (int64_t k = 0; k < gemm.k; ++k) to[k] = to_float(from[k]);
  for (int64_t k = gemm.k; k < stride; ++k) to[k] = 0.0f;
}

using Panel = void (*)(const Gemm&, int64_t row, int64_t block);

int64_t each_block(const Gemm& gemm) { return blocks_of(gemm.n); }

template <Panel SEVERAL, Panel ONE>
void multiply(const Gemm& gemm, Parts& parts, void*) {
  for (int64_t block = parts.claim(); block >= 0; block = parts.claim()) {
    int64_t row = 0;
    for (; row + ROWS_AT_ONCE <= gemm.m; row += ROWS_AT_ONCE) SEVERAL(gemm, row, block);
    for (; row < gemm.m; ++row) ONE(gemm, row, block);
  }
}

constexpr GemmKernel FMA_F32 = {nothing,         no_pieces,  prepare_nothing,
                                no_worker_bytes, each_block, multiply<panel_f32<ROWS_AT_ONCE>, panel_f32<1>>};
constexpr GemmKernel FMA_BF16 = {widened_bytes,   each_row,   widen,
                                 no_worker_bytes, each_block, multiply<panel_bf16<ROWS_AT_ONCE>, panel_bf16<1>>};

}  // namespace
}  // namespace octavo
