// Functions of doubles: logarithm, sine and cosine, fused multiply-add.
//
// Each is one fixed sequence of + - * / on IEEE doubles, so results are bit-identical with every compiler, as long as
// it does not contract operations. libm does not guarantee that. The names differ from those of libm, so that code
// without the include does not compile.
//
// In an anonymous namespace, for the reason given in bf16.h.
#pragma once

#include <bit>
#include <cstdint>

namespace octavo {
namespace {

// first + x * (second + x * (...))
inline double polynomial(double, double last) { return last; }
template <class... Rest>
inline double polynomial(double x, double first, Rest... rest) {
  return first + x * polynomial(x, rest...);
}

// Returns ln x, within one unit in the last place, for finite x > 0, including subnormal x.
//
//     x = m * 2^e with m in [sqrt(1/2), sqrt(2)), f = m - 1, s = f / (m + 1)
//     ln m = 2 atanh s = 2 (s + s^3 / 3 + s^5 / 5 + ...) = f - s * (f - 2 (s^2 / 3 + s^4 / 5 + ...))
//
// In the last form the rounded part is small compared with f, which is exact. Since s^2 < 0.0295, the omitted terms are
// less than 2^-59 of the result.
inline double natural_log(double x) {
  constexpr double SMALLEST_NORMAL = 0x1p-1022;
  constexpr double LN2_HIGH = 0x1.62e42feep-1, LN2_LOW = 0x1.a39ef35793c76p-33;  // e * LN2_HIGH is exact
  constexpr uint64_t ROOT_OF_HALF = 0x3fe6a09e667f3bcd;                          // the bits of sqrt(1/2)
  const bool is_subnormal = x < SMALLEST_NORMAL;
  const uint64_t bits = std::bit_cast<uint64_t>(is_subnormal ? x * 0x1p54 : x);
  const int64_t exponent = int64_t(bits - ROOT_OF_HALF) >> 52;
  const double m = std::bit_cast<double>(bits - (uint64_t(exponent) << 52));
  const double e = double(is_subnormal ? exponent - 54 : exponent);
  const double f = m - 1.0, s = f / (m + 1.0), z = s * s;
  const double tail = z * polynomial(z, 2.0 / 3, 2.0 / 5, 2.0 / 7, 2.0 / 9, 2.0 / 11, 2.0 / 13, 2.0 / 15, 2.0 / 17,
                                     2.0 / 19, 2.0 / 21);
  return e * LN2_HIGH - ((s * (f - tail) - e * LN2_LOW) - f);
}

struct SinCos {
  double sine, cosine;
};

constexpr double MAX_ANGLE = 0x1p27;  // of sin_cos

// Returns sine and cosine, within 2 units in the last place, of a float32 angle with |angle| <= MAX_ANGLE.
//
//     angle = n * pi/2 + r with |r| <= pi/4 and an integer n;  Taylor series for r;  n % 4 is the quadrant
//
// pi/2 is split into three pieces of 26, 26 and 53 bits. n has at most 27 bits, so its products with the first two
// pieces are exact. So are the differences, whose lowest bit is not below 2^-51. (If the angle has lower bits, n is 0.)
inline SinCos sin_cos(float angle) {
  constexpr double PI_1 = 0x1.921fb50000000p+0, PI_2 = 0x1.110b460000000p-26, PI_3 = 0x1.1a62633145c07p-54;
  constexpr double SHIFT_DOUBLE = 0x1.8p52;  // adding it rounds to an integer and leaves that in the lowest bits
  const double x = double(angle);
  const double shifted = x * 0x1.45f306dc9c883p-1 + SHIFT_DOUBLE, n = shifted - SHIFT_DOUBLE;
  const double r = ((x - n * PI_1) - n * PI_2) - n * PI_3, z = r * r;
  const double sine_tail = polynomial(z, -1.0 / 6, 1.0 / 120, -1.0 / 5040, 1.0 / 362880, -1.0 / 39916800,
                                      1.0 / 6227020800, -1.0 / 1307674368000, 1.0 / 355687428096000);
  const double cosine_tail = polynomial(z, 1.0 / 24, -1.0 / 720, 1.0 / 40320, -1.0 / 3628800, 1.0 / 479001600,
                                        -1.0 / 87178291200, 1.0 / 20922789888000, -1.0 / 6402373705728000);
  const double sine = r + r * z * sine_tail;
  const double half = 0.5 * z, rest = 1.0 - half;
  const double cosine = rest + (((1.0 - rest) - half) + z * z * cosine_tail);  // with the rounding error of `rest`
  const uint64_t quarter = std::bit_cast<uint64_t>(shifted);
  const double first = quarter & 1 ? cosine : sine, second = quarter & 1 ? sine : cosine;
  return {quarter & 2 ? -first : first, (quarter + 1) & 2 ? -second : second};
}

// Returns the smallest integer that is not less than x, for 0 <= x < 2^63.
inline uint64_t round_up(double x) {
  const uint64_t whole = uint64_t(x);
  return double(whole) < x ? whole + 1 : whole;
}

// An exact result high + low, where high is the nearest double.
struct Exact {
  double high, low;
};

// Knuth's TwoSum.
inline Exact exact_sum(double a, double b) {
  const double high = a + b, of_b = high - a;
  return {high, (a - (high - of_b)) + (b - of_b)};
}

// Dekker's product: each factor is split into halves of 26 bits, whose products are exact.
inline Exact exact_product(double a, double b) {
  const auto upper_half = [](double x) {
    const double large = x * 0x1.0000002p27;  // 2^27 + 1
    return large - (large - x);
  };
  const double high = a * b;
  const double a_high = upper_half(a), a_low = a - a_high, b_high = upper_half(b), b_low = b - b_high;
  return {high, ((a_high * b_high - high) + a_high * b_low + a_low * b_high) + a_low * b_low};
}

// Returns a * b + c, rounded once: bit-identical to the instruction, except for the sign of a zero.
//
// Requires that a and b are below 2^990, and that a * b is 0, or at least 2^-900, or so far below c's last place that
// the result is c.
//
// The exact product is high + low; adding c makes a sum of three doubles. Its lesser part is rounded to odd: if it is
// not exact, to the neighbour whose last bit is set. So a sum that is not exactly the midpoint of two doubles is never
// mistaken for one, and the last addition rounds correctly (Boldo and Melquiond, 2008).
inline double fused_multiply_add(double a, double b, double c) {
#if defined(__FMA__) || defined(__aarch64__) || defined(__FP_FAST_FMA)
  return __builtin_fma(a, b, c);  // an instruction on this target, not a call of libm
#else
  const Exact product = exact_product(a, b);
  const Exact lower = exact_sum(c, product.low), upper = exact_sum(product.high, lower.high);
  const Exact lesser = exact_sum(upper.low, lower.low);
  // Branchless, because a branch would be unpredictable.
  const uint64_t bits = std::bit_cast<uint64_t>(lesser.high), is_between = lesser.low != 0.0;
  const uint64_t is_moved = is_between & ~bits;  // last bit only: whether to move to the odd neighbour
  const uint64_t inwards = (bits ^ std::bit_cast<uint64_t>(lesser.low)) >> 63;
  return upper.high + std::bit_cast<double>(bits + is_moved - 2 * (is_moved & inwards));
#endif
}

}  // namespace
}  // namespace octavo
