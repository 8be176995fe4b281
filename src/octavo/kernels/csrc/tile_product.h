// The definition of the bf16 product, to which all ISAs are bit-identical. It is what AMX computes, whose tiles
// multiply 32 k at a time. For each such step and each element of the result:
//
//     even = odd = 0
//     for p in 0 .. 15:
//       even = fma(x[2p],     w[2p],     even)
//       odd  = fma(x[2p + 1], w[2p + 1], odd)
//     sum = sum + (even + odd)
//
// Every operation rounds to nearest, ties to even. Subnormal operands and results are replaced by zeros of the same
// sign, where a result is subnormal if it is below 2^-126 after rounding (flush.h). Infinity and NaN behave as in IEEE
// 754, except that all NaN are equal: sign and payload of a NaN are not defined.
//
// A tile is 16 columns of w and one step, in the layout that AMX reads:
//
//     w[16 k-pairs][16 columns][2]
//
// or, if weights are expanded for the product and need not be compact, the same numbers as floats:
//
//     w[32 k][16 columns]
//
// This file has the vector units' product of rows of x, widened to float, and tiles. The caller must be in FlushMode.
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

// Chosen so that the sums fill the registers: of AVX512's 32, 12 rows x 2; of AVX2's 16, 6 x 2; of NEON's 32, 6 x 4.
constexpr int PANEL_TILES = Vector::WIDTH == 16 ? 2 : 1;
constexpr int PANEL_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH > 1 ? 6 : 1;
constexpr int MAX_SUMS = PANEL_ROWS * PANEL_TILES * TILE_COLUMNS / Vector::WIDTH;

// A range of the k of a step.
struct KRange {
  int begin, end;
};
constexpr KRange WHOLE_STEP = {0, int(STEP_K)};

enum class Parity { EVEN, ODD };

// Loads vector v of a tile's columns, at the even or the odd k of a pair.
inline Vector load_column(const bf16* tile, int pair, int v, Parity parity) {
  const bf16* from = tile + pair * 2 * TILE_COLUMNS + v * 2 * Vector::WIDTH;
  return parity == Parity::EVEN ? Vector::load_even(from) : Vector::load_odd(from);
}
inline Vector load_column(const float* tile, int pair, int v, Parity parity) {
  return Vector::load(tile + (2 * pair + int(parity)) * TILE_COLUMNS + v * Vector::WIDTH);
}

// Continues the chains of the even or the odd k by one k.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_k(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], int pair, Parity parity,
                       Vector (&chains)[ROWS][VECTORS]) {
  constexpr int TILE_VECTORS = TILE_COLUMNS / Vector::WIDTH;
  Vector column[VECTORS];
  for (int v = 0; v < VECTORS; ++v) {
    column[v] = Flush::operand(load_column(tiles[v / TILE_VECTORS], pair, v % TILE_VECTORS, parity));
  }
  for (int r = 0; r < ROWS; ++r) {
    const Vector factor = Flush::operand(Vector::broadcast(x[r * x_stride + 2 * pair + int(parity)]));
    for (int v = 0; v < VECTORS; ++v) chains[r][v] = Flush::fma(factor, column[v], chains[r][v]);
  }
}

// Computes both chains for ROWS rows and the columns of TILES tiles: together if both fit into the registers, otherwise
// one after the other.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_step(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES],
                          Vector (&even)[ROWS][VECTORS], Vector (&odd)[ROWS][VECTORS]) {
  if constexpr (2 * ROWS * VECTORS <= MAX_SUMS) {
    for (int pair = 0; pair < STEP_K / 2; ++pair) {
      multiply_k<Flush>(x, x_stride, tiles, pair, Parity::EVEN, even);
      multiply_k<Flush>(x, x_stride, tiles, pair, Parity::ODD, odd);
    }
  } else {
    for (int pair = 0; pair < STEP_K / 2; ++pair) multiply_k<Flush>(x, x_stride, tiles, pair, Parity::EVEN, even);
    for (int pair = 0; pair < STEP_K / 2; ++pair) multiply_k<Flush>(x, x_stride, tiles, pair, Parity::ODD, odd);
  }
}

// Computes both chains for part of a step. The other k contribute nothing, as if x were 0 and w finite.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply_range(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], KRange range,
                           Vector (&even)[ROWS][VECTORS], Vector (&odd)[ROWS][VECTORS]) {
  for (int k = range.begin; k < range.end; ++k) {
    if (k % 2 == 0) {
      multiply_k<Flush>(x, x_stride, tiles, k / 2, Parity::EVEN, even);
    } else {
      multiply_k<Flush>(x, x_stride, tiles, k / 2, Parity::ODD, odd);
    }
  }
}

// Computes one step's product: the sum of both chains.
template <class Flush, int ROWS, class Element, int TILES, int VECTORS>
inline void multiply(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], KRange range,
                     Vector (&products)[ROWS][VECTORS]) {
  Vector even[ROWS][VECTORS], odd[ROWS][VECTORS];
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) even[r][v] = odd[r][v] = Vector::zero();
  if (range.begin == 0 && range.end == STEP_K) {
    multiply_step<Flush>(x, x_stride, tiles, even, odd);
  } else {
    multiply_range<Flush>(x, x_stride, tiles, range, even, odd);
  }
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) products[r][v] = Flush::sum(even[r][v], odd[r][v]);
}

#if defined(OCTAVO_NEON)
// The same for steps in which NEON's flush mode may differ from the definition. Rarely called, and not inlined: its
// results are returned in memory, so that those of `multiply` can stay in registers.
template <int ROWS, class Element, int TILES>
__attribute__((noinline)) void multiply_in_software(const float* x, int64_t x_stride,
                                                    const Element* const (&tiles)[TILES], KRange range,
                                                    float* results) {
  constexpr int VECTORS = TILES * TILE_COLUMNS / Vector::WIDTH;
  const IeeeMode mode;
  Vector products[ROWS][VECTORS];
  multiply<SoftwareFlush>(x, x_stride, tiles, range, products);
  for (int r = 0; r < ROWS; ++r)
    for (int v = 0; v < VECTORS; ++v) products[r][v].store(results + (r * VECTORS + v) * Vector::WIDTH);
}
#endif

// Adds one step's product to the sums. The sums are in memory, because they are needed only once per 32 k and the
// chains need the registers. The sums of a tile are 16 floats; those of the next tile follow, and rows are
// `sums_stride` floats apart.
template <int ROWS, class Element, int TILES>
inline void add_step(const float* x, int64_t x_stride, const Element* const (&tiles)[TILES], KRange range, float* sums,
                     int64_t sums_stride) {
  constexpr int VECTORS = TILES * TILE_COLUMNS / Vector::WIDTH;
  Vector products[ROWS][VECTORS];
  multiply<Flush>(x, x_stride, tiles, range, products);
#if defined(OCTAVO_NEON)
  if (test_and_clear_underflow(products)) {
    float again[ROWS * VECTORS * Vector::WIDTH];
    multiply_in_software<ROWS>(x, x_stride, tiles, range, again);
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

// Converts a bf16 row to floats, padded with zeros to whole steps, which are `step_stride` floats apart.
inline void widen_row(const bf16* from, int64_t size, float* to, int64_t step_stride = STEP_K) {
  for (int64_t first = 0; first < size; first += STEP_K, to += step_stride) {
    const int64_t count = size - first < STEP_K ? size - first : STEP_K;
    for (int64_t k = 0; k < count; ++k) to[k] = to_float(from[first + k]);
    for (int64_t k = count; k < STEP_K; ++k) to[k] = 0.0f;
  }
}

}  // namespace
}  // namespace octavo
