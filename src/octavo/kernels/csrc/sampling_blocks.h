// The passes over the vocabulary, one token block at a time. Each ISA's object file compiles its own copy (see bf16.h).
#pragma once

#include "sampling.h"
#include "sampling_words.h"

namespace octavo {
namespace {

inline void find_maxima(const float* const* blocks, int64_t num_blocks, float* maxima) {
  for (int64_t b = 0; b < num_blocks; ++b) {
    Lanes greatest = Lanes::load(blocks[b]);
    Lanes total = greatest;  // NaN if any logit is NaN, unlike the maximum; also for infinities of both signs
    for (int64_t i = 16; i < TOKENS; i += 16) {
      const Lanes part = Lanes::load(blocks[b] + i);
      greatest = Lanes::max(greatest, part);
      total = total + part;
    }
    bool maybe_nan = false;
    for (const Vector& part : total.parts) maybe_nan |= has_nan(part);
    maxima[b] = greatest_of(greatest);
    if (maybe_nan) {
      for (int64_t i = 0; i < TOKENS; ++i) {
        if (blocks[b][i] != blocks[b][i]) maxima[b] = blocks[b][i];
      }
    }
  }
}

// Computes weights: round(e^score * 2^42) for MIN_SCORE <= score <= 0, as integers.
//
//     score = n * ln 2 + r with |r| <= ln 2 / 2;  weight = e^r * 2^(n + 42), rounded by adding it to 2^52
class Weigher {
 public:
  explicit Weigher(const Scale& scale)
      : peak_(Doubles::broadcast(scale.peak)),
        // An inverse of infinity times a difference of 0 would be NaN. At such temperatures every other difference has
        // the weight 0 anyway.
        inverse_(Doubles::broadcast(scale.temperature < 1e-280 ? 1e280 : 1.0 / scale.temperature)) {}

  Words operator()(Doubles logit) const {
    // May differ from a division in the last bit, which does not matter in units of 2^-42.
    const Doubles score = (logit - peak_) * inverse_;
    const Doubles shift = Doubles::broadcast(6755399441055744.0);  // 1.5 * 2^52: adding it rounds to an integer
    const Doubles shifted = Doubles::fma(score, Doubles::broadcast(1.4426950408889634), shift);
    const Doubles n = shifted - shift;
    const Doubles r = Doubles::fma(n, Doubles::broadcast(-0.6931471805599453), score);
    // The terms r^i / i! up to i = 11, in pairs and pairs of pairs, which makes the dependency chain a quarter as long.
    const auto pair = [&](double low, double high) {
      return Doubles::fma(Doubles::broadcast(high), r, Doubles::broadcast(low));
    };
    const Doubles r2 = r * r, r4 = r2 * r2, r8 = r4 * r4;
    const Doubles p0 = Doubles::fma(pair(1.0 / 2, 1.0 / 6), r2, pair(1.0, 1.0));
    const Doubles p4 = Doubles::fma(pair(1.0 / 720, 1.0 / 5040), r2, pair(1.0 / 24, 1.0 / 120));
    const Doubles p8 = Doubles::fma(pair(1.0 / 3628800, 1.0 / 39916800), r2, pair(1.0 / 40320, 1.0 / 362880));
    const Doubles p = Doubles::fma(p8, r8, Doubles::fma(p4, r4, p0));
    const Words power = shifted.bits().left<52>() + Words::broadcast(uint64_t(1023 + 42) << 52);
    const Doubles whole = Doubles::broadcast(4503599627370496.0);  // 2^52
    return Doubles::fma(p, Doubles::of_bits(power), whole).bits() - whole.bits();
  }

 private:
  Doubles peak_, inverse_;
};

inline void weigh(const Blocks& row, const Scale& scale, const float floors[3], uint64_t sums[3]) {
  const Weigher weight(scale);
  Words totals[3];
  for (Words& total : totals) total = Words::broadcast(0);
  for (int64_t b = 0; b < row.num_blocks; ++b) {
    if (row.maxima[b] < floors[0]) continue;
    for (int64_t i = 0; i < TOKENS; i += Words::WIDTH) {
      const Doubles logit = Doubles::widen(row.blocks[b] + i);
      const Words mass = weight(logit);
      for (int s = 0; s < 3; ++s) {
        totals[s] = totals[s] + Doubles::where_at_least(logit, Doubles::broadcast(floors[s]), mass);
      }
    }
  }
  for (int s = 0; s < 3; ++s) {
    uint64_t lanes[Words::WIDTH];
    totals[s].store(lanes);
    sums[s] = 0;
    for (const uint64_t lane : lanes) sums[s] += lane;
  }
}

// Returns 2^x for -125 <= x <= 0, with a relative error below 2^-18: the minimax polynomial of degree 4 for |r| <= 1/2.
inline Vector rough_power_of_two(Vector x) {
  const Vector shifted = x + constant(SHIFT), r = x - (shifted - constant(SHIFT));
  Vector p = constant(9.570101e-3f);
  p = Vector::fma(p, r, constant(5.591786e-2f));
  p = Vector::fma(p, r, constant(2.4024744e-1f));
  p = Vector::fma(p, r, constant(6.931218e-1f));
  p = Vector::fma(p, r, constant(9.9999928e-1f));
  return Vector::scaled(p, shifted);
}

// The parts of ESTIMATE_ERROR, for scores down to MIN_SCORE:
//     the exponent, at most 43, rounded three times    43 * ln 2 * 3 * 2^-24     <  2^-17.5
//     the power                                                                  <  2^-18
//     the sum of four numbers in a lane                                          <  2^-22
inline double estimate(const Blocks& row, const Scale& scale, float bound, int64_t step) {
  const Vector peak = constant(float(scale.peak)), factor = constant(float(1.4426950408889634 / scale.temperature));
  const Vector lowest = constant(-125.0f), end = constant(bound);
  Doubles totals[16 / Words::WIDTH];
  for (Doubles& total : totals) total = Doubles::broadcast(0.0);
  for (int64_t b = 0; b < row.num_blocks; b += step) {
    Lanes sum = Lanes::zero();
    for (int64_t i = 0; i < TOKENS; i += 16) {
      sum = sum + Lanes::map(Lanes::load(row.blocks[b] + i), [&](Vector logit) {
        const Vector power = rough_power_of_two(Vector::max((logit - peak) * factor, lowest));
        return Vector::if_less(logit, end, power, Vector::zero());
      });
    }
    float lanes[16];
    sum.store(lanes);
    for (int i = 0; i < 16 / Words::WIDTH; ++i) totals[i] = totals[i] + Doubles::widen(lanes + i * Words::WIDTH);
  }
  double result = 0.0;
  for (const Doubles& total : totals) {
    double lanes[Words::WIDTH];
    total.store(lanes);
    for (const double lane : lanes) result += lane;
  }
  return result;
}

inline void weigh_each(const float* logits, int64_t count, const Scale& scale, uint64_t* weights) {
  const Weigher weight(scale);
  for (int64_t i = 0; i < count; i += Words::WIDTH) weight(Doubles::widen(logits + i)).store(weights + i);
}

inline uint64_t sum_at_least(const float* logits, const uint64_t* weights, int64_t count, float floor) {
  const Doubles minimum = Doubles::broadcast(floor);
  Words total = Words::broadcast(0);
  int64_t i = 0;
  for (; i + Words::WIDTH <= count; i += Words::WIDTH) {
    total = total + Doubles::where_at_least(Doubles::widen(logits + i), minimum, Words::load(weights + i));
  }
  uint64_t lanes[Words::WIDTH], sum = 0;
  total.store(lanes);
  for (const uint64_t lane : lanes) sum += lane;
  for (; i < count; ++i) sum += logits[i] >= floor ? weights[i] : 0;
  return sum;
}

inline uint64_t at_least(const float* block, float cut) {
  const Vector minimum = Vector::broadcast(cut);
  uint64_t found = 0;
  for (int64_t i = 0; i < TOKENS; i += Vector::WIDTH) {
    found |= floats_at_least(Vector::load(block + i), minimum) << i;
  }
  return found;
}

inline int64_t collect(const Blocks& row, const Choice& choice, float* logits, int32_t* ids) {
  const Vector minimum = Vector::broadcast(choice.low), bound = Vector::broadcast(choice.high);
  int64_t count = 0;
  for (int64_t b = 0; b < row.num_blocks && count <= choice.max_count; b += choice.step) {
    if (row.maxima[b] < choice.low) continue;
    const int64_t first = b * TOKENS, end = row.vocab - first < TOKENS ? row.vocab - first : TOKENS;
    for (int64_t i = 0; i < end; i += Vector::WIDTH) {
      const Vector part = Vector::load(row.blocks[b] + i);
      uint64_t found = floats_at_least(part, minimum) & ~floats_at_least(part, bound);
      if (end - i < Vector::WIDTH) found &= (uint64_t(1) << (end - i)) - 1;
      if (ids != nullptr) take_ids(found, first + i, ids + count);
      count += take(part, found, logits + count);
    }
  }
  return count;
}

// The finaliser of splitmix64, as in octavo/sampling/random.py, without its last step: z ^ z >> 31 does not change the
// highest 31 bits.
inline Words mix(Words z) {
  z = (z ^ z.right<30>()) * Words::broadcast(0xbf58476d1ce4e5b9);
  return (z ^ z.right<27>()) * Words::broadcast(0x94d049bb133111eb);
}

constexpr uint64_t STEPS[8] = {0, GOLDEN, 2 * GOLDEN, 3 * GOLDEN, 4 * GOLDEN, 5 * GOLDEN, 6 * GOLDEN, 7 * GOLDEN};

inline uint64_t can_win(const float* block, float cut, uint64_t counter, uint64_t min_random) {
  const uint64_t candidates = at_least(block, cut);
  if (candidates == 0) return 0;
  Words z = Words::broadcast(counter) + Words::load(STEPS);
  const Words step = Words::broadcast(uint64_t(Words::WIDTH) * GOLDEN);
  const Words bound = Words::broadcast(min_random >> 33 << 33);
  uint64_t found = 0;
  for (int64_t i = 0; i < TOKENS; i += Words::WIDTH, z = z + step) found |= Words::at_least(mix(z), bound) << i;
  return found & candidates;
}

constexpr SamplingKernel SAMPLING = {find_maxima, weigh,        estimate, weigh_each,
                                     at_least,    sum_at_least, collect,  can_win};

}  // namespace
}  // namespace octavo
