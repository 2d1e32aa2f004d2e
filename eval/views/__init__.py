"""What is looked at: a page, a table of checkpoints, W&B."""
