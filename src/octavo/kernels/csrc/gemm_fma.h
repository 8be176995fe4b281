// The product on vector units of any width: each ISA's object file compiles it with the `Vector` that vector_math.h
// selects by the compiler flags.
//
// A panel is ROWS rows of x times one column block (32 columns):
//
//     x[r][k] (broadcast)  *  w[k][0 .. 31] (32 / WIDTH vectors)  ->  sums[r][0 .. 31]
#pragma once

#include <type_traits>

#include "expand.h"
#include "gemm_store.h"

namespace octavo {
namespace {

// What a panel prefetches. Only the first panel of a column block does, because it reads the weights from memory.
// `next` is the next column block of this worker, or null.
struct Ahead {
  bool is_first;
  const char* next;
};

constexpr int64_t BYTES_AHEAD = 16384;

// Called when the weights at `from`, `left` bytes before the end of their column block, are read: prefetches those that
// will be read 16 KB later.
inline void fetch_ahead(const Ahead& ahead, const void* from, int64_t left, int64_t num_bytes) {
  const char* line = static_cast<const char*>(from) + BYTES_AHEAD;
  if (left <= BYTES_AHEAD) {
    if (ahead.next == nullptr) return;
    line = ahead.next + (BYTES_AHEAD - left);
  }
  for (int64_t i = 0; i < num_bytes; i += 64) __builtin_prefetch(line + i, 0, 2);
}

// Float weights: an element of y is one chain of fused multiply-adds over k.
struct F32 {
  static constexpr int64_t ELEMENT = sizeof(float);
  static constexpr int VECTORS = BLOCK / Vector::WIDTH;
  // Chosen so that the sums fill the registers: 12 x 2 of AVX512's 32, 2 x 4 of AVX2's 16, 2 x 8 of NEON's 32.
  static constexpr int MAX_ROWS = Vector::WIDTH == 16 ? 12 : Vector::WIDTH > 1 ? 2 : 1;

  template <int ROWS>
  static void panel(const Gemm& gemm, int64_t row, int64_t block, const Ahead& ahead) {
    const int64_t padded = blocks_of(gemm.k) * BLOCK;
    const float* x = static_cast<const float*>(gemm.x) + row * gemm.x_stride;
    const float* w = static_cast<const float*>(gemm.packed) + block * padded * BLOCK;
    Vector sums[ROWS][VECTORS];
    for (auto& row_sums : sums)
      for (Vector& sum : row_sums) sum = Vector::zero();
    for (int64_t k = 0; k < gemm.k; ++k, w += BLOCK) {
      if (ahead.is_first) fetch_ahead(ahead, w, (padded - k) * BLOCK * ELEMENT, BLOCK * ELEMENT);
      Vector column[VECTORS];
      for (int v = 0; v < VECTORS; ++v) column[v] = Vector::load(w + v * Vector::WIDTH);
      for (int r = 0; r < ROWS; ++r) {
        const Vector factor = Vector::broadcast(x[r * gemm.x_stride + k]);
        for (int v = 0; v < VECTORS; ++v) sums[r][v] = Vector::fma(factor, column[v], sums[r][v]);
      }
    }
    for (int r = 0; r < ROWS; ++r) {
      float result[BLOCK];
      for (int v = 0; v < VECTORS; ++v) sums[r][v].store(result + v * Vector::WIDTH);
      store_row(gemm, row + r, block, result);
    }
  }
};

// Computes a panel of min(num_rows, ROWS) rows. Each number of rows has its own loop, with its sums in registers.
template <class Weights, int ROWS = Weights::MAX_ROWS>
inline void panel_of(const Gemm& gemm, int64_t row, int64_t num_rows, int64_t block, const Ahead& ahead) {
  if (num_rows >= ROWS) {
    Weights::template panel<ROWS>(gemm, row, block, ahead);
  } else if constexpr (ROWS > 1) {
    panel_of<Weights, ROWS - 1>(gemm, row, num_rows, block, ahead);
  }
}

size_t no_bytes(const Gemm&) { return 0; }
int64_t no_pieces(const Gemm&) { return 0; }
void prepare_nothing(const Gemm&, int64_t, void*) {}
int64_t each_block(const Gemm& gemm) { return blocks_of(gemm.n); }

void multiply_f32(const Gemm& gemm, Parts& parts, void*) {
  const int64_t block_bytes = blocks_of(gemm.k) * BLOCK * BLOCK * F32::ELEMENT;
  for (int64_t block = parts.claim(); block >= 0;) {
    const int64_t next = parts.claim();
    const char* next_weights = next < 0 ? nullptr : static_cast<const char*>(gemm.packed) + next * block_bytes;
    for (int64_t row = 0; row < gemm.m; row += F32::MAX_ROWS) {
      panel_of<F32>(gemm, row, gemm.m - row, block, {row == 0, next_weights});
    }
    block = next;
  }
}

// -- Tiles ------------------------------------------------------------------------------------------------------------
//
// In bf16 the weights are tiles, two for each step of a column block. A stretch is a range of steps of a column block
// whose tiles stay in the L1 cache while they are multiplied by all rows of x:
//
//     for each stretch of a column block   bf16 weights are tiles already, and a column block is one stretch; quantised
//                                          weights are expanded
//       for each panel of rows             continues its sums
//
// x is widened to float and stored in the order in which it is read: rows at a distance of a power of two would compete
// for a few cache sets.
//
//     x[m / PANEL_ROWS][k / 32][rows of the panel, up to PANEL_ROWS][32 k]

constexpr int64_t STEP_TILES = 2 * TILE_ELEMENTS;  // elements

size_t widened_bytes(const Gemm& gemm) {
  return size_t(gemm.m) * size_t(blocks_of(gemm.k) * BLOCK) * sizeof(float);
}
int64_t each_row(const Gemm& gemm) { return gemm.m; }

inline int64_t rows_of_panel(const Gemm& gemm, int64_t first) {
  return gemm.m - first < PANEL_ROWS ? gemm.m - first : PANEL_ROWS;
}

void widen(const Gemm& gemm, int64_t row, void* prepared) {
  const int64_t first = row / PANEL_ROWS * PANEL_ROWS;
  float* panel = static_cast<float*>(prepared) + first * blocks_of(gemm.k) * STEP_K;
  widen_row(static_cast<const bf16*>(gemm.x) + row * gemm.x_stride, gemm.k, panel + (row - first) * STEP_K,
            rows_of_panel(gemm, first) * STEP_K);
}

template <class Element>
struct Stretch {
  const Element* tiles;
  int64_t first_step, num_steps;
};

// Weights that are packed as tiles.
struct PackedTiles {
  using Element = bf16;
  static int64_t max_steps(const Gemm& gemm) { return blocks_of(gemm.k); }
  static size_t buffer_bytes() { return 0; }
  static const char* block_at(const Gemm& gemm, int64_t block) {
    return static_cast<const char*>(gemm.packed) + block * blocks_of(gemm.k) * STEP_TILES * int64_t(sizeof(bf16));
  }
  static Stretch<bf16> stretch(const Gemm& gemm, int64_t block, int64_t, const char*, void*) {
    return {reinterpret_cast<const bf16*>(block_at(gemm, block)), 0, blocks_of(gemm.k)};
  }
  // Called while the first panel of rows reads the weights.
  static void fetch(const Ahead& ahead, const Stretch<bf16>& stretch, int64_t step) {
    constexpr int64_t STEP_BYTES = STEP_TILES * int64_t(sizeof(bf16));
    fetch_ahead(ahead, stretch.tiles + step * STEP_TILES, (stretch.num_steps - step) * STEP_BYTES, STEP_BYTES);
  }
};

// The floating-point mode in which weights are expanded. Most formats never produce subnormal numbers and need no
// change of mode, which takes as long as expanding a hundred weights.
struct NoMode {
  NoMode() {}
  ~NoMode() {}
};
template <Values VALUES>
using ModeOf = std::conditional_t<VALUES == Values::ORDINARY, NoMode, IeeeMode>;

// Quantised weights, expanded one or more spans at a time.
template <class Format>
struct ExpandedTiles {
  using Element = float;
  static constexpr int64_t SPANS = SPAN_STEPS<Format> < 4 ? 4 / SPAN_STEPS<Format> : 1;
  static constexpr int64_t STEPS = SPANS * SPAN_STEPS<Format>;  // 16 KB or 32 KB of tiles

  static int64_t max_steps(const Gemm&) { return STEPS; }
  static size_t buffer_bytes() { return size_t(STEPS * STEP_TILES) * sizeof(float); }
  static const char* block_at(const Gemm& gemm, int64_t block) {
    return static_cast<const char*>(gemm.packed) + span_offset<Format>(gemm.k, block, 0);
  }
  static Stretch<float> stretch(const Gemm& gemm, int64_t block, int64_t first_step, const char* next, void* buffer) {
    const ModeOf<Format::VALUES> mode;
    const int64_t num_spans = gemm.k / Format::BLOCK_K, first = first_step / SPAN_STEPS<Format>;
    const int64_t end = first + SPANS < num_spans ? first + SPANS : num_spans;
    float* tiles = static_cast<float*>(buffer);
    for (int64_t number = first; number < end; ++number) {
      const char* span = block_at(gemm, block) + number * SPAN_BYTES<Format>;
      fetch_ahead({true, next}, span, (num_spans - number) * SPAN_BYTES<Format>, SPAN_BYTES<Format>);
      expand_span(reinterpret_cast<const uint8_t*>(span), tiles);
      tiles += SPAN_STEPS<Format> * STEP_TILES;
    }
    return {static_cast<const float*>(buffer), first_step, (end - first) * SPAN_STEPS<Format>};
  }
  static void fetch(const Ahead&, const Stretch<float>&, int64_t) {}

 private:
  static void expand_span(const uint8_t* span, float* tiles) {
    Scales<Format> scales;
    Format::read_scales(span, scales);
    for (int64_t step = 0; step < SPAN_STEPS<Format>; ++step, tiles += STEP_TILES) {
      expand_step<Format>(span, step, scales, tiles);
    }
  }
};

// Adds a stretch to the sums of ROWS rows, [ROWS][32].
template <class Weights, int ROWS>
inline void add_stretch(const float* x, const Stretch<typename Weights::Element>& stretch, const Ahead& ahead,
                        float* sums) {
  for (int64_t step = 0; step < stretch.num_steps; ++step, x += ROWS * STEP_K) {
    if (ahead.is_first) Weights::fetch(ahead, stretch, step);
    for (int t = 0; t < 2; t += PANEL_TILES) {
      const typename Weights::Element* tiles[PANEL_TILES];
      for (int i = 0; i < PANEL_TILES; ++i) tiles[i] = stretch.tiles + step * STEP_TILES + (t + i) * TILE_ELEMENTS;
      add_step<ROWS>(x, STEP_K, tiles, WHOLE_STEP, sums + t * TILE_COLUMNS, BLOCK);
    }
  }
}

template <class Weights, int ROWS = PANEL_ROWS>
inline void add_to_rows(int64_t num_rows, const float* x, const Stretch<typename Weights::Element>& stretch,
                        const Ahead& ahead, float* sums) {
  if (num_rows >= ROWS) {
    add_stretch<Weights, ROWS>(x, stretch, ahead, sums);
  } else if constexpr (ROWS > 1) {
    add_to_rows<Weights, ROWS - 1>(num_rows, x, stretch, ahead, sums);
  }
}

template <class Weights>
void multiply_block(const Gemm& gemm, int64_t block, const char* next, void* buffer, float* all_sums) {
  const int64_t num_steps = blocks_of(gemm.k);
  const bool is_one = Weights::max_steps(gemm) >= num_steps;  // one stretch: the sums of a panel are needed only once
  const FlushMode mode;
  for (int64_t step = 0; step < num_steps;) {
    const auto stretch = Weights::stretch(gemm, block, step, next, buffer);
    for (int64_t row = 0; row < gemm.m; row += PANEL_ROWS) {
      const int64_t num_rows = rows_of_panel(gemm, row);
      float* sums = all_sums + (is_one ? 0 : row * BLOCK);
      if (step == 0) memset(sums, 0, size_t(num_rows * BLOCK) * sizeof(float));
      const float* x = static_cast<const float*>(gemm.x) + (row * num_steps + num_rows * step) * STEP_K;
      add_to_rows<Weights>(num_rows, x, stretch, {row == 0, next}, sums);
      if (step + stretch.num_steps < num_steps) continue;
      for (int64_t r = 0; r < num_rows; ++r) store_row_flushed(gemm, row + r, block, sums + r * BLOCK);
    }
    step += stretch.num_steps;
  }
}

template <class Weights>
size_t tile_worker_bytes(const Gemm& gemm) {
  const bool is_one = Weights::max_steps(gemm) >= blocks_of(gemm.k);
  const int64_t num_rows = is_one ? PANEL_ROWS : gemm.m;
  return Weights::buffer_bytes() + size_t(num_rows * BLOCK) * sizeof(float);
}

template <class Weights>
void multiply_tiles(const Gemm& gemm, Parts& parts, void* worker_memory) {
  float* sums = reinterpret_cast<float*>(static_cast<char*>(worker_memory) + Weights::buffer_bytes());
  for (int64_t block = parts.claim(); block >= 0;) {
    const int64_t next = parts.claim();
    multiply_block<Weights>(gemm, block, next < 0 ? nullptr : Weights::block_at(gemm, next), worker_memory, sums);
    block = next;
  }
}

constexpr GemmKernel FMA_F32 = {no_bytes, no_pieces, prepare_nothing, no_bytes, each_block, multiply_f32};

template <class Weights>
constexpr GemmKernel TILES = {widened_bytes, each_row, widen, tile_worker_bytes<Weights>, each_block,
                              multiply_tiles<Weights>};
constexpr GemmKernel FMA_BF16 = TILES<PackedTiles>;

template <class... Formats>
constexpr FormatKernels kernels_of(FormatList<Formats...>) {
  return {{TILES<ExpandedTiles<Formats>>...}};
}
constexpr FormatKernels FMA_FORMATS = kernels_of(AllFormats{});

}  // namespace
}  // namespace octavo
