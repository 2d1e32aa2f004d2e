"""Tensors that somebody else captured: their text, and how sure each token is."""
