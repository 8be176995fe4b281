// Attention over keys and values in pages: one kernel for prefill and decode.
//
// A page holds `page_size` tokens of every key-value head, and a unit is 32 tokens of one head of a page. Units of keys
// and units of values are contiguous, and in a page they follow each other:
//
//     array[block][kv_head][page_size / 32][one unit]
//
//     unit of   bf16                                         f32
//     keys      [2][D / 32][16 dim-pairs][16 tokens][2]      [2][D][16 tokens]
//     values    [D / 16][16 token-pairs][16 dims][2]         [32 tokens][D]
//
// bf16 units are AMX tiles of 1 KB in the order in which they are multiplied; D is padded to 32 there, with zeros in
// the keys. In all forms the vector kernels too read from end to end: 16 tokens of a dim for scores, 16 dims of a token
// for sums. Every ISA reads the same bytes.
//
// The law. A row is one query head at one position. Its keys are cut into splits at multiples of 512 positions. In a
// split the softmax is taken with the split's own peak: all scores, their peak, weights, total and weighted sum of
// values (attention_softmax.h). The splits' results are then merged in order. A split in which the row sees no key does
// not exist for it, and a key that it does not see adds exactly nothing. So it does not matter which rows are computed
// together, in how many chunks they arrive, or who computes a split.
//
// Rows of a page that were never written may hold anything, not-a-numbers included. So may later positions of the same
// sequence, which other rows of a tile see and this one does not.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

constexpr int64_t UNIT = 32;
constexpr int64_t SPLIT = 512;
constexpr int64_t SPLIT_UNITS = SPLIT / UNIT;
constexpr int64_t MOST_DIM = 256;
constexpr int64_t TILE_ROWS = 16;  // rows that are computed together
constexpr int64_t TASK_ROWS = 64;  // rows for which a split is fetched from memory once

// A sequence in a task.
struct AttentionMember {
  int64_t sequence;
  int64_t partials_at;  // in the memory for partials: see AttentionPlan
  float* partials;      // where the results of its rows go; null: merge the splits and write the output
};

// Some rows of one key-value head over some splits.
//
// The rows of a sequence are numbered position by position, and in a position head by head: row i is query head
// i % group of the sequence's token i / group. A task with several members has one token of each, one after the other,
// and one split, whose pages they have in common.
struct AttentionTask {
  const AttentionMember* members;
  int64_t first_member, num_members;
  int64_t kv_head;
  int64_t first_row, num_rows;  // at most TASK_ROWS
  int64_t first_split, end_split;
};

struct AttentionKernel {
  void (*attend)(const ov_attention_args& args, const AttentionTask& task);
  // Merge the results of the task's splits, its only member's `partials` and on, and write the output.
  void (*merge)(const ov_attention_args& args, const AttentionTask& task);
};

// One object file per ISA.
extern const AttentionKernel attention_f32_portable, attention_bf16_portable;
#if defined(__x86_64__)
extern const AttentionKernel attention_f32_avx2, attention_bf16_avx2;
extern const AttentionKernel attention_f32_avx512, attention_bf16_avx512;
extern const AttentionKernel attention_bf16_amx;
#elif defined(__aarch64__)
extern const AttentionKernel attention_f32_neon, attention_bf16_neon;
#endif

namespace {  // each object compiles these for its own ISA (see bf16.h)

inline int64_t at_least(int64_t value, int64_t bound) { return value > bound ? value : bound; }
inline int64_t at_most(int64_t value, int64_t bound) { return value < bound ? value : bound; }
inline int64_t parts_of(int64_t size, int64_t part) { return (size + part - 1) / part; }

inline int64_t padded_dim(ov_dtype dtype, int64_t head_dim) {
  return dtype == OV_BF16 ? (head_dim + 31) / 32 * 32 : head_dim;
}

// Where the unit of a token begins, in elements, in both arrays. `offset` is the token's in its page.
inline int64_t unit_place(const ov_kv_pages& pages, int64_t block, int64_t kv_head, int64_t offset) {
  const int64_t first_token = (block * pages.kv_heads + kv_head) * pages.page_size + offset / UNIT * UNIT;
  return first_token * padded_dim(pages.dtype, pages.head_dim);
}

// The result of a row over one or more splits: its peak, its total, and from element 16 on its sum of weighted values.
// A total of 0 says that the row has seen no key: the peak itself has the weight 1.
inline int64_t result_size(int64_t head_dim) { return 16 + head_dim; }
constexpr int64_t MOST_RESULT = 16 + MOST_DIM;

}  // namespace
}  // namespace octavo
