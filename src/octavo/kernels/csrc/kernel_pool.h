// The kernel thread pool: threads, scratch memory and the chosen instruction set. Also the argument checks that all
// functions of the C interface share.
#pragma once

#include <chrono>
#include <cstdint>

#include "attention_plan.h"
#include "memory.h"
#include "octavo_kernels.h"
#include "pool.h"

struct ov_pool {
  ov_pool(int num_threads, ov_isa isa) : threads(num_threads), isa(isa) {}
  octavo::ThreadPool threads;
  const ov_isa isa;
  octavo::Scratch scratch;  // contents are valid during one call
  octavo::AttentionPlans attention_plans;
  ov_times times = {};
};

namespace octavo {

// Maximum stride, offset or number of elements: multiplied by the size of an element, it does not overflow.
constexpr int64_t MAX_SIZE = int64_t(1) << 40;

// Adds its own lifetime to the time of one kind of kernel. A function of the C interface creates one as soon as it has
// checked its pool.
class Timer {
 public:
  explicit Timer(ov_time& time) : time_(time) {}
  ~Timer() {
    const auto elapsed = std::chrono::steady_clock::now() - start_;
    time_.nanoseconds += uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(elapsed).count());
    ++time_.calls;
  }
  Timer(const Timer&) = delete;
  Timer& operator=(const Timer&) = delete;

 private:
  ov_time& time_;
  const std::chrono::steady_clock::time_point start_ = std::chrono::steady_clock::now();
};

inline bool is_aligned(const void* pointer) { return reinterpret_cast<uintptr_t>(pointer) % 64 == 0; }
inline bool is_size(int64_t value) { return value > 0 && value < (int64_t(1) << 31); }
inline bool is_format(ov_format format) { return format >= 0 && format < OV_NUM_FORMATS; }
inline bool is_dtype(ov_dtype dtype) { return dtype == OV_BF16 || dtype == OV_F32; }

}  // namespace octavo
