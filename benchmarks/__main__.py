"""Runs experiments: `python -m benchmarks NAME [flags]`; `smoke` runs a tiny version of each."""

from __future__ import annotations

import os
import sys

if __name__ == "__main__":
    os.environ.setdefault("TF_CPP_MIN_LOG_LEVEL", "3")
    from benchmarks.command import main

    sys.exit(main(sys.argv[1:]))
