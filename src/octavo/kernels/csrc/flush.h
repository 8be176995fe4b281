// Handling of subnormal numbers. AMX always treats them as zero, whatever mode the thread is in, and bf16 products do
// the same on every ISA. All other kernels compute with subnormal numbers, as in IEEE 754.
//
//     IeeeMode    the mode in which every kernel starts, whatever the calling thread had set (a library linked with
//                 -ffast-math sets the flush mode of the thread that loads it)
//     FlushMode   subnormal operands and results are replaced by zeros of the same sign. Whether a result is subnormal
//                 is decided after it was rounded to 24 bits.
//
// A mode object sets the mode of its thread for its lifetime. On processors without a flush mode, the functions below
// flush in software.
//
// Compilers are not aware of modes. So code that depends on a mode must read its inputs from memory and write its
// results to memory during the lifetime of the mode object. The memory must be visible outside the function: the
// compiler does not move such accesses across a change of the mode.
#pragma once

#include <cstdint>

#include "vector_math.h"

namespace octavo {
namespace {

#if defined(__x86_64__)

template <uint32_t SET>
class FloatMode {
 public:
  FloatMode() : before_(__builtin_ia32_stmxcsr()) { change(SET); }
  ~FloatMode() { change(before_); }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static void change(uint32_t mode) {
    __asm__ volatile("" ::: "memory");
    __builtin_ia32_ldmxcsr(mode);
    __asm__ volatile("" ::: "memory");
  }
  const uint32_t before_;
};

constexpr uint32_t ROUND_TO_NEAREST = 0x1f80;  // no traps
using IeeeMode = FloatMode<ROUND_TO_NEAREST>;
using FlushMode = FloatMode<ROUND_TO_NEAREST | 0x8040>;  // flush results and operands

#elif defined(__aarch64__)

template <uint64_t SET>
class FloatMode {
 public:
  FloatMode() {
    __asm__ volatile("mrs %0, fpcr" : "=r"(before_));
    if (before_ != SET) change(SET);
  }
  ~FloatMode() {
    if (before_ != SET) change(before_);
  }
  FloatMode(const FloatMode&) = delete;
  FloatMode& operator=(const FloatMode&) = delete;

 private:
  static void change(uint64_t mode) { __asm__ volatile("msr fpcr, %0" ::"r"(mode) : "memory"); }
  uint64_t before_;
};

using IeeeMode = FloatMode<0>;
#if defined(OCTAVO_NEON)
using FlushMode = FloatMode<uint64_t(1) << 24>;  // decides before rounding: see flush_neon.h
#else
using FlushMode = IeeeMode;
#endif

#else

struct IeeeMode {
  IeeeMode() {}
  ~IeeeMode() {}
};
using FlushMode = IeeeMode;

#endif

#if defined(__AVX2__) || defined(OCTAVO_NEON)

struct Flush {
  static Vector operand(Vector a) { return a; }
  static Vector fma(Vector a, Vector b, Vector c) { return Vector::fma(a, b, c); }
  static Vector sum(Vector a, Vector b) { return a + b; }
  static float sum(float a, float b) { return a + b; }
};

#else

struct Flush {
  static Vector operand(Vector a) { return {flushed(a.value)}; }

  // Returns a * b + c for operands that are not subnormal. A result below the midpoint between the smallest normal
  // number and the next smaller number of 24 bits does not round up to the normal number, so it is flushed to zero.
  static Vector fma(Vector a, Vector b, Vector c) {
    constexpr double HALFWAY = 0x1p-126 - 0x1p-151;
    const double sum = odd_fma(a.value, b.value, c.value);
    const float rounded = float(sum);
    return {__builtin_fabs(sum) < HALFWAY ? __builtin_copysignf(0.0f, rounded) : rounded};
  }

  // A subnormal sum of floats is exact, so rounding does not matter.
  static float sum(float a, float b) { return flushed(flushed(a) + flushed(b)); }
  static Vector sum(Vector a, Vector b) { return {sum(a.value, b.value)}; }

 private:
  static float flushed(float a) { return __builtin_fabsf(a) < 0x1p-126f ? __builtin_copysignf(0.0f, a) : a; }
};

#endif

}  // namespace
}  // namespace octavo
