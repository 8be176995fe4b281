// The C interface of the row operations. Arguments are checked here, and only here.
#include <cfloat>

#include "flush.h"
#include "kernel_pool.h"
#include "rows.h"
#include "scalar_math.h"

using namespace octavo;

namespace {

constexpr int64_t ANGLE_COST = 32;  // in elements of a simple row operation

const RowKernel& row_kernel(ov_isa isa, ov_dtype dtype) {
  const bool is_bf16 = dtype == OV_BF16;
  switch (isa) {
#if defined(__x86_64__)
    case OV_AMX:
    case OV_AVX512: return is_bf16 ? rows_bf16_avx512 : rows_f32_avx512;
    case OV_AVX2: return is_bf16 ? rows_bf16_avx2 : rows_f32_avx2;
#elif defined(__aarch64__)
    case OV_NEON: return is_bf16 ? rows_bf16_neon : rows_f32_neon;
#endif
    default: return is_bf16 ? rows_bf16_portable : rows_f32_portable;
  }
}

// Runs the kernel on chunks of rows that take a few microseconds each. A single chunk runs on the calling thread.
template <class Args>
void run_rows(ov_pool* pool, void (*kernel)(const Args&, int64_t, int64_t), const Args& args, int64_t row_size) {
  constexpr int64_t CHUNK_SIZE = 16384;
  const int64_t chunk_rows = row_size < CHUNK_SIZE ? CHUNK_SIZE / row_size : 1;
  const int64_t num_chunks = (args.num_rows + chunk_rows - 1) / chunk_rows;
  if (num_chunks == 1) {
    const IeeeMode mode;
    return kernel(args, 0, args.num_rows);
  }
  pool->threads.run(num_chunks, [&](int64_t chunk) {
    const int64_t first = chunk * chunk_rows;
    const int64_t end = first + chunk_rows < args.num_rows ? first + chunk_rows : args.num_rows;
    kernel(args, first, end);
  });
}

template <class... Pointers>
bool any_null(Pointers... pointers) {
  return ((pointers == nullptr) || ...);
}

bool is_row_stride(int64_t stride, int64_t width) { return stride >= width && stride <= MAX_SIZE; }

// Whether the heads of a row do not overlap, and neither do the rows.
bool are_head_strides(int64_t stride, int64_t head_stride, int64_t num_heads, int64_t width) {
  if (!is_row_stride(head_stride, width) || stride > MAX_SIZE) return false;
  return head_stride <= MAX_SIZE / num_heads && stride >= (num_heads - 1) * head_stride + width;
}

// An exponent of all ones means infinity or NaN.
template <class Word>
uint8_t is_finite_row(const Word* x, int64_t width, Word exponent) {
  bool is_finite = true;
  for (int64_t i = 0; i < width; ++i) is_finite &= (x[i] & exponent) != exponent;
  return is_finite;
}

// Not in rows_lanes.h: angles are computed only once per position, so scalar doubles are fast enough.
struct RopeAngles {
  const float* inverse_frequencies;
  int64_t half, first_position;
  int64_t num_rows;  // positions
  float* cosines;
  float* sines;
};

float angle_of(int64_t position, float inverse_frequency) { return float(position) * inverse_frequency; }

void write_angles(const RopeAngles& args, int64_t first, int64_t end) {
  for (int64_t row = first; row < end; ++row) {
    for (int64_t i = 0; i < args.half; ++i) {
      const SinCos result = sin_cos(angle_of(args.first_position + row, args.inverse_frequencies[i]));
      args.cosines[row * args.half + i] = float(result.cosine);
      args.sines[row * args.half + i] = float(result.sine);
    }
  }
}

}  // namespace

extern "C" {

ov_status ov_rms_norm(ov_pool* pool, const ov_rms_norm_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->x, args->gain, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->num_heads) || !is_size(args->width)) {
    return OV_BAD_SIZE;
  }
  if (!are_head_strides(args->x_stride, args->x_head_stride, args->num_heads, args->width)) return OV_BAD_STRIDE;
  if (!are_head_strides(args->y_stride, args->y_head_stride, args->num_heads, args->width)) return OV_BAD_STRIDE;
  const auto kernel = row_kernel(pool->isa, args->dtype).rms_norm;
  run_rows(pool, kernel, *args, args->num_heads * args->width);
  return OV_OK;
}

ov_status ov_add_rms_norm(ov_pool* pool, const ov_add_rms_norm_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->stream, args->update, args->gain, args->sum, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->width)) return OV_BAD_SIZE;
  if (!is_row_stride(args->stream_stride, args->width) || !is_row_stride(args->update_stride, args->width) ||
      !is_row_stride(args->sum_stride, args->width) || !is_row_stride(args->y_stride, args->width)) {
    return OV_BAD_STRIDE;
  }
  run_rows(pool, row_kernel(pool->isa, args->dtype).add_rms_norm, *args, args->width);
  return OV_OK;
}

ov_status ov_rope(ov_pool* pool, const ov_rope_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->x, args->y)) return OV_NULL_POINTER;
  if (any_null(args->cosines, args->sines) || args->positions == nullptr) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->num_heads)) return OV_BAD_SIZE;
  if (!is_size(args->head_dim) || args->head_dim % 2 != 0 || !is_size(args->num_positions)) return OV_BAD_SIZE;
  if (!are_head_strides(args->x_stride, args->x_head_stride, args->num_heads, args->head_dim)) return OV_BAD_STRIDE;
  if (!are_head_strides(args->y_stride, args->y_head_stride, args->num_heads, args->head_dim)) return OV_BAD_STRIDE;
  for (int64_t row = 0; row < args->num_rows; ++row) {
    if (args->positions[row] < 0 || args->positions[row] >= args->num_positions) return OV_BAD_VALUE;
  }
  run_rows(pool, row_kernel(pool->isa, args->dtype).rope, *args, args->num_heads * args->head_dim);
  return OV_OK;
}

ov_status ov_gated(ov_pool* pool, const ov_gated_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->gate_up, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->width)) return OV_BAD_SIZE;
  if (args->activation != OV_SILU && args->activation != OV_GELU) return OV_BAD_VALUE;
  if (!is_row_stride(args->gate_up_stride, 2 * args->width)) return OV_BAD_STRIDE;
  if (!is_row_stride(args->y_stride, args->width)) return OV_BAD_STRIDE;
  run_rows(pool, row_kernel(pool->isa, args->dtype).gated, *args, 2 * args->width);
  return OV_OK;
}

ov_status ov_add(ov_pool* pool, const ov_add_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->a, args->b, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->width)) return OV_BAD_SIZE;
  if (!is_row_stride(args->a_stride, args->width) || !is_row_stride(args->b_stride, args->width) ||
      !is_row_stride(args->y_stride, args->width)) {
    return OV_BAD_STRIDE;
  }
  run_rows(pool, row_kernel(pool->isa, args->dtype).add, *args, args->width);
  return OV_OK;
}

ov_status ov_scale(ov_pool* pool, const ov_scale_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->x, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->width)) return OV_BAD_SIZE;
  if (!is_row_stride(args->x_stride, args->width) || !is_row_stride(args->y_stride, args->width)) return OV_BAD_STRIDE;
  run_rows(pool, row_kernel(pool->isa, args->dtype).scale, *args, args->width);
  return OV_OK;
}

ov_status ov_softcap(ov_pool* pool, const ov_softcap_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (any_null(args->x, args->y)) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_size(args->num_rows) || !is_size(args->width)) return OV_BAD_SIZE;
  if (!(args->cap > 0.0f && args->cap <= FLT_MAX)) return OV_BAD_VALUE;
  if (!is_row_stride(args->x_stride, args->width) || !is_row_stride(args->y_stride, args->width)) return OV_BAD_STRIDE;
  run_rows(pool, row_kernel(pool->isa, args->dtype).softcap, *args, args->width);
  return OV_OK;
}

ov_status ov_rope_angles(ov_pool* pool, const float* inverse_frequencies, int64_t half, int64_t first_position,
                         int64_t num_positions, float* cosines, float* sines) {
  if (pool == nullptr || any_null(inverse_frequencies, cosines, sines)) return OV_NULL_POINTER;
  const Timer timer(pool->times.rows);
  if (!is_size(half) || !is_size(num_positions)) return OV_BAD_SIZE;
  if (first_position < 0 || first_position > MAX_SIZE) return OV_BAD_VALUE;
  for (int64_t i = 0; i < half; ++i) {
    const float last = angle_of(first_position + num_positions - 1, inverse_frequencies[i]);
    if (!(inverse_frequencies[i] >= 0.0f && last <= MAX_ANGLE)) return OV_BAD_VALUE;
  }
  const RopeAngles args = {inverse_frequencies, half, first_position, num_positions, cosines, sines};
  run_rows(pool, write_angles, args, half * ANGLE_COST);
  return OV_OK;
}

ov_status ov_finite(ov_dtype dtype, const void* x, int64_t x_stride, int64_t num_rows, int64_t width, uint8_t* finite) {
  if (any_null(x) || finite == nullptr) return OV_NULL_POINTER;
  if (!is_dtype(dtype) || !is_size(num_rows) || !is_size(width)) return OV_BAD_SIZE;
  if (!is_row_stride(x_stride, width)) return OV_BAD_STRIDE;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (dtype == OV_BF16) {
      finite[row] = is_finite_row<uint16_t>(static_cast<const uint16_t*>(x) + row * x_stride, width, 0x7f80);
    } else {
      finite[row] = is_finite_row<uint32_t>(static_cast<const uint32_t*>(x) + row * x_stride, width, 0x7f800000);
    }
  }
  return OV_OK;
}

}  // extern "C"
