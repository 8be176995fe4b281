// Reads memory at the maximum speed: whole cache lines of several streams, with prefetching. One object file per
// instruction set includes this, for the width of its loads: with fewer loads a core can have more lines in flight.
#pragma once

#include "probe.h"

namespace octavo {
namespace {

typedef uint64_t Line __attribute__((vector_size(64), may_alias));  // a cache line, in one or more registers

constexpr size_t STREAMS = 4;           // read alternately: a single stream leaves a tenth of the bandwidth unused
constexpr size_t LINES = 32;            // lines of one stream at a time
constexpr size_t PREFETCH = 2 * LINES;  // lines ahead
static_assert(STREAMS * LINES * sizeof(Line) == READ_UNIT);

inline uint64_t read_lines(const void* memory, size_t num_bytes) {
  const Line* lines = static_cast<const Line*>(memory);
  const size_t stream_lines = num_bytes / READ_UNIT * LINES;
  Line even = {}, odd = {};  // two sums, so that the loop is bound by loads and not by additions
  for (size_t first = 0; first < stream_lines; first += LINES) {
    for (size_t stream = 0; stream < STREAMS; ++stream) {
      const Line* from = lines + stream * stream_lines + first;
#pragma GCC unroll 32
      for (size_t i = 0; i < LINES; ++i) __builtin_prefetch(from + PREFETCH + i);
#pragma GCC unroll 16
      for (size_t i = 0; i < LINES; i += 2) {
        even += from[i];
        odd += from[i + 1];
      }
    }
  }
  const Line total = even + odd;
  uint64_t sum = 0;
  for (int i = 0; i < 8; ++i) sum += total[i];
  return sum;
}

}  // namespace
}  // namespace octavo
