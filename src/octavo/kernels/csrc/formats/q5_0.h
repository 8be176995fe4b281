// Q5_0: 5.5 bits per weight.
//
//     weight block   d half | fifth bits uint32 | 16 bytes of nibbles
//     header         d[32] half
#pragma once

#include "codes_5bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q5_0 : HalfScales {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 22;
  static constexpr float LEVEL_OF_ZERO = -16;
  static constexpr float LEVELS[32] = OCTAVO_THIRTY_TWO_LEVELS(16);
  using Codes = Codes5;

  static float level(int code) { return float(code - 16); }

  static void codes(const uint8_t* block, int, uint8_t* codes) {
    read_nibbles(block + 6, codes);
    add_bits(block + 2, 4, codes);
  }
};

}  // namespace
}  // namespace octavo
