"""The run directory: its files, its checkpoints, and where a run goes on."""
