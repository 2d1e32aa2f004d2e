"""What rows say: one frame, one aggregator, one set of intervals."""
