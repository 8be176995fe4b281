// Transposes 32-bit words: floats, pairs of bf16, or codes of weights.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

#if defined(__AVX512F__)

// Transposes sixteen lines of sixteen words.
inline void transpose(__m512i (&lines)[16]) {
  __m512i t[16];
  for (int i = 0; i < 8; ++i) {
    t[2 * i] = _mm512_unpacklo_epi32(lines[2 * i], lines[2 * i + 1]);
    t[2 * i + 1] = _mm512_unpackhi_epi32(lines[2 * i], lines[2 * i + 1]);
  }
  for (int i = 0; i < 4; ++i) {
    lines[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
    lines[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
    lines[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
    lines[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
  }
  // Now quarter q of lines[4i + j] holds elements 4q + j of the lines 4i to 4i + 3.
  for (int j = 0; j < 4; ++j) {
    t[j] = _mm512_shuffle_i32x4(lines[j], lines[j + 4], 0x88);
    t[j + 4] = _mm512_shuffle_i32x4(lines[j], lines[j + 4], 0xdd);
    t[j + 8] = _mm512_shuffle_i32x4(lines[j + 8], lines[j + 12], 0x88);
    t[j + 12] = _mm512_shuffle_i32x4(lines[j + 8], lines[j + 12], 0xdd);
  }
  for (int j = 0; j < 4; ++j) {
    lines[j] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0x88);
    lines[j + 8] = _mm512_shuffle_i32x4(t[j], t[j + 8], 0xdd);
    lines[j + 4] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0x88);
    lines[j + 12] = _mm512_shuffle_i32x4(t[j + 4], t[j + 12], 0xdd);
  }
}

// Transposes sixteen contiguous lines of 64 bytes.
inline void transpose_lines(const float* from, float* to) {
  __m512i lines[16];
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_loadu_si512(from + i * 16);
  transpose(lines);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(to + i * 16, lines[i]);
}

#elif defined(__AVX2__)

// Transposes eight lines of eight words. Strides are in words.
inline void transpose_square(const float* from, int64_t from_stride, float* to, int64_t to_stride) {
  __m256 r[8], t[8];
  for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(from + i * from_stride);
  for (int i = 0; i < 4; ++i) {
    t[2 * i] = _mm256_unpacklo_ps(r[2 * i], r[2 * i + 1]);
    t[2 * i + 1] = _mm256_unpackhi_ps(r[2 * i], r[2 * i + 1]);
  }
  for (int i = 0; i < 2; ++i) {
    r[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
    r[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
    r[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
    r[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
  }
  for (int i = 0; i < 4; ++i) {
    _mm256_storeu_ps(to + i * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
    _mm256_storeu_ps(to + (i + 4) * to_stride, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
  }
}

#endif

// -- Codes of weights -------------------------------------------------------------------------------------------------

// Returns where `words_side_by_side` puts word i of its four lines. The order depends on the ISA, because registers are
// stored without reordering.
constexpr int place_of_word(int i) {
#if defined(__AVX512F__)
  return i % 4 * 4 + i / 4;
#elif defined(__AVX2__)
  return i / 8 * 8 + i % 4 * 2 + i % 8 / 4;
#else
  return i;
#endif
}

// Transposes four lines of sixteen words to [16 places][4 lines].
inline void words_side_by_side(const uint8_t* lines, uint32_t (&to)[16][4]) {
#if defined(__AVX512F__)
  __m512i line[4];
  for (int i = 0; i < 4; ++i) line[i] = _mm512_loadu_si512(lines + i * 64);
  const __m512i a = _mm512_unpacklo_epi32(line[0], line[1]), b = _mm512_unpackhi_epi32(line[0], line[1]);
  const __m512i c = _mm512_unpacklo_epi32(line[2], line[3]), d = _mm512_unpackhi_epi32(line[2], line[3]);
  _mm512_storeu_si512(to[0], _mm512_unpacklo_epi64(a, c));
  _mm512_storeu_si512(to[4], _mm512_unpackhi_epi64(a, c));
  _mm512_storeu_si512(to[8], _mm512_unpacklo_epi64(b, d));
  _mm512_storeu_si512(to[12], _mm512_unpackhi_epi64(b, d));
#elif defined(__AVX2__)
  for (int first = 0; first < 16; first += 8) {
    __m256i line[4];
    for (int i = 0; i < 4; ++i) {
      line[i] = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(lines + i * 64 + first * 4));
    }
    const __m256i a = _mm256_unpacklo_epi32(line[0], line[1]), b = _mm256_unpackhi_epi32(line[0], line[1]);
    const __m256i c = _mm256_unpacklo_epi32(line[2], line[3]), d = _mm256_unpackhi_epi32(line[2], line[3]);
    __m256i* place = reinterpret_cast<__m256i*>(to[first]);
    _mm256_storeu_si256(place, _mm256_unpacklo_epi64(a, c));
    _mm256_storeu_si256(place + 1, _mm256_unpackhi_epi64(a, c));
    _mm256_storeu_si256(place + 2, _mm256_unpacklo_epi64(b, d));
    _mm256_storeu_si256(place + 3, _mm256_unpackhi_epi64(b, d));
  }
#else
  for (int i = 0; i < 16; ++i) {
    for (int line = 0; line < 4; ++line) memcpy(&to[i][line], lines + line * 64 + i * 4, 4);
  }
#endif
}

// Transposes 32 columns of 32 bytes, in words of four bytes, to [8 words][32 columns].
inline void columns_side_by_side(const uint8_t* columns, uint32_t (&to)[8][32]) {
#if defined(__AVX512F__)
  for (int half = 0; half < 2; ++half, columns += 512) {
    __m512i r[8], t[8];
    for (int i = 0; i < 8; ++i) {  // columns i and i + 4 for i < 4; columns i + 4 and i + 8 otherwise
      const __m256i* from = reinterpret_cast<const __m256i*>(columns) + i / 4 * 8 + i % 4;
      r[i] = _mm512_inserti64x4(_mm512_castsi256_si512(_mm256_loadu_si256(from)), _mm256_loadu_si256(from + 4), 1);
    }
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm512_unpacklo_epi32(r[2 * i], r[2 * i + 1]);
      t[2 * i + 1] = _mm512_unpackhi_epi32(r[2 * i], r[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      r[4 * i] = _mm512_unpacklo_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 1] = _mm512_unpackhi_epi64(t[4 * i], t[4 * i + 2]);
      r[4 * i + 2] = _mm512_unpacklo_epi64(t[4 * i + 1], t[4 * i + 3]);
      r[4 * i + 3] = _mm512_unpackhi_epi64(t[4 * i + 1], t[4 * i + 3]);
    }
    for (int i = 0; i < 4; ++i) {
      _mm512_storeu_si512(to[i] + half * 16, _mm512_shuffle_i32x4(r[i], r[i + 4], 0x88));
      _mm512_storeu_si512(to[i + 4] + half * 16, _mm512_shuffle_i32x4(r[i], r[i + 4], 0xdd));
    }
  }
#elif defined(__AVX2__)
  for (int column = 0; column < 32; column += 8) {
    transpose_square(reinterpret_cast<const float*>(columns + column * 32), 8,
                     reinterpret_cast<float*>(to[0] + column), 32);
  }
#else
  for (int word = 0; word < 8; ++word) {
    for (int column = 0; column < 32; ++column) memcpy(&to[word][column], columns + column * 32 + word * 4, 4);
  }
#endif
}

}  // namespace
}  // namespace octavo
