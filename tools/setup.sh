#!/usr/bin/env bash
# Makes a virtual environment in .venv with Placer and its extras; does nothing if it is up to date.
# Usage: bash tools/setup.sh [extra,...]
set -euo pipefail
cd "$(dirname "$0")/.."
extras=${1:-plots,partition}
for tool in python3 c++; do
  command -v "$tool" >/dev/null || {
    echo "tools/setup.sh: $tool is missing; on Debian or Ubuntu: apt-get install python3-venv python3-dev g++" >&2
    exit 2
  }
done
[ -x .venv/bin/pip ] || python3 -m venv .venv
stamp=.venv/placer-$extras
sources="setup.py pyproject.toml protos placer/native"
if [ ! -e "$stamp" ] || [ -n "$(find $sources -newer "$stamp" -type f -print -quit)" ]; then
  pip() { .venv/bin/pip --quiet --disable-pip-version-check "$@"; }
  pip install --upgrade pip
  # What the build needs goes into .venv itself: a separate build environment would download and
  # unpack TensorFlow a second time, for its headers.
  pip install 'setuptools>=77' wheel 'pybind11>=3.0' 'grpcio-tools==1.85.1' 'tensorflow==2.21.*'
  pip install --no-build-isolation -e ".[$extras]"
  touch "$stamp"
fi
