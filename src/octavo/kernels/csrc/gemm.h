// Matrix product with packed weights, y = x * w^T + bias, in one reduction order for every number of rows.
//
// Packed forms. A column block is 32 columns of y (rows of w). n and k are padded to multiples of 32, with zeros.
//
//     bf16   [n / 32][k / 32][2 halves][16 k-pairs][16 columns][2]      a half is one AMX tile of 1 KB
//     f32    [n / 32][k / 32][32 k][32 columns]
//
// formats/format.h describes the packed forms of the quantised formats, which the product expands to bf16.
//
// Every ISA reads the same bytes, so weights are packed once, while they are read from disk.
//
// The order of summation is fixed: it does not depend on m or on the ISA. In float, an element of y is summed over k in
// ascending order, with one fused multiply-add per k. In bf16 it is summed as AMX does it, 32 k at a time
// (tile_product.h).
#pragma once

#include <cstddef>
#include <cstdint>

#include "octavo_kernels.h"

namespace octavo {

constexpr int64_t BLOCK = 32;

inline int64_t blocks_of(int64_t size) { return (size + BLOCK - 1) / BLOCK; }

// One product. x is as the caller passed it, or in the layout that the kernel prepared.
struct Gemm {
  const void* x;
  int64_t x_stride;  // in elements, if x is not prepared
  const void* packed;
  const float* bias;
  void* y;
  int64_t y_stride;
  bool y_is_bf16;
  int64_t m, n, k;
  bool x_is_prepared = false;
};

// The parts of a product, 0 to count - 1. Each part is claimed by one thread. A thread may claim its next part before
// it works on the current one, so that it knows what to prefetch.
class Parts {
 public:
  explicit Parts(int64_t count) : count_(count) {}
  int64_t claim();  // -1 if none is left

 private:
  const int64_t count_;
  int64_t next_ = 0;
};

struct GemmKernel {
  // Size of the prepared x, or 0 if x is used as it is.
  size_t (*prepared_bytes)(const Gemm& gemm);
  // The pieces in which x is prepared, in any order.
  int64_t (*num_pieces)(const Gemm& gemm);
  void (*prepare)(const Gemm& gemm, int64_t piece, void* prepared);
  // Size of the private memory of each worker.
  size_t (*worker_bytes)(const Gemm& gemm);
  // Number of parts of y. A worker computes parts until none is left.
  int64_t (*num_parts)(const Gemm& gemm);
  void (*multiply)(const Gemm& gemm, Parts& parts, void* worker_memory);
};

// Indexed by ov_format - OV_Q4_K.
constexpr int64_t FIRST_QUANTISED = OV_Q4_K, NUM_QUANTISED = OV_NUM_FORMATS - OV_Q4_K;
struct FormatKernels {
  GemmKernel of[NUM_QUANTISED];
};

GemmKernel gemm_kernel(ov_isa isa, ov_format format);

// One object file per ISA.
extern const GemmKernel gemm_f32_portable, gemm_bf16_portable;
extern const FormatKernels gemm_formats_portable;
#if defined(__x86_64__)
extern const GemmKernel gemm_f32_avx2, gemm_bf16_avx2;
extern const GemmKernel gemm_f32_avx512, gemm_bf16_avx512;
extern const GemmKernel gemm_bf16_amx;
extern const FormatKernels gemm_formats_avx2, gemm_formats_avx512, gemm_formats_amx;
#elif defined(__aarch64__)
extern const GemmKernel gemm_f32_neon, gemm_bf16_neon;
extern const FormatKernels gemm_formats_neon;
#endif

}  // namespace octavo
