// 6-bit codes. A step is four times three lines; three lines hold eight columns, 32 bytes per column:
//
//     bits 0-5 of lines 0, 1, 2:   columns 0 and 1, columns 2 and 3, columns 4 and 5
//     bits 6-7 of lines 0, 1, 2:   bits 0-1, 2-3 and 4-5 of columns 6 and 7
#pragma once

#include "mantissa_codes.h"

namespace octavo {
namespace {

struct Codes6 {
  static constexpr int64_t STEP_BYTES = 12 * LINE_BYTES;

  static int get(const uint8_t* step, int column, int k) {
    const uint8_t* bytes = step + bytes_at(column) + k;
    if (column % 8 < 6) return *bytes & 63;
    return bytes[0] >> 6 | bytes[LINE_BYTES] >> 6 << 2 | bytes[2 * LINE_BYTES] >> 6 << 4;
  }
  static void put(uint8_t* step, int column, const uint8_t* codes) {
    uint8_t* bytes = step + bytes_at(column);
    if (column % 8 < 6) {
      for (int k = 0; k < CODES_K; ++k) bytes[k] = uint8_t((bytes[k] & 0xc0) | codes[k]);
      return;
    }
    for (int line = 0; line < 3; ++line, bytes += LINE_BYTES) {
      for (int k = 0; k < CODES_K; ++k) bytes[k] = uint8_t((bytes[k] & 63) | (codes[k] >> (2 * line) & 3) << 6);
    }
  }

  static constexpr int AT_ONCE = 4, POSITION[AT_ONCE] = {0, 8, 16, 24};
  static constexpr uint32_t MASK = 63;
  struct Words {
    alignas(64) uint32_t of[CODES_K / 4][SPAN_COLUMNS];
  };
  static inline void arrange(const uint8_t* step, Words& words) {
    alignas(64) uint8_t columns[SPAN_COLUMNS * CODES_K];
    uint8_t* to = columns;
    for (int eight = 0; eight < 4; ++eight, step += 3 * LINE_BYTES, to += 4 * LINE_BYTES) {
      for (int i = 0; i < LINE_BYTES; ++i) {  // not memcpy: later loads would stall on its shorter stores
        const uint8_t a = step[i], b = step[LINE_BYTES + i], c = step[2 * LINE_BYTES + i];
        to[i] = a;
        to[LINE_BYTES + i] = b;
        to[2 * LINE_BYTES + i] = c;
        to[3 * LINE_BYTES + i] = uint8_t(a >> 6 | (b >> 4 & 0x0c) | (c >> 2 & 0x30));
      }
    }
    columns_side_by_side(columns, words.of);
  }
  template <class Lanes>
  static inline void unpack(const Words& words, int k, int column, Lanes (&codes)[AT_ONCE]) {
    codes[0] = codes[1] = codes[2] = codes[3] = Lanes::load(words.of[k / 4] + column);
  }

#if defined(__AVX512BF16__)
  struct Tables {};
  template <class Format>
  static OCTAVO_INLINED void prepare(const Scales<Format>&, int64_t, int, Tables&) {}

  // For formats with two groups per step: k below 16 and the others.
  template <class Format>
  static OCTAVO_INLINED void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>& scales,
                                    const Tables&, bf16* lines) {
    static_assert(GROUP_K<Format> == 16 && !Format::HAS_OFFSET);
    const int64_t group = group_of<Format>(step * CODES_K);
    const uint8_t* codes = codes_at<Format>(span, step) + half * (STEP_BYTES / 2);
    const __m512i low_six = _mm512_set1_epi8(63), low_four = _mm512_set1_epi8(15), low_two = _mm512_set1_epi8(3);
    constexpr int FIRST_CHOOSES = 0xca;
#pragma GCC unroll 2
    for (int eight = 0; eight < 2; ++eight, codes += 3 * LINE_BYTES) {
      const __m512i a = _mm512_load_si512(codes), b = _mm512_load_si512(codes + LINE_BYTES);
      const __m512i c = _mm512_load_si512(codes + 2 * LINE_BYTES);
      const __m512i low =
          _mm512_ternarylogic_epi32(low_two, _mm512_srli_epi16(a, 6), _mm512_srli_epi16(b, 4), FIRST_CHOOSES);
      const __m512i last = _mm512_ternarylogic_epi32(low_four, low, _mm512_srli_epi16(c, 2), FIRST_CHOOSES);
      const int first = half * HALF_COLUMNS + eight * 8;
      bf16* to = lines + eight * 8 * CODES_K;
      two_columns(_mm512_and_si512(a, low_six), scales, group, first, to);
      two_columns(_mm512_and_si512(b, low_six), scales, group, first + 2, to + 2 * CODES_K);
      two_columns(_mm512_and_si512(c, low_six), scales, group, first + 4, to + 4 * CODES_K);
      two_columns(_mm512_and_si512(last, low_six), scales, group, first + 6, to + 6 * CODES_K);
    }
  }
#endif

 private:
  static int64_t bytes_at(int column) {
    const int pair = column % 8 / 2;
    return column / 8 * 3 * LINE_BYTES + (pair < 3 ? pair * LINE_BYTES : 0) + column % 2 * 32;
  }

#if defined(__AVX512BF16__)
  template <class Format>
  static OCTAVO_INLINED void two_columns(__m512i codes, const Scales<Format>& scales, int64_t group, int column,
                                         bf16* lines) {
#pragma GCC unroll 2
    for (int c = 0; c < 2; ++c) {
      const auto values = [&](int half) {
        return mantissa_values<SIX_BITS>(codes, 2 * c + half, scales.factor[group + half][column + c],
                                         scales.back[group + half][column + c]);
      };
      _mm512_store_si512(lines + c * CODES_K, __m512i(_mm512_cvtne2ps_pbh(values(1), values(0))));
    }
  }
#endif
};

}  // namespace
}  // namespace octavo
