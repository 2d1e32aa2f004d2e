"""The commands of `python -m eval`, one module each: add_arguments(parser) and run(options)."""
