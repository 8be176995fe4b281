// Formats in which weights stay quantised, and what they have in common.
//
// The value of a weight is computed from its code and the scale of its group, and rounded to bf16:
//
//     value = bf16((level(code) - zero) * factor + offset)
//
// The product rounds at most once before the offset is added: it is exact wherever there is an offset, so a fused
// multiply-add gives the same bits as a multiplication and an addition. These are the values that widening the
// checkpoint gives (`gguf.dequantize`, then bf16): storage is not part of the function.
//
// The packed form. A block is 32 columns of y (rows of w), in two halves of 16. A step is 32 k. A span is as many steps
// as one block of the file has, so that its scales are read once:
//
//     packed = [n / 32 blocks][k / BLOCK_K spans] of SPAN_BYTES:   header | SPAN_STEPS steps of codes
//
// Everything is whole cache lines. Columns beyond n are zeros, which every format takes for the weight 0 or, with
// a product of 0, for what nobody reads.
//
// A format is a struct with
//
//     BLOCK_K, BLOCK_BYTES   the block of one row, as it is in the file
//     GROUPS                 scales of a block; each is that of BLOCK_K / GROUPS consecutive k
//     HEADER_BYTES           of a span
//     Codes                  how the codes of a step lie: codes_*.h
//     level(code)            from codes to numbers
//     LEVEL_OF_ZERO          where a level is that and the code, or
//     levels(lanes)          those of a register (code_lanes.h)
//     HAS_ZERO, HAS_OFFSET   whether a scale has them
//     VALUES                 what values can be, before they are rounded
//     codes(block, step, codes)           the 32 codes of a step, out of one row's block
//     pack_scales(block, column, span)    its scales to the header; false if one is not finite, or beyond `is_scale`
//     scale(span, group, column)          back again: the reference for `read_scales`
//     read_scales(span, scales)           those of all columns
#pragma once

#include <cstdint>
#include <cstring>

#include "../code_lanes.h"
#include "../transpose.h"
#if defined(__F16C__)
#include <immintrin.h>
#endif

// For what is expanded in an inner loop: gcc, left to itself, makes calls of half of it, which costs up to a fifth of the
// time.
#define OCTAVO_INLINED inline __attribute__((always_inline))

namespace octavo {
namespace {

constexpr int SPAN_COLUMNS = 32, HALF_COLUMNS = 16, CODES_K = 32;
constexpr int LINE_BYTES = 64;

enum class Values {
  BF16,      // nothing to round
  ORDINARY,  // 0, or from 2^-110 to 2^110: far from both ends of a float's range, and so is all they are computed from
};

struct Scale {
  float factor, offset = 0.0f, zero = 0.0f;
};

// Those of a span: [group][column].
template <class Format>
struct Scales {
  alignas(64) float factor[Format::GROUPS][SPAN_COLUMNS];
  alignas(64) float offset[Format::HAS_OFFSET ? Format::GROUPS : 1][SPAN_COLUMNS];
  alignas(64) float zero[Format::HAS_ZERO ? Format::GROUPS : 1][SPAN_COLUMNS];
#if defined(__AVX512BF16__)
  alignas(64) float back[Format::GROUPS][SPAN_COLUMNS];  // mantissa_codes.h: of formats that use it
#endif
};

template <class Format>
constexpr int64_t SPAN_STEPS = Format::BLOCK_K / CODES_K;
template <class Format>
constexpr int64_t SPAN_BYTES = Format::HEADER_BYTES + SPAN_STEPS<Format>* Format::Codes::STEP_BYTES;
template <class Format>
constexpr int64_t GROUP_K = Format::BLOCK_K / Format::GROUPS;

// Where a span lies, from the start of the packed weights: that of `step` of a block.
template <class Format>
constexpr int64_t span_offset(int64_t k, int64_t block, int64_t step) {
  return (block * (k / Format::BLOCK_K) + step / SPAN_STEPS<Format>) * SPAN_BYTES<Format>;
}

// A product that expands ahead of itself reads that much beyond the last span.
constexpr int64_t SLACK_SPANS = 4;

// The codes of a step.
template <class Format>
inline const uint8_t* codes_at(const uint8_t* span, int64_t step) {
  return span + Format::HEADER_BYTES + step * Format::Codes::STEP_BYTES;
}

// The group of k, counted from the start of the span.
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

// All scales of a span, one after the other: what a format without a `read_scales` of its own has.
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

// One row's block to its column of a span. False if a scale or a weight is not finite.
template <class Format>
inline bool pack(const uint8_t* block, int column, uint8_t* span) {
  for (int64_t step = 0; step < SPAN_STEPS<Format>; ++step) {
    uint8_t codes[CODES_K];
    Format::codes(block, int(step), codes);
    Format::Codes::put(span + Format::HEADER_BYTES + step * Format::Codes::STEP_BYTES, column, codes);
  }
  return Format::pack_scales(block, column, span);
}

// The reference, one weight at a time: BLOCK_K values of one column. `gguf` computes them in this order, so that even
// the signs of zeros are the same. (A product cannot tell zeros apart: sums begin with +0.)
template <class Format>
inline void unpack(const uint8_t* span, int column, float* values) {
  for (int64_t k = 0; k < Format::BLOCK_K; ++k) {
    const int code = Format::Codes::get(codes_at<Format>(span, k / CODES_K), column, int(k % CODES_K));
    values[k] = value_of<Format>(Format::scale(span, group_of<Format>(k), column), code);
  }
}

// -- Codes side by side -----------------------------------------------------------------------------------------------
//
// Where columns are side by side in a register (expand.h), codes have
//
//     Words                  a step, so arranged that a register of columns is loaded at once
//     arrange(step, words)
//     unpack(words, k, column, codes)   of AT_ONCE k from k on, and the columns from `column` on
//     POSITION[AT_ONCE]      in which bit of a word a code begins, and MASK: its bits. What is beside it is anything.

// By how much the word of a column is shifted, in which COLUMNS share 16 bits.
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
  // Subnormal halves are small integers, counted by 2^-24. Infinities and not-a-numbers have the largest exponent in both.
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
// A scale that is a float: 0, or from 2^-100 to 2^100.
inline bool is_scale(const uint8_t* number) {
  const float scale = __builtin_fabsf(read<float>(number));
  return scale == 0.0f || (scale >= 0x1p-100f && scale <= 0x1p100f);
}

// Nibbles of a block of 32, as in most formats: byte j holds k = j in its low and k = 16 + j in its high half.
inline void read_nibbles(const uint8_t* bytes, uint8_t* codes) {
  for (int j = 0; j < 16; ++j) codes[j] = bytes[j] & 15;
  for (int j = 0; j < 16; ++j) codes[16 + j] = bytes[j] >> 4;
}

// One bit of each of 32 numbers becomes bit `place` of their codes. Eight at a time: a byte's copies, in each of which
// one bit is looked at.
inline void add_bits(const uint8_t* bits, int place, uint8_t* codes) {
  for (int first = 0; first < CODES_K; first += 8) {
    const uint64_t looked_at = bits[first / 8] * uint64_t(0x0101010101010101) & uint64_t(0x8040201008040201);
    const uint64_t are_set = (looked_at + uint64_t(0x7f7f7f7f7f7f7f7f)) >> 7 & uint64_t(0x0101010101010101);
    write(codes + first, read<uint64_t>(codes + first) | are_set << place);
  }
}

}  // namespace
}  // namespace octavo
