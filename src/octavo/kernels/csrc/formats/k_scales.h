// The scales of Q4_K and Q5_K. A weight block has a factor d and a minimum dmin, and each of its eight groups has a
// 6-bit scale and a 6-bit minimum, which are multiples of d and dmin:
//
//     factor = d * scale,  offset = -(dmin * minimum)
//
// In the file, twelve bytes hold the sixteen numbers:
//
//     bytes 0-3    scales 0-3 in six bits; bits 4-5 of scales 4-7 above
//     bytes 4-7    minima 0-3 in six bits; bits 4-5 of minima 4-7 above
//     bytes 8-11   bits 0-3 of scales 4-7; bits 0-3 of minima 4-7 above
//
// The header of a span, 512 bytes, holds the same bytes, with those of 16 columns side by side:
//
//     d[32] half | dmin[32] half | for each half of the columns [3 parts][4 bytes][16 columns]
#pragma once

#include "scales.h"

namespace octavo {
namespace {

struct KScales {
  static constexpr int64_t GROUPS = 8, HEADER_BYTES = 512;
  static constexpr bool HAS_OFFSET = true, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  static constexpr int64_t BYTES = 12;  // of scales and minima in a weight block

  // `block` begins with d, dmin and the twelve bytes.
  static bool pack_scales(const uint8_t* block, int column, uint8_t* header) {
    memcpy(header + 2 * column, block, 2);
    memcpy(header + LINE_BYTES + 2 * column, block + 2, 2);
    for (int i = 0; i < BYTES; ++i) header[place(column, i)] = block[4 + i];
    return is_finite_half(block) && is_finite_half(block + 2);
  }

  static Scale scale(const uint8_t* header, int64_t group, int column) {
    const auto byte = [&](int64_t i) { return header[place(column, i)]; };
    const int64_t i = group % 4;
    const int scale = group < 4 ? byte(i) & 63 : (byte(8 + i) & 15) | byte(i) >> 6 << 4;
    const int minimum = group < 4 ? byte(4 + i) & 63 : byte(8 + i) >> 4 | byte(4 + i) >> 6 << 4;
    return {half_at(header, column) * float(scale), -(half_at(header + LINE_BYTES, column) * float(minimum))};
  }

  template <class Format>
  static void read_scales(const uint8_t* header, Scales<Format>& to) {
    alignas(64) float d[SPAN_COLUMNS], dmin[SPAN_COLUMNS];
    read_halves(header, d);
    read_halves(header + LINE_BYTES, dmin);
    for (int first = 0; first < SPAN_COLUMNS; first += HALF_COLUMNS) {
      const uint8_t* bytes = header + place(first, 0);
#if defined(__AVX512BF16__)
      read_half(bytes, _mm512_load_ps(d + first), _mm512_load_ps(dmin + first), first, to);
#elif defined(OCTAVO_CODE_LANES)
      for (int c = 0; c < HALF_COLUMNS; c += Vector::WIDTH) {
        read_columns(bytes + c, Vector::load(d + first + c), Vector::load(dmin + first + c), first + c, to);
      }
#else
      for (int i = 0; i < 4; ++i) {
        for (int c = 0; c < HALF_COLUMNS; ++c) {
          const uint8_t a = bytes[i * 16 + c], b = bytes[(4 + i) * 16 + c], both = bytes[(8 + i) * 16 + c];
          to.factor[i][first + c] = d[first + c] * float(a & 63);
          to.offset[i][first + c] = -(dmin[first + c] * float(b & 63));
          to.factor[4 + i][first + c] = d[first + c] * float((both & 15) | a >> 6 << 4);
          to.offset[4 + i][first + c] = -(dmin[first + c] * float(both >> 4 | b >> 6 << 4));
        }
      }
#endif
    }
  }

 private:
  // Returns the offset in the header of one of the twelve bytes of a column.
  static int64_t place(int column, int64_t byte) {
    return 2 * LINE_BYTES + column / 16 * 3 * LINE_BYTES + byte * 16 + column % 16;
  }

#if defined(__AVX512BF16__)
  // A 6-bit number n in the mantissa of 128.0 makes 128 + n; a fused multiply-add subtracts the 128 exactly.
  template <class Format>
  static inline void read_half(const uint8_t* bytes, __m512 d, __m512 dmin, int first, Scales<Format>& to) {
    const __m512i low_six = _mm512_set1_epi8(63), low_four = _mm512_set1_epi8(15), middle = _mm512_set1_epi8(0x30);
    const __m512i a = _mm512_loadu_si512(bytes), b = _mm512_loadu_si512(bytes + 64);
    const __m512i c = _mm512_loadu_si512(bytes + 128);
    constexpr int FIRST_OR_BOTH = 0xf8;  // x | (y & z)
    const __m512i scales[2] = {_mm512_and_si512(a, low_six),
                               _mm512_ternarylogic_epi32(_mm512_and_si512(c, low_four), _mm512_srli_epi16(a, 2), middle,
                                                         FIRST_OR_BOTH)};
    const __m512i minima[2] = {_mm512_and_si512(b, low_six),
                               _mm512_ternarylogic_epi32(_mm512_and_si512(_mm512_srli_epi16(c, 4), low_four),
                                                         _mm512_srli_epi16(b, 2), middle, FIRST_OR_BOTH)};
    const __m512i lanes = _mm512_setr_epi32(0, 1 << 16, 2 << 16, 3 << 16, 4 << 16, 5 << 16, 6 << 16, 7 << 16, 8 << 16,
                                            9 << 16, 10 << 16, 11 << 16, 12 << 16, 13 << 16, 14 << 16, 15 << 16);
    const __m512i one_twenty_eight = _mm512_set1_epi32(0x43000000);
    constexpr __mmask64 THIRD_BYTES = 0x4444444444444444;
    const __m512 d_128 = _mm512_mul_ps(d, _mm512_set1_ps(-128.0f));
    const __m512 dmin_128 = _mm512_mul_ps(dmin, _mm512_set1_ps(128.0f));
    for (int group = 0; group < 8; ++group) {
      const __m512i place = _mm512_add_epi32(lanes, _mm512_set1_epi32(group % 4 << 20));
      const auto shifted = [&](__m512i numbers) {
        return __m512(_mm512_mask_permutexvar_epi8(one_twenty_eight, THIRD_BYTES, place, numbers));
      };
      _mm512_store_ps(to.factor[group] + first, _mm512_fmadd_ps(shifted(scales[group / 4]), d, d_128));
      _mm512_store_ps(to.offset[group] + first, _mm512_fnmadd_ps(shifted(minima[group / 4]), dmin, dmin_128));
    }
  }
#elif defined(OCTAVO_CODE_LANES)
  template <class Scales>
  static inline void read_columns(const uint8_t* bytes, Vector d, Vector dmin, int column, Scales& to) {
    const Vector minus_dmin = Vector::zero() - dmin;
    for (int i = 0; i < 4; ++i) {
      const CodeLanes a = CodeLanes::load_bytes(bytes + i * 16), b = CodeLanes::load_bytes(bytes + (4 + i) * 16);
      const CodeLanes both = CodeLanes::load_bytes(bytes + (8 + i) * 16);
      (d * (a & 63).to_float()).store(to.factor[i] + column);
      (minus_dmin * (b & 63).to_float()).store(to.offset[i] + column);
      (d * CodeLanes::choose(15, both, a.right<2>()).to_float()).store(to.factor[4 + i] + column);
      (minus_dmin * CodeLanes::choose(15, both.right<4>(), b.right<2>()).to_float()).store(to.offset[4 + i] + column);
    }
  }
#endif
};

// In both formats two steps share 32 bytes of nibbles: the first step is in the low halves.
inline void read_k_nibbles(const uint8_t* nibbles, int step, uint8_t* codes) {
  const int shift = step % 2 * 4;
  for (int k = 0; k < CODES_K; ++k) codes[k] = nibbles[step / 2 * 32 + k] >> shift & 15;
}

}  // namespace
}  // namespace octavo
