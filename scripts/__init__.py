"""One-off entry points: demo, benchmarks, GPU check."""

import arch.kernels.threads  # noqa: F401 - before torch
