// Many placements at once, on a pool of threads that outlives the calls.
#ifndef PLACER_NATIVE_SIMULATOR_BATCH_H_
#define PLACER_NATIVE_SIMULATOR_BATCH_H_

#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <vector>

#include "engine.h"
#include "model.h"

namespace placer {

// Runs work(item) for items 0..count-1 on up to `threads` threads, the calling one among them.
// Which thread takes which item is left open. `poll` is called by the calling thread now and then;
// when it returns true, no further items are begun and ParallelFor returns false. Exceptions of
// `work` are rethrown here.
bool ParallelFor(int64_t count, int threads, const std::function<void(int64_t)>& work,
                 const std::function<bool()>& poll);

// Row-major results of a batch, borrowed.
struct BatchResults {
  double* step_seconds;       // [B]
  bool* feasible;             // [B]
  int64_t* peak_bytes;        // [B, D]
  double* busy_seconds;       // [B, D]
  double* transfer_seconds;   // [B, D]
  int64_t* transfer_bytes;    // [B, D]
};

// Keeps engines between calls; any number of threads may use it at once.
class EnginePool {
 public:
  explicit EnginePool(const Model& model) : model_(model) {}
  std::unique_ptr<Engine> Take();
  void Give(std::unique_ptr<Engine> engine);

 private:
  const Model& model_;
  std::mutex mutex_;
  std::vector<std::unique_ptr<Engine>> idle_;
};

// Throws std::invalid_argument for the first entry of the placements that is not a device.
void CheckPlacements(const int32_t* placements, int64_t rows, int64_t width, int32_t devices);

// Evaluates `rows` placements. Returns false if `poll` stopped it.
bool EvaluateBatch(const Model& model, EnginePool* engines, const Slots& slots,
                   const int32_t* placements, int64_t rows, const double* cutoffs, int threads,
                   const BatchResults& results, const std::function<bool()>& poll);

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_BATCH_H_
