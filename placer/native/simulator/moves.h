// Evaluating small changes of one placement without simulating all of it again.
//
// A run of the base placement leaves checkpoints: its complete state just before an op ends. A
// candidate that moves some slots runs like the base until the first op that feeds a moved op
// ends, so it starts from the last checkpoint before. And once the moved ops have ended, as soon as
// its state equals a checkpoint's, all that follows is the base's too. Both are exact.
#ifndef PLACER_NATIVE_SIMULATOR_MOVES_H_
#define PLACER_NATIVE_SIMULATOR_MOVES_H_

#include <cstdint>
#include <functional>
#include <vector>

#include "batch.h"
#include "engine.h"

namespace placer {

struct Checkpoint {
  Engine::State state;  // memory.peak: since the previous checkpoint
  int64_t ended = 0;    // ops that had ended; the next to end is `op`, at `seconds`
  int32_t op = -1;
  double seconds = 0;
  std::vector<int64_t> peak_before;  // [D] highest up to here
  std::vector<int64_t> peak_after;   // [D] highest from here on
};

struct MoveBase {
  const Model* model = nullptr;  // never followed, only compared
  std::vector<int32_t> row;  // [width] the placement
  int64_t interval = 0;      // ops that end from one checkpoint to the next
  std::vector<Checkpoint> checkpoints;
  double step_seconds = 0;
  std::vector<int64_t> peak_bytes;
  std::vector<int64_t> op_touched;  // [num_ops] ops that had ended when its device first mattered
  std::vector<int64_t> op_ended;    // [num_ops] how many had ended before it
  std::vector<int64_t> slot_touched, slot_ended;         // [width] first and last of its ops
  std::vector<int32_t> slot_op_begin, slot_ops;          // executed ops of each slot
  std::vector<int32_t> slot_persistent_begin, slot_persistent;  // ops with persistent bytes
};

// Builds the base for a row of checked devices.
void BuildMoveBase(const Model& model, Engine* engine, const Slots& slots, const int32_t* row,
                   MoveBase* base);

struct MoveResults {
  double* step_seconds;  // [B]
  bool* feasible;        // [B]
  int64_t* peak_bytes;   // [B, D]
};

// Candidate b moves move_slots[i] to move_devices[i] for i in move_ptr[b]..move_ptr[b + 1] - 1.
// Throws std::invalid_argument for ranges, slots or devices that do not exist and for a slot that a
// candidate moves twice. Returns false if `poll` stopped it.
bool EvaluateMoves(const Model& model, EnginePool* engines, const MoveBase& base, int64_t rows,
                   const int64_t* move_ptr, const int32_t* move_slots, const int32_t* move_devices,
                   int64_t num_moves, const double* cutoffs, int threads,
                   const MoveResults& results, const std::function<bool()>& poll);

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_MOVES_H_
