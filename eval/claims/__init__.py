"""The claims of the sources, numbered: what each says, how it is asked, and what became of it."""

BENCH = 1
"""The bench's version: raised when the same question would be answered otherwise than before."""
CURVES = "curves"
"""What stands for a claim's number where rows answer the curves."""
