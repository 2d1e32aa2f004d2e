"""A step of training: its batch, loss, optimiser and speed."""
