// IQ4_NL: 4.5 bits per weight.
//
//     weight block   d half | 16 bytes of nibbles
//     header         d[32] half
#pragma once

#include "codes_4bit.h"
#include "iq4_levels.h"
#include "scales.h"

namespace octavo {
namespace {

struct IQ4NL : HalfScales {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 18;
  static constexpr float LEVELS[16] = OCTAVO_IQ4_LEVELS;
  using Codes = Codes4;

  static float level(int code) { return LEVELS[code]; }
  template <class Lanes>
  static auto levels(Lanes codes) { return codes.look_up(LEVELS); }

  static void codes(const uint8_t* block, int, uint8_t* codes) { read_nibbles(block + 2, codes); }
};

}  // namespace
}  // namespace octavo
