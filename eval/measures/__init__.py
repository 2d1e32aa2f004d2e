"""Questions answered without search: bits, probes, Jacobians, loss."""
