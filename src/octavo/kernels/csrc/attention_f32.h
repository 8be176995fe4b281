// Float attention for any vector width. A score is summed over the dims in ascending order, and a sum of values over
// the tokens in ascending order, with one fused multiply-add per term, so results are bit-identical for all widths.
#pragma once

#include "attention_task.h"

namespace octavo {
namespace {

class F32Tiles {
 public:
  F32Tiles(const ov_attention_args& args, const AttentionTask& task) : args_(args), head_dim_(args.kv.head_dim) {
    RowWalk walk(args, task, 0);
    for (int64_t row = 0; row < task.num_rows; ++row, walk.next()) {
      const float* from = static_cast<const float*>(args.q) + walk.place(args, task, args.q_stride, args.q_head_stride);
      for (int64_t d = 0; d < head_dim_; d += 16) Lanes::load(from + d).store(queries_ + row * head_dim_ + d);
    }
  }

  void attend(const Tile& tile, const SplitUnits& units, float* results) {
    const float* queries = queries_ + tile.first_row * head_dim_;
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      if (!units.in_cache) {
        fetch_unit(units.keys[u + 1], head_dim_ * UNIT * int64_t(sizeof(float)));
        fetch_unit(units.values[u], head_dim_ * UNIT * int64_t(sizeof(float)));
      }
      const float* keys = static_cast<const float*>(units.keys[u]);
      int r = 0;
      for (; r + ROWS <= tile.num_rows; r += ROWS) score<ROWS>(queries + r * head_dim_, keys, r, u);
      for (; r < tile.num_rows; ++r) score<1>(queries + r * head_dim_, keys, r, u);
    }
    for (int r = 0; r < tile.num_rows; ++r) {
      if (tile.spans[r].is_empty()) continue;
      float* row = scores_ + r * SCORES;
      weigh<F32Weight>(row, tile.spans[r], args_.scale, args_.softcap, results + r * result_size(head_dim_),
            [&](int token, const Lanes& weights) { weights.store(row + token); });
    }
    // Only visible tokens are multiplied. Rows of the same position have the same span.
    for (int r = 0; r < tile.num_rows;) {
      const Span span = tile.spans[r];
      int num_same = 1;
      while (num_same < ROWS && r + num_same < tile.num_rows && tile.spans[r + num_same] == span) ++num_same;
      const int num_rows = num_same == ROWS ? ROWS : 1;
      if (!span.is_empty()) {
        if (num_rows == ROWS) {
          sum_all_dims<ROWS>(span, units, r, results);
        } else {
          sum_all_dims<1>(span, units, r, results);
        }
      }
      r += num_rows;
    }
  }

 private:
  static constexpr int ROWS = Vector::WIDTH == 16 ? 4 : Vector::WIDTH == 8 ? 2 : 1;
  static constexpr int SCORES = SPLIT + 16;  // at a distance of a power of two, rows would compete for a few cache sets

  // Multiplies rows [row, row + COUNT) by the 32 keys of a unit.
  template <int COUNT>
  void score(const float* queries, const float* keys, int row, int unit) {
    constexpr int VECTORS = UNIT / Vector::WIDTH;
    Vector sums[COUNT][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    for (int64_t d = 0; d < head_dim_; ++d) {
      Vector column[VECTORS];
      for (int v = 0; v < VECTORS; ++v) {
        const int token = v * Vector::WIDTH;
        column[v] = Vector::load(keys + token / 16 * head_dim_ * 16 + d * 16 + token % 16);
      }
      for (int r = 0; r < COUNT; ++r) {
        const Vector factor = Vector::broadcast(queries[r * head_dim_ + d]);
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
      }
    }
    for (int r = 0; r < COUNT; ++r) {
      float* to = scores_ + (row + r) * SCORES + unit * UNIT;
      for (int v = 0; v < VECTORS; ++v) sums[r][v].store(to + v * Vector::WIDTH);
    }
  }

  template <int COUNT>
  void sum_all_dims(Span span, const SplitUnits& units, int row, float* results) {
    int64_t d = 0;
    for (; d + 64 <= head_dim_; d += 64) sum<COUNT, 64>(span, units, row, d, results);
    for (; d < head_dim_; d += 16) sum<COUNT, 16>(span, units, row, d, results);
  }

  // Computes dims [first_dim, first_dim + DIMS) of the sums of weighted values.
  template <int COUNT, int DIMS>
  void sum(Span span, const SplitUnits& units, int row, int64_t first_dim, float* results) {
    constexpr int VECTORS = DIMS / Vector::WIDTH;
    Vector sums[COUNT][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    const float* weights = scores_ + row * SCORES;
    for (int u = span.begin / int(UNIT); u * int(UNIT) < span.end; ++u) {
      const float* values = static_cast<const float*>(units.values[u]);
      const int begin = u * int(UNIT) > span.begin ? 0 : span.begin - u * int(UNIT);
      const int end = span.end - u * int(UNIT) < int(UNIT) ? span.end - u * int(UNIT) : int(UNIT);
      for (int token = begin; token < end; ++token) {
        Vector column[VECTORS];
        for (int v = 0; v < VECTORS; ++v)
          column[v] = Vector::load(values + token * head_dim_ + first_dim + v * Vector::WIDTH);
        for (int r = 0; r < COUNT; ++r) {
          const Vector weight = Vector::broadcast(weights[r * SCORES + u * UNIT + token]);
          for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(weight, column[v], sums[r][v]);
        }
      }
    }
    for (int r = 0; r < COUNT; ++r) {
      float* to = results + (row + r) * result_size(head_dim_) + 16 + first_dim;
      for (int v = 0; v < VECTORS; ++v) sums[r][v].store(to + v * Vector::WIDTH);
    }
  }

  const ov_attention_args& args_;
  const int64_t head_dim_;
  alignas(64) float queries_[TASK_ROWS * MAX_DIM];
  alignas(64) float scores_[TILE_ROWS * SCORES];  // [row][token]; then the weights
};

}  // namespace
}  // namespace octavo
