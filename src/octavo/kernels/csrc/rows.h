// Operations on rows of activations: norms, rope, gated activations, sums, softcaps. They compute in float and round
// once, at the end. The result of a row depends on that row only and is bit-identical on every ISA.
#pragma once

#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

// Each function processes the rows [first, end) of its arguments, which have been checked.
struct RowKernel {
  void (*rms_norm)(const ov_rms_norm_args& args, int64_t first, int64_t end);
  void (*add_rms_norm)(const ov_add_rms_norm_args& args, int64_t first, int64_t end);
  void (*rope)(const ov_rope_args& args, int64_t first, int64_t end);
  void (*gated)(const ov_gated_args& args, int64_t first, int64_t end);
  void (*add)(const ov_add_args& args, int64_t first, int64_t end);
  void (*scale)(const ov_scale_args& args, int64_t first, int64_t end);
  void (*softcap)(const ov_softcap_args& args, int64_t first, int64_t end);
};

// One object file per ISA.
extern const RowKernel rows_f32_portable, rows_bf16_portable;
#if defined(__x86_64__)
extern const RowKernel rows_f32_avx2, rows_bf16_avx2;
extern const RowKernel rows_f32_avx512, rows_bf16_avx512;
#elif defined(__aarch64__)
extern const RowKernel rows_f32_neon, rows_bf16_neon;
#endif

}  // namespace octavo
