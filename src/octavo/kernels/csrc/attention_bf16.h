// bf16 attention on vector units of any width, bit-identical to attention_amx.cpp. Both products are defined in
// tile_product.h: 32 dims of a query and a key are one step, and so are the weights and values of the 32 tokens of a
// unit.
#pragma once

#include "attention_task.h"
#include "tile_product.h"

namespace octavo {
namespace {

class Bf16Tiles {
 public:
  Bf16Tiles(const ov_attention_args& args, const AttentionTask& task)
      : args_(args), head_dim_(args.kv.head_dim), padded_(padded_dim(OV_BF16, head_dim_)) {
    RowWalk walk(args, task, 0);
    for (int64_t row = 0; row < task.num_rows; ++row, walk.next()) {
      const bf16* from = static_cast<const bf16*>(args.q) + walk.place(args, task, args.q_stride, args.q_head_stride);
      widen_row(from, head_dim_, queries_ + row * padded_);
    }
  }

  void attend(const Tile& tile, const SplitUnits& units, float* results) {
    for_rows(tile.num_rows, [&](auto rows, int first) { score_all<rows()>(tile, units, first); });
    for (int r = 0; r < tile.num_rows; ++r) {
      if (tile.spans[r].is_empty()) continue;
      float* row = scores_ + r * SCORES;
      weigh<Bf16Weight>(row, tile.spans[r], args_.scale, args_.softcap, results + r * result_size(head_dim_),
                        [&](int token, const Lanes& weights) {
                          Lanes::map(weights, [](Vector part) { return part.nearest_bf16(); }).store(row + token);
                        });
    }
    for_rows(tile.num_rows, [&](auto rows, int first) { sum_all<rows()>(tile, units, first, results); });
  }

 private:
  static constexpr int MAX_ROWS = PANEL_ROWS < 8 ? PANEL_ROWS : 8;
  static constexpr int SCORES = SPLIT + 16;  // at a distance of a power of two, rows would compete for a few cache sets

  template <int ROWS>
  struct Rows {
    constexpr int operator()() const { return ROWS; }
  };

  // Calls function(number of rows as a constant, first row) for groups of rows, largest groups first.
  template <int ROWS = MAX_ROWS, class Function>
  static void for_rows(int num_rows, const Function& function, int first = 0) {
    for (; first + ROWS <= num_rows; first += ROWS) function(Rows<ROWS>(), first);
    if constexpr (ROWS > 1) {
      if (first < num_rows) for_rows<ROWS - 1>(num_rows, function, first);
    }
  }

  // -- In FlushMode and not inlined, so that all inputs and outputs are in memory, as flush.h requires. ------------

  // Multiplies rows [row, row + ROWS) by the keys of all units.
  template <int ROWS>
  __attribute__((noinline)) void score_all(const Tile& tile, const SplitUnits& units, int row) {
    const FlushMode mode;
    const int64_t num_steps = padded_ / STEP_K, unit_bytes = padded_ * UNIT * int64_t(sizeof(bf16));
    const float* queries = queries_ + (tile.first_row + row) * padded_;
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      if (!units.in_cache && row == 0) {
        fetch_unit(units.keys[u + 1], unit_bytes);
        fetch_unit(units.values[u], unit_bytes);
      }
      const bf16* keys = static_cast<const bf16*>(units.keys[u]);
      float* to = scores_ + row * SCORES + u * UNIT;
      for (int r = 0; r < ROWS; ++r)
        for (int i = 0; i < UNIT; i += 16) Lanes::zero().store(to + r * SCORES + i);
      for (int64_t step = 0; step < num_steps; ++step) {
        for (int t = 0; t < 2; t += PANEL_TILES) {
          const bf16* tiles[PANEL_TILES];
          for (int i = 0; i < PANEL_TILES; ++i) tiles[i] = keys + ((t + i) * num_steps + step) * TILE_ELEMENTS;
          add_step<ROWS>(queries + step * STEP_K, padded_, tiles, WHOLE_STEP, to + t * TILE_COLUMNS, SCORES);
        }
      }
    }
  }

  // Computes the sums of weighted values of rows [row, row + ROWS).
  template <int ROWS>
  __attribute__((noinline)) void sum_all(const Tile& tile, const SplitUnits& units, int row, float* results) {
    const FlushMode mode;
    const int64_t size = result_size(head_dim_), num_tiles = head_dim_ / TILE_COLUMNS;
    float* const sums = results + row * size + 16;
    for (int r = 0; r < ROWS; ++r)
      for (int64_t d = 0; d < head_dim_; d += 16) Lanes::zero().store(sums + r * size + d);
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      const bf16* values = static_cast<const bf16*>(units.values[u]);
      const float* weights = scores_ + row * SCORES + u * UNIT;
      if (tile.all_see(u)) {
        add_values<ROWS>(weights, values, num_tiles, WHOLE_STEP, sums);
        continue;
      }
      for (int r = 0; r < ROWS; ++r) {
        const KRange visible = visible_of(tile.spans[row + r], u);
        if (visible.begin < visible.end) {
          add_values<1>(weights + r * SCORES, values, num_tiles, visible, sums + r * size);
        }
      }
    }
    // AMX multiplies values that a row does not attend to by 0, and adding the product turns -0 into 0. So do the same.
    for (int r = 0; r < ROWS; ++r)
      for (int64_t d = 0; d < head_dim_; d += 16) {
        float* sum = sums + r * size + d;
        (Lanes::load(sum) + Lanes::zero()).store(sum);
      }
  }

  static KRange visible_of(Span span, int unit) {
    const int first = unit * int(UNIT);
    return {int(at_least(span.begin - first, 0)), int(at_most(span.end - first, UNIT))};
  }

  template <int ROWS>
  void add_values(const float* weights, const bf16* values, int64_t num_tiles, KRange visible, float* sums) {
    const int64_t size = result_size(head_dim_);
    int64_t t = 0;
    for (; t + PANEL_TILES <= num_tiles; t += PANEL_TILES) {
      const bf16* tiles[PANEL_TILES];
      for (int i = 0; i < PANEL_TILES; ++i) tiles[i] = values + (t + i) * TILE_ELEMENTS;
      add_step<ROWS>(weights, SCORES, tiles, visible, sums + t * TILE_COLUMNS, size);
    }
    for (; t < num_tiles; ++t) {
      const bf16* const tiles[1] = {values + t * TILE_ELEMENTS};
      add_step<ROWS>(weights, SCORES, tiles, visible, sums + t * TILE_COLUMNS, size);
    }
  }

  const ov_attention_args& args_;
  const int64_t head_dim_, padded_;
  alignas(64) float queries_[TASK_ROWS * MAX_DIM];
  alignas(64) float scores_[TILE_ROWS * SCORES];  // [row][token]; then the weights
};

}  // namespace
}  // namespace octavo
