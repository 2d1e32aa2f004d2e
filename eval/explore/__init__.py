"""A page in the browser on which models are asked about one's own sentence."""
