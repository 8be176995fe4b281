// The C interface of attention. Arguments are checked here, and only here.
#include <cmath>
#include <new>

#include "attention_write.h"
#include "kernel_pool.h"

using namespace octavo;

namespace {

constexpr int64_t WRITE_ROWS = 32;  // rows that one thread writes at a time

AttentionKernel attention_kernel(ov_isa isa, ov_dtype dtype) {
  const bool is_bf16 = dtype == OV_BF16;
  switch (isa) {
#if defined(__x86_64__)
    case OV_AMX: return is_bf16 ? attention_bf16_amx : attention_f32_avx512;
    case OV_AVX512: return is_bf16 ? attention_bf16_avx512 : attention_f32_avx512;
    case OV_AVX2: return is_bf16 ? attention_bf16_avx2 : attention_f32_avx2;
#elif defined(__aarch64__)
    case OV_NEON: return is_bf16 ? attention_bf16_neon : attention_f32_neon;
#endif
    default: return is_bf16 ? attention_bf16_portable : attention_f32_portable;
  }
}

// Returns the number of elements of one array, or 0 if an argument is invalid.
int64_t num_elements(ov_dtype dtype, int64_t num_blocks, int64_t block_size, int64_t kv_heads, int64_t head_dim) {
  if (!is_dtype(dtype) || !is_size(num_blocks) || !is_size(block_size) || !is_size(kv_heads)) return 0;
  if (block_size % UNIT != 0 || head_dim < 16 || head_dim > MAX_DIM || head_dim % 16 != 0) return 0;
  const int64_t dim = padded_dim(dtype, head_dim);
  if (kv_heads > MAX_SIZE / (block_size * dim) || num_blocks > MAX_SIZE / (block_size * dim * kv_heads)) return 0;
  return num_blocks * kv_heads * block_size * dim;
}

ov_status check_blocks(const ov_kv_blocks& kv) {
  if (kv.keys == nullptr || kv.values == nullptr) return OV_NULL_POINTER;
  if (num_elements(kv.dtype, kv.num_blocks, kv.block_size, kv.kv_heads, kv.head_dim) == 0) return OV_BAD_SIZE;
  return is_aligned(kv.keys) && is_aligned(kv.values) ? OV_OK : OV_MISALIGNED;
}

// Whether these are strides of an array [rows, heads, head_dim] without overlaps.
bool are_strides(int64_t stride, int64_t head_stride, int64_t heads, int64_t head_dim) {
  if (stride < 0 || stride > MAX_SIZE || head_stride < head_dim || head_stride > MAX_SIZE / heads) return false;
  return stride >= (heads - 1) * head_stride + head_dim;
}

ov_status check_sequences(const ov_attention_args& args) {
  const ov_kv_blocks& kv = args.kv;
  if (args.block_offsets[0] < 0 || args.block_offsets[0] > MAX_SIZE) return OV_BAD_SIZE;
  for (int64_t s = 0; s < args.num_sequences; ++s) {
    const int64_t first_row = args.first_rows[s], num_rows = args.row_counts[s], context = args.contexts[s];
    if (!is_size(num_rows) || !is_size(context) || num_rows > context) return OV_BAD_SIZE;
    if (first_row < 0 || first_row > args.num_rows - num_rows) return OV_BAD_SIZE;
    const int64_t start = args.block_offsets[s], num_blocks = parts_of(context, kv.block_size);
    if (args.block_offsets[s + 1] > MAX_SIZE || args.block_offsets[s + 1] < start + num_blocks) return OV_BAD_SIZE;
    for (int64_t i = 0; i < num_blocks; ++i) {
      if (args.blocks[start + i] < 0 || args.blocks[start + i] >= kv.num_blocks) return OV_BAD_SIZE;
    }
  }
  return OV_OK;
}

// Checks everything except the sequences.
ov_status check_attention(const ov_attention_args& args) {
  if (args.q == nullptr || args.out == nullptr || args.first_rows == nullptr || args.row_counts == nullptr)
    return OV_NULL_POINTER;
  if (args.contexts == nullptr || args.block_offsets == nullptr || args.blocks == nullptr) return OV_NULL_POINTER;
  if (const ov_status status = check_blocks(args.kv)) return status;
  const int64_t head_dim = args.kv.head_dim;
  if (!is_size(args.num_rows) || !is_size(args.num_sequences) || !is_size(args.heads)) return OV_BAD_SIZE;
  if (args.heads % args.kv.kv_heads != 0) return OV_BAD_SIZE;
  if (args.window < 0 || !(args.scale > 0) || !std::isfinite(args.scale)) return OV_BAD_SIZE;
  if (!(args.softcap >= 0) || !std::isfinite(args.softcap)) return OV_BAD_SIZE;
  if (!are_strides(args.q_stride, args.q_head_stride, args.heads, head_dim)) return OV_BAD_STRIDE;
  if (!are_strides(args.out_stride, args.out_head_stride, args.heads, head_dim)) return OV_BAD_STRIDE;
  return OV_OK;
}

}  // namespace

extern "C" {

uint64_t ov_kv_bytes(ov_dtype dtype, int64_t num_blocks, int64_t block_size, int64_t kv_heads, int64_t head_dim) {
  return uint64_t(num_elements(dtype, num_blocks, block_size, kv_heads, head_dim)) * (dtype == OV_BF16 ? 2 : 4);
}

ov_status ov_kv_write(ov_pool* pool, const ov_kv_write_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.attention);
  if (args->k == nullptr || args->v == nullptr || args->slots == nullptr) return OV_NULL_POINTER;
  const ov_kv_blocks& kv = args->kv;
  if (const ov_status status = check_blocks(kv)) return status;
  if (!is_size(args->num_rows)) return OV_BAD_SIZE;
  if (!are_strides(args->k_stride, args->k_head_stride, kv.kv_heads, kv.head_dim)) return OV_BAD_STRIDE;
  if (!are_strides(args->v_stride, args->v_head_stride, kv.kv_heads, kv.head_dim)) return OV_BAD_STRIDE;
  for (int64_t row = 0; row < args->num_rows; ++row) {
    if (args->slots[row] < 0 || args->slots[row] >= kv.num_blocks * kv.block_size) return OV_BAD_SIZE;
  }
  pool->threads.run(parts_of(args->num_rows, WRITE_ROWS), [&](int64_t chunk) {
    const int64_t end = at_most((chunk + 1) * WRITE_ROWS, args->num_rows);
    for (int64_t row = chunk * WRITE_ROWS; row < end; ++row) {
      if (kv.dtype == OV_BF16) {
        write_row<bf16>(*args, row);
      } else {
        write_row<float>(*args, row);
      }
    }
  });
  return OV_OK;
}

ov_status ov_attention(ov_pool* pool, const ov_attention_args* args) try {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.attention);
  if (const ov_status status = check_attention(*args)) return status;
  AttentionPlans& plans = pool->attention_plans;
  if (!plans.match(*args)) {
    if (const ov_status status = check_sequences(*args)) return status;
    plans.begin(*args);
  }
  AttentionPlan& plan = plans.plan(*args, pool->threads.num_threads());
  float* partials = nullptr;
  if (plan.partial_bytes() > 0) {
    partials = static_cast<float*>(pool->scratch.get(plan.partial_bytes()));
    if (partials == nullptr) return OV_NO_MEMORY;
  }
  plan.use(partials);
  const AttentionKernel kernel = attention_kernel(pool->isa, args->kv.dtype);
  const auto run = [&](const std::vector<AttentionTask>& tasks, auto work) {
    pool->threads.run(int64_t(tasks.size()), [&](int64_t i) { work(*args, tasks[size_t(i)]); });
  };
  run(plan.tasks, kernel.attend);
  run(plan.merges, kernel.merge);
  return OV_OK;
} catch (const std::bad_alloc&) {
  return OV_NO_MEMORY;
}

}  // extern "C"
