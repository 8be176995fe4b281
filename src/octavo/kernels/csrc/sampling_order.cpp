#include "sampling_order.h"

#include <cstring>

namespace octavo {

namespace {

struct Bounds {
  uint32_t top, bottom;  // keys
};

// Uses four independent chains: in a single chain, each comparison would take as long as four.
Bounds bounds_of(const float* values, int64_t count) {
  float greatest[4], smallest[4];
  for (int chain = 0; chain < 4; ++chain) greatest[chain] = smallest[chain] = values[0];
  for (int64_t i = 0; i < count; ++i) {
    greatest[i % 4] = values[i] > greatest[i % 4] ? values[i] : greatest[i % 4];
    smallest[i % 4] = values[i] < smallest[i % 4] ? values[i] : smallest[i % 4];
  }
  for (int chain = 1; chain < 4; ++chain) {
    greatest[0] = greatest[chain] > greatest[0] ? greatest[chain] : greatest[0];
    smallest[0] = smallest[chain] < smallest[0] ? smallest[chain] : smallest[0];
  }
  // 0 and -0 are equal, but their keys are not.
  return {key_of(greatest[0] == 0.0f ? 0.0f : greatest[0]), key_of(smallest[0] == 0.0f ? -0.0f : smallest[0])};
}

constexpr int BIN_BITS = 11;
constexpr uint32_t NUM_BINS = 1 << BIN_BITS;

}  // namespace

// A radix selection by distance from the greatest key, in at most three rounds. Each round divides the interval that
// contains the answer into 2048 bins, adds up their weights from the top, and continues with the bin in which `needed`
// is reached. Once this bin has few values, only these are read.
float select(const float* values, const uint64_t* weights, int64_t count, uint64_t needed) {
  constexpr int64_t FEW = 256;
  const auto [top, bottom] = bounds_of(values, count);

  // The answer's distance is `prefix` followed by `bits` unknown bits; values nearer to the top have the weight
  // `nearer`.
  int bits = std::bit_width(top - bottom);
  uint64_t prefix = 0, nearer = 0;
  uint64_t bins[NUM_BINS], few_weights[FEW];
  float few[FEW];
  while (bits > 0) {
    const int shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
    const uint32_t num_bins = 1u << (bits - shift);
    memset(bins, 0, num_bins * sizeof bins[0]);
    uint32_t last = 0;
    for (int64_t i = 0; i < count; ++i) {
      const uint64_t distance = top - key_of(values[i]);
      if (distance >> bits != prefix) continue;
      const uint32_t bin = uint32_t(distance >> shift) & (num_bins - 1);
      bins[bin] += weights == nullptr ? 1 : weights[i];
      last = bin > last ? bin : last;
    }
    uint32_t bin = 0;
    while (bin < last && nearer + bins[bin] < needed) nearer += bins[bin++];
    prefix = prefix << (bits - shift) | bin;
    bits = shift;
    if (bits == 0 || count <= FEW) continue;

    int64_t num_few = 0;
    for (int64_t i = 0; i < count && num_few < FEW; ++i) {
      if (uint64_t(top - key_of(values[i])) >> bits != prefix) continue;
      few[num_few] = values[i];
      few_weights[num_few++] = weights == nullptr ? 1 : weights[i];
    }
    if (num_few < FEW) {
      values = few;
      weights = few_weights;
      count = num_few;
    }
  }
  return of_key(top - uint32_t(prefix));
}

// The first round of `select`, for two values of `needed`.
Interval bracket(const float* values, const uint64_t* weights, int64_t count, uint64_t first, uint64_t last) {
  const auto [top, bottom] = bounds_of(values, count);
  const int bits = std::bit_width(top - bottom), shift = bits > BIN_BITS ? bits - BIN_BITS : 0;
  uint64_t bins[NUM_BINS] = {};
  for (int64_t i = 0; i < count; ++i) bins[(top - key_of(values[i])) >> shift] += weights[i];
  const uint32_t last_bin = (top - bottom) >> shift;
  uint32_t bin = 0;
  uint64_t sum = bins[0];
  while (bin < last_bin && sum < first) sum += bins[++bin];
  const float high = of_key(top - (bin << shift) + 1);
  while (bin < last_bin && sum < last) sum += bins[++bin];
  return {bin == last_bin ? of_key(bottom) : of_key(top - ((bin + 1) << shift) + 1), high};
}

}  // namespace octavo
