// The reference: plain C++, one float at a time, on any processor.
#include <cmath>

#include "gemm_fma.h"

namespace octavo {
namespace {

struct Vector {
  static constexpr int WIDTH = 1;
  static constexpr int ROWS = 1;
  float value;

  static Vector zero() { return {0.0f}; }
  static Vector load(const float* from) { return {*from}; }
  static Vector load_even(const bf16* pairs) { return {to_float(pairs[0])}; }
  static Vector load_odd(const bf16* pairs) { return {to_float(pairs[1])}; }
  static Vector broadcast(float value) { return {value}; }
  static Vector fma(Vector a, Vector b, Vector sum) { return {std::fma(a.value, b.value, sum.value)}; }
  void store(float* to) const { *to = value; }
};

}  // namespace

const GemmKernel gemm_f32_portable = FmaGemm<Vector>::f32();
const GemmKernel gemm_bf16_portable = FmaGemm<Vector>::bf16_weights();

}  // namespace octavo
