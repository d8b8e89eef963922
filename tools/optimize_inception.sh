#!/usr/bin/env bash
# Sets up .venv, builds the Inception-V3 training graph and places it on four K80s.
# Usage: bash tools/optimize_inception.sh [flags of placer optimize]
set -euo pipefail
cd "$(dirname "$0")/.."
bash tools/setup.sh
mkdir -p out
.venv/bin/python -m benchmarks.models --export out --model inception_v3
.venv/bin/placer optimize out/inception_v3-paper.pb --devices k80:4 --budget 60 \
  --output out/inception_v3-placed.pb "$@"
