// Attention by fused multiply-add, for any vector width. A score is summed over the dims from 0 upwards, a sum of
// values over the tokens upwards, each by one fused multiply-add: so all widths agree bit for bit.
#pragma once

#include "attention_task.h"

namespace octavo {
namespace {

// Vectors from the units of attention.h. `dim` is the padded head dim.
struct F32Units {
  using Element = float;
  static constexpr ov_dtype DTYPE = OV_F32;
  static Vector load_keys(const float* unit, int64_t dim, int64_t d, int token) {
    return Vector::load(unit + token / 16 * dim * 16 + d * 16 + token % 16);
  }
  static Vector load_values(const float* unit, int64_t dim, int token, int64_t d) {
    return Vector::load(unit + token * dim + d);
  }
};

struct Bf16Units {
  using Element = bf16;
  static constexpr ov_dtype DTYPE = OV_BF16;
  static Vector load_keys(const bf16* unit, int64_t dim, int64_t d, int token) {
    const bf16* pairs = unit + token / 16 * dim * 16 + d / 2 * 32 + token % 16 * 2;
    return d % 2 == 0 ? Vector::load_even(pairs) : Vector::load_odd(pairs);
  }
  static Vector load_values(const bf16* unit, int64_t, int token, int64_t d) {
    const bf16* pairs = unit + d / 16 * 512 + token / 2 * 32 + d % 16 * 2;
    return token % 2 == 0 ? Vector::load_even(pairs) : Vector::load_odd(pairs);
  }
};

// Asks for a unit that will be read soon: it is too short for the processor to notice that it is read in order.
inline void fetch(const void* unit, int64_t num_bytes) {
  if (unit == nullptr) return;
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(static_cast<const char*>(unit) + i, 0, 2);
  __asm__ volatile("");  // without it gcc finds that this function does nothing, and drops its calls
}

template <class Units>
class FmaTiles {
 public:
  using Element = typename Units::Element;

  FmaTiles(const ov_attention_args& args, const AttentionTask& task)
      : args_(args), head_dim_(args.pages.head_dim), padded_(padded_dim(Units::DTYPE, head_dim_)) {
    RowWalk walk(args, task, 0);
    for (int64_t row = 0; row < task.num_rows; ++row, walk.next()) {
      const Element* from =
          static_cast<const Element*>(args.q) + walk.place(args, task, args.q_stride, args.q_head_stride);
      for (int64_t d = 0; d < head_dim_; d += 16) Lanes::load(from + d).store(queries_ + row * head_dim_ + d);
    }
  }

  void attend(const Tile& tile, const SplitUnits& units, float* results) {
    const float* queries = queries_ + tile.first_row * head_dim_;
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      if (!units.in_cache) {
        fetch(units.keys[u + 1], padded_ * UNIT * int64_t(sizeof(Element)));
        fetch(units.values[u], padded_ * UNIT * int64_t(sizeof(Element)));
      }
      const Element* keys = static_cast<const Element*>(units.keys[u]);
      int r = 0;
      for (; r + ROWS <= tile.num_rows; r += ROWS) score<ROWS>(queries + r * head_dim_, keys, r, u);
      for (; r < tile.num_rows; ++r) score<1>(queries + r * head_dim_, keys, r, u);
    }
    for (int r = 0; r < tile.num_rows; ++r) {
      if (tile.spans[r].is_empty()) continue;
      float* row = scores_ + r * SCORES;
      weigh(row, tile.spans[r], args_.scale, args_.softcap, results + r * result_size(head_dim_),
            [&](int token, const Lanes& weights) { weights.store(row + token); });
    }
    // Only what a row sees is multiplied. Rows of one position see the same.
    for (int r = 0; r < tile.num_rows;) {
      const Span span = tile.spans[r];
      int num_alike = 1;
      while (num_alike < ROWS && r + num_alike < tile.num_rows && tile.spans[r + num_alike] == span) ++num_alike;
      const int num_rows = num_alike == ROWS ? ROWS : 1;
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
  static constexpr int SCORES = SPLIT + 16;  // rows a power of two apart would share a few cache lines

  // Rows [row, row + COUNT) times the 32 keys of a unit.
  template <int COUNT>
  void score(const float* queries, const Element* keys, int row, int unit) {
    constexpr int VECTORS = UNIT / Vector::WIDTH;
    Vector sums[COUNT][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    for (int64_t pair = 0; pair < head_dim_; pair += 2) {
      for (int64_t d = pair; d < pair + 2; ++d) {
        Vector column[VECTORS];
        for (int v = 0; v < VECTORS; ++v) column[v] = Units::load_keys(keys, padded_, d, v * Vector::WIDTH);
        for (int r = 0; r < COUNT; ++r) {
          const Vector factor = Vector::broadcast(queries[r * head_dim_ + d]);
          for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
        }
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

  // Dims [first_dim, first_dim + DIMS) of the weighted values.
  template <int COUNT, int DIMS>
  void sum(Span span, const SplitUnits& units, int row, int64_t first_dim, float* results) {
    constexpr int VECTORS = DIMS / Vector::WIDTH;
    Vector sums[COUNT][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    const float* weights = scores_ + row * SCORES;
    for (int u = span.begin / int(UNIT); u * int(UNIT) < span.end; ++u) {
      const Element* values = static_cast<const Element*>(units.values[u]);
      const int begin = u * int(UNIT) > span.begin ? 0 : span.begin - u * int(UNIT);
      const int end = span.end - u * int(UNIT) < int(UNIT) ? span.end - u * int(UNIT) : int(UNIT);
      for (int token = begin; token < end; ++token) {
        Vector column[VECTORS];
        for (int v = 0; v < VECTORS; ++v)
          column[v] = Units::load_values(values, padded_, token, first_dim + v * Vector::WIDTH);
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
  const int64_t head_dim_, padded_;
  alignas(64) float queries_[TASK_ROWS * MOST_DIM];
  alignas(64) float scores_[TILE_ROWS * SCORES];  // [row][token]; then the weights
};

}  // namespace
}  // namespace octavo
