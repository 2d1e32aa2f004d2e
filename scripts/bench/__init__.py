"""Benchmarks: this project beside what can stand in for it, in one run."""
