"""Recovers input tokens from the outputs of a layer, and proves which were recovered."""
