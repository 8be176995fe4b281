// The tile registers. Eight of them, each up to 16 rows of 64 bytes. One `tdpbf16ps c, a, b` adds to c (16 x 16
// floats) the product of a (rows x 32 bf16) and b (16 k-pairs x 16 columns x 2 bf16).
//
// There are more tiles than these eight names, so that a load need not wait until the last multiplication with that
// name is done. But the two hardware threads of a core seem to share them (measured, not documented): while the other
// one is busy (it may be another virtual machine's), a loop that uses all eight names waits at every load and falls to
// a quarter of its speed; one that uses four names falls to half. So: as few tiles as the loads allow.
//
// The names, as `configure_tiles` gives them their rows (a kernel need not use them all):
//
//     tiles 0, 1   x: the upper and the lower 16 rows
//     tiles 2, 3   weights: the left and the right 16 columns of a block
//     tiles 4 - 7  sums:   4 = 0 x 2    5 = 0 x 3
//                          6 = 1 x 2    7 = 1 x 3
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
};

// Tiles that hold rows of x or y have only as many rows as there are: a row that is not there costs nothing.
inline void configure_tiles(int upper_rows, int lower_rows) {
  TileConfig config;
  const int lower = lower_rows > 0 ? lower_rows : 1;  // a tile of no rows is not allowed
  const int rows[8] = {upper_rows, lower, 16, 16, upper_rows, upper_rows, lower, lower};
  for (int i = 0; i < 8; ++i) {
    config.row_bytes[i] = 64;
    config.rows[i] = uint8_t(rows[i]);
  }
  // Not _tile_loadconfig: gcc 12 may drop the stores to `config` before it.
  __asm__ volatile("ldtilecfg %0" ::"m"(config) : "memory");
}

}  // namespace
}  // namespace octavo
