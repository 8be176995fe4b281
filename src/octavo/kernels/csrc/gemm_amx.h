// Code that both AMX products share: groups of 16 rows of x, pieces of equal size, prefetching.
#pragma once

#include "gemm.h"

namespace octavo {
namespace {

constexpr int64_t GROUP = 16;  // rows of x in a tile
constexpr int64_t LINE = 64;   // bytes in a cache line and in a row of a tile

inline int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }
inline int64_t divided_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
// Returns the size of the pieces when `total` is divided into equal pieces of at most `max_piece`.
inline int64_t even_piece(int64_t total, int64_t max_piece) { return divided_up(total, divided_up(total, max_piece)); }

inline int64_t num_groups(const Gemm& gemm) { return divided_up(gemm.m, GROUP); }
inline int64_t rows_of_group(const Gemm& gemm, int64_t group) { return at_most(gemm.m - group * GROUP, GROUP); }

// Prefetches into the L2 cache, which can have more lines in flight than the L1 cache. In assembler, because gcc 12
// removes a function that only prefetches. Any address may be prefetched, even one that is not mapped.
inline void prefetch(const void* line) {
  __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(line)));
}

}  // namespace
}  // namespace octavo
