#include "memory.h"

#include <cstdint>
#include <cstdlib>
#include <cstring>

#if defined(__linux__)
#include <sys/mman.h>
#endif

namespace octavo {

namespace {

constexpr size_t HUGE_PAGE = size_t(2) << 20;

size_t rounded(size_t num_bytes) { return (num_bytes + HUGE_PAGE - 1) / HUGE_PAGE * HUGE_PAGE; }

}  // namespace

#if defined(__linux__)

void* allocate(size_t num_bytes) {
  if (num_bytes == 0 || num_bytes > SIZE_MAX / 2) return nullptr;
  // Map one page more than needed, so that it contains an aligned range, and unmap the rest.
  const size_t size = rounded(num_bytes);
  char* start = static_cast<char*>(
      mmap(nullptr, size + HUGE_PAGE, PROT_READ | PROT_WRITE, MAP_PRIVATE | MAP_ANONYMOUS, -1, 0));
  if (start == MAP_FAILED) return nullptr;
  char* aligned = reinterpret_cast<char*>(rounded(reinterpret_cast<size_t>(start)));
  if (aligned > start) munmap(start, size_t(aligned - start));
  munmap(aligned + size, size_t(start + HUGE_PAGE - aligned));
  madvise(aligned, size, MADV_HUGEPAGE);  // only a hint: failure is harmless
  return aligned;
}

void release(void* memory, size_t num_bytes) {
  if (memory != nullptr) munmap(memory, rounded(num_bytes));
}

#else

void* allocate(size_t num_bytes) {
  if (num_bytes == 0) return nullptr;
  void* memory = aligned_alloc(4096, rounded(num_bytes));
  if (memory != nullptr) memset(memory, 0, rounded(num_bytes));
  return memory;
}

void release(void* memory, size_t) { free(memory); }

#endif

void* Scratch::get(size_t num_bytes) {
  if (num_bytes > num_bytes_) {
    release(memory_, num_bytes_);
    num_bytes_ = 0;
    memory_ = allocate(num_bytes);
    if (memory_ != nullptr) num_bytes_ = num_bytes;
  }
  return memory_;
}

}  // namespace octavo
