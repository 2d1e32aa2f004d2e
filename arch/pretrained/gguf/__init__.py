"""Models in GGUF files, which transformers reads: the file, settings, weights and tokens."""
