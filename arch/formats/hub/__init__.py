"""Models in the hub's layout: their own code beside the weights, for transformers' Auto classes."""
