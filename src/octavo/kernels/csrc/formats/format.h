// Formats in which weights stay quantised, and the code that they share.
//
// The value of a weight is computed from its code and the scale of its group, and rounded to bf16:
//
//     value = bf16((level(code) - zero) * factor + offset)
//
// The product is rounded at most once before the offset is added: it is exact in all formats with an offset, so a fused
// multiply-add gives the same bits as a multiplication and an addition. The values are those of the widened checkpoint
// (`gguf.dequantize`, then bf16): the storage format does not change results.
//
// Packed form. A column block is 32 columns of y (rows of w), in two halves of 16. A step is 32 k. A span has as many
// steps as one weight block of the file, so that its scales are read once:
//
//     packed = [n / 32 column blocks][k / BLOCK_K spans] of SPAN_BYTES:   header | SPAN_STEPS steps of codes
//
// All sizes are multiples of a cache line. Columns beyond n are filled with zeros; their results are never read.
//
// A format is a struct with
//
//     BLOCK_K, BLOCK_BYTES   size of a weight block (of one row) in the file
//     GROUPS                 number of scales per weight block; each is for BLOCK_K / GROUPS consecutive k
//     HEADER_BYTES           size of the header of a span
//     Codes                  layout of the codes of a step: codes_*.h
//     level(code)            the number that a code stands for
//     LEVEL_OF_ZERO          the level of code 0, if level(code) = LEVEL_OF_ZERO + code; other formats have
//     levels(lanes)          the levels of a register of codes (code_lanes.h)
//     HAS_ZERO, HAS_OFFSET   whether scales have a zero point or an offset
//     VALUES                 the range of values before they are rounded
//     codes(block, step, codes)           reads the 32 codes of a step from a weight block
//     pack_scales(block, column, span)    writes its scales to the header; false if one is not finite or not `is_scale`
//     scale(span, group, column)          reads one scale from the header: the reference for `read_scales`
//     read_scales(span, scales)           reads the scales of all columns
#pragma once

#include <cstdint>
#include <cstring>

#include "../code_lanes.h"
#include "../transpose.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

// For functions that expand weights in an inner loop: by default gcc does not inline half of them, which costs up to a
// fifth of the time.
#define OCTAVO_INLINED inline __attribute__((always_inline))

namespace octavo {
namespace {

constexpr int SPAN_COLUMNS = 32, HALF_COLUMNS = 16, CODES_K = 32;
constexpr int LINE_BYTES = 64;

enum class Values {
  BF16,      // nothing to round
  ORDINARY,  // 0, or from 2^-110 to 2^110: far from the limits of float, and so are all intermediate results
};

struct Scale {
  float factor, offset = 0.0f, zero = 0.0f;
};

// The scales of a span: [group][column].
template <class Format>
struct Scales {
  alignas(64) float factor[Format::GROUPS][SPAN_COLUMNS];
  alignas(64) float offset[Format::HAS_OFFSET ? Format::GROUPS : 1][SPAN_COLUMNS];
  alignas(64) float zero[Format::HAS_ZERO ? Format::GROUPS : 1][SPAN_COLUMNS];
#if defined(__AVX512BF16__)
  alignas(64) float back[Format::GROUPS][SPAN_COLUMNS];  // for formats that use mantissa_codes.h
#endif
};

template <class Format>
constexpr int64_t SPAN_STEPS = Format::BLOCK_K / CODES_K;
template <class Format>
constexpr int64_t SPAN_BYTES = Format::HEADER_BYTES + SPAN_STEPS<Format>* Format::Codes::STEP_BYTES;
template <class Format>
constexpr int64_t GROUP_K = Format::BLOCK_K / Format::GROUPS;

// Returns the offset of the span with `step` of a column block, from the start of the packed weights.
template <class Format>
constexpr int64_t span_offset(int64_t k, int64_t block, int64_t step) {
  return (block * (k / Format::BLOCK_K) + step / SPAN_STEPS<Format>) * SPAN_BYTES<Format>;
}

// The number of spans beyond the last that an expansion that works ahead may read.
constexpr int64_t SLACK_SPANS = 4;

// The codes of a step.
template <class Format>
inline const uint8_t* codes_at(const uint8_t* span, int64_t step) {
  return span + Format::HEADER_BYTES + step * Format::Codes::STEP_BYTES;
}

// Returns the group of k, where k is relative to the start of the span.
template <class Format>
constexpr int64_t group_of(int64_t k) {
  return k / GROUP_K<Format>;
}

template <class Format>
inline float value_of(const Scale& scale, int code) {
  float value = Format::level(code);
  if constexpr (Format::HAS_ZERO) value -= scale.zero;
  value *= scale.factor;
  if constexpr (Format::HAS_OFFSET) value += scale.offset;
  return value;
}

template <class Format>
inline Scale scale_at(const Scales<Format>& scales, int64_t group, int column) {
  Scale scale = {scales.factor[group][column]};
  if constexpr (Format::HAS_OFFSET) scale.offset = scales.offset[group][column];
  if constexpr (Format::HAS_ZERO) scale.zero = scales.zero[group][column];
  return scale;
}

// Reads all scales of a span one by one, for formats without a vectorised `read_scales`.
template <class Format>
inline void read_each_scale(const uint8_t* span, Scales<Format>& to) {
  for (int64_t group = 0; group < Format::GROUPS; ++group) {
    for (int column = 0; column < SPAN_COLUMNS; ++column) {
      const Scale scale = Format::scale(span, group, column);
      to.factor[group][column] = scale.factor;
      if constexpr (Format::HAS_OFFSET) to.offset[group][column] = scale.offset;
      if constexpr (Format::HAS_ZERO) to.zero[group][column] = scale.zero;
    }
  }
}

// Packs a weight block of one row into its column of a span. Returns false if a scale or a weight is not finite.
template <class Format>
inline bool pack(const uint8_t* block, int column, uint8_t* span) {
  for (int64_t step = 0; step < SPAN_STEPS<Format>; ++step) {
    uint8_t codes[CODES_K];
    Format::codes(block, int(step), codes);
    Format::Codes::put(span + Format::HEADER_BYTES + step * Format::Codes::STEP_BYTES, column, codes);
  }
  return Format::pack_scales(block, column, span);
}

// The reference, one weight at a time: unpacks BLOCK_K values of one column. The operations are in the same order as in
// `gguf`, so even the signs of zeros are the same. (Products do not depend on them, because sums begin with +0.)
template <class Format>
inline void unpack(const uint8_t* span, int column, float* values) {
  for (int64_t k = 0; k < Format::BLOCK_K; ++k) {
    const int code = Format::Codes::get(codes_at<Format>(span, k / CODES_K), column, int(k % CODES_K));
    values[k] = value_of<Format>(Format::scale(span, group_of<Format>(k), column), code);
  }
}

// -- Columns side by side in a register -------------------------------------------------------------------------------
//
// For the expansion in expand.h, Codes have
//
//     Words                  a step, arranged so that one load reads a register of columns
//     arrange(step, words)   fills the Words
//     unpack(words, k, column, codes)   returns the codes of k to k + AT_ONCE - 1, for the columns from `column` on
//     POSITION[AT_ONCE]      the bit of a word at which a code begins
//     MASK                   the bits of a code at position 0; other bits of a word are undefined

// How far the word of a column is shifted if COLUMNS columns share 16 bits.
template <int COLUMNS>
struct ColumnShifts {
  uint32_t of[HALF_COLUMNS];
  constexpr ColumnShifts() : of() {
    for (int column = 0; column < HALF_COLUMNS; ++column) of[column] = uint32_t(column % COLUMNS * (16 / COLUMNS));
  }
};
template <int COLUMNS>
constexpr ColumnShifts<COLUMNS> COLUMN_SHIFTS;

// -- Numbers in headers and blocks ------------------------------------------------------------------------------------

template <class Number>
inline Number read(const uint8_t* from) {
  Number number;
  memcpy(&number, from, sizeof number);
  return number;
}

template <class Number>
inline void write(uint8_t* to, Number number) {
  memcpy(to, &number, sizeof number);
}

inline float half_to_float(uint16_t half) {
#if defined(__F16C__)
  return _cvtsh_ss(half);
#else
  // Subnormal halves are small multiples of 2^-24. Infinity and NaN have the largest exponent in both types.
  const uint32_t sign = uint32_t(half & 0x8000) << 16, magnitude = half & 0x7fff;
  const float small = float(int32_t(magnitude)) * 0x1p-24f;
  uint32_t bits;
  memcpy(&bits, &small, sizeof bits);
  if (magnitude >= 0x0400) bits = (magnitude << 13) + 0x38000000;
  if (magnitude >= 0x7c00) bits |= 0x7f800000;
  bits |= sign;
  float value;
  memcpy(&value, &bits, sizeof value);
  return value;
#endif
}

inline float half_at(const uint8_t* from, int index) { return half_to_float(read<uint16_t>(from + 2 * index)); }

inline bool is_finite_half(const uint8_t* half) { return (read<uint16_t>(half) & 0x7c00) != 0x7c00; }
// Whether a float is a valid scale: 0, or a magnitude from 2^-100 to 2^100.
inline bool is_scale(const uint8_t* number) {
  const float scale = __builtin_fabsf(read<float>(number));
  return scale == 0.0f || (scale >= 0x1p-100f && scale <= 0x1p100f);
}

// Reads the nibbles of 32 k, in the order of most formats: byte j holds k = j in its low half and k = 16 + j in its
// high half.
inline void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) codes[j] = bytes[j] & 15;
  for (int j = 0; j < 16; ++j) codes[16 + j] = bytes[j] >> 4;
}

// Sets bit `place` of 32 codes from 32 bits. Eight at a time: each byte of `selected` is a copy of one byte of bits, of
// which it keeps one bit.
inline void add_bits(const uint8_t* bits, int place, uint8_t* codes) {
  for (int first = 0; first < CODES_K; first += 8) {
    const uint64_t selected = bits[first / 8] * uint64_t(0x0101010101010101) & uint64_t(0x8040201008040201);
    const uint64_t are_set = (selected + uint64_t(0x7f7f7f7f7f7f7f7f)) >> 7 & uint64_t(0x0101010101010101);
    write(codes + first, read<uint64_t>(codes + first) | are_set << place);
  }
}

}  // namespace
}  // namespace octavo
