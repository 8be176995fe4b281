// Codes of eight bits: a column's 32 bytes follow those of the column before it.
#pragma once

#include "format.h"

namespace octavo {
namespace {

struct Codes8 {
  static constexpr int64_t STEP_BYTES = SPAN_COLUMNS * CODES_K;

  static int get(const uint8_t* step, int column, int k) { return step[column * CODES_K + k]; }
  static void put(uint8_t* step, int column, int k, int code) { step[column * CODES_K + k] = uint8_t(code); }
  static void column(const uint8_t* step, int column, uint8_t* codes) {
    memcpy(codes, step + column * CODES_K, CODES_K);
  }

#if defined(__AVX512BF16__)
  struct Tables {};
  template <class Format>
  static inline void prepare(const Scales<Format>&, int64_t, int, Tables&) {}

  template <class Format>
  static inline void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>& scales, const Tables&,
                            bf16* lines) {
    static_assert(!Format::HAS_OFFSET && !Format::HAS_ZERO);
    const int64_t group = group_of<Format>(step * CODES_K);
    const uint8_t* codes = codes_at<Format>(span, step) + half * HALF_COLUMNS * CODES_K;
#pragma GCC unroll 16
    for (int c = 0; c < HALF_COLUMNS; ++c, codes += CODES_K) {
      const __m512 factor = _mm512_set1_ps(scales.factor[group][half * HALF_COLUMNS + c]);
      const auto values = [&](int k) {
        const __m128i bytes = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + k));
        return _mm512_mul_ps(Format::sixteen_levels(bytes), factor);
      };
      _mm512_store_si512(lines + c * CODES_K, __m512i(_mm512_cvtne2ps_pbh(values(16), values(0))));
    }
  }
#endif
};

}  // namespace
}  // namespace octavo
