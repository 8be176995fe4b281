// Writes new keys and values into their units (attention.h). This only copies, so all ISAs use the same code.
#pragma once

#include <cstring>

#include "attention.h"
#include "bf16.h"

namespace octavo {
namespace {

// The padding after the dims of a head is multiplied, too, so it is filled with zeros.
inline void write_key(const bf16* from, int64_t head_dim, int64_t token, bf16* unit) {
  const int64_t padded = padded_dim(OV_BF16, head_dim);
  bf16* to = unit + token / 16 * padded * 16 + token % 16 * 2;
  for (int64_t d = 0; d < head_dim; d += 2, to += 32) memcpy(to, from + d, 2 * sizeof(bf16));
  for (int64_t d = head_dim; d < padded; d += 2, to += 32) memset(to, 0, 2 * sizeof(bf16));
}

inline void write_value(const bf16* from, int64_t head_dim, int64_t token, bf16* unit) {
  bf16* to = unit + token / 2 * 32 + token % 2;
  for (int64_t d = 0; d < head_dim; d += 16, to += 512)
    for (int64_t i = 0; i < 16; ++i) to[i * 2] = from[d + i];
}

inline void write_key(const float* from, int64_t head_dim, int64_t token, float* unit) {
  float* to = unit + token / 16 * head_dim * 16 + token % 16;
  for (int64_t d = 0; d < head_dim; ++d) to[d * 16] = from[d];
}

inline void write_value(const float* from, int64_t head_dim, int64_t token, float* unit) {
  memcpy(unit + token * head_dim, from, size_t(head_dim) * sizeof(float));
}

template <class Element>
void write_row(const ov_kv_write_args& args, int64_t row) {
  const ov_kv_blocks& kv = args.kv;
  const int64_t block = args.slots[row] / kv.block_size, offset = args.slots[row] % kv.block_size;
  for (int64_t head = 0; head < kv.kv_heads; ++head) {
    const int64_t place = unit_place(kv, block, head, offset);
    write_key(static_cast<const Element*>(args.k) + row * args.k_stride + head * args.k_head_stride, kv.head_dim,
              offset % UNIT, static_cast<Element*>(kv.keys) + place);
    write_value(static_cast<const Element*>(args.v) + row * args.v_stride + head * args.v_head_stride, kv.head_dim,
                offset % UNIT, static_cast<Element*>(kv.values) + place);
  }
}

}  // namespace
}  // namespace octavo
