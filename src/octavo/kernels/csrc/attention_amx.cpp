// bf16 attention on AMX. The 16 rows of a tile are 16 rows of the tile registers (amx.h), in both products:
//
//     scores    tiles 4, 5 (rows x 16 tokens, twice)           = tile 0 (rows x 32 dims)    x  tile 2 (keys)
//     sums      tiles 4 to 7 (rows x 16 dims, up to 4 times)   = tile 0 (rows x 32 tokens)  x  tile 2 (values)
//
// The softmax between them runs on the vector unit and takes longer than both products. So the work proceeds unit by
// unit, with the vector unit one unit apart from the tile unit: while the scores of a unit are multiplied, the maxima
// of the previous unit are found, and while the weights of a unit are computed, the values of the previous unit are
// added up.
//
//     unit        0          1          2     ...            0          1          2     ...
//     tiles       scores     scores     scores                          sums       sums
//     vectors                greatest   greatest   peaks     weights    weights    weights
//
// The operations of a row are executed in the order of its tokens, as attention_softmax.h defines them, whatever tile
// the row is in.
#include "amx.h"
#include "attention_bf16.h"

namespace octavo {
namespace {

constexpr int64_t TILE = 512;  // bf16 in a tile
constexpr int64_t TILE_STRIDE = 64;
constexpr int64_t SCORES = TILE_ROWS * UNIT;  // of a unit: [16 rows][32 tokens]
constexpr int64_t SUM_TILES = 4;  // tiles of 16 dims that are summed in one pass over the units

// Prefetches a tile that will be read soon. A unit is too short for the hardware prefetcher to recognise the pattern.
// The calls are spread over the multiplications, because the number of cache lines in flight is limited.
inline void fetch_tile(const bf16* tile) {
  if (tile == nullptr) return;
#pragma GCC unroll 16
  for (int line = 0; line < 16; ++line) _mm_prefetch(tile + line * 32, _MM_HINT_T1);
  __asm__ volatile("");  // otherwise gcc concludes that this function has no effect and removes its calls
}

inline const bf16* tile_at(const bf16* unit, int64_t index) {
  return unit == nullptr ? nullptr : unit + index * TILE;
}

inline int clamp(int low, int value, int high) { return value < low ? low : value > high ? high : value; }

// Returns a mask of the 16 tokens from `token` on: those in the span.
inline __mmask16 visible(Span span, int token) {
  return __mmask16((1u << clamp(0, span.end - token, 16)) - (1u << clamp(0, span.begin - token, 16)));
}

class AmxTiles {
 public:
  // Queries as tiles: [num_rows / 16][D / 32][16 rows][32 dims]
  AmxTiles(const ov_attention_args& args, const AttentionTask& task)
      : args_(args), task_(task), head_dim_(args.kv.head_dim), padded_(padded_dim(OV_BF16, head_dim_)) {
    RowWalk walk(args, task, 0);
    for (int64_t row = 0; row < task.num_rows; ++row, walk.next()) {
      const bf16* from = static_cast<const bf16*>(args.q) + walk.place(args, task, args.q_stride, args.q_head_stride);
      bf16* to = queries_ + row / 16 * 16 * padded_ + row % 16 * 32;
      for (int64_t d = 0; d < padded_; d += 32, to += TILE) {
        const __mmask32 present = head_dim_ - d >= 32 ? 0xffffffffu : 0xffffu;
        _mm512_store_si512(to, _mm512_maskz_loadu_epi16(present, from + d));
      }
    }
  }
  ~AmxTiles() { _tile_release(); }

  void attend(const Tile& tile, const SplitUnits& units, float* results) {
    if (!is_finite_where_hidden(tile, units)) return attend_on_vectors(tile, units, results);
    if (tile.num_rows != configured_rows_) {
      configure_tiles(tile.num_rows, tile.num_rows);
      configured_rows_ = tile.num_rows;
    }
    const int last = tile.end_unit - 1;
    for (int r = 0; r < tile.num_rows; ++r) Vector::broadcast(-__builtin_inff()).store(greatest_[r]);
    int num_found = tile.first_unit;  // units whose maxima are known
    for (int u = tile.first_unit; u < tile.end_unit; u += 2) {
      if (u < last) {
        score<2>(tile, units, u);
      } else {
        score<1>(tile, units, u);
      }
      for (; num_found < u; ++num_found) find_greatest(tile, num_found);
    }
    for (; num_found < tile.end_unit; ++num_found) find_greatest(tile, num_found);
    find_peaks(tile, results);
    const int64_t num_tiles = head_dim_ / 16;
    weigh(tile, tile.first_unit);
    sum_all<true>(tile, units, 0, results);
    for (int r = 0; r < tile.num_rows; ++r) {
      if (!tile.spans[r].is_empty()) results[r * result_size(head_dim_) + 1] = Lanes::load(totals_[r]).sum();
    }
    for (int64_t first = SUM_TILES; first < num_tiles; first += SUM_TILES) sum_all<false>(tile, units, first, results);
  }

 private:
  // A weight of 0 times infinity is not 0. So if part of a unit is hidden from some row, all values of the unit must be
  // finite. If they are not, the tile is computed on the vector unit, which skips hidden values; results are
  // bit-identical.
  bool is_finite_where_hidden(const Tile& tile, const SplitUnits& units) const {
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      if (!tile.all_see(u) && !all_finite(static_cast<const bf16*>(units.values[u]), head_dim_ * UNIT)) return false;
    }
    return true;
  }

  static bool all_finite(const bf16* values, int64_t count) {
    const __m512i exponent = _mm512_set1_epi16(0x7f80);
    __mmask32 found = 0;
    for (int64_t i = 0; i < count; i += 32)
      found |= _mm512_cmpeq_epi16_mask(_mm512_and_si512(_mm512_loadu_si512(values + i), exponent), exponent);
    return found == 0;
  }

  __attribute__((noinline)) void attend_on_vectors(const Tile& tile, const SplitUnits& units, float* results) const {
    Bf16Tiles(args_, task_).attend(tile, units, results);
  }

  // Scores one unit, or two with independent chains of multiplications.
  template <int UNITS>
  void score(const Tile& tile, const SplitUnits& units, int unit) {
    const bf16* queries = queries_ + tile.first_row * padded_;
    const bf16* keys = static_cast<const bf16*>(units.keys[unit]);
    const bf16* next_keys = static_cast<const bf16*>(units.keys[unit + UNITS - 1]);
    const bf16* ahead = after_keys(tile, units, unit);
    const bf16* next_ahead = UNITS == 1 ? nullptr : after_keys(tile, units, unit + 1);
    const int64_t num_tiles = padded_ / 32;
    zero_sums<2 * UNITS>();
    for (int64_t t = 0; t < num_tiles; ++t) {
      _tile_loadd(0, queries + t * TILE, TILE_STRIDE);
      fetch_tile(tile_at(ahead, 2 * t));
      _tile_loadd(2, keys + t * TILE, TILE_STRIDE);
      _tile_dpbf16ps(4, 0, 2);
      fetch_tile(tile_at(ahead, 2 * t + 1));
      _tile_loadd(2, keys + (num_tiles + t) * TILE, TILE_STRIDE);
      _tile_dpbf16ps(5, 0, 2);
      if (UNITS == 1) continue;
      fetch_tile(tile_at(next_ahead, 2 * t));
      _tile_loadd(2, next_keys + t * TILE, TILE_STRIDE);
      _tile_dpbf16ps(6, 0, 2);
      fetch_tile(tile_at(next_ahead, 2 * t + 1));
      _tile_loadd(2, next_keys + (num_tiles + t) * TILE, TILE_STRIDE);
      _tile_dpbf16ps(7, 0, 2);
    }
    float* scores = scores_ + unit * SCORES;
    store_sums<2>(scores, UNIT * sizeof(float));
    if (UNITS == 1) return;
    _tile_stored(6, scores + SCORES, UNIT * sizeof(float));
    _tile_stored(7, scores + SCORES + 16, UNIT * sizeof(float));
  }

  // -- Prefetching: AHEAD units ahead, in the order in which they will be read: the keys of the split, then the values,
  // 64 dims at a time, then the keys of the next split. ---------------------------------------------------------------

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

  // Continues with the values where `ahead` is beyond the last unit of keys. Null if that is beyond the last values,
  // too.
  static const bf16* first_values(const Tile& tile, const SplitUnits& units, int ahead) {
    const int unit = ahead - tile.end_unit + tile.first_unit;
    return unit < tile.end_unit ? static_cast<const bf16*>(units.values[unit]) : nullptr;
  }

  // -- The softmax for the 16 rows and 32 tokens of a unit: `weigh` of attention_softmax.h, unit by unit -------------

  void find_greatest(const Tile& tile, int unit) {
    float* scores = scores_ + unit * SCORES;
    if (args_.softcap > 0) cap(tile, scores);
    const int token = unit * int(UNIT);
    if (tile.all_see(unit)) {
      for (int r = 0; r < tile.num_rows; ++r, scores += UNIT) {
        const __m512 left = _mm512_max_ps(_mm512_load_ps(greatest_[r]), _mm512_load_ps(scores));
        _mm512_store_ps(greatest_[r], _mm512_max_ps(left, _mm512_load_ps(scores + 16)));
      }
      return;
    }
    for (int r = 0; r < tile.num_rows; ++r, scores += UNIT) {
      __m512 greatest = _mm512_load_ps(greatest_[r]);
      for (int i = 0; i < UNIT; i += 16) {
        greatest = _mm512_mask_max_ps(greatest, visible(tile.spans[r], token + i), greatest,
                                      _mm512_load_ps(scores + i));
      }
      _mm512_store_ps(greatest_[r], greatest);
    }
  }

  void cap(const Tile& tile, float* scores) {
    const Softcap capped(args_.scale, args_.softcap);
    for (int i = 0; i < tile.num_rows * int(UNIT); i += 16) capped(Vector::load(scores + i)).store(scores + i);
  }

  void find_peaks(const Tile& tile, float* results) {
    factor_ = log2_factor(args_.scale, args_.softcap);
    for (int r = 0; r < tile.num_rows; ++r) {
      Lanes::zero().store(totals_[r]);
      if (tile.spans[r].is_empty()) continue;
      peaks_[r] = peak_of(Lanes::load(greatest_[r]).greatest(), factor_);
      results[r * result_size(head_dim_)] = peaks_[r];
    }
  }

  // Weights as tiles: [unit][16 rows][32 tokens]
  void weigh(const Tile& tile, int unit) {
    if (tile.all_see(unit)) {
      weigh_rows<false>(tile, unit);
    } else {
      weigh_rows<true>(tile, unit);
    }
  }

  template <bool IS_PARTIAL>
  void weigh_rows(const Tile& tile, int unit) {
    const int token = unit * int(UNIT);
    const float* scores = scores_ + unit * SCORES;
    bf16* to = weights_ + unit * TILE;
    const Vector factor = constant(factor_);
    for (int r = 0; r < tile.num_rows; ++r, scores += UNIT, to += UNIT) {
      const Vector minus_peak = constant(-peaks_[r]);
      __m512 left = Bf16Weight::of(Vector::load(scores), factor, minus_peak).value;
      __m512 right = Bf16Weight::of(Vector::load(scores + 16), factor, minus_peak).value;
      if (IS_PARTIAL) {
        left = _mm512_maskz_mov_ps(visible(tile.spans[r], token), left);
        right = _mm512_maskz_mov_ps(visible(tile.spans[r], token + 16), right);
      }
      _mm512_store_ps(totals_[r], _mm512_add_ps(_mm512_add_ps(_mm512_load_ps(totals_[r]), left), right));
      const __m512bh rounded = _mm512_cvtne2ps_pbh(right, left);
      memcpy(to, &rounded, sizeof rounded);
    }
  }

  // -- The weighted values --------------------------------------------------------------------------------------------

  // Sums up to 64 dims from 16 * first on. Before the first pass only the weights of the first unit are known; that
  // pass computes the others.
  template <bool IS_FIRST>
  void sum_all(const Tile& tile, const SplitUnits& units, int64_t first, float* results) {
    const int64_t num_tiles = head_dim_ / 16 - first;
    if (num_tiles == 1) return sum<IS_FIRST, 1>(tile, units, first, results);
    if (num_tiles == 2) return sum<IS_FIRST, 2>(tile, units, first, results);
    if (num_tiles == 3) return sum<IS_FIRST, 3>(tile, units, first, results);
    sum<IS_FIRST, 4>(tile, units, first, results);
  }

  template <bool IS_FIRST, int TILES>
  void sum(const Tile& tile, const SplitUnits& units, int64_t first, float* results) {
    zero_sums<TILES>();
    for (int u = tile.first_unit; u < tile.end_unit; ++u) {
      if (IS_FIRST && u + 1 < tile.end_unit) weigh(tile, u + 1);
      add_values<TILES>(u, static_cast<const bf16*>(units.values[u]) + first * TILE,
                        after_values(tile, units, u, first));
    }
    const int64_t size = result_size(head_dim_);
    float* to = results + 16 + first * 16;
    store_sums<TILES>(to, size * sizeof(float));
    // A unit that is hidden from a row adds 0 to its sums, which changes nothing except that -0 becomes 0. Adding 0 to
    // all sums makes that independent of the tile.
    for (int r = 0; r < tile.num_rows; ++r)
      for (int t = 0; t < TILES; ++t) {
        float* sums = to + r * size + t * 16;
        (Lanes::load(sums) + Lanes::zero()).store(sums);
      }
  }

  // Unrolled by hand because tile register numbers must be constants.
  template <int TILES>
  void add_values(int unit, const bf16* values, const bf16* ahead) {
    _tile_loadd(0, weights_ + unit * TILE, TILE_STRIDE);
    fetch_tile(ahead);
    _tile_loadd(2, values, TILE_STRIDE);
    _tile_dpbf16ps(4, 0, 2);
    if (TILES < 2) return;
    fetch_tile(tile_at(ahead, 1));
    _tile_loadd(2, values + TILE, TILE_STRIDE);
    _tile_dpbf16ps(5, 0, 2);
    if (TILES < 3) return;
    fetch_tile(tile_at(ahead, 2));
    _tile_loadd(2, values + 2 * TILE, TILE_STRIDE);
    _tile_dpbf16ps(6, 0, 2);
    if (TILES < 4) return;
    fetch_tile(tile_at(ahead, 3));
    _tile_loadd(2, values + 3 * TILE, TILE_STRIDE);
    _tile_dpbf16ps(7, 0, 2);
  }

  template <int TILES>
  static void zero_sums() {
    _tile_zero(4);
    if (TILES > 1) _tile_zero(5);
    if (TILES > 2) _tile_zero(6);
    if (TILES > 3) _tile_zero(7);
  }

  template <int TILES>
  static void store_sums(float* to, int64_t row_bytes) {
    _tile_stored(4, to, row_bytes);
    if (TILES > 1) _tile_stored(5, to + 16, row_bytes);
    if (TILES > 2) _tile_stored(6, to + 32, row_bytes);
    if (TILES > 3) _tile_stored(7, to + 48, row_bytes);
  }

  const ov_attention_args& args_;
  const AttentionTask& task_;
  const int64_t head_dim_, padded_;
  int configured_rows_ = 0;
  float factor_ = 0.0f;
  float peaks_[TILE_ROWS] = {};
  alignas(64) float greatest_[TILE_ROWS][16];
  alignas(64) float totals_[TILE_ROWS][16];
  alignas(64) bf16 queries_[TASK_ROWS * MAX_DIM];
  alignas(64) float scores_[SPLIT_UNITS * SCORES];
  alignas(64) bf16 weights_[TILE_ROWS * SPLIT];
};

}  // namespace

const AttentionKernel attention_bf16_amx = {attend_task<AmxTiles>, merge_task};

}  // namespace octavo
