"""Models from and to the layouts of others."""
