// Converts codes to floats in two instructions, with AVX512: a byte permutation inserts sixteen codes into the
// mantissas of a power of two, and a fused multiply-add multiplies by the scale and subtracts the power again:
//
//     (2^p + code) * factor + back,   back = (level of code 0 - 2^p) * factor
//
// That is exact if both products and their sum are, which is the case for scales of at most 19 bits: halves, and halves
// times a small integer.
#pragma once

#include "format.h"

namespace octavo {
namespace {

#if defined(__AVX512BF16__)

struct Mantissa {
  int bits;     // of the power of two as a float
  int byte;     // the byte of the float into which the code is inserted
  float power;  // the power of two
};
constexpr Mantissa SIX_BITS = {0x43000000, 2, 128.0f};      // bit 16 of the float has the value 1
constexpr Mantissa EIGHT_BITS = {0x47000000, 1, 32768.0f};  // bit 8 of the float has the value 1

// Returns sixteen weights, from code 16 * quarter on.
template <const Mantissa& MANTISSA>
OCTAVO_INLINED __m512 mantissa_values(__m512i codes, int quarter, float factor, float back) {
  constexpr int SHIFT = MANTISSA.byte * 8;
  constexpr __mmask64 BYTES = __mmask64(0x1111111111111111) << MANTISSA.byte;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i place = _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16 * quarter)), SHIFT);
  const __m512i floats = _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(MANTISSA.bits), BYTES, place, codes);
  return _mm512_fmadd_ps(__m512(floats), _mm512_set1_ps(factor), _mm512_set1_ps(back));
}

// `level_of_zero` is the level of the code that is 0 in the mantissa.
template <class Format>
inline void fill_back(float level_of_zero, const Mantissa& mantissa, Scales<Format>& scales) {
  for (int64_t group = 0; group < Format::GROUPS; ++group) {
    for (int column = 0; column < SPAN_COLUMNS; ++column) {
      scales.back[group][column] = scales.factor[group][column] * (level_of_zero - mantissa.power);
    }
  }
}

#endif

}  // namespace
}  // namespace octavo
