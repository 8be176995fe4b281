#include "pool.h"

#include "flush.h"

namespace octavo {

namespace {

// About 50 microseconds: longer than the gaps between the kernels of a step, and short enough to waste little CPU time.
constexpr int SPINS_BEFORE_SLEEP = 20000;

void relax() {
#if defined(__x86_64__)
  __builtin_ia32_pause();
#elif defined(__aarch64__)
  __asm__ volatile("isb");  // waits about as long as x86's pause; `yield` does nothing on most of these processors
#endif
}

}  // namespace

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) helpers_.emplace_back([this] { help(); });
}

ThreadPool::~ThreadPool() {
  stopping_.store(true);
  job_number_.fetch_add(1);
  job_number_.notify_all();
  for (std::thread& helper : helpers_) helper.join();
}

void ThreadPool::run_job(int64_t num_chunks, Function function, const void* context) {
  if (num_chunks <= 0) return;
  const uint32_t number = job_number_.load(std::memory_order_relaxed) + 1;
  jobs_[number % 4] = {function, context, uint32_t(num_chunks)};
  num_done_.store(0, std::memory_order_relaxed);
  next_chunk_.store(uint64_t(number) << 32, std::memory_order_release);
  job_number_.store(number, std::memory_order_seq_cst);
  if (num_asleep_.load(std::memory_order_seq_cst) > 0) job_number_.notify_all();
  work_on(number);
  while (num_done_.load(std::memory_order_acquire) < uint32_t(num_chunks)) relax();
}

void ThreadPool::work_on(uint32_t number) {
  const IeeeMode mode;
  for (;;) {
    uint64_t next = next_chunk_.load(std::memory_order_acquire);
    if (uint32_t(next >> 32) != number) return;
    const Job& job = jobs_[number % 4];
    const uint32_t chunk = uint32_t(next);
    if (chunk >= job.num_chunks) return;
    if (!next_chunk_.compare_exchange_weak(next, next + 1, std::memory_order_acq_rel)) continue;
    job.function(job.context, chunk);
    num_done_.fetch_add(1, std::memory_order_release);
  }
}

void ThreadPool::help() {
  uint32_t seen = 0;
  for (;;) {
    for (int spins = 0; job_number_.load(std::memory_order_acquire) == seen; ++spins) {
      if (spins < SPINS_BEFORE_SLEEP) {
        relax();
        continue;
      }
      num_asleep_.fetch_add(1, std::memory_order_seq_cst);
      job_number_.wait(seen, std::memory_order_seq_cst);
      num_asleep_.fetch_sub(1, std::memory_order_relaxed);
    }
    if (stopping_.load()) return;
    seen = job_number_.load(std::memory_order_acquire);
    work_on(seen);
  }
}

}  // namespace octavo
