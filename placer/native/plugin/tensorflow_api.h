// TensorFlow's C API as found in the process that loaded the plugin. Nothing is linked, so the
// library loads with any TensorFlow of the plugin C API; what is missing is done without.
#ifndef PLACER_NATIVE_PLUGIN_TENSORFLOW_API_H_
#define PLACER_NATIVE_PLUGIN_TENSORFLOW_API_H_

#include <string>
#include <vector>

#include "placer/native/plugin/registry.h"
#include "tensorflow/c/experimental/grappler/grappler.h"

namespace placer::plugin {

// All registered op types; empty if TensorFlow cannot be asked. Read at the first call.
const OpRegistry& TensorFlowOps();

// All registered kernels, or null if TensorFlow cannot be asked. Read at the first call.
const KernelRegistry* TensorFlowKernels();

// Full names of the devices of the session or function that `item` belongs to; empty if this
// TensorFlow does not tell.
std::vector<std::string> SessionDevices(const TF_GrapplerItem* item);

// Tells Grappler that the pass changed nothing, by the status it takes for that (ABORTED, see
// MetaOptimizer::RunOptimizer). False if the status cannot be set.
bool SetNothingDone(TF_Status* status);

// Sets an error.
void SetError(TF_Status* status, const char* message);

}  // namespace placer::plugin

#endif  // PLACER_NATIVE_PLUGIN_TENSORFLOW_API_H_
