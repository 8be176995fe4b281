// Packs and unpacks weights, a range of rows at a time.
#include "pack.h"

#include <cstring>

#include "bf16.h"
#include "flush.h"
#include "formats/all.h"
#include "gemm.h"

namespace octavo {

namespace {

// Offset of element (row, k) of w in the packed form, in elements.
int64_t bf16_place(int64_t row, int64_t k, int64_t num_k_blocks) {
  const int64_t tile = (row / BLOCK * num_k_blocks + k / BLOCK) * 2 + row % BLOCK / 16;
  return tile * 512 + k % BLOCK / 2 * 32 + row % 16 * 2 + k % 2;
}

int64_t f32_place(int64_t row, int64_t k, int64_t num_k_blocks) {
  return ((row / BLOCK * num_k_blocks + k / BLOCK) * BLOCK + k % BLOCK) * BLOCK + row % BLOCK;
}

void pack_plain(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
                void* packed) {
  const int64_t num_k_blocks = blocks_of(k);
  // The outer loop is over blocks of k and the inner over rows: sixteen neighbouring rows share cache lines in the
  // packed form.
  for (int64_t start = 0; start < k; start += BLOCK) {
    const int64_t end = start + BLOCK < k ? start + BLOCK : k;
    for (int64_t r = 0; r < num_rows; ++r) {
      for (int64_t i = start; i < end; ++i) {
        if (format == OV_FORMAT_BF16) {
          static_cast<bf16*>(packed)[bf16_place(first_row + r, i, num_k_blocks)] =
              static_cast<const bf16*>(rows)[r * stride + i];
        } else {
          static_cast<float*>(packed)[f32_place(first_row + r, i, num_k_blocks)] =
              static_cast<const float*>(rows)[r * stride + i];
        }
      }
    }
  }
}

void unpack_plain_row(ov_format format, const void* packed, int64_t k, int64_t row, void* to) {
  const int64_t num_k_blocks = blocks_of(k);
  for (int64_t start = 0; start < k; start += BLOCK) {
    const int64_t count = start + BLOCK < k ? BLOCK : k - start;
    if (format == OV_FORMAT_BF16) {
      // Pairs of k are 32 elements apart.
      const bf16* from = static_cast<const bf16*>(packed) + bf16_place(row, start, num_k_blocks);
      for (int64_t i = 0; i < count; ++i) static_cast<bf16*>(to)[start + i] = from[i / 2 * 32 + i % 2];
    } else {
      const float* from = static_cast<const float*>(packed) + f32_place(row, start, num_k_blocks);
      for (int64_t i = 0; i < count; ++i) static_cast<float*>(to)[start + i] = from[i * BLOCK];
    }
  }
}

// -- Quantised formats ------------------------------------------------------------------------------------------------

struct Packing {
  size_t (*bytes)(int64_t n, int64_t k);
  bool (*pack)(const uint8_t* rows, int64_t first_row, int64_t num_rows, int64_t k, uint8_t* packed);
  void (*unpack)(const uint8_t* packed, int64_t k, int64_t row, bf16* to);
};

template <class Format>
size_t quantised_bytes(int64_t n, int64_t k) {
  if (k % Format::BLOCK_K != 0) return 0;
  return size_t(span_offset<Format>(k, blocks_of(n), 0) + SLACK_SPANS * SPAN_BYTES<Format>);
}

template <class Format>
bool pack_quantised(const uint8_t* rows, int64_t first_row, int64_t num_rows, int64_t k, uint8_t* packed) {
  const int64_t num_spans = k / Format::BLOCK_K;
  bool is_finite = true;
  for (int64_t number = 0; number < num_spans; ++number) {
    for (int64_t row = first_row; row < first_row + num_rows; ++row) {
      const uint8_t* block = rows + ((row - first_row) * num_spans + number) * Format::BLOCK_BYTES;
      uint8_t* span = packed + span_offset<Format>(k, row / BLOCK, number * SPAN_STEPS<Format>);
      is_finite &= octavo::pack<Format>(block, int(row % BLOCK), span);
    }
  }
  return is_finite;
}

template <class Format>
void unpack_quantised(const uint8_t* packed, int64_t k, int64_t row, bf16* to) {
  const IeeeMode mode;
  for (int64_t number = 0; number < k / Format::BLOCK_K; ++number, to += Format::BLOCK_K) {
    float values[Format::BLOCK_K];
    const uint8_t* span = packed + span_offset<Format>(k, row / BLOCK, number * SPAN_STEPS<Format>);
    octavo::unpack<Format>(span, int(row % BLOCK), values);
    for (int64_t i = 0; i < Format::BLOCK_K; ++i) to[i] = to_bf16(values[i]);
  }
}

struct Packings {
  Packing of[NUM_QUANTISED];
};

template <class... Formats>
constexpr Packings packings_of(FormatList<Formats...>) {
  static_assert(sizeof...(Formats) == NUM_QUANTISED);
  return {{{quantised_bytes<Formats>, pack_quantised<Formats>, unpack_quantised<Formats>}...}};
}

constexpr Packings PACKINGS = packings_of(AllFormats{});

bool is_quantised(ov_format format) { return format >= FIRST_QUANTISED; }
const Packing& packing_of(ov_format format) { return PACKINGS.of[format - FIRST_QUANTISED]; }

}  // namespace

size_t packed_bytes(ov_format format, int64_t n, int64_t k) {
  if (is_quantised(format)) return packing_of(format).bytes(n, k);
  return size_t(blocks_of(n) * blocks_of(k) * BLOCK * BLOCK) * (format == OV_FORMAT_BF16 ? 2 : 4);
}

bool pack_rows(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows, int64_t k,
               void* packed) {
  if (is_quantised(format)) {
    return packing_of(format).pack(static_cast<const uint8_t*>(rows), first_row, num_rows, k,
                                   static_cast<uint8_t*>(packed));
  }
  pack_plain(format, rows, stride, first_row, num_rows, k, packed);
  return true;
}

void unpack_row(ov_format format, const void* packed, int64_t k, int64_t row, void* to) {
  if (is_quantised(format)) {
    packing_of(format).unpack(static_cast<const uint8_t*>(packed), k, row, static_cast<bf16*>(to));
  } else {
    unpack_plain_row(format, packed, k, row, to);
  }
}

}  // namespace octavo
