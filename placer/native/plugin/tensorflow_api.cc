#include "placer/native/plugin/tensorflow_api.h"

#include <dlfcn.h>

#include <string_view>
#include <unordered_set>

namespace placer::plugin {
namespace {

// GrapplerItem::devices() const, which no function of the C API stands for. The tag in the
// mangled name fixes the return type to one that holds std::string of this C++ library.
constexpr char kItemDevices[] = "_ZNK10tensorflow8grappler12GrapplerItem7devicesB5cxx11Ev";

// A function of TensorFlow's, from the libraries already in the process; null if there is none.
template <typename Function>
Function Resolve(const char* name) {
  for (const char* library : {"libtensorflow_cc.so.2", "libtensorflow_framework.so.2"}) {
    void* handle = dlopen(library, RTLD_NOLOAD | RTLD_LAZY | RTLD_LOCAL);
    if (handle == nullptr) continue;
    void* symbol = dlsym(handle, name);
    dlclose(handle);  // Only drops the count that dlopen added.
    if (symbol != nullptr) return reinterpret_cast<Function>(symbol);
  }
  return reinterpret_cast<Function>(dlsym(RTLD_DEFAULT, name));
}

using SetStatus = void (*)(TF_Status*, TF_Code, const char*);

SetStatus FindSetStatus() {
  static const SetStatus function = Resolve<SetStatus>("TF_SetStatus");
  return function;
}

std::string_view View(const TF_Buffer* buffer) {
  return {static_cast<const char*>(buffer->data), buffer->length};
}

void Delete(TF_Buffer* buffer) {
  static const auto function = Resolve<void (*)(TF_Buffer*)>("TF_DeleteBuffer");
  if (function != nullptr && buffer != nullptr) function(buffer);
}

OpRegistry ReadOps() {
  OpRegistry registry;
  const auto list = Resolve<TF_Buffer* (*)()>("TF_GetAllOpList");
  TF_Buffer* buffer = list == nullptr ? nullptr : list();
  if (buffer != nullptr && !registry.Parse(View(buffer))) registry = OpRegistry();
  Delete(buffer);
  return registry;
}

const KernelRegistry* ReadKernels() {
  const auto list = Resolve<TF_Buffer* (*)(TF_Status*)>("TF_GetAllRegisteredKernels");
  const auto new_status = Resolve<TF_Status* (*)()>("TF_NewStatus");
  const auto delete_status = Resolve<void (*)(TF_Status*)>("TF_DeleteStatus");
  if (list == nullptr || new_status == nullptr || delete_status == nullptr) return nullptr;
  TF_Status* status = new_status();
  TF_Buffer* buffer = list(status);
  delete_status(status);
  if (buffer == nullptr) return nullptr;
  auto* registry = new KernelRegistry();
  const bool parsed = registry->Parse(View(buffer));
  Delete(buffer);
  if (parsed) return registry;
  delete registry;
  return nullptr;
}

}  // namespace

const OpRegistry& TensorFlowOps() {
  static const auto* const registry = new OpRegistry(ReadOps());
  return *registry;
}

const KernelRegistry* TensorFlowKernels() {
  static const KernelRegistry* const registry = ReadKernels();
  return registry;
}

std::vector<std::string> SessionDevices(const TF_GrapplerItem* item) {
  using Devices = const std::unordered_set<std::string>& (*)(const TF_GrapplerItem*);
  static const auto function = Resolve<Devices>(kItemDevices);
  if (function == nullptr || item == nullptr) return {};
  const std::unordered_set<std::string>& devices = function(item);
  return {devices.begin(), devices.end()};
}

bool SetNothingDone(TF_Status* status) {
  const SetStatus set = FindSetStatus();
  if (set == nullptr) return false;
  set(status, TF_ABORTED, "Placer left the graph as it is");
  return true;
}

void SetError(TF_Status* status, const char* message) {
  const SetStatus set = FindSetStatus();
  if (set != nullptr) set(status, TF_FAILED_PRECONDITION, message);
}

}  // namespace placer::plugin
