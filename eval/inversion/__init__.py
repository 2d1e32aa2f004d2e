"""Recovering the input tokens from a hidden layer, and saying what could not be recovered."""
