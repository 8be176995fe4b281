// What kernels run on: threads, scratch memory, and the instruction set that was chosen. And the checks that every
// border function makes.
#pragma once

#include <chrono>
#include <cstdint>

#include "attention_plan.h"
#include "memory.h"
#include "octavo_kernels.h"
#include "pool.h"

struct ov_engine {
  ov_engine(int num_threads, ov_isa isa) : pool(num_threads), isa(isa) {}
  octavo::ThreadPool pool;
  const ov_isa isa;
  octavo::Scratch scratch;  // for the length of one call
  octavo::AttentionPlans attention_plans;
  ov_times times = {};
};

namespace octavo {

constexpr int64_t MOST = int64_t(1) << 40;  // strides below this cannot overflow when multiplied by an element's size

// Adds its own lifetime to one kind of kernel. A border function has one, from where it knows its engine to its end.
class Timer {
 public:
  explicit Timer(ov_time& time) : time_(time) {}
  ~Timer() {
    const auto passed = std::chrono::steady_clock::now() - start_;
    time_.nanoseconds += uint64_t(std::chrono::duration_cast<std::chrono::nanoseconds>(passed).count());
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
