"""Lenses: what a model's inside looks like, as arrays with named axes. Pure functions of a model."""
