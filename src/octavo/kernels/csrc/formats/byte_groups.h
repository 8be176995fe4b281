// 8-bit numbers with a scale for each group of 32 or 128 k: integers, or floats with a 4-bit exponent and a 3-bit
// mantissa (float8_e4m3fn).
//
//     weight block   scale float | GROUP bytes
//     header         scale[32] float
#pragma once

#include <type_traits>

#include "../code_lanes.h"
#include "codes_8bit.h"

namespace octavo {
namespace {

template <int64_t GROUP>
struct ByteGroups {
  static constexpr int64_t BLOCK_K = GROUP, BLOCK_BYTES = 4 + GROUP;
  static constexpr int64_t GROUPS = 1, HEADER_BYTES = 2 * LINE_BYTES;
  static constexpr bool HAS_OFFSET = false, HAS_ZERO = false;
  static constexpr Values VALUES = Values::ORDINARY;
  using Codes = Codes8;

  static void codes(const uint8_t* block, int step, uint8_t* codes) {
    memcpy(codes, block + 4 + step * CODES_K, CODES_K);
  }
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    memcpy(span + 4 * column, block, 4);
    return is_scale(block);
  }
  static Scale scale(const uint8_t* span, int64_t, int column) { return {read<float>(span + 4 * column)}; }
  template <class Format>
  static void read_scales(const uint8_t* span, Scales<Format>& to) {
    memcpy(to.factor[0], span, sizeof to.factor[0]);
  }
};

template <int64_t GROUP>
struct Int8 : ByteGroups<GROUP> {
  static float level(int code) { return float(int8_t(code)); }
  template <class Lanes>
  static auto levels(Lanes codes) { return codes.template right_signed<24>().to_float(); }
#if defined(__AVX512BF16__)
  static __m512 sixteen_levels(__m128i codes) { return _mm512_cvtepi32_ps(_mm512_cvtepi8_epi32(codes)); }
  static OCTAVO_INLINED __m512 sixteen_values(const uint8_t* codes, int quarter, const Scales<Int8>& scales,
                                              int64_t group, int column) {
    const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + 16 * quarter));
    return _mm512_mul_ps(sixteen_levels(sixteen), _mm512_set1_ps(scales.factor[group][column]));
  }
#endif
};

// The conversion from e4m3 to float has no subnormal floats as intermediate results: some modes flush them, and they
// take a hundred times as long. Shifted to their places in a float, the bits of e4m3 are a normal float f. For a
// subnormal e4m3 number v, f has an implicit leading bit too many, so f = 2^-7 + v / 2. Then 2f - 2^-6 is v, and less
// than f; for all other numbers 2f - 2^-6 is f or more.
template <int64_t GROUP>
struct Fp8 : ByteGroups<GROUP> {
  static float level(int code) {
    const uint32_t bits = (uint32_t(code & 0x7f) << 20) + (120 << 23);
    float f;
    memcpy(&f, &bits, sizeof f);
    const float doubled = 2.0f * f - 0x1p-6f;
    return __builtin_copysignf(f < doubled ? f : doubled, code & 0x80 ? -1.0f : 1.0f);
  }
  template <class Lanes>
  static auto levels(Lanes codes) {
    const auto f = ((codes.template right<4>() & 0x07f00000) + Lanes::broadcast(120 << 23)).as_float();
    using Floats = std::remove_const_t<decltype(f)>;
    const auto doubled = Floats::fma(f, Floats::broadcast(2.0f), Floats::broadcast(-0x1p-6f));
    return Lanes::choose(0x80000000, codes, Lanes::bits_of(Floats::min(f, doubled))).as_float();
  }
#if defined(__AVX512BF16__)
  static __m512 sixteen_levels(__m128i codes) {
    return levels(CodeLanes{_mm512_slli_epi32(_mm512_cvtepu8_epi32(codes), 24)}).value;
  }
  static OCTAVO_INLINED __m512 sixteen_values(const uint8_t* codes, int quarter, const Scales<Fp8>& scales,
                                              int64_t group, int column) {
    const __m128i sixteen = _mm_load_si128(reinterpret_cast<const __m128i*>(codes + 16 * quarter));
    return _mm512_mul_ps(sixteen_levels(sixteen), _mm512_set1_ps(scales.factor[group][column]));
  }
#endif
  static bool pack_scales(const uint8_t* block, int column, uint8_t* span) {
    bool is_number = true;
    for (int64_t k = 0; k < GROUP; ++k) is_number &= (block[4 + k] & 0x7f) != 0x7f;
    return ByteGroups<GROUP>::pack_scales(block, column, span) && is_number;
  }
};

}  // namespace
}  // namespace octavo
