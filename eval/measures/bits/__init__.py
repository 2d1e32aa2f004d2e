"""Bits: how much shown outputs say of one token, every candidate run in its place."""
