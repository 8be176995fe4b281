// Attention over keys and values in blocks. Prefill and decode use the same kernel.
//
// A block holds `block_size` tokens of every key-value head. A unit is 32 tokens of one head of a block. A unit of keys
// or of values is contiguous, and the units of a block follow each other:
//
//     array[block][kv_head][block_size / 32][one unit]
//
//     unit of   bf16                                         f32
//     keys      [2][D / 32][16 dim-pairs][16 tokens][2]      [2][D][16 tokens]
//     values    [D / 16][16 token-pairs][16 dims][2]         [32 tokens][D]
//
// bf16 units are AMX tiles of 1 KB in the order in which they are multiplied; their D is padded to a multiple of 32,
// with zeros in the keys. The vector kernels read all units sequentially, too: 16 tokens of a dim for scores, 16 dims
// of a token for sums. Every ISA reads the same bytes.
//
// Order of operations, the same on every ISA. A row is one query head at one position. Its keys are cut into splits at
// multiples of 512 positions. Each split has its own softmax: all scores, their peak, weights, total and weighted sum
// of values (attention_softmax.h). The results of the splits are then merged in order. A split in which a row attends
// to no key is skipped for that row, and a key to which it does not attend contributes exactly nothing. So a row's
// result does not depend on which rows are computed together, in how many chunks a prompt is processed, or which thread
// computes a split.
//
// Slots of a block that were never written may hold anything, including NaN. So may later positions of the same
// sequence, which are visible to other rows of a tile but not to this one.
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

constexpr int64_t UNIT = 32;
constexpr int64_t SPLIT = 512;
constexpr int64_t SPLIT_UNITS = SPLIT / UNIT;
constexpr int64_t MAX_DIM = 256;
constexpr int64_t TILE_ROWS = 16;  // rows that are computed together
constexpr int64_t TASK_ROWS = 64;  // rows that share one read of a split from memory

// A sequence in a task.
struct AttentionMember {
  int64_t sequence;
  int64_t partials_at;  // offset in the memory for partials: see AttentionPlan
  float* partials;      // destination of its rows' results; null: merge the splits and write the output
};

// Some rows of one key-value head over some splits.
//
// The rows of a sequence are numbered by position, and within a position by head: row i is query head i % group of the
// sequence's token i / group. A task with several members contains one token of each member, in order, and one split
// whose blocks all members share.
struct AttentionTask {
  const AttentionMember* members;
  int64_t first_member, num_members;
  int64_t kv_head;
  int64_t first_row, num_rows;  // at most TASK_ROWS
  int64_t first_split, end_split;
};

struct AttentionKernel {
  void (*attend)(const ov_attention_args& args, const AttentionTask& task);
  // Merges the results of the task's splits, which start at its only member's `partials`, and writes the output.
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

// Returns where the unit of a token begins in both arrays, in elements. `offset` is the token's offset in its block.
inline int64_t unit_place(const ov_kv_blocks& kv, int64_t block, int64_t kv_head, int64_t offset) {
  const int64_t first_token = (block * kv.kv_heads + kv_head) * kv.block_size + offset / UNIT * UNIT;
  return first_token * padded_dim(kv.dtype, kv.head_dim);
}

// The result of a row over one or more splits: peak, total, and from element 16 on the sum of weighted values. A total
// of 0 means that the row has attended to no key; otherwise the total is not 0, because the peak itself has weight 1.
inline int64_t result_size(int64_t head_dim) { return 16 + head_dim; }
constexpr int64_t MAX_RESULT = 16 + MAX_DIM;

}  // namespace
}  // namespace octavo
