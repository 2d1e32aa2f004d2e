"""The commands: a function each, whose signature is its flags and its Python API."""
