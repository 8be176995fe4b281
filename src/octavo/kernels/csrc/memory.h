// Large zeroed allocations on huge memory pages. Every step reads all weights, and with small pages it would spend
// much of its time in page-table walks.
#pragma once

#include <cstddef>

namespace octavo {

void* allocate(size_t num_bytes);  // aligned to 64 bytes or more; null if memory is exhausted
void release(void* memory, size_t num_bytes);

// A buffer that grows on demand. Its contents are not initialised.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(memory_, num_bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* get(size_t num_bytes);  // valid until the next call; null if memory is exhausted

 private:
  void* memory_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace octavo
