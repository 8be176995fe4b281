// Measures the current speed of this machine. Benchmarks report results relative to it.
#pragma once

#include <cstddef>
#include <cstdint>

namespace octavo {

// Reads memory, aligned to 64 bytes, once, in whole units of 8 KiB. The return value keeps the compiler from removing
// the loads.
constexpr size_t READ_UNIT = 8192;
using ReadAll = uint64_t (*)(const void* memory, size_t num_bytes);
uint64_t read_all_portable(const void* memory, size_t num_bytes);

#if defined(__x86_64__)
uint64_t read_all_avx512(const void* memory, size_t num_bytes);

// Multiplies tiles from the L1 cache. One step is 32 rows by 32 columns by 32 k of the matrix product.
constexpr double AMX_STEP_FLOPS = 4.0 * 2 * 16 * 16 * 32;
void multiply_tiles_in_cache(int32_t num_steps);
#endif

}  // namespace octavo
