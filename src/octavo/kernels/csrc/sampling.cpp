// Sampling of one row: the control flow from logits to a token. The passes over the vocabulary are in
// sampling_blocks.h.
//
// The steps are the same as in octavo/sampling (transforms.py, sampler.py). Both draw the same token, unless two tokens
// are so close that the last bit of a logarithm decides.
#include "sampling.h"

#include <algorithm>
#include <bit>
#include <cfloat>
#include <cmath>
#include <cstring>
#include <type_traits>

#include "sampling_order.h"
#include "scalar_math.h"

namespace octavo {

namespace {

constexpr int64_t SAMPLE_STEP = 32;  // estimates read one of this many token blocks
constexpr double UNIT = 4398046511104.0;  // 2^42: the weight of the best token

// A token block without allowed tokens. It is shared and never written.
struct alignas(64) EmptyBlock {
  constexpr EmptyBlock() {
    for (float& logit : logits) logit = -INFINITY;
  }
  float logits[TOKENS] = {};
};
constexpr EmptyBlock EMPTY;

int64_t num_blocks_of(int64_t vocab) { return (vocab + TOKENS - 1) / TOKENS; }

uint64_t mix(uint64_t z) {
  z = (z ^ z >> 30) * 0xbf58476d1ce4e5b9;
  z = (z ^ z >> 27) * 0x94d049bb133111eb;
  return z ^ z >> 31;
}

double gumbel(uint64_t key, int64_t id) {
  const uint64_t bits = mix(uint64_t(id) * GOLDEN + key);
  return -natural_log(-natural_log((double(bits >> 12) + 0.5) * 0x1p-52));
}

// Computes the minimum of the random bits with which the sum of a token at `score` can reach `best`. Returns false if
// no random bits are enough.
//
// The sum reaches `best` only if u >= e^(-e^-(best - score)), and so only if 1 - u <= e^(score - best). The exponential
// is rounded upwards: a straight line between powers of two is never below it.
bool find_min_random(double score, double best, uint64_t& min_random) {
  const double exponent = (score - best) * 1.4426950408889634;
  min_random = 0;
  if (exponent >= -1.0) return true;
  if (exponent < -54.0) return false;
  const double power = std::bit_cast<double>(uint64_t((exponent + 1023.0) * 0x1p52));
  min_random = ((uint64_t(1) << 52) - uint64_t(power * 1.000001 * 0x1p52) - 2) << 12;
  return true;
}

// The memory of a thread.
struct Workspace {
  Workspace(void* memory, int64_t vocab) {
    const int64_t num_blocks = num_blocks_of(vocab), num_tokens = num_blocks * TOKENS;
    num_bytes = 0;
    const auto take = [&](auto*& part, int64_t count) {
      part = reinterpret_cast<std::remove_reference_t<decltype(part)>>(reinterpret_cast<uintptr_t>(memory) + num_bytes);
      num_bytes += (size_t(count) * sizeof *part + 63) / 64 * 64;
    };
    take(blocks, num_blocks);
    take(maxima, num_blocks);
    take(copies, num_tokens);
    take(logits, num_tokens + 16);
    take(ids, num_tokens + 16);
    take(weights, num_tokens);
  }
  const float** blocks;
  float* maxima;
  float* copies;  // of token blocks that were edited, and of an incomplete last one
  float* logits;  // collected: see RowSampler::collect
  int32_t* ids;
  uint64_t* weights;
  size_t num_bytes;
};

class RowSampler {
 public:
  RowSampler(const SamplingKernel& kernel, const float* logits, int64_t vocab, const ov_sample_row& params,
             void* workspace)
      : kernel_(kernel), raw_(logits), vocab_(vocab), num_blocks_(num_blocks_of(vocab)), params_(params),
        space_(workspace, vocab) {
    const int64_t last = num_blocks_ - 1;
    for (int64_t b = 0; b < num_blocks_; ++b) space_.blocks[b] = logits + b * TOKENS;
    if (vocab_ % TOKENS != 0) {
      float* copy = space_.copies + last * TOKENS;
      std::fill(copy, copy + TOKENS, -INFINITY);
      memcpy(copy, logits + last * TOKENS, size_t(vocab_ - last * TOKENS) * sizeof(float));
      space_.blocks[last] = copy;
    }
    kernel_.find_maxima(space_.blocks, num_blocks_, space_.maxima);
    find_peak();
  }

  ov_row_error sample(float logprob_floor, ov_sampled& sampled, int64_t* top_ids, float* top_logprobs) {
    if (!std::isfinite(peak_)) return OV_ROW_UNUSABLE_LOGITS;
    if (!ids_are_valid()) return OV_ROW_BAD_ID;
    // Logprobs are computed from the raw logits, so this comes before the edits.
    double log_sum = 0.0;
    if (params_.num_top >= 0) {
      set_temperature(1.0);
      const float floors[3] = {lowest_logit(MIN_SCORE), peak_, peak_};
      uint64_t sums[3];
      kernel_.weigh(row(), scale_, floors, sums);
      log_sum = peak_ + natural_log(double(sums[0]) / UNIT);
      if (params_.num_top > 0) find_best(params_.num_top, top_ids);
    }
    int64_t token_id = params_.given;
    if (token_id < 0) {
      edit();
      if (!std::isfinite(peak_)) return OV_ROW_NO_TOKEN_LEFT;
      token_id = params_.temperature == 0.0 ? best_id() : draw();
    }
    const auto logprob = [&](int64_t id) { return std::max(logprob_floor, float(double(raw_[id]) - log_sum)); };
    sampled.token_id = token_id;
    sampled.logprob = params_.num_top >= 0 ? logprob(token_id) : 0.0f;
    for (int64_t i = 0; i < params_.num_top; ++i) top_logprobs[i] = logprob(top_ids[i]);
    return OV_ROW_OK;
  }

 private:
  Blocks row() const { return {space_.blocks, space_.maxima, num_blocks_, vocab_}; }

  // Finds the greatest logit, or NaN if there is one.
  void find_peak() {
    peak_ = space_.maxima[0];
    for (int64_t b = 0; b < num_blocks_; ++b) {
      if (!(space_.maxima[b] <= peak_)) peak_ = space_.maxima[b];
      if (std::isnan(peak_)) return;
    }
  }

  // Returns the smallest token id at the peak.
  int64_t best_id() const {
    int64_t b = 0;
    while (space_.maxima[b] != peak_) ++b;
    return b * TOKENS + std::countr_zero(kernel_.at_least(space_.blocks[b], peak_));
  }

  // -- Edits, in float32. A token block is copied before it is edited; the raw logits do not change. --------------
  bool ids_are_valid() const {
    const auto all_valid = [&](const int64_t* ids, int64_t count) {
      return std::all_of(ids, ids + count, [&](int64_t id) { return id >= 0 && id < vocab_; });
    };
    return params_.given < vocab_ && all_valid(params_.seen_ids, params_.num_seen) &&
           all_valid(params_.bias_ids, params_.num_biased) && all_valid(params_.banned_ids, params_.num_banned);
  }

  float& editable(int64_t id) {
    const int64_t b = id / TOKENS;
    float* copy = space_.copies + b * TOKENS;
    if (space_.blocks[b] != copy) {
      memcpy(copy, space_.blocks[b], TOKENS * sizeof(float));
      space_.blocks[b] = copy;
    }
    return copy[id % TOKENS];
  }

  void edit() {
    for (int64_t i = 0; i < params_.num_seen; ++i) {
      float& logit = editable(params_.seen_ids[i]);
      logit = logit < 0.0f ? logit * params_.repetition_penalty : logit / params_.repetition_penalty;
      const float count = params_.seen_counts[i];
      logit -= count * params_.frequency_penalty + (count > 0.0f ? 1.0f : 0.0f) * params_.presence_penalty;
    }
    for (int64_t i = 0; i < params_.num_biased; ++i) editable(params_.bias_ids[i]) += params_.bias_values[i];
    for (int64_t i = 0; i < params_.num_banned; ++i) editable(params_.banned_ids[i]) = -INFINITY;
    if (params_.num_allowed_words > 0) keep_allowed();
    for (int64_t b = 0; b < num_blocks_; ++b) {
      if (space_.blocks[b] != raw_ + b * TOKENS) kernel_.find_maxima(space_.blocks + b, 1, space_.maxima + b);
    }
    find_peak();
  }

  void keep_allowed() {
    for (int64_t b = 0; b < num_blocks_; ++b) {
      const bool has_two = 2 * b + 1 < params_.num_allowed_words;
      const uint64_t allowed = params_.allowed[2 * b] | uint64_t(has_two ? params_.allowed[2 * b + 1] : 0) << 32;
      if (allowed == 0) {
        space_.blocks[b] = EMPTY.logits;
      } else if (~allowed != 0) {
        float* copy = &editable(b * TOKENS);
        for (uint64_t out = ~allowed; out != 0; out &= out - 1) copy[std::countr_zero(out)] = -INFINITY;
      }
    }
  }

  // -- Scores: float64, 0 for the best token. ---------------------------------------------------------------------
  void set_temperature(double temperature) { scale_ = {double(peak_), temperature}; }
  double score(float logit) const { return (double(logit) - scale_.peak) / scale_.temperature; }

  // Returns the smallest logit whose score is at least `min_score`, which is 0 or less. Scores increase with logits,
  // but not strictly: several logits may have the same score.
  float lowest_logit(double min_score) const {
    uint32_t low = key_of(-FLT_MAX), high = key_of(peak_);
    while (low < high) {
      const uint32_t middle = low + (high - low) / 2;
      if (score(of_key(middle)) >= min_score) {
        high = middle;
      } else {
        low = middle + 1;
      }
    }
    return of_key(low);
  }

  // -- Passes over the whole vocabulary. --------------------------------------------------------------------------
  // Collects logits in space_.logits. Returns their number.
  int64_t collect(const Choice& choice) { return kernel_.collect(row(), choice, space_.logits, nullptr); }
  int64_t collect(float low, float high = INFINITY) { return collect({low, high, 1, vocab_}); }

  // Collects all tokens whose logit is not less than the `rank`-th greatest, and possibly more, with their ids, in
  // ascending order of ids.
  int64_t collect_best(int64_t rank) {
    const bool by_maxima = rank <= num_blocks_;
    const float low = by_maxima ? select(space_.maxima, nullptr, num_blocks_, uint64_t(rank)) : -INFINITY;
    return kernel_.collect(row(), {low, INFINITY, 1, vocab_}, space_.logits, space_.ids);
  }

  // Finds the `count` best tokens, best first. Among equal logits, smaller ids come first.
  void find_best(int64_t count, int64_t* best) {
    const int64_t num_collected = collect_best(count);
    const float last = select(space_.logits, nullptr, num_collected, uint64_t(count));
    int64_t num_best = 0;
    const auto take = [&](const auto& is_taken) {
      for (int64_t i = 0; i < num_collected && num_best < count; ++i) {
        if (is_taken(space_.logits[i])) best[num_best++] = space_.ids[i];
      }
    };
    take([&](float logit) { return logit > last; });
    take([&](float logit) { return logit == last; });
    std::sort(best, best + count, [&](int64_t a, int64_t b) {
      return raw_[a] != raw_[b] ? raw_[a] > raw_[b] : a < b;
    });
  }

  // -- Filters. Each raises the cut; tokens at the cut are kept. --------------------------------------------------
  float find_cut() {
    float cut = lowest_logit(-DBL_MAX);
    if (params_.top_k > 0 && params_.top_k < vocab_) {
      const int64_t num_collected = collect_best(params_.top_k);
      const double last = score(select(space_.logits, nullptr, num_collected, uint64_t(params_.top_k)));
      if (last > -INFINITY) cut = std::max(cut, lowest_logit(last));
    }
    if (params_.top_p < 1.0) cut = top_p_cut(cut);
    if (params_.min_p > 0.0) cut = std::max(cut, lowest_logit(natural_log(params_.min_p)));
    return cut;
  }

  // Computes the weights of the collected logits and returns their sum.
  uint64_t weigh_collected(int64_t count) {
    kernel_.weigh_each(space_.logits, count, scale_, space_.weights);
    uint64_t total = 0;
    for (int64_t i = 0; i < count; ++i) total += space_.weights[i];
    return total;
  }

  uint64_t needed_of(uint64_t total) const {
    return std::max(uint64_t(1), round_up(params_.top_p * double(total)));
  }

  // Returns the cut that keeps the smallest number of tokens, of those at or above `cut`, whose weight reaches top_p of
  // the total.
  float top_p_cut(float cut) {
    float found = cut;
    if (find_top_p_by_bounds(cut, found)) return found;
    const float floor = std::max(cut, lowest_logit(MIN_SCORE));
    const Interval guess = guess_top_p(floor);
    const float floors[3] = {floor, std::max(floor, guess.low), std::max(floor, guess.high)};
    uint64_t sums[3];
    kernel_.weigh(row(), scale_, floors, sums);
    const uint64_t total = sums[0], at_low = sums[1], at_high = sums[2], needed = needed_of(total);
    if (needed > total) return cut;

    // Verify the guess: the tokens above it must weigh too little, and together with the tokens inside it enough.
    if (at_high < needed && needed <= at_low) {
      if (floors[2] == next_above(floors[1])) return lowest_logit(score(floors[1]));
      const int64_t count = collect(floors[1], floors[2]);
      weigh_collected(count);
      return cut_within(guess, count, needed - at_high);
    }
    // All tokens with scores below -reach together weigh less than 1 - top_p of the total, so the cut is not among
    // them. (Rounding at most doubles a weight, and 0.1 is a safety margin.)
    const double reach = natural_log(2.0 * double(vocab_) * UNIT / ((1.0 - params_.top_p) * double(total))) + 0.1;
    const float low = at_high >= needed ? floors[2] : lowest_logit(-std::max(reach, 0.0));
    const int64_t count = collect(std::max(floor, low));
    weigh_collected(count);
    return cut_of_collected(count, needed);
  }

  float cut_of_collected(int64_t count, uint64_t needed) const {
    return lowest_logit(score(select(space_.logits, space_.weights, count, needed)));
  }

  // The same for very many collected logits, all of them in `inside`: six bisections leave few.
  float cut_within(Interval inside, int64_t count, uint64_t needed) {
    uint32_t low = key_of(inside.low), high = key_of(inside.high);
    uint64_t at_high = 0;
    for (int i = 0; i < 6; ++i) {
      const uint32_t middle = low + (high - low) / 2;
      const uint64_t sum = kernel_.sum_at_least(space_.logits, space_.weights, count, of_key(middle));
      (sum < needed ? high : low) = middle;
      if (sum < needed) at_high = sum;
    }
    const float floor = of_key(low), bound = of_key(high);
    int64_t num_left = 0;
    for (int64_t i = 0; i < count; ++i) {  // branchless, because a branch would be unpredictable
      const float logit = space_.logits[i];
      space_.logits[num_left] = logit;
      space_.weights[num_left] = space_.weights[i];
      num_left += int64_t(logit >= floor) & int64_t(!(logit >= bound));
    }
    return cut_of_collected(num_left, needed - at_high);
  }

  // The fast path for the usual case, in which a few heavy tokens have more than top_p of the weight. Only these are
  // weighed exactly; bounds are enough for the others. Returns false if the bounds do not determine the cut.
  bool find_top_p_by_bounds(float cut, float& found) {
    if (params_.top_k > 0 || scale_.temperature < 1e-3 || scale_.temperature > 1e3) return false;
    const float bound = std::max(cut, quantile_of_maxima(0.25));
    const int64_t count = collect({bound, INFINITY, 1, num_blocks_});
    if (count > num_blocks_) return false;
    const uint64_t heavy = weigh_collected(count);
    const double rough_others = kernel_.estimate(row(), scale_, bound, SAMPLE_STEP) * double(SAMPLE_STEP);
    if (double(heavy) < 0.9 * params_.top_p * (double(heavy) + rough_others * UNIT)) return false;

    const double others = kernel_.estimate(row(), scale_, bound, 1) * UNIT;
    const double error = others * ESTIMATE_ERROR + double(vocab_);
    const uint64_t min_needed = needed_of(heavy + uint64_t(std::max(0.0, others - error)));
    const uint64_t max_needed = needed_of(heavy + uint64_t(others + error));
    const float last = select(space_.logits, space_.weights, count, min_needed);
    if (kernel_.sum_at_least(space_.logits, space_.weights, count, last) < max_needed) return false;
    found = lowest_logit(score(last));
    return true;
  }

  // Estimates, from a sample of the token blocks, the logit that the maxima of `share` of all token blocks reach.
  float quantile_of_maxima(double share) {
    constexpr int64_t STEP = 7;
    int64_t count = 0;
    for (int64_t b = 0; b < num_blocks_; b += STEP) space_.logits[count++] = space_.maxima[b];
    return select(space_.logits, nullptr, count, round_up(share * double(count)));
  }

  // Returns an interval that probably contains the cut of top_p. About one token in a hundred reaches the median of the
  // maxima. Below it there are many tokens and none is heavy, so a sample of them is enough. If very many tokens reach
  // the median, a sample of all tokens is used.
  Interval guess_top_p(float floor) {
    constexpr double SLACK = 0.02;
    float high = std::max(floor, quantile_of_maxima(0.5));
    int64_t count = collect({high, INFINITY, 1, 2 * num_blocks_});
    if (count > 2 * num_blocks_) high = INFINITY;
    const double heavy = high == INFINITY ? 0.0 : double(weigh_collected(count));
    count = collect({floor, high, SAMPLE_STEP, vocab_});
    const double light = double(weigh_collected(count));
    // The part of the light tokens' weight that top_p includes.
    const double part = params_.top_p - (1.0 - params_.top_p) * heavy / (light * double(SAMPLE_STEP));
    if (!(part > -SLACK)) return {high, INFINITY};
    const auto weight = [&](double share) { return uint64_t(std::max(1.0, share * light)); };
    const Interval inside =
        bracket(space_.logits, space_.weights, count, weight(part - SLACK), weight(std::min(1.0, part + SLACK)));
    return {part + SLACK < 1.0 ? inside.low : floor, part > SLACK ? inside.high : INFINITY};
  }

  // Gumbel-max sampling: returns the token with the greatest sum of score and noise. The exact noise is computed only
  // for tokens that can still win.
  int64_t draw() {
    set_temperature(params_.temperature);
    const float cut = find_cut();
    int64_t winner = best_id();
    double best = gumbel(params_.noise_key, winner);
    for (int64_t b = 0; b < num_blocks_; ++b) {
      uint64_t min_random;
      if (space_.maxima[b] < cut || !find_min_random(score(space_.maxima[b]), best, min_random)) continue;
      const uint64_t counter = uint64_t(b * TOKENS) * GOLDEN + params_.noise_key;
      uint64_t found = kernel_.can_win(space_.blocks[b], cut, counter, min_random);
      for (; found != 0; found &= found - 1) {
        const int i = std::countr_zero(found);
        const int64_t id = b * TOKENS + i;
        const double sum = score(space_.blocks[b][i]) + gumbel(params_.noise_key, id);
        if (sum > best || (sum == best && id < winner)) {
          winner = id;
          best = sum;
        }
      }
    }
    return winner;
  }

  const SamplingKernel& kernel_;
  const float* raw_;
  const int64_t vocab_, num_blocks_;
  const ov_sample_row& params_;
  const Workspace space_;
  float peak_ = 0.0f;  // the greatest logit, after edits if there were any
  Scale scale_ = {0.0, 1.0};
};

}  // namespace

size_t workspace_bytes(int64_t vocab) { return Workspace(nullptr, vocab).num_bytes; }

void sample_row(const SamplingKernel& kernel, const float* logits, int64_t vocab, const ov_sample_row& params,
                float logprob_floor, void* workspace, ov_sampled& sampled, int64_t* top_ids, float* top_logprobs) {
  RowSampler sampler(kernel, logits, vocab, params, workspace);
  sampled.error = sampler.sample(logprob_floor, sampled, top_ids, top_logprobs);
  if (sampled.error != OV_ROW_OK) {
    sampled.token_id = -1;
    sampled.logprob = 0.0f;
  }
}

}  // namespace octavo
