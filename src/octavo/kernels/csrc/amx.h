// The tile registers. There are eight, each with up to 16 rows of 64 bytes. One `tdpbf16ps c, a, b` adds to c (16 x 16
// floats) the product of a (rows x 32 bf16) and b (16 k-pairs x 16 columns x 2 bf16).
//
// Measured: cores of virtual machines have a slow state that lasts for seconds. In it, a loop that uses all eight tiles
// runs at a quarter of its speed, a loop that uses four at half, and multiplications without loads at full speed.
// Likely reason (a guess): the core renames tiles to only a few more than eight physical tiles, and its other hardware
// thread, when busy, takes half of them, so that a load has to wait for the last use of its tile. Therefore the kernels
// use as few tiles as the loads allow.
//
// Also measured: while tile instructions are in flight, 512-bit floating-point instructions start once per cycle
// instead of twice. Integer and permutation instructions keep their speed.
//
// Use of the tiles:
//
//     tile 0      up to 16 rows of x, of queries or of weights of tokens
//     tile 1      16 more rows of x
//     tile 2      16 columns of the weights, the left and then the right half of a column block; keys or values
//     tiles 4, 5  the sums of both halves for the rows of tile 0
//     tiles 6, 7  the sums for the rows of tile 1; in attention, more sums for the rows of tile 0
#pragma once

#include <immintrin.h>

#include <cstdint>

namespace octavo {
namespace {

struct alignas(64) TileConfig {
  uint8_t palette = 1;
  uint8_t start_row = 0;
  uint8_t reserved[14] = {};
  uint16_t row_bytes[16] = {};
  uint8_t rows[16] = {};

  void set(int tile, int num_rows, int64_t bytes_of_row) {
    rows[tile] = uint8_t(num_rows);
    row_bytes[tile] = uint16_t(bytes_of_row);
  }
  // Not _tile_loadconfig: gcc 12 may remove the stores before it.
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
};

// Tiles with rows of x or y get only as many rows as needed, since rows that are not configured cost nothing.
// `num_second` is the number of rows of tiles 1, 6 and 7.
inline void configure_tiles(int num_rows, int num_second) {
  TileConfig config;
  const int rows[8] = {num_rows, num_second, 16, 0, num_rows, num_rows, num_second, num_second};
  for (int tile = 0; tile < 8; ++tile) config.set(tile, rows[tile], rows[tile] > 0 ? 64 : 0);
  config.load();
}

}  // namespace
}  // namespace octavo
