"""What Mirhoseini et al., Device Placement Optimization with Reinforcement Learning (ICML 2017),
report: table 1, step times measured on a host of K80s, and the sizes of their graphs.
"""

from __future__ import annotations

import math

from benchmarks.contest import PAPER_POLICY

_OOM = math.inf
MODELS = ("rnnlm", "nmt", "inception_v3")
# Ops of their graphs, before co-location (section 4.1).
OPS = {"rnnlm": 8_943, "nmt": 22_097, "inception_v3": 31_180}
# Step times in seconds by model, GPUs and method; inf: out of memory.
SECONDS: dict[tuple[str, int, str], float] = {
    ("rnnlm", 1, "single_cpu"): 6.89,
    ("rnnlm", 1, "single_gpu"): 1.57,
    ("rnnlm", 2, "scotch"): 13.43,
    ("rnnlm", 2, "mincut"): 11.94,
    ("rnnlm", 2, "expert"): 3.81,
    ("rnnlm", 2, PAPER_POLICY): 1.57,
    ("rnnlm", 4, "scotch"): 11.52,
    ("rnnlm", 4, "mincut"): 10.44,
    ("rnnlm", 4, "expert"): 4.46,
    ("rnnlm", 4, PAPER_POLICY): 1.57,
    ("nmt", 1, "single_cpu"): 10.72,
    ("nmt", 1, "single_gpu"): _OOM,
    ("nmt", 2, "scotch"): 14.19,
    ("nmt", 2, "mincut"): 11.54,
    ("nmt", 2, "expert"): 4.99,
    ("nmt", 2, PAPER_POLICY): 4.04,
    ("nmt", 4, "scotch"): 11.23,
    ("nmt", 4, "mincut"): 11.78,
    ("nmt", 4, "expert"): 4.73,
    ("nmt", 4, PAPER_POLICY): 3.92,
    ("inception_v3", 1, "single_cpu"): 26.21,
    ("inception_v3", 1, "single_gpu"): 4.60,
    ("inception_v3", 2, "scotch"): 25.24,
    ("inception_v3", 2, "mincut"): 22.88,
    ("inception_v3", 2, "expert"): 11.22,
    ("inception_v3", 2, PAPER_POLICY): 4.60,
    ("inception_v3", 4, "scotch"): 23.41,
    ("inception_v3", 4, "mincut"): 24.52,
    ("inception_v3", 4, "expert"): 10.65,
    ("inception_v3", 4, PAPER_POLICY): 3.85,
}
