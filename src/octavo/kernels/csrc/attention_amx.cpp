// bf16 on AMX. The 16 rows of a tile are 16 rows of the tile registers (amx.h), in both products:
//
//     scores    tiles 4, 5 (rows x 16 tokens, twice)   = tile 0 (rows x 32 dims)    x  tile 2 (keys)
//     sums      tiles 4, 5 (rows x 16 dims, twice)     = tile 0 (rows x 32 tokens)  x  tile 2 (values)
//
// Four tiles, and not the eight that would save loads: amx.h says why. The weights between the two products are rounded
// to bf16; their total is not.
#include "amx.h"
#include "attention_task.h"

namespace octavo {
namespace {

constexpr int64_t TILE = 512;  // bf16 in a tile
constexpr int64_t TILE_STRIDE = 64;
constexpr int64_t SCORES = SPLIT + 16;  // floats in a row of scores; a power of two would share a few cache lines
constexpr int64_t SUM_TILES = 2;  // of 16 dims, that are summed in one pass over the units
constexpr bf16 NOT_A_NUMBER = 0x7fc0;

// Asks for a tile that will be read soon: a unit is too short for the processor to notice that it is read in order.
// Spread over the multiplications, because only so many lines can be on their way at a time.
inline void fetch_tile(const bf16* tile) {
  if (tile == nullptr) return;
#pragma GCC unroll 16
  for (int line = 0; line < 16; ++line) _mm_prefetch(tile + line * 32, _MM_HINT_T1);
  __asm__ volatile("");  // without it gcc finds that this function does nothing, and drops its calls
}

inline const bf16* tile_at(const bf16* unit, int64_t index) {
  return unit == nullptr ? nullptr : unit + index * TILE;
}

class AmxTiles {
 public:
  // Queries as tiles: [num_rows / 16][D / 32][16 rows][32 dims]
  AmxTiles(const ov_attention_args& args, const AttentionTask& task)
      : args_(args), head_dim_(args.pages.head_dim), padded_(padded_dim(OV_BF16, head_dim_)) {
    for (int64_t row = 0; row < task.num_rows; ++row) {
      const bf16* from =
          static_cast<const bf16*>(args.q) + row_place(args, task, row, args.q_stride, args.q_head_stride);
      bf16* to = queries_ + row / 16 * 16 * padded_ + row % 16 * 32;
      for (int64_t d = 0; d < padded_; d += 32, to += TILE) {
        const __mmask32 present = head_dim_ - d >= 32 ? 0xffffffffu : 0xffffu;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(present, from + d));
      }
    }
  }
  ~AmxTiles() { _tile_release(); }

  void attend(const Tile& tile, const SplitUnits& units, float* results) {
    if (tile.num_rows != configured_rows_) {
      configure_tiles(tile.num_rows);
      configured_rows_ = tile.num_rows;
    }
    for (int u = tile.first_unit; u < tile.end_unit; ++u) score(tile, units, u);
    for (int r = 0; r < tile.num_rows; ++r) weigh_row(tile, r, results + r * result_size(head_dim_));
    for (int u = tile.first_unit; u < tile.end_unit; ++u) check_values(tile, units, u);
    const int64_t num_tiles = head_dim_ / 16;
    for (int64_t first = 0; first < num_tiles; first += SUM_TILES) {
      if (num_tiles - first == 1) {
        sum<1>(tile, units, first, results);
      } else {
        sum<2>(tile, units, first, results);
      }
    }
  }

 private:
  void score(const Tile& tile, const SplitUnits& units, int unit) {
    const bf16* queries = queries_ + tile.first_row * padded_;
    const bf16* keys = static_cast<const bf16*>(units.keys[unit]);
    const bf16* ahead = after_keys(tile, units, unit);
    const int64_t num_tiles = padded_ / 32;
    _tile_zero(4);
    _tile_zero(5);
    for (int64_t t = 0; t < num_tiles; ++t) {
      _tile_loadd(0, queries + t * TILE, TILE_STRIDE);
      fetch_tile(tile_at(ahead, 2 * t));
      _tile_loadd(2, keys + t * TILE, TILE_STRIDE);
      _tile_dpbf16ps(4, 0, 2);
      fetch_tile(tile_at(ahead, 2 * t + 1));
      _tile_loadd(2, keys + (num_tiles + t) * TILE, TILE_STRIDE);
      _tile_dpbf16ps(5, 0, 2);
    }
    _tile_stored(4, scores_ + unit * UNIT, SCORES * sizeof(float));
    _tile_stored(5, scores_ + unit * UNIT + 16, SCORES * sizeof(float));
  }

  // What is fetched meanwhile: some units ahead, in the order in which they will be read. That is the keys of the split,
  // then 32 dims after 32 dims the values, then the keys of the next split.
  static const bf16* after_keys(const Tile& tile, const SplitUnits& units, int unit) {
    if (units.in_cache) return nullptr;
    const int ahead = unit + SplitUnits::AHEAD;
    return static_cast<const bf16*>(ahead < tile.end_unit ? units.keys[ahead] : first_values(tile, units, ahead));
  }

  const bf16* after_values(const Tile& tile, const SplitUnits& units, int unit, int64_t first) const {
    if (units.in_cache) return nullptr;
    const int ahead = unit + SplitUnits::AHEAD;
    if (ahead < tile.end_unit) return static_cast<const bf16*>(units.values[ahead]) + first * TILE;
    if ((first + SUM_TILES) * 16 < head_dim_) return tile_at(first_values(tile, units, ahead), first + SUM_TILES);
    return tile.end_unit == SPLIT_UNITS ? static_cast<const bf16*>(units.keys[ahead]) : nullptr;
  }

  // `ahead` is beyond the last unit; null if there are not even so many.
  static const bf16* first_values(const Tile& tile, const SplitUnits& units, int ahead) {
    const int unit = ahead - tile.end_unit + tile.first_unit;
    return unit < tile.end_unit ? static_cast<const bf16*>(units.values[unit]) : nullptr;
  }

  // Weights as tiles: [unit][16 rows][32 tokens]
  bf16* weights_of(int row, int token) { return weights_ + token / 32 * TILE + row * 32 + token % 32; }

  void weigh_row(const Tile& tile, int row, float* result) {
    const Span span = tile.spans[row];
    const __m256i nothing = _mm256_setzero_si256();
    const int begin = tile.first_unit * int(UNIT), end = tile.end_unit * int(UNIT);
    const int first_weight = span.is_empty() ? end : span.begin / 16 * 16, end_weight = (span.end + 15) / 16 * 16;
    for (int token = begin; token < first_weight; token += 16)
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights_of(row, token)), nothing);
    if (span.is_empty()) return;
    for (int token = end_weight; token < end; token += 16)
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights_of(row, token)), nothing);
    weigh(scores_ + row * SCORES, span, args_.scale, args_.softcap, result, [&](int token, const Lanes& weights) {
      const __m256i rounded = __m256i(_mm512_cvtneps_pbh(weights.parts[0].value));
      _mm256_store_si256(reinterpret_cast<__m256i*>(weights_of(row, token)), rounded);
    });
  }

  // A weight of 0 times infinity is not 0. Where some row does not see all of a unit, values that are not finite are
  // taken as 0, and a row that sees such a token gets a weight that is not a number.
  void check_values(const Tile& tile, const SplitUnits& units, int unit) {
    const int first = unit * int(UNIT);
    is_dirty_[unit] = false;
    bool all_see_all = true;
    for (int r = 0; r < tile.num_rows; ++r)
      all_see_all = all_see_all && tile.spans[r].begin <= first && tile.spans[r].end >= first + UNIT;
    if (all_see_all) return;
    const bf16* values = static_cast<const bf16*>(units.values[unit]);
    if (all_finite(values, head_dim_ * UNIT)) return;
    is_dirty_[unit] = true;
    for (int64_t i = 0; i < head_dim_ * UNIT; ++i) {
      if ((values[i] & 0x7f80) != 0x7f80) continue;
      const int token = first + int(i % TILE / 32 * 2 + i % 2);
      for (int r = 0; r < tile.num_rows; ++r) {
        if (token >= tile.spans[r].begin && token < tile.spans[r].end) *weights_of(r, token) = NOT_A_NUMBER;
      }
    }
  }

  static bool all_finite(const bf16* values, int64_t count) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int64_t i = 0; i < count; i += 32)
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(values + i), exponent), exponent);
    return found == 0;
  }

  const bf16* cleaned(const bf16* values, int64_t count) {
    for (int64_t i = 0; i < count; ++i) clean_[i] = (values[i] & 0x7f80) == 0x7f80 ? 0 : values[i];
    return clean_;
  }

  // Dims [16 * first, 16 * (first + TILES)) of the weighted values.
  template <int TILES>
  void sum(const Tile& tile, const SplitUnits& units, int64_t first, float* results) {
    _tile_zero(4);
    _tile_zero(5);
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      const bf16* ahead = after_values(tile, units, u, first);
      const bf16* values = static_cast<const bf16*>(units.values[u]) + first * TILE;
      if (is_dirty_[u]) values = cleaned(values, TILES * TILE);
      _tile_loadd(0, weights_ + u * TILE, TILE_STRIDE);
      fetch_tile(ahead);
      _tile_loadd(2, values, TILE_STRIDE);
      _tile_dpbf16ps(4, 0, 2);
      if (TILES > 1) {
        fetch_tile(tile_at(ahead, 1));
        _tile_loadd(2, values + TILE, TILE_STRIDE);
        _tile_dpbf16ps(5, 0, 2);
      }
    }
    const int64_t size = result_size(head_dim_);
    float* to = results + 16 + first * 16;
    _tile_stored(4, to, size * sizeof(float));
    if (TILES > 1) _tile_stored(5, to + 16, size * sizeof(float));
    // A unit that a row does not see adds 0 to its sums: exactly nothing, except that it turns -0 into 0. Here all are.
    for (int r = 0; r < tile.num_rows; ++r)
      for (int t = 0; t < TILES; ++t) {
        float* sums = to + r * size + t * 16;
        (Lanes::load(sums) + Lanes::zero()).store(sums);
      }
  }

  const ov_attention_args& args_;
  const int64_t head_dim_, padded_;
  int configured_rows_ = 0;
  bool is_dirty_[SPLIT_UNITS];
  alignas(64) bf16 queries_[TASK_ROWS * MOST_DIM];
  alignas(64) float scores_[TILE_ROWS * SCORES];
  alignas(64) bf16 weights_[TILE_ROWS * SPLIT];
  alignas(64) bf16 clean_[SUM_TILES * TILE];
};

}  // namespace

const AttentionKernel attention_bf16_amx = {attend_task<AmxTiles>, merge_task};

}  // namespace octavo
