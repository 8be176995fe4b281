// 32-bit words in a register, as many as a `Vector` has floats. They hold codes of weights before the conversion to
// float.
#pragma once

#include "vector_math.h"

#if defined(__AVX2__) || defined(OCTAVO_NEON)
#define OCTAVO_CODE_LANES

namespace octavo {
namespace {

#if defined(__AVX512F__)

struct CodeLanes {
  __m512i bits;

  static CodeLanes load(const uint32_t* from) { return {_mm512_loadu_si512(from)}; }
  static CodeLanes broadcast(uint32_t word) { return {_mm512_set1_epi32(int(word))}; }
  static CodeLanes load_bytes(const uint8_t* from) {
    return {_mm512_cvtepu8_epi32(_mm_loadu_si128(reinterpret_cast<const __m128i*>(from)))};
  }
  // Lane i has word i / REPEAT.
  template <int REPEAT>
  static CodeLanes load_repeated(const uint32_t* words) {
    if constexpr (REPEAT == 16) return broadcast(*words);
    static_assert(REPEAT == 4 || REPEAT == 8 || REPEAT == 16);
    const __m128i* from = reinterpret_cast<const __m128i*>(words);
    const __m512i some = _mm512_castsi128_si512(REPEAT == 4 ? _mm_loadu_si128(from) : _mm_loadl_epi64(from));
    const __m512i lanes = _mm512_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15);
    return {_mm512_permutexvar_epi32(_mm512_srli_epi32(lanes, REPEAT == 4 ? 2 : 3), some)};
  }
  friend CodeLanes operator&(CodeLanes a, uint32_t mask) { return {_mm512_and_si512(a.bits, broadcast(mask).bits)}; }
  static CodeLanes bits_of(Vector values) { return {_mm512_castps_si512(values.value)}; }
  friend CodeLanes operator+(CodeLanes a, CodeLanes b) { return {_mm512_add_epi32(a.bits, b.bits)}; }
  // Returns the bits of a where the mask has ones, otherwise those of b.
  static CodeLanes choose(uint32_t mask, CodeLanes a, CodeLanes b) {
    return {_mm512_ternarylogic_epi32(broadcast(mask).bits, a.bits, b.bits, 0xca)};
  }
  friend CodeLanes operator>>(CodeLanes a, CodeLanes counts) { return {_mm512_srlv_epi32(a.bits, counts.bits)}; }
  template <int COUNT>
  CodeLanes left() const { return {_mm512_slli_epi32(bits, COUNT)}; }
  template <int COUNT>
  CodeLanes right() const { return {_mm512_srli_epi32(bits, COUNT)}; }
  template <int COUNT>
  CodeLanes right_signed() const { return {_mm512_srai_epi32(bits, COUNT)}; }
  // Moves bits `from` and 16 + from of each lane to bits TO and 16 + TO. All other bits are undefined.
  template <int TO>
  CodeLanes bits_to(CodeLanes from) const {
    return {_mm512_rolv_epi32(bits, _mm512_sub_epi32(_mm512_set1_epi32(TO), from.bits))};
  }
  Vector to_float() const { return {_mm512_cvtepi32_ps(bits)}; }
  Vector as_float() const { return {_mm512_castsi512_ps(bits)}; }
  // Looks up the low four bits of each lane.
  Vector look_up(const float (&table)[16]) const { return {_mm512_permutexvar_ps(bits, _mm512_loadu_ps(table))}; }
};

#elif defined(__AVX2__)

struct CodeLanes {
  __m256i bits;

  static CodeLanes load(const uint32_t* from) { return {_mm256_loadu_si256(reinterpret_cast<const __m256i*>(from))}; }
  static CodeLanes broadcast(uint32_t word) { return {_mm256_set1_epi32(int(word))}; }
  static CodeLanes load_bytes(const uint8_t* from) {
    return {_mm256_cvtepu8_epi32(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(from)))};
  }
  template <int REPEAT>
  static CodeLanes load_repeated(const uint32_t* words) {
    if constexpr (REPEAT >= 8) return broadcast(*words);
    static_assert(REPEAT >= 4);
    const __m256i two = _mm256_castsi128_si256(_mm_loadl_epi64(reinterpret_cast<const __m128i*>(words)));
    return {_mm256_permutevar8x32_epi32(two, _mm256_setr_epi32(0, 0, 0, 0, 1, 1, 1, 1))};
  }
  friend CodeLanes operator&(CodeLanes a, uint32_t mask) { return {_mm256_and_si256(a.bits, broadcast(mask).bits)}; }
  static CodeLanes bits_of(Vector values) { return {_mm256_castps_si256(values.value)}; }
  friend CodeLanes operator+(CodeLanes a, CodeLanes b) { return {_mm256_add_epi32(a.bits, b.bits)}; }
  static CodeLanes choose(uint32_t mask, CodeLanes a, CodeLanes b) {
    return {_mm256_or_si256((a & mask).bits, _mm256_andnot_si256(broadcast(mask).bits, b.bits))};
  }
  friend CodeLanes operator>>(CodeLanes a, CodeLanes counts) { return {_mm256_srlv_epi32(a.bits, counts.bits)}; }
  template <int COUNT>
  CodeLanes left() const { return {_mm256_slli_epi32(bits, COUNT)}; }
  template <int COUNT>
  CodeLanes right() const { return {_mm256_srli_epi32(bits, COUNT)}; }
  template <int COUNT>
  CodeLanes right_signed() const { return {_mm256_srai_epi32(bits, COUNT)}; }
  template <int TO>
  CodeLanes bits_to(CodeLanes from) const { return (*this >> from).template left<TO>(); }
  Vector to_float() const { return {_mm256_cvtepi32_ps(bits)}; }
  Vector as_float() const { return {_mm256_castsi256_ps(bits)}; }
  Vector look_up(const float (&table)[16]) const {
    const __m256 low = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table), bits);
    const __m256 high = _mm256_permutevar8x32_ps(_mm256_loadu_ps(table + 8), bits);
    return {_mm256_blendv_ps(low, high, left<28>().as_float().value)};  // by bit 3
  }
};

#else

struct CodeLanes {
  uint32x4_t bits;

  static CodeLanes load(const uint32_t* from) { return {vld1q_u32(from)}; }
  static CodeLanes broadcast(uint32_t word) { return {vdupq_n_u32(word)}; }
  static CodeLanes load_bytes(const uint8_t* from) {
    uint32_t four;
    memcpy(&four, from, sizeof four);
    const uint16x8_t halves = vmovl_u8(vcreate_u8(four));
    return {vmovl_u16(vget_low_u16(halves))};
  }
  template <int REPEAT>
  static CodeLanes load_repeated(const uint32_t* words) {
    static_assert(REPEAT >= 4);
    return {vld1q_dup_u32(words)};
  }
  friend CodeLanes operator&(CodeLanes a, uint32_t mask) { return {vandq_u32(a.bits, vdupq_n_u32(mask))}; }
  static CodeLanes bits_of(Vector values) { return {values.bits()}; }
  friend CodeLanes operator+(CodeLanes a, CodeLanes b) { return {vaddq_u32(a.bits, b.bits)}; }
  static CodeLanes choose(uint32_t mask, CodeLanes a, CodeLanes b) {
    return {vbslq_u32(vdupq_n_u32(mask), a.bits, b.bits)};
  }
  friend CodeLanes operator>>(CodeLanes a, CodeLanes counts) {
    return {vshlq_u32(a.bits, vnegq_s32(vreinterpretq_s32_u32(counts.bits)))};
  }
  template <int COUNT>
  CodeLanes left() const { return {vshlq_n_u32(bits, COUNT)}; }
  template <int COUNT>
  CodeLanes right() const {
    if constexpr (COUNT == 0) return *this;
    else return {vshrq_n_u32(bits, COUNT)};
  }
  template <int COUNT>
  CodeLanes right_signed() const {
    return {vreinterpretq_u32_s32(vshrq_n_s32(vreinterpretq_s32_u32(bits), COUNT))};
  }
  template <int TO>
  CodeLanes bits_to(CodeLanes from) const {
    return {vshlq_u32(bits, vsubq_s32(vdupq_n_s32(TO), vreinterpretq_s32_u32(from.bits)))};
  }
  Vector to_float() const { return {vcvtq_f32_s32(vreinterpretq_s32_u32(bits))}; }
  Vector as_float() const { return Vector::of_bits(bits); }
  // The bytes of a float start at four times its index.
  Vector look_up(const float (&table)[16]) const {
    uint8x16x4_t bytes;
    for (int i = 0; i < 4; ++i) bytes.val[i] = vreinterpretq_u8_f32(vld1q_f32(table + 4 * i));
    const uint32x4_t index = vandq_u32(bits, vdupq_n_u32(15));
    const uint32x4_t places = vmlaq_u32(vdupq_n_u32(0x03020100), index, vdupq_n_u32(0x04040404));
    return Vector::of_bits(vreinterpretq_u32_u8(vqtbl4q_u8(bytes, vreinterpretq_u8_u32(places))));
  }
};

#endif

}  // namespace
}  // namespace octavo

#endif
