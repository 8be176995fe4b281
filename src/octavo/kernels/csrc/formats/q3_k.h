// Q3_K: 3.44 bits per weight, in groups of 16 with a 6-bit scale.
//
//     weight block   32 bytes of third bits | 64 bytes of low two bits | 12 bytes of scales | d half
//     header         d[32] half | scale[16 groups][32] int8, with 32 subtracted
#pragma once

#include "q2_k.h"

namespace octavo {
namespace {

struct Q3K : ByteScales<16> {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 110;
  static constexpr float LEVEL_OF_ZERO = -4;
  static constexpr float LEVELS[16] = {-4, -3, -2, -1, 0, 1, 2, 3, -4, -3, -2, -1, 0, 1, 2, 3};
  using Codes = LowCodes<3>;

  static float level(int code) { return float(code - 4); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    read_two_bits(block + 32, step, codes);
    for (int k = 0; k < CODES_K; ++k) codes[k] |= uint8_t((block[k] >> step & 1) << 2);
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    const uint8_t *scales = block + 96, *d = block + 108;
    for (int group = 0; group < GROUPS; ++group) {
      const int low_bits = scales[group % 8] >> (group / 8 * 4) & 15;
      const int high_bits = scales[8 + group % 4] >> (group / 4 * 2) & 3;
      pack_scale((low_bits | high_bits << 4) - 32, group, column, span);
    }
    return pack_factor(d, column, span);
  }
};

}  // namespace
}  // namespace octavo
