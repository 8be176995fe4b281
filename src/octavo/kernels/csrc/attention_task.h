// Runs a task split by split, and each split tile by tile, so that the rows of a task share what is read from memory.
// The arithmetic of a tile is in the `Tiles` class of an ISA:
//
//     Tiles(args, task)              copies the task's queries, in its own layout
//     attend(tile, units, results)   computes the results of a tile over one split
#pragma once

#include "attention_softmax.h"

namespace octavo {
namespace {

// Up to 16 rows of a task, and the tokens of a split that are visible to them.
struct Tile {
  int64_t first_row;  // in the task
  int num_rows;
  Span spans[TILE_ROWS];
  Span common;               // visible to all rows
  int first_unit, end_unit;  // visible to at least one row

  bool all_see(int unit) const {
    return common.begin <= unit * int(UNIT) && common.end >= (unit + 1) * int(UNIT);
  }
};

// The units of a split, in the order of their positions. `keys` also has the first units of the next split, to
// prefetch.
struct SplitUnits {
  static constexpr int AHEAD = 3;
  const void* keys[SPLIT_UNITS + AHEAD];
  const void* values[SPLIT_UNITS];
  bool in_cache;  // another tile of the task has already read them
};

constexpr int64_t element_size(ov_dtype dtype) { return dtype == OV_BF16 ? 2 : 4; }

// Iterates over the rows of a task. A row is one query head of one of a sequence's new tokens. There are many rows, so
// `next` avoids divisions.
struct RowWalk {
  const int64_t group;  // query heads of a key-value head
  const bool is_shared;
  const AttentionMember* member;
  int64_t token, head;

  RowWalk(const ov_attention_args& args, const AttentionTask& task, int64_t row)
      : group(args.heads / args.kv.kv_heads),
        is_shared(task.num_members > 1),
        member(task.members + (is_shared ? row / group : 0)),
        token(is_shared ? 0 : (task.first_row + row) / group),
        head((task.first_row + row) % group) {}

  void next() {
    if (++head < group) return;
    head = 0;
    if (is_shared) {
      ++member;
    } else {
      ++token;
    }
  }

  int64_t position(const ov_attention_args& args) const {
    return args.contexts[member->sequence] - args.row_counts[member->sequence] + token;
  }

  // Returns the offset of the row in an array [num_rows, heads, head_dim], in elements.
  int64_t place(const ov_attention_args& args, const AttentionTask& task, int64_t stride, int64_t head_stride) const {
    return (args.first_rows[member->sequence] + token) * stride + (task.kv_head * group + head) * head_stride;
  }
};

inline Tile tile_of(const ov_attention_args& args, const AttentionTask& task, int64_t first_row, int64_t split) {
  Tile tile;
  tile.first_row = first_row;
  tile.num_rows = int(task.num_rows - first_row < TILE_ROWS ? task.num_rows - first_row : TILE_ROWS);
  tile.common = {0, SPLIT};
  int begin = SPLIT, end = 0;
  RowWalk walk(args, task, first_row);
  for (int r = 0; r < tile.num_rows; ++r, walk.next()) {
    const Span span = visible_span(walk.position(args), args.window, split);
    tile.spans[r] = span;
    tile.common = {span.begin > tile.common.begin ? span.begin : tile.common.begin,
                   span.end < tile.common.end ? span.end : tile.common.end};
    if (span.is_empty()) continue;
    begin = span.begin < begin ? span.begin : begin;
    end = span.end > end ? span.end : end;
  }
  tile.first_unit = begin / int(UNIT);
  tile.end_unit = (end + int(UNIT) - 1) / int(UNIT);
  return tile;
}

inline SplitUnits units_of(const ov_attention_args& args, const AttentionTask& task, int64_t split) {
  const ov_kv_blocks& kv = args.kv;
  const int64_t sequence = task.members->sequence;  // all members have the same blocks in this split
  const int64_t num_units = (args.contexts[sequence] + UNIT - 1) / UNIT;
  const int64_t first_token = split * SPLIT;
  const int64_t* block = args.blocks + args.block_offsets[sequence] + first_token / kv.block_size;
  int64_t offset = first_token % kv.block_size;
  SplitUnits units = {};
  for (int64_t i = 0; i < SPLIT_UNITS + SplitUnits::AHEAD && split * SPLIT_UNITS + i < num_units; ++i) {
    const int64_t place = unit_place(kv, *block, task.kv_head, offset) * element_size(kv.dtype);
    units.keys[i] = static_cast<const char*>(kv.keys) + place;
    if (i < SPLIT_UNITS) units.values[i] = static_cast<const char*>(kv.values) + place;
    offset += UNIT;
    if (offset < kv.block_size) continue;
    offset = 0;
    ++block;
  }
  return units;
}

// Prefetches a unit that will be read soon. A unit is too short for the hardware prefetcher to recognise the pattern.
inline void fetch_unit(const void* unit, int64_t num_bytes) {
  if (unit == nullptr) return;
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(static_cast<const char*>(unit) + i, 0, 2);
  __asm__ volatile("");  // otherwise gcc concludes that this function has no effect and removes its calls
}

inline void write_rows(const ov_attention_args& args, const AttentionTask& task, const float* results) {
  const int64_t head_dim = args.kv.head_dim;
  RowWalk walk(args, task, 0);
  for (int64_t row = 0; row < task.num_rows; ++row, walk.next()) {
    const float* result = results + row * result_size(head_dim);
    const int64_t place = walk.place(args, task, args.out_stride, args.out_head_stride);
    if (args.kv.dtype == OV_BF16) {
      write_output(result, head_dim, static_cast<bf16*>(args.out) + place);
    } else {
      write_output(result, head_dim, static_cast<float*>(args.out) + place);
    }
  }
}

// Copies the results of a tile of a shared task to the partials of each sequence.
inline void scatter(const ov_attention_args& args, const AttentionTask& task, const Tile& tile, const float* results) {
  const int64_t size = result_size(args.kv.head_dim);
  RowWalk walk(args, task, tile.first_row);
  for (int r = 0; r < tile.num_rows; ++r, walk.next()) {
    const float* from = results + r * size;
    float* to = walk.member->partials + walk.head * size;
    for (int64_t i = 0; i < size; i += 16) Lanes::load(from + i).store(to + i);
  }
}

template <class Tiles>
void attend_task(const ov_attention_args& args, const AttentionTask& task) {
  const int64_t size = result_size(args.kv.head_dim);
  const bool is_shared = task.num_members > 1;
  float* const partials = task.members->partials;
  alignas(64) float rows[TASK_ROWS * MAX_RESULT], results[TILE_ROWS * MAX_RESULT];
  for (int64_t row = 0; row < task.num_rows; ++row) rows[row * size + 1] = 0.0f;
  Tiles tiles(args, task);
  for (int64_t split = task.first_split; split < task.end_split; ++split) {
    SplitUnits units = units_of(args, task, split);
    for (int64_t first = 0; first < task.num_rows; first += TILE_ROWS) {
      const Tile tile = tile_of(args, task, first, split);
      float* to = partials != nullptr && !is_shared ? partials + first * size : results;
      for (int r = 0; r < tile.num_rows; ++r) to[r * size + 1] = 0.0f;
      if (tile.first_unit < tile.end_unit) {
        tiles.attend(tile, units, to);
        units.in_cache = true;
      }
      if (is_shared) scatter(args, task, tile, results);
      if (partials != nullptr) continue;
      for (int r = 0; r < tile.num_rows; ++r) {
        merge_result(rows + (first + r) * size, results + r * size, args.kv.head_dim);
      }
    }
  }
  if (partials == nullptr) write_rows(args, task, rows);
}

inline void merge_task(const ov_attention_args& args, const AttentionTask& task) {
  const int64_t size = result_size(args.kv.head_dim);
  float* const partials = task.members->partials;
  for (int64_t split = 1; split < task.end_split - task.first_split; ++split) {
    for (int64_t row = 0; row < task.num_rows; ++row) {
      merge_result(partials + row * size, partials + (split * task.num_rows + row) * size, args.kv.head_dim);
    }
  }
  write_rows(args, task, partials);
}

}  // namespace
}  // namespace octavo
