"""Kinds of files that other programs write, a module each; `kind.py` has their contract."""
