#!/usr/bin/env bash
# Sets up .venv, checks style and types, and runs the tests and the benchmarks' smoke test.
# Usage: bash tools/test.sh [arguments of pytest, instead of all tests and the smoke test]
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/setup.sh plots,partition,test
export TF_CPP_MIN_LOG_LEVEL=3
.venv/bin/ruff check .
.venv/bin/ruff format --check .
.venv/bin/mypy
.venv/bin/python -m pytest -q --durations=15 "$@"
[ $# -gt 0 ] || .venv/bin/python -m benchmarks smoke
