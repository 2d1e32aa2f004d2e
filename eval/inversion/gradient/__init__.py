"""Gradient solvers: each a function in a file of its own, all on the loop in `loop`.

The rows of a batch do not touch each other: their losses are summed, so each one's gradient is its
own. Rows that are solved leave.
"""
