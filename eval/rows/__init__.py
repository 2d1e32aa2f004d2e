"""Rows of evidence: their kinds, the files that keep them, and the one runner of the work."""
