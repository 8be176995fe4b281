// Large zeroed allocations on huge pages: weights are read from end to end in every step, and small pages would
// spend that time in page-table walks.
#pragma once

#include <cstddef>

namespace octavo {

void* allocate(size_t num_bytes);  // aligned to 64 bytes at least; null if there is no memory
void release(void* memory, size_t num_bytes);

// A buffer that grows and is never filled.
class Scratch {
 public:
  Scratch() = default;
  ~Scratch() { release(memory_, num_bytes_); }
  Scratch(const Scratch&) = delete;
  Scratch& operator=(const Scratch&) = delete;

  void* get(size_t num_bytes);  // valid until the next call; null if there is no memory

 private:
  void* memory_ = nullptr;
  size_t num_bytes_ = 0;
};

}  // namespace octavo
