// Q6_K: 6.56 bits per weight, in groups of 16 with a signed scale.
//
//     weight block   low four bits [2][64 bytes] | high two bits [2][32 bytes] | scale[16] int8 | d half
//     header         d[32] half | scale[16 groups][32] int8
#pragma once

#include "codes_6bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q6K : ByteScales<16> {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 210;
  static constexpr float LEVEL_OF_ZERO = -32;
  using Codes = Codes6;

  static float level(int code) { return float(code - 32); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    const int part = step / 4, quarter = step % 4;  // two parts of four steps
    const uint8_t *low = block + part * 64 + quarter % 2 * 32, *high = block + 128 + part * 32;
    for (int k = 0; k < CODES_K; ++k) {
      codes[k] = uint8_t((low[k] >> (quarter / 2 * 4) & 15) | (high[k] >> (quarter * 2) & 3) << 4);
    }
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    const uint8_t *scales = block + 192, *d = block + 208;
    for (int group = 0; group < GROUPS; ++group) pack_scale(int8_t(scales[group]), group, column, span);
    return pack_factor(d, column, span);
  }
  static void read_scales(const uint8_t* span, Scales<Q6K>& to) {
    ByteScales::read_scales(span, to);
#if defined(__AVX512BF16__)
    fill_back(-32.0f, SIX_BITS, to);
#endif
  }
};

}  // namespace
}  // namespace octavo
