// Q5_1: 6 bits a weight.   In the file: d half | m half | fifth bits uint32 | 16 bytes of nibbles
// The header: d[32] half | m[32] half
#pragma once

#include "codes_5bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q5_1 {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 24;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = 2 * LINE_BYTES;
  static constexpr bool HAS_OFFSET = true, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[32] = OCTAVO_THIRTY_TWO_LEVELS(0);
  using Codes = Codes5;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int, uint8_t* codes) {
    read_nibbles(block + 8, codes);
    add_bits(block + 4, 4, codes);
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 2 * column, block, 2);
    memcpy(span + LINE_BYTES + 2 * column, block + 2, 2);
    return is_finite_half(block) && is_finite_half(block + 2);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) {
    return {half_at(span, column), half_at(span + LINE_BYTES, column)};
  }
  static void read_scales(const uint8_t* span, Scales<Q5_1>& to) {
    read_halves(span, to.factor[0]);
    read_halves(span + LINE_BYTES, to.offset[0]);
  }
};

}  // namespace
}  // namespace octavo
