"""Where outputs are taken: layers, parts of them, positions and channels."""
