"""The door of captured tensors: files, caches, stacks and number formats."""
