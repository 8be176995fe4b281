// What both products on AMX share: rows of x in groups of 16, pieces of equal size, fetching ahead.
#pragma once

#include "gemm.h"

namespace octavo {
namespace {

constexpr int64_t GROUP = 16;  // rows of x in a tile
constexpr int64_t LINE = 64;   // bytes of a cache line and of a row of a tile

inline int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }
inline int64_t divided_up(int64_t value, int64_t divisor) { return (value + divisor - 1) / divisor; }
// The size of equal pieces, none above `most`, that `total` falls into.
inline int64_t even_piece(int64_t total, int64_t most) { return divided_up(total, divided_up(total, most)); }

inline int64_t num_groups(const Gemm& gemm) { return divided_up(gemm.m, GROUP); }
inline int64_t rows_of_group(const Gemm& gemm, int64_t group) { return at_most(gemm.m - group * GROUP, GROUP); }

// Into the L2 cache: it can wait for more lines at once than the L1 cache can. In assembler, because gcc 12 leaves out
// a function that does nothing but prefetch. Any address may be prefetched, also one that does not exist.
inline void prefetch(const void* line) {
  __asm__ volatile("prefetcht1 %0" ::"m"(*static_cast<const char*>(line)));
}

}  // namespace
}  // namespace octavo
