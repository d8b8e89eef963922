// Earliest starts and latest ends that count transfers and the work that has to share a device.
#ifndef PLACER_NATIVE_SIMULATOR_TRANSFER_BOUND_H_
#define PLACER_NATIVE_SIMULATOR_TRANSFER_BOUND_H_

#include <cstdint>
#include <vector>

#include "model.h"

namespace placer {

struct TransferBound {
  double seconds = 0;                // no placement's step takes less
  std::vector<double> heads, tails;  // [num_ops] least seconds before each op starts, after it ends
};

// `usable` is [num_ops, D]; `group` is [num_ops], ops of equal number >= 0 share a device.
TransferBound ComputeTransferBound(const Model& model, const std::vector<char>& usable,
                                   const std::vector<int32_t>& group);

}  // namespace placer

#endif  // PLACER_NATIVE_SIMULATOR_TRANSFER_BOUND_H_
