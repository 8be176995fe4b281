// The `Vector` of vector_math.h in NEON registers: 4 floats. For object files for which CMake defines OCTAVO_NEON.
// Every aarch64 compiler has these intrinsics, but the portable object files are the reference and do not use them.
#pragma once

#include <arm_neon.h>

#include "bf16.h"

namespace octavo {
namespace {

struct Vector {
  static constexpr int WIDTH = 4;
  float32x4_t value;

  static Vector zero() { return {vdupq_n_f32(0.0f)}; }
  static Vector broadcast(float value) { return {vdupq_n_f32(value)}; }
  static Vector load(const float* from) { return {vld1q_f32(from)}; }
  static Vector load(const bf16* from) { return of_bits(vshll_n_u16(vld1_u16(from), 16)); }
  // Load the first or the second element of each of WIDTH pairs.
  static Vector load_even(const bf16* pairs) { return of_bits(vshlq_n_u32(load_words(pairs), 16)); }
  static Vector load_odd(const bf16* pairs) {
    return of_bits(vandq_u32(load_words(pairs), vdupq_n_u32(0xffff0000u)));
  }
  void store(float* to) const { vst1q_f32(to, value); }
  void store(bf16* to) const { vst1_u16(to, vshrn_n_u32(rounded(), 16)); }
  Vector nearest_bf16() const { return of_bits(vandq_u32(rounded(), vdupq_n_u32(0xffff0000u))); }
  // Returns the nearest bf16, ties to even, in the upper half of each word, like to_bf16.
  uint32x4_t rounded() const {
    const uint32x4_t odd = vandq_u32(vshrq_n_u32(bits(), 16), vdupq_n_u32(1));
    const uint32x4_t rounded = vaddq_u32(vaddq_u32(bits(), vdupq_n_u32(0x7fff)), odd);
    const uint32x4_t quiet = vorrq_u32(bits(), vdupq_n_u32(0x400000));
    const uint32x4_t is_number = vceqq_f32(value, value);
    return vbslq_u32(is_number, rounded, quiet);
  }

  static Vector fma(Vector a, Vector b, Vector c) { return {vfmaq_f32(c.value, a.value, b.value)}; }  // a * b + c
  friend Vector operator+(Vector a, Vector b) { return {vaddq_f32(a.value, b.value)}; }
  friend Vector operator-(Vector a, Vector b) { return {vsubq_f32(a.value, b.value)}; }
  friend Vector operator*(Vector a, Vector b) { return {vmulq_f32(a.value, b.value)}; }
  friend Vector operator/(Vector a, Vector b) { return {vdivq_f32(a.value, b.value)}; }
  static Vector sqrt(Vector a) { return {vsqrtq_f32(a.value)}; }
  // Not vmaxq and vminq, which return NaN if an operand is NaN, and order -0 before 0.
  static Vector max(Vector a, Vector b) { return {vbslq_f32(vcgtq_f32(a.value, b.value), a.value, b.value)}; }
  static Vector min(Vector a, Vector b) { return {vbslq_f32(vcltq_f32(a.value, b.value), a.value, b.value)}; }
  static Vector abs(Vector a) { return {vabsq_f32(a.value)}; }
  // a < b ? x : y
  static Vector if_less(Vector a, Vector b, Vector x, Vector y) {
    return {vbslq_f32(vcltq_f32(a.value, b.value), x.value, y.value)};
  }
  // Returns a * 2^n, given n + SHIFT, for n from -125 to 128. It multiplies 2a by 2^(n - 1), as 2^128 is not a float.
  static Vector scaled(Vector a, Vector shifted) {
    const uint32x4_t exponent = vshlq_n_u32((shifted - broadcast(1.0f)).bits(), 23);
    return (a + a) * of_bits(vaddq_u32(exponent, vdupq_n_u32(0x3f800000)));
  }
  // Return x - floor(x), rounded downwards except for the sign of 0, and a * 2^floor(x), for x from -125 to 1.
  static Vector fraction(Vector x) {
    const Vector floor = {vrndmq_f32(x.value)}, nearest = x - floor, error = x - (nearest + floor);  // exact
    return of_bits(vaddq_u32(nearest.bits(), vcltzq_f32(error.value)));  // the float before it where it is too large
  }
  static Vector scaled_by_floor(Vector a, Vector x) {
    const int32x4_t exponent = vaddq_s32(vcvtmq_s32_f32(x.value), vdupq_n_s32(127));
    return a * of_bits(vshlq_n_u32(vreinterpretq_u32_s32(exponent), 23));
  }
  // Splits x into mantissa * 2^exponent with a mantissa in [sqrt(1/2), sqrt(2)), for normal x > 0. Returns the
  // exponent.
  static Vector split(Vector x, Vector& mantissa) {
    const uint32x4_t above = vsubq_u32(x.bits(), vdupq_n_u32(0x3f3504f3));
    const int32x4_t exponent = vshrq_n_s32(vreinterpretq_s32_u32(above), 23);
    mantissa = of_bits(vsubq_u32(x.bits(), vshlq_n_u32(vreinterpretq_u32_s32(exponent), 23)));
    return {vcvtq_f32_s32(exponent)};
  }

  uint32x4_t bits() const { return vreinterpretq_u32_f32(value); }
  static Vector of_bits(uint32x4_t bits) { return {vreinterpretq_f32_u32(bits)}; }
  static uint32x4_t load_words(const bf16* pairs) { return vreinterpretq_u32_u16(vld1q_u16(pairs)); }
};

// Reduces sixteen floats to one: combines lane i with lane i + 8, then i + 4, i + 2, i + 1.
inline float fold(const Vector* parts, const auto& combine) {
  const Vector four = combine(combine(parts[0], parts[2]), combine(parts[1], parts[3]));
  const Vector two = combine(four, Vector{vextq_f32(four.value, four.value, 2)});
  return vgetq_lane_f32(combine(two, Vector{vextq_f32(two.value, two.value, 1)}).value, 0);
}

}  // namespace
}  // namespace octavo
