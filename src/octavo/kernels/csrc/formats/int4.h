// 4-bit integers with a scale and a zero point for each group of 32 or 128 k, as in compressed-tensors, GPTQ and AWQ
// checkpoints.
//
//     weight block   scale float | zero uint8 | GROUP / 2 bytes of nibbles, the even k in the low halves
//     header         scale[32] float | zero[32] uint8 | 32 unused bytes
#pragma once

#include "codes_4bit.h"

namespace octavo {
namespace {

template <int64_t GROUP>
struct Int4 {
  static constexpr int64_t BLOCK_K = GROUP, BLOCK_BYTES = 5 + GROUP / 2;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = 3 * LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = true;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(0);
  using Codes = Codes4;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    const uint8_t* pairs = block + 5 + step * (CODES_K / 2);
    for (int i = 0; i < CODES_K / 2; ++i) {
      codes[2 * i] = pairs[i] & 15;
      codes[2 * i + 1] = pairs[i] >> 4;
    }
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 4 * column, block, 4);
    span[2 * LINE_BYTES + column] = block[4];
    return is_scale(block);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) {
    return {read<float>(span + 4 * column), 0.0f, float(span[2 * LINE_BYTES + column])};
  }
  static void read_scales(const uint8_t* span, Scales<Int4>& to) { read_each_scale(span, to); }
};

}  // namespace
}  // namespace octavo
