// Q4_0: 4.5 bits per weight.
//
//     weight block   d half | 16 bytes of nibbles
//     header         d[32] half
#pragma once

#include "codes_4bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q4_0 : HalfScales {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 18;
  static constexpr float LEVEL_OF_ZERO = -8;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(8);
  using Codes = Codes4;

  static float level(int code) { return float(code - 8); }

  static void codes(const uint8_t* block, int, uint8_t* codes) { read_nibbles(block + 2, codes); }
};

}  // namespace
}  // namespace octavo
