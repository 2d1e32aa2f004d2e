"""Checkpoints beside each other."""
