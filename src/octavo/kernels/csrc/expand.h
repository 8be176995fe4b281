// Expands a step of quantised weights to tiles of floats, in the layout that the vector units' product reads
// (tile_product.h).
//
// The lanes of a register are columns, and each k has its own registers. This is the layout of the tiles, so only the
// codes are transposed, which have few bits. Scales of a group are in registers of their own:
//
//     codes of a k, WIDTH columns   ->   floats   ->   * factor + offset   ->   rounded to bf16
//
// A code that is not in the lowest bits of its word is not shifted. Its value is too large by 2^position, so there is a
// factor for each position, divided by 2^position.
#pragma once

#include "formats/all.h"
#include "code_lanes.h"
#include "tile_product.h"

namespace octavo {
namespace {

#if defined(OCTAVO_CODE_LANES)

// Returns the nearest bf16, ties to even, for numbers from 2^-126 to 2^111. The product x - 2^16 * x is rounded to 24
// bits, which drops the bits of x beyond its first eight; added to 2^16 * x it leaves the rounded eight bits. (In a
// tie, 2^16 * x is even, so it is x that is rounded to even.)
inline Vector nearest_bf16(Vector x) {
  return Vector::fma(x, Vector::broadcast(65536.0f), x * Vector::broadcast(-65535.0f));
}

// The scales of WIDTH columns of a group.
template <class Format>
class Columns {
 public:
  Columns(const Scales<Format>& scales, int64_t group, int column) {
    const Vector factor = Vector::load(scales.factor[group] + column);
    for (int i = 0; i < Codes::AT_ONCE; ++i) {
      factor_[i] = factor * Vector::broadcast(1.0f / float(1u << Codes::POSITION[i]));
      if constexpr (Format::HAS_ZERO) {
        zero_[i] = Vector::load(scales.zero[group] + column) * Vector::broadcast(float(1u << Codes::POSITION[i]));
      }
    }
    if constexpr (Format::HAS_OFFSET) {
      offset_ = Vector::load(scales.offset[group] + column);
    } else if constexpr (!HAS_LEVELS) {
      offset_ = factor * Vector::broadcast(Format::LEVEL_OF_ZERO);  // exact: a power of two
    }
  }

  // Returns the values of codes[I], as returned by Codes::unpack.
  template <int I>
  inline Vector values(CodeLanes codes) const {
    constexpr int POSITION = Codes::POSITION[I];
    if constexpr (HAS_LEVELS) {
      return rounded(Format::levels(codes.template right<POSITION>()) * factor_[0]);
    } else {
      const Vector levels = (codes & Codes::MASK << POSITION).to_float();
      if constexpr (Format::HAS_ZERO) return rounded((levels - zero_[I]) * factor_[I]);
      return rounded(Vector::fma(levels, factor_[I], offset_));
    }
  }

 private:
  using Codes = typename Format::Codes;
  static constexpr bool HAS_LEVELS = requires(CodeLanes codes) { Format::levels(codes); };

  static inline Vector rounded(Vector values) {
    if constexpr (Format::VALUES == Values::BF16) return values;
    return nearest_bf16(values);
  }

  Vector factor_[Codes::AT_ONCE], zero_[Codes::AT_ONCE], offset_;
};

template <class Format>
inline void expand_step(const uint8_t* span, int64_t step, const Scales<Format>& scales, float* tiles) {
  using Codes = typename Format::Codes;
  constexpr int PIECE = GROUP_K<Format> < CODES_K ? int(GROUP_K<Format>) : CODES_K;
  typename Codes::Words words;
  Codes::arrange(codes_at<Format>(span, step), words);
  for (int column = 0; column < SPAN_COLUMNS; column += Vector::WIDTH) {
    float* to = tiles + column / TILE_COLUMNS * TILE_ELEMENTS + column % TILE_COLUMNS;
    for (int first = 0; first < CODES_K; first += PIECE) {
      const Columns<Format> columns(scales, group_of<Format>(step * CODES_K + first), column);
#pragma GCC unroll 16
      for (int k = first; k < first + PIECE; k += Codes::AT_ONCE) {
        CodeLanes codes[Codes::AT_ONCE];
        Codes::unpack(words, k, column, codes);
        float* line = to + k * TILE_COLUMNS;
        columns.template values<0>(codes[0]).store(line);
        columns.template values<1>(codes[1]).store(line + TILE_COLUMNS);
        if constexpr (Codes::AT_ONCE == 4) {
          columns.template values<2>(codes[2]).store(line + 2 * TILE_COLUMNS);
          columns.template values<3>(codes[3]).store(line + 3 * TILE_COLUMNS);
        }
      }
    }
  }
}

#else

// The reference: one weight at a time.
template <class Format>
inline void expand_step(const uint8_t* span, int64_t step, const Scales<Format>& scales, float* tiles) {
  for (int column = 0; column < SPAN_COLUMNS; ++column) {
    float* to = tiles + column / TILE_COLUMNS * TILE_ELEMENTS + column % TILE_COLUMNS;
    for (int k = 0; k < CODES_K; ++k) {
      const Scale scale = scale_at(scales, group_of<Format>(step * CODES_K + k), column);
      const float value = value_of<Format>(scale, Format::Codes::get(codes_at<Format>(span, step), column, k));
      to[k * TILE_COLUMNS] = to_float(to_bf16(value));
    }
  }
}

#endif

}  // namespace
}  // namespace octavo
