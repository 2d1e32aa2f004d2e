"""Lightning training: packed data and a recipe in, a run directory out.

    python -m train fit --config flat --data DIR --run runs/flat

Imports `arch` and `tokenizer`, nothing else of this project.
"""
