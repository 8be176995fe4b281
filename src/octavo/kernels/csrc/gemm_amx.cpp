// The bf16 product on AMX.
//
// The inner loop multiplies a group of 16 rows by a column block of 32 columns, 32 k at a time (one step):
//
//                     weights: one step of a column block is two tiles, 2 KB, contiguous in the packed form
//                     +--------+--------+
//                     |  left  | right  |  32 k         both are loaded into tile 2, one after the other
//            32 k     +--------+--------+
//          +--------+ +--------+--------+
//     x    | tile 0 | | tile 4 | tile 5 |  16 rows      the sums
//          +--------+ +--------+--------+
//          | tile 1 | | tile 6 | tile 7 |  the second of two groups, or a last group with fewer rows
//          +--------+ +--------+--------+
//
// Two multiplications (32 cycles of the tile unit) need three tile loads (24 cycles, from the L1 cache). More sums
// would need fewer loads, but also more tiles; amx.h explains why few tiles are better.
//
// With up to 32 rows (decoding) every weight is used once, and the product is bound by memory: `multiply_thin` reads
// the weights sequentially and prefetches. With more rows it is bound by the tile unit: `multiply_wide` divides k into
// panels, so that a panel of one column block (36 KB) stays in the L1 cache while all groups are multiplied by it, and
// only x comes from the L2 cache. The sums of a group are stored at the end of a panel and loaded again at the start of
// the next. They are floats both in memory and in the tiles, so an element is summed over k in the same order, by the
// same instructions, as if they had stayed in the tiles.
//
// The operand that is not reused soon is loaded with a streaming load (weights in the thin loop, x in the wide loop).
// Without it x evicts the weights from the L1 cache, and the wide loop takes 1.4 times as long.
#include "amx.h"
#include "gemm_amx.h"
#include "gemm_store.h"

namespace octavo {
namespace {

constexpr int64_t STEP = 2 * 16 * 32;    // weights in one step of a column block: two tiles
constexpr int64_t STEP_LINES = STEP * 2 / LINE;
constexpr int64_t SUMS = GROUP * BLOCK;  // sums of a group and a column block: two tiles, one after the other

// -- x ----------------------------------------------------------------------------------------------------------------
// A tile is loaded from 16 rows. If their distance is a power of two, or near it, they compete for a few cache sets. So
// x is used as it is only if the distance between rows is an odd number of cache lines. Otherwise it is copied into the
// order in which it is read: [m / 16][k / 32][rows of the group, up to 16][32 k].

// A group of x at some step.
struct Rows {
  const bf16* x;
  int64_t step;       // elements to the next step
  int64_t row_bytes;  // to the next row
};

// For a group beyond the last, the result points to memory that is never read.
inline Rows rows_at(const Gemm& gemm, int64_t group, int64_t step) {
  const bf16* x = static_cast<const bf16*>(gemm.x);
  if (!gemm.x_is_prepared) {
    return {x + group * GROUP * gemm.x_stride + step * BLOCK, BLOCK, gemm.x_stride * int64_t(sizeof(bf16))};
  }
  const int64_t step_size = rows_of_group(gemm, group) * BLOCK;
  return {x + group * GROUP * blocks_of(gemm.k) * BLOCK + step * step_size, step_size, LINE};
}

constexpr int64_t PREPARE_STEPS = 32;  // per call of to_groups

int64_t num_group_pieces(const Gemm& gemm) {
  return num_groups(gemm) * divided_up(blocks_of(gemm.k), PREPARE_STEPS);
}

void to_groups(const Gemm& gemm, int64_t piece, void* prepared) {
  const int64_t num_steps = blocks_of(gemm.k), num_pieces = divided_up(num_steps, PREPARE_STEPS);
  const int64_t group = piece / num_pieces, first = piece % num_pieces * PREPARE_STEPS;
  const int64_t end = at_most(first + PREPARE_STEPS, num_steps);
  const int64_t num_rows = rows_of_group(gemm, group);
  const bf16* from = static_cast<const bf16*>(gemm.x) + group * GROUP * gemm.x_stride;
  bf16* to = static_cast<bf16*>(prepared) + (group * GROUP * num_steps + first * num_rows) * BLOCK;
  for (int64_t step = first; step < end; ++step) {
    const int64_t left = gemm.k - step * BLOCK;
    const __mmask32 present = left >= BLOCK ? 0xffffffffu : (1u << left) - 1;
    for (int64_t row = 0; row < num_rows; ++row, to += BLOCK) {
      _mm512_storeu_si512(to, _mm512_maskz_loadu_epi16(present, from + row * gemm.x_stride + step * BLOCK));
    }
  }
}

// -- Prefetching ------------------------------------------------------------------------------------------------------

inline void prefetch_lines(const char* from, int64_t num_lines) {
#pragma GCC unroll 4
  for (int64_t i = 0; i < num_lines; ++i) prefetch(from + i * LINE);
}

// What a loop over k prefetches: `lines_per_step` consecutive lines at each step.
struct Ahead {
  const char* from;
  int64_t lines_per_step;
};

inline Ahead ahead(const bf16* from, int64_t lines_per_step) {
  return {reinterpret_cast<const char*>(from), from == nullptr ? 0 : lines_per_step};
}

// Returns share number `share` of the prefetches for a later loop of `num_steps` steps that reads from `from` on.
inline Ahead share_of(const bf16* from, int64_t num_steps, int64_t lines_of_step, int64_t share, int64_t num_shares) {
  const int64_t lines = divided_up(lines_of_step, num_shares);
  return ahead(from == nullptr ? nullptr : from + share * num_steps * lines * (LINE / 2), lines);
}

// -- From the tiles to y ----------------------------------------------------------------------------------------------

// Results that are still to be rounded and stored. This is done during the following multiplications, two rows at each
// step: lines of y are rarely in the cache, and many stores at once would stall all later instructions.
struct PendingStore {
  const float* sums = nullptr;  // row-major
  const float* bias = nullptr;  // of the column block, or null
  bf16* y = nullptr;
  int64_t y_stride = 0;
  int64_t num_rows = 0;
};

// `store_row_flushed` for a complete column block of bf16, with the instruction that rounds 32 floats at once.
inline void write_row(PendingStore& pending) {
  __m512 left = _mm512_load_ps(pending.sums), right = _mm512_load_ps(pending.sums + 16);
  if (pending.bias != nullptr) {
    left = _mm512_add_ps(left, _mm512_loadu_ps(pending.bias));
    right = _mm512_add_ps(right, _mm512_loadu_ps(pending.bias + 16));
  }
  const __m512bh rounded = _mm512_cvtne2ps_pbh(right, left);
  memcpy(pending.y, &rounded, sizeof rounded);
  pending.sums += BLOCK;
  pending.y += pending.y_stride;
  --pending.num_rows;
}

inline void write_all(PendingStore pending) {
  while (pending.num_rows > 0) write_row(pending);
}

// The state of a thread outside the tile registers.
struct Worker {
  alignas(64) float results[2 * SUMS];  // sums of the pending store
  PendingStore pending;
};

// Which groups of rows in the drawing above a loop uses.
enum class Tiles { FIRST, SECOND, BOTH };
constexpr bool has_first(Tiles tiles) { return tiles != Tiles::SECOND; }
constexpr bool has_second(Tiles tiles) { return tiles != Tiles::FIRST; }

// Moves the finished sums of a column block and one or two groups from the tiles to `pending`, or directly to y if it
// is not bf16 or the column block is incomplete.
template <Tiles TILES>
inline void take_results(const Gemm& gemm, int64_t group, int64_t block, Worker& worker) {
  write_all(worker.pending);
  constexpr int64_t ROW_BYTES = BLOCK * sizeof(float);
  if (has_first(TILES)) {
    _tile_stored(4, worker.results, ROW_BYTES);
    _tile_stored(5, worker.results + 16, ROW_BYTES);
  }
  if (has_second(TILES)) {
    float* second = worker.results + (has_first(TILES) ? SUMS : 0);
    _tile_stored(6, second, ROW_BYTES);
    _tile_stored(7, second + 16, ROW_BYTES);
  }
  const int64_t first_row = group * GROUP, max_rows = TILES == Tiles::BOTH ? 2 * GROUP : GROUP;
  const int64_t num_rows = at_most(gemm.m - first_row, max_rows);
  if (gemm.y_is_bf16 && (block + 1) * BLOCK <= gemm.n) {
    worker.pending = {worker.results, gemm.bias == nullptr ? nullptr : gemm.bias + block * BLOCK,
                      static_cast<bf16*>(gemm.y) + first_row * gemm.y_stride + block * BLOCK, gemm.y_stride, num_rows};
  } else {
    worker.pending.num_rows = 0;
    for (int64_t row = 0; row < num_rows; ++row) {
      store_row_flushed(gemm, first_row + row, block, worker.results + row * BLOCK);
    }
  }
}

// -- The inner loop ---------------------------------------------------------------------------------------------------

// The operand that is loaded with streaming loads.
enum class Streaming { X, WEIGHTS };

// A macro because tile register numbers must be literals.
#define OCTAVO_LOAD(tile, from, row_bytes, is_streaming) \
  do {                                                   \
    if (is_streaming) {                                  \
      _tile_stream_loadd(tile, from, row_bytes);         \
    } else {                                             \
      _tile_loadd(tile, from, row_bytes);                \
    }                                                    \
  } while (false)

template <Tiles TILES, Streaming STREAMING>
inline void multiply_steps(Rows first, Rows second, const bf16* weights, int64_t num_steps, Ahead weights_ahead,
                           Ahead x_ahead, Worker& worker) {
  constexpr bool X_STREAMS = STREAMING == Streaming::X, WEIGHTS_STREAM = !X_STREAMS;
  PendingStore pending = worker.pending;  // a local copy stays in registers
  for (int64_t step = 0; step < num_steps; ++step, weights += STEP) {
    if (has_first(TILES)) OCTAVO_LOAD(0, first.x, first.row_bytes, X_STREAMS);
    OCTAVO_LOAD(2, weights, LINE, WEIGHTS_STREAM);
    if (has_first(TILES)) _tile_dpbf16ps(4, 0, 2);
    if (has_second(TILES)) OCTAVO_LOAD(1, second.x, second.row_bytes, X_STREAMS);
    if (has_second(TILES)) _tile_dpbf16ps(6, 1, 2);
    OCTAVO_LOAD(2, weights + STEP / 2, LINE, WEIGHTS_STREAM);
    if (has_first(TILES)) _tile_dpbf16ps(5, 0, 2);
    if (has_second(TILES)) _tile_dpbf16ps(7, 1, 2);
    first.x += first.step;
    second.x += second.step;
    prefetch_lines(weights_ahead.from, weights_ahead.lines_per_step);
    prefetch_lines(x_ahead.from, x_ahead.lines_per_step);
    weights_ahead.from += weights_ahead.lines_per_step * LINE;
    x_ahead.from += x_ahead.lines_per_step * LINE;
    if (pending.num_rows >= 2) {
      write_row(pending);
      write_row(pending);
    }
  }
  worker.pending = pending;
}

template <Tiles TILES>
inline void zero_sums() {
  if (has_first(TILES)) {
    _tile_zero(4);
    _tile_zero(5);
  }
  if (has_second(TILES)) {
    _tile_zero(6);
    _tile_zero(7);
  }
}

// Loads the sums of one group.
template <Tiles TILES>
inline void load_sums(const float* sums) {
  static_assert(TILES != Tiles::BOTH);
  if (TILES == Tiles::FIRST) {
    _tile_loadd(4, sums, LINE);
    _tile_loadd(5, sums + SUMS / 2, LINE);
  } else {
    _tile_loadd(6, sums, LINE);
    _tile_loadd(7, sums + SUMS / 2, LINE);
  }
}

template <Tiles TILES>
inline void store_sums(float* sums) {
  static_assert(TILES != Tiles::BOTH);
  if (TILES == Tiles::FIRST) {
    _tile_stored(4, sums, LINE);
    _tile_stored(5, sums + SUMS / 2, LINE);
  } else {
    _tile_stored(6, sums, LINE);
    _tile_stored(7, sums + SUMS / 2, LINE);
  }
}

inline const bf16* weights_at(const Gemm& gemm, int64_t block, int64_t step) {
  return static_cast<const bf16*>(gemm.packed) + (block * blocks_of(gemm.k) + step) * STEP;
}

// -- Up to 32 rows: a part is a column block --------------------------------------------------------------------------

constexpr int64_t STEPS_AHEAD = 8;  // 16 KB: the number of lines in flight that full memory bandwidth needs

template <Tiles TILES>
void multiply_thin(const Gemm& gemm, Parts& parts) {
  const int64_t num_steps = blocks_of(gemm.k), steps_ahead = at_most(STEPS_AHEAD, num_steps);
  const int64_t own_steps = num_steps - steps_ahead;  // steps that prefetch from their own column block
  Worker worker;
  int64_t block = parts.claim();
  if (block < 0) return;
  prefetch_lines(reinterpret_cast<const char*>(weights_at(gemm, block, 0)), steps_ahead * STEP_LINES);
  configure_tiles(int(rows_of_group(gemm, 0)), int(TILES == Tiles::BOTH ? rows_of_group(gemm, 1) : GROUP));
  while (block >= 0) {
    const int64_t next_block = parts.claim();
    const bf16* weights = weights_at(gemm, block, 0);
    const bf16* next = next_block < 0 ? nullptr : weights_at(gemm, next_block, 0);
    zero_sums<TILES>();
    multiply_steps<TILES, Streaming::WEIGHTS>(rows_at(gemm, 0, 0), rows_at(gemm, 1, 0), weights, own_steps,
                                              ahead(weights + steps_ahead * STEP, STEP_LINES), ahead(nullptr, 0),
                                              worker);
    multiply_steps<TILES, Streaming::WEIGHTS>(rows_at(gemm, 0, own_steps), rows_at(gemm, 1, own_steps),
                                              weights + own_steps * STEP, steps_ahead, ahead(next, STEP_LINES),
                                              ahead(nullptr, 0), worker);
    take_results<TILES>(gemm, 0, block, worker);
    block = next_block;
  }
  write_all(worker.pending);
}

// -- More rows: a part is a rectangle of y ----------------------------------------------------------------------------
//
//     for each panel of k                      x of the panel stays in the L2 cache
//       for each column block of the part      weights of the panel and column block stay in the L1 cache
//         for each group of the part           prefetches its share of the next panel's weights and of its own next x
//
// If all k of x fit into the L2 cache beside the other data, a part is one column block wide and x stays there for the
// next part. Otherwise a part is a square, so that x and the weights are read equally often from beyond the L2 cache.

constexpr int64_t MAX_PANEL_STEPS = 18;            // 36 KB of weights: three quarters of an L1 cache of 48 KB
constexpr int64_t MAX_X_BYTES = int64_t(1) << 20;  // 1 MB of x in an L2 cache of 2 MB
constexpr int64_t MIN_GROUPS = 16;                 // with fewer rows a pass over the weights is bound by memory
constexpr int64_t SQUARE = 384;                    // rows and columns of a square part

struct Plan {
  int64_t num_steps, panel_steps;  // of all k and of a panel
  int64_t num_groups, part_groups;
  int64_t num_blocks, part_blocks;
  int64_t parts_per_row;  // number of parts side by side

  int64_t num_parts() const { return divided_up(num_groups, part_groups) * parts_per_row; }
};

Plan plan_of(const Gemm& gemm) {
  Plan plan = {};
  plan.num_steps = blocks_of(gemm.k);
  plan.num_groups = num_groups(gemm);
  plan.num_blocks = blocks_of(gemm.n);
  plan.panel_steps = even_piece(plan.num_steps, MAX_PANEL_STEPS);
  const int64_t groups_in_cache = MAX_X_BYTES / (GROUP * plan.num_steps * LINE);
  const bool stays = groups_in_cache >= MIN_GROUPS || groups_in_cache >= plan.num_groups;
  plan.part_groups = even_piece(plan.num_groups, stays ? groups_in_cache : SQUARE / GROUP);
  plan.part_blocks = stays ? 1 : even_piece(plan.num_blocks, SQUARE / BLOCK);
  plan.parts_per_row = divided_up(plan.num_blocks, plan.part_blocks);
  return plan;
}

// Returns the size of the copy of x, or 0 if x is used as it is. If a part is several column blocks wide, x is
// prefetched, which requires the order of the copy.
size_t grouped_bytes(const Gemm& gemm) {
  const int64_t row_bytes = gemm.x_stride * int64_t(sizeof(bf16));
  const bool is_spread = row_bytes % (2 * LINE) == LINE && reinterpret_cast<uintptr_t>(gemm.x) % LINE == 0;
  if (is_spread && gemm.k % BLOCK == 0 && plan_of(gemm).part_blocks == 1) return 0;
  return size_t(gemm.m * blocks_of(gemm.k) * LINE);
}

struct Part {
  int64_t first_group, end_group, first_block, end_block;
};

inline Part part_of(const Plan& plan, int64_t number) {
  const int64_t group = number / plan.parts_per_row * plan.part_groups;
  const int64_t block = number % plan.parts_per_row * plan.part_blocks;
  return {group, at_most(group + plan.part_groups, plan.num_groups), block,
          at_most(block + plan.part_blocks, plan.num_blocks)};
}

// Steps [first_step, end_step) of a column block.
struct Panel {
  int64_t block, first_step, end_step;
  const bf16* next;  // the weights of the next panel, or null
  bool is_last;      // of the column block
};

// Not inlined: two copies of the loop in one function would compete for registers.
template <Tiles TILES>
__attribute__((noinline)) void multiply_group(const Gemm& gemm, const Part& part, const Panel& panel, int64_t group,
                                              float* sums, Worker& worker) {
  const int64_t num_steps = panel.end_step - panel.first_step, num_blocks = part.end_block - part.first_block;
  const Rows rows = rows_at(gemm, group, panel.first_step);
  const bf16* next_x = num_blocks == 1 || panel.is_last ? nullptr : rows.x + num_steps * rows.step;
  if (panel.first_step == 0) {
    zero_sums<TILES>();
  } else {
    load_sums<TILES>(sums);
  }
  multiply_steps<TILES, Streaming::X>(
      rows, rows, weights_at(gemm, panel.block, panel.first_step), num_steps,
      share_of(panel.next, num_steps, STEP_LINES, group - part.first_group, part.end_group - part.first_group),
      share_of(next_x, num_steps, rows.step / BLOCK, panel.block - part.first_block, num_blocks), worker);
  if (panel.is_last) {
    take_results<TILES>(gemm, group, panel.block, worker);
  } else {
    store_sums<TILES>(sums);
  }
}

// Multiplies all groups of the part. `sums` are those of the column block.
void multiply_panel(const Gemm& gemm, const Part& part, const Panel& panel, float* sums, Worker& worker) {
  for (int64_t group = part.first_group; group < part.end_group; ++group, sums += SUMS) {
    if (rows_of_group(gemm, group) == GROUP) {
      multiply_group<Tiles::FIRST>(gemm, part, panel, group, sums, worker);
    } else {
      multiply_group<Tiles::SECOND>(gemm, part, panel, group, sums, worker);
    }
  }
}

void multiply_part(const Gemm& gemm, const Plan& plan, const Part& part, const bf16* next_part, float* sums,
                   Worker& worker) {
  const int64_t sums_of_block = (part.end_group - part.first_group) * SUMS;
  for (int64_t step = 0; step < plan.num_steps; step += plan.panel_steps) {
    const int64_t end_step = at_most(step + plan.panel_steps, plan.num_steps);
    for (int64_t block = part.first_block; block < part.end_block; ++block) {
      const bf16* next = block + 1 < part.end_block ? weights_at(gemm, block + 1, step)
                         : end_step < plan.num_steps ? weights_at(gemm, part.first_block, end_step)
                                                     : next_part;
      const Panel panel = {block, step, end_step, next, end_step == plan.num_steps};
      multiply_panel(gemm, part, panel, sums + (block - part.first_block) * sums_of_block, worker);
    }
  }
}

void multiply_wide(const Gemm& gemm, Parts& parts, float* sums) {
  const Plan plan = plan_of(gemm);
  Worker worker;
  int64_t number = parts.claim();
  if (number < 0) return;
  const bf16* weights = weights_at(gemm, part_of(plan, number).first_block, 0);
  prefetch_lines(reinterpret_cast<const char*>(weights), plan.panel_steps * STEP_LINES);
  configure_tiles(GROUP, int(rows_of_group(gemm, plan.num_groups - 1)));
  while (number >= 0) {
    const int64_t next_number = parts.claim();
    const bf16* next = next_number < 0 ? nullptr : weights_at(gemm, part_of(plan, next_number).first_block, 0);
    multiply_part(gemm, plan, part_of(plan, number), next, sums, worker);
    number = next_number;
  }
  write_all(worker.pending);
}

bool is_thin(const Gemm& gemm) { return gemm.m <= 2 * GROUP; }

int64_t num_parts(const Gemm& gemm) { return is_thin(gemm) ? blocks_of(gemm.n) : plan_of(gemm).num_parts(); }

size_t worker_bytes(const Gemm& gemm) {
  if (is_thin(gemm)) return 0;
  const Plan plan = plan_of(gemm);
  return plan.panel_steps == plan.num_steps ? 0 : size_t(plan.part_groups * plan.part_blocks * SUMS) * sizeof(float);
}

void multiply(const Gemm& gemm, Parts& parts, void* worker_memory) {
  const FlushMode mode;  // for the bias; the tile unit always flushes
  if (gemm.m <= GROUP) {
    multiply_thin<Tiles::FIRST>(gemm, parts);
  } else if (is_thin(gemm)) {
    multiply_thin<Tiles::BOTH>(gemm, parts);
  } else {
    multiply_wide(gemm, parts, static_cast<float*>(worker_memory));
  }
  _tile_release();
}

}  // namespace

const GemmKernel gemm_bf16_amx = {grouped_bytes, num_group_pieces, to_groups, worker_bytes, num_parts, multiply};

}  // namespace octavo
