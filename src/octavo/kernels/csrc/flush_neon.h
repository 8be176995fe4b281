// Subnormal results on aarch64. Its flush mode takes for zero what is below 2^-126 before rounding; the definition asks
// what it is after. They differ for a * b + c that rounds up to 2^-126: rare, but not excluded. A sum of two floats is
// exact where it is so small, and the mode is right.
//
// The processor notes when it has flushed a result. So a step is computed in FlushMode, and once more by hand if there
// was one.
#pragma once

#include "vector_math.h"

namespace octavo {
namespace {

// Whether a result was flushed since the last call (or might have been: the flag may be an older one). Clears the flag.
// `products` are what was computed: all of it has to be done before the flag is read, and nothing that comes later.
template <int ROWS, int VECTORS>
inline bool took_underflow(Vector (&products)[ROWS][VECTORS]) {
  constexpr uint64_t UNDERFLOW_FLAG = 8;
  for (auto& row : products)
    for (Vector& product : row) __asm__ volatile("" : "+w"(product.value));
  uint64_t flags;
  __asm__ volatile("mrs %0, fpsr" : "=r"(flags)::"memory");
  if ((flags & UNDERFLOW_FLAG) == 0) return false;
  __asm__ volatile("msr fpsr, %0" ::"r"(flags & ~UNDERFLOW_FLAG) : "memory");
  return true;
}

// The operations of a step, in IeeeMode.
struct FlushByHand {
  static Vector operand(Vector a) { return zero_if(vcaltq_f32(a.value, vdupq_n_f32(0x1p-126f)), a); }
  static Vector sum(Vector a, Vector b) { return operand(a + b); }

  // Scaled by 2^64 the result is rounded to 24 bits, however small it is, and then it shows whether it is below 2^-126.
  // It may overflow: then the result itself is zero or far above 2^-126, because a, b and c have 24 bits each. Such a
  // zero is exact, and a not-a-number is not below anything.
  static Vector fma(Vector a, Vector b, Vector c) {
    const Vector scale = Vector::broadcast(0x1p64f);
    const Vector scaled = Vector::fma(a * scale, b, c * scale);
    return zero_if(vcaltq_f32(scaled.value, vdupq_n_f32(0x1p-62f)), Vector::fma(a, b, c));
  }

 private:
  // A zero with its sign in the lanes of a mask.
  static Vector zero_if(uint32x4_t mask, Vector a) {
    return Vector::of_bits(vbicq_u32(a.bits(), vandq_u32(mask, vdupq_n_u32(0x7fffffff))));
  }
};

}  // namespace
}  // namespace octavo
