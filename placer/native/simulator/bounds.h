// Step times that no placement can beat.
#ifndef PLACER_NATIVE_SIMULATOR_BOUNDS_H_
#define PLACER_NATIVE_SIMULATOR_BOUNDS_H_

#include <cstdint>
#include <string>

#include "model.h"

namespace placer {

struct LowerBound {
  double critical_path_seconds = 0;  // longest chain, each op at its best allowed device
  double transfer_seconds = 0;       // chains with transfers, and what must share a device
  double work_seconds = 0;           // all work, split over the devices in the best way
  double window_seconds = 0;         // work of ops that cannot run early or late
  double colocation_seconds = 0;     // the colocation group that takes longest where it is fastest
  // Empty, or why no placement fits into memory.
  std::string memory_problem;
};

// `allowed` is [N, D] or null (all). Ops of equal `colocation` >= 0 ([N] or null) share a device.
// Throws std::invalid_argument if an op or colocation group has no allowed device.
LowerBound ComputeLowerBound(const Model& model, const bool* allowed, const int32_t* colocation);

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_BOUNDS_H_
