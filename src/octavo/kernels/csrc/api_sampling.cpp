// The C interface of sampling. Arguments are checked here, except token ids: an invalid id is an error of its row only.
#include <atomic>
#include <cmath>

#include "flush.h"
#include "kernel_pool.h"
#include "sampling.h"

using namespace octavo;

namespace {

const SamplingKernel& sampling_kernel(ov_isa isa) {
  switch (isa) {
#if defined(__x86_64__)
    case OV_AMX:
    case OV_AVX512: return sampling_avx512;
    case OV_AVX2: return sampling_avx2;
#elif defined(__aarch64__)
    case OV_NEON: return sampling_neon;
#endif
    default: return sampling_portable;
  }
}

bool is_list(const void* items, int64_t count) { return count == 0 || (items != nullptr && is_size(count)); }

ov_status check(const ov_sample_row& row, int64_t vocab, bool has_top, int64_t top_stride) {
  if (!is_list(row.seen_ids, row.num_seen) || !is_list(row.seen_counts, row.num_seen)) return OV_NULL_POINTER;
  if (!is_list(row.bias_ids, row.num_biased) || !is_list(row.bias_values, row.num_biased)) return OV_NULL_POINTER;
  if (!is_list(row.banned_ids, row.num_banned)) return OV_NULL_POINTER;
  if (!is_list(row.allowed, row.num_allowed_words)) return OV_NULL_POINTER;
  if (row.num_allowed_words != 0 && row.num_allowed_words != (vocab + 31) / 32) return OV_BAD_SIZE;
  if (!(row.temperature >= 0.0) || std::isinf(row.temperature)) return OV_BAD_VALUE;
  if (!(row.top_p >= 0.0) || !(row.min_p >= 0.0 && row.min_p <= 1.0) || row.top_k < 0) return OV_BAD_VALUE;
  if (row.num_top < -1 || row.num_top > vocab || row.given < -1) return OV_BAD_VALUE;
  if (row.num_top > 0 && !has_top) return OV_NULL_POINTER;
  if (row.num_top > 0 && row.num_top > top_stride) return OV_BAD_STRIDE;
  return OV_OK;
}

}  // namespace

extern "C" {

ov_status ov_sample(ov_pool* pool, const float* logits, int64_t logits_stride, int64_t num_rows, int64_t vocab,
                    const ov_sample_row* rows, ov_sampled* sampled, int64_t* top_ids, float* top_logprobs,
                    int64_t top_stride, float logprob_floor) {
  if (pool == nullptr || logits == nullptr || rows == nullptr || sampled == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.sampling);
  if (!is_size(num_rows) || !is_size(vocab) || vocab > MAX_TOKENS) return OV_BAD_SIZE;
  if (logits_stride < vocab || logits_stride > MAX_SIZE) return OV_BAD_STRIDE;
  const bool has_top = top_ids != nullptr && top_logprobs != nullptr;
  if (has_top && (top_stride < 0 || top_stride > MAX_SIZE)) return OV_BAD_STRIDE;
  if (!std::isfinite(logprob_floor)) return OV_BAD_VALUE;
  for (int64_t row = 0; row < num_rows; ++row) {
    if (const ov_status status = check(rows[row], vocab, has_top, top_stride)) return status;
  }

  // One workspace per thread, not per row: each chunk is a worker that takes rows until none is left.
  const int64_t num_workers = num_rows < pool->threads.num_threads() ? num_rows : pool->threads.num_threads();
  const size_t num_bytes = workspace_bytes(vocab);
  char* workspaces = static_cast<char*>(pool->scratch.get(num_bytes * size_t(num_workers)));
  if (workspaces == nullptr) return OV_NO_MEMORY;
  const SamplingKernel& kernel = sampling_kernel(pool->isa);
  std::atomic<int64_t> next{0};
  const auto work = [&](int64_t worker) {
    for (int64_t row; (row = next.fetch_add(1)) < num_rows;) {
      sample_row(kernel, logits + row * logits_stride, vocab, rows[row], logprob_floor,
                 workspaces + size_t(worker) * num_bytes, sampled[row],
                 has_top ? top_ids + row * top_stride : nullptr, has_top ? top_logprobs + row * top_stride : nullptr);
    }
  };
  if (num_workers == 1) {
    const IeeeMode mode;
    work(0);
  } else {
    pool->threads.run(num_workers, work);
  }
  return OV_OK;
}

}  // extern "C"
