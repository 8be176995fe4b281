// Converts bf16 to float and back. In an anonymous namespace on purpose: each object file compiles these functions for
// its own ISA, and the linker must never merge a version that uses AVX512 into code that runs without it.
#pragma once

#include <cstdint>
#include <cstring>

namespace octavo {
namespace {

using bf16 = uint16_t;

inline float to_float(bf16 value) {
  const uint32_t bits = uint32_t(value) << 16;
  float result;
  memcpy(&result, &bits, sizeof result);
  return result;
}

// Rounds to nearest, ties to even. NaN stays NaN.
inline bf16 to_bf16(float value) {
  uint32_t bits;
  memcpy(&bits, &value, sizeof bits);
  const bool is_nan = (bits & 0x7fffffff) > 0x7f800000;
  const uint32_t rounded = bits + 0x7fff + ((bits >> 16) & 1);
  return bf16((is_nan ? (bits | 0x400000) : rounded) >> 16);
}

}  // namespace
}  // namespace octavo
