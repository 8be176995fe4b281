// Maps floats to integers in the same order, and selects the weighted k-th greatest float without sorting.
#pragma once

#include <bit>
#include <cstdint>

namespace octavo {

// Returns the key of a float: greater floats have greater keys. Not for NaN.
inline uint32_t key_of(float value) {
  const uint32_t bits = std::bit_cast<uint32_t>(value);
  return bits >> 31 ? ~bits : bits | 0x80000000u;
}

inline float of_key(uint32_t key) { return std::bit_cast<float>(key >> 31 ? key & 0x7fffffffu : ~key); }

// Returns the smallest greater float. 0 and -0 are equal, but their keys are not.
inline float next_above(float value) { return of_key(key_of(value == 0.0f ? 0.0f : value) + 1); }

// Returns the greatest value v such that the total weight of all values >= v is `needed` or more, or the smallest value
// if there is no such v. If `weights` is null, each weight is 1 and the result is the `needed`-th greatest value.
float select(const float* values, const uint64_t* weights, int64_t count, uint64_t needed);

// Returns an interval [low, high) that contains select(..., needed) for every `needed` in [first, last]. It is not the
// narrowest such interval.
struct Interval {
  float low, high;
};
Interval bracket(const float* values, const uint64_t* weights, int64_t count, uint64_t first, uint64_t last);

}  // namespace octavo
