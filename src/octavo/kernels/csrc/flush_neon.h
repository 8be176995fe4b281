// Subnormal results on aarch64. Its flush mode replaces a result by zero if it is below 2^-126 before rounding; the
// definition in flush.h decides after rounding. The two differ if a * b + c rounds up to 2^-126, which is rare but
// possible. They do not differ for the sum of two floats, which is exact if it is that small.
//
// The processor sets a flag when it flushes a result. So a step is computed in FlushMode, and computed again in
// software if the flag is set.
#pragma once

#include "vector_math.h"

namespace octavo {
namespace {

// Returns whether a result may have been flushed since the last call, and clears the flag. (The flag may also have been
// set before.) `products` are the results: they must be computed before the flag is read, and later operations after
// it.
template <int ROWS, int VECTORS>
inline bool test_and_clear_underflow(Vector (&products)[ROWS][VECTORS]) {
  constexpr uint64_t UNDERFLOW_FLAG = 8;
  for (auto& row : products)
    for (Vector& product : row) __asm__ volatile("" : "+w"(product.value));
  uint64_t flags;
  __asm__ volatile("mrs %0, fpsr" : "=r"(flags)::"memory");
  if ((flags & UNDERFLOW_FLAG) == 0) return false;
  __asm__ volatile("msr fpsr, %0" ::"r"(flags & ~UNDERFLOW_FLAG) : "memory");
  return true;
}

// The operations of a step with flushing in software. Called in IeeeMode.
struct SoftwareFlush {
  static Vector operand(Vector a) { return zero_if(vcaltq_f32(a.value, vdupq_n_f32(0x1p-126f)), a); }
  static Vector sum(Vector a, Vector b) { return operand(a + b); }

  // The result scaled by 2^64 is rounded to 24 bits however small the result is, so it shows whether the rounded result
  // is below 2^-126. The scaled result may overflow. Then the result itself is zero or far above 2^-126, because a, b
  // and c have 24 bits each; such a zero is exact, and NaN compares false.
  static Vector fma(Vector a, Vector b, Vector c) {
    const Vector scale = Vector::broadcast(0x1p64f);
    const Vector scaled = Vector::fma(a * scale, b, c * scale);
    return zero_if(vcaltq_f32(scaled.value, vdupq_n_f32(0x1p-62f)), Vector::fma(a, b, c));
  }

 private:
  // Replaces the lanes of a mask by zeros of the same sign.
  static Vector zero_if(uint32x4_t mask, Vector a) {
    return Vector::of_bits(vbicq_u32(a.bits(), vandq_u32(mask, vdupq_n_u32(0x7fffffff))));
  }
};

}  // namespace
}  // namespace octavo
