// AVX512: 16 floats in a register, 32 registers.
#include <immintrin.h>

#include "gemm_fma.h"

namespace octavo {
namespace {

struct Vector {
  static constexpr int WIDTH = 16;
  static constexpr int ROWS = 8;  // 8 x 2 sums, 2 columns, factors from memory
  __m512 value;

  static Vector zero() { return {_mm512_setzero_ps()}; }
  static Vector load(const float* from) { return {_mm512_loadu_ps(from)}; }
  static Vector load_even(const bf16* pairs) {
    return {_mm512_castsi512_ps(_mm512_slli_epi32(_mm512_loadu_si512(pairs), 16))};
  }
  static Vector load_odd(const bf16* pairs) {
    return {_mm512_castsi512_ps(_mm512_and_si512(_mm512_loadu_si512(pairs), _mm512_set1_epi32(int(0xffff0000))))};
  }
  static Vector broadcast(float value) { return {_mm512_set1_ps(value)}; }
  static Vector fma(Vector a, Vector b, Vector sum) { return {_mm512_fmadd_ps(a.value, b.value, sum.value)}; }
  void store(float* to) const { _mm512_storeu_ps(to, value); }
};

}  // namespace

const GemmKernel gemm_f32_avx512 = FmaGemm<Vector>::f32();
const GemmKernel gemm_bf16_avx512 = FmaGemm<Vector>::bf16_weights();

}  // namespace octavo
