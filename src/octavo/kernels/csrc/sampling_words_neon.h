// The vectors of 64-bit lanes of sampling_words.h in NEON registers: 2 lanes.
#pragma once

#include "vector_math.h"

namespace octavo {
namespace {

struct Words {
  static constexpr int WIDTH = 2;
  uint64x2_t value;

  static Words broadcast(uint64_t value) { return {vdupq_n_u64(value)}; }
  static Words load(const uint64_t* from) { return {vld1q_u64(from)}; }
  void store(uint64_t* to) const { vst1q_u64(to, value); }
  friend Words operator+(Words a, Words b) { return {vaddq_u64(a.value, b.value)}; }
  friend Words operator-(Words a, Words b) { return {vsubq_u64(a.value, b.value)}; }
  // Lane by lane: NEON has no such instruction.
  friend Words operator*(Words a, Words b) {
    const uint64_t low = vgetq_lane_u64(a.value, 0) * vgetq_lane_u64(b.value, 0);
    const uint64_t high = vgetq_lane_u64(a.value, 1) * vgetq_lane_u64(b.value, 1);
    return {vcombine_u64(vcreate_u64(low), vcreate_u64(high))};
  }
  friend Words operator^(Words a, Words b) { return {veorq_u64(a.value, b.value)}; }
  template <int BITS>
  Words right() const { return {vshrq_n_u64(value, BITS)}; }
  template <int BITS>
  Words left() const { return {vshlq_n_u64(value, BITS)}; }
  static uint64_t at_least(Words a, Words b) {
    const uint64x2_t mask = vcgeq_u64(a.value, b.value);
    return (vgetq_lane_u64(mask, 0) & 1) | (vgetq_lane_u64(mask, 1) & 2);
  }
};

struct Doubles {
  float64x2_t value;

  void store(double* to) const { vst1q_f64(to, value); }
  static Doubles broadcast(double value) { return {vdupq_n_f64(value)}; }
  static Doubles widen(const float* from) { return {vcvt_f64_f32(vld1_f32(from))}; }
  static Doubles of_bits(Words bits) { return {vreinterpretq_f64_u64(bits.value)}; }
  Words bits() const { return {vreinterpretq_u64_f64(value)}; }
  friend Doubles operator+(Doubles a, Doubles b) { return {vaddq_f64(a.value, b.value)}; }
  friend Doubles operator-(Doubles a, Doubles b) { return {vsubq_f64(a.value, b.value)}; }
  friend Doubles operator*(Doubles a, Doubles b) { return {vmulq_f64(a.value, b.value)}; }
  static Doubles fma(Doubles a, Doubles b, Doubles c) { return {vfmaq_f64(c.value, a.value, b.value)}; }
  static Words where_at_least(Doubles a, Doubles b, Words words) {
    return {vandq_u64(vcgeq_f64(a.value, b.value), words.value)};
  }
};

inline uint64_t floats_at_least(Vector a, Vector b) {
  const uint32_t places[4] = {1, 2, 4, 8};
  return vaddvq_u32(vandq_u32(vcgeq_f32(a.value, b.value), vld1q_u32(places)));
}
inline float greatest_of(Lanes a) { return a.greatest(); }
inline bool has_nan(Vector a) { return vminvq_u32(vceqq_f32(a.value, a.value)) == 0; }

}  // namespace
}  // namespace octavo
