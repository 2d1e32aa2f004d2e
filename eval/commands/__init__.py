"""The commands of `python -m eval`: functions, in modules that need no torch to be imported."""
