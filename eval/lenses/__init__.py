"""Lenses: what a model looks like inside, as arrays with named axes."""
