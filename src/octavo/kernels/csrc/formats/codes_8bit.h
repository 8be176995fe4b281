// 8-bit codes: 32 bytes per column, column after column.
#pragma once

#include "format.h"

namespace octavo {
namespace {

struct Codes8 {
  static constexpr int64_t STEP_BYTES = SPAN_COLUMNS * CODES_K;

  static int get(const uint8_t* step, int column, int k) { return step[column * CODES_K + k]; }
  static void put(uint8_t* step, int column, const uint8_t* codes) {
    memcpy(step + column * CODES_K, codes, CODES_K);
  }

  // `unpack` returns codes in the highest byte of their words.
  static constexpr int AT_ONCE = 4, POSITION[AT_ONCE] = {};
  struct Words {
    alignas(64) uint32_t of[CODES_K / 4][SPAN_COLUMNS];
  };
  static inline void arrange(const uint8_t* step, Words& words) { columns_side_by_side(step, words.of); }
  template <class Lanes>
  static inline void unpack(const Words& words, int k, int column, Lanes (&codes)[AT_ONCE]) {
    codes[3] = Lanes::load(words.of[k / 4] + column);
    codes[0] = codes[3].template left<24>();
    codes[1] = codes[3].template left<16>();
    codes[2] = codes[3].template left<8>();
  }

#if defined(__AVX512BF16__)
  struct Tables {};
  template <class Format>
  static OCTAVO_INLINED void prepare(const Scales<Format>&, int64_t, int, Tables&) {}

  template <class Format>
  static OCTAVO_INLINED void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>& scales,
                                    const Tables&, bf16* lines) {
    static_assert(!Format::HAS_OFFSET && !Format::HAS_ZERO);
    const int64_t group = group_of<Format>(step * CODES_K);
    const uint8_t* codes = codes_at<Format>(span, step) + half * HALF_COLUMNS * CODES_K;
#pragma GCC unroll 8
    for (int c = 0; c < HALF_COLUMNS; c += 2, codes += 2 * CODES_K) {
      const int column = half * HALF_COLUMNS + c;
      // Sixteen values of two columns: quarters 0 and 1 are of the first column.
      const auto values = [&](int quarter) {
        return Format::sixteen_values(codes, quarter, scales, group, column + quarter / 2);
      };
      _mm512_store_si512(lines + c * CODES_K, __m512i(_mm512_cvtne2ps_pbh(values(1), values(0))));
      _mm512_store_si512(lines + (c + 1) * CODES_K, __m512i(_mm512_cvtne2ps_pbh(values(3), values(2))));
    }
  }
#endif
};

}  // namespace
}  // namespace octavo
