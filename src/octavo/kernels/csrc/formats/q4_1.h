// Q4_1: 5 bits per weight.
//
//     weight block   d half | m half | 16 bytes of nibbles
//     header         d[32] half | m[32] half
#pragma once

#include "codes_4bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q4_1 : HalfScalesAndOffsets {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 20;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(0);
  using Codes = Codes4;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int, uint8_t* codes) { read_nibbles(block + 4, codes); }
};

}  // namespace
}  // namespace octavo
