// A thread pool whose threads claim chunks of work, and whose caller never waits for a helper that has not started.
//
// `run` publishes a job and the calling thread works on it, too. Helpers that are awake claim chunks as well. Once the
// last chunk is claimed, the caller waits only for chunks in progress: a helper that the operating system has not
// scheduled delays nothing. (OpenMP's barriers wait for every thread, which takes milliseconds when a core is shared.)
//
// Results do not depend on which thread computes a chunk.
#pragma once

#include <atomic>
#include <cstdint>
#include <memory>
#include <thread>
#include <vector>

namespace octavo {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return int(helpers_.size()) + 1; }

  // Calls work(chunk) once for each chunk in [0, num_chunks) and returns when all calls have returned.
  template <class Work>
  void run(int64_t num_chunks, const Work& work) {
    run_job(num_chunks, [](const void* context, int64_t chunk) { (*static_cast<const Work*>(context))(chunk); },
            &work);
  }

 private:
  using Function = void (*)(const void* context, int64_t chunk);

  // next_chunk_ holds the next chunk to claim and the number of its job in one word, so a late helper can neither claim
  // a chunk of a job that it has not seen nor miss that its own job has ended.
  //     bits 63..32 job number, bits 31..0 next chunk
  struct Job {
    Function function = nullptr;
    const void* context = nullptr;
    uint32_t num_chunks = 0;
  };

  void run_job(int64_t num_chunks, Function function, const void* context);
  void work_on(uint32_t number);
  void help();

  alignas(64) std::atomic<uint32_t> job_number_{0};
  alignas(64) std::atomic<uint64_t> next_chunk_{0};
  alignas(64) std::atomic<uint32_t> num_done_{0};
  alignas(64) std::atomic<int> num_asleep_{0};
  std::atomic<bool> stopping_{false};
  Job jobs_[4];  // by job number modulo 4: a late helper may still read the previous job
  std::vector<std::thread> helpers_;
};

}  // namespace octavo
