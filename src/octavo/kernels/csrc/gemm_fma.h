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

// What the first panel of a block fetches ahead, as it is the one that reads the block from memory. `next` is the block
// that comes after this one, or null.
struct Ahead {
  bool is_first;
  const char* next;
};

constexpr int64_t BYTES_AHEAD = 16384;

// The weights at `from`, `left` bytes before the end of their block, are being read: fetch those that come 16 KB later.
inline void fetch_ahead(const Ahead& ahead, const void* from, int64_t left, int64_t num_bytes) {
  const char* line = static_cast<const char*>(from) + BYTES_AHEAD;
  if (left <= BYTES_AHEAD) {
    if (ahead.next == nullptr) return;
    line = ahead.next + (BYTES_AHEAD - left);
  }
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(line + i, 0, 2);
}

template <int VECTORS, int ROWS>
inline void store_panel(const Gemm& gemm, int64_t row, int64_t block, const Vector (&sums)[ROWS][VECTORS]) {
  for (int r = 0; r < ROWS; ++r) {
    float result[BLOCK];
    for (int v = 0; v < VECTORS; ++v) sums[r][v].store(result + v * Vector::WIDTH);
    store_row(gemm, row + r, block, result);
  }
}

constexpr int VECTORS = BLOCK / Vector::WIDTH;

struct F32 {
  static constexpr int64_t ELEMENT = sizeof(float);

  template <int ROWS>
  static void panel(const Gemm& gemm, int64_t row, int64_t block, const Ahead& ahead) {
    const int64_t padded = blocks_of(gemm.k) * BLOCK;
    const float* x = static_cast<const float*>(gemm.x) + row * gemm.x_stride;
    const float* w = static_cast<const float*>(gemm.packed) + block * padded * BLOCK;
    Vector sums[ROWS][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    for (int64_t k = 0; k < gemm.k; ++k, w += BLOCK) {
      if (ahead.is_first) fetch_ahead(ahead, w, (padded - k) * BLOCK * ELEMENT, BLOCK * ELEMENT);
      Vector column[VECTORS];
      for (int v = 0; v < VECTORS; ++v) column[v] = Vector::load(w + v * Vector::WIDTH);
      for (int r = 0; r < ROWS; ++r) {
        const Vector factor = Vector::broadcast(x[r * gemm.x_stride + k]);
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
      }
    }
    store_panel<VECTORS, ROWS>(gemm, row, block, sums);
  }
};

// x was widened to float by `widen`; the weights are widened here: a 32-bit word of a tile holds k (low) and k + 1.
struct Bf16 {
  static constexpr int64_t ELEMENT = sizeof(bf16);

  template <int ROWS>
  static void panel(const Gemm& gemm, int64_t row, int64_t block, const Ahead& ahead) {
    constexpr int HALF = 16 / Vector::WIDTH;  // vectors in one half of the block
    const int64_t padded = blocks_of(gemm.k) * BLOCK;
    const float* x = static_cast<const float*>(gemm.x) + row * padded;
    const bf16* tiles = static_cast<const bf16*>(gemm.packed) + block * padded * BLOCK;
    Vector sums[ROWS][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    for (int64_t k = 0; k < padded; k += 2) {
      const int64_t place = k * BLOCK * ELEMENT;  // in bytes: two k are 128 of them, read from two places
      if (ahead.is_first) {
        const char* from = reinterpret_cast<const char*>(tiles) + place;
        fetch_ahead(ahead, from, padded * BLOCK * ELEMENT - place, 2 * BLOCK * ELEMENT);
      }
      const bf16* pairs = tiles + k / BLOCK * 1024 + (k % BLOCK) / 2 * 32;
      for (int odd = 0; odd < 2; ++odd) {
        Vector column[VECTORS];
        for (int v = 0; v < VECTORS; ++v) {
          const bf16* from = pairs + v / HALF * 512 + v % HALF * 2 * Vector::WIDTH;
          column[v] = odd ? Vector::load_odd(from) : Vector::load_even(from);
        }
        for (int r = 0; r < ROWS; ++r) {
          const Vector factor = Vector::broadcast(x[r * padded + k + odd]);
          for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
        }
      }
    }
    store_panel<VECTORS, ROWS>(gemm, row, block, sums);
  }
};

// Sums fill the registers: 12 x 2 of AVX512's 32, 2 x 4 of AVX2's 16, 2 x 8 of NEON's 32.
constexpr int MOST_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH == 1 ? 1 : 2;

// A panel of `num_rows` rows, at most ROWS. Each number of rows is a loop of its own, with its sums in registers.
template <class Weights, int ROWS = MOST_ROWS>
inline void panel_of(const Gemm& gemm, int64_t row, int64_t num_rows, int64_t block, const Ahead& ahead) {
  if (num_rows >= ROWS) {
    Weights::template panel<ROWS>(gemm, row, block, ahead);
  } else if constexpr (ROWS > 1) {
    panel_of<Weights, ROWS - 1>(gemm, row, num_rows, block, ahead);
  }
}

size_t no_bytes(const Gemm&) { return 0; }
int64_t no_pieces(const Gemm&) { return 0; }
void prepare_nothing(const Gemm&, int64_t, void*) {}

size_t widened_bytes(const Gemm& gemm) {
  return size_t(gemm.m) * size_t(blocks_of(gemm.k) * BLOCK) * sizeof(float);
}
int64_t each_row(const Gemm& gemm) { return gemm.m; }

// A bf16 row to floats, padded with zeros to a multiple of 32.
void widen(const Gemm& gemm, int64_t row, void* prepared) {
  const int64_t stride = blocks_of(gemm.k) * BLOCK;
  const bf16* from = static_cast<const bf16*>(gemm.x) + row * gemm.x_stride;
  float* to = static_cast<float*>(prepared) + row * stride;
  for (int64_t k = 0; k < gemm.k; ++k) to[k] = to_float(from[k]);
  for (int64_t k = gemm.k; k < stride; ++k) to[k] = 0.0f;
}

int64_t each_block(const Gemm& gemm) { return blocks_of(gemm.n); }

template <class Weights>
void multiply(const Gemm& gemm, Parts& parts, void*) {
  const int64_t block_bytes = blocks_of(gemm.k) * BLOCK * BLOCK * Weights::ELEMENT;
  for (int64_t block = parts.claim(); block >= 0;) {
    const int64_t next = parts.claim();
    const char* next_weights = next < 0 ? nullptr : static_cast<const char*>(gemm.packed) + next * block_bytes;
    for (int64_t row = 0; row < gemm.m; row += MOST_ROWS) {
      panel_of<Weights>(gemm, row, gemm.m - row, block, {row == 0, next_weights});
    }
    block = next;
  }
}

constexpr GemmKernel FMA_F32 = {no_bytes, no_pieces, prepare_nothing, no_bytes, each_block, multiply<F32>};
constexpr GemmKernel FMA_BF16 = {widened_bytes, each_row, widen, no_bytes, each_block, multiply<Bf16>};

}  // namespace
}  // namespace octavo
