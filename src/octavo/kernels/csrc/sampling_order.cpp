#include "sampling_order.h"

#include <cstring>

namespace octavo {

// By distance from the greatest key, in at most three rounds. Each spreads the interval that holds the answer over
// 2048 bins, adds up their weights from the top, and goes on with the bin in which `needed` is reached.
float select(const float* values, const uint64_t* weights, int64_t count, uint64_t needed) {
  constexpr int BIN_BITS = 11;
  constexpr uint32_t NUM_BINS = 1 << BIN_BITS;
  uint32_t top = 0, bottom = UINT32_MAX;
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t key = key_of(values[i]);
    top = key > top ? key : top;
    bottom = key < bottom ? key : bottom;
  }

  // The answer's distance has `prefix` above its lowest `bits` bits; nearer values weigh `nearer`.
  int bits = std::bit_width(top - bottom);
  uint64_t prefix = 0, nearer = 0;
  uint64_t bins[NUM_BINS];
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
  }
  return of_key(top - uint32_t(prefix));
}

}  // namespace octavo
