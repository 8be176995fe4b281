#include "probe_read.h"

namespace octavo {

uint64_t read_all_avx512(const void* memory, size_t num_bytes) { return read_lines(memory, num_bytes); }

}  // namespace octavo
