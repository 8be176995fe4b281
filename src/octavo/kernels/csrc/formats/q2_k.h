// Q2_K: 2.625 bits per weight, in groups of 16 with a 4-bit scale and a 4-bit minimum.
//
//     weight block   (scale | minimum << 4)[16] | 64 bytes of codes | d half | dmin half
//     header         d[32] half | dmin[32] half | (scale | minimum << 4)[16 groups][32]
#pragma once

#include "codes_2bit.h"
#include "scales.h"

namespace octavo {
namespace {

// In Q2_K and Q3_K, each of 32 bytes has two bits of each of four steps.
inline void read_two_bits(const uint8_t* bytes, int step, uint8_t* codes) {
  for (int k = 0; k < CODES_K; ++k) codes[k] = bytes[step / 4 * 32 + k] >> (step % 4 * 2) & 3;
}

struct Q2K {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 84;
  static constexpr int64_t GROUPS = 16, HEADER_BYTES = 2 * LINE_BYTES + GROUPS * SPAN_COLUMNS;
  static constexpr bool HAS_OFFSET = true, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[16] = {0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3, 0, 1, 2, 3};
  using Codes = LowCodes<2>;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) { read_two_bits(block + 16, step, codes); }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    const uint8_t *d = block + 80, *dmin = block + 82;
    memcpy(span + 2 * column, d, 2);
    memcpy(span + LINE_BYTES + 2 * column, dmin, 2);
    for (int group = 0; group < GROUPS; ++group) span[2 * LINE_BYTES + group * SPAN_COLUMNS + column] = block[group];
    return is_finite_half(d) && is_finite_half(dmin);
  }
  static Scale scale(const uint8_t* span, int64_t group, int column) {
    const uint8_t both = span[2 * LINE_BYTES + group * SPAN_COLUMNS + column];
    return {half_at(span, column) * float(both & 15), -(half_at(span + LINE_BYTES, column) * float(both >> 4))};
  }
  static void read_scales(const uint8_t* span, Scales<Q2K>& to) {
    alignas(64) float d[SPAN_COLUMNS], minus_dmin[SPAN_COLUMNS];
    read_halves(span, d);
    read_halves(span + LINE_BYTES, minus_dmin);
    for (float& minimum : minus_dmin) minimum = -minimum;
    const uint8_t* both = span + 2 * LINE_BYTES;
    for (int64_t group = 0; group < GROUPS; ++group, both += SPAN_COLUMNS) {
#if defined(OCTAVO_CODE_LANES)
      for (int c = 0; c < SPAN_COLUMNS; c += Vector::WIDTH) {
        const CodeLanes codes = CodeLanes::load_bytes(both + c);
        (Vector::load(d + c) * (codes & 15).to_float()).store(to.factor[group] + c);
        (Vector::load(minus_dmin + c) * codes.right<4>().to_float()).store(to.offset[group] + c);
      }
#else
      for (int c = 0; c < SPAN_COLUMNS; ++c) to.factor[group][c] = d[c] * float(both[c] & 15);
      for (int c = 0; c < SPAN_COLUMNS; ++c) to.offset[group][c] = minus_dmin[c] * float(both[c] >> 4);
#endif
    }
  }
};

}  // namespace
}  // namespace octavo
