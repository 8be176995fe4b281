#include "probe.h"

#include <cstring>

namespace octavo {

constexpr size_t PREFETCH = 8192;  // bytes ahead, as the matrix product does

uint64_t read_all(const void* memory, size_t num_bytes) {
  // Eight independent sums, so that loads and not additions set the pace.
  uint64_t sums[8] = {};
  const char* from = static_cast<const char*>(memory);
  for (size_t i = 0; i + 64 <= num_bytes; i += 64) {
    __builtin_prefetch(from + i + PREFETCH);
    uint64_t words[8];
    memcpy(words, from + i, 64);
    for (int j = 0; j < 8; ++j) sums[j] += words[j];
  }
  uint64_t total = 0;
  for (uint64_t sum : sums) total += sum;
  return total;
}

}  // namespace octavo
