#!/bin/sh
# Builds everything with Bazel and runs its tests, offline. See docs/bazel.md.
#
#   PLACER_PYTHON=/path/to/python tools/bazel/test.sh [TARGETS]
set -eu
cd "$(dirname "$0")/../.."
PLACER_PYTHON=${PLACER_PYTHON:-$(command -v python3)}
export PLACER_PYTHON
if [ $# -eq 0 ]; then set -- //...; fi
bazel build "$@"
bazel test "$@"
