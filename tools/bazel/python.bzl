"""The Python that Bazel builds for and tests with."""

_BUILD = """
package(default_visibility = ["//visibility:public"])

load("@bazel_tools//tools/python:toolchain.bzl", "py_runtime_pair")

py_runtime(
    name = "runtime",
    interpreter_path = "{interpreter}",
    python_version = "PY3",
)

py_runtime_pair(
    name = "runtime_pair",
    py3_runtime = ":runtime",
)

toolchain(
    name = "toolchain",
    toolchain = ":runtime_pair",
    toolchain_type = "@bazel_tools//tools/python:toolchain_type",
)

# C headers only: the plugin neither compiles against TensorFlow's C++ nor links it.
cc_library(
    name = "tensorflow_headers",
    hdrs = glob(["tensorflow/tensorflow/c/**/*.h", "tensorflow/xla/**/c_api*.h"])
           + glob(["tensorflow/tsl/c/**/*.h", "tensorflow/xla/tsl/c/**/*.h"]),
    includes = ["tensorflow"],
)

cc_library(
    name = "pybind11",
    hdrs = glob(["pybind11/**/*.h", "python/**/*.h"]),
    includes = ["pybind11", "python"],
)
"""

_SCRIPT = """
import importlib.util, sysconfig, pybind11
print(importlib.util.find_spec("tensorflow").submodule_search_locations[0] + "/include")
print(pybind11.get_include())
print(sysconfig.get_paths()["include"])
"""

def _python_repository(ctx):
    interpreter = ctx.os.environ.get("PLACER_PYTHON") or ctx.which("python3")
    if not interpreter:
        fail("no python3 found; set PLACER_PYTHON to the interpreter that has TensorFlow")
    found = ctx.execute([interpreter, "-c", _SCRIPT])
    if found.return_code != 0:
        fail("%s lacks tensorflow or pybind11; set PLACER_PYTHON\n%s" % (interpreter, found.stderr))
    tensorflow, pybind11, python = found.stdout.strip().split("\n")
    ctx.symlink(tensorflow, "tensorflow")
    ctx.symlink(pybind11, "pybind11")
    ctx.symlink(python, "python")
    ctx.file("BUILD", _BUILD.format(interpreter = interpreter))
    ctx.file("defs.bzl", "PYTHON = \"%s\"\n" % interpreter)

python_repository = repository_rule(
    implementation = _python_repository,
    environ = ["PLACER_PYTHON", "PATH"],
    local = True,
)
