// Subnormal numbers. AMX takes them for zero whatever the thread's mode says, and bf16 products follow it on every ISA;
// all other kernels compute with them, as IEEE 754 has it.
//
//     IeeeMode    what every kernel starts with, whatever the calling thread had set (a library that was linked with
//                 -ffast-math sets the flush mode of the thread that loads it)
//     FlushMode   operands and results that are subnormal are zeros with their sign. Whether a result is subnormal is
//                 decided after it was rounded to 24 bits.
//
// Both hold while the object lives, for this thread. Where a processor has no such mode, the functions below flush by
// themselves.
//
// Compilers know nothing of modes. So what is computed in one must be read from memory and written to memory while the
// object lives, memory that others know of: neither moves over a change of the mode.
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
using FlushMode = FloatMode<ROUND_TO_NEAREST | 0x8040>;  // results, and operands

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
using FlushMode = FloatMode<uint64_t(1) << 24>;  // it decides before rounding: see flush_neon.h
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

  // a * b + c, of operands that are not subnormal. What is below the halfway point between the smallest normal number
  // and the number of 24 bits before it becomes that one, or a smaller one, and so zero.
  static Vector fma(Vector a, Vector b, Vector c) {
    constexpr double HALFWAY = 0x1p-126 - 0x1p-151;
    const double sum = odd_fma(a.value, b.value, c.value);
    const float rounded = float(sum);
    return {__builtin_fabs(sum) < HALFWAY ? __builtin_copysignf(0.0f, rounded) : rounded};
  }

  // A sum of floats that is subnormal is exact.
  static float sum(float a, float b) { return flushed(flushed(a) + flushed(b)); }
  static Vector sum(Vector a, Vector b) { return {sum(a.value, b.value)}; }

 private:
  static float flushed(float a) { return __builtin_fabsf(a) < 0x1p-126f ? __builtin_copysignf(0.0f, a) : a; }
};

#endif

}  // namespace
}  // namespace octavo
