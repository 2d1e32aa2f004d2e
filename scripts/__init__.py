"""One-off entry points: demo, benchmarks, GPU check."""

import arch.threads  # noqa: F401 - before torch
