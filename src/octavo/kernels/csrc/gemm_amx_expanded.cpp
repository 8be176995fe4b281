// Products with quantised weights on AMX. The weights are expanded to bf16 ahead of the tile unit.
//
// The operands are swapped compared with gemm_amx.cpp. A tile of weights is 16 columns of y, each a line of 32
// consecutive k, because the weights of a line share a scale; x is stored in pairs of k. So the sums are transposed.
// Multiplication is commutative, and the tile unit adds over k in the same order, so results are bit-identical to the
// bf16 product with widened weights.
//
//     x            [group of 16 rows][step][16 k-pairs][rows of the group][2]     a single row is used as it is
//     tile 0       weights: the left and then the right half of a column block
//     tile 2, 3    x of a group
//     tile 4 ...   sums, [16 columns][rows of the group]
//
// With up to 64 rows (`multiply_thin`, `multiply_halves`), each weight is expanded once, into a small ring buffer, and
// is loaded into a tile two steps later. With more rows (`multiply_wide`), a panel of a column block is expanded into
// memory that stays in the L1 cache, while the groups of rows are multiplied by the previous panel.
#include "amx.h"
#include "amx_expander.h"
#include "formats/all.h"
#include "gemm_amx.h"
#include "gemm_store.h"
#include "transpose.h"

namespace octavo {
namespace {

constexpr int64_t SUMS = HALF_COLUMNS * GROUP;  // of a tile

// -- x ----------------------------------------------------------------------------------------------------------------

constexpr int64_t PREPARE_STEPS = 32;  // per call of to_pairs

size_t paired_bytes(const Gemm& gemm) { return gemm.m == 1 ? 0 : size_t(gemm.m * gemm.k) * sizeof(bf16); }

int64_t num_paired_pieces(const Gemm& gemm) { return num_groups(gemm) * divided_up(gemm.k / BLOCK, PREPARE_STEPS); }

void to_pairs(const Gemm& gemm, int64_t piece, void* prepared) {
  const int64_t num_steps = gemm.k / BLOCK, num_pieces = divided_up(num_steps, PREPARE_STEPS);
  const int64_t group = piece / num_pieces, first = piece % num_pieces * PREPARE_STEPS;
  const int64_t end = at_most(first + PREPARE_STEPS, num_steps), num_rows = rows_of_group(gemm, group);
  const bf16* from = static_cast<const bf16*>(gemm.x) + group * GROUP * gemm.x_stride;
  bf16* to = static_cast<bf16*>(prepared) + group * GROUP * gemm.k + first * num_rows * BLOCK;
  const __mmask16 present = __mmask16((1u << num_rows) - 1);
  for (int64_t step = first; step < end; ++step) {
    __m512i lines[16];
    for (int64_t row = 0; row < GROUP; ++row) {
      lines[row] =
          row < num_rows ? _mm512_loadu_si512(from + row * gemm.x_stride + step * BLOCK) : _mm512_setzero_si512();
    }
    transpose(lines);
    for (const __m512i& pair : lines) {
      _mm512_mask_storeu_epi32(to, present, pair);
      to += num_rows * 2;
    }
  }
}

// A group of x from some step on.
struct Pairs {
  const bf16* x;
  int64_t row_bytes;  // to the next k-pair
  int64_t step() const { return row_bytes * GROUP / int64_t(sizeof(bf16)); }  // elements
};

inline Pairs pairs_at(const Gemm& gemm, int64_t group, int64_t step) {
  const int64_t num_rows = rows_of_group(gemm, group);
  return {static_cast<const bf16*>(gemm.x) + group * GROUP * gemm.k + step * num_rows * BLOCK, num_rows * 4};
}

// -- y ----------------------------------------------------------------------------------------------------------------

// Stores the sums of half a column block and a group, [16 columns][16 rows], to y.
void store_half(const Gemm& gemm, int64_t group, int64_t block, int half, const float* sums) {
  const FlushMode mode;  // for the bias
  const int64_t first_row = group * GROUP, num_rows = rows_of_group(gemm, group);
  const int64_t column = block * BLOCK + half * HALF_COLUMNS;
  alignas(64) float rows[SUMS];
  transpose_lines(sums, rows);
  if (!gemm.y_is_bf16 || column + HALF_COLUMNS > gemm.n) {
    // If the half is beyond the last column of y, there is nothing to store.
    for (int64_t row = 0; row < num_rows && column < gemm.n; ++row) {
      store_sums<true, HALF_COLUMNS>(gemm, first_row + row, column, rows + row * HALF_COLUMNS);
    }
    return;
  }
  const __m512 bias = gemm.bias == nullptr ? _mm512_setzero_ps() : _mm512_loadu_ps(gemm.bias + column);
  bf16* y = static_cast<bf16*>(gemm.y) + first_row * gemm.y_stride + column;
  for (int64_t row = 0; row < num_rows; ++row, y += gemm.y_stride) {
    __m512 values = _mm512_load_ps(rows + row * HALF_COLUMNS);
    if (gemm.bias != nullptr) values = _mm512_add_ps(values, bias);
    const __m256bh rounded = _mm512_cvtneps_pbh(values);
    memcpy(y, &rounded, sizeof rounded);
  }
}

inline void store_sums(const Gemm& gemm, int64_t group, int64_t block, const float* sums) {
  for (int half = 0; half < 2; ++half) store_half(gemm, group, block, half, sums + half * SUMS);
}

// -- Weights ----------------------------------------------------------------------------------------------------------

template <class Format>
inline const uint8_t* span_at(const Gemm& gemm, int64_t block, int64_t step) {
  return static_cast<const uint8_t*>(gemm.packed) + span_offset<Format>(gemm.k, block, step);
}

// Cache lines per step, including its share of the header.
template <class Format>
constexpr int64_t STEP_LINES = (SPAN_BYTES<Format> / SPAN_STEPS<Format> + LINE - 1) / LINE;

// -- Up to 32 rows ----------------------------------------------------------------------------------------------------
//
// A part is a column block. Weights are expanded two steps before they are multiplied, because a tile load stalls if
// its line is still in the store buffer. Half a step is expanded, then half a step multiplied, so that both units
// always have work.

constexpr int64_t STEPS_AHEAD = 2, RING = 4;

// Configures tiles with 16 rows of the given lengths. A length of 0 means that the tile is not used.
inline void configure(const int64_t (&row_bytes)[8]) {
  TileConfig config;
  for (int tile = 0; tile < 8; ++tile) config.set(tile, row_bytes[tile] > 0 ? 16 : 0, row_bytes[tile]);
  config.load();
}

// The tiles of a group of rows: x, and the sums of both halves of a column block. A macro because tile register numbers
// must be literals.
#define OCTAVO_GROUP_TILES(NAME, X, LEFT, RIGHT)         \
  struct NAME {                                          \
    static inline void zero() {                          \
      _tile_zero(LEFT);                                  \
      _tile_zero(RIGHT);                                 \
    }                                                    \
    static inline void load_sums(const float* sums) {    \
      _tile_loadd(LEFT, sums, LINE);                     \
      _tile_loadd(RIGHT, sums + SUMS, LINE);             \
    }                                                    \
    static inline void store_sums(float* sums) {         \
      _tile_stored(LEFT, sums, LINE);                    \
      _tile_stored(RIGHT, sums + SUMS, LINE);            \
    }                                                    \
    static inline void load_x(const Pairs& x) {          \
      _tile_loadd(X, x.x, x.row_bytes);                  \
    }                                                    \
    static inline void stream_x(const Pairs& x) {        \
      _tile_stream_loadd(X, x.x, x.row_bytes);           \
    }                                                    \
    static inline void multiply_left() {                 \
      _tile_dpbf16ps(LEFT, 0, X);                        \
    }                                                    \
    static inline void multiply_right() {                \
      _tile_dpbf16ps(RIGHT, 0, X);                       \
    }                                                    \
  }
OCTAVO_GROUP_TILES(FirstGroup, 2, 4, 5);
OCTAVO_GROUP_TILES(SecondGroup, 3, 6, 7);  // or the last group, with fewer rows
#undef OCTAVO_GROUP_TILES

template <class Format, int GROUPS>
__attribute__((noinline)) void multiply_thin(const Gemm& gemm, Parts& parts) {
  constexpr int64_t FETCH_BYTES = 12 << 10;
  constexpr int64_t STEP_BYTES = SPAN_BYTES<Format> / SPAN_STEPS<Format>;
  const int64_t num_steps = gemm.k / BLOCK, num_spans = gemm.k / Format::BLOCK_K;
  const int64_t block_bytes = num_spans * SPAN_BYTES<Format>;
  alignas(64) bf16 ring[RING][2 * HALF];
  alignas(64) float sums[2 * SUMS] = {};
  Expander<Format> expander;
  int64_t block = parts.claim();
  if (block < 0) return;
  const int64_t first = rows_of_group(gemm, 0) * 4, second = GROUPS == 2 ? rows_of_group(gemm, 1) * 4 : 0;
  configure({LINE, 0, first, second, first, first, second, second});
  const uint8_t* weights = span_at<Format>(gemm, block, 0);
  for (int64_t i = 0; i < FETCH_BYTES; i += LINE) prefetch(weights + i);
  expander.start(weights, num_spans);
  for (int64_t step = 0; step < STEPS_AHEAD; ++step) expander.step(ring[step]);
  int64_t slot = 0;
  while (block >= 0) {
    const int64_t next = parts.claim();
    const uint8_t* next_weights = next < 0 ? weights : span_at<Format>(gemm, next, 0);  // after the last: any address
    expander.then(next_weights);
    const intptr_t jump = (next_weights - weights) - block_bytes;
    const uint8_t *fetch = weights + FETCH_BYTES, *end = weights + block_bytes;
    Pairs x0 = pairs_at(gemm, 0, 0), x1 = pairs_at(gemm, GROUPS - 1, 0);
    FirstGroup::zero();
    if (GROUPS == 2) SecondGroup::zero();
    for (int64_t step = 0; step < num_steps; ++step, slot = (slot + 1) % RING) {
      const uint8_t* line = fetch + (fetch >= end ? jump : 0);
#pragma GCC unroll 18
      for (int64_t i = 0; i < STEP_LINES<Format>; ++i) prefetch(line + i * LINE);
      fetch += STEP_BYTES;
      const bf16* expanded = ring[slot];
      bf16* to = ring[(slot + STEPS_AHEAD) % RING];
      expander.half(0, to);
      FirstGroup::load_x(x0);
      _tile_loadd(0, expanded, LINE);
      FirstGroup::multiply_left();
      if (GROUPS == 2) {
        SecondGroup::load_x(x1);
        SecondGroup::multiply_left();
      }
      expander.half(1, to + HALF);
      expander.advance();
      _tile_loadd(0, expanded + HALF, LINE);
      FirstGroup::multiply_right();
      if (GROUPS == 2) SecondGroup::multiply_right();
      x0.x += x0.step();
      x1.x += x1.step();
      if (step + STEPS_AHEAD == num_steps - 1) expander.run_of(num_spans);  // it has just reached the next column block
    }
    FirstGroup::store_sums(sums);
    store_sums(gemm, 0, block, sums);
    if (GROUPS == 2) {
      SecondGroup::store_sums(sums);
      store_sums(gemm, 1, block, sums);
    }
    block = next;
    weights = next_weights;
  }
}

// -- Up to 64 rows ----------------------------------------------------------------------------------------------------
//
// With four groups of rows there are not enough tiles for the sums of both halves of a column block. So the halves are
// computed one after the other, and the second finds the weights in the L2 cache.

// Adds to the sums in tiles 4, 5, 6 and, with four groups, 7. The last group may have fewer rows and uses tile 3 for x.
template <int GROUPS>
inline void multiply_groups(const Pairs (&x)[GROUPS]) {
  _tile_loadd(2, x[0].x, x[0].row_bytes);
  _tile_dpbf16ps(4, 0, 2);
  _tile_loadd(2, x[1].x, x[1].row_bytes);
  _tile_dpbf16ps(5, 0, 2);
  if constexpr (GROUPS == 3) {
    _tile_loadd(3, x[2].x, x[2].row_bytes);
    _tile_dpbf16ps(6, 0, 3);
  } else {
    _tile_loadd(2, x[2].x, x[2].row_bytes);
    _tile_dpbf16ps(6, 0, 2);
    _tile_loadd(3, x[3].x, x[3].row_bytes);
    _tile_dpbf16ps(7, 0, 3);
  }
}

template <int GROUPS>
inline void zero_groups() {
  _tile_zero(4);
  _tile_zero(5);
  _tile_zero(6);
  if constexpr (GROUPS == 4) _tile_zero(7);
}

template <int GROUPS>
void store_groups(const Gemm& gemm, int64_t block, int half) {
  alignas(64) float sums[GROUPS][SUMS] = {};
  _tile_stored(4, sums[0], LINE);
  _tile_stored(5, sums[1], LINE);
  _tile_stored(6, sums[2], LINE);
  if constexpr (GROUPS == 4) _tile_stored(7, sums[3], LINE);
  for (int group = 0; group < GROUPS; ++group) store_half(gemm, group, block, half, sums[group]);
}

template <class Format, int GROUPS>
__attribute__((noinline)) void multiply_half(const Gemm& gemm, int64_t block, int half, const uint8_t* fetch) {
  const int64_t num_steps = gemm.k / BLOCK;
  alignas(64) bf16 ring[RING][HALF];
  Expander<Format> expander;
  expander.start(span_at<Format>(gemm, block, 0), gemm.k / Format::BLOCK_K);
  const auto expand = [&](int64_t step) {
    expander.half(half, ring[step % RING]);
    expander.advance();
  };
  for (int64_t step = 0; step < STEPS_AHEAD; ++step) expand(step);
  Pairs x[GROUPS];
  for (int group = 0; group < GROUPS; ++group) x[group] = pairs_at(gemm, group, 0);
  zero_groups<GROUPS>();
  for (int64_t step = 0; step < num_steps; ++step) {
    // Each half prefetches half of the next column block.
    for (int64_t i = 0; i < (STEP_LINES<Format> + 1) / 2; ++i, fetch += LINE) prefetch(fetch);
    expand(step + STEPS_AHEAD);
    _tile_loadd(0, ring[step % RING], LINE);
    multiply_groups<GROUPS>(x);
    for (Pairs& pairs : x) pairs.x += pairs.step();
  }
  store_groups<GROUPS>(gemm, block, half);
}

template <class Format, int GROUPS>
void multiply_halves(const Gemm& gemm, Parts& parts) {
  const int64_t last = rows_of_group(gemm, GROUPS - 1) * 4;
  configure({LINE, 0, LINE, last, LINE, LINE, GROUPS == 3 ? last : LINE, GROUPS == 3 ? 0 : last});
  for (int64_t block = parts.claim(); block >= 0;) {
    const int64_t next = parts.claim();
    const uint8_t* fetch = span_at<Format>(gemm, next < 0 ? block : next, 0);
    const int64_t half_bytes = gemm.k / BLOCK * ((STEP_LINES<Format> + 1) / 2) * LINE;
    for (int half = 0; half < 2; ++half) multiply_half<Format, GROUPS>(gemm, block, half, fetch + half * half_bytes);
    block = next;
  }
}

// -- More rows --------------------------------------------------------------------------------------------------------
//
// A part is a range of column blocks and a range of groups of rows:
//
//     for each panel of k                      x of the panel stays in the L2 cache
//       for each column block of the part      its weights were expanded while the previous panel was multiplied
//         for each group of the part           multiplies, expands a share of the next panel, prefetches a share of the
//                                              panel after that

constexpr int64_t PANEL_STEPS = 12;                // 24 KB of expanded weights: half an L1 cache of 48 KB
constexpr int64_t MAX_GROUPS = 48;                 // of a part
constexpr int64_t MAX_X_BYTES = int64_t(3) << 19;  // 1.5 MB of x in an L2 cache of 2 MB

struct Plan {
  int64_t num_steps, panel_steps;
  int64_t part_groups, part_blocks;
  int64_t row_parts, column_parts;
};

Plan plan_of(const Gemm& gemm) {
  Plan plan = {};
  plan.num_steps = gemm.k / BLOCK;
  plan.panel_steps = even_piece(plan.num_steps, PANEL_STEPS);
  plan.part_groups = even_piece(num_groups(gemm), MAX_GROUPS);
  plan.part_blocks = plan.part_groups * GROUP * gemm.k * int64_t(sizeof(bf16)) <= MAX_X_BYTES ? 1 : 12;
  plan.part_blocks = even_piece(blocks_of(gemm.n), plan.part_blocks);
  plan.row_parts = divided_up(num_groups(gemm), plan.part_groups);
  plan.column_parts = divided_up(blocks_of(gemm.n), plan.part_blocks);
  return plan;
}

struct WideMemory {
  alignas(64) bf16 panels[2][PANEL_STEPS * 2 * HALF];
};

// One panel of one column block. The panels of a part are ordered by k, and for equal k by column block.
struct Panel {
  int64_t block, first_step, num_steps;
};

inline Panel panel_after(const Plan& plan, const Panel& panel, int64_t first_block, int64_t end_block) {
  const bool is_last_block = panel.block + 1 == end_block;
  const int64_t step = is_last_block ? panel.first_step + panel.num_steps : panel.first_step;
  return {is_last_block ? first_block : panel.block + 1, step, at_most(plan.panel_steps, plan.num_steps - step)};
}

// Work that is interleaved with the multiplications of a panel: expanding the next panel and prefetching the one after
// that.
template <class Format>
struct SideWork {
  Expander<Format>& expander;
  bf16* to;             // null: nothing to expand
  int64_t left, total;  // steps to expand
  int64_t credit, num_multiplied;
  const uint8_t* fetch;
  int64_t fetch_lines;  // per step

  inline void step() {
    for (int64_t i = 0; i < fetch_lines; ++i, fetch += LINE) prefetch(fetch);
    credit += total;
    if (credit >= num_multiplied && left > 0) {
      credit -= num_multiplied;
      expand();
    }
  }
  inline void expand() {
    expander.step(to);
    to += 2 * HALF;
    --left;
  }
};

template <class Format, class Tiles>
__attribute__((noinline)) void multiply_group(Pairs x, const bf16* weights, const Panel& panel, float* sums,
                                              SideWork<Format>& side_work) {
  if (panel.first_step == 0) {
    Tiles::zero();
  } else {
    Tiles::load_sums(sums);
  }
  for (int64_t step = 0; step < panel.num_steps; ++step, x.x += x.step(), weights += 2 * HALF) {
    Tiles::stream_x(x);
    _tile_loadd(0, weights, LINE);
    Tiles::multiply_left();
    _tile_loadd(0, weights + HALF, LINE);
    Tiles::multiply_right();
    side_work.step();
  }
  Tiles::store_sums(sums);
}

template <class Format>
void multiply_part(const Gemm& gemm, const Plan& plan, int64_t part, WideMemory& memory, float* sums) {
  const int64_t first_group = part / plan.column_parts * plan.part_groups;
  const int64_t end_group = at_most(first_group + plan.part_groups, num_groups(gemm));
  const int64_t first_block = part % plan.column_parts * plan.part_blocks;
  const int64_t end_block = at_most(first_block + plan.part_blocks, blocks_of(gemm.n));
  const int64_t groups = end_group - first_group;
  Expander<Format> expander;
  const auto start = [&](const Panel& panel) {
    expander.start(span_at<Format>(gemm, panel.block, panel.first_step), INT64_MAX / 2,
                   panel.first_step % SPAN_STEPS<Format>);
  };
  Panel panel = {first_block, 0, at_most(plan.panel_steps, plan.num_steps)};
  start(panel);
  int turn = 0;
  for (int64_t step = 0; step < panel.num_steps; ++step) expander.step(memory.panels[turn] + step * 2 * HALF);
  while (panel.num_steps > 0) {
    const Panel next = panel_after(plan, panel, first_block, end_block);
    const Panel after = next.num_steps > 0 ? panel_after(plan, next, first_block, end_block) : next;
    const Panel& fetched = after.num_steps > 0 ? after : panel;  // at the end: any panel
    if (next.num_steps > 0) start(next);
    const int64_t num_multiplied = groups * panel.num_steps;
    SideWork<Format> side_work = {expander, memory.panels[turn ^ 1], next.num_steps, next.num_steps, 0, num_multiplied,
                                  span_at<Format>(gemm, fetched.block, fetched.first_step),
                                  divided_up(plan.panel_steps * STEP_LINES<Format>, num_multiplied)};
    for (int64_t group = first_group; group < end_group; ++group) {
      float* own = sums + ((panel.block - first_block) * groups + group - first_group) * 2 * SUMS;
      const Pairs x = pairs_at(gemm, group, panel.first_step);
      if (rows_of_group(gemm, group) == GROUP) {
        multiply_group<Format, FirstGroup>(x, memory.panels[turn], panel, own, side_work);
      } else {
        multiply_group<Format, SecondGroup>(x, memory.panels[turn], panel, own, side_work);
      }
      if (panel.first_step + panel.num_steps == plan.num_steps) {
        store_sums(gemm, group, panel.block, own);
      }
    }
    while (side_work.left > 0) side_work.expand();
    turn ^= 1;
    panel = next;
  }
}

template <class Format>
void multiply_wide(const Gemm& gemm, Parts& parts, void* worker_memory) {
  const Plan plan = plan_of(gemm);
  WideMemory& memory = *static_cast<WideMemory*>(worker_memory);
  float* sums = reinterpret_cast<float*>(static_cast<char*>(worker_memory) + sizeof(WideMemory));
  const int64_t last = rows_of_group(gemm, num_groups(gemm) - 1) * 4;
  configure({LINE, 0, LINE, last, LINE, LINE, last, last});
  for (int64_t part = parts.claim(); part >= 0; part = parts.claim()) {
    multiply_part<Format>(gemm, plan, part, memory, sums);
  }
}

// Scales are read up to two steps before they are used to expand weights, which is two steps before the multiplication.
// With fewer steps in k, scales would be read before the next column block is known.
constexpr int64_t MIN_STEPS = STEPS_AHEAD + 3;

bool is_thin(const Gemm& gemm) { return gemm.m <= 4 * GROUP && gemm.k / BLOCK >= MIN_STEPS; }

int64_t num_parts(const Gemm& gemm) {
  if (is_thin(gemm)) return blocks_of(gemm.n);
  const Plan plan = plan_of(gemm);
  return plan.row_parts * plan.column_parts;
}

size_t worker_bytes(const Gemm& gemm) {
  if (is_thin(gemm)) return 0;
  const Plan plan = plan_of(gemm);
  return sizeof(WideMemory) + size_t(plan.part_groups * plan.part_blocks * 2 * SUMS) * sizeof(float);
}

template <class Format>
void multiply(const Gemm& gemm, Parts& parts, void* worker_memory) {
  const IeeeMode mode;  // for the expansion; the tile unit always flushes
  if (!is_thin(gemm)) {
    multiply_wide<Format>(gemm, parts, worker_memory);
  } else if (gemm.m <= GROUP) {
    multiply_thin<Format, 1>(gemm, parts);
  } else if (gemm.m <= 2 * GROUP) {
    multiply_thin<Format, 2>(gemm, parts);
  } else if (gemm.m <= 3 * GROUP) {
    multiply_halves<Format, 3>(gemm, parts);
  } else {
    multiply_halves<Format, 4>(gemm, parts);
  }
  _tile_release();
}

template <class... Formats>
constexpr FormatKernels kernels_of(FormatList<Formats...>) {
  return {{{paired_bytes, num_paired_pieces, to_pairs, worker_bytes, num_parts, multiply<Formats>}...}};
}

}  // namespace

const FormatKernels gemm_formats_amx = kernels_of(AllFormats{});

}  // namespace octavo
