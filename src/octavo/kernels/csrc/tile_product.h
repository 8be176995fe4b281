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
// or, where weights are made for the product and need not be small, the same numbers as floats:
//
//     w[32 k][16 columns]
//
// Here are the vector units' products of some rows of x, widened to float, and some tiles. Their caller is in
// FlushMode.
#pragma once

#include "flush.h"
#if defined(OCTAVO_NEON)
#include "flush_neon.h"
#endif

namespace octavo {
namespace {

constexpr int64_t STEP_K = 32;
constexpr int64_t TILE_COLUMNS = 16;
constexpr int64_t TILE_ELEMENTS = STEP_K * TILE_COLUMNS;

// Sums fill the registers: of AVX512's 32, 12 rows x 2; of AVX2's 16, 6 x 2; of NEON's 32, 6 x 4.
constexpr int PANEL_TILES = Vector::WIDTH == 16 ? 2 : 1;
constexpr int PANEL_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH > 1 ? 6 : 1;
constexpr int MOST_SUMS = PANEL_ROWS * PANEL_TILES * TILE_COLUMNS / Vector::WIDTH;

// Some k of a step.
struct Some {
  int begin, end;
};
constexpr Some WHOLE_STEP = {0, int(STEP_K)};

enum class Parity { EVEN, ODD };

// Vector v of a tile's columns, at the even or the odd k of a pair.
inline Vector load_column(const bf16* tile, int pair, int v, Parity parity) {
  const bf16* from = tile + pair * 2 * TILE_COLUMNS + v * 2 * Vector::WIDTH;
  return parity == Parity::EVEN ? Vector::load_even(from) : Vector::load_odd(from);
}
inline Vector load_column(const float* tile, int pair, int v, Parity parity) {
  return Vector::load(tile + (2 * pair + int(parity)) * TILE_COLUMNS + v * Vector::WIDTH);
}

// Goes on with the chains of the even or the odd k by one k.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_k(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], int pair, Parity parity,
                       Vector (&chains)[ROWS][VECTORS]) {
  constexpr int OF_TILE = TILE_COLUMNS / Vector::WIDTH;
  Vector column[VECTORS];
  for (int v = 0; v < VECTORS; ++v) {
    column[v] = Flush::operand(load_column(tiles[v / OF_TILE], pair, v % OF_TILE, parity));
  }
  for (int r = 0; r < ROWS; ++r) {
    const Vector factor = Flush::operand(Vector::broadcast(x[r * x_stride + 2 * pair + int(parity)]));
    for (int v = 0; v < VECTORS; ++v) chains[r][v] = Flush::fma(factor, column[v], chains[r][v]);
  }
}

// Both chains of ROWS rows and the columns of TILES tiles: one after the other if not both fit into the registers.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_step(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES],
                          Vector (&even)[ROWS][VECTORS], Vector (&odd)[ROWS][VECTORS]) {
  if constexpr (2 * ROWS * VECTORS <= MOST_SUMS) {
    for (int pair = 0; pair < STEP_K / 2; ++pair) {
      multiply_k<Flush>(x, x_stride, tiles, pair, Parity::EVEN, even);
      multiply_k<Flush>(x, x_stride, tiles, pair, Parity::ODD, odd);
    }
  } else {
    for (int pair = 0; pair < STEP_K / 2; ++pair) multiply_k<Flush>(x, x_stride, tiles, pair, Parity::EVEN, even);
    for (int pair = 0; pair < STEP_K / 2; ++pair) multiply_k<Flush>(x, x_stride, tiles, pair, Parity::ODD, odd);
  }
}

// Of a step of which only some k are there, the others add nothing: as if x were 0, and w finite.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_some(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], Some some,
                          Vector (&even)[ROWS][VECTORS], Vector (&odd)[ROWS][VECTORS]) {
  for (int k = some.begin; k < some.end; ++k) {
    if (k % 2 == 0) {
      multiply_k<Flush>(x, x_stride, tiles, k / 2, Parity::EVEN, even);
    } else {
      multiply_k<Flush>(x, x_stride, tiles, k / 2, Parity::ODD, odd);
    }
  }
}

// One step's product: both chains, added.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], Some some,
                     Vector (&products)[ROWS][VECTORS]) {
  Vector even[ROWS][VECTORS], odd[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) even[r][v] = odd[r][v] = Vector::zero();
  if (some.begin == 0 && some.end == STEP_K) {
    multiply_step<Flush>(x, x_stride, tiles, even, odd);
  } else {
    multiply_some<Flush>(x, x_stride, tiles, some, even, odd);
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) products[r][v] = Flush::sum(even[r][v], odd[r][v]);
}

#if defined(OCTAVO_NEON)
// The same where NEON's flush mode is not to be trusted. Rarely called, and out of the way: its results go over memory,
// so that those of `multiply` need not.
template <int ROWS, class Element, int TILES>
__attribute__((noinline)) void multiply_by_hand(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES],
                                                Some some, float* results) {
  constexpr int VECTORS = TILES * TILE_COLUMNS / Vector::WIDTH;
  const IeeeMode mode;
  Vector products[ROWS][VECTORS];
  multiply<FlushByHand>(x, x_stride, tiles, some, products);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) products[r][v].store(results + (r * VECTORS + v) * Vector::WIDTH);
}
#endif

// Adds one step's product to the sums, which are in memory: they are needed once in 32 k, and the registers always.
// The sums of a tile are 16 floats; those of the next tile follow, and rows are `sums_stride` floats apart.
template <int ROWS, class Element, int TILES>
inline void add_step(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], Some some, float* sums,
                     int64_t sums_stride) {
  constexpr int VECTORS = TILES * TILE_COLUMNS / Vector::WIDTH;
  Vector products[ROWS][VECTORS];
  multiply<Flush>(x, x_stride, tiles, some, products);
#if defined(OCTAVO_NEON)
  if (took_underflow(products)) {
    float again[ROWS * VECTORS * Vector::WIDTH];
    multiply_by_hand<ROWS>(x, x_stride, tiles, some, again);
    for (int r = 0; r < ROWS; ++r)
      for (int v = 0; v < VECTORS; ++v) products[r][v] = Vector::load(again + (r * VECTORS + v) * Vector::WIDTH);
  }
#endif
  for (int r = 0; r < ROWS; ++r) {
    for (int v = 0; v < VECTORS; ++v) {
      float* sum = sums + r * sums_stride + v * Vector::WIDTH;
      Flush::sum(Vector::load(sum), products[r][v]).store(sum);
    }
  }
}

// A bf16 row to floats, padded with zeros to whole steps, which are `step_stride` floats apart.
inline void widen_row(const bf16* from, int64_t size, float* to, int64_t step_stride = STEP_K) {
  for (int64_t first = 0; first < size; first += STEP_K, to += step_stride) {
    const int64_t count = size - first < STEP_K ? size - first : STEP_K;
    for (int64_t k = 0; k < count; ++k) to[k] = to_float(from[first + k]);
    for (int64_t k = count; k < STEP_K; ++k) to[k] = 0.0f;
  }
}

}  // namespace
}  // namespace octavo
