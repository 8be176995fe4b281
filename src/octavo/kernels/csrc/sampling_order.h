// Floats in order, as whole numbers, and the weighted k-th greatest of some without sorting them.
#pragma once

#include <bit>
#include <cstdint>

namespace octavo {

// Greater floats have greater keys; no NaN.
inline uint32_t key_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline float of_key(uint32_t key) { return std::bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key); }

// The smallest float that is greater. 0 and -0 are equal, but not their keys.
inline float next_above(float value) { return of_key(key_of(value == 0.0f ? 0.0f : value) + 1); }

// The greatest value v such that all values >= v together weigh `needed` or more; the smallest value if they never do.
// Without weights, each value weighs 1: then it is the `needed`-th greatest.
float select(const float* values, const uint64_t* weights, int64_t count, uint64_t needed);

// Where select(..., needed) lies for every `needed` in [first, last]: in [low, high). Not the narrowest such interval.
struct Interval {
  float low, high;
};
Interval bracket(const float* values, const uint64_t* weights, int64_t count, uint64_t first, uint64_t last);

}  // namespace octavo
