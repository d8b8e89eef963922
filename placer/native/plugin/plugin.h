// The functions that Python calls. All are safe from any thread and never throw.
#ifndef PLACER_NATIVE_PLUGIN_PLUGIN_H_
#define PLACER_NATIVE_PLUGIN_PLUGIN_H_

#include <cstddef>
#include <cstdint>

#define PLACER_EXPORT extern "C" __attribute__((visibility("default")))

// Version of this interface; Python refuses a library of another one.
PLACER_EXPORT int32_t placer_plugin_version();

// Whether TensorFlow has called TF_InitGraph in this process.
PLACER_EXPORT int32_t placer_plugin_registered();

// Activates a serialized Placement (protos/placement.proto) and returns its id, or 0 with the
// reason in `error`.
PLACER_EXPORT int64_t placer_plugin_activate(const char* placement, size_t size,
                                             char* error, size_t error_size);
// Switches the heuristic on, with a time limit for each graph, and returns its id; 0 if it cannot.
PLACER_EXPORT int64_t placer_plugin_activate_heuristic(double limit_seconds);
// 1 if something of that id was active.
PLACER_EXPORT int32_t placer_plugin_deactivate(int64_t id);

// Copies the report, JSON, NUL-terminated, if `capacity` allows. Returns the bytes needed.
PLACER_EXPORT size_t placer_plugin_report(char* out, size_t capacity);
PLACER_EXPORT void placer_plugin_reset_report();

// Runs the pass outside TensorFlow with what is active now, on a serialized GraphDef for a
// session with these `devices` (full names, one a line; may be null). Returns the number of nodes
// moved, -1 if the bytes are no graph. If positive, `*out` holds the new graph, to be given to
// placer_plugin_free.
PLACER_EXPORT int64_t placer_plugin_rewrite(const char* graph, size_t size, const char* devices,
                                            char** out, size_t* out_size);
PLACER_EXPORT void placer_plugin_free(char* buffer);

#endif  // PLACER_NATIVE_PLUGIN_PLUGIN_H_
