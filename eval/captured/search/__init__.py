"""Searches for the tokens behind what was captured: outputs of a site, or scores of few tokens."""
