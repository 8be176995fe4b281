// Q5_K: 5.5 bits per weight.
//
//     weight block   d half | dmin half | 12 bytes of scales | 32 bytes of fifth bits | 128 bytes of nibbles
//     header         see k_scales.h
//
// Bit g of byte i of the fifth bits belongs to weight i of group g.
#pragma once

#include "codes_5bit.h"
#include "k_scales.h"

namespace octavo {
namespace {

struct Q5K : KScales {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 176;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[32] = OCTAVO_THIRTY_TWO_LEVELS(0);
  using Codes = Codes5;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    const uint8_t *fifth = block + 4 + BYTES, *nibbles = fifth + 32;
    read_k_nibbles(nibbles, step, codes);
    for (int k = 0; k < CODES_K; ++k) codes[k] |= uint8_t((fifth[k] >> step & 1) << 4);
  }
};

}  // namespace
}  // namespace octavo
