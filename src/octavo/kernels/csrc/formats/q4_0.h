// Q4_0: 4.5 bits a weight.   In the file: d half | 16 bytes of nibbles;   the header: d[32] half
#pragma once

#include "codes_4bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q4_0 {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 18;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr float LEVEL_OF_ZERO = -8;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(8);
  using Codes = Codes4;

  static float level(int code) { return float(code - 8); }

  static void codes(const uint8_t* block, int, uint8_t* codes) { read_nibbles(block + 2, codes); }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 2 * column, block, 2);
    return is_finite_half(block);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) { return {half_at(span, column)}; }
  static void read_scales(const uint8_t* span, Scales<Q4_0>& to) { read_halves(span, to.factor[0]); }
};

}  // namespace
}  // namespace octavo
