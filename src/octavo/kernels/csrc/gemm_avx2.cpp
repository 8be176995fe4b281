// AVX2 and FMA: 8 floats in a register, 16 registers.
#include <immintrin.h>

#include "gemm_fma.h"

namespace octavo {
namespace {

struct Vector {
  static constexpr int WIDTH = 8;
  static constexpr int ROWS = 2;  // 2 x 4 sums, 4 columns, 1 factor
  __m256 value;

  static Vector zero() { return {_mm256_setzero_ps()}; }
  static Vector load(const float* from) { return {_mm256_loadu_ps(from)}; }
  static Vector load_even(const bf16* pairs) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_slli_epi32(words, 16))};
  }
  static Vector load_odd(const bf16* pairs) {
    const __m256i words = _mm256_loadu_si256(reinterpret_cast<const __m256i*>(pairs));
    return {_mm256_castsi256_ps(_mm256_and_si256(words, _mm256_set1_epi32(int(0xffff0000))))};
  }
  static Vector broadcast(float value) { return {_mm256_set1_ps(value)}; }
  static Vector fma(Vector a, Vector b, Vector sum) { return {_mm256_fmadd_ps(a.value, b.value, sum.value)}; }
  void store(float* to) const { _mm256_storeu_ps(to, value); }
};

}  // namespace

const GemmKernel gemm_f32_avx2 = FmaGemm<Vector>::f32();
const GemmKernel gemm_bf16_avx2 = FmaGemm<Vector>::bf16_weights();

}  // namespace octavo
