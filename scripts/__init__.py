"""One-off entry points: demo, benchmarks, GPU check."""
