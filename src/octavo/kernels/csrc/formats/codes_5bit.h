// 5-bit codes: eight lines with the low four bits, as in codes_4bit.h, and two lines with the fifth bits:
//
//     word k of line 8 + h:   bit c is the fifth bit of column 16h + c
//
// With AVX512, a table of 32 bf16 values fills one register. It is computed right before it is used and never stored.
#pragma once

#include "codes_4bit.h"

namespace octavo {
namespace {

struct Codes5 {
  static constexpr int64_t STEP_BYTES = Codes4::STEP_BYTES + 2 * LINE_BYTES;

  static int get(const uint8_t* step, int column, int k) {
    const int high = read<uint16_t>(step + high_bits(column) + 2 * k) >> (column % 16) & 1;
    return Codes4::get(step, column, k) | high << 4;
  }
  static void put(uint8_t* step, int column, const uint8_t* codes) {
    Codes4::put(step, column, codes);
    uint8_t* words = step + high_bits(column);
    const int bit = column % 16;
    for (int k = 0; k < CODES_K; ++k) {
      write(words + 2 * k, uint16_t((read<uint16_t>(words + 2 * k) & ~(1 << bit)) | (codes[k] >> 4) << bit));
    }
  }

  static constexpr int AT_ONCE = 2, POSITION[AT_ONCE] = {0, 16};
  static constexpr uint32_t MASK = 31;
  struct Words {
    Codes4::Words low;
    const uint8_t* step;
  };
  static inline void arrange(const uint8_t* step, Words& words) {
    Codes4::arrange(step, words.low);
    words.step = step;
  }
  template <class Lanes>
  static inline void unpack(const Words& words, int k, int column, Lanes (&codes)[AT_ONCE]) {
    Codes4::unpack(words.low, k, column, codes);
    const Lanes fifth = Lanes::broadcast(read<uint32_t>(words.step + high_bits(column) + 2 * k));
    const Lanes columns = Lanes::load(COLUMN_SHIFTS<16>.of + column % HALF_COLUMNS);
    codes[0] = Lanes::choose(0x000f000f, codes[0], fifth.template bits_to<4>(columns));
    codes[1] = codes[0];
  }

#if defined(__AVX512BF16__)
  struct Tables {};
  template <class Format>
  static OCTAVO_INLINED void prepare(const Scales<Format>&, int64_t, int, Tables&) {}

  template <class Format>
  static OCTAVO_INLINED void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>& scales,
                                    const Tables&, bf16* lines) {
    const uint8_t* codes = codes_at<Format>(span, step);
    const int64_t group = group_of<Format>(step * CODES_K);
    const __m512 low = _mm512_loadu_ps(Format::LEVELS), high = _mm512_loadu_ps(Format::LEVELS + 16);
    const __m512i low_four = _mm512_set1_epi16(15);
    const __m512i fifth = _mm512_load_si512(codes + high_bits(half * HALF_COLUMNS));
#pragma GCC unroll 16
    for (int c = 0; c < HALF_COLUMNS; ++c) {
      const int column = half * HALF_COLUMNS + c;
      const __m512 factor = _mm512_set1_ps(scales.factor[group][column]);
      const auto values = [&](__m512 levels) {
        if constexpr (Format::HAS_OFFSET) {
          return _mm512_fmadd_ps(levels, factor, _mm512_set1_ps(scales.offset[group][column]));
        } else {
          return _mm512_mul_ps(levels, factor);
        }
      };
      const __m512i table = __m512i(_mm512_cvtne2ps_pbh(values(high), values(low)));
      const __m512i four = _mm512_srli_epi16(_mm512_load_si512(codes + column / 4 * LINE_BYTES), c % 4 * 4);
      const __m512i bit =
          c < 4 ? _mm512_slli_epi16(fifth, c < 4 ? 4 - c : 0) : _mm512_srli_epi16(fifth, c < 4 ? 0 : c - 4);
      constexpr int FIRST_CHOOSES = 0xca;  // low_four ? four : bit
      const __m512i indices = _mm512_ternarylogic_epi32(low_four, four, bit, FIRST_CHOOSES);
      _mm512_store_si512(lines + c * CODES_K, _mm512_permutexvar_epi16(indices, table));
    }
  }
#endif

 private:
  // Returns the offset of the line with a column's fifth bits in a step.
  static int64_t high_bits(int column) { return Codes4::STEP_BYTES + column / 16 * LINE_BYTES; }
};

#define OCTAVO_THIRTY_TWO_LEVELS(less)                                                                            \
  {0 - less,  1 - less,  2 - less,  3 - less,  4 - less,  5 - less,  6 - less,  7 - less,  8 - less,  9 - less,   \
   10 - less, 11 - less, 12 - less, 13 - less, 14 - less, 15 - less, 16 - less, 17 - less, 18 - less, 19 - less,  \
   20 - less, 21 - less, 22 - less, 23 - less, 24 - less, 25 - less, 26 - less, 27 - less, 28 - less, 29 - less,  \
   30 - less, 31 - less}

}  // namespace
}  // namespace octavo
