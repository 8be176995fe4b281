// Vectors of 64-bit lanes, as float64 and as integers: 8 lanes with AVX512, 4 with AVX2, 2 with NEON, otherwise 1.
// vector_math.h has the vectors of floats. Each ISA's object file compiles its own copy (see bf16.h).
#pragma once

#include "scalar_math.h"
#include "vector_math.h"
#if defined(OCTAVO_NEON)
#include "sampling_words_neon.h"
#endif

namespace octavo {
namespace {

#if defined(__AVX512F__)

struct Words {
  static constexpr int WIDTH = 8;
  __m512i value;

  static Words broadcast(uint64_t value) { return {_mm512_set1_epi64(int64_t(value))}; }
  static Words load(const uint64_t* from) { return {_mm512_loadu_si512(from)}; }
  void store(uint64_t* to) const { _mm512_storeu_si512(to, value); }
  friend Words operator+(Words a, Words b) { return {_mm512_add_epi64(a.value, b.value)}; }
  friend Words operator-(Words a, Words b) { return {_mm512_sub_epi64(a.value, b.value)}; }
  friend Words operator*(Words a, Words b) { return {_mm512_mullo_epi64(a.value, b.value)}; }
  friend Words operator^(Words a, Words b) { return {_mm512_xor_si512(a.value, b.value)}; }
  template <int BITS>
  Words right() const { return {_mm512_srli_epi64(value, BITS)}; }
  template <int BITS>
  Words left() const { return {_mm512_slli_epi64(value, BITS)}; }
  static uint64_t at_least(Words a, Words b) { return _mm512_cmpge_epu64_mask(a.value, b.value); }  // one bit per lane
};

struct Doubles {
  __m512d value;

  void store(double* to) const { _mm512_storeu_pd(to, value); }
  static Doubles broadcast(double value) { return {_mm512_set1_pd(value)}; }
  static Doubles widen(const float* from) { return {_mm512_cvtps_pd(_mm256_loadu_ps(from))}; }
  static Doubles of_bits(Words bits) { return {_mm512_castsi512_pd(bits.value)}; }
  Words bits() const { return {_mm512_castpd_si512(value)}; }
  friend Doubles operator+(Doubles a, Doubles b) { return {_mm512_add_pd(a.value, b.value)}; }
  friend Doubles operator-(Doubles a, Doubles b) { return {_mm512_sub_pd(a.value, b.value)}; }
  friend Doubles operator*(Doubles a, Doubles b) { return {_mm512_mul_pd(a.value, b.value)}; }
  static Doubles fma(Doubles a, Doubles b, Doubles c) { return {_mm512_fmadd_pd(a.value, b.value, c.value)}; }
  // a >= b ? words : 0
  static Words where_at_least(Doubles a, Doubles b, Words words) {
    return {_mm512_maskz_mov_epi64(_mm512_cmp_pd_mask(a.value, b.value, _CMP_GE_OQ), words.value)};
  }
};

inline uint64_t floats_at_least(Vector a, Vector b) { return _mm512_cmp_ps_mask(a.value, b.value, _CMP_GE_OQ); }
inline float greatest_of(Lanes a) { return _mm512_reduce_max_ps(a.parts[0].value); }

// Stores the floats whose bit is set, contiguously. Returns their number.
inline int64_t take(Vector floats, uint64_t bits, float* to) {
  _mm512_storeu_ps(to, _mm512_maskz_compress_ps(__mmask16(bits), floats.value));
  return __builtin_popcountll(bits);
}
inline void take_ids(uint64_t bits, int64_t first_id, int32_t* to) {
  const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
  const __m512i ids = _mm512_add_epi32(lanes, _mm512_set1_epi32(int(first_id)));
  _mm512_storeu_si512(to, _mm512_maskz_compress_epi32(__mmask16(bits), ids));
}
inline bool has_nan(Vector a) { return _mm512_cmp_ps_mask(a.value, a.value, _CMP_UNORD_Q) != 0; }

#elif defined(__AVX2__)

struct Words {
  static constexpr int WIDTH = 4;
  __m256i value;

  static Words broadcast(uint64_t value) { return {_mm256_set1_epi64x(int64_t(value))}; }
  static Words load(const uint64_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
  void store(uint64_t* to) const { _mm256_storeu_si256(reinterpret_cast<__m256i*>(to), value); }
  friend Words operator+(Words a, Words b) { return {_mm256_add_epi64(a.value, b.value)}; }
  friend Words operator-(Words a, Words b) { return {_mm256_sub_epi64(a.value, b.value)}; }
  // Uses products of 32-bit halves; the product of the two high halves is beyond the 64 bits.
  friend Words operator*(Words a, Words b) {
    const __m256i a_high = _mm256_srli_epi64(a.value, 32), b_high = _mm256_srli_epi64(b.value, 32);
    const __m256i low = _mm256_mul_epu32(a.value, b.value);
    const __m256i cross =
        _mm256_add_epi64(_mm256_mul_epu32(a.value, b_high), _mm256_mul_epu32(a_high, b.value));
    return {_mm256_add_epi64(low, _mm256_slli_epi64(cross, 32))};
  }
  friend Words operator^(Words a, Words b) { return {_mm256_xor_si256(a.value, b.value)}; }
  template <int BITS>
  Words right() const { return {_mm256_srli_epi64(value, BITS)}; }
  template <int BITS>
  Words left() const { return {_mm256_slli_epi64(value, BITS)}; }
  static uint64_t at_least(Words a, Words b) {
    // AVX2 compares only signed numbers.
    const __m256i sign = _mm256_set1_epi64x(int64_t(uint64_t(1) << 63));
    const __m256i less =
        _mm256_cmpgt_epi64(_mm256_xor_si256(b.value, sign), _mm256_xor_si256(a.value, sign));
    return uint64_t(_mm256_movemask_pd(_mm256_castsi256_pd(less))) ^ 15;
  }
};

struct Doubles {
  __m256d value;

  void store(double* to) const { _mm256_storeu_pd(to, value); }
  static Doubles broadcast(double value) { return {_mm256_set1_pd(value)}; }
  static Doubles widen(const float* from) { return {_mm256_cvtps_pd(_mm_loadu_ps(from))}; }
  static Doubles of_bits(Words bits) { return {_mm256_castsi256_pd(bits.value)}; }
  Words bits() const { return {_mm256_castpd_si256(value)}; }
  friend Doubles operator+(Doubles a, Doubles b) { return {_mm256_add_pd(a.value, b.value)}; }
  friend Doubles operator-(Doubles a, Doubles b) { return {_mm256_sub_pd(a.value, b.value)}; }
  friend Doubles operator*(Doubles a, Doubles b) { return {_mm256_mul_pd(a.value, b.value)}; }
  static Doubles fma(Doubles a, Doubles b, Doubles c) { return {_mm256_fmadd_pd(a.value, b.value, c.value)}; }
  static Words where_at_least(Doubles a, Doubles b, Words words) {
    const __m256d mask = _mm256_cmp_pd(a.value, b.value, _CMP_GE_OQ);
    return {_mm256_and_si256(_mm256_castpd_si256(mask), words.value)};
  }
};

inline uint64_t floats_at_least(Vector a, Vector b) {
  return uint64_t(_mm256_movemask_ps(_mm256_cmp_ps(a.value, b.value, _CMP_GE_OQ)));
}
inline float greatest_of(Lanes a) { return a.greatest(); }
inline bool has_nan(Vector a) { return _mm256_movemask_ps(_mm256_cmp_ps(a.value, a.value, _CMP_UNORD_Q)) != 0; }

#elif !defined(OCTAVO_NEON)

struct Words {
  static constexpr int WIDTH = 1;
  uint64_t value;

  static Words broadcast(uint64_t value) { return {value}; }
  static Words load(const uint64_t* from) { return {*from}; }
  void store(uint64_t* to) const { *to = value; }
  friend Words operator+(Words a, Words b) { return {a.value + b.value}; }
  friend Words operator-(Words a, Words b) { return {a.value - b.value}; }
  friend Words operator*(Words a, Words b) { return {a.value * b.value}; }
  friend Words operator^(Words a, Words b) { return {a.value ^ b.value}; }
  template <int BITS>
  Words right() const { return {value >> BITS}; }
  template <int BITS>
  Words left() const { return {value << BITS}; }
  static uint64_t at_least(Words a, Words b) { return a.value >= b.value; }
};

struct Doubles {
  double value;

  void store(double* to) const { *to = value; }
  static Doubles broadcast(double value) { return {value}; }
  static Doubles widen(const float* from) { return {double(*from)}; }
  static Doubles of_bits(Words bits) {
    Doubles result;
    memcpy(&result.value, &bits.value, sizeof result.value);
    return result;
  }
  Words bits() const {
    Words result;
    memcpy(&result.value, &value, sizeof value);
    return result;
  }
  friend Doubles operator+(Doubles a, Doubles b) { return {a.value + b.value}; }
  friend Doubles operator-(Doubles a, Doubles b) { return {a.value - b.value}; }
  friend Doubles operator*(Doubles a, Doubles b) { return {a.value * b.value}; }
  static Doubles fma(Doubles a, Doubles b, Doubles c) { return {fused_multiply_add(a.value, b.value, c.value)}; }
  static Words where_at_least(Doubles a, Doubles b, Words words) { return {a.value >= b.value ? words.value : 0}; }
};

inline uint64_t floats_at_least(Vector a, Vector b) { return a.value >= b.value; }
inline float greatest_of(Lanes a) { return a.greatest(); }
inline bool has_nan(Vector a) { return a.value != a.value; }

#endif

#if !defined(__AVX512F__)
inline int64_t take(Vector floats, uint64_t bits, float* to) {
  float lanes[Vector::WIDTH];
  floats.store(lanes);
  int64_t count = 0;
  for (; bits != 0; bits &= bits - 1) to[count++] = lanes[__builtin_ctzll(bits)];
  return count;
}
inline void take_ids(uint64_t bits, int64_t first_id, int32_t* to) {
  for (; bits != 0; bits &= bits - 1) *to++ = int32_t(first_id + __builtin_ctzll(bits));
}
#endif

}  // namespace
}  // namespace octavo
