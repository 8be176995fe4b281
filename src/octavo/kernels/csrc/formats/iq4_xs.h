// IQ4_XS: 4.25 bits per weight, in groups of 32 with a 6-bit scale.
//
//     weight block   d half | high two bits of scales uint16 | low four bits of scales [4 bytes] | 128 bytes of nibbles
//     header         d[32] half | scale[8 groups][32] int8, with 32 subtracted
#pragma once

#include "codes_4bit.h"
#include "iq4_levels.h"
#include "scales.h"

namespace octavo {
namespace {

struct IQ4XS : ByteScales<8> {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 136;
  static constexpr float LEVELS[16] = OCTAVO_IQ4_LEVELS;
  using Codes = Codes4;

  static float level(int code) { return LEVELS[code]; }
  template <class Lanes>
  static auto levels(Lanes codes) { return codes.look_up(LEVELS); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) { read_nibbles(block + 8 + step * 16, codes); }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    const uint16_t high = read<uint16_t>(block + 2);
    const uint8_t* low = block + 4;
    for (int group = 0; group < GROUPS; ++group) {
      const int scale = (low[group / 2] >> (group % 2 * 4) & 15) | (high >> (2 * group) & 3) << 4;
      pack_scale(scale - 32, group, column, span);
    }
    return pack_factor(block, column, span);
  }
};

}  // namespace
}  // namespace octavo
