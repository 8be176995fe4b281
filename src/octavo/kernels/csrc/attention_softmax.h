// The softmax of one row in one split, and the merging of splits: one definition for every ISA. Compiled by each ISA's
// object for itself.
//
//     greatest  the greatest product of the row's query and a key, of those that it sees
//     peak      greatest * factor: see `log2_factor` and `peak_of`
//     weight    2^(product * factor - peak), with the exponent rounded once
//     total     16 sums, sum i over the weights of the tokens i, i + 16, ..., upwards, and these in a tree (Lanes::sum)
//     sums      of weight * value: in float one chain over the tokens, in bf16 the product of tile_product.h, with
//               weights that are rounded to bf16 (those in the total are not)
//
// Splits are then merged in order. A row without a weight is none; a key that is not seen adds exactly nothing.
//
// A product that is not a number makes its weight so, and with it the total and all that the row gets.
#pragma once

#include "attention.h"
#include "vector_math.h"

namespace octavo {
namespace {

// Tokens [begin, end) of a split.
struct Span {
  int begin, end;
  bool is_empty() const { return begin >= end; }
  bool operator==(const Span& other) const { return begin == other.begin && end == other.end; }
};

// What a query at `position` sees of a split.
inline Span visible_span(int64_t position, int64_t window, int64_t split) {
  const int64_t first = split * SPLIT;
  const int64_t begin = window > 0 && position - window + 1 > first ? position - window + 1 - first : 0;
  const int64_t end = position + 1 - first < SPLIT ? position + 1 - first : SPLIT;
  return begin < end ? Span{int(begin), int(end)} : Span{0, 0};
}

// The tokens outside the span have another value; lane 0 is `token`.
inline Lanes masked(Lanes values, int token, Span span, float unseen) {
  if (token >= span.begin && token + 16 <= span.end) return values;
  float lanes[16];
  values.store(lanes);
  for (int i = 0; i < 16; ++i) {
    if (token + i < span.begin || token + i >= span.end) lanes[i] = unseen;
  }
  return Lanes::load(lanes);
}

// Products to what the softmax is taken of, if there is a cap.
class Softcap {
 public:
  Softcap(float scale, float softcap) : inner_(constant(scale / softcap)), outer_(constant(softcap)) {}
  Vector operator()(Vector product) const { return tanh(product * inner_) * outer_; }

 private:
  const Vector inner_, outer_;
};

// 2^x for x below 1, within 3 units in the last place. Exactly 0 below -125.
//
// Not `exp`, which has a wider range: in float, half the time of prefill goes into this.
inline Vector power_of_two(Vector x) {
  const Vector lowest = constant(-125.0f);
  const Vector bounded = Vector::max(lowest, x);
  const Vector shifted = bounded + constant(SHIFT), r = bounded - (shifted - constant(SHIFT));
  Vector p = constant(1.3264373e-3f);
  p = Vector::fma(p, r, constant(9.671516e-3f));
  p = Vector::fma(p, r, constant(5.550735e-2f));
  p = Vector::fma(p, r, constant(2.4022242e-1f));
  p = Vector::fma(p, r, constant(6.93147e-1f));
  p = Vector::fma(p, r, constant(1.0f));
  return Vector::if_less(x, lowest, Vector::zero(), Vector::scaled(p, shifted));
}

// 2^x within 1 / 350,000 of itself, for weights that are then rounded to bf16, within 1 / 256. Below -125 it stays as
// it is there, which is as good as nothing.
//
//     2^x = 2^floor(x) * 2^f with f in [0, 1];  2^f by a polynomial
inline Vector rough_power_of_two(Vector x) {
  x = Vector::max(constant(-125.0f), x);  // in this order: NaN stays
  const Vector f = Vector::fraction(x);
  Vector p = constant(1.353417e-2f);
  p = Vector::fma(p, f, constant(5.201146e-2f));
  p = Vector::fma(p, f, constant(2.4144276e-1f));
  p = Vector::fma(p, f, constant(6.9300383e-1f));
  p = Vector::fma(p, f, constant(1.0000026f));
  return Vector::scaled_by_floor(p, x);
}

inline float power_of_two(float x) {
  float lanes[Vector::WIDTH];
  power_of_two(Vector::broadcast(x)).store(lanes);
  return lanes[0];
}

// From a product of query and key to the power of two that is its weight.
inline float log2_factor(float scale, float softcap) {
  constexpr float LOG2_E = 1.44269504f;
  return softcap > 0 ? LOG2_E : scale * LOG2_E;
}

// From here on floats are half a unit apart or more: too little would be known about the weights. Such a peak makes all
// that the row gets not a number.
constexpr float END_OF_PEAKS = 0x1p22f;

inline float peak_of(float greatest, float factor) {
  const float peak = greatest * factor;
  return __builtin_fabsf(peak) < END_OF_PEAKS ? peak : __builtin_nanf("");
}

// Of a row in float and in bf16.
struct F32Weight {
  static Vector of(Vector product, Vector factor, Vector minus_peak) {
    return power_of_two(Vector::fma(product, factor, minus_peak));
  }
};
struct Bf16Weight {
  static Vector of(Vector product, Vector factor, Vector minus_peak) {
    return rough_power_of_two(Vector::fma(product, factor, minus_peak));
  }
};

// Products of one row's query and a split's keys, to weights. The weights go to `store(token, lanes)`, for all groups
// of 16 tokens that the span touches; those of unseen tokens are 0.
template <class Weight, class Store>
inline void weigh(float* products, Span span, float scale, float softcap, float* result, const Store& store) {
  const int first = span.begin / 16 * 16;
  if (softcap > 0) {
    const Softcap capped(scale, softcap);
    for (int token = first; token < span.end; token += 16)
      Lanes::map(Lanes::load(products + token), capped).store(products + token);
  }
  Lanes greatest = Lanes::broadcast(-__builtin_inff());
  for (int token = first; token < span.end; token += 16)
    greatest = Lanes::max(greatest, masked(Lanes::load(products + token), token, span, -__builtin_inff()));

  const float factor = log2_factor(scale, softcap), peak = peak_of(greatest.greatest(), factor);
  const Vector factors = constant(factor), minus_peak = constant(-peak);
  Lanes total = Lanes::zero();
  for (int token = first; token < span.end; token += 16) {
    const Lanes weight = Lanes::map(Lanes::load(products + token),
                                    [&](Vector part) { return Weight::of(part, factors, minus_peak); });
    const Lanes seen = masked(weight, token, span, 0.0f);
    total = total + seen;
    store(token, seen);
  }
  result[0] = peak;
  result[1] = total.sum();
}

// Adds the next split's result to a row's.
inline void merge_result(float* row, const float* split, int64_t head_dim) {
  if (split[1] == 0.0f) return;
  if (row[1] == 0.0f) {
    for (int64_t i = 0; i < result_size(head_dim); i += 16) Lanes::load(split + i).store(row + i);
    return;
  }
  const float peak = row[0] > split[0] ? row[0] : split[0];
  const float row_scale = power_of_two(row[0] - peak), split_scale = power_of_two(split[0] - peak);
  const Lanes row_scales = Lanes::broadcast(row_scale), split_scales = Lanes::broadcast(split_scale);
  for (int64_t d = 0; d < head_dim; d += 16) {
    float* sums = row + 16 + d;
    Lanes::fma(Lanes::load(sums), row_scales, Lanes::load(split + 16 + d) * split_scales).store(sums);
  }
  row[1] = row[1] * row_scale + split[1] * split_scale;
  row[0] = peak;
}

template <class Element>
inline void write_output(const float* row, int64_t head_dim, Element* out) {
  const Lanes share = Lanes::broadcast(1.0f / row[1]);  // a division by vectors takes as long as ten products
  for (int64_t d = 0; d < head_dim; d += 16) (Lanes::load(row + 16 + d) * share).store(out + d);
}

}  // namespace
}  // namespace octavo
