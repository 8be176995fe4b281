// The tile registers. Eight of them, each up to 16 rows of 64 bytes. One `tdpbf16ps c, a, b` adds to c (16 x 16
// floats) the product of a (rows x 32 bf16) and b (16 k-pairs x 16 columns x 2 bf16).
//
// Measured: in the slow state that a virtual machine's core falls into for seconds, a loop that uses all eight names
// runs at a quarter of its speed, one that uses four at half, and multiplications without loads at full speed. Our
// guess why: names are renamed to a few more tiles than eight, and the core's other hardware thread, when busy, takes
// its half of them, so that a load has to wait until the last use of its name is done. So: as few tiles as the loads
// allow.
//
// Also measured: while tile instructions are on their way, floating-point instructions of 512 bits start once a cycle and
// not twice. Integer and permutation instructions keep their speed.
//
// The names:
//
//     tile 0      up to 16 rows of x, of queries or of weights of tokens
//     tile 1      16 rows more of x
//     tile 2      16 columns of the weights, the left and then the right half of a block; keys or values
//     tiles 4, 5  the sums of both halves and the rows of tile 0
//     tiles 6, 7  of the rows of tile 1; in attention, more sums of the rows of tile 0
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
  // Not _tile_loadconfig: gcc 12 may drop the stores before it.
  void load() const { __asm__ volatile("ldtilecfg %0" ::"m"(*this) : "memory"); }
};

// Tiles that hold rows of x or y have only as many rows as there are: a row that is not there costs nothing.
// `num_second` are those of tiles 1, 6 and 7.
inline void configure_tiles(int num_rows, int num_second) {
  TileConfig config;
  const int rows[8] = {num_rows, num_second, 16, 0, num_rows, num_rows, num_second, num_second};
  for (int tile = 0; tile < 8; ++tile) config.set(tile, rows[tile], rows[tile] > 0 ? 64 : 0);
  config.load();
}

}  // namespace
}  // namespace octavo
