"""One-off entry points: demo, benchmarks, GPU check."""

import arch.kernels.process  # noqa: F401 - before torch
