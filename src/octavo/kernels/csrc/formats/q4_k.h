// Q4_K: 4.5 bits per weight.
//
//     weight block   d half | dmin half | 12 bytes of scales | 128 bytes of nibbles
//     header         see k_scales.h
#pragma once

#include "codes_4bit.h"
#include "k_scales.h"

namespace octavo {
namespace {

struct Q4K : KScales {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 144;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(0);
  using Codes = Codes4;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    read_k_nibbles(block + 4 + BYTES, step, codes);
  }
};

}  // namespace
}  // namespace octavo
