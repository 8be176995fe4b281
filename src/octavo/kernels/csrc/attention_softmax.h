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

// Products of one row's query and a split's keys, to weights. The weights go to `store(token, lanes)`, for all groups
// of 16 tokens that the span touches; those of unseen tokens are 0.
template <class Store>
inline void weigh(float* scores, Span span, float scale, float softcap, float* result, const Store& store) {
  const Lanes factor = Lanes::broadcast(scale);
  const Lanes cap = Lanes::broadcast(softcap), inverse_cap = Lanes::broadcast(softcap > 0 ? 1.0f / softcap : 0.0f);
  const int first = span.begin / 16 * 16;
  Lanes greatest = Lanes::broadcast(-__builtin_inff());
  for (int token = first; token < span.end; token += 16) {
    Lanes score = Lanes::load(scores + token) * factor;
    if (softcap > 0) score = tanh(score * inverse_cap) * cap;
    if (token < span.begin || token + 16 > span.end) score = masked(score, token, span);
    score.store(scores + token);
    greatest = Lanes::max(greatest, score);
  }
  const float peak = greatest.greatest();
  const Lanes peaks = Lanes::broadcast(peak);
  Lanes total = Lanes::zero();
  for (int token = first; token < span.end; token += 16) {
    const Lanes weight = exp(Lanes::load(scores + token) - peaks);
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
  const float row_scale = exp_one(row[0] - peak), split_scale = exp_one(split[0] - peak);
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
  const Lanes total = Lanes::broadcast(row[1]);
  for (int64_t d = 0; d < head_dim; d += 16) (Lanes::load(row + 16 + d) / total).store(out + d);
}

}  // namespace
}  // namespace octavo
