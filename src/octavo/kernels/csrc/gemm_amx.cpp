// bf16 on AMX: 2 x 2 tiles of sums, that is 32 rows times one block of 32 columns.
#include "amx.h"
#include "gemm_store.h"

namespace octavo {
namespace {

constexpr int64_t TILE = 512;       // bf16 in a tile
constexpr int64_t TILE_BYTES = 64;  // of a row
constexpr int64_t X_CHUNK_BYTES = int64_t(1) << 20;  // rows of x that stay in the L2 cache beside a block of weights
constexpr int64_t PREFETCH = 8192;  // bytes ahead: weights come from memory, and the hardware looks less far

// x as tiles: [m / 16][k / 32][16 rows][32]. Rows of a row-major x lie a power of two apart, and would all fall into
// the same few cache lines.
size_t tiles_bytes(int64_t m, int64_t k) { return size_t((m + 15) / 16 * blocks_of(k) * TILE) * sizeof(bf16); }

void to_tiles(const Gemm& gemm, int64_t tile, void* prepared) {
  const int64_t num_tiles = blocks_of(gemm.k);
  bf16* to = static_cast<bf16*>(prepared) + tile * num_tiles * TILE;
  const int64_t num_rows = gemm.m - tile * 16 < 16 ? gemm.m - tile * 16 : 16;
  for (int64_t r = 0; r < num_rows; ++r) {
    const bf16* from = static_cast<const bf16*>(gemm.x) + (tile * 16 + r) * gemm.x_stride;
    for (int64_t t = 0; t < num_tiles; ++t) {
      const int64_t left = gemm.k - t * BLOCK;
      const __mmask32 present = left >= BLOCK ? 0xffffffffu : (1u << left) - 1;
      _mm512_storeu_si512(to + t * TILE + r * 32, _mm512_maskz_loadu_epi16(present, from + t * BLOCK));
    }
  }
}

// One block of weights, tile pair by tile pair, for up to 32 rows. The order of the multiplications of one row is the
// same in both forms.
template <bool TWO_TILES, bool FROM_MEMORY>
inline void multiply_tiles(const bf16* upper, const bf16* lower, const bf16* weights, int64_t num_tiles) {
  for (int64_t t = 0; t < num_tiles; ++t, upper += TILE, lower += TILE, weights += 2 * TILE) {
    if (FROM_MEMORY) {
      const char* ahead = reinterpret_cast<const char*>(weights) + PREFETCH;
#pragma GCC unroll 32
      for (int line = 0; line < 32; ++line) _mm_prefetch(ahead + line * 64, _MM_HINT_T0);
    }
    _tile_loadd(0, upper, TILE_BYTES);
    _tile_loadd(2, weights, TILE_BYTES);
    _tile_dpbf16ps(4, 0, 2);
    _tile_loadd(3, weights + TILE, TILE_BYTES);
    _tile_dpbf16ps(5, 0, 3);
    if (TWO_TILES) {
      _tile_loadd(1, lower, TILE_BYTES);
      _tile_dpbf16ps(6, 1, 2);
      _tile_dpbf16ps(7, 1, 3);
    }
  }
}

// Rows [row, row + 32) of y, or as many as there are, times one block. The tiles are configured for them.
template <bool FROM_MEMORY>
inline void multiply_rows(const Gemm& gemm, int64_t row, int64_t end_row, int64_t block) {
  const int64_t num_tiles = blocks_of(gemm.k);
  const bf16* x = static_cast<const bf16*>(gemm.x) + row / 16 * num_tiles * TILE;
  const bf16* weights = static_cast<const bf16*>(gemm.packed) + block * num_tiles * 2 * TILE;
  const bool two_tiles = end_row - row > 16;
  alignas(64) float sums[32 * BLOCK];
  _tile_zero(4);
  _tile_zero(5);
  if (two_tiles) {
    _tile_zero(6);
    _tile_zero(7);
    multiply_tiles<true, FROM_MEMORY>(x, x + num_tiles * TILE, weights, num_tiles);
    _tile_stored(6, sums + 16 * BLOCK, BLOCK * sizeof(float));
    _tile_stored(7, sums + 16 * BLOCK + 16, BLOCK * sizeof(float));
  } else {
    multiply_tiles<false, FROM_MEMORY>(x, x, weights, num_tiles);
  }
  _tile_stored(4, sums, BLOCK * sizeof(float));
  _tile_stored(5, sums + 16, BLOCK * sizeof(float));
  for (int64_t r = row; r < end_row; ++r) store_row(gemm, r, block, sums + (r - row) * BLOCK);
}

inline int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }

void multiply(const Gemm& gemm, int64_t first_block, int64_t end_block) {
  int64_t chunk_rows = X_CHUNK_BYTES / (blocks_of(gemm.k) * BLOCK * int64_t(sizeof(bf16))) / 32 * 32;
  if (chunk_rows < 64) chunk_rows = 64;
  int64_t configured = -1;
  for (int64_t chunk = 0; chunk < gemm.m; chunk += chunk_rows) {
    const int64_t chunk_end = at_most(chunk + chunk_rows, gemm.m);
    for (int64_t block = first_block; block < end_block; ++block) {
      for (int64_t row = chunk; row < chunk_end; row += 32) {
        const int64_t num_rows = at_most(chunk_end - row, 32);
        if (num_rows != configured) {
          configure_tiles(int(at_most(num_rows, 16)), int(num_rows - 16));
          configured = num_rows;
        }
        // The first rows fetch the block from memory; the others of the chunk find it in the cache.
        if (row == chunk) {
          multiply_rows<true>(gemm, row, row + num_rows, block);
        } else {
          multiply_rows<false>(gemm, row, row + num_rows, block);
        }
      }
    }
  }
  _tile_release();
}

}  // namespace

const GemmKernel gemm_bf16_amx = {tiles_bytes, to_tiles, multiply};

}  // namespace octavo
