"""What the benchmarks in `scripts/` share; nothing that is installed knows it."""
