"""Solvers that search: they try tokens exactly, left to right or in turns."""
