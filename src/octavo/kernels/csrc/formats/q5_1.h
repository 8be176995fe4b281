// Q5_1: 6 bits per weight.
//
//     weight block   d half | m half | fifth bits uint32 | 16 bytes of nibbles
//     header         d[32] half | m[32] half
#pragma once

#include "codes_5bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q5_1 : HalfScalesAndOffsets {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 24;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[32] = OCTAVO_THIRTY_TWO_LEVELS(0);
  using Codes = Codes5;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int, uint8_t* codes) {
    read_nibbles(block + 8, codes);
    add_bits(block + 4, 4, codes);
  }
};

}  // namespace
}  // namespace octavo
