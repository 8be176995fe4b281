// Reads the scales of all columns of a span from its header.
#pragma once

#include "format.h"

namespace octavo {
namespace {

// Reads 32 halves (IEEE 754 binary16), one for each column.
inline void read_halves(const uint8_t* header, float* to) {
#if defined(__AVX512F__)
  for (int column = 0; column < SPAN_COLUMNS; column += 16) {
    const __m256i halves = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(header + 2 * column));
    _mm512_store_ps(to + column, _mm512_cvtph_ps(halves));
  }
#elif defined(__F16C__)
  for (int column = 0; column < SPAN_COLUMNS; column += 8) {
    const __m128i halves = _mm_loadu_si128(reinterpret_cast<const __m128i*>(header + 2 * column));
    _mm256_store_ps(to + column, _mm256_cvtph_ps(halves));
  }
#else
  for (int column = 0; column < SPAN_COLUMNS; ++column) to[column] = half_at(header, column);
#endif
}

// Reads a header `d[32] half | scale[groups][32] int8`: factor[group][column] = d[column] * scale[group][column].
template <int64_t GROUPS>
inline void read_scaled_bytes(const uint8_t* header, float (&factor)[GROUPS][SPAN_COLUMNS]) {
  alignas(64) float d[SPAN_COLUMNS];
  read_halves(header, d);
  const uint8_t* scales = header + LINE_BYTES;
  for (int64_t group = 0; group < GROUPS; ++group, scales += SPAN_COLUMNS) {
#if defined(OCTAVO_CODE_LANES)
    for (int column = 0; column < SPAN_COLUMNS; column += Vector::WIDTH) {
      const Vector signed_byte = CodeLanes::load_bytes(scales + column).left<24>().right_signed<24>().to_float();
      (Vector::load(d + column) * signed_byte).store(factor[group] + column);
    }
#else
    for (int column = 0; column < SPAN_COLUMNS; ++column) {
      factor[group][column] = d[column] * float(int8_t(scales[column]));
    }
#endif
  }
}

// Returns one of these factors.
inline float scaled_byte(const uint8_t* header, int64_t group, int column) {
  const int8_t scale = int8_t(header[LINE_BYTES + group * SPAN_COLUMNS + column]);
  return half_at(header, column) * float(scale);
}

// -- Base classes of formats with the same kind of scales -------------------------------------------------------------

// Weight blocks begin with a factor, d half.   The header: d[32] half
struct HalfScales {
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;

  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 2 * column, block, 2);
    return is_finite_half(block);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) { return {half_at(span, column)}; }
  template <class Format>
  static void read_scales(const uint8_t* span, Scales<Format>& to) {
    read_halves(span, to.factor[0]);
  }
};

// Weight blocks begin with a factor and an offset, d half | m half.   The header: d[32] half | m[32] half
struct HalfScalesAndOffsets {
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = 2 * LINE_BYTES;
  static constexpr bool HAS_OFFSET = true, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;

  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 2 * column, block, 2);
    memcpy(span + LINE_BYTES + 2 * column, block + 2, 2);
    return is_finite_half(block) && is_finite_half(block + 2);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) {
    return {half_at(span, column), half_at(span + LINE_BYTES, column)};
  }
  template <class Format>
  static void read_scales(const uint8_t* span, Scales<Format>& to) {
    read_halves(span, to.factor[0]);
    read_halves(span + LINE_BYTES, to.offset[0]);
  }
};

// Weight blocks have a factor d, and groups an integer multiple of it.   The header:
// d[32] half | scale[NUM_GROUPS][32] int8
template <int64_t NUM_GROUPS>
struct ByteScales {
  static constexpr int64_t GROUPS = NUM_GROUPS, HEADER_BYTES = LINE_BYTES + NUM_GROUPS * SPAN_COLUMNS;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;

  static bool pack_factor(const uint8_t* d, int column, uint8_t* span) {
    memcpy(span + 2 * column, d, 2);
    return is_finite_half(d);
  }
  static void pack_scale(int scale, int64_t group, int column, uint8_t* span) {
    span[LINE_BYTES + group * SPAN_COLUMNS + column] = uint8_t(int8_t(scale));
  }
  static Scale scale(const uint8_t* span, int64_t group, int column) { return {scaled_byte(span, group, column)}; }
  template <class Format>
  static void read_scales(const uint8_t* span, Scales<Format>& to) {
    read_scaled_bytes(span, to.factor);
  }
};

}  // namespace
}  // namespace octavo
