// The softmax of one row in one split, and the merging of splits: one definition for every ISA. Each ISA's object file
// compiles its own copy.
//
//     greatest  the greatest product of the row's query and a visible key
//     peak      greatest * factor: see `log2_factor` and `peak_of`
//     weight    2^(product * factor - peak), with the exponent rounded once
//     total     16 sums, where sum i adds the weights of the tokens i, i + 16, ... in ascending order; then these are
//               added in a tree (Lanes::sum)
//     sums      of weight * value: in float one chain over the tokens, in bf16 the product of tile_product.h with
//               weights rounded to bf16 (the weights in the total are not rounded)
//
// Splits are then merged in order. A split without visible keys is skipped; a key that is not visible contributes
// exactly nothing.
//
// If a product is NaN, so are its weight, the total and the row's whole output.
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

// Returns the tokens of a split that are visible to a query at `position`.
inline Span visible_span(int64_t position, int64_t window, int64_t split) {
  const int64_t first = split * SPLIT;
  const int64_t begin = window > 0 && position - window + 1 > first ? position - window + 1 - first : 0;
  const int64_t end = position + 1 - first < SPLIT ? position + 1 - first : SPLIT;
  return begin < end ? Span{int(begin), int(end)} : Span{0, 0};
}

// Replaces the values of tokens outside the span by `hidden`. Lane 0 is `token`.
inline Lanes masked(Lanes values, int token, Span span, float hidden) {
  if (token >= span.begin && token + 16 <= span.end) return values;
  float lanes[16];
  values.store(lanes);
  for (int i = 0; i < 16; ++i) {
    if (token + i < span.begin || token + i >= span.end) lanes[i] = hidden;
  }
  return Lanes::load(lanes);
}

// Maps products to softmax inputs if there is a softcap.
class Softcap {
 public:
  Softcap(float scale, float softcap) : inner_(constant(scale / softcap)), outer_(constant(softcap)) {}
  Vector operator()(Vector product) const { return tanh(product * inner_) * outer_; }

 private:
  const Vector inner_, outer_;
};

// Returns 2^x for x below 1, within 3 units in the last place. Exactly 0 below -125.
//
// Not `exp`, which has a wider range and is slower: in float, half the time of prefill is spent in this function.
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

// Returns 2^x with a relative error below 1 / 350,000, for weights that are then rounded to bf16, with an error of up
// to 1 / 256. Below -125 it returns 2^-125, which is negligible.
//
//     2^x = 2^floor(x) * 2^f with f in [0, 1];  2^f by a polynomial
inline Vector rough_power_of_two(Vector x) {
  x = Vector::max(constant(-125.0f), x);  // in this order, which keeps NaN
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

// Returns the factor from a product of query and key to the exponent of two of its weight.
inline float log2_factor(float scale, float softcap) {
  constexpr float LOG2_E = 1.44269504f;
  return softcap > 0 ? LOG2_E : scale * LOG2_E;
}

// From here on the distance between floats is 1/2 or more, and the weights would be too inaccurate. Such a peak makes
// the row's whole output NaN.
constexpr float PEAK_LIMIT = 0x1p22f;

inline float peak_of(float greatest, float factor) {
  const float peak = greatest * factor;
  return __builtin_fabsf(peak) < PEAK_LIMIT ? peak : __builtin_nanf("");
}

// Weights in float and in bf16 attention.
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

// Converts the products of one row's query and a split's keys to weights. Calls `store(token, lanes)` with the weights
// of each group of 16 tokens that overlaps the span; weights of tokens outside the span are 0.
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
    const Lanes visible = masked(weight, token, span, 0.0f);
    total = total + visible;
    store(token, visible);
  }
  result[0] = peak;
  result[1] = total.sum();
}

// Merges the result of the next split into that of a row.
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
  const Lanes inverse = Lanes::broadcast(1.0f / row[1]);  // a vector division takes as long as ten multiplications
  for (int64_t d = 0; d < head_dim; d += 16) (Lanes::load(row + 16 + d) * inverse).store(out + d);
}

}  // namespace
}  // namespace octavo
