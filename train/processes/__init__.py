"""The processes of one run: which of them this one is, and how they end together."""
