// Vectors of floats, and the functions that rows, attention and sampling need: exp, log, tanh, and sums over a row that
// are bit-identical on every ISA.
//
// `Vector` is as wide as the flags of the object file allow: 16 floats with AVX512, 8 with AVX2, 4 with NEON, otherwise
// 1. Every function here is one fixed sequence of correctly rounded operations on each float independently, so results
// are bit-identical for all widths. (libm does not guarantee that: its exp differs between versions.)
#pragma once

#include <cfloat>

#include "bf16.h"

#if defined(__AVX2__)
#include <immintrin.h>
#elif defined(OCTAVO_NEON)
#include "vector_neon.h"
#endif

#if defined(__FAST_MATH__)
#error "Results are defined to the last bit: compile without -ffast-math."
#endif
static_assert(FLT_EVAL_METHOD == 0, "a float must be computed as a float");

namespace octavo {
namespace {

constexpr float SHIFT = 12582912.0f;  // 1.5 * 2^23: adding it rounds to an integer and leaves that in the lowest bits

#if defined(__AVX512F__)

struct Vector {
  static constexpr int WIDTH = 16;
  __m512 value;

  static Vector zero() { return {_mm512_setzero_ps()}; }
  static Vector broadcast(float value) { return {_mm512_set1_ps(value)}; }
  static Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vector load(const bf16* from) {
    const __m256i half = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(from));
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_cvtepu16_epi32(half), 16))};
  }
  // Load the first or the second element of each of WIDTH pairs.
  static Vector load_even(const bf16* pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16))};
  }
  static Vector load_odd(const bf16* pairs) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32(int(0xffff0000))))};
  }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
  void store(bf16* to) const {
    _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), _mm512_cvtepi32_epi16(_mm512_srli_epi32(rounded(), 16)));
  }
  // Stores WIDTH pairs.
  static void store_pairs(Vector even, Vector odd, bf16* pairs) {
    const __m512i high = _mm512_and_si512(odd.rounded(), _mm512_set1_epi32(int(0xffff0000)));
    _mm512_storeu_si512(pairs, _mm512_or_si512(high, _mm512_srli_epi32(even.rounded(), 16)));
  }
  // Returns the nearest bf16, ties to even, in the upper half of each word, like to_bf16.
  __m512i rounded() const {
    const __m512i bits = _mm512_castps_si512(value);
    const __m512i odd = _mm512_and_si512(_mm512_srli_epi32(bits, 16), _mm512_set1_epi32(1));
    const __m512i rounded = _mm512_add_epi32(_mm512_add_epi32(bits, _mm512_set1_epi32(0x7fff)), odd);
    const __mmask16 is_nan = _mm512_cmp_ps_mask(value, value, _CMP_UNORD_Q);
    return _mm512_mask_or_epi32(rounded, is_nan, bits, _mm512_set1_epi32(0x400000));
  }
  Vector nearest_bf16() const {
    return {_mm512_castsi512_ps(_mm512_and_si512(rounded(), _mm512_set1_epi32(int(0xffff0000))))};
  }

  static Vector fma(Vector a, Vector b, Vector c) { return {_mm512_fmadd_ps(a.value, b.value, c.value)}; }  // a * b + c
  friend Vector operator+(Vector a, Vector b) { return {_mm512_add_ps(a.value, b.value)}; }
  friend Vector operator-(Vector a, Vector b) { return {_mm512_sub_ps(a.value, b.value)}; }
  friend Vector operator*(Vector a, Vector b) { return {_mm512_mul_ps(a.value, b.value)}; }
  friend Vector operator/(Vector a, Vector b) { return {_mm512_div_ps(a.value, b.value)}; }
  static Vector sqrt(Vector a) { return {_mm512_sqrt_ps(a.value)}; }
  static Vector max(Vector a, Vector b) { return {_mm512_max_ps(a.value, b.value)}; }  // a > b ? a : b
  static Vector min(Vector a, Vector b) { return {_mm512_min_ps(a.value, b.value)}; }  // a < b ? a : b
  static Vector abs(Vector a) { return {_mm512_abs_ps(a.value)}; }
  // a < b ? x : y
  static Vector if_less(Vector a, Vector b, Vector x, Vector y) {
    return {_mm512_mask_blend_ps(_mm512_cmp_ps_mask(a.value, b.value, _CMP_LT_OQ), y.value, x.value)};
  }
  // Returns a * 2^n, given n + SHIFT, for n from -125 to 128.
  static Vector scaled(Vector a, Vector shifted) {
    return {_mm512_scalef_ps(a.value, _mm512_sub_ps(shifted.value, _mm512_set1_ps(SHIFT)))};
  }
  // Return x - floor(x), rounded downwards except for the sign of 0, and a * 2^floor(x), for x from -125 to 1.
  static Vector fraction(Vector x) { return {_mm512_reduce_ps(x.value, _MM_FROUND_TO_NEG_INF)}; }
  static Vector scaled_by_floor(Vector a, Vector x) { return {_mm512_scalef_ps(a.value, x.value)}; }
  // Splits x into mantissa * 2^exponent with a mantissa in [sqrt(1/2), sqrt(2)), for normal x > 0. Returns the
  // exponent.
  static Vector split(Vector x, Vector& mantissa) {
    const __m512i bits = _mm512_castps_si512(x.value);
    const __m512i exponent = _mm512_srai_epi32(_mm512_sub_epi32(bits, _mm512_set1_epi32(0x3f3504f3)), 23);
    mantissa = {_mm512_castsi512_ps(_mm512_sub_epi32(bits, _mm512_slli_epi32(exponent, 23)))};
    return {_mm512_cvtepi32_ps(exponent)};
  }
};

#elif defined(__AVX2__)

struct Vector {
  static constexpr int WIDTH = 8;
  __m256 value;

  static Vector zero() { return {_mm256_setzero_ps()}; }
  static Vector broadcast(float value) { return {_mm256_set1_ps(value)}; }
  static Vector load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Vector load(const bf16* from) {
    const __m128i half = _mm_loadu_si128(reinterpret_cast<const __m128i*>(from));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(_mm256_cvtepu16_epi32(half), 16))};
  }
  static Vector load_even(const bf16* pairs) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))};
  }
  static Vector load_odd(const bf16* pairs) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(int(0xffff0000))))};
  }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
  void store(bf16* to) const {
    const __m256i chosen = _mm256_srli_epi32(rounded(), 16);
    const __m128i low = _mm256_castsi256_si128(chosen), high = _mm256_extracti128_si256(chosen, 1);
    _mm_storeu_si128(reinterpret_cast<__m128i*>(to), _mm_packus_epi32(low, high));
  }
  __m256i rounded() const {
    const __m256i bits = _mm256_castps_si256(value);
    const __m256i odd = _mm256_and_si256(_mm256_srli_epi32(bits, 16), _mm256_set1_epi32(1));
    const __m256i rounded = _mm256_add_epi32(_mm256_add_epi32(bits, _mm256_set1_epi32(0x7fff)), odd);
    const __m256i is_nan = _mm256_castps_si256(_mm256_cmp_ps(value, value, _CMP_UNORD_Q));
    const __m256i quiet = _mm256_or_si256(bits, _mm256_set1_epi32(0x400000));
    return _mm256_blendv_epi8(rounded, quiet, is_nan);
  }
  Vector nearest_bf16() const {
    return {_mm256_castsi256_ps(_mm256_and_si256(rounded(), _mm256_set1_epi32(int(0xffff0000))))};
  }

  static Vector fma(Vector a, Vector b, Vector c) { return {_mm256_fmadd_ps(a.value, b.value, c.value)}; }
  friend Vector operator+(Vector a, Vector b) { return {_mm256_add_ps(a.value, b.value)}; }
  friend Vector operator-(Vector a, Vector b) { return {_mm256_sub_ps(a.value, b.value)}; }
  friend Vector operator*(Vector a, Vector b) { return {_mm256_mul_ps(a.value, b.value)}; }
  friend Vector operator/(Vector a, Vector b) { return {_mm256_div_ps(a.value, b.value)}; }
  static Vector sqrt(Vector a) { return {_mm256_sqrt_ps(a.value)}; }
  static Vector max(Vector a, Vector b) { return {_mm256_max_ps(a.value, b.value)}; }
  static Vector min(Vector a, Vector b) { return {_mm256_min_ps(a.value, b.value)}; }
  static Vector abs(Vector a) { return {_mm256_andnot_ps(_mm256_set1_ps(-0.0f), a.value)}; }
  static Vector if_less(Vector a, Vector b, Vector x, Vector y) {
    return {_mm256_blendv_ps(y.value, x.value, _mm256_cmp_ps(a.value, b.value, _CMP_LT_OQ))};
  }
  static Vector scaled(Vector a, Vector shifted) {
    const __m256i exponent = _mm256_slli_epi32(_mm256_castps_si256((shifted - broadcast(1.0f)).value), 23);
    const Vector power = {_mm256_castsi256_ps(_mm256_add_epi32(exponent, _mm256_set1_epi32(0x3f800000)))};
    return (a + a) * power;  // 2a times 2^(n - 1), as 2^128 is not a float
  }
  static Vector fraction(Vector x) {
    const __m256 floor = _mm256_floor_ps(x.value), nearest = _mm256_sub_ps(x.value, floor);
    const __m256 error = _mm256_sub_ps(x.value, _mm256_add_ps(nearest, floor));  // exact
    const __m256i too_large = _mm256_castps_si256(_mm256_cmp_ps(error, _mm256_setzero_ps(), _CMP_LT_OQ));
    return {_mm256_castsi256_ps(_mm256_add_epi32(_mm256_castps_si256(nearest), too_large))};  // adds -1 where true
  }
  static Vector scaled_by_floor(Vector a, Vector x) {
    const __m256i floor = _mm256_cvtps_epi32(_mm256_floor_ps(x.value));
    const __m256i exponent = _mm256_slli_epi32(_mm256_add_epi32(floor, _mm256_set1_epi32(127)), 23);
    return {_mm256_mul_ps(a.value, _mm256_castsi256_ps(exponent))};
  }
  static Vector split(Vector x, Vector& mantissa) {
    const __m256i bits = _mm256_castps_si256(x.value);
    const __m256i exponent = _mm256_srai_epi32(_mm256_sub_epi32(bits, _mm256_set1_epi32(0x3f3504f3)), 23);
    mantissa = {_mm256_castsi256_ps(_mm256_sub_epi32(bits, _mm256_slli_epi32(exponent, 23)))};
    return {_mm256_cvtepi32_ps(exponent)};
  }
};

#elif !defined(OCTAVO_NEON)

// Returns a * b + c with 53 bits, rounded to odd: if it is not exact, the last bit is 1. Rounding this to 24 bits gives
// the same result as rounding a * b + c itself. (The product is exact, since both factors have 24 bits.)
inline double odd_fma(float a, float b, float c) {
  const double product = double(a) * double(b), addend = c, sum = product + addend;
  const double part = sum - product, error = (product - (sum - part)) + (addend - part);
  uint64_t bits;
  memcpy(&bits, &sum, sizeof bits);
  const bool is_exact = !(error < 0.0 || error > 0.0);  // also true for infinity and NaN, whose error is NaN
  const uint64_t neighbour = (error > 0.0) == (sum > 0.0) ? bits + 1 : bits - 1;
  bits = is_exact || (bits & 1) ? bits : neighbour;
  double result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

struct Vector {
  static constexpr int WIDTH = 1;
  float value;

  static Vector zero() { return {0.0f}; }
  static Vector broadcast(float value) { return {value}; }
  static Vector load(const float* from) { return {*from}; }
  static Vector load(const bf16* from) { return {to_float(*from)}; }
  static Vector load_even(const bf16* pairs) { return {to_float(pairs[0])}; }
  static Vector load_odd(const bf16* pairs) { return {to_float(pairs[1])}; }
  void store(float* to) const { *to = value; }
  void store(bf16* to) const { *to = to_bf16(value); }
  Vector nearest_bf16() const { return {to_float(to_bf16(value))}; }

  // Not __builtin_fmaf, which calls libm if the processor has no such instruction.
  static Vector fma(Vector a, Vector b, Vector c) { return {float(odd_fma(a.value, b.value, c.value))}; }
  friend Vector operator+(Vector a, Vector b) { return {a.value + b.value}; }
  friend Vector operator-(Vector a, Vector b) { return {a.value - b.value}; }
  friend Vector operator*(Vector a, Vector b) { return {a.value * b.value}; }
  friend Vector operator/(Vector a, Vector b) { return {a.value / b.value}; }
  static Vector sqrt(Vector a) { return {__builtin_sqrtf(a.value)}; }
  static Vector max(Vector a, Vector b) { return {a.value > b.value ? a.value : b.value}; }
  static Vector min(Vector a, Vector b) { return {a.value < b.value ? a.value : b.value}; }
  static Vector abs(Vector a) { return {__builtin_fabsf(a.value)}; }
  static Vector if_less(Vector a, Vector b, Vector x, Vector y) { return a.value < b.value ? x : y; }
  static Vector scaled(Vector a, Vector shifted) {
    return (a + a) * of_bits((bits_of(shifted - broadcast(1.0f)) << 23) + 0x3f800000u);
  }
  static int32_t floor(Vector x) {
    const int32_t whole = x.value < 0x1p24f ? int32_t(x.value) : 0;  // 0 for NaN and large x, whose floor is not used
    return whole - (float(whole) > x.value);
  }
  static Vector fraction(Vector x) {
    const float whole = float(floor(x)), nearest = x.value - whole, error = x.value - (nearest + whole);
    return of_bits(bits_of({nearest}) - (error < 0.0f));
  }
  static Vector scaled_by_floor(Vector a, Vector x) { return a * of_bits(uint32_t(floor(x) + 127) << 23); }
  static Vector split(Vector x, Vector& mantissa) {
    const uint32_t bits = bits_of(x);
    const int32_t exponent = int32_t(bits - 0x3f3504f3u) >> 23;
    mantissa = of_bits(bits - (uint32_t(exponent) << 23));
    return {float(exponent)};
  }

  static uint32_t bits_of(Vector a) {
    uint32_t bits;
    memcpy(&bits, &a.value, sizeof bits);
    return bits;
  }
  static Vector of_bits(uint32_t bits) {
    Vector result;
    memcpy(&result.value, &bits, sizeof bits);
    return result;
  }
};

#endif

inline Vector constant(float value) { return Vector::broadcast(value); }

// Returns e^x, within 2 units in the last place. Exactly 0 below -86.6; infinity above 88.73; NaN for NaN. No
// intermediate result is subnormal, even where e^x is 0: an operation with a subnormal result takes as long as a
// hundred others.
//
//     x = n * ln 2 + r with |r| <= ln 2 / 2;  e^x = 2^n * e^r;  e^r by a polynomial
inline Vector exp(Vector x) {
  const Vector lowest = constant(-86.6f);
  const Vector bounded = Vector::min(constant(89.0f), Vector::max(lowest, x));
  const Vector shifted = Vector::fma(bounded, constant(1.44269504f), constant(SHIFT)), n = shifted - constant(SHIFT);
  Vector r = Vector::fma(n, constant(-0.693359375f), bounded);  // ln 2 in two pieces, of which the first has few bits
  r = Vector::fma(n, constant(2.12194440e-4f), r);
  Vector p = constant(1.9875691500e-4f);
  p = Vector::fma(p, r, constant(1.3981999507e-3f));
  p = Vector::fma(p, r, constant(8.3334519073e-3f));
  p = Vector::fma(p, r, constant(4.1665795894e-2f));
  p = Vector::fma(p, r, constant(1.6666665459e-1f));
  p = Vector::fma(p, r, constant(5.0000001201e-1f));
  p = Vector::fma(p, r * r, r + constant(1.0f));
  return Vector::if_less(x, lowest, Vector::zero(), Vector::scaled(p, shifted));
}

// Returns ln x, within 2 units in the last place, for normal x > 0 and infinity. Minus infinity for 0 and subnormal x;
// NaN for x < 0 and NaN.
//
//     x = m * 2^e;  ln x = e * ln 2 + ln m;  ln m by a polynomial in m - 1
inline Vector log(Vector x) {
  Vector mantissa;
  const Vector e = Vector::split(x, mantissa);
  const Vector f = mantissa - constant(1.0f);
  const Vector square = f * f;
  Vector p = constant(7.0376836292e-2f);
  p = Vector::fma(p, f, constant(-1.1514610310e-1f));
  p = Vector::fma(p, f, constant(1.1676998740e-1f));
  p = Vector::fma(p, f, constant(-1.2420140846e-1f));
  p = Vector::fma(p, f, constant(1.4249322787e-1f));
  p = Vector::fma(p, f, constant(-1.6668057665e-1f));
  p = Vector::fma(p, f, constant(2.0000714765e-1f));
  p = Vector::fma(p, f, constant(-2.4999993993e-1f));
  p = Vector::fma(p, f, constant(3.3333331174e-1f));
  p = Vector::fma(p * f, square, e * constant(-2.12194440e-4f));
  p = Vector::fma(square, constant(-0.5f), p);
  Vector result = Vector::fma(e, constant(0.693359375f), f + p);
  const Vector infinity = constant(__builtin_inff());
  result = Vector::if_less(x, constant(1.17549435e-38f), Vector::zero() - infinity, result);
  result = Vector::if_less(x, Vector::zero(), constant(__builtin_nanf("")), result);
  return Vector::if_less(x, infinity, result, x);  // infinity and NaN stay
}

// Returns tanh x: (1 - t) / (1 + t) with t = e^(-2 |x|), or a polynomial near 0, where that formula cancels.
inline Vector tanh(Vector x) {
  const Vector size = Vector::abs(x);
  const Vector t = exp(size * constant(-2.0f));
  const Vector ratio = (constant(1.0f) - t) / (constant(1.0f) + t);
  const Vector large = Vector::if_less(x, Vector::zero(), Vector::zero() - ratio, ratio);
  const Vector z = x * x;
  Vector p = constant(-5.70498872745e-3f);
  p = Vector::fma(p, z, constant(2.06390887954e-2f));
  p = Vector::fma(p, z, constant(-5.37397155531e-2f));
  p = Vector::fma(p, z, constant(1.33314422036e-1f));
  p = Vector::fma(p, z, constant(-3.33332819422e-1f));
  return Vector::if_less(size, constant(0.625f), Vector::fma(p * z, x, x), large);
}

#if defined(__AVX2__)
// The halves of sixteen floats, and the last steps of a tree over them, in registers only.
#if defined(__AVX512F__)
inline __m256 low_half(const Vector* parts) { return _mm512_castps512_ps256(parts[0].value); }
inline __m256 high_half(const Vector* parts) {
  return _mm256_castpd_ps(_mm512_extractf64x4_pd(_mm512_castps_pd(parts[0].value), 1));
}
#else
inline __m256 low_half(const Vector* parts) { return parts[0].value; }
inline __m256 high_half(const Vector* parts) { return parts[1].value; }
#endif

// Combines lane i with lane i + 4, then i + 2, i + 1.
inline float fold(__m256 lanes, const auto& combine) {
  const __m128 four = combine(_mm256_castps256_ps128(lanes), _mm256_extractf128_ps(lanes, 1));
  const __m128 two = combine(four, _mm_movehl_ps(four, four));
  return _mm_cvtss_f32(combine(two, _mm_movehdup_ps(two)));
}
#endif

// Sixteen floats on every ISA, for reductions. A row is summed as 16 sums, where lane i adds the elements i, i + 16,
// i + 32, ..., and these are added in a fixed tree. So the result does not depend on the width of a register.
struct Lanes {
  static constexpr int PARTS = 16 / Vector::WIDTH;
  Vector parts[PARTS];

  static Lanes broadcast(float value) {
    Lanes result;
    for (Vector& part : result.parts) part = Vector::broadcast(value);
    return result;
  }
  static Lanes zero() { return broadcast(0.0f); }
  template <class Element>  // float or bf16
  static Lanes load(const Element* from) {
    Lanes result;
    for (int i = 0; i < PARTS; ++i) result.parts[i] = Vector::load(from + i * Vector::WIDTH);
    return result;
  }
  template <class Element>
  void store(Element* to) const {
    for (int i = 0; i < PARTS; ++i) parts[i].store(to + i * Vector::WIDTH);
  }
  template <class Function>
  static Lanes map(Lanes a, const Function& function) {
    for (Vector& part : a.parts) part = function(part);
    return a;
  }
  static Lanes fma(Lanes a, Lanes b, Lanes c) {
    for (int i = 0; i < PARTS; ++i) c.parts[i] = Vector::fma(a.parts[i], b.parts[i], c.parts[i]);
    return c;
  }
  static Lanes max(Lanes a, Lanes b) {
    for (int i = 0; i < PARTS; ++i) a.parts[i] = Vector::max(a.parts[i], b.parts[i]);
    return a;
  }
  friend Lanes operator+(Lanes a, Lanes b) {
    for (int i = 0; i < PARTS; ++i) a.parts[i] = a.parts[i] + b.parts[i];
    return a;
  }
  friend Lanes operator-(Lanes a, Lanes b) {
    for (int i = 0; i < PARTS; ++i) a.parts[i] = a.parts[i] - b.parts[i];
    return a;
  }
  friend Lanes operator*(Lanes a, Lanes b) {
    for (int i = 0; i < PARTS; ++i) a.parts[i] = a.parts[i] * b.parts[i];
    return a;
  }
  friend Lanes operator/(Lanes a, Lanes b) {
    for (int i = 0; i < PARTS; ++i) a.parts[i] = a.parts[i] / b.parts[i];
    return a;
  }

  // Combine lane i with lane i + 8, then i + 4, i + 2, i + 1.
#if defined(__AVX2__)
  float sum() const {
    return fold(_mm256_add_ps(low_half(parts), high_half(parts)), [](__m128 a, __m128 b) { return _mm_add_ps(a, b); });
  }
  float greatest() const {
    return fold(_mm256_max_ps(low_half(parts), high_half(parts)), [](__m128 a, __m128 b) { return _mm_max_ps(a, b); });
  }
#elif defined(OCTAVO_NEON)
  float sum() const {
    return fold(parts, [](Vector a, Vector b) { return a + b; });
  }
  float greatest() const {
    return fold(parts, [](Vector a, Vector b) { return Vector::max(a, b); });
  }
#else
  float sum() const {
    float lanes[16];
    store(lanes);
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] += lanes[i + half];
    return lanes[0];
  }
  float greatest() const {
    float lanes[16];
    store(lanes);
    for (int half = 8; half > 0; half /= 2)
      for (int i = 0; i < half; ++i) lanes[i] = lanes[i] > lanes[i + half] ? lanes[i] : lanes[i + half];
    return lanes[0];
  }
#endif
};

inline Lanes exp(Lanes x) { return Lanes::map(x, [](Vector part) { return exp(part); }); }
inline Lanes log(Lanes x) { return Lanes::map(x, [](Vector part) { return log(part); }); }
inline Lanes tanh(Lanes x) { return Lanes::map(x, [](Vector part) { return tanh(part); }); }

// Returns exp of one float, by the same sequence of operations.
inline float exp_one(float x) {
  float lanes[Vector::WIDTH];
  exp(Vector::broadcast(x)).store(lanes);
  return lanes[0];
}

}  // namespace
}  // namespace octavo
