"""Bits that outputs carry about a token when they are known at a given precision."""
