// Sampling without a sort of the vocabulary.
//
// A row of logits is looked at in blocks of 64 tokens, whose maxima are found once. They say which blocks a question
// concerns: the k-th greatest maximum is no more than the k-th greatest logit, and a block whose maximum is below the
// cut is never opened again.
//
// Probabilities are whole numbers (units of 2^-42 of the best token's), so sums depend on no order; and they are made
// by one sequence of float64 operations, so all ISAs agree.
//
// The cut of top_p must be exact; but rarely must all 150,000 weights be. Those of the few tokens that matter are, and a
// sum of float32 exponentials, a third of the work, gives bounds for the others. If the cut is the same at both bounds,
// it is that of the exact sum.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

constexpr int64_t TOKENS = 64;           // of a block
constexpr int64_t MOST_TOKENS = 1 << 20;  // weights of so many add up in 62 bits
constexpr double LIGHTEST = -30.0;       // tokens with a lower score weigh 0
constexpr double ESTIMATE_ERROR = 0x1p-16;
constexpr uint64_t GOLDEN = 0x9e3779b97f4a7c15;

struct Blocks {
  const float* const* blocks;  // each 64 logits; the last is filled up with -infinity
  const float* maxima;
  int64_t num_blocks;
  int64_t vocab;
};

// Tokens with a logit in [low, high) in every `step`-th block. Where there are more than `most`, some of them.
struct Choice {
  float low, high;
  int64_t step, most;
};

// score = (logit - peak) / temperature
struct Scale {
  double peak, temperature;
};

struct SamplingKernel {
  // The maximum of each block, NaN if there is one in it.
  void (*find_maxima)(const float* const* blocks, int64_t num_blocks, float* maxima);
  // The weight of all logits that are at least floors[0], and of those at least floors[1] and floors[2], which are not
  // less. From floors[0] on, scores are LIGHTEST or more.
  void (*weigh)(const Blocks& row, const Scale& scale, const float floors[3], uint64_t sums[3]);
  // About the weight of all logits below `bound` in every `step`-th block, in units of the best token's. It is within
  // ESTIMATE_ERROR of the exact weight, and half a unit of weight for each token. `temperature` is 1e-3 to 1e3.
  double (*estimate)(const Blocks& row, const Scale& scale, float bound, int64_t step);
  // The weight of each of some such logits. Arrays are read and written up to a multiple of 64.
  void (*weigh_each)(const float* logits, int64_t count, const Scale& scale, uint64_t* weights);
  // Bit i: logit i of the block is at least `cut`.
  uint64_t (*at_least)(const float* block, float cut);
  // The sum of those weights whose logit is at least `floor`.
  uint64_t (*sum_at_least)(const float* logits, const uint64_t* weights, int64_t count, float floor);
  // The chosen tokens, by id; without ids if that is null. Returns how many there are. Arrays are written up to 16
  // elements beyond.
  int64_t (*collect)(const Blocks& row, const Choice& choice, float* logits, int32_t* ids);
  // Bit i: logit i is at least `cut`, and the highest 31 of its 64 random bits are at least those of `least`. `counter`
  // is the splitmix64 counter of logit 0.
  uint64_t (*noisy)(const float* block, float cut, uint64_t counter, uint64_t least);
};

// One object file per ISA.
extern const SamplingKernel sampling_portable;
#if defined(__x86_64__)
extern const SamplingKernel sampling_avx2, sampling_avx512;
#elif defined(__aarch64__)
extern const SamplingKernel sampling_neon;
#endif

// Memory of one thread.
size_t workspace_bytes(int64_t vocab);

// One row; arguments were checked, token ids were not.
void sample_row(const SamplingKernel& kernel, const float* logits, int64_t vocab, const ov_sample_row& asked,
                float logprob_floor, void* workspace, ov_sampled& sampled, int64_t* top_ids, float* top_logprobs);

}  // namespace octavo
