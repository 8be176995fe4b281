// Sampling without sorting the vocabulary.
//
// A row of logits is divided into token blocks of 64 tokens, whose maxima are computed once. The maxima show which
// token blocks a pass has to read: the k-th greatest maximum is not greater than the k-th greatest logit, and a token
// block whose maximum is below the cut is skipped.
//
// Probabilities are integer weights (in units of 2^-42 of the best token's), so sums do not depend on the order of
// summation. They are computed by one fixed sequence of float64 operations, so they are bit-identical on all ISAs.
//
// The cut of top_p must be exact, but it rarely requires all 150,000 exact weights. Only the few heaviest tokens are
// weighed exactly; for the others, a sum of float32 exponentials, which takes a third of the time, gives an upper and a
// lower bound. If the cut is the same for both bounds, it is the exact one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

constexpr int64_t TOKENS = 64;           // in a token block
constexpr int64_t MAX_TOKENS = 1 << 20;  // the sum of this many weights has at most 62 bits
constexpr double MIN_SCORE = -30.0;      // tokens with a lower score have the weight 0
constexpr double ESTIMATE_ERROR = 0x1p-16;
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

struct Blocks {
  const float* const* blocks;  // 64 logits each; the last is padded with -infinity
  const float* maxima;
  int64_t num_blocks;
  int64_t vocab;
};

// Selects the tokens with a logit in [low, high) in every `step`-th token block. If there are more than `max_count`,
// only some of them.
struct Choice {
  float low, high;
  int64_t step, max_count;
};

// score = (logit - peak) / temperature
struct Scale {
  double peak, temperature;
};

struct SamplingKernel {
  // Finds the maximum of each token block; NaN if the block contains one.
  void (*find_maxima)(const float* const* blocks, int64_t num_blocks, float* maxima);
  // Computes three sums: the weight of all logits that are at least floors[0], floors[1] and floors[2]. floors[0] is
  // the smallest of the three, and its score is MIN_SCORE or more.
  void (*weigh)(const Blocks& row, const Scale& scale, const float floors[3], uint64_t sums[3]);
  // Estimates the weight of all logits below `bound` in every `step`-th token block, relative to the best token's
  // weight. The error is at most ESTIMATE_ERROR times the exact weight plus half a unit of weight per token. The
  // temperature must be 1e-3 to 1e3.
  double (*estimate)(const Blocks& row, const Scale& scale, float bound, int64_t step);
  // Computes the weight of each logit. Scores are MIN_SCORE or more. Arrays are read and written up to a multiple of
  // 64.
  void (*weigh_each)(const float* logits, int64_t count, const Scale& scale, uint64_t* weights);
  // Returns a mask. Bit i: logit i of the token block is at least `cut`.
  uint64_t (*at_least)(const float* block, float cut);
  // Returns the sum of the weights whose logit is at least `floor`.
  uint64_t (*sum_at_least)(const float* logits, const uint64_t* weights, int64_t count, float floor);
  // Collects the selected tokens in ascending order of their ids; `ids` may be null. Returns their number. Arrays may
  // be written up to 16 elements beyond that number.
  int64_t (*collect)(const Blocks& row, const Choice& choice, float* logits, int32_t* ids);
  // Returns a mask of the tokens that can still win. Bit i: logit i is at least `cut`, and the highest 31 of its 64
  // random bits are at least those of `min_random`. `counter` is the splitmix64 counter of logit 0.
  uint64_t (*can_win)(const float* block, float cut, uint64_t counter, uint64_t min_random);
};

// One object file per ISA.
extern const SamplingKernel sampling_portable;
#if defined(__x86_64__)
extern const SamplingKernel sampling_avx2, sampling_avx512;
#elif defined(__aarch64__)
extern const SamplingKernel sampling_neon;
#endif

// Size of the memory that each thread needs.
size_t workspace_bytes(int64_t vocab);

// Samples one row. The arguments have been checked, except token ids.
void sample_row(const SamplingKernel& kernel, const float* logits, int64_t vocab, const ov_sample_row& params,
                float logprob_floor, void* workspace, ov_sampled& sampled, int64_t* top_ids, float* top_logprobs);

}  // namespace octavo
