// The softmax of one row in one split, and the merging of splits. Compiled by each ISA's object for itself.
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

// Minus infinity in the lanes outside the span; lane 0 is `token`.
inline Lanes masked(Lanes scores, int token, Span span) {
  float lanes[16];
  scores.store(lanes);
  for (int i = 0; i < 16; ++i) {
    if (token + i < span.begin || token + i >= span.end) lanes[i] = -__builtin_inff();
  }
  return Lanes::load(lanes);
}

// 2^x for x below 1, within 3 units in the last place. Exactly 0 below -125.
//
// Not `exp`, which has a wider range: without AMX, half the time of prefill goes into this.
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

// Products of one row's query and a split's keys, to weights. The weights go to `store(token, lanes)`, for all groups
// of 16 tokens that the span touches; those of unseen tokens are 0.
//
//     weight = e^(score - peak) = 2^(product * factor - the greatest product * factor)
//
// The peak of a result is in this unit, too: a power of two.
template <class Store>
inline void weigh(float* products, Span span, float scale, float softcap, float* result, const Store& store) {
  const int first = span.begin / 16 * 16;
  if (softcap > 0) {
    const Lanes inner = Lanes::broadcast(scale / softcap), outer = Lanes::broadcast(softcap);
    for (int token = first; token < span.end; token += 16)
      (tanh(Lanes::load(products + token) * inner) * outer).store(products + token);
  }
  if (span.begin % 16 != 0) masked(Lanes::load(products + first), first, span).store(products + first);
  if (span.end % 16 != 0) {
    float* last = products + span.end / 16 * 16;
    masked(Lanes::load(last), span.end / 16 * 16, span).store(last);
  }
  Lanes greatest = Lanes::load(products + first);
  for (int token = first + 16; token < span.end; token += 16)
    greatest = Lanes::max(greatest, Lanes::load(products + token));

  const float factor = log2_factor(scale, softcap), peak = greatest.greatest() * factor;
  const Lanes factors = Lanes::broadcast(factor), minus_peak = Lanes::broadcast(-peak);
  Lanes total = Lanes::zero();
  for (int token = first; token < span.end; token += 16) {
    const Lanes exponent = Lanes::fma(Lanes::load(products + token), factors, minus_peak);
    const Lanes weight = Lanes::map(exponent, [](Vector x) { return power_of_two(x); });
    total = total + weight;
    store(token, weight);
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
