// The tile registers. Eight of them, each up to 16 rows of 64 bytes. One `tdpbf16ps c, a, b` adds to c (16 x 16
// floats) the product of a (rows x 32 bf16) and b (16 k-pairs x 16 columns x 2 bf16).
//
// Measured: in the slow state that a virtual machine's core falls into for seconds, a loop that uses all eight names
// runs at a quarter of its speed, one that uses four at half, and multiplications without loads at full speed. Our
// guess why: names are renamed to a few more tiles than eight, and the core's other hardware thread, when busy, takes
// its half of them, so that a load has to wait until the last use of its name is done. So: as few tiles as the loads
// allow.
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
