"""Programs that check what the README claims; run with `python -m benchmarks`."""
