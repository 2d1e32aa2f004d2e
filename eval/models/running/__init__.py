"""An open model at work: its logits and streams for a text, and patches of its sites."""
