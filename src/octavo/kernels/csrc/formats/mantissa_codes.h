// Codes to floats in two instructions, with AVX512: a byte permutation puts sixteen codes into the mantissas of a power of
// two, and a fused multiply-add multiplies by the scale and takes the power off again:
//
//     (2^p + code) * factor + back,   back = (level of code 0 - 2^p) * factor
//
// That is exact where both products are, and their difference: for scales of at most 19 bits, as halves and halves times
// a small integer are.
#pragma once

#include "format.h"

namespace octavo {
namespace {

#if defined(__AVX512BF16__)

// The power of two as a float's bits, and which byte of a float the code becomes.
struct Mantissa {
  int bits;
  int byte;
  float power;
};
constexpr Mantissa SIX_BITS = {0x43000000, 2, 128.0f};      // bit 16 counts 1
constexpr Mantissa EIGHT_BITS = {0x47000000, 1, 32768.0f};  // bit 8 counts 1

// Sixteen weights: codes 16 * quarter and on.
template <const Mantissa& MANTISSA>
OCTAVO_INLINED __m512 mantissa_values(__m512i codes, int quarter, float factor, float back) {
  constexpr int SHIFT = MANTISSA.byte * 8;
  constexpr __mmask64 BYTES = __mmask64(0x1111111111111111) << MANTISSA.byte;
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i place = _mm512_slli_epi32(_mm512_add_epi32(lanes, _mm512_set1_epi32(16 * quarter)), SHIFT);
  const __m512i floats = _mm512_mask_permutexvar_epi8(_mm512_set1_epi32(MANTISSA.bits), BYTES, place, codes);
  return _mm512_fmadd_ps(__m512(floats), _mm512_set1_ps(factor), _mm512_set1_ps(back));
}

// `level_of_zero`: of the code 0, as it is put into the mantissa.
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
