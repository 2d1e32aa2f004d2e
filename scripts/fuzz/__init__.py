"""A fuzz of every door: `python -m scripts.fuzz`."""
