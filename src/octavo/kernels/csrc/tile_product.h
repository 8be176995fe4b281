// The product of bf16 numbers: the definition that all ISAs follow, bit for bit. It is what AMX does, whose tile
// multiplies 32 k at a time. For each such step, and each element of the result:
//
//     even = odd = 0
//     for p in 0 .. 15:
//       even = fma(x[2p],     w[2p],     even)
//       odd  = fma(x[2p + 1], w[2p + 1], odd)
//     sum = sum + (even + odd)
//
// Every operation rounds to nearest, ties to even. Subnormal operands and results are zeros with their sign, where a
// result is subnormal if it is below 2^-126 after rounding (flush.h). Infinities and not-a-numbers are those of IEEE
// 754, except that there is only one not-a-number: its sign and its payload are not defined.
//
// A tile is 16 columns of w and one step, as AMX reads it:
//
//     w[16 k-pairs][16 columns][2]
//
// Here are the vector units' products of some rows of x, widened to float, and some tiles. Their caller is in FlushMode.
#pragma once

#include "flush.h"

namespace octavo {
namespace {

constexpr int64_t STEP_K = 32;
constexpr int64_t TILE_COLUMNS = 16;
constexpr int64_t TILE_ELEMENTS = STEP_K * TILE_COLUMNS;

// Sums fill the registers: of AVX512's 32, 12 rows x 2; of AVX2's 16, 6 x 2.
constexpr int PANEL_TILES = Vector::WIDTH == 16 ? 2 : 1;
constexpr int PANEL_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH > 1 ? 6 : 1;

// Some k of a step.
struct Some {
  int begin, end;
};
constexpr Some WHOLE_STEP = {0, int(STEP_K)};

// The chain of the even k (PARITY 0) or of the odd ones, for ROWS rows and the columns of TILES tiles.
template <int PARITY, int ROWS, int TILES>
inline void multiply_chain(const float* x, int64_t x_stride, const bf16* const (&tiles)[TILES], Some some,
                           Vector (&chain)[ROWS][TILES * TILE_COLUMNS / Vector::WIDTH]) {
  constexpr int OF_TILE = TILE_COLUMNS / Vector::WIDTH, VECTORS = TILES * OF_TILE;
  for (auto& row : chain)
    for (Vector& part : row) part = Vector::zero();
  for (int pair = (some.begin + 1 - PARITY) / 2; 2 * pair + PARITY < some.end; ++pair) {
    Vector column[VECTORS];
    for (int v = 0; v < VECTORS; ++v) {
      const bf16* from = tiles[v / OF_TILE] + pair * 2 * TILE_COLUMNS + v % OF_TILE * 2 * Vector::WIDTH;
      column[v] = flushed(PARITY == 0 ? Vector::load_even(from) : Vector::load_odd(from));
    }
    for (int r = 0; r < ROWS; ++r) {
      const Vector factor = flushed(Vector::broadcast(x[r * x_stride + 2 * pair + PARITY]));
      for (int v = 0; v < VECTORS; ++v) chain[r][v] = fma_flushed(factor, column[v], chain[r][v]);
    }
  }
}

// Adds one step's product to the sums, which are in memory: they are needed once in 32 k, and the registers always.
// The sums of a tile are 16 floats; those of the next tile follow, and rows are `sums_stride` floats apart.
//
// Of a step of which only some k are there, the others add nothing: as if x were 0, and w finite.
template <int ROWS, int TILES>
inline void add_step(const float* x, int64_t x_stride, const bf16* const (&tiles)[TILES], Some some, float* sums,
                     int64_t sums_stride) {
  constexpr int VECTORS = TILES * TILE_COLUMNS / Vector::WIDTH;
  Vector even[ROWS][VECTORS], odd[ROWS][VECTORS];
  multiply_chain<0, ROWS, TILES>(x, x_stride, tiles, some, even);
  multiply_chain<1, ROWS, TILES>(x, x_stride, tiles, some, odd);
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) {
      float* sum = sums + r * sums_stride + v * Vector::WIDTH;
      sum_flushed(Vector::load(sum), sum_flushed(even[r][v], odd[r][v])).store(sum);
    }
  }
}

// A bf16 row to floats, padded with zeros to whole steps.
inline void widen_row(const bf16* from, int64_t size, float* to) {
  const int64_t padded = (size + STEP_K - 1) / STEP_K * STEP_K;
  for (int64_t k = 0; k < size; ++k) to[k] = to_float(from[k]);
  for (int64_t k = size; k < padded; ++k) to[k] = 0.0f;
}

}  // namespace
}  // namespace octavo
