// 4-bit codes. A step is eight lines of 32 words of 16 bits; a word holds the codes of four columns:
//
//     word k of line l:   column 4l in bits 0-3, 4l + 1 in bits 4-7, 4l + 2 in bits 8-11, 4l + 3 in bits 12-15
//
// With AVX512, each column and group has a table of the sixteen bf16 values that its codes stand for; expanding a line
// of 32 weights is one look-up in it. The table is in both halves of a register, so the bits above the four of an index
// do not matter, and nothing is masked, converted or multiplied for each weight. The tables of a step are computed one
// step before they are used, because a load that follows its store too closely stalls.
#pragma once

#include "format.h"

namespace octavo {
namespace {

struct Codes4 {
  static constexpr int64_t STEP_BYTES = 512;

  static int get(const uint8_t* step, int column, int k) {
    return read<uint16_t>(step + (column / 4 * CODES_K + k) * 2) >> (column % 4 * 4) & 15;
  }
  static void put(uint8_t* step, int column, const uint8_t* codes) {
    uint8_t* words = step + column / 4 * LINE_BYTES;
    const int shift = column % 4 * 4;
    for (int k = 0; k < CODES_K; ++k) {
      write(words + 2 * k, uint16_t((read<uint16_t>(words + 2 * k) & ~(15 << shift)) | (codes[k] & 15) << shift));
    }
  }

  static constexpr int AT_ONCE = 2, POSITION[AT_ONCE] = {0, 16};
  static constexpr uint32_t MASK = 15;
  struct Words {
    alignas(64) uint32_t of[2][16][4];  // [half][pair of k][line]
  };
  static inline void arrange(const uint8_t* step, Words& words) {
    for (int half = 0; half < 2; ++half) words_side_by_side(step + half * 4 * LINE_BYTES, words.of[half]);
  }
  template <class Lanes>
  static inline void unpack(const Words& words, int k, int column, Lanes (&codes)[AT_ONCE]) {
    const int in_half = column % HALF_COLUMNS;
    const uint32_t* lines = words.of[column / HALF_COLUMNS][place_of_word(k / 2)];
    codes[0] = Lanes::template load_repeated<4>(lines + in_half / 4) >> Lanes::load(COLUMN_SHIFTS<4>.of + in_half);
    codes[1] = codes[0];
  }

#if defined(__AVX512BF16__)
  struct Tables {
    alignas(64) bf16 table[SPAN_COLUMNS][16];
  };

  // Computes two tables at a time, because the rounding instruction takes two vectors.
  template <class Format>
  static OCTAVO_INLINED void prepare(const Scales<Format>& scales, int64_t step, int half, Tables& tables) {
    const __m512 levels = _mm512_loadu_ps(Format::LEVELS);
    const int64_t group = group_of<Format>(step * CODES_K);
    const auto table = [&](int column) {
      const __m512 factor = _mm512_set1_ps(scales.factor[group][column]);
      if constexpr (Format::HAS_OFFSET) {
        return _mm512_fmadd_ps(levels, factor, _mm512_set1_ps(scales.offset[group][column]));
      } else if constexpr (Format::HAS_ZERO) {
        return _mm512_mul_ps(_mm512_sub_ps(levels, _mm512_set1_ps(scales.zero[group][column])), factor);
      } else {
        return _mm512_mul_ps(levels, factor);
      }
    };
#pragma GCC unroll 8
    for (int column = half * HALF_COLUMNS; column < (half + 1) * HALF_COLUMNS; column += 2) {
      const __m512bh two = _mm512_cvtne2ps_pbh(table(column + 1), table(column));
      _mm512_store_si512(tables.table[column], __m512i(two));
    }
  }

  template <class Format>
  static OCTAVO_INLINED void expand(const uint8_t* span, int64_t step, int half, const Scales<Format>&,
                                    const Tables& tables, bf16* lines) {
    const uint8_t* codes = codes_at<Format>(span, step) + half * 4 * LINE_BYTES;
    const bf16(*table)[16] = tables.table + half * HALF_COLUMNS;
    const auto look_up = [&](int column, __m512i indices) {
      const __m512i both = _mm512_broadcast_i64x4(_mm256_load_si256(reinterpret_cast<const __m256i*>(table[column])));
      _mm512_store_si512(lines + column * CODES_K, _mm512_permutexvar_epi16(indices, both));
    };
#pragma GCC unroll 4
    for (int line = 0; line < 4; ++line) {
      const __m512i words = _mm512_load_si512(codes + line * LINE_BYTES);
      look_up(4 * line, words);
      look_up(4 * line + 1, _mm512_srli_epi16(words, 4));
      look_up(4 * line + 2, _mm512_srli_epi16(words, 8));
      look_up(4 * line + 3, _mm512_srli_epi16(words, 12));
    }
  }
#endif
};

// The levels `code - less`.
#define OCTAVO_SIXTEEN_LEVELS(less)                                                                                \
  {0 - less, 1 - less, 2 - less,  3 - less,  4 - less,  5 - less,  6 - less,  7 - less, 8 - less, 9 - less,       \
   10 - less, 11 - less, 12 - less, 13 - less, 14 - less, 15 - less}

}  // namespace
}  // namespace octavo
