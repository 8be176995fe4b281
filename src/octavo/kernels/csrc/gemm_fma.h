// The product on vector units, of any width: each ISA's object compiles it with the `Vector` that its flags give it in
// vector_math.h.
//
// A panel is ROWS rows of x times one block of 32 columns:
//
//     x[r][k] (broadcast)  *  w[k][0 .. 31] (32 / WIDTH vectors)  ->  sums[r][0 .. 31]
#pragma once

#include "gemm_store.h"
#include "tile_product.h"

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

// The weights are float: an element is one chain over k.
struct F32 {
  static constexpr int64_t ELEMENT = sizeof(float);
  static constexpr int VECTORS = BLOCK / Vector::WIDTH;
  // Sums fill the registers: 12 x 2 of AVX512's 32, 2 x 4 of AVX2's 16, 2 x 8 of NEON's 32.
  static constexpr int MOST_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH > 1 ? 2 : 1;

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
    for (int r = 0; r < ROWS; ++r) {
      float result[BLOCK];
      for (int v = 0; v < VECTORS; ++v) sums[r][v].store(result + v * Vector::WIDTH);
      store_row(gemm, row + r, block, result);
    }
  }
};

// The weights are tiles, two for each step of a block. x was widened to float, and lies in the order in which it is
// read: rows a power of two apart would all have their place in the same few lines of the cache.
//
//     x[m / PANEL_ROWS][k / 32][rows of the panel, up to PANEL_ROWS][32 k]
struct Bf16 {
  static constexpr int64_t ELEMENT = sizeof(bf16);
  static constexpr int MOST_ROWS = PANEL_ROWS;

  template <int ROWS>
  static void panel(const Gemm& gemm, int64_t row, int64_t block, const Ahead& ahead) {
    constexpr int64_t STEP = 2 * TILE_ELEMENTS, STEP_BYTES = STEP * ELEMENT;
    const int64_t num_steps = blocks_of(gemm.k);
    const float* x = static_cast<const float*>(gemm.x) + row * num_steps * STEP_K;
    const bf16* w = static_cast<const bf16*>(gemm.packed) + block * num_steps * STEP;
    alignas(64) float sums[ROWS * BLOCK] = {};
    for (int64_t step = 0; step < num_steps; ++step, x += ROWS * STEP_K, w += STEP) {
      if (ahead.is_first) fetch_ahead(ahead, w, (num_steps - step) * STEP_BYTES, STEP_BYTES);
      for (int t = 0; t < 2; t += PANEL_TILES) {
        const bf16* tiles[PANEL_TILES];
        for (int i = 0; i < PANEL_TILES; ++i) tiles[i] = w + (t + i) * TILE_ELEMENTS;
        add_step<ROWS>(x, STEP_K, tiles, WHOLE_STEP, sums + t * TILE_COLUMNS, BLOCK);
      }
    }
    for (int r = 0; r < ROWS; ++r) store_row_flushed(gemm, row + r, block, sums + r * BLOCK);
  }
};

// A panel of `num_rows` rows, at most ROWS. Each number of rows is a loop of its own, with its sums in registers.
template <class Weights, int ROWS = Weights::MOST_ROWS>
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

void widen(const Gemm& gemm, int64_t row, void* prepared) {
  const int64_t first = row / PANEL_ROWS * PANEL_ROWS, left = gemm.m - first;
  const int64_t num_rows = left < PANEL_ROWS ? left : PANEL_ROWS;
  float* panel = static_cast<float*>(prepared) + first * blocks_of(gemm.k) * STEP_K;
  widen_row(static_cast<const bf16*>(gemm.x) + row * gemm.x_stride, gemm.k, panel + (row - first) * STEP_K,
            num_rows * STEP_K);
}

int64_t each_block(const Gemm& gemm) { return blocks_of(gemm.n); }

template <class Weights>
void multiply(const Gemm& gemm, Parts& parts, void*) {
  const int64_t block_bytes = blocks_of(gemm.k) * BLOCK * BLOCK * Weights::ELEMENT;
  for (int64_t block = parts.claim(); block >= 0;) {
    const int64_t next = parts.claim();
    const char* next_weights = next < 0 ? nullptr : static_cast<const char*>(gemm.packed) + next * block_bytes;
    for (int64_t row = 0; row < gemm.m; row += Weights::MOST_ROWS) {
      panel_of<Weights>(gemm, row, gemm.m - row, block, {row == 0, next_weights});
    }
    block = next;
  }
}

void multiply_tiles(const Gemm& gemm, Parts& parts, void* worker_memory) {
  const FlushMode mode;
  multiply<Bf16>(gemm, parts, worker_memory);
}

constexpr GemmKernel FMA_F32 = {no_bytes, no_pieces, prepare_nothing, no_bytes, each_block, multiply<F32>};
constexpr GemmKernel FMA_BF16 = {widened_bytes, each_row, widen, no_bytes, each_block, multiply_tiles};

}  // namespace
}  // namespace octavo
