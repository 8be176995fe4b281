// MXFP4: 4.25 bits per weight: 4-bit floats (1 bit sign, 2 bits exponent, 1 bit mantissa), and a power of two for each
// 32 of them.
//
//     weight block   exponent uint8 | 16 bytes of nibbles
//     header         exponent[32] uint8 | 32 unused bytes
//
// Levels are twice the 4-bit floats, which makes them integers; the factor is half the stored power of two.
#pragma once

#include "codes_4bit.h"

namespace octavo {
namespace {

struct MXFP4 {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 17;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  static constexpr Values VALUES = Values::BF16;
  static constexpr float LEVELS[16] = {0, 1, 2, 3, 4, 6, 8, 12, 0, -1, -2, -3, -4, -6, -8, -12};
  using Codes = Codes4;

  static float level(int code) { return LEVELS[code]; }
  template <class Lanes>
  static auto levels(Lanes codes) { return codes.look_up(LEVELS); }

  static void codes(const uint8_t* block, int, uint8_t* codes) { read_nibbles(block + 1, codes); }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    constexpr uint8_t MAX_EXPONENT = 252;  // the maximum with which the greatest level is finite
    span[column] = block[0];
    return block[0] <= MAX_EXPONENT;
  }
  static Scale scale(const uint8_t* span, int64_t, int column) {
    const uint32_t exponent = span[column];
    const uint32_t bits = exponent < 2 ? uint32_t(0x00200000) << exponent : (exponent - 1) << 23;
    Scale scale = {};
    memcpy(&scale.factor, &bits, sizeof bits);
    return scale;
  }
  static void read_scales(const uint8_t* span, Scales<MXFP4>& to) { read_each_scale(span, to); }
};

}  // namespace
}  // namespace octavo
