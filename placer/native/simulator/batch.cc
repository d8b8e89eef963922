#include "batch.h"

#include <unistd.h>

#include <algorithm>
#include <atomic>
#include <chrono>
#include <condition_variable>
#include <exception>
#include <stdexcept>
#include <string>
#include <thread>
#include <utility>

namespace placer {
namespace {

// One call of ParallelFor. Helpers that come late find nothing left to do.
struct Job {
  int64_t count = 0;
  const std::function<void(int64_t)>* work = nullptr;
  std::atomic<int64_t> next{0};
  std::atomic<bool> stop{false};
  std::mutex mutex;
  std::condition_variable idle;
  int active = 0;  // helpers inside Help()
  std::exception_ptr error;

  // Takes items until none are left. `between` runs after each; true stops the job.
  void Help(const std::function<bool()>& between) {
    while (!stop.load(std::memory_order_relaxed)) {
      const int64_t item = next.fetch_add(1, std::memory_order_relaxed);
      if (item >= count) return;
      try {
        (*work)(item);
        if (between && between()) stop = true;
      } catch (...) {
        const std::lock_guard<std::mutex> lock(mutex);
        if (!error) error = std::current_exception();
        stop = true;
      }
    }
  }
};

class ThreadPool {
 public:
  // Threads do not survive a fork; a child gets a pool of its own, and the parent's is left alone.
  static ThreadPool& Get() {
    static std::mutex mutex;
    static ThreadPool* pool = nullptr;
    static pid_t owner = 0;
    const std::lock_guard<std::mutex> lock(mutex);
    if (pool == nullptr || owner != getpid()) {
      pool = new ThreadPool();  // never destroyed: its threads may wait for work at exit
      owner = getpid();
    }
    return *pool;
  }

  void Submit(const std::shared_ptr<Job>& job, int helpers) {
    const std::lock_guard<std::mutex> lock(mutex_);
    while (threads_ < std::min(helpers, kMaxThreads)) {
      std::thread([this] { Serve(); }).detach();
      ++threads_;
    }
    for (int i = 0; i < helpers; ++i) jobs_.push_back(job);
    if (helpers == 1) wake_.notify_one();
    else wake_.notify_all();
  }

  // Takes back the requests for help that no thread has answered.
  void Withdraw(const Job* job) {
    const std::lock_guard<std::mutex> lock(mutex_);
    jobs_.erase(std::remove_if(jobs_.begin(), jobs_.end(),
                               [job](const std::shared_ptr<Job>& j) { return j.get() == job; }),
                jobs_.end());
  }

 private:
  static constexpr int kMaxThreads = 256;

  void Serve() {
    for (;;) {
      std::shared_ptr<Job> job;
      {
        std::unique_lock<std::mutex> lock(mutex_);
        wake_.wait(lock, [this] { return !jobs_.empty(); });
        job = std::move(jobs_.back());
        jobs_.pop_back();
        const std::lock_guard<std::mutex> inner(job->mutex);
        ++job->active;
      }
      job->Help(nullptr);
      {
        const std::lock_guard<std::mutex> lock(job->mutex);
        --job->active;
      }
      job->idle.notify_all();
    }
  }

  std::mutex mutex_;
  std::condition_variable wake_;
  std::vector<std::shared_ptr<Job>> jobs_;
  int threads_ = 0;
};

}  // namespace

bool ParallelFor(int64_t count, int threads, const std::function<void(int64_t)>& work,
                 const std::function<bool()>& poll) {
  const auto job = std::make_shared<Job>();
  job->count = count;
  job->work = &work;
  const int helpers = static_cast<int>(std::min<int64_t>(threads, count)) - 1;
  if (helpers > 0) ThreadPool::Get().Submit(job, helpers);
  job->Help(poll);
  if (helpers > 0) {
    ThreadPool::Get().Withdraw(job.get());
    std::unique_lock<std::mutex> lock(job->mutex);
    job->idle.wait(lock, [&job] { return job->active == 0; });
  }
  if (job->error) std::rethrow_exception(job->error);
  return !job->stop;
}

std::unique_ptr<Engine> EnginePool::Take() {
  {
    const std::lock_guard<std::mutex> lock(mutex_);
    if (!idle_.empty()) {
      std::unique_ptr<Engine> engine = std::move(idle_.back());
      idle_.pop_back();
      return engine;
    }
  }
  return std::make_unique<Engine>(model_);
}

void EnginePool::Give(std::unique_ptr<Engine> engine) {
  const std::lock_guard<std::mutex> lock(mutex_);
  idle_.push_back(std::move(engine));
}

void CheckPlacements(const int32_t* placements, int64_t rows, int64_t width, int32_t devices) {
  for (int64_t i = 0; i < rows * width; ++i) {
    if (static_cast<uint32_t>(placements[i]) >= static_cast<uint32_t>(devices)) {
      throw std::invalid_argument("placements[" + std::to_string(i / width) + ", " +
                                  std::to_string(i % width) + "] is " +
                                  std::to_string(placements[i]) + ": devices are 0 to " +
                                  std::to_string(devices - 1));
    }
  }
}

bool EvaluateBatch(const Model& model, EnginePool* engines, const Slots& slots,
                   const int32_t* placements, int64_t rows, const double* cutoffs, int threads,
                   const BatchResults& results, const std::function<bool()>& poll) {
  const int32_t devices = model.num_devices;
  const auto evaluate = [&](int64_t b) {
    std::unique_ptr<Engine> engine = engines->Take();
    const Outcome& outcome = engine->Run(slots, placements + b * slots.width, cutoffs[b]);
    results.step_seconds[b] = outcome.step_seconds;
    bool feasible = outcome.step_seconds < kNever;
    for (int32_t d = 0; d < devices; ++d) {
      const int64_t at = b * devices + d;
      results.peak_bytes[at] = outcome.peak_bytes[d];
      results.busy_seconds[at] = outcome.busy_seconds[d];
      results.transfer_seconds[at] = outcome.transfer_seconds[d];
      results.transfer_bytes[at] = outcome.transfer_bytes[d];
      feasible = feasible && outcome.peak_bytes[d] <= model.memory_limit[d];
    }
    results.feasible[b] = feasible;
    engines->Give(std::move(engine));
  };
  return ParallelFor(rows, threads, evaluate, poll);
}

}  // namespace placer
