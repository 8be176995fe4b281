// Q8_0: 8.5 bits per weight.
//
//     weight block   d half | 32 int8
//     header         d[32] half
#pragma once

#include "codes_8bit.h"
#include "mantissa_codes.h"
#include "scales.h"

namespace octavo {
namespace {

struct Q8_0 : HalfScales {
  static constexpr int64_t BLOCK_K = 32, BLOCK_BYTES = 34;
  using Codes = Codes8;

  static float level(int code) { return float(int8_t(code)); }
  template <class Lanes>
  static auto levels(Lanes codes) { return codes.template right_signed<24>().to_float(); }
#if defined(__AVX512BF16__)
  static OCTAVO_INLINED __m512 sixteen_values(const uint8_t* codes, int quarter, const Scales<Q8_0>& scales, int64_t,
                                              int column) {
    // Adding 128 maps the codes to 0 to 255.
    const __m512i from_zero = _mm512_xor_si512(_mm512_load_si512(codes), _mm512_set1_epi8(char(0x80)));
    return mantissa_values<EIGHT_BITS>(from_zero, quarter, scales.factor[0][column], scales.back[0][column]);
  }
#endif

  static void codes(const uint8_t* block, int, uint8_t* codes) { memcpy(codes, block + 2, CODES_K); }
  static void read_scales(const uint8_t* span, Scales<Q8_0>& to) {
    HalfScales::read_scales(span, to);
#if defined(__AVX512BF16__)
    fill_back(-128.0f, EIGHT_BITS, to);
#endif
  }
};

}  // namespace
}  // namespace octavo
