// Sixteen lines of sixteen words of 32 bits become their columns: floats, or pairs of bf16.
#pragma once

#include <cstdint>
#include <cstring>
#if defined(__AVX2__)
#include <immintrin.h>
#endif

namespace octavo {
namespace {

#if defined(__AVX512F__)

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
  // Now lines[4i + j] has, in its quarter q, elements 4q + j of the lines 4i to 4i + 3.
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

#endif

// `from` and `to` are sixteen lines of 64 bytes, one after the other, and not the same.
inline void transpose_lines(const void* from, void* to) {
#if defined(__AVX512F__)
  __m512i lines[16];
  for (int i = 0; i < 16; ++i) lines[i] = _mm512_loadu_si512(static_cast<const char*>(from) + i * 64);
  transpose(lines);
  for (int i = 0; i < 16; ++i) _mm512_storeu_si512(static_cast<char*>(to) + i * 64, lines[i]);
#elif defined(__AVX2__)
  // Four squares of eight words.
  for (int row = 0; row < 16; row += 8) {
    for (int column = 0; column < 16; column += 8) {
      __m256 r[8], t[8];
      for (int i = 0; i < 8; ++i) r[i] = _mm256_loadu_ps(static_cast<const float*>(from) + (row + i) * 16 + column);
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
      float* place = static_cast<float*>(to) + column * 16 + row;
      for (int i = 0; i < 4; ++i) {
        _mm256_storeu_ps(place + i * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x20));
        _mm256_storeu_ps(place + (i + 4) * 16, _mm256_permute2f128_ps(r[i], r[i + 4], 0x31));
      }
    }
  }
#else
  for (int row = 0; row < 16; ++row) {
    for (int column = 0; column < 16; ++column) {
      memcpy(static_cast<char*>(to) + (column * 16 + row) * 4, static_cast<const char*>(from) + (row * 16 + column) * 4, 4);
    }
  }
#endif
}

}  // namespace
}  // namespace octavo
