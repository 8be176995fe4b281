// The C interface. Arguments are checked here, and only here.
#include <atomic>
#include <chrono>
#include <new>

#include "checksum.h"
#include "cpu.h"
#include "gemm.h"
#include "kernel_pool.h"
#include "pack.h"
#include "probe.h"

using namespace octavo;

namespace {

// Waking the other threads takes about as long as copying this many bytes.
constexpr size_t MIN_PARALLEL_BYTES = 64 << 10;

double seconds_of(const auto& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

}  // namespace

namespace octavo {

GemmKernel gemm_kernel(ov_isa isa, ov_format format) {
  // The kernel of one instruction set: for float, for bf16, or for a format that is expanded to bf16.
  const auto choose = [&](const GemmKernel& f32, const GemmKernel& bf16, const FormatKernels& quantised) {
    if (format == OV_FORMAT_F32) return f32;
    return format == OV_FORMAT_BF16 ? bf16 : quantised.of[format - FIRST_QUANTISED];
  };
  switch (isa) {
#if defined(__x86_64__)
    case OV_AMX: return choose(gemm_f32_avx512, gemm_bf16_amx, gemm_formats_amx);
    case OV_AVX512: return choose(gemm_f32_avx512, gemm_bf16_avx512, gemm_formats_avx512);
    case OV_AVX2: return choose(gemm_f32_avx2, gemm_bf16_avx2, gemm_formats_avx2);
#elif defined(__aarch64__)
    case OV_NEON: return choose(gemm_f32_neon, gemm_bf16_neon, gemm_formats_neon);
#endif
    default: return choose(gemm_f32_portable, gemm_bf16_portable, gemm_formats_portable);
  }
}

int64_t Parts::claim() {
  const int64_t part = __atomic_fetch_add(&next_, 1, __ATOMIC_RELAXED);
  return part < count_ ? part : -1;
}

}  // namespace octavo

extern "C" {

const char* ov_status_text(ov_status status) {
  switch (status) {
    case OV_OK: return "no error";
    case OV_NULL_POINTER: return "a pointer is null";
    case OV_BAD_SIZE: return "a size is not positive, too large, or beyond the end of the matrix";
    case OV_BAD_STRIDE: return "a stride is shorter than a row";
    case OV_MISALIGNED: return "packed weights, keys or values are not aligned to 64 bytes";
    case OV_NO_MEMORY: return "not enough memory";
    case OV_UNKNOWN_ISA: return "this processor does not have that instruction set";
    case OV_BAD_VALUE: return "a parameter or an index is out of range";
  }
  return "unknown status";
}

int32_t ov_arithmetic(void) { return OV_ARITHMETIC; }
int ov_has_isa(ov_isa isa) { return has_isa(isa) ? 1 : 0; }
ov_isa ov_best_isa(void) { return best_isa(); }

ov_status ov_pool_open(int32_t num_threads, ov_isa isa, ov_pool** pool) {
  if (pool == nullptr) return OV_NULL_POINTER;
  if (num_threads < 1 || num_threads > 1024) return OV_BAD_SIZE;
  if (!has_isa(isa)) return OV_UNKNOWN_ISA;
  *pool = new (std::nothrow) ov_pool(num_threads, isa);
  return *pool == nullptr ? OV_NO_MEMORY : OV_OK;
}

void ov_pool_close(ov_pool* pool) { delete pool; }

ov_status ov_pool_times(const ov_pool* pool, ov_times* times) {
  if (pool == nullptr || times == nullptr) return OV_NULL_POINTER;
  *times = pool->times;
  return OV_OK;
}

void* ov_alloc(uint64_t num_bytes) { return allocate(num_bytes); }
void ov_free(void* memory, uint64_t num_bytes) { release(memory, num_bytes); }

int ov_has_format(ov_format format) { return is_format(format) ? 1 : 0; }
int32_t ov_layout_version(void) { return OV_LAYOUT; }
uint64_t ov_checksum(const void* data, uint64_t num_bytes) { return data == nullptr ? 0 : checksum(data, num_bytes); }

uint64_t ov_packed_bytes(ov_format format, int64_t n, int64_t k) {
  return is_format(format) && is_size(n) && is_size(k) ? packed_bytes(format, n, k) : 0;
}

ov_status ov_pack_rows(ov_format format, const void* rows, int64_t stride, int64_t first_row, int64_t num_rows,
                       int64_t n, int64_t k, void* packed) {
  if (rows == nullptr || packed == nullptr) return OV_NULL_POINTER;
  if (ov_packed_bytes(format, n, k) == 0 || !is_size(num_rows)) return OV_BAD_SIZE;
  if (first_row < 0 || first_row > n - num_rows) return OV_BAD_SIZE;
  if (stride < k || stride > MAX_SIZE || (!is_dtype(format) && stride != k)) return OV_BAD_STRIDE;
  if (!is_aligned(packed)) return OV_MISALIGNED;
  return pack_rows(format, rows, stride, first_row, num_rows, k, packed) ? OV_OK : OV_BAD_VALUE;
}

ov_status ov_embedding(ov_pool* pool, const ov_embedding_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  if (args->packed == nullptr || args->ids == nullptr || args->y == nullptr) return OV_NULL_POINTER;
  if (ov_packed_bytes(args->format, args->n, args->k) == 0 || !is_size(args->num_rows)) return OV_BAD_SIZE;
  if (args->y_stride < args->k || args->y_stride > MAX_SIZE) return OV_BAD_STRIDE;
  if (!is_aligned(args->packed)) return OV_MISALIGNED;
  for (int64_t row = 0; row < args->num_rows; ++row) {
    if (args->ids[row] < 0 || args->ids[row] >= args->n) return OV_BAD_SIZE;
  }
  const Timer timer(pool->times.rows);
  // A row is scattered over the packed form, two elements per cache line, so even a few rows are worth a thread.
  constexpr int64_t CHUNK_ROWS = 8;
  const int64_t row_bytes = args->y_stride * (args->format == OV_FORMAT_F32 ? 4 : 2);
  pool->threads.run((args->num_rows + CHUNK_ROWS - 1) / CHUNK_ROWS, [&](int64_t chunk) {
    for (int64_t row = chunk * CHUNK_ROWS; row < args->num_rows && row < (chunk + 1) * CHUNK_ROWS; ++row) {
      unpack_row(args->format, args->packed, args->k, args->ids[row], static_cast<char*>(args->y) + row * row_bytes);
    }
  });
  return OV_OK;
}

ov_status ov_gemm(ov_pool* pool, const ov_gemm_args* args) {
  if (pool == nullptr || args == nullptr) return OV_NULL_POINTER;
  const Timer timer(pool->times.gemm);
  if (args->x == nullptr || args->packed == nullptr || args->y == nullptr) return OV_NULL_POINTER;
  if (!is_dtype(args->dtype) || !is_dtype(args->out_dtype)) return OV_BAD_SIZE;
  if (args->dtype == OV_F32 && args->out_dtype != OV_F32) return OV_BAD_SIZE;
  if (!is_size(args->m) || ov_packed_bytes(args->format, args->n, args->k) == 0) return OV_BAD_SIZE;
  if (args->dtype == OV_F32 ? args->format != OV_FORMAT_F32 : args->format == OV_FORMAT_F32) return OV_BAD_VALUE;
  if (args->x_stride < args->k || args->y_stride < args->n) return OV_BAD_STRIDE;
  if (args->x_stride > MAX_SIZE || args->y_stride > MAX_SIZE) return OV_BAD_STRIDE;
  if (!is_aligned(args->packed)) return OV_MISALIGNED;

  const GemmKernel kernel = gemm_kernel(pool->isa, args->format);
  Gemm gemm = {args->x,         args->x_stride, args->packed, args->bias, args->y, args->y_stride,
               args->out_dtype == OV_BF16, args->m, args->n, args->k};
  const size_t prepared_bytes = kernel.prepared_bytes(gemm);
  const size_t worker_bytes = kernel.worker_bytes(gemm);
  const int num_workers = pool->threads.num_threads();
  char* memory = nullptr;
  if (prepared_bytes + worker_bytes > 0) {
    memory = static_cast<char*>(pool->scratch.get(worker_bytes * num_workers + prepared_bytes));
    if (memory == nullptr) return OV_NO_MEMORY;
  }
  if (prepared_bytes > 0) {
    char* prepared = memory + worker_bytes * num_workers;
    const auto prepare = [&](int64_t piece) { kernel.prepare(gemm, piece, prepared); };
    const int64_t num_pieces = kernel.num_pieces(gemm);
    if (prepared_bytes < MIN_PARALLEL_BYTES) {
      for (int64_t piece = 0; piece < num_pieces; ++piece) prepare(piece);
    } else {
      pool->threads.run(num_pieces, prepare);
    }
    gemm.x = prepared;
    gemm.x_is_prepared = true;
  }
  Parts parts(kernel.num_parts(gemm));
  pool->threads.run(num_workers, [&](int64_t worker) { kernel.multiply(gemm, parts, memory + worker_bytes * worker); });
  return OV_OK;
}

double ov_probe_read(ov_pool* pool, const void* memory, uint64_t num_bytes) {
  if (pool == nullptr || memory == nullptr || !is_aligned(memory) || num_bytes < READ_UNIT) return 0.0;
  ReadAll read_all = read_all_portable;
#if defined(__x86_64__)
  if (pool->isa == OV_AVX512 || pool->isa == OV_AMX) read_all = read_all_avx512;
#endif
  constexpr uint64_t CHUNK = uint64_t(4) << 20;
  const uint64_t end = num_bytes / READ_UNIT * READ_UNIT;
  std::atomic<uint64_t> sum{0};
  const double seconds = seconds_of([&] {
    pool->threads.run(int64_t((end + CHUNK - 1) / CHUNK), [&](int64_t chunk) {
      const uint64_t start = uint64_t(chunk) * CHUNK;
      sum += read_all(static_cast<const char*>(memory) + start, end - start < CHUNK ? end - start : CHUNK);
    });
  });
  return double(end) / seconds;
}

double ov_probe_amx(ov_pool* pool, int32_t num_steps) {
  if (pool == nullptr || num_steps < 1 || pool->isa != OV_AMX) return 0.0;
#if defined(__x86_64__)
  const int num_threads = pool->threads.num_threads();
  const double seconds = seconds_of(
      [&] { pool->threads.run(num_threads, [&](int64_t) { multiply_tiles_in_cache(num_steps); }); });
  return num_threads * double(num_steps) * AMX_STEP_FLOPS / seconds;
#else
  return 0.0;
#endif
}

}  // extern "C"
