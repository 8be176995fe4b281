// Q8_0: 8.5 bits a weight.   In the file: d half | 32 int8;   the header: d[32] half
#pragma once

#include "codes_8bit.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q8_0 {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 34;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  using Codes = Codes8;

  static float level(int code) { return float(int8_t(code)); }
#if defined(__AVX512BF16__)
  static __m512 sixteen_levels(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
#endif

  static bool pack(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 2 * column, block, 2);
    memcpy(span + HEADER_BYTES + column * CODES_K, block + 2, CODES_K);
    return is_finite_half(block);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) { return {half_at(span, column)}; }
  static void read_scales(const uint8_t* span, Scales<Q8_0>& to) { read_halves(span, to.factor[0]); }
};

}  // namespace
}  // namespace octavo
