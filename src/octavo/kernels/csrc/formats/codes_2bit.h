// 2-bit and 3-bit codes. A step has four lines with the low two bits; 3-bit codes have two more lines:
//
//     word k of line l:       column 8l + i in bits 2i and 2i + 1
//     word k of line 4 + h:   bit c is the third bit of column 16h + c
//
// These formats have two groups per step: k below 16 and the others. With AVX512, a table holds 16 bf16 values of each
// group, and bit 4 of an index selects the group. The levels are repeated in the table, so that the value of the bits
// between the code and bit 4 does not matter.
#pragma once

#include "format.h"

namespace octavo {
namespace {

template <int BITS>
struct LowCodes {
  static constexpr int64_t LOW_BYTES = 4 * LINE_BYTES;
  static constexpr int64_t STEP_BYTES = LOW_BYTES + (BITS == 3 ? 2 * LINE_BYTES : 0);

  static int get(const uint8_t* step, int column, int k) {
    int code = read<uint16_t>(step + (column / 8 * CODES_K + k) * 2) >> (column % 8 * 2) & 3;
    if constexpr (BITS == 3) code |= (read<uint16_t>(step + third_bits(column) + 2 * k) >> (column % 16) & 1) << 2;
    return code;
  }
  static void put(uint8_t* step, int column, const uint8_t* codes) {
    uint8_t* words = step + column / 8 * LINE_BYTES;
    const int shift = column % 8 * 2;
    for (int k = 0; k < CODES_K; ++k) {
      write(words + 2 * k, uint16_t((read<uint16_t>(words + 2 * k) & ~(3 << shift)) | (codes[k] & 3) << shift));
    }
    if constexpr (BITS == 3) {
      uint8_t* third = step + third_bits(column);
      const int bit = column % 16;
      for (int k = 0; k < CODES_K; ++k) {
        write(third + 2 * k, uint16_t((read<uint16_t>(third + 2 * k) & ~(1 << bit)) | (codes[k] >> 2) << bit));
      }
    }
  }

  static constexpr int AT_ONCE = 2, POSITION[AT_ONCE] = {0, 16};
  static constexpr uint32_t MASK = (1 << BITS) - 1;
  struct Words {
    alignas(64) uint32_t low[16][4];  // [pair of k][line]
    const uint8_t* step;
  };
  static inline void arrange(const uint8_t* step, Words& words) {
    words_side_by_side(step, words.low);
    words.step = step;
  }
  template <class Lanes>
  static inline void unpack(const Words& words, int k, int column, Lanes (&codes)[AT_ONCE]) {
    const int in_half = column % HALF_COLUMNS;
    const uint32_t* lines = words.low[place_of_word(k / 2)];
    codes[0] = Lanes::template load_repeated<8>(lines + column / 8) >> Lanes::load(COLUMN_SHIFTS<8>.of + in_half);
    if constexpr (BITS == 3) {
      const Lanes third = Lanes::broadcast(read<uint32_t>(words.step + third_bits(column) + 2 * k));
      const Lanes columns = Lanes::load(COLUMN_SHIFTS<16>.of + in_half);
      codes[0] = Lanes::choose(0x00030003, codes[0], third.template bits_to<2>(columns));
    }
    codes[1] = codes[0];
  }

#if defined(__AVX512BF16__)
  struct Tables {};
  template <class Format>
  static OCTAVO_INLINED void prepare(const Scales<Format>&, int64_t, int, Tables&) {}

  template <class Format>
  static OCTAVO_INLINED void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>& scales,
                                    const Tables&, bf16* lines) {
    static_assert(GROUP_K<Format> == 16);
    const uint8_t* codes = codes_at<Format>(span, step);
    const int64_t first = group_of<Format>(step * CODES_K);
    const __m512 levels = _mm512_loadu_ps(Format::LEVELS);
    const __m512i group_bit = _mm512_inserti64x4(_mm512_setzero_si512(), _mm256_set1_epi16(16), 1);
    const __m512i not_bit_4 = _mm512_set1_epi16(~16), low_two = _mm512_set1_epi16(3);
    const __m512i third = BITS == 3 ? _mm512_load_si512(codes + third_bits(half * HALF_COLUMNS)) : group_bit;
#pragma GCC unroll 16
    for (int c = 0; c < HALF_COLUMNS; ++c) {
      const int column = half * HALF_COLUMNS + c;
      const auto values = [&](int64_t group) {
        const __m512 factor = _mm512_set1_ps(scales.factor[group][column]);
        if constexpr (Format::HAS_OFFSET) {
          return _mm512_fmadd_ps(levels, factor, _mm512_set1_ps(scales.offset[group][column]));
        } else {
          return _mm512_mul_ps(levels, factor);
        }
      };
      const __m512i table = __m512i(_mm512_cvtne2ps_pbh(values(first + 1), values(first)));
      __m512i indices = _mm512_srli_epi16(_mm512_load_si512(codes + column / 8 * LINE_BYTES), c % 8 * 2);
      if constexpr (BITS == 3) {
        const __m512i bit =
            c < 2 ? _mm512_slli_epi16(third, c < 2 ? 2 - c : 0) : _mm512_srli_epi16(third, c < 2 ? 0 : c - 2);
        constexpr int FIRST_CHOOSES = 0xca;  // low_two ? indices : bit
        indices = _mm512_ternarylogic_epi32(low_two, indices, bit, FIRST_CHOOSES);
      }
      constexpr int FIRST_OR_BOTH = 0xf8;  // group_bit | (indices & not_bit_4)
      indices = _mm512_ternarylogic_epi32(group_bit, indices, not_bit_4, FIRST_OR_BOTH);
      _mm512_store_si512(lines + c * CODES_K, _mm512_permutexvar_epi16(indices, table));
    }
  }
#endif

 private:
  // Returns the offset of the line with a column's third bits in a step.
  static int64_t third_bits(int column) { return LOW_BYTES + column / 16 * LINE_BYTES; }
};

}  // namespace
}  // namespace octavo
