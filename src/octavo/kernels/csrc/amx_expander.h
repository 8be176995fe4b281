// Expands quantised weights to tiles of bf16, step by step and ahead of the tile unit. For object files with
// AVX512BF16.
#pragma once

#include "formats/format.h"

namespace octavo {
namespace {

constexpr int64_t HALF = HALF_COLUMNS * CODES_K;  // weights of half a step: one tile

// Expands one step after the other, through a run of spans and then the next run. It works ahead: the scales of a span
// are read before the span begins, and tables are computed one step before they are used. So after the last span it
// reads scales that are not used, which is why packed weights end with SLACK_SPANS extra spans.
template <class Format>
class Expander {
 public:
  // Starts at `step` of `span`.
  void start(const uint8_t* span, int64_t num_spans, int64_t step = 0) {
    span_ = next_run_ = span;
    num_spans_ = num_spans;
    step_ = step;
    for (int64_t i = 0; i < EARLY + (step >= MIDDLE); ++i) Format::read_scales(ahead(i), scales_[(turn_ + i) % 4]);
    for (int half = 0; half < 2; ++half) Codes::template prepare<Format>(scales_[turn_], step_, half, tables_[parity_]);
  }
  // Sets where the next run starts. Must be called before the last span of the current run begins.
  void then(const uint8_t* span) { next_run_ = span; }
  void run_of(int64_t num_spans) { num_spans_ = num_spans; }

  // Expands both halves of the step and advances. Callers that need only one half call `half` and `advance`. Not
  // inlined: its callers either expand few steps or multiply many rows per step.
  __attribute__((noinline)) void step(bf16* lines) {
    half(0, lines);
    half(1, lines + HALF);
    advance();
  }
  OCTAVO_INLINED void half(int half, bf16* lines) {
    Codes::template prepare<Format>(next_scales(), is_last() ? 0 : step_ + 1, half, tables_[parity_ ^ 1]);
    Codes::template expand<Format>(span_, step_, half, scales_[turn_], tables_[parity_], lines);
  }
  OCTAVO_INLINED void advance() {
    parity_ ^= 1;
    if (is_last()) {
      step_ = 0;
      turn_ = (turn_ + 1) % 4;
      span_ = ahead(1);
      if (--num_spans_ == 0) num_spans_ = ENDLESS;
    } else {
      ++step_;
    }
    if (step_ == MIDDLE) Format::read_scales(ahead(EARLY), scales_[(turn_ + EARLY) % 4]);
  }

 private:
  using Codes = typename Format::Codes;
  static constexpr int64_t ENDLESS = INT64_MAX / 2;
  static constexpr int64_t EARLY = SPAN_STEPS<Format> == 1 ? 2 : 1;  // spans
  static constexpr int64_t MIDDLE = SPAN_STEPS<Format> / 2;

  inline bool is_last() const { return step_ + 1 == SPAN_STEPS<Format>; }
  inline const Scales<Format>& next_scales() const { return scales_[is_last() ? (turn_ + 1) % 4 : turn_]; }
  inline const uint8_t* ahead(int64_t i) const {
    return i < num_spans_ ? span_ + i * SPAN_BYTES<Format> : next_run_ + (i - num_spans_) * SPAN_BYTES<Format>;
  }

  const uint8_t *span_, *next_run_;
  int64_t num_spans_;  // left in this run
  int64_t step_, turn_ = 0;
  int parity_ = 0;
  Scales<Format> scales_[4];
  typename Codes::Tables tables_[2];
};

}  // namespace
}  // namespace octavo
