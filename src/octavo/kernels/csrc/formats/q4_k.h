// Q4_K: 4.5 bits a weight.   In the file: d half | dmin half | 12 bytes of scales | 128 bytes of nibbles
#pragma once

#include "codes_4bit.h"
#include "k_scales.h"

namespace octavo {
namespace {

struct Q4K {
  static constexpr int64_t BLOCK_K = 256, BLOCK_BYTES = 144;
  static constexpr int64_t GROUPS = KScales::GROUPS, HEADER_BYTES = KScales::HEADER_BYTES;
  static constexpr bool HAS_OFFSET = true, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr float LEVEL_OF_ZERO = 0;
  static constexpr float LEVELS[16] = OCTAVO_SIXTEEN_LEVELS(0);
  using Codes = Codes4;

  static float level(int code) { return float(code); }

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    read_k_nibbles(block + 4 + KScales::BYTES, step, codes);
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) { return KScales::pack(block, column, span); }
  static Scale scale(const uint8_t* span, int64_t group, int column) { return KScales::scale(span, group, column); }
  static void read_scales(const uint8_t* span, Scales<Q4K>& to) { KScales::read_scales(span, to); }
};

}  // namespace
}  // namespace octavo
